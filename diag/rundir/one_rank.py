"""The traces of one rank, without reading those of the others where they need not be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from diag.collectors.layout import RunLayout
from diag.errors import DiagError, readable
from diag.model.steps import Gap
from diag.traces.reading import Reading, read_traces
from diag.traces.sources import is_remote
from diag.traces.trace import Trace

from .run import must_exist, open_paths, rank_ranges, run_cache
from .settings import with_settings

_RECORD = "`diag run` records a few steps with torch.profiler unless it is told --no-trace"


def traces_of(path: Path | str, rank: int, reading: Reading | None = None) -> tuple[Trace, ...]:
    """The traces of a rank of a run directory, or under a path, in order of time. DiagError without any."""
    must_exist([str(path)])
    if is_remote(str(path)) or not RunLayout(Path(path)).is_run():
        ranks = open_paths([path], reading).ranks
        traced = [number for number, of_rank in ranks.items() if of_rank.traces]
        if rank not in traced:
            raise _no_trace(path, rank, traced)
        return ranks[rank].traces
    layout = RunLayout(Path(path))
    with readable(layout.ranks_folder):
        files = {number: own.traces() for number, own in layout.ranks().items()}
    if not files.get(rank):
        raise _no_trace(path, rank, [number for number, own in files.items() if own])
    reading = with_settings(reading or Reading(), [str(path)])
    reading = replace(reading, cache=run_cache(layout, reading.cache))
    found = list(read_traces([str(file) for file in files[rank]], reading))
    traces = tuple(item for item in found if not isinstance(item, Gap))
    if not traces:
        reason, broken = next((item.reason, item.path) for item in found if isinstance(item, Gap))
        raise DiagError(reason, path=broken, hint=_RECORD)
    return traces


def _no_trace(path: Path | str, rank: int, traced: Sequence[int]) -> DiagError:
    hint = f"there are traces of {rank_ranges(sorted(traced))}" if traced else _RECORD
    return DiagError(f"there is no trace of rank {rank}", path=path, hint=hint)
