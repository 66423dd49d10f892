"""Sorts Kineto traces into jobs by the content of the files: rank and world size, process and host, devices, recording
time, names of the events, and the folders that they are in.

Traces of one process are windows of one rank. Processes are one job if they were recorded at the same time, or in the
same folder, and nothing contradicts it: a rank is in a job once. What cannot be decided is stated.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import count, islice, pairwise, takewhile
from typing import Final

import numpy as np
from msgspec import Struct, field

from diag.collectors.reading import natural
from diag.model import Gap
from diag.rundir.policy import JOBS
from diag.rundir.runs import JOB
from diag.traces import kineto_names
from diag.traces.text_stream import TRACE_ENDINGS, file_name
from diag.traces.trace import Trace
from diag.words.formatting import elapsed, rank_ranges, visible

_EVER_NS: Final = 1 << 62
# A word of a file name, without the number at its end: resnet50, rank3. Not h7f2, 6a49xb, r1: hashes and times.
_WORD: Final = re.compile(r"([A-Za-z]+(?![\dA-Za-z])|[A-Za-z]{3,}(?=\d))\d*")
# Names that differ from process to process: addresses, numbers of steps.
_OWN_NAME: Final = re.compile(r"0x[0-9a-f]{4,}|#\d")


Starts = np.ndarray[tuple[int], np.dtype[np.int64]]


class Process(Struct, dict=True):
    """The windows of one process, in order of time: one rank."""

    traces: list[Trace]

    @property
    def rank(self) -> int | None:
        return self.traces[0].rank

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of its events: what runs in it."""
        names = self.traces[0].stored.names.to_list()
        return frozenset(name for name in names if not _OWN_NAME.search(name))

    @cached_property
    def communicates(self) -> bool:
        """Whether it contains a collective."""
        return any(map(_communicates, self.traces))


class Group(Struct):
    """Processes of one job. ``spans``: when they were recorded, in order and disjoint."""

    processes: list[Process]
    ranks: set[int]
    worlds: set[int]
    devices: set[str]
    homes: set[str]
    words: set[tuple[str, ...]]
    spans: list[tuple[int, int]]

    @property
    def ranked(self) -> bool:
        """Whether the rank of each of its processes is known."""
        return len(self.ranks) == len(self.processes)

    @property
    def traces(self) -> list[Trace]:
        return [trace for process in self.processes for trace in process.traces]


class Sorted(Struct, frozen=True):
    """The jobs, and gaps for the traces that are in none because they are copies."""

    groups: list[Group]
    gaps: list[Gap] = field(default_factory=list)


def sort_traces(traces: Sequence[Trace]) -> Sorted:
    """The jobs of these traces, in order of their files."""
    gaps: list[Gap] = []
    place = {id(trace): number for number, trace in enumerate(traces)}
    groups = [_group_of(process) for process in _processes(traces, gaps)]
    groups.sort(key=lambda group: place[id(group.traces[0])])
    for linked, reach_ns in _links():
        groups = _merged(groups, linked, reach_ns)
    groups.sort(key=lambda group: min(place[id(trace)] for trace in group.traces))
    return Sorted(groups, gaps)


def _processes(traces: Sequence[Trace], gaps: list[Gap]) -> list[Process]:
    processes: list[Process] = []
    originals, open_ended = _Originals(), _Continued()
    # A trace comes before its parts, so that the part is left out.
    for trace in sorted(traces, key=lambda trace: (trace.begin_ns, -trace.stored.rows)):
        if (original := originals.of(trace)) is not None:
            rank = f" of rank {trace.rank}" if trace.rank is not None else ""
            gaps.append(Gap(trace.path, f"repeats events{rank} that are in {original.path}; left out"))
            continue
        originals.add(trace)
        alone = Process([trace])
        process = next((process for process in open_ended.candidates(trace) if _goes_on(process, alone)), None)
        if process is not None:
            process.traces.append(trace)
        else:
            process = alone
            processes.append(process)
        open_ended.add(process)
    return processes


