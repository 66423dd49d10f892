"""Blocks of whole lines, and where in them the wanted substrings are.

Measured on one core of a two-core machine, 146 substrings, logs of 1,024 ranks (MB/s, with a tenth and with half of
the lines COLL): polars ``str.find_many`` (Aho-Corasick) over a block of 8 MB 173 and 193; the same on split lines
(``contains_any``) 154 and 178; ``bytes.find`` for each substring 22 and 22; a compiled alternation of ``re`` 9 and 10;
``any(s in line)`` 4 and 10. Newlines are found by numpy at 3,000. So Python looks at the lines with hits only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

BLOCK = 8 << 20


@dataclass(frozen=True)
class Block:
    """Whole lines; ``first``: the number of the first. ``cut``: a piece of one line longer than a block."""

    data: bytes
    first: int
    starts: NDArray[np.int64]  # of its lines; one more than there are lines
    cut: bool = False

    def line(self, index: int) -> bytes:
        """Without its end."""
        return self.data[self.starts[index] : self.starts[index + 1]].rstrip(b"\n")

    def __len__(self) -> int:
        return len(self.starts) - 1


def blocks_of(pieces: Iterable[bytes]) -> Iterator[Block]:
    """A line longer than a block comes in pieces that all bear its number."""
    rest: list[bytes] = []
    size, number = 0, 1
    for piece in pieces:
        rest.append(piece)
        size += len(piece)
        if size < BLOCK:
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


def block_of(data: bytes, first: int = 1, cut: bool = False) -> Block:
    """All of these bytes as one block."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + 1
    if not len(ends) or ends[-1] != len(data):
        ends = np.append(ends, len(data))
    return Block(data, first, np.concatenate((np.zeros(1, np.int64), ends)), cut)


class Search:
    """Looks for many substrings at once. Empty ones are passed over. ``bulk``: the one that may be in most lines."""

    def __init__(self, wanted: Sequence[str], bulk: str = "") -> None:
        self._bulk = bulk.encode()
        self.wanted = list(dict.fromkeys(word for word in wanted if word))
        encoded = [word.encode() for word in self.wanted]
        self._folded = list(dict.fromkeys(_ascii(word) for word in encoded))
        # Which substring a hit is, by its first four bytes: an alternation of re would try them all.
        self._by_head: dict[bytes, list[tuple[int, bytes]]] = {}
        shortest = min((len(word) for word in encoded), default=0)
        self._head = min(4, shortest)
        for index, word in enumerate(encoded):
            self._by_head.setdefault(word[: self._head], []).append((index, word))

    def hits(self, block: Block) -> tuple[NDArray[np.int64], Iterator[tuple[int, int, list[int]]]]:
        """The lines in which the bulk substring alone was found; and of the others (line, where its first hit begins,
        the indices of the substrings in it), by line."""
        found = self._found(block)
        lines = np.searchsorted(block.starts, found, side="right") - 1
        data = np.frombuffer(block.data, np.uint8)
        is_bulk = np.full(len(found), bool(self._bulk))
        for offset, byte in enumerate(self._bulk):
            is_bulk &= data[np.minimum(found + offset, len(data) - 1)] == byte
        mixed = np.unique(lines[~is_bulk])
        alone = is_bulk & ~np.isin(lines, mixed)
        return np.unique(lines[alone]), self._named(block, found[~alone], lines[~alone])

    def _found(self, block: Block) -> NDArray[np.int64]:
        if not self._folded:
            return np.empty(0, np.int64)
        # polars wants valid UTF-8: the eighth bit is dropped, which moves nothing. A false hit does not pass `_named`.
        folded = (np.frombuffer(block.data, np.uint8) & 0x7F).tobytes().decode("ascii")
        found = pl.Series([folded]).str.find_many(self._folded, overlapping=True)[0].to_numpy()
        return np.unique(found).astype(np.int64)

    def _named(
        self, block: Block, found: NDArray[np.int64], lines: NDArray[np.int64]
    ) -> Iterator[tuple[int, int, list[int]]]:
        data, heads, width = block.data, self._by_head, self._head
        now, first, words = -1, 0, list[int]()
        for line, at in zip(lines.tolist(), found.tolist(), strict=True):
            real = [index for index, word in heads.get(data[at : at + width], ()) if data.startswith(word, at)]
            if not real:
                continue
            if line != now:
                if words:
                    yield now, first, words
                now, first, words = line, at, real
            else:
                words += real
        if words:
            yield now, first, words


def _ascii(word: bytes) -> str:
    return bytes(byte & 0x7F for byte in word).decode("ascii")
