"""Reads files, packed or not, as blocks of whole lines, and finds substrings in the blocks.

Damage ends a stream and becomes a gap; what was read before it counts. Memory does not depend on the input: at most a
few megabytes are unpacked at a time. A file that unpacks to more than ``bomb_bytes`` at more than ``bomb_ratio`` to one
is read no further: real logs compress 10 to 60 to one.
"""

from __future__ import annotations

import re
import signal
import stat
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
from ahocorasick_rs import BytesAhoCorasick, Implementation
from isal import isal_zlib
from numpy.typing import NDArray

from diag.collectors.layout import SNAPSHOT, Entry, RankLayout, RunLayout, is_folder, run_of
from diag.collectors.reading import open_regular, walk
from diag.errors import DiagError, unreadable
from diag.hang.policy import HANG_READING
from diag.hang.text.prefixes import plain, read_text
from diag.packed import DEFLATE_ERROR, GZIP, ZSTD
from diag.rundir.job_ranks import of_its_job


class Gaps:
    """What could not be read or joined: each reason once per path, with a count."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._paths: set[str] = set()

    def say(self, path: str, reason: str) -> None:
        self._counts[path, reason] += 1
        self._paths.add(path)

    def about(self, path: str) -> bool:
        return path in self._paths

    def all(self) -> tuple[tuple[str, str], ...]:
        return tuple(
            (path, reason if count == 1 else f"{reason} ({count} times)")
            for (path, reason), count in self._counts.items()
        )


# -- Inputs: files, folders with all that lies below them, "-" for standard input --------------------------------------

STDIN = "-"


def _data_names() -> str:
    """A regular expression for the names of data files: not logs, stacks or an exception's text."""
    entries = [entry for layout in (RunLayout, RankLayout) for entry in vars(layout).values()]
    names = [entry.name for entry in entries if isinstance(entry, Entry) and entry is not vars(RankLayout)["error"]]
    data = [re.escape(name) for name in names if name.endswith(".json")]
    data += [
        rf"{re.escape(name.removesuffix('.jsonl'))}(?:\.\d{{6,18}})?\.jsonl"
        for name in names
        if name.endswith(".jsonl")
    ]
    return "|".join([r"trace-step\d+\.json(?:\.gz)?", SNAPSHOT + r"\d+\.pickle", *data])


# Files of this project's run directories and of profilers: not logs, and often large. stacks.txt and error.json are
# read.
_NO_LOGS = re.compile(
    rf"(^|/)({_data_names()})$"
    r"|\.(parquet|pt|pth|bin|safetensors|ckpt|npy|npz|so|py|pyc|whl|tar|zip|png|jpg|html|pftrace)$"
)


def files_of(paths: Sequence[str | Path], gaps: Gaps) -> list[str]:
    """Every file that may be a log, in the order given, folders in natural order of names, no file twice."""
    files: list[str] = []
    seen: set[tuple[int, int]] = set()
    for path in map(str, paths):
        if path == STDIN:
            files.append(STDIN)
        elif not _is_there(path):
            raise DiagError(f"{path}: no such file or folder", hint="Check the path.", path=path)
        elif is_folder(path):
            files.extend(_below(path, seen, gaps))
        elif _is_new(path, seen, gaps):  # also a pipe, since the user named it
            files.append(path)
    return files


