"""All ranks over time as lanes. Sums are computed once; a read then costs time in proportion to the pixels. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diag.account import gpu
from diag.account import intervals as iv
from diag.account import trace_ranges as ranges
from diag.account.attribute import waiting
from diag.account.cached_steps import windows_of
from diag.account.critical_path import labels_of, of_label
from diag.account.idle_parts import of_device, part_of
from diag.account.intervals import Covered, Intervals, Times
from diag.account.match import by_key
from diag.deferred import pl
from diag.model.accounts import Attribution
from diag.model.breakdown import KernelKind
from diag.model.steps import Detail, Kind, RankStep, by_cause
from diag.rundir.tables import RankTables
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from .kernel_kinds import KERNELS, OPERATORS, Patterns, kinds_of

# -- zoom lane ---------------------------------------------------------------------------------------------------------
#
# A lane: the events of one kind on one rank, laid out so that any part of it can be read quickly.
#
# Events are sorted by start, and the time that they cover is summed up once. The covered time in each pixel is then
# found by searching for the pixel's edges, at every zoom level.

Codes = npt.NDArray[np.uint32]


class Category(StrEnum):
    """The content of a lane. The first ten partition a step."""

    COMPUTE = "compute"
    TRANSFER = "transfer"  # exposed communication that is not waiting
    WAITING = "waiting"  # exposed communication that waits for a later rank
    COMMUNICATION = "communication"  # if wait and transfer cannot be separated
    COPY = "copy to or from the host"  # a kernel that copies is none: KernelKind.COPY
    DATA = "data"
    CHECKPOINT = "checkpoint"
    NOT_LAUNCHED = "idle: host"  # nothing launched, or inside a launch or another call of the host
    QUEUED = "idle: queued"
    IDLE = "idle"  # of a CPU, or for a reason that is not known
    HOST = "host"  # operators, ranges and calls on the host, which may include waiting


# The kind of work of an event, which determines its colour: a part of the step, a kind of kernel, an operation of
# communication, or the phase of the step on the host.
FORWARD, BACKWARD, CALL = "forward", "backward", "runtime call"
WORK = tuple(dict.fromkeys((*Category, *KernelKind, *names.OPERATIONS, FORWARD, BACKWARD, CALL)))
_CODE = {work: code for code, work in enumerate(WORK)}
Works = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Lane:
    """Events by start, in ns since the run's begin; ``name`` indexes ``names``, ``work`` indexes WORK. ``covered``: the
    time in which at least one event is open. ``title`` and ``names`` may come from a trace: untrusted text."""

    title: str
    category: Category
    start_ns: Times
    end_ns: Times
    name: Codes
    names: Sequence[str]
    work: Works
    covered: Covered

    def __len__(self) -> int:
        return len(self.start_ns)

    def visible(self, begin_ns: int, end_ns: int) -> npt.NDArray[np.int64]:
        """The indices of the events that overlap the window, by start."""
        # An event that reaches into the window began in the stretch of covered time that reaches into it.
        first = int(np.searchsorted(self.start_ns, self.covered.stretch_begin(begin_ns), side="left"))
        last = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        places: npt.NDArray[np.int64] = first + np.flatnonzero(self.end_ns[first:last] > begin_ns)
        return places

    def busy_ns(self, edges: Times) -> Times:
        return np.diff(self.covered.until(edges))

    def busy_in(self, begin_ns: int, end_ns: int) -> int:
        return int(self.busy_ns(np.array([begin_ns, end_ns], dtype=np.int64))[0])


def make_lane(
    title: str,
    category: Category,
    events: Intervals,
    name: Codes | None = None,
    names: Sequence[str] = ("",),
    work: Works | None = None,
) -> Lane:
    """The lane of any (start, end) pairs. Without names all events have the same name; without work all have that of
    the category."""
    codes = name if name is not None else np.zeros(len(events), dtype=np.uint32)
    works = work if work is not None else np.full(len(events), _CODE[category], dtype=np.uint8)
    # Of two events that start together, the longer one comes first: it is the outer one.
    order = np.lexsort((-events[:, 1], events[:, 0]))
    events = events[order]
    start, end = np.ascontiguousarray(events[:, 0]), np.ascontiguousarray(events[:, 1])
    return Lane(title, category, start, end, codes[order], names, works[order], Covered(iv.normal(events)))


# -- zoom ranks --------------------------------------------------------------------------------------------------------
#
# The partition of every rank's steps as lanes on the common clock.

_CATEGORY = {
    Kind.COMPUTE: Category.COMPUTE,
    Kind.COMM: Category.COMMUNICATION,
    Kind.COPY: Category.COPY,
    Kind.DATA: Category.DATA,
    Kind.CHECKPOINT: Category.CHECKPOINT,
}
_IDLE = {
    "not_launched_ns": Category.NOT_LAUNCHED,
    "in_launch_ns": Category.NOT_LAUNCHED,
    "host_call_ns": Category.NOT_LAUNCHED,
    "queued_ns": Category.QUEUED,
}
_WORDS = {
    Detail.GC: "garbage collection",
    Detail.SYNC: "synchronising call",
    Detail.ALLOCATOR: "allocator",
    Detail.LAUNCH: "not launched",
    Detail.AFTER_SYNC: "not launched, after a synchronisation",
    Detail.ONCE: "not launched, once",
    Detail.IN_LAUNCH: "in the launch",
    Detail.LATENCY: "launch latency",
    Detail.LOADING: "loading or compiling",
    Detail.OUTSIDE: "before or after the device's work",
    Detail.DEPENDENCY: "launched, not running",
    Detail.P2P: "pipeline",
    Detail.NONE: "",
    Detail.OTHER: "",
    Detail.UNKNOWN: "",
}
DETAILS = tuple(
    _WORDS.get(detail, detail.name.lower().replace("_", " ")) for detail in sorted(Detail)
)  # names of the partition's events


@dataclass(frozen=True)
class StepSpan:
    """A step from the first rank's begin to the last rank's end, in ns since the run's begin. ``window``: the step does
    not count because a profiler recorded it."""

    step: int
    begin_ns: int
    end_ns: int
    window: bool = False


@dataclass(frozen=True, eq=False)
class RankLanes:
    """``lanes`` partition the rank's steps, one lane for each category that occurs. ``traced``: steps that its traces
    cover. ``moved_ns``: the offset that was added to the times of its account on the common clock."""

    rank: int
    lanes: tuple[Lane, ...]
    traced: tuple[int, ...]
    moved_ns: int
    steps: tuple[RankStep, ...]

    def lane(self, category: Category) -> Lane | None:
        return next((lane for lane in self.lanes if lane.category == category), None)


@dataclass(frozen=True, eq=False)
class AllRanks:
    """Every rank's account as lanes; times in ns since the first step's begin. ``loose``: ranks whose clocks are not
    tied to the first rank's; each of them is shifted so that it begins a step together with the first rank."""

    end_ns: int
    ranks: Mapping[int, RankLanes]
    steps: tuple[StepSpan, ...]
    loose: tuple[int, ...]


