"""Stretches of ranks' time charged to the modules of the model that they belong to, to the nanosecond."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account.critical_path import label_of, labels_of
from diag.account.intervals import Window
from diag.account.trace_ranges import host_windows
from diag.deferred import Schema, pl
from diag.model.accounts import StepAccounts
from diag.model.ragged import places_from
from diag.model.steps import Detail, Kind, Pieces, RankStep
from diag.rundir.tables import RankTables
from diag.tables.policy import EFFICIENCY
from diag.traces.trace import Trace

from .module_tracks import ModuleTracks, Times, Track, tracks_of

SCHEMA = Schema(
    step="Int64", rank="Int64", label="Int64", module="String", ns="Int64"
)  # fmt: skip


class Stretches(Struct, frozen=True, eq=False):
    """Pieces of time on the common clock: ``label`` as in diag.account.critical_path, ``step`` and ``rank`` that the
    time is charged to. Arrays of equal length, in any order."""

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
        frame = pl.DataFrame({"step": self.step, "rank": self.rank, "label": self.label, "ns": ns})
        return frame.group_by("step", "rank", "label", maintain_order=True).agg(pl.col("ns").sum())

    def _where(self, chosen: npt.NDArray[np.bool_]) -> Stretches:
        return Stretches(*(getattr(self, name)[chosen] for name in self.__struct_fields__))


def on_paths(accounts: StepAccounts) -> Stretches:
    return _stretches(accounts.paths.pieces, accounts.step.tolist(), accounts.paths.rank.astype(np.int64))


def of_rank_steps(steps: Iterable[RankStep]) -> Stretches:
    listed = list(steps)
    pieces = Pieces.of([step.segments for step in listed])
    ranks = np.array([step.rank for step in listed], dtype=np.int64)[pieces.of_step]
    return _stretches(pieces, [step.step for step in listed], ranks)


def charge(trace: Trace, windows: Sequence[tuple[Window, RankStep]], stretches: Stretches) -> pl.DataFrame:
    """The part of one rank's time that its trace attributes to modules: the columns of SCHEMA, one row for each step,
    label and module. The rest is in no module. ``windows``: on the trace's own clock, each with its account."""
    tracks = tracks_of(trace) if windows else None
    if tracks is None or not len(stretches.step):
        return pl.DataFrame(schema=SCHEMA)
    charged: list[pl.DataFrame] = []
    for track, chosen in _by_track(tracks, stretches.label):
        at, module, ns = _overlaps(_placed(track, windows), stretches.start_ns[chosen], stretches.end_ns[chosen])
        rows = {key: getattr(stretches, key)[chosen][at] for key in ("step", "rank", "label")}
        charged.append(pl.DataFrame({**rows, "module": module, "ns": ns}))
    summed = pl.concat(charged).group_by("step", "rank", "label", "module", maintain_order=True).agg(pl.col("ns").sum())
    return summed.with_columns(tracks.names.gather(summed["module"]).alias("module")).select(
        pl.col(key).cast(kind) for key, kind in SCHEMA.items()
    )


def modules_at(trace: Trace, windows: Sequence[tuple[Window, RankStep]], spans: Sequence[tuple[int, int]]) -> list[str]:
    """For each span of a rank's communication on the common clock, the module with most of it; "" if none has any.
    ``windows``: as for `charge`."""
    tracks = tracks_of(trace) if windows and spans else None
    names_of_spans = [""] * len(spans)
    if tracks is None:
        return names_of_spans
    start, end = np.array(spans, dtype=np.int64).T
    track = _placed(tracks.of(label_of(Kind.COMM, Detail.NONE)), windows)
    at, module, ns = _overlaps(track, start, end)
    frame = pl.DataFrame({"at": at, "module": module, "ns": ns}).group_by("at", "module").agg(pl.col("ns").sum())
    for place, number, _ in frame.sort("ns").iter_rows():
        names_of_spans[place] = tracks.names[number]
    return names_of_spans


def by_rank(steps: Iterable[RankStep]) -> dict[int, dict[int, RankStep]]:
    accounts: dict[int, dict[int, RankStep]] = defaultdict(dict)
    for step in steps:
        accounts[step.rank][step.step] = step
    return accounts


def accounted(
    tables: RankTables, trace: Trace, windows: Iterable[Window], steps: Mapping[int, RankStep]
) -> list[tuple[Window, RankStep]]:
    """The windows of a trace from which the account of a step was made; if two traces have one step, the later one.
    ``steps``: the rank's accounts by step."""
    last = {number: i for i, candidate in enumerate(tables.traces) for number, _, _ in host_windows(candidate)}
    place = next(i for i, candidate in enumerate(tables.traces) if candidate is trace)
    pairs = [(window, steps.get(window[0])) for window in windows if last.get(window[0]) == place]
    return [(window, step) for window, step in pairs if step is not None and step.source == "trace"]


def _stretches(pieces: Pieces, steps: Sequence[int], ranks: Times) -> Stretches:
    """``steps``: of the pieces' steps; ``ranks``: of each piece."""
    every, numbers = pieces.every, np.array(steps, dtype=np.int64)[pieces.of_step]
    labels: Times = labels_of(every.kind, every.detail).astype(np.int64)
    return Stretches(numbers, ranks, every.start_ns, every.end_ns, labels)


def _by_track(tracks: ModuleTracks, labels: Times) -> list[tuple[Track, Times]]:
    """Each track with the places of the stretches whose labels it covers."""
    track_of = {label: tracks.of(label) for label in np.unique(labels).tolist()}
    by_identity: dict[int, list[int]] = {}
    for label, track in track_of.items():
        by_identity.setdefault(id(track), []).append(label)
    return [(track_of[of_track[0]], np.flatnonzero(np.isin(labels, of_track))) for of_track in by_identity.values()]


def _placed(track: Track, windows: Sequence[tuple[Window, RankStep]]) -> Track:
    """The track within the windows, on the common clock. The windows of a trace do not overlap."""
    parts: list[tuple[Times, Times, Times]] = []
    for (_, begin, end), step in windows:
        rate = step.dur_ns / (end - begin) if end > begin else 1.0
        gained = rate - 1 if abs(rate - 1) < EFFICIENCY.drift_of_trace_clock else 0.0
        first = int(np.searchsorted(track.end_ns, begin, side="right"))
        last = int(np.searchsorted(track.start_ns, end, side="left"))
        if last <= first:
            continue
        edges = []
        for times in (track.start_ns[first:last], track.end_ns[first:last]):
            left = end - np.clip(times, begin, end)  # a difference, which a float represents exactly
            moved = step.end_ns - left - np.round(left * gained).astype(np.int64)
            edges.append(np.clip(moved, step.begin_ns, step.end_ns))
        parts.append((edges[0], edges[1], track.module[first:last]))
    if not parts:
        return Track(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
    parts.sort(key=lambda part: int(part[0][0]))
    return Track(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _overlaps(track: Track, start: Times, end: Times) -> tuple[Times, Times, Times]:
    """Where stretches and a track overlap: the place of the stretch, the module, the nanoseconds that both cover."""
    first = np.searchsorted(track.end_ns, start, side="right")
    last = np.searchsorted(track.start_ns, end, side="left")
    counts = np.maximum(last - first, 0)
    of = np.repeat(np.arange(len(start)), counts)
    at = places_from(first, counts)
    ns = np.minimum(end[of], track.end_ns[at]) - np.maximum(start[of], track.start_ns[at])
    met = ns > 0
    return of[met], track.module[at[met]], ns[met]
