"""All ranks over time at any zoom: sums once, then reads that cost as much as there are pixels. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from diag.account import gpu
from diag.account import intervals as iv
from diag.account import trace_ranges as ranges
from diag.account.attribute import waiting
from diag.account.critical_path import labels_of, of_label
from diag.account.gpu import of_device, part_of
from diag.account.intervals import Covered, Intervals, Times
from diag.account.kept_steps import windows_of
from diag.account.match import by_key
from diag.model.steps import Attribution, Detail, Kind, RankStep, by_cause
from diag.rundir.run import RankTables
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

# -- zoom lane ---------------------------------------------------------------------------------------------------------
#
# A lane: what one rank did of one kind, laid out so that any part of it is read at once.
#
# Events are sorted by their starts, and the time that they cover is summed up once; how much of it lies in each pixel
# is then a search for the pixel's edges, whatever the zoom (design.md, "Figures for the dashboard").

Codes = npt.NDArray[np.uint32]


class Category(StrEnum):
    """The content of a lane. The first ten partition a step."""

    COMPUTE = "compute"
    TRANSFER = "transfer"  # exposed communication that is not waiting
    WAITING = "waiting"  # exposed communication that waits for a later rank
    COMMUNICATION = "communication"  # where wait and transfer cannot be separated
    COPY = "copy"
    DATA = "data"
    CHECKPOINT = "checkpoint"
    NOT_LAUNCHED = "idle: host"  # nothing launched, or inside a launch or another call of the host
    QUEUED = "idle: queued"
    IDLE = "idle"  # of a CPU, or for a reason that is not known
    HOST = "host"  # operators, ranges and calls on the host, which may wait themselves


@dataclass(frozen=True, eq=False)
class Lane:
    """Events by start, in ns since the run's begin; ``name`` indexes ``names``. ``covered``: the time in which there is
    at least one of them. ``title`` and ``names`` may come from a trace: untrusted text."""

    title: str
    category: Category
    start_ns: Times
    end_ns: Times
    name: Codes
    names: Sequence[str]
    covered: Covered

    def __len__(self) -> int:
        return len(self.start_ns)

    def visible(self, begin_ns: int, end_ns: int) -> npt.NDArray[np.int64]:
        """Which events overlap the window, by start."""
        # Whatever reaches into the window began in the stretch of covered time that reaches into it.
        first = int(np.searchsorted(self.start_ns, self.covered.stretch_begin(begin_ns), side="left"))
        last = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        places: npt.NDArray[np.int64] = first + np.flatnonzero(self.end_ns[first:last] > begin_ns)
        return places

    def busy_ns(self, edges: Times) -> Times:
        return np.diff(self.covered.until(edges))

    def busy_in(self, begin_ns: int, end_ns: int) -> int:
        return int(self.busy_ns(np.array([begin_ns, end_ns], dtype=np.int64))[0])


def make_lane(
    title: str, category: Category, events: Intervals, name: Codes | None = None, names: Sequence[str] = ("",)
) -> Lane:
    """The lane of any (start, end) pairs. Without names all events have the same."""
    codes = name if name is not None else np.zeros(len(events), dtype=np.uint32)
    # The longer one of two that start together first: it is the outer one.
    order = np.lexsort((-events[:, 1], events[:, 0]))
    events = events[order]
    start, end = np.ascontiguousarray(events[:, 0]), np.ascontiguousarray(events[:, 1])
    return Lane(title, category, start, end, codes[order], names, Covered(iv.normal(events)))


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
    Detail.OUTSIDE: "outside of the work",
    Detail.DEPENDENCY: "launched, not running",
    Detail.P2P: "pipeline",
    Detail.NONE: "",
    Detail.OTHER: "",
    Detail.UNKNOWN: "",
}
DETAILS = tuple(_WORDS.get(detail, detail.name.lower()) for detail in sorted(Detail))  # names of the partition's events


@dataclass(frozen=True)
class StepSpan:
    """From the first rank's begin of a step to the last one's end, in ns since the run's begin. ``window``: it does not
    count because a profiler recorded it."""

    step: int
    begin_ns: int
    end_ns: int
    window: bool = False


@dataclass(frozen=True, eq=False)
class RankLanes:
    """``lanes`` partition the rank's steps, one a category that it has. ``traced``: steps that its traces cover.
    ``moved_ns``: what was added to the times of its account on the common clock."""

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
    tied to the first one's; each of them is moved so that it begins a step together with the first rank."""

    end_ns: int
    ranks: Mapping[int, RankLanes]
    steps: tuple[StepSpan, ...]
    loose: tuple[int, ...]

    @property
    def categories(self) -> tuple[Category, ...]:
        present = {lane.category for rank in self.ranks.values() for lane in rank.lanes}
        return tuple(category for category in Category if category in present)

    def shares(self, category: Category, edges: Times) -> npt.NDArray[np.float64]:
        """The part of each pixel that each rank spends on the category: ranks by pixels."""
        shares = np.zeros((len(self.ranks), len(edges) - 1))
        for row, rank in enumerate(self.ranks.values()):
            lane = rank.lane(category)
            if lane is not None:
                shares[row] = lane.busy_ns(edges) / np.diff(edges)
        return shares


