"""Stretches of ranks' time charged to the modules of the model that they belong to, to the nanosecond."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct

from diag.account.layers import Window
from diag.account.timeline import labels_of
from diag.account.trace_steps import host_windows
from diag.model.steps import RankStep, StepAccount
from diag.rundir.run import RankTables
from diag.traces.trace import Trace

from .module_tracks import ModuleTracks, Track, tracks_of

Times = npt.NDArray[np.int64]

SCHEMA: dict[str, type[pl.DataType]] = {
    "step": pl.Int64, "rank": pl.Int64, "label": pl.Int64, "module": pl.String, "ns": pl.Int64
}  # fmt: skip

# A trace's clock and the common one may tick differently, but no real one by this much; what differs more is a window
# that was shortened at its begin, because the device was still at a step of the trace before. Where that is less, the
# edges of modules are off by less than a thousandth of the step; no sum depends on it.
_MOST_DRIFT = 1e-3


class Stretches(Struct, frozen=True, eq=False):
    """Pieces of time on the common clock: ``label`` is of diag.account.timeline, ``step`` and ``rank`` are those
    that the time is charged to. Arrays of equal length, in any order."""

    step: Times
    rank: Times
    start_ns: Times
    end_ns: Times
    label: Times

    def of_rank(self, rank: int) -> Stretches:
        return self._where(self.rank == rank)

    def of_labels(self, labels: Sequence[int]) -> Stretches:
        return self._where(np.isin(self.label, labels))

    def totals(self) -> pl.DataFrame:
        """Nanoseconds by step, rank and label: the columns of SCHEMA without the module."""
        ns = self.end_ns - self.start_ns
        found = pl.DataFrame({"step": self.step, "rank": self.rank, "label": self.label, "ns": ns})
        return found.group_by("step", "rank", "label", maintain_order=True).agg(pl.col("ns").sum())

    def _where(self, chosen: npt.NDArray[np.bool_]) -> Stretches:
        return Stretches(*(getattr(self, name)[chosen] for name in self.__struct_fields__))


def on_paths(accounts: Iterable[StepAccount]) -> Stretches:
    """The critical paths of these steps."""
    return _stretches(
        (account.step, path.rank, path.start_ns, path.end_ns, path.kind, path.detail)
        for account in accounts
        for path in (account.path,)
    )


def of_rank_steps(steps: Iterable[RankStep]) -> Stretches:
    """All that these ranks did in these steps."""
    return _stretches(
        (step.step, np.full(len(cut.kind), step.rank), cut.start_ns, cut.end_ns, cut.kind, cut.detail)
        for step in steps
        for cut in (step.segments,)
    )


def charge(trace: Trace, windows: Sequence[tuple[Window, RankStep]], stretches: Stretches) -> pl.DataFrame:
    """What of the time of one rank its trace puts into modules: the columns of SCHEMA, one row for each step, label and
    module. The rest lies in none. ``windows``: of the trace's own clock, each with the account that was made of it."""
    tracks = tracks_of(trace) if windows else None
    if tracks is None or not len(stretches.step):
        return pl.DataFrame(schema=SCHEMA)
    found: list[pl.DataFrame] = []
    for track, chosen in _by_track(tracks, stretches.label):
        at, module, ns = _overlaps(_placed(track, windows), stretches.start_ns[chosen], stretches.end_ns[chosen])
        rows = {key: getattr(stretches, key)[chosen][at] for key in ("step", "rank", "label")}
        found.append(pl.DataFrame({**rows, "module": module, "ns": ns}))
    summed = pl.concat(found).group_by("step", "rank", "label", "module", maintain_order=True).agg(pl.col("ns").sum())
    return summed.with_columns(tracks.names.gather(summed["module"]).alias("module")).select(
        pl.col(key).cast(kind) for key, kind in SCHEMA.items()
    )


def accounted(
    tables: RankTables, trace: Trace, windows: Iterable[Window], steps: Mapping[int, RankStep]
) -> list[tuple[Window, RankStep]]:
    """The windows of a trace from which the account of a step was made; of two traces with one step it is the later.
    ``steps``: the rank's accounts by step."""
    last = {number: i for i, own in enumerate(tables.traces) for number, _, _ in host_windows(own)}
    place = next(i for i, own in enumerate(tables.traces) if own is trace)
    told = [(window, steps.get(window[0])) for window in windows if last.get(window[0]) == place]
    return [(window, step) for window, step in told if step is not None and step.source == "trace"]


def _stretches(
    parts: Iterable[tuple[int, Times, Times, Times, npt.NDArray[np.integer], npt.NDArray[np.integer]]],
) -> Stretches:
    columns: list[list[Times]] = [[np.zeros(0, dtype=np.int64)] for _ in range(5)]
    for step, rank, start, end, kind, detail in parts:
        labels: Times = labels_of(kind, detail).astype(np.int64)
        values_of = (np.full(len(start), step), rank.astype(np.int64), start, end, labels)
        for column, values in zip(columns, values_of, strict=True):
            column.append(values.astype(np.int64, copy=False))
    return Stretches(*(np.concatenate(column) for column in columns))


def _by_track(tracks: ModuleTracks, labels: Times) -> list[tuple[Track, Times]]:
    """Each track with the places of the stretches that it speaks for."""
    told = {label: tracks.of(label) for label in np.unique(labels).tolist()}
    by_identity: dict[int, list[int]] = {}
    for label, track in told.items():
        by_identity.setdefault(id(track), []).append(label)
    return [(told[own[0]], np.flatnonzero(np.isin(labels, own))) for own in by_identity.values()]


def _placed(track: Track, windows: Sequence[tuple[Window, RankStep]]) -> Track:
    """The track within the windows, on the common clock. The windows of a trace do not overlap."""
    parts: list[tuple[Times, Times, Times]] = []
    for (_, begin, end), step in windows:
        rate = step.dur_ns / (end - begin) if end > begin else 1.0
        gained = rate - 1 if abs(rate - 1) < _MOST_DRIFT else 0.0
        first = int(np.searchsorted(track.end_ns, begin, side="right"))
        last = int(np.searchsorted(track.start_ns, end, side="left"))
        if last <= first:
            continue
        edges = []
        for times in (track.start_ns[first:last], track.end_ns[first:last]):
            left = end - np.clip(times, begin, end)  # a difference, which a float holds
            moved = step.end_ns - left - np.round(left * gained).astype(np.int64)
            edges.append(np.clip(moved, step.begin_ns, step.end_ns))
        parts.append((edges[0], edges[1], track.module[first:last]))
    if not parts:
        return Track(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
    parts.sort(key=lambda part: int(part[0][0]))
    return Track(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _overlaps(track: Track, start: Times, end: Times) -> tuple[Times, Times, Times]:
    """Where stretches meet a track: the place of the stretch, the module, the nanoseconds that both cover."""
    first = np.searchsorted(track.end_ns, start, side="right")
    last = np.searchsorted(track.start_ns, end, side="left")
    counts = np.maximum(last - first, 0)
    of = np.repeat(np.arange(len(start)), counts)
    at = np.arange(len(of)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    ns = np.minimum(end[of], track.end_ns[at]) - np.maximum(start[of], track.start_ns[at])
    met = ns > 0
    return of[met], track.module[at[met]], ns[met]
