"""A run that is too long to be held in memory: accounted a block of steps at a time.

Each step gets the account that it has in a short run: path, blame and parts. The pieces and calls behind it are kept
for some stretches of steps, spread over the run. A block aligns the clocks of the ranks by its own collectives, so that
its account depends on nothing else. The accounts by phases and by scheduling need the calls, too, to know how long
threads were blocked: they are made of each block as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, groupby, pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.model import Gap
from diag.model.accounts import Attribution, StepAccounts
from diag.model.steps import Pieces, RankStep
from diag.rundir.columns import Rows
from diag.rundir.policy import BLOCKS
from diag.rundir.tables import Tables, axes_of, spans_of, with_rows, without_rows

from .attribute import attribute, steps_left_out
from .calls import Calls, Some, calls_in
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
    of_blocks = _blocks(numbers, max(BLOCKS.least_block_steps, _power_of_two(BLOCKS.block_bytes // per_step)))
    most = _power_of_two(BLOCKS.detailed_bytes // per_step)
    detailed = _in_detail([[step for step in block if step in counted] for _, block in of_blocks], most)
    gaps = dict.fromkeys(tables.gaps)
    blocks = []
    for first, numbers_of_block in of_blocks:
        around = _with_context(numbers_of_block, numbers)
        block, of_block = _block(tables, numbers_of_block, around, left_out, counted, detailed, first)
        blocks.append(block)
        gaps |= dict.fromkeys(of_block)
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
        replace(_joined([block.account for block in blocks]), axes=axes_of(tables), detailed=detailed),
        _joined_frontiers([block.frontier for block in blocks if block.frontier is not None]),
        _joined_scheduling([block.scheduling for block in blocks]),
    )


def _power_of_two(number: int) -> int:
    """The largest one that is not larger: a number that hardly changes while the run grows."""
    return 1 << (max(1, number).bit_length() - 1)


def _blocks(numbers: Sequence[int], size: int) -> list[tuple[int, Sequence[int]]]:
    """The blocks, each with the number of the first step that it could have: a multiple of the size."""
    places = np.asarray(numbers) // size
    edges = [*np.unique(places, return_index=True)[1].tolist(), len(numbers)]
    return [(numbers[first] // size * size, numbers[first:last]) for first, last in pairwise(edges)]


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


def _block(
    tables: Tables,
    numbers: Sequence[int],
    around: Sequence[int],
    left_out: Mapping[int, str],
    counted_of_run: Collection[int],
    detailed_of_run: Collection[int],
    first: int,
) -> tuple[Block, tuple[Gap, ...]]:
    """The account of a block, as it was kept or made now, and gaps in its records. ``around``: its steps and those next
    to them; ``first``: see ``_blocks``."""
    of_block = {step: left_out[step] for step in around if step in left_out}
    counted = [step for step in numbers if step in counted_of_run]
    detailed = [step for step in numbers if step in detailed_of_run]
    part = without_rows(tables, around)
    store, key, name = tables.store, _key(tables, part, around, of_block, counted), f"block-{first}"
    if store is not None and key is not None and (kept := unpacked(key, store.load(name), detailed)) is not None:
        return kept, ()
    part = with_rows(part, tables, around)
    account = attribute(part, {}, left_out, detailed)
    inside = account.steps.take(np.isin(account.steps.step, numbers))
    account = replace(account, steps=inside, rank_steps=_joined_steps([account.rank_steps]))
    front = frontier(part.ranks, counted, part.on_device, axes_of(tables).stages())
    block = Block(
        account,
        front,
        scheduling_of(part, counted),
        rows={rank: each.rows.take(np.isin(each.rows.step, detailed)) for rank, each in part.ranks.items()},
        groups={rank: _not_in(tables.ranks[rank].groups, each.groups) for rank, each in part.ranks.items()},
    )
    gaps = tuple(gap for gap in part.gaps if gap not in tables.gaps)
    if store is not None and key is not None and not gaps and (data := packed(key, block)) is not None:
        store.save(name, data)
    return block, gaps


def _not_in(known: Mapping[str, list[int]], groups: Mapping[str, list[int]]) -> dict[str, list[int]]:
    return {name: ranks for name, ranks in groups.items() if known.get(name) != ranks}


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


def _with_context(block: Collection[int], numbers: Sequence[int]) -> list[int]:
    """The steps of a block and those next to them, which its calls reach into."""
    inside = np.isin(numbers, np.fromiter(block, np.int64, len(block)))
    around = inside.copy()
    for shift in range(1, BLOCKS.steps_before + 1):
        around[:-shift] |= inside[shift:]
    for shift in range(1, BLOCKS.steps_after + 1):
        around[shift:] |= inside[:-shift]
    return list(np.asarray(numbers)[around].tolist())


def _joined(parts: Sequence[Attribution]) -> Attribution:
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
        collectives=tuple(met for part in parts for met in part.collectives),
        rank_steps=_joined_steps([part.rank_steps for part in parts if part.rank_steps]),
    )


def _joined_steps(parts: Sequence[Sequence[RankStep]]) -> tuple[RankStep, ...]:
    """All steps, by rank. Each part is in the order of the ranks."""
    by_rank: dict[int, list[list[RankStep]]] = defaultdict(list)
    for part in parts:
        for rank, of_rank in groupby(part, lambda step: step.rank):
            by_rank[rank].append(list(of_rank))
    return tuple(step for _, of_rank in sorted(by_rank.items()) for step in _with_own_tables(of_rank))


def _with_own_tables(parts: Sequence[Sequence[RankStep]]) -> list[RankStep]:
    """The steps of a rank, with one table of pieces and one of calls that hold nothing of other steps."""
    listed = [calls_in([step.collectives for step in part]) for part in parts]
    calls, moved = Calls.joined([of_part for of_part, _ in listed])
    places = [of_part[place] for of_part, (_, own) in zip(moved, listed, strict=True) for place in own]
    steps = list(chain.from_iterable(parts))
    pieces = Pieces.of([step.segments for step in steps]).copied()
    return [
        replace(step, segments=segments, collectives=Some(calls, place))
        for step, segments, place in zip(steps, pieces, places, strict=True)
    ]


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
