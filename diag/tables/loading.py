"""The table of data loading, and the loaders' reserve: how many batches they had ready."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import median

import numpy as np
from msgspec import Struct

from diag.account.records import loader_settings
from diag.collectors.records import DATA, H2D, StepRecord
from diag.model import UNKNOWN
from diag.model.accounts import Attribution
from diag.rundir.columns import Steps
from diag.rundir.tables import RankTables, Tables
from diag.tables.policy import LOADER_RESERVE

# -- loader reserve ----------------------------------------------------------------------------------------------------
#
# The reserve of a rank's loader: batches that are ready when the training requests one, and idle workers.


class Reserve(Struct, frozen=True):
    """The reserve of one rank's loader, at the times at which its steps requested their first batch.

    ``ready``: median batches ready, of ``capacity``. ``most_if_busy``: the most that can be ready while each of the
    ``workers`` works on one: half of the queue at the default prefetch factor of 2. A loader that has no more is at its
    limit, and its ready batches are only a head start. ``idle``: workers without work.
    """

    ready: float
    capacity: int
    workers: int

    @property
    def most_if_busy(self) -> int:
        return self.capacity - self.workers

    @property
    def idle(self) -> float:
        return max(0.0, self.ready - self.most_if_busy)

    @property
    def faster(self) -> bool:
        """Whether this loader could deliver more than the training takes."""
        return self.idle >= max(LOADER_RESERVE.idle_workers_share * self.workers, LOADER_RESERVE.idle_workers)


def reserve_of(records: Sequence[StepRecord], counted: Collection[int]) -> Reserve | None:
    """Over the later half of the steps ``counted`` that recorded it: a reserve takes steps to build up, and a reserve
    from a single pause (a profiler that writes its trace) is used up. None if fewer than three are left, or loaders
    differ."""
    steps = Steps.of(records).of_numbers(counted)
    # Not if the step takes so many batches at once that workers of any speed are idle before.
    idle_before = steps.micro_batches > steps.queue_of("capacity") - steps.queue_of("workers")
    seen = steps.take((steps.queue_of("ready") != UNKNOWN) & ~idle_before)
    seen = seen[len(seen) // 2 :]
    capacity, workers = seen.queue_of("capacity"), seen.queue_of("workers")
    if len(seen) < LOADER_RESERVE.least_steps or (capacity != capacity[0]).any() or (workers != workers[0]).any():
        return None
    return Reserve(median(seen.queue_of("ready").tolist()), int(capacity[0]), int(workers[0]))


def full_share(records: Sequence[StepRecord], counted: Collection[int]) -> float | None:
    """The fraction of the data wait in steps that found the queue full. None if too few steps looked at the queue."""
    steps = Steps.of(records).of_numbers(counted)
    steps = steps.take((steps.queue_of("ready") != UNKNOWN) & (steps.micro_batches <= steps.queue_of("capacity")))
    waits = steps.spent_ns(DATA)
    full = int(waits[steps.queue_of("ready") >= steps.queue_of("capacity")].sum())
    waited = int(waits.sum())
    return full / waited if len(steps) >= LOADER_RESERVE.least_steps and waited else None


# -- loading table -----------------------------------------------------------------------------------------------------
#
# The input of each rank: waits for its loader, copies to the device, and waiting of the others.


class RankLoading(Struct, frozen=True):
    """One rank's input in the counted steps; mean nanoseconds per step. ``waited_steps``: the fraction of steps that
    waited 2 % of the step or more. ``excess_ns``: its mean wait beyond the median of the other ranks, None for a single
    rank. ``others_waited_ns``: how long the others waited for it because its loader was later than theirs.
    ``host_copy_ns``: the training's own copies to the device on the host; None if not recorded. ``exposed_copy_ns``:
    exposed copies on the device. ``reserve``: batches ready when its steps requested one, None if unknown."""

    rank: int
    host: str | None
    wait_mean_ns: int
    wait_median_ns: int
    wait_max_ns: int
    wait_share: float
    waited_steps: float
    excess_ns: int | None
    others_waited_ns: int
    host_copy_ns: int | None
    exposed_copy_ns: int
    reserve: Reserve | None


class LoadingTable(Struct, frozen=True):
    """``workers`` and ``prefetch_factor``: of each rank's loader, from the manifest or as observed, None if unknown;
    ``queue``: its capacity in batches. ``waits_recorded``: False if no data wait could have been recorded."""

    rows: tuple[RankLoading, ...]
    steps: tuple[int, ...]
    workers: int | None
    prefetch_factor: int | None
    pin_memory: bool | None
    waits_recorded: bool

    @property
    def queue(self) -> int | None:
        if not self.workers or self.prefetch_factor is None:
            return self.workers  # 0: the training loads its batches itself
        return self.workers * self.prefetch_factor


def loading_table(tables: Tables, attribution: Attribution, charged_ns: Mapping[int, float]) -> LoadingTable:
    """Over the steps that the verdict counts. ``charged_ns``: by rank, how long the others wait for its loader."""
    counted = attribution.counted
    numbers = tuple(step.step for step in counted)
    parts = counted.parts
    ranks = np.unique(parts.rank).tolist()
    waits, copies, lengths = (
        {rank: column[parts.rank == rank].tolist() for rank in ranks}
        for column in (parts.data_wait_ns, parts.exposed_copy_ns, parts.dur_ns)
    )
    means = {rank: round(float(np.mean(of_rank))) for rank, of_rank in waits.items()}
    rows = [
        _row(
            tables.ranks[rank],
            waits[rank],
            lengths[rank],
            copies[rank],
            means,
            charged_ns.get(rank, 0.0),
            set(numbers),
        )
        for rank in sorted(waits)
    ]
    settings = loader_settings(tables.manifest)
    workers, factor = settings.workers, settings.prefetch_factor
    seen = {(row.reserve.workers, row.reserve.capacity) for row in rows if row.reserve is not None}
    if workers is None and len(seen) == 1:
        ((workers, capacity),) = seen
        factor = capacity // workers
    recorded = any(of_rank.steps for of_rank in tables.ranks.values()) or any(of_rank for of_rank in means.values())
    return LoadingTable(tuple(rows), numbers, workers, factor, settings.pin_memory, recorded)


def _row(
    rank_tables: RankTables,
    waits: list[int],
    lengths: list[int],
    copies: list[int],
    means: Mapping[int, int],
    blamed_ns: float,
    counted: set[int],
) -> RankLoading:
    others = [mean for rank, mean in means.items() if rank != rank_tables.rank]
    total = sum(lengths)
    waited = [wait >= LOADER_RESERVE.waited_share * length for wait, length in zip(waits, lengths, strict=True)]
    return RankLoading(
        rank=rank_tables.rank,
        host=rank_tables.host,
        wait_mean_ns=means[rank_tables.rank],
        wait_median_ns=round(float(np.median(waits))),
        wait_max_ns=max(waits),
        wait_share=sum(waits) / total if total else 0.0,
        waited_steps=sum(waited) / len(waited),
        excess_ns=round(means[rank_tables.rank] - float(np.median(others))) if others else None,
        others_waited_ns=round(blamed_ns),
        host_copy_ns=_host_copies(rank_tables, counted),
        exposed_copy_ns=round(float(np.mean(copies))),
        reserve=reserve_of(rank_tables.steps, counted),
    )


def _host_copies(rank_tables: RankTables, counted: set[int]) -> int | None:
    """Mean nanoseconds per step in the phase that copies the batch; None for a loop without that phase."""
    steps = rank_tables.steps.of_numbers(counted)
    return round(int(steps.spent_ns(H2D).sum()) / len(steps)) if steps.in_phases(H2D).any() else None
