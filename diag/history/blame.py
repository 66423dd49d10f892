"""Why the steps of a run became slower or faster: the costs of all ranks before and after."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diag.account.device_summaries import on_devices
from diag.account.of_summaries import steps_left_out, summary_frontier
from diag.collectors.layout import RunLayout
from diag.collectors.records import EVALUATION
from diag.diagnoses.cost_rows import Side, Source
from diag.diagnoses.costs import Cost
from diag.diagnoses.phases_alone import phases_alone
from diag.diagnoses.shares import Shares, noise_of, of_places
from diag.rundir.policy import RUN_READING
from diag.rundir.summaries import Summaries, read_span, read_sums
from diag.rundir.tables import Tables, axes_of

from .policy import HISTORY

COMPUTATION = "computation"  # on all ranks
_SUMS = "sums over {size:,} steps"


class Blame(Struct, frozen=True):
    """As of ``diag.model.history.Change``."""

    cause: str = ""
    ranks: tuple[int, ...] = ()
    basis: str = ""


class Sides(Struct, frozen=True):
    """Steps before and after a change: numbers of the first and of the one after the last."""

    before: tuple[int, int]
    after: tuple[int, int]
    slower: bool  # after it

    def within(self, most: int) -> Sides:
        """At most so many steps of each."""
        (first, end), (begin, last) = self.before, self.after
        return Sides((max(first, end - most), end), (begin, min(last, begin + most)), self.slower)


def blame_of(sides: Sides, tables: Tables, shares: Shares, size: int) -> Blame:
    """By the account of the run, where it has both sides, else by the ranks' summaries or, of steps of which only sums
    over ``size`` are kept, by these."""
    blame = _between(shares, sides, shares.source.value)
    if blame is not None:
        return blame
    identities = tables.identities
    if len(identities) < 2:
        return Blame()
    sides = sides.within(RUN_READING.most_summary_cells // len(identities) // 4) if size == 1 else sides
    layout, numbers = RunLayout(tables.root), range(sides.before[0], sides.after[1])
    if size == 1:
        read = read_span(layout, identities, tables.manifest, tables.world_size, numbers)
        basis = Source.PHASES.value
    else:
        read = read_sums(layout, identities, tables.manifest, tables.world_size, numbers, size)
        basis = _SUMS.format(size=size)
    if read is None:
        return Blame()
    read = on_devices(read) or read
    account = _of_summaries(read, tables)
    found = (_between(account, sides, basis) if account is not None else None) or Blame()
    # Hosts only launch what devices compute and send: by their times it may be either.
    return Blame(basis=basis) if found.cause == COMPUTATION and read.on_device and not read.clock else found


def _of_summaries(summaries: Summaries, tables: Tables) -> Shares | None:
    left_out = steps_left_out(summaries).keys() | summaries.marked.get(EVALUATION, frozenset())
    frontier = summary_frontier(summaries, set(summaries.numbers) - left_out, axes_of(tables).stages())
    return phases_alone(frontier, summaries.on_device, noise_of(tables)).shares if frontier is not None else None


def _between(shares: Shares, sides: Sides, basis: str) -> Blame | None:
    """The cost that makes most of the difference, and the ranks at fault for it in the slower steps. None if the
    account has too few steps of one side."""
    path = replace(shares, rows=tuple(row for row in shares.rows if row.side != Side.WAITING))
    before, after = _at(path, sides.before), _at(path, sides.after)
    if min(len(before.numbers), len(after.numbers)) < HISTORY.least_compared:
        return None
    fast, slow = (before, after) if sides.slower else (after, before)
    at_fast, at_slow = (sides.before, sides.after) if sides.slower else (sides.after, sides.before)
    longer = float(slow.dur_ns.mean() - fast.dur_ns.mean())
    extra = {cost: float(slow.cost(cost).mean() - fast.cost(cost).mean()) for cost in Cost if cost.value.on_path}
    cost, most = max(extra.items(), key=lambda item: item[1])
    if longer <= 0 or max(most, computed := longer - sum(extra.values())) < HISTORY.cause_share * longer:
        return Blame(basis=basis)
    if computed > most:
        return Blame(COMPUTATION, basis=basis)
    # The rows of the others would be those of each rank.
    late = replace(
        shares, rows=(*path.rows, *(row for row in shares.rows if row.side == Side.WAITING and row.cost == cost))
    )
    return Blame(cost.words, _newly_late(cost, _at(late, at_fast), _at(late, at_slow)), basis)


def _at(shares: Shares, steps: tuple[int, int]) -> Shares:
    numbers = np.array(shares.numbers, dtype=np.int64)
    return of_places(shares, (numbers >= steps[0]) & (numbers < steps[1]))


def _newly_late(cost: Cost, fast: Shares, slow: Shares) -> tuple[int, ...]:
    """The culprits of the slower steps that were waited for less in the others. Of a cost that all ranks had before, at
    least half of what it grew by has to be theirs."""
    usual = _charged(cost, fast)
    waited = _charged(cost, slow)
    ranks = slow.at_fault(cost)
    if not ranks:
        ranks = slow.culprits(cost).ranks
        theirs = sum(waited.get(rank, 0.0) - usual.get(rank, 0.0) for rank in ranks)
        if 2 * theirs < float(slow.cost(cost).mean() - fast.cost(cost).mean()):
            return ()
    more = {rank: waited.get(rank, 0.0) - usual.get(rank, 0.0) for rank in ranks}
    return tuple(rank for rank, ns in more.items() if ns > 0 and 2 * ns >= max(more.values()))


def _charged(cost: Cost, shares: Shares) -> Mapping[int, float]:
    return {rank: float(ns.mean()) for rank, ns in shares.blame_ns.get(cost, {}).items()}
