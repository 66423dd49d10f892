"""Time of modules: device time by the module that launched it, and its effect on the critical path.

Communication is left out of the table: how long an NCCL kernel lasts depends on the other ranks. Work of the backward
counts if a range names its module, which only FSDP's hooks and recomputed forwards do: Kineto links a backward to its
forward by autograd's sequence numbers, which our tables do not contain. The rest is "unattributed".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct

from diag.account import gpu
from diag.account import intervals as iv
from diag.account import trace_ranges as ranges
from diag.account.cached_steps import windows_of
from diag.account.critical_path import label_of, labels_of, of_label
from diag.account.gpu import COMM, COMPUTE, COPY, NEVER, device_work
from diag.account.intervals import Window, covers
from diag.account.trace_ranges import Thread, host_windows
from diag.model.breakdown import ModuleStat, ModuleTable, PathStat, PathTable
from diag.model.parts import parts_of_steps
from diag.model.steps import FROM_HOST_DETAILS, TO_HOST_DETAILS, Attribution, Detail, Kind, RankStep, StepAccount
from diag.rundir.columns import places_from
from diag.rundir.tables import RankTables, Tables
from diag.tables.policy import EFFICIENCY
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from . import nesting
from .efficiency import Recomputed
from .kernels import WorkTable
from .module_ranges import ModuleRanges, module_ranges, own_paths

_COMM = "comm"
_TIMES = ("forward", "backward", "recompute")
UNATTRIBUTED = ""


def partial(work: WorkTable, modules: ModuleRanges, recomputed: Recomputed, host: Sequence[Window]) -> pl.DataFrame:
    """One row per module of one trace, "" for work outside of all; these add up over traces.

    Columns: name, parent, calls, host_ns, forward, backward, recompute and their ``own_`` twins (ns). ``host``: the
    host's windows of the counted steps, whose calls are counted; the device may be whole steps behind the host.
    """
    calls, frame = modules.calls, work.frame
    time = np.where((frame["class"] == _COMM).to_numpy(), 0, frame["dur_ns"].to_numpy())
    in_backward = (frame["phase"] == int(Detail.BACKWARD)).to_numpy()
    at = nesting.enclosing(calls, *work.launches)
    passes = (~in_backward, in_backward, in_backward & recomputed.mask)  # in the order of _TIMES
    own_ns = np.stack([_sums(at, np.where(chosen, time, 0), len(calls)) for chosen in passes], axis=1)
    parent = nesting.parents(calls)
    steps = iv.make((begin, end) for _, begin, end in host)
    rows = _rows(calls, parent, own_ns[:-1], covers(steps, calls["ts_ns"].to_numpy()))
    outside = {"name": [UNATTRIBUTED], "parent": [""], "calls": [0], "host_ns": [0]}
    for i, key in enumerate(_TIMES):
        outside[key] = outside[f"own_{key}"] = [int(own_ns[-1, i])]
    return pl.concat([rows, pl.DataFrame(outside, schema=rows.schema)])


def module_table(source: str, parts: Sequence[pl.DataFrame], rank_steps: int) -> ModuleTable:
    """The table of all traces' parts, rows by decreasing time."""
    rows = (
        pl.concat(parts)
        .group_by("name", maintain_order=True)
        .agg(
            pl.col("parent").first(), *(pl.col(key).sum() for key in parts[0].columns if key not in ("name", "parent"))
        )
        .with_columns(
            (pl.col("forward") + pl.col("backward")).alias("total"),
            (pl.col("own_forward") + pl.col("own_backward")).alias("own"),
        )
        .sort(["total", "host_ns", "name"], descending=[True, True, False])
    )
    busy = int(rows["own"].sum())
    outside = rows.filter(pl.col("name") == UNATTRIBUTED)
    return ModuleTable(
        source=source,
        rows=tuple(
            ModuleStat(
                name=row["name"],
                parent=row["parent"],
                calls=row["calls"],
                host_ns=row["host_ns"],
                forward_ns=row["forward"],
                backward_ns=row["backward"],
                recompute_ns=row["recompute"],
                self_ns=row["own"],
                share=row["total"] / busy if busy else 0.0,
            )
            for row in rows.filter(
                pl.col("name") != UNATTRIBUTED, (pl.col("calls") > 0) | (pl.col("total") > 0)
            ).to_dicts()
        ),
        busy_ns=busy,
        rank_steps=rank_steps,
        unattributed_ns=int(outside["own"].sum()),
        unattributed_backward_ns=int(outside["own_backward"].sum()),
    )


