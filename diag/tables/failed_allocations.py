"""Allocations of device memory that failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from diag.collectors.layout import OOM, RunLayout
from diag.deferred import by_name
from diag.model.steps import FailedAllocation, Fit
from diag.rundir.tables import Tables
from diag.traces.policy import TRACE_READING
from diag.traces.snapshot_files import mentions_failure, rank_of, within_bytes

# Of a run that ran out of memory.
_snapshots_of: Callable[[Sequence[Path | str]], Any] = by_name("diag.tables.snapshots:snapshots_of")
_would_fit: Callable[..., tuple[Fit, ...]] = by_name("diag.tables.would_fit:would_fit")


def failed_allocations(tables: Tables) -> tuple[FailedAllocation, ...]:
    """The ranks that ran out of device memory: by their snapshots of the allocator, their logs and the counts of the
    allocator. The details are those of the first source."""
    failed = dict[int | str, FailedAllocation]()
    suspects = [path for path in tables.snapshots if f"memory-{OOM}-" in path or mentions_failure(path)]
    readable = within_bytes(suspects, TRACE_READING.most_bytes_of_failures)
    for account, oom in _snapshots_of(readable).failed if readable else ():
        key = account.path if account.rank is None else account.rank
        known = failed.get(key)
        if known is None or (known.size is not None and oom.requested > known.size):
            failed[key] = FailedAllocation(
                account.rank,
                account.path,
                oom.requested,
                oom.place,
                account.step,
                device_free=oom.device_free,
                unallocated=account.state.inactive,
                largest_free=account.state.largest_free,
                fits=_would_fit(
                    oom.requested,
                    oom.device_free,
                    account.state.inactive,
                    account.categories_at_failure(oom),
                    account.settings,
                    tables.manifest,
                ),
            )
    for path in suspects:
        rank = rank_of(path)
        if f"memory-{OOM}-" in path and rank is not None:
            failed.setdefault(rank, FailedAllocation(rank, path))
    layout = RunLayout(tables.root)
    if layout.is_run():  # traces alone have no logs
        from diag.ended.out_of_memory import out_of_memory_lines

        for rank, said in out_of_memory_lines(layout, tables.ranks).items():
            fits = _would_fit(said.size, said.free, said.unallocated, {}, "", tables.manifest) if said.size else ()
            failed.setdefault(
                rank,
                FailedAllocation(
                    rank,
                    str(said.path),
                    said.size,
                    device_free=said.free,
                    unallocated=said.unallocated,
                    fits=fits,
                ),
            )
    for rank, of_rank in tables.ranks.items():
        times = max(0, int(of_rank.steps.memory_of("ooms").max(initial=0)))
        if times:
            known = failed.get(rank, FailedAllocation(rank, str(layout.rank(rank).steps)))
            failed[rank] = replace(known, times=times)
    return tuple(sorted(failed.values(), key=lambda failure: (failure.rank is None, failure.rank or 0, failure.source)))