def all_ranks(attribution: Attribution) -> AllRanks:
    """The lanes of an account, on the common clock with the zero moved to the first step's begin. Pure."""
    by_rank: dict[int, list[RankStep]] = defaultdict(list)
    for step in attribution.rank_steps:
        by_rank[step.rank].append(step)
    tied = _tied(attribution, list(by_rank))
    calls = {rank: [call for step in by_rank[rank] for call in step.collectives] for rank in tied}
    # With a single rank it is unknown whether it waits.
    waits = waiting(by_key(calls)) if len(tied) > 1 else {}
    moved = _moved(by_rank, tied)
    ranks = {
        rank: RankLanes(
            rank=rank,
            lanes=_lanes(steps, moved[rank], waits.get(rank, iv.EMPTY) if len(tied) > 1 and rank in tied else None),
            traced=tuple(step.step for step in steps if step.source == "trace"),
            moved_ns=moved[rank],
            steps=tuple(steps),
        )
        for rank, steps in by_rank.items()
    }
    windows = {account.step for account in attribution.steps if account.window}
    steps = _steps(attribution.rank_steps, moved, windows)
    loose = tuple(rank for rank in by_rank if rank not in tied)
    return AllRanks(max((step.end_ns for step in steps), default=0), ranks, steps, loose)


def _tied(attribution: Attribution, ranks: Sequence[int]) -> tuple[int, ...]:
    """The ranks on the common clock; only the first rank if there is no common clock."""
    if attribution.aligned:
        return tuple(rank for rank in ranks if rank not in attribution.untied)
    return tuple(ranks[:1])


def _moved(by_rank: Mapping[int, Sequence[RankStep]], tied: Sequence[int]) -> dict[int, int]:
    """The offset of each rank's times. The first step begins at zero, and a rank that is not on the common clock begins
    a step together with the ranks that are."""
    if not tied:
        return {}
    origin = min(step.begin_ns for rank in tied for step in by_rank[rank])
    begins = {step.step: step.begin_ns for rank in reversed(tied) for step in by_rank[rank]}
    offsets = dict.fromkeys(tied, -origin)
    for rank, steps in by_rank.items():
        if rank not in offsets:
            shared = next((step for step in steps if step.step in begins), None)
            tied_begin = begins[shared.step] if shared is not None else origin
            offsets[rank] = tied_begin - (shared or steps[0]).begin_ns - origin
    return offsets


