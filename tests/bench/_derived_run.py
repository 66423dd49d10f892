"""The run directory that the always-on collectors would have written, derived from Kineto traces of the same steps.

A trace is of a few steps; the collectors record all of a run. So the steps are written again and again, as if the
training had gone on like that: `_STEPS` of them, one round after the other, with the first as the warm-up.

- **Phases of the host**: data wait, backward and optimizer as the trace's ranges have them; a backward ends where the
  training's thread goes on. Forward is its range, else what the host does between the other phases and the backward.
- **Their edges on the device**: an event is passed when all has ended that the training's stream was given before it,
  kernels and waits. The training's stream is the one that computes longest.
- **Waits**: where the stream stands still until a collective ends and then starts what was launched before that end.
  What ends meanwhile was waited for first. A collective that ends at no such place was hidden: a wait of no length.
  Where another stream starts then, that waited for it, and the training's waits for that.
- **Calls**: of DDP's reducer no more is known than that the last of a backward was waited for. What was called on
  another stream than the training's begins and ends as its kernel does; what was called on the training's begins when
  that got there, and ends when the wait for it does.
- **Utilization**: the part of the time in which any kernel ran, sampled at a steady pace.
- **Hosts**: as the traces name them, else one for all ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from diag.account import gpu
from diag.account import intervals as iv
from diag.account import trace_ranges as ranges
from diag.account.trace_collectives import from_kernels, point_to_point
from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import (
    BACKWARD,
    CHECKPOINT,
    DATA,
    FORWARD,
    OPTIMIZER,
    CollectiveLine,
    CollectiveRow,
    DeviceCall,
    DeviceRecord,
    DeviceStepRecord,
    Manifest,
    PhaseRow,
    RankRecord,
    StepRecord,
)
from diag.model.steps import CollectiveCall
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

_STEPS = 16
_SAMPLES = 20  # of the device, a round
_STARTS_NS = 30_000  # after the end of what it waited for
_BESIDE_NS = 100_000  # ... beside another kernel
_TICK_NS = 500  # what events resolve
_WAIT_EVENT = r"StreamWaitEvent"
_DDP = r"^DistributedDataParallel\.forward$"
_BEFORE_NS = 1_000_000_000  # of the monotonic clock, before the first trace

Times = npt.NDArray[np.int64]


class UnderivableError(Exception):
    """Why records cannot be derived from a trace."""


@dataclass(frozen=True)
class Wait:
    """The training's stream stands still for the collective. ``host_ns``: when the host asked for that; ``through``:
    for another stream, which waits for the collective."""

    host_ns: int
    begin_ns: int
    end_ns: int
    through: bool = False


@dataclass(frozen=True)
class Called:
    """A collective. ``apart``: called on another stream than the training's; ``reducer``: by DDP in C++."""

    call: CollectiveCall
    launch_ns: int
    wait: Wait | None
    apart: bool
    reducer: bool


class Stream:
    """The training's: when it has done what the host gave it before a moment."""

    def __init__(self, work: pl.DataFrame, waits: Sequence[Wait]) -> None:
        given = [*zip(work["launch_ns"].to_list(), work["end_ns"].to_list(), strict=True)]
        given += [(wait.host_ns, wait.end_ns) for wait in waits]
        given.sort()
        self._given: Times = np.array([at for at, _ in given], dtype=np.int64)
        self._reach = np.maximum.accumulate(np.array([end for _, end in given], dtype=np.int64))

    def passes(self, host_ns: int) -> int:
        """When an event is passed that the host records at this moment."""
        before = int(np.searchsorted(self._given, host_ns, side="left"))
        return max(host_ns, int(self._reach[before - 1])) if before else host_ns


@dataclass(frozen=True)
class Derived:
    """Steps of one rank by number: host and device edges, phases, calls; and when any kernel ran."""

    trace: Trace
    steps: Mapping[int, tuple[int, int]]
    phases: Mapping[int, Sequence[tuple[str, int, int]]]
    pauses: iv.Intervals
    calls: Mapping[int, Sequence[Called]]
    stream: Stream
    busy: iv.Intervals

    @property
    def begin_ns(self) -> int:
        return min(begin for begin, _ in self.steps.values())

    @property
    def period_ns(self) -> int:
        """From round to round: what host and device need."""
        end = max(end for _, end in self.steps.values())
        return max(end - self.begin_ns, self.stream.passes(end) - self.stream.passes(self.begin_ns))


