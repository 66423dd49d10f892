"""Predicted gains: the program of a run, built from its account, replayed with and without a change."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diag.account import intervals as iv
from diag.account.critical_path import Timeline, details_of, kinds_of, of_label
from diag.account.match import SYNCHRONISING, Key
from diag.model.axes import axis_words, is_data
from diag.model.steps import Attribution, CollectiveCall, Detail, Kind, RankStep
from diag.replay.policy import REPLAY
from diag.rundir.tables import Tables
from diag.traces.kineto_names import P2P_OPS
from diag.words.formatting import rank_ranges

from .costs import Costs, Level, fit
from .mutations import Mutation
from .program import (
    Collective,
    Issue,
    Line,
    Op,
    Placed,
    Program,
    Refusal,
    Replayed,
    Series,
    StepEnd,
    Stretch,
    StuckError,
    Wait,
    Work,
    labelled,
    measured_durations,
    replay,
    replay_error,
)

# -- waits -------------------------------------------------------------------------------------------------------------
#
# When the main line of a rank was blocked, and in which collective.


class Stop(Struct, frozen=True):
    """The rank entered the collective at ``entered_ns``, and its main line waited for it from ``start_ns``. It was done
    on this rank at ``done_ns``, perhaps before the wait began."""

    key: Key
    call: CollectiveCall
    entered_ns: int
    start_ns: int
    done_ns: int

    def after(self, begin_ns: int) -> Stop:
        """The part of the stop after ``begin_ns``."""
        return replace(self, entered_ns=max(self.entered_ns, begin_ns), start_ns=max(self.start_ns, begin_ns))

    def alone(self, rank: int) -> Stop:
        """The stop in a collective of this rank only."""
        group, number, op = self.key
        return replace(self, key=(group, number, f"{op} of rank {rank}"))


def stops(line: Timeline, step_ends_ns: Sequence[int]) -> list[Stop]:
    """One stop for each call of a rank, by start of the wait. For a call without a known wait: where its result was
    needed at the latest."""
    by_call: dict[CollectiveCall, Stop] = {}
    for call in line.calls:
        if call.waited_ns is not None:
            start, end = call.waited_ns
            by_call[call] = _stop(call, start, min(call.end_ns, end))
    unknown = [call for call in line.calls if call.waited_ns is None]
    if unknown:
        by_call |= _stops_by_exposure(line, unknown)
        by_call |= _latest(line, [call for call in unknown if call not in by_call], step_ends_ns)
    return sorted(by_call.values(), key=lambda stop: (stop.start_ns, stop.done_ns))


def queued(waited: Sequence[Stop]) -> list[Stop]:
    """The same, but kernels that follow each other immediately on one stream count as entered when the first was: a
    kernel begins when its stream is free, not when it is issued."""
    last: dict[str, tuple[int, int]] = {}  # group: when its wire was done, and when the collective on it was entered
    entered: dict[Key, int] = {}
    for stop in sorted(waited, key=lambda stop: stop.entered_ns):
        done, before = last.get(stop.call.group, (0, 0))
        entered[stop.key] = before if done <= stop.entered_ns <= done + REPLAY.queued_ns else stop.entered_ns
        last[stop.call.group] = (max(done, stop.done_ns), entered[stop.key])
    return [replace(stop, entered_ns=entered[stop.key]) for stop in waited]


def _stop(call: CollectiveCall, start_ns: int, done_ns: int) -> Stop:
    done = max(done_ns, call.start_ns)
    return Stop(call.key, call, call.start_ns, max(start_ns, call.start_ns), done)


def _stops_by_exposure(line: Timeline, calls: Sequence[CollectiveCall]) -> Mapping[CollectiveCall, Stop]:
    """Exposed communication that ends when a collective ends was a wait for it, and for those that ended during it."""
    chosen = kinds_of(line.label) == Kind.COMM
    starts, ends = line.start_ns[chosen], line.end_ns[chosen]
    by_call = {}
    for call in calls:
        at = int(np.searchsorted(ends, call.end_ns - REPLAY.same_time_ns, side="left"))
        # If the line goes on before the call ends, it did not wait for this call.
        if at < len(ends) and max(starts[at], call.start_ns) < call.end_ns:
            by_call[call] = _stop(call, int(starts[at]), min(call.end_ns, int(ends[at])))
    return by_call


def _latest(
    line: Timeline, calls: Sequence[CollectiveCall], step_ends_ns: Sequence[int]
) -> Mapping[CollectiveCall, Stop]:
    """Overlapped collectives: parameters are needed before the next are gathered, all else by the end of the step."""
    starts: dict[tuple[str, str], list[int]] = defaultdict(list)
    for call in line.calls:
        starts[call.op, call.group].append(call.start_ns)
    ordered = {key: sorted(times) for key, times in starts.items()}
    by_call = {}
    for call in calls:
        end = step_ends_ns[min(bisect_left(step_ends_ns, call.end_ns), len(step_ends_ns) - 1)]
        later = ordered[call.op, call.group]
        at = bisect_left(later, call.end_ns)
        needed = later[at] if call.op == "all_gather" and at < len(later) else end
        by_call[call] = _stop(call, max(needed, call.end_ns), call.end_ns)
    return by_call


# -- line --------------------------------------------------------------------------------------------------------------
#
# One rank's stretch of time as a line of operations: its work between entering collectives and waiting for them.

_Event = tuple[int, int, int, Op]  # time, order among equal times, order within that, operation


def operations(line: Timeline, waited: Sequence[Stop], steps: Sequence[RankStep]) -> Line:
    """The line that, replayed with the measured ends of the collectives, takes as long as measured.

    Waits replace the account in their time; communication that no collective explains stays work, so the sum is right.
    """
    stopped = _stopped(waited)
    events = [*_issues(waited, stopped), *_waits(waited, stopped), *_ends(steps, stopped)]
    events.sort(key=lambda event: event[:3])
    pieces = _work(line, stopped)
    ops: list[Op] = []
    piece = next(pieces, None)
    for time, _, _, op in events:
        while piece is not None and piece[0] < time:
            start, end, label = piece
            kind, detail = of_label(label)
            ops.append(Work(min(end, time) - start, kind, detail))
            piece = (time, end, label) if end > time else next(pieces, None)
        ops.append(op)
    return tuple(ops)


def _stopped(waited: Sequence[Stop]) -> iv.Intervals:
    """When the line was blocked, a row for each wait, disjoint. Adjacent waits stay separate: operations lie
    between."""
    blocked: list[tuple[int, int]] = []
    for stop in sorted(waited, key=lambda stop: (stop.start_ns, stop.done_ns)):
        start = max(stop.start_ns, blocked[-1][1]) if blocked else stop.start_ns
        if stop.done_ns > start:
            blocked.append((start, stop.done_ns))
    return np.array(blocked, dtype=np.int64).reshape(-1, 2)


def _work(line: Timeline, stopped: iv.Intervals) -> Iterator[tuple[int, int, int]]:
    """(start, end, label) of all time outside of waits, in order; time between steps is idle."""
    idle = int(Kind.IDLE) * len(Detail) + int(Detail.OTHER)
    edges = np.unique(np.concatenate((line.start_ns, line.end_ns, stopped.ravel())))
    begins, ends = edges[:-1], edges[1:]
    at = np.searchsorted(line.start_ns, begins, side="right") - 1
    label = np.where(begins < line.end_ns[at], line.label[at], idle)
    wait = np.searchsorted(stopped[:, 0], begins, side="right") - 1
    working = np.ones(len(begins), dtype=np.bool_)
    if len(stopped):
        working = (wait < 0) | (begins >= stopped[np.maximum(wait, 0), 1])
    inside = working & (begins >= line.start_ns[0]) & (ends <= line.end_ns[-1])
    return iter(list(zip(begins[inside].tolist(), ends[inside].tolist(), label[inside].tolist(), strict=True)))


def _issues(waited: Sequence[Stop], stopped: iv.Intervals) -> Iterator[_Event]:
    for number, stop in enumerate(sorted(waited, key=lambda stop: stop.call.start_ns)):
        began = _wait_around(stopped, stop.entered_ns)
        # Entered while the main line waited for another one: by another thread, so it need not wait as well.
        yield (began, 1, number, Issue(stop.key, stop.entered_ns - began))


def _waits(waited: Sequence[Stop], stopped: iv.Intervals) -> Iterator[_Event]:
    for stop in waited:
        yield (_wait_around(stopped, stop.start_ns), 2, stop.done_ns, Wait(stop.key))


def _ends(steps: Sequence[RankStep], stopped: iv.Intervals) -> Iterator[_Event]:
    for step in steps:
        yield (_wait_around(stopped, step.end_ns), 0, 0, StepEnd(step.step))


def _wait_around(stopped: iv.Intervals, time_ns: int) -> int:
    """The start of the wait that contains ``time_ns``; ``time_ns`` itself where there is none."""
    at = int(np.searchsorted(stopped[:, 0], time_ns, side="right")) - 1
    if at >= 0 and stopped[at, 0] < time_ns < stopped[at, 1]:
        return int(stopped[at, 0])
    return time_ns


# -- wire --------------------------------------------------------------------------------------------------------------
#
# How long each collective was on the wire, without its time in the queue behind others of its group.


class Meeting(Struct, frozen=True):
    """One collective across the ranks: when each rank entered it and when it was done there. ``call``: any rank's."""

    key: Key
    call: CollectiveCall
    start_ns: Mapping[int, int]
    done_ns: Mapping[int, int]

    @property
    def arrival_ns(self) -> int:
        return max(self.start_ns.values())

    @property
    def first_done_ns(self) -> int:
        return min(self.done_ns.values())