def all_ranks(attribution: Attribution) -> AllRanks:
    """The lanes of an account; its times stay those of the common clock but for the zero. Pure."""
    by_rank: dict[int, list[RankStep]] = defaultdict(list)
    for step in attribution.rank_steps:
        by_rank[step.rank].append(step)
    tied = _tied(attribution, list(by_rank))
    calls = {rank: [call for step in by_rank[rank] for call in step.collectives] for rank in tied}
    # For a single rank, it is unknown whether it waits.
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
    """Ranks on one clock; without a common one, the first rank alone."""
    if attribution.aligned:
        return tuple(rank for rank in ranks if rank not in attribution.untied)
    return tuple(ranks[:1])


def _moved(by_rank: Mapping[int, Sequence[RankStep]], tied: Sequence[int]) -> dict[int, int]:
    """Offset of each rank's times, so that the first step begins at zero, and ranks without a common clock begin with
    the others."""
    if not tied:
        return {}
    origin = min(step.begin_ns for rank in tied for step in by_rank[rank])
    begins = {step.step: step.begin_ns for rank in reversed(tied) for step in by_rank[rank]}
    offsets = dict.fromkeys(tied, -origin)
    for rank, steps in by_rank.items():
        if rank not in offsets:
            shared = next((step for step in steps if step.step in begins), None)
            beside = begins[shared.step] if shared is not None else origin
            offsets[rank] = beside - (shared or steps[0]).begin_ns - origin
    return offsets


def _steps(steps: Iterable[RankStep], moved: Mapping[int, int], windows: Collection[int]) -> tuple[StepSpan, ...]:
    spans: dict[int, tuple[int, int]] = {}
    for step in steps:
        begin, end = step.begin_ns + moved[step.rank], step.end_ns + moved[step.rank]
        first, last = spans.get(step.step, (begin, end))
        spans[step.step] = min(first, begin), max(last, end)
    return tuple(StepSpan(step, begin, end, step in windows) for step, (begin, end) in sorted(spans.items()))


def _lanes(steps: Sequence[RankStep], moved_ns: int, waits: Intervals | None) -> tuple[Lane, ...]:
    """``waits``: when the rank waited for a later one; None where that is not known."""
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
# A rank's own trace events as lanes: kernels, communication, copies, operators, calls and ranges of the host.

_STORED = ("ts_ns", "dur_ns", "name", "thread")
_OF_CLASS = {
    gpu.COMPUTE: ("kernels", Category.COMPUTE),
    gpu.COMM: ("communication", Category.COMMUNICATION),
    gpu.COPY: ("copies", Category.COPY),
}


class _Part(NamedTuple):
    title: str
    category: Category
    events: Intervals
    name: Codes