class _Originals:
    """The traces so far, in order of their begin, each with what a copy has in common with it."""

    def __init__(self) -> None:
        self._whole: dict[tuple[int, int, int], list[Trace]] = {}
        self._running: dict[int | None, list[tuple[int, Trace]]] = {}  # by rank, numbered in the order of their begin
        self._numbers = count()
        self._starts: dict[int, Starts] = {}

    def add(self, trace: Trace) -> None:
        self._whole.setdefault(_extent(trace), []).append(trace)
        self._running.setdefault(trace.rank, []).append((next(self._numbers), trace))

    def of(self, trace: Trace) -> Trace | None:
        """The trace that this one is a copy of, or a part of."""
        if (same := self._first(trace, self._whole.get(_extent(trace), []))) is not None:
            return same
        ranks = self._running.keys() if trace.rank is None else self._running.keys() & {trace.rank, None}
        running = sorted(one for rank in list(ranks) for one in self._still_running(rank, trace.begin_ns))
        of_rank = (other for _, other in reversed(running) if _may_be_of_one_process(trace, other))
        return self._first(trace, reversed(list(islice(of_rank, JOBS.most_compared_traces))))

    def _still_running(self, rank: int | None, at_ns: int) -> list[tuple[int, Trace]]:
        running = self._running[rank]
        for _, other in running:
            if other.end_ns <= at_ns:
                self._starts.pop(id(other), None)
        self._running[rank] = [one for one in running if one[1].end_ns > at_ns]
        return self._running[rank]

    def _first(self, trace: Trace, others: Iterable[Trace]) -> Trace | None:
        return next((other for other in others if self._is_copy(trace, other)), None)

    def _is_copy(self, trace: Trace, other: Trace) -> bool:
        """Whether a trace holds the same events as another, or a part of them."""
        if not _may_be_of_one_process(trace, other) or trace.path == other.path:
            return False
        if min(trace.end_ns, other.end_ns) <= max(trace.begin_ns, other.begin_ns):
            return False
        if _extent(trace) == _extent(other):
            return trace.host_pids == other.host_pids
        starts, others = self._starts_of(trace), self._starts_of(other)
        common = len(np.intersect1d(starts, others, assume_unique=True))
        return common > JOBS.copied_starts_share * min(len(starts), len(others))

    def _starts_of(self, trace: Trace) -> Starts:
        """When its events start. Those of the last traces are kept, up to a number of events."""
        if (known := self._starts.get(id(trace))) is not None:
            return known
        starts = _starts(trace)
        while self._starts and sum(map(len, self._starts.values())) + len(starts) > JOBS.most_starts_compared:
            self._starts.pop(next(iter(self._starts)))
        self._starts[id(trace)] = starts
        return starts


def _may_be_of_one_process(trace: Trace, other: Trace) -> bool:
    if trace.rank != other.rank and trace.rank is not None and other.rank is not None:
        return False
    return not trace.host_pids or not other.host_pids or not set(trace.host_pids).isdisjoint(other.host_pids)


def _extent(trace: Trace) -> tuple[int, int, int]:
    return trace.begin_ns, trace.end_ns, trace.stored.rows


_ANY: Final = ""  # in the place of a process id


class _Continued:
    """The processes so far by what a later window has in common with them."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._found: dict[tuple[int | None, str | None, object], dict[int, Process]] = {}

    def add(self, process: Process) -> None:
        """A process, once more after each of its windows."""
        number = self._numbers.setdefault(id(process), len(self._numbers))
        trace = process.traces[-1]
        pids: list[str | None] = list(dict.fromkeys(trace.host_pids)) or [None]
        for pid in pids if trace.rank is None else [*pids, _ANY]:
            of_key = self._found.setdefault((trace.rank, pid, _named_like(trace)), {})
            of_key.pop(number, None)
            of_key[number] = process  # the last to be extended is the last of them

    def candidates(self, trace: Trace) -> list[Process]:
        """The processes that this trace may be a later window of, in order."""
        pids: list[str | None] = list(dict.fromkeys(trace.host_pids))
        if trace.rank is not None:
            pids = [*pids, None] if pids else [_ANY]
        found: dict[int, Process] = {}
        for pid in pids:
            of_key = self._found.get((trace.rank, pid, _named_like(trace)), {})
            found.update(islice(reversed(of_key.items()), JOBS.most_compared_traces))
        return [found[number] for number in sorted(found)]


def _named_like(trace: Trace) -> tuple[str, tuple[str, ...]]:
    return _written_by(trace), _words(trace.path)


def _starts(trace: Trace) -> Starts:
    return np.unique(trace.unsorted(*trace.stored.categories, columns=("ts_ns",))["ts_ns"].to_numpy())


def _goes_on(process: Process, alone: Process) -> bool:
    """Whether a process of one trace is a later window of the process. Process ids are reused: in another container, on
    another host, on another day."""
    before, trace = process.traces[-1], alone.traces[0]
    if before.rank != trace.rank or before.path == trace.path or _differ(before.world_size, trace.world_size):
        return False
    if _differ(before.host, trace.host) or _differ(before.device_names, trace.device_names):
        return False
    pids, others = set(before.host_pids), set(trace.host_pids)
    if not pids & others and (trace.rank is None or (pids and others)):
        return False
    if _named_like(before) != _named_like(trace):
        return False
    if trace.begin_ns - before.end_ns > JOBS.traces_apart_ns:
        return False
    if trace.begin_ns < before.end_ns and (trace.rank is None or _same_steps(before, trace)):
        return False
    return _alike(process, alone)


def _differ(left: object, right: object) -> bool:
    """Whether both are known, and differ."""
    return bool(left) and bool(right) and left != right


def _written_by(trace: Trace) -> str:
    """``host_pid`` if TensorBoard's handler named the file; "" otherwise."""
    match = re.match(r"(.+_(\d+))\.\d{10,}\.pt\.trace\.json", file_name(trace.path))
    return match[1] if match and match[2] in trace.host_pids else ""