def _is_there(path: str) -> bool:
    try:
        Path(path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(error, path) from error
    return True


def _below(folder: str, seen: set[tuple[int, int]], gaps: Gaps) -> Iterator[str]:
    of_job = of_its_job(gaps.say)
    files = walk(
        folder,
        gaps.say,
        wanted=lambda name: not _NO_LOGS.search(name),
        enter=lambda path: not RunLayout(Path(path)).is_restart and of_job(path),
        follow_folders=True,
    )
    return (path for path in files if _is_new(path, seen, gaps))


def _is_new(path: str, seen: set[tuple[int, int]], gaps: Gaps) -> bool:
    """Whether a file is seen for the first time: it may have several names. True for anything but a regular file."""
    try:
        about = Path(path).stat()
    except OSError as error:
        gaps.say(path, f"cannot be read: {error.strerror}")
        return False
    if not stat.S_ISREG(about.st_mode):
        return True
    key = (about.st_dev, about.st_ino)
    if key in seen:
        return False
    seen.add(key)
    return True


_OTHER_PACKERS = {b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip", b"\x04\x22\x4d\x18": "lz4"}


def pieces_of(path: str, gaps: Gaps, explicit: bool = False) -> Iterator[bytes]:
    """The bytes of a file; nothing where it cannot be opened or is packed in another way. ``explicit``: the user named
    this path, which may be a pipe or a link that leads anywhere."""
    try:
        with _opened(path, explicit) as file:
            head = file.read(HANG_READING.packed_piece_bytes)
            if head.startswith(GZIP):
                yield from _counted(_gunzip(head, file, path, gaps), path, gaps)
            elif head.startswith(ZSTD):
                yield from _counted(_unzstd(head, file, path, gaps), path, gaps)
            elif packer := next((name for magic, name in _OTHER_PACKERS.items() if head.startswith(magic)), ""):
                gaps.say(path, f"packed with {packer}, which is not read: unpack it first")
            else:
                yield head
                while piece := file.read(HANG_READING.piece_bytes):
                    yield piece
    except OSError as error:
        gaps.say(path, f"cannot be read: {error.strerror or error}")


def unwrapped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The text with lines joined that a terminal or mail program wrapped, where it is short enough to have been copied
    from one. Blank lines follow, so that the others keep their numbers."""
    first = next(pieces, b"")
    second = next(pieces, None) if len(first) <= HANG_READING.copied_bytes else None
    if first and second is None and len(first) <= HANG_READING.copied_bytes:
        yield _joined(first)
        return
    yield first
    if second is not None:
        yield second
    yield from pieces


# Lines of a table or of a box, as rich draws around a traceback, are all of one width and end with its frame.
_ENDS_OF_BOXES = "\u2502\u2503\u256e\u256f\u2510\u2518\u2513\u251b\u2524\u252b\u2551\u2557\u255d|+"


def _joined(data: bytes) -> bytes:
    lines = data.split(b"\n")
    texts = [line.rstrip(b"\r").decode("utf-8", "replace") for line in lines]
    width = max(map(len, texts))
    if not HANG_READING.narrowest_line <= width <= HANG_READING.widest_line:
        return data
    full = [
        at
        for at, text in enumerate(texts[:-1])
        if len(text) == width and len(set(text)) > 2 and text[-1] not in _ENDS_OF_BOXES
    ]
    # Beginnings of lines that follow a shorter line: lines that begin so are no continuations.
    heads = {
        text[: HANG_READING.head_chars]
        for before, text in zip(["", *texts], texts, strict=False)
        if len(before) < width
    }
    cut = [
        at
        for at in full
        if texts[at + 1].strip()
        and not texts[at].endswith("  ")
        and texts[at + 1][: HANG_READING.head_chars] not in heads
        and not _begins(texts[at + 1])
    ]
    if len(cut) < 2 or 2 * len(cut) < len(full):
        return data
    continues = set(cut)
    joined: list[bytes] = []
    blanks = 0
    for at, line in enumerate(lines):
        if at - 1 in continues:
            joined[-1] = joined[-1].rstrip(b"\r") + line
            blanks += 1
            continue
        joined += [b""] * blanks
        joined.append(line)
        blanks = 0
    return b"\n".join([*joined, *[b""] * blanks])


def _begins(text: str) -> bool:
    """Whether a line is the first line of a message."""
    return read_text(plain(text)).any or text.startswith(("Traceback (", "  File ", "    ", "#"))


def _opened(path: str, is_named: bool) -> AbstractContextManager[BinaryIO]:
    """The file, open; standard input stays open afterwards."""
    if is_named and threading.current_thread() is threading.main_thread():
        # Polars, where it is imported, restarts what a signal interrupts: Ctrl-C would wait for a pipe's next line.
        signal.siginterrupt(signal.SIGINT, True)
    if path == STDIN:
        return nullcontext(sys.stdin.buffer)
    return Path(path).open("rb") if is_named else open_regular(path, run_of(path))


def _counted(source: Iterator[tuple[int, bytes]], path: str, gaps: Gaps) -> Iterator[bytes]:
    """The pieces, until they are so much larger than the input that it cannot be a log."""
    total = 0
    for packed, piece in source:
        yield piece
        total += len(piece)
        if total > HANG_READING.bomb_bytes and total > HANG_READING.bomb_ratio * packed:
            gaps.say(
                path,
                f"unpacks to more than {HANG_READING.bomb_ratio} times its size: read up to {total >> 20} MiB only",
            )
            return


def _gunzip(head: bytes, file: BinaryIO, path: str, gaps: Gaps) -> Iterator[tuple[int, bytes]]:
    """(packed bytes so far, a piece), of all members."""
    packed, data, later = (
        len(head),
        head[: HANG_READING.gzip_piece_bytes],
        memoryview(head)[HANG_READING.gzip_piece_bytes :],
    )
    machine = isal_zlib.decompressobj(wbits=31)
    try:
        while data:
            if piece := machine.decompress(data, HANG_READING.piece_bytes):
                yield packed - len(later), piece
            data = machine.unused_data if machine.eof else machine.unconsumed_tail
            if not data:
                if not later:
                    later = memoryview(file.read(HANG_READING.packed_piece_bytes))
                    packed += len(later)
                data, later = bytes(later[: HANG_READING.gzip_piece_bytes]), later[HANG_READING.gzip_piece_bytes :]
            if machine.eof and (data := data.lstrip(b"\0")):  # tapes and preallocated files are padded
                if len(data) < len(GZIP):
                    data, later = (
                        data + bytes(later[: HANG_READING.gzip_piece_bytes]),
                        later[HANG_READING.gzip_piece_bytes :],
                    )
                if not data.startswith(GZIP[: len(data)]):
                    gaps.say(path, "has trailing data after the gzip stream, which is ignored")
                    return
                machine = isal_zlib.decompressobj(wbits=31)
        while not machine.eof and (piece := machine.decompress(b"", HANG_READING.piece_bytes)):
            yield packed, piece
    except DEFLATE_ERROR as error:
        gaps.say(path, f"corrupt gzip data, read up to the error: {error}")
        return
    if not machine.eof:
        gaps.say(path, "truncated gzip data: read up to the end of the file")


def _unzstd(head: bytes, file: BinaryIO, path: str, gaps: Gaps) -> Iterator[tuple[int, bytes]]:
    """(packed bytes so far, a piece), of all frames."""
    import zstandard  # rarely needed

    packed, data = 0, head
    unpack = zstandard.ZstdDecompressor(max_window_size=HANG_READING.zstd_window_bytes)
    machine, inside = unpack.decompressobj(), False
    try:
        while data:
            while data:
                if machine.eof:
                    machine, inside = unpack.decompressobj(), False
                now, data = data[: HANG_READING.zstd_piece_bytes], data[HANG_READING.zstd_piece_bytes :]
                piece, inside = machine.decompress(now), True
                packed += len(now)
                if machine.eof and machine.unused_data:
                    packed -= len(machine.unused_data)
                    data = machine.unused_data + data
                if piece:
                    yield packed, piece
            data = file.read(HANG_READING.packed_piece_bytes)
    except zstandard.ZstdError as error:
        gaps.say(path, f"corrupt zstd data, read up to the error: {error}")
        return
    if inside and not machine.eof:
        gaps.say(path, "truncated zstd data: read up to the end of the file")


# -- Blocks of whole lines, and the search for substrings in them ------------------------------------------------------
#
# Measured on one core, 1,618 substrings in blocks of 8 MB of a log of 1,024 ranks with a tenth of its lines COLL: the
# automaton of ``ahocorasick_rs`` as a DFA reads 250 MB/s and as an NFA 150, polars ``str.find_many``, which has the NFA
# and needs text, 80. An alternation of ``re`` and ``in`` for each line read 10 with a tenth of the substrings. Newlines
# are found by numpy at 1,100. So Python looks at the lines with hits only.


@dataclass(frozen=True)
class TextBlock:
    """Whole lines; ``first``: the number of the first. ``cut``: a piece of one line longer than a block."""

    data: bytes
    first: int
    cut: bool = False

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Of its lines; one more than there are lines. Most blocks hold nothing, and nobody asks for theirs."""
        ends = np.flatnonzero(np.frombuffer(self.data, np.uint8) == 10) + 1
        if not len(ends) or ends[-1] != len(self.data):
            ends = np.append(ends, len(self.data))
        return np.concatenate((np.zeros(1, np.int64), ends))

    def line(self, index: int) -> bytes:
        """The line without its newline."""
        return self.data[self.starts[index] : self.starts[index + 1]].rstrip(b"\n")

    def __len__(self) -> int:
        return self._lines

    @cached_property
    def _lines(self) -> int:
        return self.data.count(b"\n") + (not self.data.endswith(b"\n"))


def blocks_of(pieces: Iterable[bytes]) -> Iterator[TextBlock]:
    """The blocks. A line longer than a block comes in pieces that all have its number."""
    rest: list[bytes] = []
    size, number = 0, 1
    for piece in pieces:
        rest.append(piece)
        size += len(piece)
        if size < HANG_READING.block_bytes:
            continue
        data = b"".join(rest)
        end = data.rfind(b"\n") + 1
        if end:
            block = block_of(data[:end], number)
            number += len(block)
            yield block
        else:
            yield block_of(data, number, cut=True)
            end = len(data)
        rest, size = [data[end:]], len(data) - end
        del data
    if data := b"".join(rest):
        yield block_of(data, number)


def block_of(data: bytes, first: int = 1, cut: bool = False) -> TextBlock:
    return TextBlock(data, first, cut)


class Search:
    """Searches many substrings at once. ``bulk``: one that may be in most lines. It has no state of a text."""

    def __init__(self, wanted: Sequence[str], bulk: str = "") -> None:
        self.wanted = list(dict.fromkeys(word for word in (*wanted, bulk) if word))
        self._bulk = self.wanted.index(bulk) if bulk else -1
        self._automaton = BytesAhoCorasick([word.encode() for word in self.wanted], implementation=Implementation.DFA)

    def hits(self, block: TextBlock) -> tuple[NDArray[np.int64], Iterator[tuple[int, int, list[int]]]]:
        """The lines in which only the bulk substring was found; and for the others (line, where its first hit begins,
        the indices of its substrings, each once), by line."""
        found = self._automaton.find_matches_as_indexes(block.data, overlapping=True)
        if not found:
            return np.empty(0, np.int64), iter(())
        words, starts, _ = np.array(found, np.int64).T
        order = np.lexsort((words, starts))
        words, starts = words[order], starts[order]
        lines = np.searchsorted(block.starts, starts, side="right") - 1
        is_bulk = words == self._bulk
        alone = is_bulk & ~np.isin(lines, lines[~is_bulk])
        return np.unique(lines[alone]), _by_line(lines[~alone], starts[~alone], words[~alone])


def _by_line(
    lines: NDArray[np.int64], starts: NDArray[np.int64], words: NDArray[np.int64]
) -> Iterator[tuple[int, int, list[int]]]:
    edges = [0, *(np.flatnonzero(np.diff(lines)) + 1).tolist(), len(lines)]
    for begin, end in pairwise(edges):
        if begin < end:
            yield int(lines[begin]), int(starts[begin]), list(dict.fromkeys(words[begin:end].tolist()))


@lru_cache(maxsize=4)
def search_of(wanted: tuple[str, ...], bulk: str = "") -> Search:
    """The search of these substrings, made once: preparing 1,500 of them takes longer than reading a short log."""
    return Search(wanted, bulk)
