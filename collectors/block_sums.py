"""Durations of collectives summed over blocks of consecutive ones, for the summary of a rank: ``records.BlockSums``.

A block has the same collectives on all ranks, whenever each of them read its recorder, so that a reader of very
many ranks compares sums instead of collectives. Where a line of the summary would hold too many blocks, some are left
out. Which ones follows from their numbers: of ranks that leave out different numbers of blocks, one keeps all that the
other does. They are spread so that they do not always fall on the same collectives of a step.
"""

from __future__ import annotations

import zlib
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

from .policy import RECORDING
from .records import CALLS_OF_A_SUM, SYNCHRONISING, BlockSums, DurationRow
from .step_lines import WORD, packed

_WORD_BITS = CALLS_OF_A_SUM
_ALL = (1 << _WORD_BITS) - 1


class Group(NamedTuple):
    """What tells process groups apart: a name, the number of ranks, and CRC-32 of these; 0 where they are not known."""

    name: str
    size: int
    crc: int


class _Block:
    __slots__ = ("begin_ns", "missing", "number", "took_ns")

    def __init__(self, number: int, begin_ns: int) -> None:
        self.number, self.begin_ns = number, begin_ns
        self.took_ns, self.missing = 0, _ALL


def chosen(number: int, level: int) -> bool:
    """Whether block ``number`` is among the 1 in 2**level that are kept."""
    spread = number * 2_654_435_769 & _ALL  # times 2**32 divided by the golden ratio
    return spread >> (_WORD_BITS - level) == 0


class SumsOfBlocks:
    """One thread adds durations, another one takes the sums of the blocks that have ended."""

    def __init__(self) -> None:
        self._open: dict[Group, dict[int, _Block]] = defaultdict(dict)
        self._next: dict[Group, int] = {}  # the number after that of the last block that has ended
        self._ended: deque[tuple[Group, _Block]] = deque(maxlen=8 * RECORDING.most_blocks)
        self._levels: dict[Group, int] = {}  # of groups of which not all blocks are kept
        self._groups: dict[str, tuple[Sequence[int], Group]] = {}
        self.ranks_known = True  # else only how many a group has

    def add(
        self, rows: Iterable[DurationRow], ranks_of: Callable[[str], Sequence[int]], awaited: Set[tuple[str, int]]
    ) -> None:
        """Adds collectives that have ended. ``ranks_of``: of a group; none where they are not known. ``awaited``: group
        and number of those whose duration may still come: their blocks do not end."""
        for row in rows:
            if row.op in SYNCHRONISING and (group := self._group(row.group, ranks_of(row.group))) is not None:
                self._add(group, row)
        waits = {(name, seq // CALLS_OF_A_SUM) for name, seq in awaited}
        for group, blocks in self._open.items():
            last = max(blocks, default=0)
            for number in sorted(blocks):
                if number < last and (group.name, number) not in waits:
                    self._next[group] = max(self._next.get(group, 0), number + 1)
                    block = blocks.pop(number)
                    if chosen(number, self._levels.get(group, 0)):
                        self._ended.append((group, block))

    def _add(self, group: Group, row: DurationRow) -> None:
        number, at = divmod(row.seq, CALLS_OF_A_SUM)
        bit, blocks = 1 << at, self._open[group]
        block = blocks.get(number)
        again = number < self._next.get(group, 0) if block is None else not block.missing & bit
        if again:  # a new group of the same name and ranks, which counts from 0
            blocks.clear()
            self._next[group] = 0
        if block is None or again:
            block = blocks[number] = _Block(number, row.created_ns)
        block.took_ns += row.duration_ns
        block.missing &= ~bit

    def take(self) -> list[BlockSums]:
        """The sums of the blocks that have ended since the last call."""
        taken: dict[Group, list[_Block]] = defaultdict(list)
        while self._ended:
            group, block = self._ended.popleft()
            taken[group].append(block)
        count = sum(map(len, taken.values()))
        if count <= RECORDING.most_blocks // 4:  # as after a short time with many collectives
            self._levels = {group: level - 1 for group, level in self._levels.items() if level > 1}
        while count > RECORDING.most_blocks:
            most = max(taken, key=lambda group: len(taken[group]))
            level = self._levels[most] = min(_WORD_BITS, self._levels.get(most, 0) + 1)
            kept = [block for block in taken[most] if chosen(block.number, level)]
            if level == _WORD_BITS:  # of more groups than a line has blocks
                kept = []
            count -= len(taken[most]) - len(kept)
            taken[most] = kept
        return [_packed(group, blocks) for group, blocks in taken.items() if blocks]

    def _group(self, name: str, ranks: Sequence[int]) -> Group | None:
        if len(ranks) < 2:
            return None
        known = self._groups.get(name)
        if known is None or known[0] is not ranks:
            crc = zlib.crc32(",".join(map(str, ranks)).encode()) if self.ranks_known else 0
            known = self._groups[name] = ranks, Group(name, len(ranks), crc)
        return known[1]


def _packed(group: Group, blocks: list[_Block]) -> BlockSums:
    blocks.sort(key=lambda block: block.number)
    columns = [[block.number for block in blocks], [min(_ALL, block.took_ns // 1000) for block in blocks]]
    if any(block.missing for block in blocks):
        columns.append([block.missing for block in blocks])
    values = packed(array(WORD, [value & _ALL for value in column]) for column in columns)
    return BlockSums(group.name, group.size, group.crc, len(blocks), blocks[0].begin_ns, blocks[-1].begin_ns, values)