def _words(path: str) -> tuple[str, ...]:
    """The words of a path without their numbers: ``("resnet", "trace")`` of resnet50_trace_3.json. Words in which
    letters and digits alternate are hashes and times, and are left out."""
    words = re.split(r"[^A-Za-z0-9]+", stem(path))
    return tuple(match[1] for word in words if (match := _WORD.fullmatch(word)))


def stem(path: str) -> str:
    """The path without its trace endings."""
    ending = next((ending for ending in sorted(TRACE_ENDINGS, key=len, reverse=True) if path.endswith(ending)), "")
    return path.removesuffix(ending).removesuffix(".pt.trace")


def _same_steps(left: Trace, right: Trace) -> bool:
    """Whether most of their steps have the same names. Windows of one process may share a few."""
    mine, theirs = left.step_names, right.step_names
    return 2 * len(mine & theirs) > min(len(mine), len(theirs))


def _communicates(trace: Trace) -> bool:
    kernels = trace.stored.matching(kineto_names.KERNEL_PATTERN)
    others = trace.stored.matching(kineto_names.NOT_KERNEL_PATTERN)
    return bool((kernels & ~others).any() or trace.stored.matching(kineto_names.CALL_OP_PATTERN).any())


def _alike(left: Process, right: Process) -> bool:
    """Whether the same program runs in both."""
    common = len(left.names & right.names)
    return common >= JOBS.common_names_share * (len(left.names) + len(right.names) - common)


def folder_of(path: str) -> str:
    """The folder, or the archive, of a trace."""
    return path[: max(path.rfind("/"), path.rfind("!"), 0)]


def _home_of(path: str) -> str:
    """``folder_of``, or its parent if the folder is a rank's own."""
    folder = folder_of(path)
    return folder_of(folder) if kineto_names.rank_from_path(folder) is not None else folder


def _group_of(process: Process) -> Group:
    traces = process.traces
    return Group(
        processes=[process],
        ranks={rank for rank in (process.rank,) if rank is not None},
        worlds={trace.world_size for trace in traces if trace.world_size},
        devices={name for trace in traces for name in trace.device_names},
        homes={_home_of(trace.path) for trace in traces},
        words={_words(trace.path) for trace in traces},
        spans=_united([(trace.begin_ns, trace.end_ns) for trace in traces]),
    )


def _joined(left: Group, right: Group) -> Group:
    return Group(
        processes=[*left.processes, *right.processes],
        ranks=left.ranks | right.ranks,
        worlds=left.worlds | right.worlds,
        devices=left.devices | right.devices,
        homes=left.homes | right.homes,
        words=left.words | right.words,
        spans=_united([*left.spans, *right.spans]),
    )