def _steps(steps: Iterable[RankStep], moved: Mapping[int, int], windows: Collection[int]) -> tuple[StepSpan, ...]:
    spans: dict[int, tuple[int, int]] = {}
    for step in steps:
        begin, end = step.begin_ns + moved[step.rank], step.end_ns + moved[step.rank]
        first, last = spans.get(step.step, (begin, end))
        spans[step.step] = min(first, begin), max(last, end)
    return tuple(StepSpan(step, begin, end, step in windows) for step, (begin, end) in sorted(spans.items()))


def _lanes(steps: Sequence[RankStep], moved_ns: int, waits: Intervals | None) -> tuple[Lane, ...]:
    """``waits``: the times in which the rank waited for a later one; None if they are not known."""
    parts = [step.segments for step in steps]
    pieces = np.stack(
        [np.concatenate([getattr(part, key) for part in parts]) for key in ("start_ns", "end_ns")], axis=1
    )
    labels = labels_of(np.concatenate([p.kind for p in parts]), np.concatenate([p.detail for p in parts]))
    devices = np.concatenate([np.full(len(p.kind), of_device(by_cause(p)[Kind.IDLE])) for p in parts])
    by_category: dict[Category, list[tuple[Intervals, Detail]]] = defaultdict(list)
    for label in np.unique(labels).tolist():
        kind, detail = of_label(label)
        chosen = labels == label
        spans = pieces[chosen]
        if kind == Kind.COMM and waits is not None:
            by_category[Category.WAITING].append((iv.intersect(spans, waits), detail))
            by_category[Category.TRANSFER].append((iv.subtract(spans, waits), detail))
        elif kind == Kind.IDLE:
            by_category[_IDLE.get(part_of(detail), Category.IDLE)].append((pieces[chosen & devices], detail))
            by_category[Category.IDLE].append((pieces[chosen & ~devices], detail))
        else:
            by_category[_CATEGORY[kind]].append((spans, detail))
    lanes = [_lane(category, by_category[category], moved_ns) for category in Category if category in by_category]
    return tuple(lane for lane in lanes if len(lane))


def _lane(category: Category, parts: Sequence[tuple[Intervals, Detail]], moved_ns: int) -> Lane:
    events = np.concatenate([spans for spans, _ in parts]) + np.int64(moved_ns)
    name = np.concatenate([np.full(len(spans), int(detail), dtype=np.uint32) for spans, detail in parts])
    return make_lane(category.value, category, events, name, DETAILS)


# -- zoom events -------------------------------------------------------------------------------------------------------
#
# The events of a rank's traces as lanes: kernels, communication, copies, operators, calls and ranges of the host.

_STORED = ("ts_ns", "dur_ns", "name", "thread")
_OF_CLASS = {
    gpu.COMPUTE: ("kernels", Category.COMPUTE),
    gpu.COMM: ("communication", Category.COMMUNICATION),
    gpu.COPY: ("copies", Category.COPY),
}
Clock = Callable[[Times], Times]


class _Part(NamedTuple):
    title: str
    category: Category
    events: Intervals
    name: Codes
    work: Works


def event_lanes(tables: RankTables, account: RankLanes) -> tuple[Lane, ...]:
    """The lanes of the traces that the rank's account rests on, on the clock of the account. Empty without a trace.

    Kernels and copies are classified as in the partition, with a lane for each stream. Communication is kernels on a
    device, and the ranges of gloo, MPI or UCC on a CPU. `python_lanes` returns Python's functions.
    """
    return _lanes_of(tables, account, _parts)


def python_lanes(tables: RankTables, account: RankLanes) -> tuple[Lane, ...]:
    """Python's functions in the rank's traces, a lane for each kind of thread: often more events than all other lanes.
    Empty unless the traces were recorded with stacks."""
    return _lanes_of(tables, account, _python_parts)


def has_python(tables: RankTables) -> bool:
    """Whether `python_lanes` returns any lane."""
    return any(names.PYTHON in trace.stored.categories for trace in tables.traces)


