"""Which lines are kept: the first and last of each kind and process; tracebacks, stacks and reports as whole blocks."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from diag.hang.policy import HANG_READING
from diag.hang.text.prefixes import ParsedLine

# -- A bounded choice: the first and last lines of each kind and process -----------------------------------------------
#
# All is kept while it fits. Beyond ``most_lines`` lines or ``most_bytes`` bytes the share of each kind and process is
# halved as often as needed; lines that are left out are counted.


RawLine = tuple[int, int, bytes]  # file, line number, bytes as read
RawLines = tuple[RawLine, ...]  # one line, or the lines of one traceback


@dataclass(slots=True)
class _Bucket:
    share: int
    first: list[RawLines] = field(default_factory=list)
    last: deque[RawLines] = field(default_factory=deque)

    def entries(self) -> Iterator[RawLines]:
        yield from self.first
        yield from self.last


class KeptLines:
    def __init__(self) -> None:
        self._buckets: dict[tuple[object, object], _Bucket] = {}
        self._halvings = 0
        self._lines = self._bytes = 0
        self.left_out: Counter[tuple[int, object]] = Counter()  # (file, kind): lines

    def add(self, kind: object, speaker: object, lines: RawLines, block: bool = False) -> None:
        """Keeps lines. ``kind``: the reason; ``speaker``: the process, as far as it is known without parsing."""
        key = (kind, speaker)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= HANG_READING.most_lines or (
                self._halvings >= HANG_READING.halvings and self._bytes > HANG_READING.most_bytes
            ):
                # Too many processes for each to have its own share.
                key = (kind, None)
                bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = _Bucket(self._share(block))
        if len(bucket.first) < bucket.share:
            bucket.first.append(lines)
        else:
            bucket.last.append(lines)
            if len(bucket.last) > bucket.share:
                self._drop(kind, bucket.last.popleft())
        self._lines += len(lines)
        for line in lines:
            self._bytes += len(line[2]) + HANG_READING.line_overhead_bytes
        if (
            self._lines > HANG_READING.most_lines or self._bytes > HANG_READING.most_bytes
        ) and self._halvings < HANG_READING.halvings:
            self._halve()

    def entries(self) -> Iterator[tuple[object, RawLines]]:
        for (kind, _), bucket in self._buckets.items():
            for lines in bucket.entries():
                yield kind, lines

    def _share(self, block: bool) -> int:
        return max(1, (HANG_READING.block_share if block else HANG_READING.first_share) >> self._halvings)

    def _drop(self, kind: object, lines: RawLines) -> None:
        self.left_out[lines[0][0], kind] += len(lines)
        self._lines -= len(lines)
        for line in lines:
            self._bytes -= len(line[2]) + HANG_READING.line_overhead_bytes

    def _halve(self) -> None:
        """Halves the shares. With shares of one the bound can be exceeded; what is kept then grows only with the number
        of kinds and processes, which `add` bounds."""
        self._halvings += 1
        for (kind, _), bucket in self._buckets.items():
            share = bucket.share = max(1, bucket.share // 2)
            rest = [*bucket.first[share:], *bucket.last]
            bucket.first = bucket.first[:share]
            for lines in rest[: max(0, len(rest) - share)]:
                self._drop(kind, lines)
            bucket.last = deque(rest[max(0, len(rest) - share) :])


# -- Messages of several lines, kept whole: tracebacks, stack dumps, torchrun's summary, desync reports ----------------
#
# Lines of other processes may come in between: a line belongs to the block that the same process opened.


# Substrings of lines that open a block, and the block's kind.
TRACEBACK = "Traceback (most recent call last)"
OPENERS = {
    TRACEBACK: "traceback",
    "Fatal Python error:": "faulthandler",
    "(most recent call first)": "faulthandler",
    '(active): "': "py-spy",
    '(idle): "': "py-spy",
    '(active+gil): "': "py-spy",
    '(idle+gil): "': "py-spy",
    "Process ": "py-spy",
    "Failures:": "elastic",
    "Root Cause (first observed failure)": "elastic",
    "Root Cause:": "elastic",  # torch 1.9, with the next one
    "Other Failures:": "elastic",
    "To our best knowledge": "desync",
    "Snapshot of ranks' latest states": "desync",
    "==== backtrace": "backtrace",
    "(LWP ": "gdb",
    "Last error:": "last error",
    "Missing ranks:": "horovod",
    "Stalled ranks:": "horovod",
}
SOURCES = {
    "traceback": "python",
    "last error": "python",
    "elastic": "launcher",
    "desync": "torch",
    "horovod": "horovod",
}  # the others: "stack"

_PY_SPY = re.compile(r"Process \d+: |Thread (?:\d+|0x[0-9a-fA-F]+) \((?:active|idle)")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_LISTED = re.compile(r"(?:\[\d+\] )?\d+: \[")
_FAULT = ("  File ", "  <", "  ...", "Thread 0x", "Current thread 0x", "Python runtime state", "Stack (most")


class Part(Enum):
    MORE = "belongs"
    LAST = "belongs and ends it"
    NO = "ends it"


@dataclass(slots=True)
class Open:
    kind: str
    speaker: tuple[object, ...]
    lines: list[RawLine] = field(default_factory=list)
    prefix: bytes = b""  # of the line that opened it
    number: int = 0  # in the order of opening
    foreign_before: int = 0  # lines of no block that came before it
    state: str = "frames"
    tail: int = 0
    shape: re.Pattern[str] | None = None  # of a prefix that is not known: what stands in front of its first words
    bare: bool = False  # its frames have no prefix: a logger writes one before the first line of a message only

    def takes(self, parsed: ParsedLine, speaker: tuple[object, ...]) -> bool:
        """Whether a line may belong to the block, by its ``speaker``, the process that prints it. In a report only the
        first line may have prefixes."""
        if speaker == self.speaker:
            return True
        if self.kind == "horovod":  # "1: [tensor, ..]" looks like the prefix of srun
            return not parsed.any or parsed.rank_from == "srun"
        return self.kind in ("desync", "elastic") and not parsed.any

    def is_frame(self, raw: bytes) -> bool:
        """Whether a line is certainly a frame of this traceback: same prefix, indented. Such lines need no parsing."""
        return self.kind == "traceback" and self.state == "frames" and raw.startswith(self.prefix + b"  ")

    def feed(self, parsed: ParsedLine) -> Part:
        if len(self.lines) >= HANG_READING.most_own_lines or parsed.source == "nccl":
            return Part.NO
        text = without_shape(parsed.text, self.shape)
        match self.kind:
            case "traceback":
                return self._traceback(parsed, text)
            case "faulthandler":
                if text.startswith("Extension modules"):
                    return Part.LAST
                return Part.MORE if not text or text.startswith(_FAULT) else Part.NO
            case "py-spy":
                if not text or text.startswith(("    ", "Python v")):
                    return Part.MORE
                return Part.MORE if text.startswith("Thread ") and _PY_SPY.match(text) else Part.NO
            case "elastic":
                return Part.LAST if text.startswith("=====") else Part.MORE
            case "horovod":
                return Part.MORE if not text or text.startswith("[") or _LISTED.match(text) else Part.NO
            case "last error":
                return Part.LAST
            case "desync":
                return Part.MORE if text.startswith(("\t", " ", "-")) else Part.NO
            case "backtrace":
                return Part.LAST if text.startswith("=====") or len(self.lines) > 80 else Part.MORE
            case _:
                return Part.MORE if text.startswith(("#", " ")) else Part.NO

    def _traceback(self, parsed: ParsedLine, text: str) -> Part:
        if self.state == "frames":
            if text[:1] in (" ", "\t") or not text or text.startswith("Traceback ("):
                return Part.MORE
            self.state = "message"
            return Part.MORE
        if self.state == "message":
            if not text:
                self.state = "after"
                return Part.MORE
            self.tail += 1
            if parsed.source or self.tail > HANG_READING.message_tail_lines or text.startswith("Traceback ("):
                return Part.NO
            return Part.MORE
        if text.startswith(_CHAINED):
            self.state, self.tail = "frames", 0
            return Part.MORE
        return Part.NO


def shape_of(prefix: str) -> re.Pattern[str] | None:
    """What lines begin with that have the same prefix but for its numbers; None for a blank one."""
    if not prefix.strip() or len(prefix) > HANG_READING.longest_prefix_chars:
        return None
    return re.compile(re.sub(r"(?:\\?\d)+", lambda _: r"\d{1,20}", re.escape(prefix)))


def without_shape(text: str, shape: re.Pattern[str] | None) -> str:
    match = shape.match(text) if shape is not None else None
    return text[match.end() :] if match is not None else text


_OF_ANYBODY = ("horovod", "desync", "elastic")


class OpenBlocks:
    """The open blocks in the order of opening, found by the process and the prefix of a line: hundreds of ranks may
    raise at once, and a line is of one of them."""

    def __init__(self) -> None:
        self._open: dict[int, Open] = {}  # by number
        self._by_speaker: dict[tuple[object, ...], dict[int, Open]] = defaultdict(dict)
        self._of_anybody: dict[int, Open] = {}
        self._by_prefix: dict[bytes, dict[int, Open]] = defaultdict(dict)
        self._prefix_lengths: Counter[int] = Counter()
        self._opened = self._foreign = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    def __iter__(self) -> Iterator[Open]:
        return iter(list(self._open.values()))

    def add(self, block: Open) -> None:
        self._opened += 1
        block.number, block.foreign_before = self._opened, self._foreign
        for blocks in self._indices(block):
            blocks[block.number] = block
        self._prefix_lengths[len(block.prefix)] += 1

    def remove(self, block: Open) -> None:
        for blocks in self._indices(block):
            del blocks[block.number]
        if not self._by_speaker[block.speaker]:
            del self._by_speaker[block.speaker]
        if not self._by_prefix[block.prefix]:
            del self._by_prefix[block.prefix]
        self._prefix_lengths[len(block.prefix)] -= 1
        if not self._prefix_lengths[len(block.prefix)]:
            del self._prefix_lengths[len(block.prefix)]

    def _indices(self, block: Open) -> list[dict[int, Open]]:
        indices = [self._open, self._by_speaker[block.speaker], self._by_prefix[block.prefix]]
        return [*indices, self._of_anybody] if block.kind in _OF_ANYBODY else indices

    def with_frame(self, raw: bytes) -> Open | None:
        """The block that this line is certainly a frame of."""
        blocks = (b for length in self._prefix_lengths for b in self._by_prefix.get(raw[:length], {}).values())
        fitting = (block for block in blocks if block.is_frame(raw) and len(block.lines) < HANG_READING.most_own_lines)
        return min(fitting, key=lambda block: block.number, default=None)

    def taking(self, parsed: ParsedLine, number: int) -> Open | None:
        """The first block that a line may belong to. ``number``: of the line."""
        if (logged := self._logged(parsed, number)) is not None:
            return logged
        speaker = parsed.speaker()
        own = itertools.islice(self._by_speaker.get(speaker, {}).values(), 1)
        others = (block for block in self._of_anybody.values() if block.takes(parsed, speaker))
        return min((*own, *itertools.islice(others, 1)), key=lambda block: block.number, default=None)

    def _logged(self, parsed: ParsedLine, number: int) -> Open | None:
        """The traceback of which this is the next line, without the prefix of its first one."""
        if parsed.any or not self._open:
            return None
        block = next(reversed(self._open.values()))
        if block.kind != "traceback" or block.lines[-1][1] != number - 1:
            return None
        if len(block.lines) == 1 and parsed.text.startswith("  File "):
            block.bare = True
        return block if block.bare else None

    def count_foreign(self) -> list[Open]:
        """Counts a line of no block; the blocks that more than MOST_FOREIGN of them have followed."""
        self._foreign += 1
        followed = (block for block in self._open.values())
        return list(
            itertools.takewhile(lambda b: self._foreign - b.foreign_before > HANG_READING.most_foreign_lines, followed)
        )


def opened(parsed: ParsedLine, word: str) -> Open | None:
    """The block that a line with this substring opens, if it does."""
    kind, text = OPENERS[word], parsed.text
    if kind == "py-spy" and not _PY_SPY.match(text):
        return None
    if kind == "horovod" and not text.strip().endswith(word):
        return None
    if kind == "last error" and text.strip() != word:
        return None
    if word.endswith(("Failures:", "Cause:")) and text.strip() != word:
        return None
    if parsed.source == "nccl":
        return None
    shape = shape_of(text.partition(word)[0]) if kind == "traceback" else None
    return Open(kind, parsed.speaker(), shape=shape)