def _united(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    united: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if united and begin <= united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((begin, end))
    return united


def _merged(groups: list[Group], linked: Callable[[Group, Group], bool], reach_ns: int) -> list[Group]:
    """The groups, with pairs joined that are linked and not in conflict. ``reach_ns``: the longest time between two
    that are linked."""
    while True:
        merged: list[Group] = []
        by_content = _ByContent()
        for group in groups:
            near = by_content.compatible(group, reach_ns)
            fitting = [n for n in near if linked(merged[n], group) and not conflict(merged[n], group)]
            if fitting:
                nearest = fitting[0]
                if len(fitting) > 1:
                    nearest = min(fitting, key=lambda n: _id_distance(merged[n], group))
                by_content.remove(nearest, merged[nearest])
                merged[nearest] = _joined(merged[nearest], group)
                by_content.add(nearest, merged[nearest])
            else:
                by_content.add(len(merged), group)
                merged.append(group)
        if len(merged) == len(groups):
            return merged
        groups = merged


class _ByContent:
    """Numbers of groups by what contradicts one job most often, so that few pairs need to be compared: a folder may
    hold a thousand recordings of rank 0."""

    def __init__(self) -> None:
        self._found: dict[tuple[frozenset[int], frozenset[int], bool], _Spans] = {}

    @staticmethod
    def _key(group: Group) -> tuple[frozenset[int], frozenset[int], bool]:
        return frozenset(group.ranks), frozenset(group.worlds), group.ranked

    def add(self, number: int, group: Group) -> None:
        self._found.setdefault(self._key(group), _Spans()).add(group.spans[0][0], group.spans[-1][1], number)

    def remove(self, number: int, group: Group) -> None:
        spans = self._found[key := self._key(group)]
        spans.remove(group.spans[0][0], group.spans[-1][1], number)
        if not spans:
            del self._found[key]

    def compatible(self, group: Group, reach_ns: int) -> list[int]:
        """The groups whose ranks, world sizes and times do not contradict one job, in order: see `conflict`."""
        begin, end = group.spans[0][0], group.spans[-1][1]
        numbers: list[int] = []
        for (ranks, worlds, ranked), spans in self._found.items():
            if not group.ranks.isdisjoint(ranks) or _differ(group.worlds, worlds):
                continue
            most = reach_ns if ranked and group.ranked else 0
            numbers += spans.between(begin - most, end + most)
        return sorted(numbers)


class _Spans:
    """Numbered times from a begin to an end, in order of their begin."""

    def __init__(self) -> None:
        self._sorted: list[tuple[int, int, int]] = []
        self._longest = 0

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, begin: int, end: int, number: int) -> None:
        insort(self._sorted, (begin, end, number))
        self._longest = max(self._longest, end - begin)

    def remove(self, begin: int, end: int, number: int) -> None:
        del self._sorted[bisect_left(self._sorted, (begin, end, number))]

    def between(self, begin: int, end: int) -> list[int]:
        """The numbers of those that touch this time."""
        earliest, latest = bisect_left(self._sorted, (begin - self._longest,)), bisect_left(self._sorted, (end + 1,))
        return [number for _, last, number in self._sorted[earliest:latest] if last >= begin]


def _same_names(left: Group, right: Group) -> bool:
    return bool(left.words & right.words) and _same_time_and_folder(left, right)


def _same_time_and_folder(left: Group, right: Group) -> bool:
    return bool(left.homes & right.homes) and _same_time(left, right)


def _same_time(left: Group, right: Group) -> bool:
    return apart_ns(left, right) <= (JOBS.clock_skew_ns if left.ranked and right.ranked else 0)


def _same_folder(left: Group, right: Group) -> bool:
    return bool(left.homes & right.homes)


def _same_world(left: Group, right: Group) -> bool:
    return bool(left.worlds & right.worlds) and apart_ns(left, right) <= JOBS.one_world_ns


def _links() -> tuple[tuple[Callable[[Group, Group], bool], int], ...]:
    """What ties two groups of traces to one job, the surest first, and how far apart in time they may be."""
    return (
        (_same_names, JOBS.clock_skew_ns),
        (_same_time_and_folder, JOBS.clock_skew_ns),
        (_same_time, JOBS.clock_skew_ns),
        (_same_folder, _EVER_NS),
        (_same_world, JOBS.one_world_ns),
    )


def apart_ns(left: Group, right: Group) -> int:
    """The time from a window of ``left`` to the next window of ``right``, or back; 0 if some overlap."""
    least, i, j = _EVER_NS, 0, 0
    while i < len(left.spans) and j < len(right.spans):
        mine, theirs = left.spans[i], right.spans[j]
        least = min(least, max(mine[0], theirs[0]) - min(mine[1], theirs[1]))
        if least <= 0:
            return 0
        if mine[1] < theirs[1]:
            i += 1
        else:
            j += 1
    return least


def _clocks_agree(left: Group, right: Group) -> bool:
    return (left.spans[0][0] < JOBS.time_of_day_from_ns) == (right.spans[0][0] < JOBS.time_of_day_from_ns)