def _lanes_of(tables: RankTables, account: RankLanes, parts_of: Callable[[Trace], Iterator[_Part]]) -> tuple[Lane, ...]:
    texts: list[str] = []
    by_lane: dict[tuple[str, Category], list[_Part]] = defaultdict(list)
    for trace, clock in clocked_traces(tables, account):
        for part in parts_of(trace):
            placed = part._replace(events=clock(part.events), name=part.name + np.uint32(len(texts)))
            by_lane[part.title, part.category].append(placed)
        texts.extend(trace.stored.names.to_list())
    lanes = [
        make_lane(
            title,
            category,
            np.concatenate([p.events for p in parts]),
            np.concatenate([p.name for p in parts]),
            texts,
            np.concatenate([p.work for p in parts]),
        )
        for (title, category), parts in by_lane.items()
    ]
    return tuple(lane for lane in lanes if len(lane))


def clocked_traces(tables: RankTables, account: RankLanes) -> Iterator[tuple[Trace, Clock]]:
    """The traces that the rank's account rests on, each with the conversion from its clock to the account's."""
    for trace in tables.traces:
        clock = _clock(trace, account.steps, account.moved_ns)
        if clock is not None:
            yield trace, clock


def recorded_lane(account: RankLanes) -> Lane | None:
    """The collectives that the collectors recorded in steps that no trace covers; None without any."""
    calls = [call for step in account.steps if step.source != "trace" for call in step.collectives]
    if not calls:
        return None
    ops = sorted({call.op for call in calls})
    name = np.array([ops.index(call.op) for call in calls], dtype=np.uint32)
    work = np.array([_CODE.get(op, _CODE[Category.COMMUNICATION]) for op in ops], dtype=np.uint8)
    events = iv.make((call.start_ns + account.moved_ns, call.end_ns + account.moved_ns) for call in calls)
    return make_lane(RECORDED, Category.COMMUNICATION, events, name, ops, work[name])


RECORDED = "recorded collectives"


def _clock(trace: Trace, steps: Sequence[RankStep], moved_ns: int) -> Clock | None:
    """The conversion from the trace's clock to the account's, by the ends of the steps that both have; None without
    any. By the ends, because a step that begins before an earlier trace ended begins later in the account."""
    placed: dict[int, list[RankStep]] = defaultdict(list)
    for step in steps:
        if step.source == "trace":
            placed[step.step].append(step)
    pairs: list[tuple[int, int]] = []
    for number, begin, end in windows_of(trace):
        # Traces without step marks all have a step 0: the right one is as long as the window.
        as_long = sorted((abs(candidate.dur_ns - (end - begin)), candidate.end_ns) for candidate in placed[number])
        pairs.extend((end, account_end + moved_ns - end) for _, account_end in as_long[:1])
    if not pairs:
        return None
    at, ahead = np.array(sorted(pairs), dtype=np.int64).T
    first = int(ahead[0])
    if (ahead == first).all():
        return lambda times: times + first
    # The clocks drift. Interpolates differences, because a float64 of ns since 1970 has an error of about 100 ns.
    return lambda times: times + first + np.rint(np.interp(times - at[0], at - at[0], ahead - first)).astype(np.int64)


def _parts(trace: Trace) -> Iterator[_Part]:
    if trace.has_gpu:
        yield from _device_parts(trace)
    else:
        wire = trace.select(names.ANNOTATION, name=names.WIRE_PATTERN)
        yield _part("communication", Category.COMMUNICATION, wire, _by_name(trace, wire, names.collective_op))
    for thread, events in _by_thread(trace, trace.unsorted(names.CPU_OP, columns=_STORED)):
        work = _phases(trace, events) if trace.has_gpu else _kinds(trace, events, OPERATORS)
        yield _part(f"operators, {thread}", Category.HOST, events, work)
    calls = trace.unsorted(*names.LAUNCH_CATEGORIES, columns=_STORED)
    yield _part("calls of the runtime", Category.HOST, calls, np.full(len(calls), _CODE[CALL], dtype=np.uint8))
    annotations = trace.unsorted(names.ANNOTATION, columns=_STORED)
    if not trace.has_gpu:  # those of the transport are in the lane of communication
        annotations = annotations.filter(~pl.Series(trace.stored.matching(names.WIRE_PATTERN))[annotations["name"]])
    yield _part("ranges", Category.HOST, annotations, _phases(trace, annotations))


_MAIN = "main thread"
MAIN_THREAD = f"operators, {_MAIN}"
PYTHON_LANE = "Python"  # prefix of the lanes' titles


def _python_parts(trace: Trace) -> Iterator[_Part]:
    for thread, events in _by_thread(trace, trace.unsorted(names.PYTHON, columns=_STORED)):
        yield _part(f"{PYTHON_LANE}, {thread}", Category.HOST, events, _phases(trace, events))