def event_lanes(tables: RankTables, account: RankLanes) -> tuple[Lane, ...]:
    """The lanes of the traces that the rank's account rests on, on the clock of the account. Empty without a trace.

    Kernels and copies have the classes of the partition; communication is kernels on a device and gloo's, MPI's or
    UCC's ranges on a CPU. Functions of Python (traces with stacks) are left out.
    """
    texts: list[str] = []
    by_lane: dict[tuple[str, Category], list[_Part]] = defaultdict(list)
    for trace in tables.traces:
        clock = _clock(trace, account.steps, account.moved_ns)
        if clock is None:
            continue
        for part in _parts(trace):
            placed = part._replace(events=clock(part.events), name=part.name + np.uint32(len(texts)))
            by_lane[part.title, part.category].append(placed)
        texts.extend(trace.stored.names.to_list())
    lanes = [
        make_lane(
            title, category, np.concatenate([p.events for p in parts]), np.concatenate([p.name for p in parts]), texts
        )
        for (title, category), parts in by_lane.items()
    ]
    return tuple(lane for lane in lanes if len(lane))


def _clock(trace: Trace, steps: Sequence[RankStep], moved_ns: int) -> Callable[[Times], Times] | None:
    """From the trace's clock to that of the account, by the ends of the steps that both have; None without any. The
    ends: a step that begins before an earlier trace was done begins later in the account."""
    placed: dict[int, list[RankStep]] = defaultdict(list)
    for step in steps:
        if step.source == "trace":
            placed[step.step].append(step)
    pairs: list[tuple[int, int]] = []
    for number, begin, end in windows_of(trace):
        # Traces without marks have a step 0 each: it is the one that is as long.
        as_long = sorted((abs(candidate.dur_ns - (end - begin)), candidate.end_ns) for candidate in placed[number])
        pairs.extend((end, own_end + moved_ns - end) for _, own_end in as_long[:1])
    if not pairs:
        return None
    at, ahead = np.array(sorted(pairs), dtype=np.int64).T
    first = int(ahead[0])
    if (ahead == first).all():
        return lambda times: times + first
    # Clocks that drift. Differences, because a float64 of nanoseconds since 1970 is wrong by a hundred of them.
    return lambda times: times + first + np.rint(np.interp(times - at[0], at - at[0], ahead - first)).astype(np.int64)


def _parts(trace: Trace) -> Iterator[_Part]:
    if trace.has_gpu:
        yield from _device_parts(trace)
    else:
        yield _part("communication", Category.COMMUNICATION, trace.select(names.ANNOTATION, name=names.WIRE_PATTERN))
    main, autograd = ranges.main_thread(trace), ranges.autograd_threads(trace)
    operators = trace.unsorted(names.CPU_OP, columns=_STORED)
    of_main = operators["thread"] == (main if main is not None else -1)
    of_autograd = operators["thread"].is_in(sorted(autograd)) & ~of_main
    yield _part("operators, main thread", Category.HOST, operators.filter(of_main))
    yield _part("operators, autograd", Category.HOST, operators.filter(of_autograd))
    yield _part("operators, other threads", Category.HOST, operators.filter(~of_main & ~of_autograd))
    yield _part("calls of the runtime", Category.HOST, trace.unsorted(*names.LAUNCH_CATEGORIES, columns=_STORED))
    annotations = trace.unsorted(names.ANNOTATION, columns=_STORED)
    if not trace.has_gpu:  # the others are in the lane of communication
        annotations = annotations.filter(~pl.Series(trace.stored.matching(names.WIRE_PATTERN))[annotations["name"]])
    yield _part("ranges", Category.HOST, annotations)


def _device_parts(trace: Trace) -> Iterator[_Part]:
    work = gpu.device_work(trace)
    gpu.forget(trace)
    for kind, (title, category) in _OF_CLASS.items():
        yield _part(title, category, work.filter(pl.col("class") == kind))


def _part(title: str, category: Category, events: pl.DataFrame) -> _Part:
    return _Part(title, category, ranges.spans(events), events["name"].to_physical().to_numpy().astype(np.uint32))


# -- zoom detail -------------------------------------------------------------------------------------------------------
#
# Reads lanes in a window: as real events where these are few, as pixels where they are not.

# design.md: above about 3,000 bars the browser stalls.
MOST_BARS = 3000
MOST_PIXELS = 1200
MOST_ROWS = 16  # events that are open at once; a lane with more is drawn in pixels


