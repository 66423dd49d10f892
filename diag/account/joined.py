"""Accounts of blocks of steps, put together: into the account of the run, and into blocks that are kept together.

Putting some of the blocks together first changes nothing. What is a mean or a median over the blocks is computed from
the values of each of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.model.accounts import Attribution, StepAccounts
from diag.model.matched import MatchedCollectives
from diag.model.steps import RankStep
from diag.rundir.columns import Ints, Rows

from .calls import Calls, some_of
from .frontier import Frontier
from .rank_steps import RankSteps
from .scheduling import RankScheduling, Scheduling


class RankValues(Struct, frozen=True, array_like=True):
    """The fields of the same names of a ``RankScheduling``, of one block."""

    blocked_in: dict[str, float]
    runnable: float | None
    starved: bool
    loader_active: float | None
    knows_blocked: bool


class Values(Struct, frozen=True, array_like=True):
    """Of one block: how many of its steps count, and the values of each rank."""

    steps: int
    ranks: dict[int, RankValues]

    @classmethod
    def of(cls, scheduling: Scheduling) -> Values:
        return cls(
            len(scheduling.numbers),
            {
                rank: RankValues(
                    dict(each.blocked_in), each.runnable, each.starved, each.loader_active, each.knows_blocked
                )
                for rank, each in scheduling.ranks.items()
            },
        )


class Block(Struct, frozen=True):
    """One block, or several. ``account``: of their steps, with the pieces, calls and collectives of those that are kept
    in detail. ``frontier`` and ``scheduling``: of the steps that count; ``values``: of each block. By rank, ``rows``:
    of the steps that are kept in detail; ``groups``: that the first steps of the run do not name."""

    account: Attribution
    frontier: Frontier | None
    scheduling: Scheduling
    values: tuple[Values, ...]
    rows: Mapping[int, Rows]
    groups: Mapping[int, Mapping[str, list[int]]]


def together(blocks: Sequence[Block]) -> Block | None:
    """Blocks that follow each other as one; None if what becomes of them also depends on the other blocks: some are
    aligned, or know some ranks, and others do not."""
    first = blocks[0]
    fronts = [block.frontier for block in blocks if block.frontier is not None]
    alike = all(
        block.account.aligned == first.account.aligned
        and block.scheduling.numbers
        and block.scheduling.ranks.keys() == first.scheduling.ranks.keys()
        and block.rows.keys() == first.rows.keys()
        for block in blocks
    )
    if not alike or len({front.ranks for front in fronts}) > 1 or len(fronts) not in (0, len(blocks)):
        return None
    values = tuple(chain.from_iterable(block.values for block in blocks))
    detailed = [block.account.detailed or frozenset[int]() for block in blocks]
    return Block(
        replace(joined_accounts([block.account for block in blocks]), detailed=frozenset[int]().union(*detailed)),
        joined_frontiers(fronts),
        joined_scheduling([block.scheduling for block in blocks], values),
        values,
        rows={rank: Rows.joined([block.rows[rank] for block in blocks]) for rank in first.rows},
        groups={
            rank: {name: ranks for block in blocks for name, ranks in block.groups[rank].items()}
            for rank in first.groups
        },
    )


def joined_accounts(parts: Sequence[Attribution]) -> Attribution:
    """One after the other. The clocks count as aligned if they are in most steps."""
    aligned = [part for part in parts if part.aligned]
    steps = StepAccounts.joined([part.steps for part in parts])
    uncertain = [part.clock_uncertainty_ns for part in aligned if part.clock_uncertainty_ns is not None]
    return Attribution(
        steps=steps,
        ranks=tuple(sorted(set[int]().union(*(part.ranks for part in parts)))),
        clock_uncertainty_ns=max(uncertain, default=None),
        clock_drift=max(part.clock_drift for part in parts),
        aligned=2 * sum(len(part.steps) for part in aligned) > len(steps),
        untied=tuple(sorted(set[int]().union(*(part.untied for part in aligned)))),
        comm_known=any(part.comm_known for part in parts),
        collectives=MatchedCollectives.joined([part.collectives for part in parts]),
        rank_steps=joined_steps([part.rank_steps for part in parts]),
    )


def joined_steps(parts: Sequence[Sequence[RankStep]]) -> RankSteps:
    """All steps, by rank, with tables that hold nothing of other steps; each call of a rank once."""
    every = RankSteps.together(list(map(RankSteps.of, parts)))
    every = every.take(np.argsort(every.rank, kind="stable"))
    calls, places = some_of(every.calls, every.places)
    rank = np.zeros(len(calls), dtype=np.int64)
    rank[places] = every.rank[every.of_place]
    calls, once = once_each(calls, rank)
    return dataclasses.replace(every, segments=every.segments.copied(), calls=calls, places=once[places])


def once_each(calls: Calls, rank: Ints) -> tuple[Calls, Ints]:
    """The first call of each key and rank, and the place of each call's. ``rank``: of each call."""
    columns = (calls.label, calls.seq, calls.group, rank)
    order = np.lexsort(columns)
    opens = np.ones(len(calls), dtype=np.bool_)
    opens[1:] = np.any([np.diff(column[order]) for column in columns], axis=0)
    first = np.empty(len(calls), dtype=np.int64)
    first[order] = order[opens][np.cumsum(opens) - 1]
    kept = first == np.arange(len(calls))
    return calls.take(kept), (np.cumsum(kept) - 1)[first]


def joined_frontiers(parts: Sequence[Frontier]) -> Frontier | None:
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


def joined_scheduling(parts: Sequence[Scheduling], values: Sequence[Values]) -> Scheduling:
    """One after the other; of the ranks for which it is known in every block. ``values``: of all blocks in the
    parts."""
    parts = [part for part in parts if part.numbers]
    values = [each for each in values if each.steps]
    ranks = set.intersection(*(set(part.ranks) for part in parts))
    steps = np.array([each.steps for each in values], dtype=np.float64)
    joined = {
        rank: _joined_rank([part.ranks[rank] for part in parts], [each.ranks[rank] for each in values], steps)
        for rank in sorted(ranks)
    }
    return Scheduling(tuple(number for part in parts for number in part.numbers), joined)


def _joined_rank(
    parts: Sequence[RankScheduling], values: Sequence[RankValues], steps: npt.NDArray[np.float64]
) -> RankScheduling:
    """``steps``: how many each of the values stands for. Series follow each other, other values are means over the
    steps."""
    phases = dict.fromkeys(phase for each in values for phase in each.blocked_in)
    active, runnable = (
        np.array([np.nan if value is None else value for value in of_blocks])
        for of_blocks in zip(*((each.loader_active, each.runnable) for each in values), strict=True)
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
        outside_backward_ns=np.concatenate([part.outside_backward_ns for part in parts]),
        blocked_in={
            phase: float(np.average([each.blocked_in.get(phase, 0.0) for each in values], weights=steps))
            for phase in phases
        },
        after_ns={name: np.concatenate([part.after_ns[name] for part in parts]) for name in parts[0].after_ns},
        meets=np.concatenate([part.meets for part in parts]),
        runnable=float(np.nanmedian(runnable)) if not np.isnan(runnable).all() else None,
        starved=bool(np.average([each.starved for each in values], weights=steps) > 0.5),
        loader_active=float(np.average(active[known], weights=steps[known])) if known.any() else None,
        knows_blocked=any(each.knows_blocked for each in values),
    )