def transfers(meetings: Iterable[Meeting], latency_overlaps: bool) -> list[Collective]:
    """The collectives, each with the transfer that makes it end in the replay when it ended in the run.

    Collectives of one group follow each other on a rank's wire. ``latency_overlaps``: only their bytes
    do; gloo works at two collectives of a group at a time, NCCL's kernels share a stream.
    """
    ordered = sorted(meetings, key=lambda m: (m.arrival_ns, m.first_done_ns, m.key))
    queue = _queues(ordered)
    latency = _latencies(ordered, queue) if latency_overlaps else {}
    collectives = []
    for meeting in ordered:
        call, free = meeting.call, queue[meeting.key]
        after_arrival = meeting.first_done_ns - meeting.arrival_ns
        shared = latency.get(call.group, 0)
        transfer = max(0, min(after_arrival, meeting.first_done_ns - free + shared))
        collectives.append(
            Collective(
                key=meeting.key,
                op=call.op,
                group=call.group,
                bytes=call.bytes,
                dtype=call.dtype,
                step=-1,
                transfer_ns=transfer,
                tail_ns={rank: done - meeting.first_done_ns for rank, done in meeting.done_ns.items()},
                latency_ns=min(shared, transfer),
            )
        )
    return collectives


def _queues(ordered: Iterable[Meeting]) -> dict[Key, int]:
    """For each collective, when the wires of its ranks were done with earlier collectives."""
    free: dict[tuple[int, str], int] = {}
    queue = {}
    for meeting in ordered:
        wires = [(rank, meeting.call.group) for rank in meeting.start_ns]
        queue[meeting.key] = max(free.get(wire, 0) for wire in wires)
        for wire in wires:
            free[wire] = max(free.get(wire, 0), meeting.done_ns[wire[0]])
    return queue


