"""A run that is too long to be held in memory: accounted a block of steps at a time.

Each step gets the account that it has in a short run: path, blame and parts. The pieces and calls behind it are kept
for some stretches of steps, spread over the run. A block aligns the clocks of the ranks by its own collectives, so that
its account depends on nothing else. The accounts by phases and by scheduling need the calls, too, to know how long
threads were blocked: they are made of each block as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, groupby, pairwise
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from diag.model import Gap
from diag.rundir.columns import Bools, Rows
from diag.rundir.policy import BLOCKS
from diag.rundir.tables import Tables, axes_of, spans_of, with_rows, without_rows

from .attribute import attribute, steps_left_out
from .frontier import BlockAccount, frontier
from .joined import Block, Values, joined_accounts, joined_frontiers, joined_scheduling, joined_steps, together
from .kept import key_of, packed, unpacked
from .scheduling import scheduling_of


def account_in_blocks(tables: Tables) -> BlockAccount:
    """The account of a long run."""
    numbers = sorted(set[int]().union(*(rank.recorded for rank in tables.ranks.values())))
    per_step = max(
        1, sum(rank.unread.size_bytes for rank in tables.ranks.values() if rank.unread) // max(1, len(numbers))
    )
    left_out = steps_left_out(tables, numbers)
    counted = frozenset(numbers) - left_out.keys() or frozenset(numbers)
    size = max(BLOCKS.least_block_steps, _power_of_two(BLOCKS.block_bytes // per_step))
    places = _blocks(numbers, size)
    most = _power_of_two(BLOCKS.detailed_bytes // per_step)
    detailed = _in_detail([[step for step in place.numbers if step in counted] for place in places], most)
    gaps = dict.fromkeys(tables.gaps)
    blocks = list[Block]()
    run = _Run(tables, numbers, left_out, counted, detailed)
    for _, several in groupby(places[:-1], lambda place: place.first // (size * BLOCKS.kept_together)):
        accounted, of_records = run.several(list(several))
        blocks += accounted
        gaps |= dict.fromkeys(of_records)
    last, of_records = run.block(places[-1])  # it may still grow
    blocks.append(last)
    gaps |= dict.fromkeys(of_records)
    ranks = {
        rank: replace(
            of_rank,
            rows=Rows.joined([block.rows[rank] for block in blocks]),
            groups=of_rank.groups | {name: ranks for block in blocks for name, ranks in block.groups[rank].items()},
        )
        for rank, of_rank in tables.ranks.items()
    }
    return BlockAccount(
        replace(tables, ranks=ranks, gaps=tuple(gaps)),
        replace(joined_accounts([block.account for block in blocks]), axes=axes_of(tables), detailed=detailed),
        joined_frontiers([block.frontier for block in blocks if block.frontier is not None]),
        joined_scheduling([block.scheduling for block in blocks], [each for block in blocks for each in block.values]),
    )


def _power_of_two(number: int) -> int:
    """The largest one that is not larger: a number that hardly changes while the run grows."""
    return 1 << (max(1, number).bit_length() - 1)


class _Place(NamedTuple):
    """The steps of a block. ``first``: the first one that it could have, a multiple of the size of blocks."""

    first: int
    numbers: Sequence[int]


def _blocks(numbers: Sequence[int], size: int) -> list[_Place]:
    places = np.asarray(numbers) // size
    edges = [*np.unique(places, return_index=True)[1].tolist(), len(numbers)]
    return [_Place(numbers[first] // size * size, numbers[first:last]) for first, last in pairwise(edges)]


def _in_detail(counted: Sequence[Sequence[int]], most: int) -> frozenset[int]:
    """About ``most`` of the steps that count, by block: the last ones of some blocks, spread over the run. While it
    grows, blocks before the last one lose such steps and get no others."""
    apart = 1
    while len(counted) > BLOCKS.stretches * apart:
        apart *= 2
    spread = counted[:-1:apart]
    stretches = max(1, len(spread))
    length = max(BLOCKS.least_stretch_steps, most // _power_of_two(2 * stretches - 1))
    return frozenset(chain.from_iterable(block[-length:] for block in (*spread, counted[-1])))


def _joined(places: Sequence[_Place]) -> _Place:
    return _Place(places[0].first, [step for place in places for step in place.numbers])


class _Run(NamedTuple):
    """``numbers``: all of its steps; ``left_out``: those that do not count, each with the reason; ``detailed``: those
    that are kept in detail."""

    tables: Tables
    numbers: Sequence[int]
    left_out: Mapping[int, str]
    counted: Collection[int]
    detailed: Collection[int]

    def several(self, places: Sequence[_Place]) -> tuple[list[Block], list[Gap]]:
        """The accounts of these blocks: of the first ones as they were kept together, then of each; and gaps in their
        records."""
        kept, count = self._together(places)
        made = [self.block(place) for place in places[count:]]
        blocks, gaps = [*kept, *(block for block, _ in made)], [gap for _, of_block in made for gap in of_block]
        worth = self.tables.store is not None and len(made) >= BLOCKS.new_together
        if worth and not gaps and (as_one := together(blocks)) is not None:
            self._part(_joined(places)).save("blocks", as_one, len(places))
        return blocks, gaps

    def _together(self, places: Sequence[_Place]) -> tuple[list[Block], int]:
        """What was kept together of these blocks, and of how many of them it is."""
        data = self.tables.store.load(f"blocks-{places[0].first}") if self.tables.store is not None else None
        if not data or not data[0]:
            return [], 0
        part = self._part(_joined(places[: data[0]]))
        block = unpacked(part.key, data[1:], part.detailed) if part.key is not None else None
        return ([block], data[0]) if block is not None else ([], 0)

    def block(self, place: _Place) -> tuple[Block, list[Gap]]:
        """The account of a block, as it was kept or made now, and gaps in its records."""
        tables, part = self.tables, self._part(place)
        kept = part.load("block")
        if kept is not None:
            return kept, []
        read = with_rows(part.tables, tables, part.around)
        account = attribute(read, {}, self.left_out, part.detailed)
        inside = account.steps.take(np.isin(account.steps.step, place.numbers))
        account = replace(account, steps=inside, rank_steps=joined_steps([account.rank_steps]))
        scheduling = scheduling_of(read, part.counted)
        block = Block(
            account,
            frontier(read.ranks, part.counted, read.on_device, axes_of(tables).stages()),
            scheduling,
            (Values.of(scheduling),),
            rows={rank: each.rows.take(np.isin(each.rows.step, part.detailed)) for rank, each in read.ranks.items()},
            groups={rank: _not_in(tables.ranks[rank].groups, each.groups) for rank, each in read.ranks.items()},
        )
        gaps = [gap for gap in read.gaps if gap not in tables.gaps]
        if not gaps:
            part.save("block", block)
        return block, gaps

    def _part(self, place: _Place) -> _Part:
        inside = np.isin(self.numbers, place.numbers)
        around = _with_context(inside, self.numbers)
        counted = [step for step in place.numbers if step in self.counted]
        detailed = [step for step in place.numbers if step in self.detailed]
        tables = without_rows(self.tables, around)
        of_part = {step: self.left_out[step] for step in around if step in self.left_out}
        key = _key(self.tables, tables, around, of_part, counted)
        return _Part(place.first, around, counted, detailed, tables, key)


class _Part(NamedTuple):
    """Some steps of a run. ``around``: they and those next to them; ``tables``: of these, without their rows; ``key``:
    see ``_key``."""

    first: int
    around: Sequence[int]
    counted: Sequence[int]
    detailed: Sequence[int]
    tables: Tables
    key: bytes | None

    def load(self, name: str) -> Block | None:
        """What was kept under this name of them."""
        if self.tables.store is None or self.key is None:
            return None
        return unpacked(self.key, self.tables.store.load(f"{name}-{self.first}"), self.detailed)

    def save(self, name: str, block: Block, together: int = 0) -> None:
        """``together``: of how many blocks it is the account, which comes first in what is kept."""
        if self.tables.store is None or self.key is None:
            return
        if (data := packed(self.key, block)) is not None:
            self.tables.store.save(f"{name}-{self.first}", bytes([together] if together else []) + data)


def _not_in(known: Mapping[str, list[int]], groups: Mapping[str, list[int]]) -> dict[str, list[int]]:
    return {name: ranks for name, ranks in groups.items() if known.get(name) != ranks}


def _key(
    tables: Tables, part: Tables, around: Sequence[int], left_out: Mapping[int, str], counted: Sequence[int]
) -> bytes | None:
    """The hash of what the account of some steps depends on; None if it is not kept: nothing is, or a trace is in it,
    or the lines of a rank cannot be found."""
    if tables.store is None or any(rank.traces for rank in part.ranks.values()):
        return None
    spans = spans_of(around)
    digests = {rank: each.unread.digest(spans) for rank, each in tables.ranks.items() if each.unread is not None}
    known = {rank: digest for rank, digest in digests.items() if digest is not None}
    return key_of(tables, part, left_out, counted, known) if len(known) == len(tables.ranks) else None


def _with_context(inside: Bools, numbers: Sequence[int]) -> list[int]:
    """Those of the numbers that are inside, and those next to them, which their calls reach into."""
    around = inside.copy()
    for shift in range(1, BLOCKS.steps_before + 1):
        around[:-shift] |= inside[shift:]
    for shift in range(1, BLOCKS.steps_after + 1):
        around[shift:] |= inside[:-shift]
    return list(np.asarray(numbers)[around].tolist())