def derive(trace: Trace, numbers: Sequence[int]) -> Derived:
    """``numbers``: the steps that count, one after the other."""
    if not ranges.marks_steps(trace) and not len(ranges.optimizer(trace)):
        raise UnderivableError("no step is marked")
    windows = {step: (begin, end) for step, begin, end in ranges.host_windows(trace) if step in set(numbers)}
    if len(windows) < 2:
        raise UnderivableError(f"{len(windows)} steps that count")
    work = gpu.device_work(trace).filter(pl.col("dur_ns") > 0)
    if work.is_empty():
        raise UnderivableError("no work of a device")
    training = _training_stream(work)
    own = work.filter(pl.col("stream") == training).sort("launch_ns", "ts_ns")
    calls = _calls(trace, work, own, training)
    stream = Stream(own, [call.wait for call in calls if call.wait is not None])
    main = ranges.main_thread(trace)
    by_step = {step: _of_step(calls, begin, end) for step, (begin, end) in windows.items()}
    return Derived(
        trace=trace,
        steps=windows,
        phases={step: _phases(trace, main, begin, end) for step, (begin, end) in windows.items()},
        pauses=ranges.garbage_collection(trace),
        calls=by_step,
        stream=stream,
        busy=ranges.as_intervals(work.filter(pl.col("cat") != names.MEMCPY)),
    )


def _of_step(calls: Sequence[Called], begin: int, end: int) -> list[Called]:
    """The calls made in a step. The collectors mark no wait that comes in a later one."""
    own = [call for call in calls if begin <= call.launch_ns < end]
    return [replace(c, wait=None) if c.wait is not None and c.wait.host_ns >= end else c for c in own]


def derive_longest(traces: Sequence[Trace], numbers: Sequence[int]) -> Derived:
    """From the one of a rank's traces that holds most of the steps."""
    wanted = set(numbers)
    return derive(
        max(traces, key=lambda trace: sum(step in wanted for step, _, _ in ranges.host_windows(trace))), numbers
    )


def _training_stream(work: pl.DataFrame) -> int:
    computing = work.filter((pl.col("class") == gpu.COMPUTE) & (pl.col("cat") == names.KERNEL))
    if computing.is_empty():
        raise UnderivableError("no kernel computes")
    by_stream = computing.group_by("stream").agg(pl.col("dur_ns").sum()).sort("dur_ns", "stream", descending=True)
    return int(by_stream["stream"][0])


def _phases(trace: Trace, main: int | None, begin: int, end: int) -> list[tuple[str, int, int]]:
    """The host's phases in one step, in order."""
    threads = {main} if main is not None else set()
    window = iv.make([(begin, end)])
    data = iv.intersect(ranges.data_wait(trace, threads), window)
    saving = iv.subtract(iv.intersect(ranges.checkpoint(trace), window), data)
    optimizer = iv.subtract(iv.intersect(ranges.optimizer(trace), window), iv.union(data, saving))
    host = ranges.on_threads(trace.select(names.CPU_OP, names.ANNOTATION, within=(begin, end)), threads)
    own = host.filter(~pl.col("name").cast(pl.String).str.contains(names.PROFILER_STEP_PATTERN))["ts_ns"].to_numpy()
    taken = iv.union(data, saving, optimizer)
    backward = iv.subtract(_backward(trace, threads, own, begin, end), taken)
    forward = iv.intersect(ranges.forward(trace), window)
    if not len(forward):
        forward = _before(backward if len(backward) else window[:, 1:], iv.union(taken, backward), own, begin)
    forward = iv.subtract(forward, iv.union(taken, backward))
    found = [
        (name, int(a), int(b))
        for name, spans in (
            (DATA, data), (CHECKPOINT, saving), (FORWARD, forward), (BACKWARD, backward), (OPTIMIZER, optimizer),
        )
        for a, b in spans
    ]  # fmt: skip
    return sorted(found, key=lambda phase: phase[1])


def _nodes(trace: Trace, threads: set[int], window: iv.Intervals) -> iv.Intervals:
    """The engine's nodes; of old profilers, which do not name them, the operators of the threads that launch beside the
    training's."""
    nodes = iv.intersect(ranges.backward(trace), window)
    if len(nodes):
        return nodes
    launching = trace.select(*names.LAUNCH_CATEGORIES, name=r"LaunchKernel")
    others = ranges.thread_set(launching) - threads
    return iv.intersect(ranges.as_intervals(ranges.on_threads(trace.select(names.CPU_OP), others)), window)


def _backward(trace: Trace, threads: set[int], own: Times, begin: int, end: int) -> iv.Intervals:
    """From the first node of the engine to where the training's thread, ``own``, goes on: it waits in the call."""
    nodes = _nodes(trace, threads, iv.make([(begin, end)]))
    spans: list[tuple[int, int]] = []
    for start, stop in nodes.tolist():
        if spans and start < spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], stop)
            continue
        after = int(np.searchsorted(own, stop, side="left"))
        spans.append((start, max(stop, int(own[after]) if after < len(own) else end)))
    joined: list[tuple[int, int]] = []
    for start, stop in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return iv.make(joined)