def _latencies(ordered: Iterable[Meeting], queue: Mapping[Key, int]) -> dict[str, int]:
    """By group, the median transfer of the smallest size that did not queue: an upper bound of the latency."""
    alone: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for meeting in ordered:
        if meeting.call.bytes > 0 and queue[meeting.key] <= meeting.arrival_ns:
            sizes = alone[meeting.call.group]
            sizes[meeting.call.bytes].append(max(0, meeting.first_done_ns - meeting.arrival_ns))
    return {group: int(np.median(sizes[min(sizes)])) for group, sizes in alone.items()}


_PHASES = (Detail.FORWARD, Detail.BACKWARD, Detail.OPTIMIZER)


def build(attribution: Attribution, tables: Tables) -> Program | Refusal:
    """The steps that count, as a program; or why they cannot be replayed."""
    refusal = _refusal(attribution, tables)
    if refusal:
        return Refusal(refusal)
    gloo = not tables.on_device
    runs = _consecutive(attribution)
    if not runs:
        return Refusal("no step that counts was recorded on all ranks")
    program = Program(tuple(_stretch(run, gloo) for run in runs), gloo)
    calls = [call for step in attribution.rank_steps for call in step.collectives]
    alone = _alone(program.collectives(), {call.group: call.group_size for call in calls})
    if alone > REPLAY.unmatched_communication_share:
        return Refusal(f"for {alone:.0%} of the communication only one rank's part is known")
    return program


