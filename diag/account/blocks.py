"""A run that is too long to be held in memory: accounted a block of steps at a time.

Each step gets the account that it has in a short run: path, blame and parts. The pieces and calls behind it are kept
for some stretches of steps, spread over the run. A block aligns the clocks of the ranks by its own collectives, so that
its account depends on nothing else. The accounts by phases and by scheduling need the calls, too, to know how long
threads were blocked: they are made of each block as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.model import Gap
from diag.model.steps import Attribution
from diag.rundir.policy import BLOCKS
from diag.rundir.tables import Tables, axes_of, of_steps, spans_of, with_rows, without_rows

from .attribute import attribute, steps_left_out
from .frontier import Frontier, frontier
from .kept import Block, key_of, packed, unpacked
from .scheduling import RankScheduling, Scheduling, scheduling_of


class BlockAccount(Struct, frozen=True):
    """``tables``: the run, with the rows of the steps that are kept in detail. ``frontier`` and ``scheduling``: of the
    counted steps."""

    tables: Tables
    attribution: Attribution
    frontier: Frontier | None
    scheduling: Scheduling


def account_in_blocks(tables: Tables) -> BlockAccount:
    """The account of a long run."""
    numbers = sorted(set[int]().union(*(rank.recorded for rank in tables.ranks.values())))
    per_step = max(
        1, sum(rank.unread.size_bytes for rank in tables.ranks.values() if rank.unread) // max(1, len(numbers))
    )
    left_out = steps_left_out(tables, numbers)
    counted = frozenset(numbers) - left_out.keys() or frozenset(numbers)
    detailed = frozenset(_stretches(sorted(counted), BLOCKS.detailed_bytes // per_step))
    sample = of_steps(tables, _with_context(detailed, numbers))
    in_detail = attribute(sample, {}, left_out)
    gaps = dict.fromkeys(sample.gaps)
    blocks = []
    for first, numbers_of_block in _blocks(numbers, _block_steps(per_step)):
        around = _with_context(numbers_of_block, numbers)
        block, of_block = _block(tables, numbers_of_block, around, left_out, counted, first)
        blocks.append(block)
        gaps |= dict.fromkeys(of_block)
    of_detail = of_steps(sample, detailed)
    ranks = {
        rank: replace(of_rank, rows=of_detail.ranks[rank].rows, groups=sample.ranks[rank].groups)
        for rank, of_rank in tables.ranks.items()
    }
    return BlockAccount(
        replace(tables, ranks=ranks, gaps=tuple(gaps)),
        replace(
            in_detail,
            steps=tuple(step for block in blocks for step in block.steps),
            rank_steps=tuple(step for step in in_detail.rank_steps if step.step in detailed),
            collectives=tuple(met for met in in_detail.collectives if met.step in detailed),
            detailed=detailed,
        ),
        _joined_frontiers([block.frontier for block in blocks if block.frontier is not None]),
        _joined_scheduling([block.scheduling for block in blocks]),
    )


def _block_steps(bytes_per_step: int) -> int:
    """How many steps a block has: a power of two, so that it stays the same while the run grows."""
    most = max(BLOCKS.least_block_steps, BLOCKS.block_bytes // bytes_per_step)
    return 1 << (most.bit_length() - 1)


def _blocks(numbers: Sequence[int], size: int) -> Iterator[tuple[int, Sequence[int]]]:
    """The blocks, each with the number of the first step that it could have: a multiple of the size."""
    places = np.asarray(numbers) // size
    edges = [*np.unique(places, return_index=True)[1].tolist(), len(numbers)]
    return ((numbers[first] // size * size, numbers[first:last]) for first, last in pairwise(edges))


def _block(
    tables: Tables,
    numbers: Sequence[int],
    around: Sequence[int],
    left_out: Mapping[int, str],
    counted_of_run: Collection[int],
    first: int,
) -> tuple[Block, tuple[Gap, ...]]:
    """The account of a block, as it was kept or made now, and gaps in its records. ``around``: its steps and those next
    to them; ``first``: see ``_blocks``."""
    of_block = {step: left_out[step] for step in around if step in left_out}
    counted = [step for step in numbers if step in counted_of_run]
    part = without_rows(tables, around)
    store, key, name = tables.store, _key(tables, part, around, of_block, counted), f"block-{first}"
    if store is not None and key is not None and (kept := unpacked(key, store.load(name))) is not None:
        return kept, ()
    part = with_rows(part, tables, around)
    inside = frozenset(numbers)
    steps = tuple(step for step in attribute(part, {}, left_out).steps if step.step in inside)
    front = frontier(part.ranks, counted, part.on_device, axes_of(tables).stages())
    block = Block(steps, front, scheduling_of(part, counted))
    gaps = tuple(gap for gap in part.gaps if gap not in tables.gaps)
    if store is not None and key is not None and not gaps and (data := packed(key, block)) is not None:
        store.save(name, data)
    return block, gaps


def _key(
    tables: Tables, part: Tables, around: Sequence[int], left_out: Mapping[int, str], counted: Sequence[int]
) -> bytes | None:
    """The hash of what the block depends on; None if it is not kept: nothing is, or a trace is in it, or the lines of a
    rank cannot be found."""
    if tables.store is None or any(rank.traces for rank in part.ranks.values()):
        return None
    spans = spans_of(around)
    digests = {rank: each.unread.digest(spans) for rank, each in tables.ranks.items() if each.unread is not None}
    known = {rank: digest for rank, digest in digests.items() if digest is not None}
    return key_of(tables, part, left_out, counted, known) if len(known) == len(tables.ranks) else None


def _stretches(numbers: Sequence[int], most: int) -> Iterator[int]:
    """About ``most`` of the numbers: as many of each part of the run, that follow each other."""
    stretches = max(1, min(BLOCKS.stretches, most // BLOCKS.least_stretch_steps))
    length = max(1, most // stretches)
    for at in range(stretches):
        end = (at + 1) * len(numbers) // stretches
        yield from numbers[max(at * len(numbers) // stretches, end - length) : end]


def _with_context(block: Collection[int], numbers: Sequence[int]) -> list[int]:
    """The steps of a block and those next to them, which its calls reach into."""
    inside = np.isin(numbers, np.fromiter(block, np.int64, len(block)))
    around = inside.copy()
    for shift in range(1, BLOCKS.steps_before + 1):
        around[:-shift] |= inside[shift:]
    for shift in range(1, BLOCKS.steps_after + 1):
        around[shift:] |= inside[:-shift]
    return list(np.asarray(numbers)[around].tolist())


def _joined_frontiers(parts: Sequence[Frontier]) -> Frontier | None:
    """One after the other, without blocks in which a rank recorded nothing."""
    if not parts:
        return None
    ranks = max((part.ranks for part in parts), key=len)
    parts = [part for part in parts if part.ranks == ranks]
    return Frontier(
        numbers=tuple(number for part in parts for number in part.numbers),
        ranks=ranks,
        dur_ns=np.concatenate([part.dur_ns for part in parts]),
        increment_ns=np.concatenate([part.increment_ns for part in parts], axis=1),
        leader=np.concatenate([part.leader for part in parts], axis=1),
        late_ns=np.concatenate([part.late_ns for part in parts], axis=1),
        communication_ns=np.concatenate([part.communication_ns for part in parts]),
        communication_known=all(part.communication_known for part in parts),
    )


def _joined_scheduling(parts: Sequence[Scheduling]) -> Scheduling:
    """One after the other; of the ranks for which it is known in every block."""
    ranks = set.intersection(*(set(part.ranks) for part in parts if part.numbers))
    steps = [len(part.numbers) for part in parts if part.numbers]
    joined = {
        rank: _joined_rank([part.ranks[rank] for part in parts if part.numbers], np.array(steps, dtype=np.float64))
        for rank in sorted(ranks)
    }
    return Scheduling(tuple(number for part in parts for number in part.numbers), joined)


def _joined_rank(parts: Sequence[RankScheduling], steps: npt.NDArray[np.float64]) -> RankScheduling:
    """``steps``: how many each part has. Series follow each other, other values are means over the steps."""
    phases = dict.fromkeys(phase for part in parts for phase in part.blocked_in)
    active, runnable = (
        np.array([np.nan if value is None else value for value in values])
        for values in zip(*((part.loader_active, part.runnable) for part in parts), strict=True)
    )
    known = ~np.isnan(active)
    return RankScheduling(
        queued_ns=np.concatenate([part.queued_ns for part in parts]),
        loading_ns=np.concatenate([part.loading_ns for part in parts]),
        communicating_ns=np.concatenate([part.communicating_ns for part in parts]),
        between_ns=np.concatenate([part.between_ns for part in parts]),
        blocked_ns=np.concatenate([part.blocked_ns for part in parts]),
        paused_ns=np.concatenate([part.paused_ns for part in parts]),
        frozen_ns=np.concatenate([part.frozen_ns for part in parts]),
        blocked_in={
            phase: float(np.average([part.blocked_in.get(phase, 0.0) for part in parts], weights=steps))
            for phase in phases
        },
        after_ns={name: np.concatenate([part.after_ns[name] for part in parts]) for name in parts[0].after_ns},
        meets=np.concatenate([part.meets for part in parts]),
        runnable=float(np.nanmedian(runnable)) if not np.isnan(runnable).all() else None,
        starved=bool(np.average([part.starved for part in parts], weights=steps) > 0.5),
        loader_active=float(np.average(active[known], weights=steps[known])) if known.any() else None,
        knows_blocked=any(part.knows_blocked for part in parts),
    )
