"""What is drawn over the lanes of the timeline: the critical path, launches, counters; and what filled a gap. Pure.

Times are nanoseconds since the run's begin, as in `diag.tables.zoom`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account import gpu
from diag.account.gpu import NEVER, device_work
from diag.account.intervals import Times
from diag.collectors.records import DeviceRecord, MemoryRecord
from diag.deferred import pl
from diag.model import UNKNOWN
from diag.model.accounts import Attribution
from diag.model.steps import CollectiveCall, MatchedCollective
from diag.rundir.tables import RankTables
from diag.tables.bandwidth import bus_factor
from diag.tables.policy import TIMELINE
from diag.traces import kineto_names as names

from .tiles import Row, heading_of
from .zoom import DETAILS, MAIN_THREAD, AllRanks, Category, RankLanes, clocked_traces

Ranks = npt.NDArray[np.int64]


class PathLine(NamedTuple):
    """The critical paths of all steps: stretches of time on one rank each, by start."""

    rank: Ranks
    start_ns: Times
    end_ns: Times

    def within(self, begin_ns: int, end_ns: int, most: int) -> tuple[PathLine, int]:
        """The stretches that overlap a window, without the shortest ones if there are more than ``most``; and how many
        were left out."""
        first = int(np.searchsorted(self.end_ns, begin_ns, side="right"))
        last = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        seen = PathLine(*(column[first:last] for column in self))
        count = len(seen.rank)
        if count <= most:
            return seen, 0
        longest = np.sort(np.argpartition(seen.start_ns - seen.end_ns, most)[:most])
        return _joined(PathLine(*(column[longest] for column in seen)), (end_ns - begin_ns) // most), count - most


def has_path(timeline: AllRanks) -> bool:
    """Whether a path can change ranks: at least two are on one clock."""
    return len(timeline.ranks) - len(timeline.loose) > 1


def path_line(attribution: Attribution, timeline: AllRanks) -> PathLine:
    """The critical path of every step, on the timeline's clock. Empty without ``has_path``."""
    paths = attribution.steps.paths
    if not has_path(timeline) or not len(paths.rank):
        return PathLine(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
    rank = paths.rank.astype(np.int64)
    known, place = np.unique(rank, return_inverse=True)
    moved = np.array([timeline.ranks[each].moved_ns if each in timeline.ranks else 0 for each in known.tolist()])[place]
    start, end = paths.start_ns + moved, paths.end_ns + moved
    order = np.argsort(start, kind="stable")
    return _joined(PathLine(rank[order], start[order], end[order]), 0)


def _joined(line: PathLine, slack_ns: int) -> PathLine:
    """Stretches of one rank that follow each other as one."""
    new = np.ones(len(line.rank), dtype=np.bool_)
    new[1:] = (line.rank[1:] != line.rank[:-1]) | (line.start_ns[1:] > line.end_ns[:-1] + slack_ns)
    first = np.flatnonzero(new)
    if not len(first):
        return line
    return PathLine(line.rank[first], line.start_ns[first], np.maximum.reduceat(line.end_ns, first))


class Launches(NamedTuple):
    """From calls of the host to the work that they launched on a device, by the begin of the work. ``work_row`` and
    ``call_row`` are places among the rows of the rank."""

    call_ns: Times
    call_row: Ranks
    work_ns: Times
    work_row: Ranks

    def within(self, begin_ns: int, end_ns: int) -> Launches:
        """Those of which the call or the work begins in a window."""
        inside = (self.work_ns >= begin_ns) & (self.work_ns < end_ns)
        inside |= (self.call_ns >= begin_ns) & (self.call_ns < end_ns)
        return Launches(*(column[inside] for column in self))


def launches_of(rows: Sequence[Row], tables: RankTables, account: RankLanes) -> Launches:
    """The launches in the traces of a rank, of which the call and the work are both in a row."""
    calls, works = [], []
    for trace, clock in clocked_traces(tables, account):
        if not trace.has_gpu:
            continue
        work = device_work(trace).filter(pl.col("launch_known_ns") != NEVER)
        calls.append(clock(work["launch_known_ns"].to_numpy()))
        works.append(clock(work["ts_ns"].to_numpy()))
        gpu.forget(trace)
    if not works:
        return Launches(*(np.zeros(0, dtype=np.int64) for _ in range(4)))
    call_ns, work_ns = np.concatenate(calls), np.concatenate(works)
    of_host = [at for at, row in enumerate(rows) if row.lane.category == Category.HOST and row.title != "ranges"]
    of_device = [at for at, row in enumerate(rows) if row.lane.category != Category.HOST and heading_of(row) == "trace"]
    call_row, work_row = _rows_at(rows, of_host, call_ns), _rows_at(rows, of_device, work_ns)
    both = np.flatnonzero((call_row >= 0) & (work_row >= 0))
    order = both[np.argsort(work_ns[both], kind="stable")]
    return Launches(call_ns[order], call_row[order], work_ns[order], work_row[order])


def _rows_at(rows: Sequence[Row], places: Iterable[int], starts: Times) -> Ranks:
    """For each moment, the row with an event that begins then; -1 without one."""
    found = np.full(len(starts), -1, dtype=np.int64)
    for at in places:
        begins = rows[at].start_ns
        if len(begins):
            near = np.minimum(np.searchsorted(begins, starts), len(begins) - 1)
            found[(found < 0) & (begins[near] == starts)] = at
    return found


BYTES, MHZ, WATT, CELSIUS, PERCENT, BATCHES, RATE, YES = (
    "bytes", "MHz", "W", "°C", "%", "batches", "bytes/s", "",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Counter:
    """A value over time: pieces by start, each with its value. ``lowest``, ``highest``: of all. ``says``: for each
    piece a text instead of the value, () without."""

    name: str
    unit: str
    start_ns: Times
    end_ns: Times
    value: npt.NDArray[np.float64]
    says: tuple[str, ...] = ()

    @property
    def lowest(self) -> float:
        return float(self.value.min()) if len(self.value) else 0.0

    @property
    def highest(self) -> float:
        return float(self.value.max(initial=0.0))

    def within(self, begin_ns: int, end_ns: int, most: int) -> Counter:
        """The pieces that overlap a window; of neighbours the highest if there are more than ``most``."""
        seen = np.flatnonzero((self.end_ns > begin_ns) & (self.start_ns < end_ns))
        if len(seen) > most:
            first = np.arange(0, len(seen), -(-len(seen) // most))
            value = np.maximum.reduceat(self.value[seen], first)
            ends = np.maximum.reduceat(self.end_ns[seen], first)
            return Counter(self.name, self.unit, self.start_ns[seen][first], ends, value)
        says = tuple(self.says[at] for at in seen.tolist()) if self.says else ()
        return Counter(self.name, self.unit, self.start_ns[seen], self.end_ns[seen], self.value[seen], says)


def counters_of(
    tables: RankTables, account: RankLanes, met: Sequence[MatchedCollective] = (), gloo: bool = False
) -> list[Counter]:
    """What was sampled on a rank, on the timeline's clock: memory and the loader's queue by step, the device's clock,
    power, temperature, use and throttling, the bandwidth of its collectives. ``met``: the matched collectives;
    ``gloo``: as in ``bus_factor``."""
    ahead = _ahead_ns(tables, account)
    counters = _of_steps(tables, ahead) + _of_device(tables.device, ahead) if ahead is not None else []
    return [*counters, *_bandwidth(account, met, gloo)]


def _ahead_ns(tables: RankTables, account: RankLanes) -> int | None:
    """What is added to the times of the rank's records; None without a step that records and account share."""
    ends = {step.step: step.end_ns + account.moved_ns for step in account.steps}
    apart = [
        ends[number] - end
        for number, end in zip(tables.steps.step.tolist(), tables.steps.end_ns.tolist(), strict=True)
        if number in ends
    ]
    return round(median(apart)) if apart else None


def _of_steps(tables: RankTables, ahead: int) -> list[Counter]:
    steps = tables.steps
    fields = MemoryRecord.__dataclass_fields__
    memory = {name: steps.memory[:, at] for at, name in enumerate(fields)} if len(steps) else {}
    titles = {"allocated": "memory allocated", "reserved": "memory reserved"}
    if not any((memory[name] > 0).any() for name in titles if name in memory):
        titles = {"rss": "memory of the process"}
    found = [(title, BYTES, memory[name]) for name, title in titles.items() if name in memory]
    if len(steps):
        found.append(("batches ready", BATCHES, steps.queue_of("ready")))
    counters = []
    for title, unit, values in found:
        at = np.flatnonzero((values != UNKNOWN) & (values >= 0))
        if len(at) and (unit == BATCHES or values[at].any()):
            counters.append(
                Counter(
                    title, unit, steps.begin_ns[at] + ahead, steps.end_ns[at] + ahead, values[at].astype(np.float64)
                )
            )
    return counters


def _of_device(samples: Sequence[DeviceRecord], ahead: int) -> list[Counter]:
    at = np.array([sample.monotonic_ns for sample in samples], dtype=np.int64) + ahead
    if len(at) < 2:
        return []
    until = np.append(at[1:], at[-1] + round(float(np.median(np.diff(at)))))
    columns: dict[tuple[str, str], Sequence[float | None]] = {
        ("SM clock", MHZ): [sample.sm_clock_mhz for sample in samples],
        ("memory clock", MHZ): [sample.memory_clock_mhz for sample in samples],
        ("power", WATT): [None if sample.power_mw is None else sample.power_mw / 1000 for sample in samples],
        ("temperature", CELSIUS): [sample.temperature_c for sample in samples],
        ("device busy", PERCENT): [sample.utilization_percent for sample in samples],
    }
    counters = []
    for (name, unit), values in columns.items():
        known = np.flatnonzero([value is not None for value in values])
        if len(known):
            value = np.array([values[place] for place in known.tolist()], dtype=np.float64)
            counters.append(Counter(name, unit, at[known], until[known], value))
    throttled = np.flatnonzero([bool(sample.throttle_reasons) for sample in samples])
    if len(throttled):
        says = tuple(", ".join(samples[place].throttle_reasons) for place in throttled.tolist())
        counters.append(Counter("throttled", YES, at[throttled], until[throttled], np.ones(len(throttled)), says))
    return counters


def _bandwidth(account: RankLanes, met: Sequence[MatchedCollective], gloo: bool) -> list[Counter]:
    """The bus bandwidth of each transfer of the rank: after the last rank had arrived, so without waiting."""
    pieces = []
    for each in met:
        factor = bus_factor(each.op, len(each.ranks), gloo)
        if account.rank in each.ranks and each.bytes and factor is not None and each.transfer_ns > 0:
            at = each.arrival_ns + account.moved_ns
            pieces.append((at, at + each.transfer_ns, each.bytes * factor * 1e9 / each.transfer_ns))
    if not pieces:
        return []
    start, end, value = (np.array(column) for column in zip(*sorted(pieces), strict=True))
    return [Counter("bus bandwidth", RATE, start.astype(np.int64), end.astype(np.int64), value.astype(np.float64))]


# -- what filled a gap -------------------------------------------------------------------------------------------------


class Filled(Struct, frozen=True):
    """Part of a window of one rank. ``category``: a part of the step; ``detail``: in words, "" without."""

    category: Category
    detail: str
    ns: int


def filled(account: RankLanes, begin_ns: int, end_ns: int) -> list[Filled]:
    """What a window of a rank consists of by its account, the most first. The rest lies between steps."""
    found = []
    for lane in account.lanes:
        seen = lane.visible(begin_ns, end_ns)
        inside = np.minimum(lane.end_ns[seen], end_ns) - np.maximum(lane.start_ns[seen], begin_ns)
        for code in np.unique(lane.name[seen]).tolist():
            found.append(Filled(lane.category, DETAILS[code], int(inside[lane.name[seen] == code].sum())))
    return sorted((each for each in found if each.ns), key=lambda each: -each.ns)


class Did(Struct, frozen=True):
    """What the host's main thread did: the innermost event that covers ``ns`` of a window."""

    name: str
    lane: str
    ns: int


def host_did(rows: Sequence[Row], begin_ns: int, end_ns: int) -> Did | None:
    """The innermost call, operator or range of the main thread that covers half of a window, else the one that covers
    most of it; None if each covers less than ``least_share_of_host``. A mark of a step says nothing."""
    window, found = end_ns - begin_ns, []
    for row in rows:
        if row.title not in _OF_HOST:
            continue
        at = row.longest(begin_ns, end_ns)
        if at is None:
            continue
        start, end = int(row.start_ns[at]), int(row.end_ns[at])
        name, inside = row.lane.names[int(row.lane.name[row.place[at]])], min(end, end_ns) - max(start, begin_ns)
        if inside >= TIMELINE.least_share_of_host * window and not _STEP_MARK.match(name):
            found.append((2 * inside >= window, -(end - start) if 2 * inside >= window else inside, name, row, inside))
    if not found:
        return None
    _, _, name, row, inside = max(found, key=lambda each: each[:2])
    return Did(name, row.title, inside)


_OF_HOST = (MAIN_THREAD, "calls of the runtime", "ranges")
_STEP_MARK = re.compile(f"{names.STEP_PATTERN}|{names.PROFILER_STEP_PATTERN}")


class Waited(Struct, frozen=True):
    """A rank waited in a collective for the one that called last, ``late_ns`` after it; ``did``: what that rank's
    time until then consisted of, the most first."""

    op: str
    rank: int
    late_ns: int
    did: tuple[Filled, ...]


def waited_for(timeline: AllRanks, rank: int, begin_ns: int, end_ns: int) -> Waited | None:
    """For whom a rank waited in a window; None if it was in no collective there, or itself the last one."""
    account = timeline.ranks[rank]
    call, step = _call_in(account, begin_ns, end_ns)
    if call is None:
        return None
    mine = call.start_ns + account.moved_ns
    last: tuple[int, int] | None = None
    for other, lanes in timeline.ranks.items():
        if other == rank or other in timeline.loose or rank in timeline.loose:
            continue
        for each in lanes.steps:
            if each.step == step:
                at = next((its.start_ns for its in each.collectives if its.key == call.key), None)
                if at is not None and (last is None or at + lanes.moved_ns > last[0]):
                    last = at + lanes.moved_ns, other
    if last is None or last[0] <= mine:
        return None
    return Waited(call.op, last[1], last[0] - mine, tuple(filled(timeline.ranks[last[1]], mine, last[0])))


def _call_in(account: RankLanes, begin_ns: int, end_ns: int) -> tuple[CollectiveCall | None, int]:
    """The collective of a rank that covers most of a window, and its step."""
    begin, end = begin_ns - account.moved_ns, end_ns - account.moved_ns
    best: tuple[int, CollectiveCall | None, int] = (0, None, 0)
    for step in account.steps:
        if step.end_ns <= begin or step.begin_ns >= end:
            continue
        for call in step.collectives:
            inside = min(call.end_ns, end) - max(call.start_ns, begin)
            if inside > best[0]:
                best = inside, call, step.step
    return best[1], best[2]


def next_launch(launches: Launches, row: int, from_ns: int) -> tuple[int, int] | None:
    """Call and begin of the first work in a row that begins at a moment or later; None without a known launch."""
    at = np.flatnonzero((launches.work_row == row) & (launches.work_ns >= from_ns))
    return (int(launches.call_ns[at[0]]), int(launches.work_ns[at[0]])) if len(at) else None