def _by_thread(trace: Trace, events: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """The events of the main thread, of autograd's threads, and of all other threads."""
    main, autograd = ranges.main_thread(trace), ranges.autograd_threads(trace)
    of_main = events["thread"] == (main if main is not None else -1)
    of_autograd = events["thread"].is_in(sorted(autograd)) & ~of_main
    yield _MAIN, events.filter(of_main)
    yield "autograd", events.filter(of_autograd)
    yield "other threads", events.filter(~of_main & ~of_autograd)


def _device_parts(trace: Trace) -> Iterator[_Part]:
    work = gpu.device_work(trace)
    gpu.forget(trace)
    for kind, (title, category) in _OF_CLASS.items():
        class_events = work.filter(pl.col("class") == kind)
        streams = class_events["stream"].fill_null(-1)
        several = streams.n_unique() > 1
        for stream in streams.unique().sort().to_list():
            events = class_events.filter(streams == stream) if several else class_events
            if category == Category.COMPUTE:
                code = _kinds(trace, events, KERNELS)
            elif category == Category.COMMUNICATION:
                code = _by_name(trace, events, names.collective_op)
            else:
                code = np.full(len(events), _CODE[category], dtype=np.uint8)
            yield _part(f"{title}, stream {stream}" if several else title, category, events, code)


def _kinds(trace: Trace, events: pl.DataFrame, patterns: Patterns) -> Works:
    return _by_name(trace, events, lambda name: kinds_of([name], patterns)[name])


def _by_name(trace: Trace, events: pl.DataFrame, work: Callable[[str], str]) -> Works:
    """The work of each event by its name, looked up once for each distinct name."""
    code = events["name"].to_physical().to_numpy()
    texts = trace.stored.names
    of_name = np.zeros(len(texts) + 1, dtype=np.uint8)
    for name_code in np.unique(code).tolist():
        kind = work(texts[name_code])
        of_name[name_code] = _CODE[kind if kind != names.UNKNOWN_OP else Category.COMMUNICATION]
    works: Works = of_name[code]
    return works


def _phases(trace: Trace, events: pl.DataFrame) -> Works:
    """The phase of the step that each host event lies in. One that goes on after the phase is no part of it: a step may
    begin before the optimizer of the step before has ended."""
    begin, end = ranges.spans(events).T
    works = np.full(len(begin), _CODE[Category.HOST], dtype=np.uint8)
    main = ranges.main_thread(trace)
    for work, spans in (
        (FORWARD, ranges.forward(trace)),
        (BACKWARD, ranges.backward(trace)),
        (KernelKind.OPTIMIZER, ranges.optimizer(trace)),
        (Category.DATA, ranges.data_wait(trace, {main} if main is not None else set())),
    ):
        works[_inside(iv.normal(spans), begin, end)] = _CODE[work]
    return works


def _inside(stretches: Intervals, begin: Times, end: Times) -> npt.NDArray[np.bool_]:
    """Whether each event lies in one of the stretches, which are sorted and apart."""
    if not len(stretches):
        return np.zeros(len(begin), dtype=np.bool_)
    at = np.searchsorted(stretches[:, 0], begin, side="right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (end <= stretches[at, 1]) & (begin < stretches[at, 1])
    return inside


def _part(title: str, category: Category, events: pl.DataFrame, work: Works) -> _Part:
    name = events["name"].to_physical().to_numpy().astype(np.uint32)
    return _Part(title, category, ranges.spans(events), name, work)


@dataclass(frozen=True)
class NameTotal:
    """Events of one name in a window. ``total_ns``: their total time in it, including events nested in others of the
    same name."""

    lane: Lane
    name: str
    total_ns: int
    events: int


def by_name(lanes: Sequence[Lane], begin_ns: int, end_ns: int, most: int = 10) -> list[NameTotal]:
    """The names that take most of the window, the longest first."""
    totals = []
    for lane in lanes:
        visible = lane.visible(begin_ns, end_ns)
        inside = np.minimum(lane.end_ns[visible], end_ns) - np.maximum(lane.start_ns[visible], begin_ns)
        # Exact while the sum of a name stays below 2**53 ns, a hundred days.
        total = np.bincount(lane.name[visible], weights=inside).astype(np.int64)
        count = np.bincount(lane.name[visible])
        for code in np.argsort(-total, kind="stable")[:most].tolist():
            if total[code] > 0:
                totals.append(NameTotal(lane, lane.names[code], int(total[code]), int(count[code])))
    return sorted(totals, key=lambda name_total: -name_total.total_ns)[:most]