@dataclass(frozen=True, eq=False)
class Pixels:
    """A lane as the time that it is busy between each two edges. ``events``: how many the window holds."""

    lane: Lane
    edges: Times
    busy_ns: Times
    events: int

    @property
    def share(self) -> npt.NDArray[np.float64]:
        busy_share: npt.NDArray[np.float64] = self.busy_ns / np.diff(self.edges)
        return busy_share


@dataclass(frozen=True, eq=False)
class Bars:
    """A lane as its events, by start. ``row``: 0 is the outermost of those that are open at once."""

    lane: Lane
    start_ns: Times
    end_ns: Times
    names: tuple[str, ...]
    row: npt.NDArray[np.int64]

    @property
    def rows(self) -> int:
        return int(self.row.max()) + 1 if len(self.row) else 1


def pixel_edges(begin_ns: int, end_ns: int, most: int = MOST_PIXELS) -> Times:
    """The edges of at most ``most`` pixels of (almost) equal length, none shorter than a nanosecond."""
    count = max(1, min(most, end_ns - begin_ns))
    edges: Times = begin_ns + np.arange(count + 1, dtype=np.int64) * (end_ns - begin_ns) // count
    return edges


def read_lanes(
    lanes: Sequence[Lane], begin_ns: int, end_ns: int, most_bars: int = MOST_BARS, most_pixels: int = MOST_PIXELS
) -> tuple[Pixels | Bars, ...]:
    """Each lane in the window. Those with the fewest events are bars, as long as these are few together."""
    edges = pixel_edges(begin_ns, end_ns, most_pixels)
    visible = [lane.visible(begin_ns, end_ns) for lane in lanes]
    left = most_bars
    drawn: dict[int, Pixels | Bars] = {}
    for i in sorted(range(len(lanes)), key=lambda i: len(visible[i])):
        left -= len(visible[i])
        bars = _bars(lanes[i], visible[i]) if left >= 0 else None
        drawn[i] = bars or Pixels(lanes[i], edges, lanes[i].busy_ns(edges), len(visible[i]))
    return tuple(drawn[i] for i in range(len(lanes)))


def read_bars(lanes: Sequence[Lane], begin_ns: int, end_ns: int, most_bars: int = MOST_BARS) -> tuple[Bars, ...] | None:
    """All lanes in the window as bars; None where these would be too many."""
    drawn: list[Bars] = []
    for lane in lanes:
        visible = lane.visible(begin_ns, end_ns)
        most_bars -= len(visible)
        bars = _bars(lane, visible) if most_bars >= 0 else None
        if bars is None:
            return None
        drawn.append(bars)
    return tuple(drawn)


@dataclass(frozen=True)
class NameTotal:
    """Events of one name in a window: how long they last in it, those inside others of the name included."""

    lane: Lane
    name: str
    total_ns: int
    events: int


def by_name(lanes: Sequence[Lane], begin_ns: int, end_ns: int, most: int = 10) -> list[NameTotal]:
    """The names that take most of the window, the most first."""
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
    return sorted(totals, key=lambda one: -one.total_ns)[:most]


def _bars(lane: Lane, visible: npt.NDArray[np.int64]) -> Bars | None:
    """The events as bars; None where too many are open at once."""
    start, end = lane.start_ns[visible], lane.end_ns[visible]
    row = _rows(start.tolist(), end.tolist())
    if row is None:
        return None
    names = tuple(lane.names[code] for code in lane.name[visible].tolist())
    return Bars(lane, start, end, names, np.array(row, dtype=np.int64))


def _rows(start: Sequence[int], end: Sequence[int]) -> list[int] | None:
    """A row for each event, sorted by start: the first one in which no earlier event is still open."""
    open_until: list[int] = []
    rows = []
    for begin, until in zip(start, end, strict=True):
        row = next((i for i, time in enumerate(open_until) if time <= begin), len(open_until))
        if row == MOST_ROWS:
            return None
        if row == len(open_until):
            open_until.append(until)
        open_until[row] = until
        rows.append(row)
    return rows