def _id_distance(left: Group, right: Group) -> int:
    """The distance of the nearest process ids: ranks of a host are started one after the other."""
    numbers = sorted(
        (int(pid), of is left)
        for of in (left, right)
        for trace in of.traces
        for pid in trace.host_pids
        if pid.isdecimal() and len(pid) < 19
    )
    return min((b - a for (a, mine), (b, too) in pairwise(numbers) if mine != too), default=1 << 62)


def conflict(left: Group, right: Group) -> str:
    """Why the two cannot be one job; "" if nothing contradicts it."""
    if _differ(left.worlds, right.worlds):
        return f"world sizes {' and '.join(map(str, sorted(left.worlds | right.worlds)))}"
    apart = apart_ns(left, right)
    named = left.ranked and right.ranked
    mixed = named and bool(left.worlds & right.worlds) and apart <= JOBS.clock_skew_ns  # hosts with different devices
    if left.devices and right.devices and not left.devices & right.devices and not mixed:
        return f"devices {_named(left.devices)} and {_named(right.devices)}"
    if repeated := sorted(left.ranks & right.ranks):
        return _repeated(repeated, left, right, apart)
    world = max(left.worlds | right.worlds, default=0)
    if world and not named and len(left.processes) + len(right.processes) > world:
        return f"more processes than the world size of {world:,}"
    return _unlike(left, right, apart, named)


def _unlike(left: Group, right: Group, apart: int, named: bool) -> str:
    """What contradicts one job if the ranks do not decide."""
    if named and apart <= JOBS.clock_skew_ns:
        return ""
    if not named and apart:
        when = f"{elapsed(apart)} apart" if _clocks_agree(left, right) else "with clocks that cannot be compared"
        ids = [{pid for trace in group.traces for pid in trace.host_pids} for group in (left, right)]
        how = "under different names," if ids[0] & ids[1] else "by different processes"
        return f"recorded {when}, {how} without ranks"
    if not named and not all(group.processes[0].communicates for group in (left, right)):
        return "different processes without ranks, and at most one of them has collectives"
    if not _alike(left.processes[0], right.processes[0]):
        return "different programs: few operators and kernels are in both"
    if apart > JOBS.traces_apart_ns and _clocks_agree(left, right) and not _same_steps_elsewhere(left, right):
        return f"recorded {elapsed(apart)} apart"
    return ""


def _same_steps_elsewhere(left: Group, right: Group) -> bool:
    """Whether ranks of one world recorded the same steps on other hosts, whose clocks may be off by any time."""
    mine, theirs = ({trace.host for trace in group.traces} for group in (left, right))
    known = None not in mine | theirs and not mine & theirs and bool(left.worlds & right.worlds)
    return known and _same_steps(left.processes[0].traces[0], right.processes[0].traces[0])


def _repeated(ranks: Sequence[int], left: Group, right: Group, apart: int) -> str:
    first, second = (
        next(process for process in group.processes if process.rank == ranks[0]) for group in (left, right)
    )
    pids = [{pid for trace in process.traces for pid in trace.host_pids} for process in (first, second)]
    when = f"{elapsed(apart)} apart" if apart else "at the same time"
    if not pids[0] & pids[1]:
        ids = " and ".join(_process_ids(process_pids) for process_pids in pids)
        doubt = ": a restart or another job" if apart else ""
        return f"{rank_ranges(ranks)} recorded by different processes ({ids}), {when}{doubt}"
    if {_words(trace.path) for trace in first.traces} != {_words(trace.path) for trace in second.traces}:
        return f"{rank_ranges(ranks)} recorded under different names, {when}"
    return f"{rank_ranges(ranks)} recorded twice, {when}"


def _process_ids(pids: set[str]) -> str:
    return ", ".join(sorted(map(visible, pids), key=natural)[:2]) or "unknown"


def _named(devices: set[str]) -> str:
    return ", ".join(sorted(map(visible, devices))[:2])


def why_apart(groups: Sequence[Group]) -> list[tuple[Group, str]]:
    """For each job the most similar other one, and why it is another one. ``groups``: at least two."""
    by_time = sorted(range(len(groups)), key=lambda number: groups[number].spans[0])
    answers: list[tuple[Group, str]] = [(groups[0], "")] * len(groups)
    for place, number in enumerate(by_time):
        group = groups[number]
        first = max(0, place - JOBS.most_compared_traces)
        others = sorted({*by_time[first:place], *by_time[place + 1 : place + 1 + JOBS.most_compared_traces]})
        nearest = min(
            (groups[other] for other in others),
            key=lambda other: (group.homes.isdisjoint(other.homes), apart_ns(group, other)),
        )
        reason = conflict(nearest, group)
        answers[number] = nearest, reason or f"in another folder, recorded {elapsed(apart_ns(group, nearest))} apart"
    return answers