def _before(backward: iv.Intervals, taken: iv.Intervals, own: Times, begin: int) -> iv.Intervals:
    """From the first operator behind the phase before to the backward; without any, to the end of the step."""
    found = []
    for start in backward[:, 0].tolist():
        ended = taken[taken[:, 1] <= start, 1]
        since = int(ended.max()) if len(ended) else begin
        first = int(np.searchsorted(own, since, side="left"))
        if first < len(own) and own[first] < start:
            found.append((int(own[first]), start))
    return iv.make(found)


def _calls(trace: Trace, work: pl.DataFrame, own: pl.DataFrame, training: int) -> list[Called]:
    """All collectives with a launch in the trace, in the order in which they were launched."""
    talking = trace.with_arguments(work.filter(pl.col("class") == gpu.COMM))
    talking = talking.filter(pl.col("launch_known_ns") != gpu.NEVER)
    if talking.is_empty():
        return []
    if point_to_point(trace, talking).any():
        raise UnderivableError("sends and receives: their waits are not derived")
    if (of_graphs := _by_graphs(trace, talking)) > 0:
        raise UnderivableError(f"{of_graphs} collectives in CUDA graphs")
    if bool((talking["stream"] == training).all()):
        raise UnderivableError("collectives on the training's own stream")
    (called,) = from_kernels(trace, talking, [(0, trace.begin_ns, trace.end_ns + 1)])
    launched = {row["ts_ns"]: row for row in talking.select("ts_ns", "launch_ns", "launch_thread").to_dicts()}
    known = [(launched[call.start_ns], call) for call in called if call.start_ns in launched]
    known.sort(key=lambda item: item[0]["launch_ns"])
    silent = work.filter((pl.col("stream") != training) & (pl.col("class") != gpu.COMM))
    waits = _waits(_Gaps(trace, own, silent), [(row["launch_ns"], call) for row, call in known], trace.begin_ns)
    ddp = bool(len(trace.select(names.ANNOTATION, name=_DDP)))
    nodes = ranges.backward(trace)
    found = []
    for at, (row, call) in enumerate(known):
        launch = row["launch_ns"]
        in_backward = bool(iv.covers(nodes, np.array([launch], dtype=np.int64))[0])
        reducer = ddp and in_backward and call.op == "all_reduce"
        apart = not reducer and _called_from(work, launch, row["launch_thread"]) not in (training, None)
        found.append(Called(call, launch, waits[at], apart, reducer))
    return found


def _by_graphs(trace: Trace, talking: pl.DataFrame) -> int:
    graphs = trace.select(*names.LAUNCH_CATEGORIES, name=names.GRAPH_LAUNCH_PATTERN)
    return int(np.isin(talking["launch_ns"].to_numpy(), graphs["ts_ns"].to_numpy()).sum())


def _called_from(work: pl.DataFrame, launch: int, thread: int) -> int | None:
    """The stream on which the same thread launched the last kernel that computes: the one that it calls from."""
    before = work.filter(
        (pl.col("launch_thread") == thread)
        & (pl.col("launch_ns") < launch)
        & (pl.col("class") == gpu.COMPUTE)
        & (pl.col("cat") == names.KERNEL)
    )
    return int(before.sort("launch_ns")["stream"][-1]) if len(before) else None


