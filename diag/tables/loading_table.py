"""How the input reached each rank: waits for its loader, copies to the device, and whom the others wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from diag.account.loader_settings import loader_settings
from diag.collectors.records import H2D
from diag.model.steps import Attribution, Kind
from diag.rundir.run import RankTables, Tables

from .loader_reserve import Reserve, reserve_of

_WAITED = 0.02  # of a step: from here on it is one that waited for data


class RankLoading(Struct, frozen=True):
    """One rank's input in the steps that count; nanoseconds, means of a step.

    ``waited_steps``: the part of them with a wait of 2 % of the step or more. ``excess_ns``: its mean wait beyond the
    median of the other ranks', None for a rank alone. ``others_waited_ns``: how long the others waited for it because
    its loader was later than theirs. ``host_copy_ns``: in the training's own copies to the device, as its host sees
    them; None where nobody recorded them. ``exposed_copy_ns``: copies on the device that nothing hid. ``reserve``:
    batches that lay ready when its steps asked for one, None where that is not known.
    """

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
    """``workers`` and ``prefetch_factor``: of each rank's loader, by the manifest or as it was seen at work, None where
    neither says it; ``queue``: batches that it can hold ready. ``waits_recorded``: False where no data wait could have
    been seen."""

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


def loading_table(tables: Tables, attribution: Attribution) -> LoadingTable:
    """Over the steps that the verdict counts."""
    counted = attribution.usable or attribution.steps
    numbers = tuple(step.step for step in counted)
    waits: dict[int, list[int]] = defaultdict(list)
    copies: dict[int, list[int]] = defaultdict(list)
    lengths: dict[int, list[int]] = defaultdict(list)
    blamed: dict[int, float] = defaultdict(float)
    for step in counted:
        for parts in step.parts:
            waits[parts.rank].append(parts.data_wait_ns)
            copies[parts.rank].append(parts.exposed_copy_ns)
            lengths[parts.rank].append(parts.dur_ns)
        for blame in step.blames:
            if blame.kind == Kind.DATA:
                blamed[blame.rank] += blame.ns
    means = {rank: round(float(np.mean(own))) for rank, own in waits.items()}
    rows = [
        _row(
            tables.ranks[rank],
            waits[rank],
            lengths[rank],
            copies[rank],
            means,
            blamed[rank] / len(counted),
            set(numbers),
        )
        for rank in sorted(waits)
    ]
    told = loader_settings(tables.manifest)
    workers, factor = told.workers, told.prefetch_factor
    seen = {(row.reserve.workers, row.reserve.capacity) for row in rows if row.reserve is not None}
    if workers is None and len(seen) == 1:
        ((workers, capacity),) = seen
        factor = capacity // workers
    recorded = any(own.steps for own in tables.ranks.values()) or any(own for own in means.values())
    return LoadingTable(tuple(rows), numbers, workers, factor, told.pin_memory, recorded)


def _row(
    own: RankTables,
    waits: list[int],
    lengths: list[int],
    copies: list[int],
    means: Mapping[int, int],
    blamed_ns: float,
    counted: set[int],
) -> RankLoading:
    others = [mean for rank, mean in means.items() if rank != own.rank]
    total = sum(lengths)
    waited = [wait >= _WAITED * length for wait, length in zip(waits, lengths, strict=True)]
    return RankLoading(
        rank=own.rank,
        host=own.host,
        wait_mean_ns=means[own.rank],
        wait_median_ns=round(float(np.median(waits))),
        wait_max_ns=max(waits),
        wait_share=sum(waits) / total if total else 0.0,
        waited_steps=sum(waited) / len(waited),
        excess_ns=round(means[own.rank] - float(np.median(others))) if others else None,
        others_waited_ns=round(blamed_ns),
        host_copy_ns=_host_copies(own, counted),
        exposed_copy_ns=round(float(np.mean(copies))),
        reserve=reserve_of(own.steps, counted),
    )


def _host_copies(own: RankTables, counted: set[int]) -> int | None:
    """Mean nanoseconds a step in the phase that copies the batch, which a loop without that phase does not have."""
    steps = [record for record in own.steps if record.step in counted]
    spent = [row.end_ns - row.start_ns for record in steps for row in record.phases if row.phase == H2D]
    return round(sum(spent) / len(steps)) if spent else None
