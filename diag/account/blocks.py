"""A run that is too long to be held in memory: accounted a block of steps at a time.

Each step gets the account that it has in a short run: path, blame and parts. The pieces and calls behind it are kept
for some stretches of steps, spread over the run. The clocks of the ranks are aligned by the collectives of these
stretches. The other accounts need the calls, too, to know how long threads were blocked in each phase: they are made of
each block as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.model.steps import Attribution
from diag.rundir.policy import BLOCKS
from diag.rundir.tables import Tables, axes_of, of_steps

from .attribute import account_of, steps_left_out
from .frontier import Frontier, frontier
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
    per_step = max(1, sum(rank.unread.bytes for rank in tables.ranks.values() if rank.unread) // max(1, len(numbers)))
    left_out = steps_left_out(tables, numbers)
    counted = frozenset(numbers) - left_out.keys() or frozenset(numbers)
    detailed = frozenset(_stretches(sorted(counted), BLOCKS.detailed_bytes // per_step))
    sample = of_steps(tables, _with_context(detailed, numbers))
    in_detail, clocks = account_of(sample, {}, left_out)
    steps, frontiers, schedulings, gaps = [], [], [], dict.fromkeys(sample.gaps)
    for block in _blocks(numbers, max(BLOCKS.least_block_steps, BLOCKS.block_bytes // per_step)):
        part = of_steps(tables, _with_context(block, numbers))
        attribution, _ = account_of(part, {}, left_out, clocks)
        inside = frozenset(block)
        gaps |= dict.fromkeys(part.gaps)
        steps += [step for step in attribution.steps if step.step in inside]
        of_block = sorted(counted & inside)
        schedulings.append(scheduling_of(part, of_block))
        frontiers.append(frontier(part.ranks, of_block, part.on_device, axes_of(tables).stages()))
    of_detail = of_steps(sample, detailed)
    ranks = {
        rank: replace(of_rank, rows=of_detail.ranks[rank].rows, groups=sample.ranks[rank].groups)
        for rank, of_rank in tables.ranks.items()
    }
    return BlockAccount(
        replace(tables, ranks=ranks, gaps=tuple(gaps)),
        replace(
            in_detail,
            steps=tuple(steps),
            rank_steps=tuple(step for step in in_detail.rank_steps if step.step in detailed),
            collectives=tuple(met for met in in_detail.collectives if met.step in detailed),
            detailed=detailed,
        ),
        _joined_frontiers([each for each in frontiers if each is not None]),
        _joined_scheduling(schedulings),
    )


def _blocks(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    count = max(1, round(len(numbers) / size))
    edges = [at * len(numbers) // count for at in range(count + 1)]
    return (numbers[first:last] for first, last in pairwise(edges))


def _stretches(numbers: Sequence[int], most: int) -> Iterator[int]:
    """About ``most`` of the numbers: as many of each part of the run, that follow each other."""
    stretches = min(BLOCKS.stretches, max(1, most))
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
    active = np.array([np.nan if part.loader_active is None else part.loader_active for part in parts])
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
        runnable=parts[0].runnable,  # of all samples of the run
        starved=bool(np.average([part.starved for part in parts], weights=steps) > 0.5),
        loader_active=float(np.average(active[known], weights=steps[known])) if known.any() else None,
        knows_blocked=any(part.knows_blocked for part in parts),
    )