class _Gaps:
    """Where the training's stream stands still. ``own``: its work by launch; ``others``: further streams that compute
    or copy, which may wait for a collective before the training's waits for them."""

    def __init__(self, trace: Trace, own: pl.DataFrame, others: pl.DataFrame) -> None:
        asked = trace.select(*names.LAUNCH_CATEGORIES, name=_WAIT_EVENT)
        self._asked_ns, self._asked_by = asked["ts_ns"].to_numpy(), asked["thread"].to_numpy()
        by_start = own.sort("ts_ns")
        self.start, self.launch = by_start["ts_ns"].to_numpy(), by_start["launch_ns"].to_numpy()
        self._thread = by_start["launch_thread"].fill_null(0).to_numpy()
        ends = np.maximum.accumulate(by_start["end_ns"].to_numpy())
        self.reach = np.concatenate(([trace.begin_ns], ends))
        self._begin_ns = trace.begin_ns
        self._others = others.sort("ts_ns")
        self._held = self._others.filter(pl.col("ts_ns") - pl.col("launch_ns") > _STARTS_NS)

    def after(self, end_ns: int, launched_ns: int) -> int | None:
        """The first work behind a moment that was given to the stream after another one."""
        found = np.flatnonzero((self.start >= end_ns) & (self.launch >= launched_ns))
        return int(found[0]) if len(found) else None

    def asked(self, at: int) -> int:
        """When the host asked for the wait before this work: the last such call before its launch, else that."""
        earlier = self.launch[:at][self.launch[:at] < self.launch[at]]
        since = int(earlier.max()) if len(earlier) else self._begin_ns
        inside = (self._asked_ns > since) & (self._asked_ns < self.launch[at]) & (self._asked_by == self._thread[at])
        return int(self._asked_ns[inside].max()) if inside.any() else int(self.launch[at])

    def begin(self, at: int) -> int:
        """Since when the stream stands still before this work."""
        return max(int(self.reach[at]), self.asked(at))

    def woken(self, end_ns: int, until_ns: int) -> pl.DataFrame | None:
        """What another stream does without a pause from the end of a collective on; None where none starts then."""
        first = self._held.filter(pl.col("ts_ns").is_between(end_ns, min(end_ns + _BESIDE_NS, until_ns)))
        if first.is_empty():
            return None
        row = first.row(0, named=True)
        same = self._others.filter((pl.col("stream") == row["stream"]) & (pl.col("ts_ns") >= row["ts_ns"]))
        pause = (same["ts_ns"] - same["end_ns"].shift(1)).fill_null(0)
        return same.filter((pause > _BESIDE_NS).cast(pl.Int8).cum_max() == 0)

    def through(self, work: pl.DataFrame) -> Wait | None:
        """The wait of the training's stream for this work of another."""
        launched = int(work["launch_ns"][0])
        for end in work["end_ns"].to_list():
            at = self.after(end, launched)
            if at is not None and self.start[at] - end <= _STARTS_NS and self.launch[at] < end and self.begin(at) < end:
                return Wait(self.asked(at), self.begin(at), int(self.start[at]), through=True)
        at = self.after(int(work["end_ns"].to_numpy().max()), launched)
        if at is None:
            return None
        moment = int(self.start[at])
        return Wait(self.asked(at), moment, moment, through=True)


def _waits(gaps: _Gaps, calls: Sequence[tuple[int, CollectiveCall]], begin_ns: int) -> list[Wait | None]:
    """Of each call, with when it was launched."""
    found: list[Wait | None] = [None] * len(calls)
    free = begin_ns  # when the stream has waited for what ended before
    for at in sorted(range(len(calls)), key=lambda at: calls[at][1].end_ns):
        launched, call = calls[at]
        after = gaps.after(call.end_ns, launched)
        if after is None:
            continue
        start = int(gaps.start[after])
        later = [other.end_ns for _, other in calls if call.end_ns <= other.end_ns <= start]
        awaited = any(start - end <= _STARTS_NS and gaps.launch[after] < end for end in later)
        if not awaited and (work := gaps.woken(call.end_ns, start)) is not None:
            found[at] = gaps.through(work)
            continue
        begin = max(gaps.begin(after), free)
        if not awaited or begin >= call.end_ns:
            moment = min(max(begin, call.end_ns), start)
            found[at] = Wait(gaps.asked(after), moment, moment)
        else:
            found[at] = Wait(gaps.asked(after), begin, call.end_ns)
            free = call.end_ns
    return found


# -- writing -----------------------------------------------------------------------------------------------------------