def _sums(at: nesting.Rows, time: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Nanoseconds of each range's own pieces; the last value is for pieces outside of all ranges."""
    sums = np.zeros(count + 1, dtype=np.int64)
    np.add.at(sums, at, time)  # -1, outside of all, is the last place
    return sums


def _rows(
    calls: pl.DataFrame, parent: nesting.Rows, own_ns: npt.NDArray[np.int64], counted: npt.NDArray[np.bool_]
) -> pl.DataFrame:
    whole = own_ns.copy()
    for depth, inner in reversed(list(nesting.by_value(nesting.depths(parent)))):
        if depth:
            np.add.at(whole, parent[inner], whole[inner])
    name = calls["name"].cast(pl.String)
    around = name.gather(pl.Series(parent, dtype=pl.Int64).replace(nesting.NONE, None)).fill_null("")
    outermost = (name != around).to_numpy()  # a module inside itself is in the outer one's time already
    times = {key: whole[:, i] * outermost for i, key in enumerate(_TIMES)}
    owns = {f"own_{key}": own_ns[:, i] for i, key in enumerate(_TIMES)}
    host = calls["dur_ns"].to_numpy() * (outermost & counted)
    return (
        pl.DataFrame(
            {"name": name, "parent": around, "calls": counted.astype(np.int64), "host_ns": host, **times, **owns}
        )
        .group_by("name", maintain_order=True)
        .agg(pl.col("parent").first(), pl.exclude("name", "parent").sum())
    )


# -- time of modules on the critical path and against the other ranks --------------------------------------------------


# -- module tracks -----------------------------------------------------------------------------------------------------
#
# The module of each moment of a trace: on the host from its ranges, on the device from the launches.
#
# A module is named by the innermost range around a moment: nn.Module of traces with stacks, FSDP's hooks and units, and
# the user's record_function ranges. A piece of device work belongs to the module around its launch; a gap in which the
# device waits for work that is queued already, to the module of that work; everything else, to the module that the host
# is in at that moment. Kineto links a backward to its forward by numbers that our tables do not contain: work of a
# backward outside of such ranges is in no module.

Times = npt.NDArray[np.int64]

OUTSIDE = -1  # outside of any module
_COLUMNS = ("ts_ns", "dur_ns", "thread", "name")
_UNKNOWN_THREAD = -1

# Each hook and part of a hook names the unit that it works for, which with prefetching is not the one around it; the
# root's have no name (torch/distributed/fsdp/_fully_shard: _with_fqn). Ranges without a name in any unit (casts,
# inputs_to_device) are not here.
_FSDP_HOOK = (
    r"^FSDP::(?:(?:all_gather|all_gather_copy_out|(?:pre|post)_(?:forward|backward)\w*|root_\w+)"
    r"(?: \((.*?)\))?(?: \[pg=.*\])?|\w+_prefetch for (.*))$"
)
# Ranges that libraries put around a phase of the step: they name no module.
_OF_A_PHASE = "|".join(
    (
        r"^(?:## |\[pl\])",
        names.FORWARD_PATTERN,
        names.BACKWARD_PATTERN,
        names.COMPILING_PATTERN,
    )
)


class Track(Struct, frozen=True, eq=False):
    """Disjoint stretches of time in order, each with the number of its module."""

    start_ns: Times
    end_ns: Times
    module: Times


class ModuleTracks(Struct, frozen=True, eq=False):
    """``names`` by number. ``device``: module of device time by label (diag.account.critical_path), from the launches;
    ``host``: module of time with any other label."""

    names: pl.Series
    host: Track
    device: Mapping[int, Track]

    def of(self, label: int) -> Track:
        return self.device.get(label, self.host)


def tracks_of(trace: Trace) -> ModuleTracks | None:
    """On the trace's own clock; None if no range of the trace names a module."""
    calls = _calls(trace)
    if calls.is_empty():
        return None
    modules = calls["name"].unique(maintain_order=True)
    code = calls["name"].replace_strict(modules, np.arange(len(modules)), return_dtype=pl.Int64).to_numpy()
    device = _device_tracks(trace, calls, code) if trace.has_gpu else {}
    return ModuleTracks(modules, _host_track(trace, calls, code), device)


def module_at(trace: Trace, thread: Thread, at_ns: int) -> str:
    """The innermost module whose range is open on the thread; "" outside of all."""
    calls = _calls(trace)
    row = int(nesting.enclosing(calls, np.array([at_ns], dtype=np.int64), np.array([thread], dtype=np.int64))[0])
    return str(calls["name"][row]) if row >= 0 else UNATTRIBUTED


def _calls(trace: Trace) -> pl.DataFrame:
    sources = [source.calls.with_columns(pl.col("name").cast(pl.String)) for source in module_ranges(trace)]
    calls = pl.concat([_hooks(trace), *sources])
    return calls.filter(~pl.col("name").str.contains(_OF_A_PHASE)).sort(
        ["ts_ns", "dur_ns"], descending=[False, True], maintain_order=True
    )


def _hooks(trace: Trace) -> pl.DataFrame:
    parts = pl.col("name").cast(pl.String).str.extract_groups(_FSDP_HOOK)
    unit = pl.coalesce(parts.struct.field("1"), parts.struct.field("2")).fill_null("")
    hooks = ranges.named(trace, _FSDP_HOOK).with_columns(unit.alias("name")).select(_COLUMNS)
    return hooks.with_columns(own_paths(hooks["name"]))


def _host_track(trace: Trace, calls: pl.DataFrame, code: Times) -> Track:
    """The latest range to begin that is still open on any thread of the training: the main thread and autograd's wait
    for each other, so only one of them works."""
    main = ranges.main_thread(trace)
    threads = {main} if main is not None else set()
    if trace.has_gpu:
        threads |= ranges.thread_set(trace.unsorted(*names.LAUNCH_CATEGORIES, columns=("thread",)))
    else:
        threads |= ranges.autograd_threads(trace)
    training = calls["thread"].is_in(sorted(threads)).to_numpy()
    training_calls = calls.filter(pl.Series(training)).with_columns(pl.lit(0).alias("thread"))
    start = training_calls["ts_ns"].to_numpy()
    edges = np.unique(np.concatenate((start, start + training_calls["dur_ns"].to_numpy())))
    row = nesting.enclosing(training_calls, edges[:-1], np.zeros(max(0, len(edges) - 1), dtype=np.int64))
    inside = np.flatnonzero(row >= 0)
    return Track(edges[inside], edges[inside + 1], code[training][row[inside]])


def _device_tracks(trace: Trace, calls: pl.DataFrame, code: Times) -> dict[int, Track]:
    work = device_work(trace)
    start, end = work["ts_ns"].to_numpy(), work["end_ns"].to_numpy()
    known = (work["launch_known_ns"] != NEVER).to_numpy()
    thread = np.where(known, work["launch_thread"].fill_null(0).to_numpy().astype(np.int64), _UNKNOWN_THREAD)
    row = nesting.enclosing(calls, work["launch_known_ns"].to_numpy(), thread)
    module = np.where(row >= 0, code[np.maximum(row, 0)], OUTSIDE)

    def track(chosen: pl.Series) -> Track:
        at = np.flatnonzero(chosen.to_numpy())
        return _first_come(start[at], end[at], module[at])

    computes = work["class"] == COMPUTE
    tracks = {
        label_of(Kind.COMPUTE, detail): track(computes & (work["phase"] == int(detail)))
        for detail in (Detail.FORWARD, Detail.BACKWARD, Detail.OPTIMIZER, Detail.NONE)
    }
    copying = track(work["class"] == COPY)
    talking, queued = track(work["class"] == COMM), _queued(trace, start, end, module)
    return tracks | {
        label_of(Kind.COMM, Detail.NONE): talking,
        label_of(Kind.COMM, Detail.P2P): talking,
        **{
            label_of(Kind.COPY, detail): copying
            for detail in (*FROM_HOST_DETAILS, *TO_HOST_DETAILS, Detail.OFFLOAD, Detail.OTHER)
        },
        label_of(Kind.IDLE, Detail.DEPENDENCY): queued,
        label_of(Kind.IDLE, Detail.NONE): queued,
    }


def _first_come(start: Times, end: Times, module: Times) -> Track:
    """Pieces of work in order of start; if they overlap, the time belongs to the first one."""
    if not len(start):
        return Track(start, end, module)
    begin = start.copy()
    begin[1:] = np.maximum(start[1:], np.maximum.accumulate(end)[:-1])
    remains = (end > begin) & (module != OUTSIDE)
    return Track(begin[remains], end[remains], module[remains])


def _queued(trace: Trace, start: Times, end: Times, module: Times) -> Track:
    """The gaps between pieces of work, each with the module of the work after it."""
    if not len(start):
        return Track(start, end, module)
    reach = np.concatenate(([trace.begin_ns], np.maximum.accumulate(end)[:-1]))
    is_gap = (start > reach) & (module != OUTSIDE)
    return Track(reach[is_gap], start[is_gap], module[is_gap])


# -- module charge -----------------------------------------------------------------------------------------------------
#
# Stretches of ranks' time charged to the modules of the model that they belong to, to the nanosecond.

SCHEMA: dict[str, type[pl.DataType]] = {
    "step": pl.Int64, "rank": pl.Int64, "label": pl.Int64, "module": pl.String, "ns": pl.Int64
}  # fmt: skip


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


def on_paths(accounts: Iterable[StepAccount]) -> Stretches:
    return _stretches(
        (account.step, path.rank, path.start_ns, path.end_ns, path.kind, path.detail)
        for account in accounts
        for path in (account.path,)
    )


def of_rank_steps(steps: Iterable[RankStep]) -> Stretches:
    return _stretches(
        (step.step, np.full(len(cut.kind), step.rank), cut.start_ns, cut.end_ns, cut.kind, cut.detail)
        for step in steps
        for cut in (step.segments,)
    )


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


def accounted(
    tables: RankTables, trace: Trace, windows: Iterable[Window], steps: Mapping[int, RankStep]
) -> list[tuple[Window, RankStep]]:
    """The windows of a trace from which the account of a step was made; if two traces have one step, the later one.
    ``steps``: the rank's accounts by step."""
    last = {number: i for i, candidate in enumerate(tables.traces) for number, _, _ in host_windows(candidate)}
    place = next(i for i, candidate in enumerate(tables.traces) if candidate is trace)
    pairs = [(window, steps.get(window[0])) for window in windows if last.get(window[0]) == place]
    return [(window, step) for window, step in pairs if step is not None and step.source == "trace"]


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


# -- path table --------------------------------------------------------------------------------------------------------
#
# The critical path by rank, category and module: every nanosecond of the step charged once.

_KEYS = ("step", "rank", "label")


def shown(counted: Sequence[StepAccount]) -> list[StepAccount]:
    """The steps that a trace of any rank covers: without one no module is known. All steps if there are none."""
    parts, owner = parts_of_steps(counted)
    traced = np.unique(owner[parts.from_source("trace")]).tolist()
    return [counted[at] for at in traced] or list(counted)


def by_rank(steps: Iterable[RankStep]) -> dict[int, dict[int, RankStep]]:
    accounts: dict[int, dict[int, RankStep]] = defaultdict(dict)
    for step in steps:
        accounts[step.rank][step.step] = step
    return accounts


def whole(paths: Stretches, charged: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The columns of SCHEMA: the time charged to modules, and one row for each step, rank and label with the rest. The
    rows of a step add up to its path, and so to its duration."""
    inside = pl.concat([pl.DataFrame(schema=SCHEMA), *charged])
    taken = inside.group_by(*_KEYS).agg(pl.col("ns").sum().alias("taken"))
    rest = paths.totals().join(taken, on=_KEYS, how="left", maintain_order="left")
    rest = rest.with_columns(pl.col("ns") - pl.col("taken").fill_null(0), pl.lit(UNATTRIBUTED).alias("module"))
    return pl.concat([inside, rest.filter(pl.col("ns") != 0).select(*SCHEMA)])


def path_table(steps: Sequence[StepAccount], paths: Stretches, charged: Sequence[pl.DataFrame]) -> PathTable:
    """The table of these steps and their paths; rows by decreasing time."""
    rows = (
        whole(paths, charged)
        .group_by("rank", "label", "module")
        .agg(pl.col("ns").sum())
        .sort(["ns", "rank", "label", "module"], descending=[True, False, False, False])
    )
    total = int(rows["ns"].sum())
    return PathTable(
        rows=tuple(
            PathStat(rank, category_of(label), module, ns, round(ns / len(steps)), ns / total)
            for rank, label, module, ns in rows.iter_rows()
        ),
        steps=tuple(step.step for step in steps),
        traced=bool(parts_of_steps(steps)[0].from_source("trace").any()),
        total_ns=total,
        in_modules_ns=int(rows.filter(pl.col("module") != UNATTRIBUTED)["ns"].sum()),
    )


def category_of(label: int) -> str:
    """The kind in the words of the JSON contract's culprits, and its detail after a slash."""
    kind, detail = of_label(label)
    name = kind.name.lower()
    return name if detail == Detail.NONE else f"{name}/{detail.name.lower()}"


# -- module excess -----------------------------------------------------------------------------------------------------
#
# In which modules late ranks spend more of their own time than the others do, from the traces of both.

# Time that makes a rank late by itself: no waits, and no time with another cause (data, copies, checkpoints, GC).
_OWN = [label_of(kind, detail) for kind in (Kind.COMPUTE, Kind.IDLE) for detail in Detail if detail != Detail.GC]


class ModuleExcess(Struct, frozen=True):
    """``ns``: how much longer per step the late ranks are in the module than the median of the ``others``."""

    module: str
    ns: int
    others: int


def module_excess(
    attribution: Attribution, tables: Tables, late: Sequence[int], steps: Iterable[int]
) -> list[ModuleExcess]:
    """Modules in which the late ranks work or idle longer, largest first, over the given steps that traces of late and
    of other ranks cover; empty if there are none, or if no range names a module."""
    accounts = by_rank(step for step in attribution.rank_steps if step.source == "trace")
    traced = [rank for rank, by_step in sorted(accounts.items()) if by_step and rank in tables.ranks]
    slow = [rank for rank in traced if rank in late][: EFFICIENCY.most_late_ranks_read]
    usual = _spread([rank for rank in traced if rank not in late], EFFICIENCY.most_other_ranks_read)
    common = sorted(set(steps).intersection(*(accounts[rank] for rank in (*slow, *usual))))
    if not slow or not usual or not common:
        return []
    times: dict[int, dict[str, int]] = {}
    for rank in (*slow, *usual):
        times[rank] = _in_modules(tables, rank, [accounts[rank][step] for step in common])
        if not times[rank]:
            return []  # the traces of a job are alike: if one has no modules, there are none to compare
    excesses = []
    for module in sorted(set().union(*(times[rank] for rank in slow))):
        usually = float(np.median([times[rank].get(module, 0) for rank in usual]))
        slow_ns = float(np.mean([times[rank].get(module, 0) for rank in slow]))
        excesses.append(ModuleExcess(module, round((slow_ns - usually) / len(common)), len(usual)))
    return sorted((excess for excess in excesses if excess.ns > 0), key=lambda excess: (-excess.ns, excess.module))


def _in_modules(tables: Tables, rank: int, steps: Sequence[RankStep]) -> dict[str, int]:
    rank_tables = tables.ranks[rank]
    numbers = {step.step: step for step in steps}
    spent = of_rank_steps(steps).of_labels(_OWN)
    charged = [pl.DataFrame(schema=SCHEMA)]
    for trace in rank_tables.traces:
        windows = [window for window in windows_of(trace) if window[0] in numbers]
        charged.append(charge(trace, accounted(rank_tables, trace, windows, numbers), spent))
        gpu.forget(trace)
    summed = pl.concat(charged).group_by("module").agg(pl.col("ns").sum())
    return dict(zip(summed["module"].to_list(), summed["ns"].to_list(), strict=True))


def _spread(ranks: Sequence[int], most: int) -> list[int]:
    """At most this many of the ranks, evenly from the first to the last: neighbours share a host."""
    if len(ranks) <= most:
        return list(ranks)
    return [ranks[i] for i in np.linspace(0, len(ranks) - 1, most).round().astype(int).tolist()]