def _refusal(attribution: Attribution, tables: Tables) -> str:
    if not attribution.comm_known:
        return "communication runs on the device, and no profiler window was recorded"
    others = [axis for axis, size in attribution.axes.mesh.items() if size > 1 and not is_data(axis)]
    if others:
        words = " and ".join(axis_words(axis) for axis in others)
        return f"the run is {words}, and the replay supports data parallelism only"
    if any(call.op in P2P_OPS for step in attribution.rank_steps for call in step.collectives):
        return "ranks send messages to each other, and the replay supports collectives of whole groups only"
    if tables.missing:
        were, them = ("was", "it") if len(tables.missing) == 1 else ("were", "them")
        return f"{rank_ranges(tables.missing)} {were} not recorded, so the waiting for {them} is unknown"
    if len(attribution.ranks) > 1 and (not attribution.aligned or attribution.untied):
        return "the ranks' clocks could not be aligned, so waiting and transfer cannot be separated"
    return ""


def _consecutive(attribution: Attribution) -> list[dict[int, list[RankStep]]]:
    """Runs of consecutive usable steps that every rank has: rank to its steps. For a large job the newest steps."""
    by_step: dict[int, dict[int, RankStep]] = defaultdict(dict)
    for step in attribution.rank_steps:
        by_step[step.step][step.rank] = step
    stretches: list[dict[int, list[RankStep]]] = []
    before = None
    most = max(1, REPLAY.most_replayed_rank_steps // max(1, len(attribution.ranks)))
    for account in attribution.usable[-most:]:
        members = by_step[account.step]
        if set(members) != set(attribution.ranks) or account.dur_ns <= 0:
            continue
        if before is None or account.step != before + 1:
            stretches.append({rank: [] for rank in members})
        for rank, step in members.items():
            stretches[-1][rank].append(step)
        before = account.step
    return stretches


def _stretch(run: Mapping[int, Sequence[RankStep]], gloo: bool) -> Stretch:
    lines = {rank: Timeline(steps) for rank, steps in run.items()}
    waited = _split_unsynchronised({rank: _stops(lines[rank], steps, gloo) for rank, steps in run.items()})
    collectives = {c.key: c for c in transfers(_meetings(waited), latency_overlaps=gloo)}
    known: dict[Key, Collective] = {}
    for rank in sorted(run):
        for collective in labelled(_placed(collectives, waited[rank], lines[rank], run[rank])):
            known.setdefault(collective.key, collective)
    return Stretch(
        steps=tuple(step.step for step in next(iter(run.values()))),
        begin_ns={rank: steps[0].begin_ns for rank, steps in run.items()},
        end_ns={rank: tuple(step.end_ns for step in steps) for rank, steps in run.items()},
        lines={rank: operations(lines[rank], waited[rank], run[rank]) for rank in run},
        collectives=known,
    )


def _stops(line: Timeline, steps: Sequence[RankStep], gloo: bool) -> list[Stop]:
    """The stops of the stretch: neither done before it began, nor entered after it ended; cut where it began."""
    begin, end = int(line.start_ns[0]), int(line.end_ns[-1])
    waited = stops(line, [step.end_ns for step in steps])
    waited = [stop.after(begin) for stop in waited if stop.done_ns > begin and stop.entered_ns < end]
    return waited if gloo else queued(waited)


def _split_unsynchronised(waited: Mapping[int, list[Stop]]) -> dict[int, list[Stop]]:
    """The same, but collectives in which ranks do not wait for all others (a broadcast's root leaves at once) get a key
    of their own on each rank."""
    meetings = {meeting.key: meeting for meeting in _meetings(waited)}
    free = {
        key
        for key, meeting in meetings.items()
        if key[2] not in SYNCHRONISING and meeting.first_done_ns < meeting.arrival_ns
    }
    return {rank: [s.alone(rank) if s.key in free else s for s in of_rank] for rank, of_rank in waited.items()}


def _meetings(waited: Mapping[int, list[Stop]]) -> list[Meeting]:
    by_key: dict[Key, dict[int, Stop]] = defaultdict(dict)
    for rank, of_rank in waited.items():
        for stop in of_rank:
            by_key[stop.key].setdefault(rank, stop)
    return [
        Meeting(
            key,
            next(iter(members.values())).call,
            {rank: stop.entered_ns for rank, stop in members.items()},
            {rank: stop.done_ns for rank, stop in members.items()},
        )
        for key, members in by_key.items()
    ]


def _placed(
    collectives: Mapping[Key, Collective], waited: Sequence[Stop], line: Timeline, steps: Sequence[RankStep]
) -> list[Placed]:
    """One rank's collectives in the order in which it entered them, each with its step, phase and micro-batch."""
    begins = np.array([step.begin_ns for step in steps])
    details, kinds = details_of(line.label), kinds_of(line.label)
    phased = np.isin(details, _PHASES)
    marks = np.flatnonzero(phased | (kinds == Kind.DATA))
    passes = np.flatnonzero(phased)
    # A forward after a backward begins the next micro-batch; DDP enters no collective in it.
    next_batch = (details[passes][1:] == Detail.FORWARD) & (details[passes][:-1] == Detail.BACKWARD)
    batches = np.concatenate(([0], np.cumsum(next_batch)))

    def micro_batch(segment: int, begin_ns: int) -> int:
        """Index of the micro-batch that the segment belongs to, from 0 in the step that begins then."""
        last = int(np.searchsorted(passes, segment, side="right")) - 1
        first = int(np.searchsorted(line.start_ns[passes], begin_ns, side="left"))
        return int(batches[last] - batches[first]) if first <= last else 0

    placed = []
    for stop in sorted(waited, key=lambda stop: stop.call.start_ns):
        start = max(stop.call.start_ns, int(begins[0]))
        step = steps[max(0, int(np.searchsorted(begins, start, side="right")) - 1)]
        at = int(np.searchsorted(line.start_ns[marks], start, side="right")) - 1
        phase = Detail.NONE
        if at < 0 or line.start_ns[marks[at]] < step.begin_ns or not phased[marks[at]]:
            # No phase has begun since the step began or the batch came: take the next phase.
            at = next((i for i in range(at + 1, len(marks)) if phased[marks[i]]), at)
        if at >= 0 and step.begin_ns <= line.start_ns[marks[at]] < step.end_ns and phased[marks[at]]:
            phase = Detail(int(details[marks[at]]))
        batch = micro_batch(int(marks[at]), step.begin_ns) if at >= 0 else 0
        placed.append(Placed(replace(collectives[stop.key], step=step.step, micro_batch=batch), phase))
    return placed


def _alone(collectives: Sequence[Collective], size_of: Mapping[str, int]) -> float:
    """Fraction of the transfers in calls of groups of several ranks of which only one rank's part is known."""
    total = sum(c.transfer_ns for c in collectives)
    alone = sum(c.transfer_ns for c in collectives if len(c.ranks) == 1 and size_of.get(c.group, 1) > 1)
    return alone / total if total else 0.0


# -- prediction --------------------------------------------------------------------------------------------------------


class Prediction(Struct, frozen=True):
    """``gain_ns_per_step``: (low, likely, high); all 0 where ``refused`` gives the reason for no prediction.
    ``step_ns``: the measured mean step. ``assumptions``: a sentence each."""

    gain_ns_per_step: tuple[int, int, int]
    step_ns: int
    replay_error: float
    assumptions: tuple[str, ...] = ()
    refused: str | None = None

    @property
    def expected_ns_per_step(self) -> tuple[int, int, int]:
        """(low, likely, high) of a measured gain: includes what the model leaves out and how much equal runs differ."""
        low, likely, high = self.gain_ns_per_step
        if not any(self.gain_ns_per_step):
            return self.gain_ns_per_step
        beyond = float(np.hypot(REPLAY.error_of_step * self.step_ns, REPLAY.error_of_gain * likely))
        return round(low - beyond), likely, round(high + beyond)


class Baseline(Struct, frozen=True, eq=False):
    """A run ready for predictions: replayed unmodified, its collectives' costs fitted."""

    program: Program
    costs: Costs
    replayed: Replayed
    error: float

    @property
    def step_ns(self) -> int:
        return int(measured_durations(self.program).mean())


def baseline(attribution: Attribution, tables: Tables) -> Baseline | Refusal:
    """The run's program, costs and replay, from which every prediction starts; made once."""
    program = build(attribution, tables)
    if isinstance(program, Refusal):
        return program
    try:
        replayed = replay(program)
    except StuckError as stuck:
        return Refusal(f"the run cannot be replayed: {stuck}")
    return Baseline(program, fit(program), replayed, replay_error(program, replayed))


def predict(attribution: Attribution, tables: Tables, mutation: Mutation) -> Prediction:
    base = baseline(attribution, tables)
    return Prediction((0, 0, 0), 0, 0.0, (), base.reason) if isinstance(base, Refusal) else gain(base, mutation)


def gain(base: Baseline, mutation: Mutation) -> Prediction:
    """The same from a baseline. The interval covers the uncertainty of the costs, the replay error and the variation of
    the steps."""
    nothing = Prediction((0, 0, 0), base.step_ns, base.error)
    if base.error > REPLAY.replay_error:
        return replace(nothing, refused=f"the replayed steps differ from the measured ones by {base.error:.1%}")
    gains = []
    assumed: tuple[str, ...] = ()
    for level in Level:
        changed = mutation(base.program, base.costs, level)
        if isinstance(changed, Refusal):
            return replace(nothing, refused=changed.reason)
        try:
            gains.append(base.replayed.dur_ns - replay(changed.program).dur_ns)
        except StuckError as stuck:
            return replace(nothing, refused=f"the changed run cannot be replayed: {stuck}")
        assumed = tuple(dict.fromkeys((*assumed, *changed.assumed)))
    means = sorted(float(g.mean()) for g in gains)
    likely = float(gains[Level.LIKELY].mean())
    if not any(g.any() for g in gains):
        return replace(nothing, assumptions=assumed)  # the change has no effect, which is certain
    half = float(np.hypot(base.error * base.step_ns, _sure(gains[Level.LIKELY])))
    return replace(
        nothing, gain_ns_per_step=(round(means[0] - half), round(likely), round(means[-1] + half)), assumptions=assumed
    )


def _sure(series: Series) -> float:
    """Half the width of the 95 % interval of the mean."""
    return 1.96 * float(np.std(series)) / float(np.sqrt(len(series)))