def write(ranks: Mapping[int, Derived], world: int | None, folder: Path) -> None:
    layout = RunLayout(folder)
    world = world or len(ranks)
    manifest = Manifest("derived", 0, world_size=world, backend="nccl", device="cuda", exit_code=0)
    replace_file(layout.manifest, encode(manifest))
    zero = min(derived.begin_ns for derived in ranks.values()) - _BEFORE_NS
    period = max(derived.period_ns for derived in ranks.values())
    for rank, derived in ranks.items():
        host = derived.trace.host or "host"
        files = layout.rank(rank)
        identity = RankRecord(rank, rank, world, host, 1000 + rank, f"boot of {host}", 0, zero, "cuda", rank)
        replace_file(files.identity, encode(identity))
        steps, device_steps, lines, samples = [], [], [], []
        rounds = -(-_STEPS // len(derived.steps))
        for number, (shift, step, seqs) in enumerate(_rounds(derived, rounds, period)):
            steps.append(_step(derived, number, step, shift - zero))
            rows, calls = _rows(derived, step, seqs, shift - zero)
            device_steps.append(_device_step(derived, number, step, calls))
            lines.append(CollectiveLine(number, rows, _groups(derived, rank, world) if number == 0 else {}))
        for at in range(rounds):
            samples += _samples(derived, at * period - zero)
        for path, records in (
            (files.steps, steps),
            (files.device_steps, device_steps),
            (files.collectives, lines),
            (files.device, samples),
        ):
            path.write_bytes(b"".join(encode(record) for record in records))


def _rounds(derived: Derived, rounds: int, period: int) -> Iterator[tuple[int, int, dict[str, int]]]:
    """Shift in time, number of the step in the trace, and how often each group was called before."""
    counts: dict[str, int] = defaultdict(int)
    for at in range(rounds):
        for step in sorted(derived.steps):
            yield at * period, step, counts


def _step(derived: Derived, number: int, step: int, shift: int) -> StepRecord:
    begin, end = derived.steps[step]
    return StepRecord(
        step=number,
        begin_ns=begin + shift,
        end_ns=end + shift,
        phases=[PhaseRow(name, a + shift, b + shift) for name, a, b in derived.phases[step]],
        gc=[(int(a) + shift, int(b) + shift) for a, b in iv.intersect(derived.pauses, iv.make([(begin, end)]))],
    )


def _name(call: CollectiveCall) -> str:
    return call.group or "default"


def _recorded(calls: Sequence[Called]) -> list[tuple[Called, int]]:
    """The calls of a step of which there is a row, with the bytes: of the reducer's, the last of each backward."""
    found: list[tuple[Called, int]] = []
    size = 0
    for at, called in enumerate(calls):
        if not called.reducer:
            found.append((called, called.call.bytes))
            continue
        size += called.call.bytes
        following = calls[at + 1] if at + 1 < len(calls) else None
        if following is None or not following.reducer:
            found.append((called, size))
            size = 0
    return found


def _rows(
    derived: Derived, step: int, seqs: dict[str, int], shift: int
) -> tuple[list[CollectiveRow], list[tuple[int, Called]]]:
    rows, calls = [], []
    for called, size in _recorded(derived.calls[step]):
        group = _name(called.call)
        seq, seqs[group] = seqs[group], seqs[group] + 1
        dtype = called.call.dtype.lower()
        start = called.launch_ns + shift
        rows.append(CollectiveRow(group, seq, called.call.op, size, dtype, start, None, None, None, not called.reducer))
        calls.append((seq, called))
    return rows, calls


def _device_step(derived: Derived, number: int, step: int, calls: Sequence[tuple[int, Called]]) -> DeviceStepRecord:
    begin, end = derived.steps[step]
    zero = derived.stream.passes(begin)

    def since(ns: int) -> int:
        return round((ns - zero) / _TICK_NS) * _TICK_NS

    found = []
    for seq, called in calls:
        call, wait, group = called.call, called.wait, _name(called.call)
        begin_ns, end_ns = (since(wait.begin_ns), since(wait.end_ns)) if wait is not None else (None, None)
        given = min(since(derived.stream.passes(called.launch_ns)), since(call.end_ns))
        if called.reducer:
            if begin_ns is not None and end_ns is not None:
                found.append(DeviceCall(group, seq, begin_ns, end_ns))
        elif called.apart or (wait is not None and wait.through):
            start = since(call.start_ns) if called.apart else given
            found.append(DeviceCall(group, seq, start, since(call.end_ns), begin_ns, end_ns, own_stream=True))
        elif begin_ns is not None and end_ns is not None:
            found.append(DeviceCall(group, seq, min(given, begin_ns), end_ns, begin_ns, end_ns))
    passes = derived.stream.passes
    phases = [PhaseRow(name, since(passes(a)), since(passes(b))) for name, a, b in derived.phases[step]]
    return DeviceStepRecord(number, since(passes(end)), phases, found)


def _groups(derived: Derived, rank: int, world: int) -> dict[str, list[int]]:
    every = list(range(world))
    found = {}
    for calls in derived.calls.values():
        for called in calls:
            members = list(called.call.group_ranks)
            found[_name(called.call)] = members if rank in members else every
    return found


def _samples(derived: Derived, shift: int) -> list[DeviceRecord]:
    begin = derived.stream.passes(derived.begin_ns)
    end = derived.stream.passes(max(end for _, end in derived.steps.values()))
    edges = np.linspace(begin, end, _SAMPLES + 1).astype(np.int64).tolist()
    return [
        DeviceRecord(
            b + shift,
            utilization_percent=round(100 * iv.total(iv.intersect(derived.busy, iv.make([(a, b)]))) / (b - a)),
        )
        for a, b in pairwise(edges)
    ]