def job_places(
    paths: Sequence[str], groups: Sequence[Group], names: Iterable[str] = ()
) -> list[tuple[str, tuple[str, ...]]]:
    """For each job its name, and the paths that open it alone: its own folder, archive or file if it has one.
    ``names``: names that are taken already."""
    root = paths[0].rstrip("/") if len(paths) == 1 else ""
    files = [sorted({trace.path for trace in group.traces}) for group in groups]
    everything = sorted(path for mine in files for path in mine)
    places: list[tuple[str, tuple[str, ...]]] = []
    taken = set(names)
    numbers: dict[str, Iterator[int]] = {}
    for mine in files:
        own_place = _own_place(mine, everything)
        own_place = None if own_place == root else own_place
        name = _below(stem(own_place) if own_place is not None else _common_stem(mine), root) or "job"
        if name in taken:
            numbered = (f"{name}-{number}" for number in numbers.setdefault(name, count(2)))
            name = next(free for free in numbered if free not in taken)
        taken.add(name)
        opened_by = (own_place,) if own_place is not None else (f"{root}{JOB}{name}",) if root else tuple(mine)
        places.append((name, opened_by))
    return places


def _own_place(mine: Sequence[str], everything: Sequence[str]) -> str | None:
    """The file, archive or folder that holds all of ``mine`` and nothing else; None if there is none. Both are sorted;
    ``everything`` has the files of all jobs, one of several jobs several times."""
    if (
        len(mine) == 1
        and "!" not in mine[0]
        and bisect_right(everything, mine[0]) - bisect_left(everything, mine[0]) < 2
    ):
        folder = folder_of(mine[0])
        return mine[0] if not folder or _lying_in(folder, everything) > 1 else folder
    parts = list(takewhile(_equal, zip(*(_parts(path)[:-1] for path in mine), strict=False)))
    place = "".join(part[0] for part in parts).rstrip("/!")
    if not place or _lying_in(place, everything) > _lying_in(place, mine):
        return None
    return place if "!" not in place else None


def _equal(items: tuple[str, ...]) -> bool:
    return len(set(items)) == 1


def _parts(path: str) -> list[str]:
    return re.split(r"(?<=[/!])", path)


def _lying_in(place: str, paths: Sequence[str]) -> int:
    """How many of these paths, which are sorted, are in a folder or an archive."""
    between = ((f"{place}{mark}", f"{place}{chr(ord(mark) + 1)}") for mark in "/!")
    return sum(bisect_left(paths, end) - bisect_left(paths, begin) for begin, end in between)


def _common_stem(files: Sequence[str]) -> str:
    """The common beginning of these files' names: ``a`` of a_rank0.json and a_rank1.json."""
    stems = [stem(file) for file in files]
    if len(stems) == 1:
        return stems[0]
    common = "".join(same[0] for same in takewhile(_equal, zip(*stems, strict=False)))
    if any(other[len(common) : len(common) + 1].isalpha() for other in stems):  # in the middle of a word
        common = re.sub(r"[^/!_. -]*$", "", common)
    return re.sub(r"(?:(?:^|(?<=[/!_. -]))(?:rank|worker|trace)|[_. \d-])+$", "", common)


def _below(path: str, root: str) -> str:
    """The path relative to the root; without a root, its last part."""
    if root and path.startswith((f"{root}/", f"{root}!")):
        return path[len(root) + 1 :]
    return file_name(path.rstrip("/"))


def at_other_times(group: Group) -> list[Gap]:
    """Ranks that were recorded at another time than the others of their job: a guess, so it is reported."""
    if len(group.processes) < 2 or not group.ranked:
        return []
    gaps = []
    alone = [_group_of(process) for process in group.processes]
    together = _merged(alone, _same_time, JOBS.clock_skew_ns)
    for part in together[1:]:
        if not _clocks_agree(part, together[0]):
            continue
        apart = min(apart_ns(part, other) for other in together if other is not part)
        reason = f"{rank_ranges(sorted(part.ranks))} recorded {elapsed(apart)} from the others: treated as the same job"
        gaps.append(Gap(part.traces[0].path, reason))
    return gaps
