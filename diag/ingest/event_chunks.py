"""A trace's text cut at event boundaries: the header, chunks of whole events, and what follows the events.

Nothing here knows what an event means. A chunk is the text of consecutive elements of ``traceEvents``; where it may be
cut is first guessed from the last bytes and proven by whoever decodes it (``[chunk]`` is JSON only if it was cut
between two elements); `exact_cut` finds a place by reading every bracket, for the rare texts that defeat guessing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from .text_stream import damaged

CHUNK_BYTES = 8 << 20
# An event, the header and the trailer are each smaller than this, or the file is none of ours.
MAX_PIECE_BYTES = 64 << 20
_OPENING = re.compile(rb'"traceEvents"\s*:\s*')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
# Between two events as Kineto prints them. A newline cannot lie inside a JSON string.
KINETO_BETWEEN = b"\n  },\n  {\n"
_BOM = b"\xef\xbb\xbf"


class Cutter:
    """Feeds on blocks of text; gives the header, then chunks, then the rest.

    ``header`` is everything before the first event, including ``"traceEvents": [``, or the whole text where there is no
    such thing. ``rest`` is what is left when there are no more chunks: the last events, ``]`` and what follows.
    """

    def __init__(self, blocks: Iterator[bytes], name: str, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._blocks = blocks
        self._name = name
        self._size = chunk_bytes
        self._text = b""
        self.closed = False
        self.header = self._read_header()

    def next_chunk(self) -> bytes:
        """The text of the next whole events, without a comma around it; b"" where only the rest is left."""
        if self.closed or not self._fill(self._size):
            return b""
        end, begin = self._cut()
        chunk, self._text = self._text[:end], self._text[begin:]
        return chunk

    def again(self, chunk: bytes) -> bytes:
        """The chunk cut at a proven place, for one that was not JSON; b"" where that leaves only the rest, or where
        there is none (``rest`` then begins with what is wrong)."""
        self._text = chunk + b"," + self._text if self._text else chunk
        end, begin, self.closed = exact_cut(self._text)
        while not end and not self.closed and self._fill(2 * len(self._text)):
            if len(self._text) > MAX_PIECE_BYTES:
                self._too_long()
            end, begin, self.closed = exact_cut(self._text)
        found, self._text = self._text[:end], self._text[begin:]
        return found

    @property
    def rest(self) -> bytes:
        if self._fill(MAX_PIECE_BYTES):
            self._too_long()
        return self._text

    def _fill(self, size: int) -> bool:
        """Whether there are that many bytes of text to work on."""
        parts = [self._text]
        have = len(self._text)
        while have < size:
            block = next(self._blocks, b"")
            if not block:
                break
            parts.append(block)
            have += len(block)
        self._text = b"".join(parts)
        return have >= size

    def _read_header(self) -> bytes:
        size = 1 << 16
        while True:
            more = self._fill(size)
            self._text = self._text.removeprefix(_BOM)
            found = self._first_opening()
            if found is not None:
                header, self._text = self._text[:found], self._text[found:]
                return header
            if not more:
                header, self._text = self._text, b""
                return header  # no events: whoever decodes it says why
            if size >= MAX_PIECE_BYTES or self._hopeless():
                raise damaged(self._name, self._hopeless() or "no events in its first 64 MB: not a Kineto trace")
            size *= 4

    def _first_opening(self) -> int | None:
        """Where the first event begins: after the first ``"traceEvents": [`` that is not inside something else."""
        for match in _OPENING.finditer(self._text):
            if self._text[match.end() : match.end() + 1] != b"[":
                continue
            depth, inside = depth_before(self._text[: match.start()])
            if depth == 1 and not inside:
                return match.end() + 1
        return None

    def _hopeless(self) -> str:
        start = self._text[:256].lstrip()
        if start and not start.startswith(b"{"):
            return "not JSON: it does not begin with a brace"
        return ""

    def _cut(self) -> tuple[int, int]:
        """End of the chunk and begin of what follows, guessed from the last bytes."""
        size = self._size
        while True:
            at = self._text.rfind(KINETO_BETWEEN)
            if at >= 0:
                return at + 4, at + 6
            last = None
            for match in _BETWEEN.finditer(self._text, max(0, len(self._text) - (1 << 16))):
                last = match
            if last is not None:
                return last.start() + 1, last.end()
            size *= 2
            if size > MAX_PIECE_BYTES:
                self._too_long()
            if not self._fill(size):
                return len(self._text), len(self._text)

    def _too_long(self) -> NoReturn:
        raise damaged(self._name, f"one piece of it is longer than {MAX_PIECE_BYTES >> 20} MB, which no event is")


def depth_before(text: bytes) -> tuple[int, bool]:
    """How many brackets are open at the end of a text that begins outside a string, and whether a string is."""
    structure = _Structure(text)
    return int(structure.depth[-1]) if len(structure.depth) else 0, structure.open_string


def exact_cut(text: bytes) -> tuple[int, int, bool]:
    """(end, begin, closed) for a text that begins between two elements of an array: the end of the last whole element
    and the begin of the next. ``closed``: the array ends at ``end``, and ``begin`` is its bracket. (0, 0, False) where
    not even one element is whole."""
    structure = _Structure(text)
    closing = np.flatnonzero(structure.depth < 0)
    if len(closing):
        at = int(structure.position[closing[0]])
        return at, at, True
    commas = structure.commas()
    return (int(commas[-1]), int(commas[-1]) + 1, False) if len(commas) else (0, 0, False)


class _Structure:
    """Brackets of a JSON text, without those inside strings. Arrays: ``position`` in bytes, ``depth`` after each."""

    def __init__(self, text: bytes) -> None:
        self._bytes = np.frombuffer(text, dtype=np.uint8)
        quotes = np.flatnonzero(self._bytes == ord('"'))
        self._quotes = quotes[~self._escaped(quotes)]
        self.open_string = bool(len(self._quotes) % 2)
        brackets = np.flatnonzero((self._bytes | 0x20 == ord("{")) | (self._bytes | 0x20 == ord("}")))
        self.position = brackets[~self._in_string(brackets)]
        opening = (self._bytes[self.position] & 0x06) == 0x02  # "[" and "{" against "]" and "}"
        self.depth = np.cumsum(np.where(opening, 1, -1))

    def commas(self) -> npt.NDArray[np.int64]:
        """Where the commas between the elements are: outside strings, with no bracket open."""
        commas = np.flatnonzero(self._bytes == ord(","))
        commas = commas[~self._in_string(commas)]
        before = np.searchsorted(self.position, commas) - 1
        depth = (
            np.where(before >= 0, self.depth[np.maximum(before, 0)], 0) if len(self.depth) else np.zeros(len(commas))
        )
        found: npt.NDArray[np.int64] = commas[depth == 0]
        return found

    def _in_string(self, at: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        inside: npt.NDArray[np.bool_] = np.searchsorted(self._quotes, at) % 2 == 1
        return inside

    def _escaped(self, at: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether an odd number of backslashes stands before each position."""
        backslash = self._bytes == ord("\\")
        if not backslash.any():
            return np.zeros(len(at), dtype=np.bool_)
        # For every byte, the last position up to it that is no backslash.
        plain = np.maximum.accumulate(np.where(backslash, -1, np.arange(len(backslash))))
        before = np.where(at > 0, at - 1 - plain[np.maximum(at - 1, 0)], 0)
        odd: npt.NDArray[np.bool_] = (before % 2 == 1) & (at > 0)
        return odd
