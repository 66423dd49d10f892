"""Reads the program off the account of a run: who worked how long, entered what, and waited for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from diag.account.match import SYNCHRONISING, Key
from diag.account.timeline import Timeline, details_of, kinds_of
from diag.model.axes import axis_words, is_data
from diag.model.steps import Attribution, Detail, Kind, RankStep
from diag.replay.line import operations
from diag.replay.program import Collective, Program, Refusal, Stretch
from diag.replay.units import Placed, labelled
from diag.replay.waits import Stop, queued, stops
from diag.replay.wire import Meeting, transfers
from diag.rundir.run import Tables, rank_ranges
from diag.traces.comm_names import P2P_OPS

_PHASES = (Detail.FORWARD, Detail.BACKWARD, Detail.OPTIMIZER)
# Steps times ranks that are replayed: ten steps of a thousand ranks say what a change gains as well as forty do, in a
# quarter of the time (15 s instead of 56).
_MOST_RANK_STEPS = 10_240
_MAX_ALONE = 0.05  # of the communication in calls of which no other rank's part is known


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
    if alone > _MAX_ALONE:
        return Refusal(f"of {alone:.0%} of the communication only one rank's part is known")
    return program


def _refusal(attribution: Attribution, tables: Tables) -> str:
    if not attribution.comm_known:
        return "the communication runs on the device, and no profiler window was recorded"
    others = [axis for axis, size in attribution.axes.mesh.items() if size > 1 and not is_data(axis)]
    if others:
        words = " and ".join(axis_words(axis) for axis in others)
        return f"the run is {words}, and the replay knows data parallelism only"
    if any(call.op in P2P_OPS for step in attribution.rank_steps for call in step.collectives):
        return "ranks send to each other, and the replay knows collectives of whole groups only"
    if tables.missing:
        return f"not recorded: {rank_ranges(tables.missing)}, so who waited for it is not known"
    if len(attribution.ranks) > 1 and (not attribution.aligned or attribution.untied):
        return "the ranks' clocks could not be aligned, so waiting and transfer cannot be told apart"
    return ""


def _consecutive(attribution: Attribution) -> list[dict[int, list[RankStep]]]:
    """Runs of consecutive usable steps that every rank has: rank to its steps. Of a large job the newest steps."""
    by_step: dict[int, dict[int, RankStep]] = defaultdict(dict)
    for step in attribution.rank_steps:
        by_step[step.step][step.rank] = step
    found: list[dict[int, list[RankStep]]] = []
    before = None
    most = max(1, _MOST_RANK_STEPS // max(1, len(attribution.ranks)))
    for account in attribution.usable[-most:]:
        members = by_step[account.step]
        if set(members) != set(attribution.ranks) or account.dur_ns <= 0:
            continue
        if before is None or account.step != before + 1:
            found.append({rank: [] for rank in members})
        for rank, step in members.items():
            found[-1][rank].append(step)
        before = account.step
    return found


def _stretch(run: Mapping[int, Sequence[RankStep]], gloo: bool) -> Stretch:
    lines = {rank: Timeline(steps) for rank, steps in run.items()}
    waited = _told_apart({rank: _stops(lines[rank], steps, gloo) for rank, steps in run.items()})
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
    """Of the stretch: neither done before it began, nor entered after it ended; cut where it began."""
    begin, end = int(line.start_ns[0]), int(line.end_ns[-1])
    found = stops(line, [step.end_ns for step in steps])
    found = [stop.after(begin) for stop in found if stop.done_ns > begin and stop.entered_ns < end]
    return found if gloo else queued(found)


def _told_apart(waited: Mapping[int, list[Stop]]) -> dict[int, list[Stop]]:
    """The same, but collectives in which nobody waits for everybody (a broadcast's root leaves at once) are each rank's
    own affair, with a key of its own on each."""
    met = {meeting.key: meeting for meeting in _meetings(waited)}
    free = {
        key
        for key, meeting in met.items()
        if key[2] not in SYNCHRONISING and meeting.first_done_ns < meeting.arrival_ns
    }
    return {rank: [s.alone(rank) if s.key in free else s for s in own] for rank, own in waited.items()}


def _meetings(waited: Mapping[int, list[Stop]]) -> list[Meeting]:
    """The collectives across the ranks."""
    found: dict[Key, dict[int, Stop]] = defaultdict(dict)
    for rank, own in waited.items():
        for stop in own:
            found[stop.key].setdefault(rank, stop)
    return [
        Meeting(
            key,
            next(iter(members.values())).call,
            {rank: stop.entered_ns for rank, stop in members.items()},
            {rank: stop.done_ns for rank, stop in members.items()},
        )
        for key, members in found.items()
    ]


def _placed(
    collectives: Mapping[Key, Collective], own: Sequence[Stop], line: Timeline, steps: Sequence[RankStep]
) -> list[Placed]:
    """One rank's collectives in the order in which it entered them, each with its step, phase and micro-batch."""
    begins = np.array([step.begin_ns for step in steps])
    details, kinds = details_of(line.label), kinds_of(line.label)
    phased = np.isin(details, _PHASES)
    marks = np.flatnonzero(phased | (kinds == Kind.DATA))
    passes = np.flatnonzero(phased)
    # A forward after a backward begins the next micro-batch; DDP enters nothing in it.
    again = (details[passes][1:] == Detail.FORWARD) & (details[passes][:-1] == Detail.BACKWARD)
    batches = np.concatenate(([0], np.cumsum(again)))

    def micro_batch(segment: int, begin_ns: int) -> int:
        """Of the pass that the segment belongs to, from 0 in the step that begins then."""
        last = int(np.searchsorted(passes, segment, side="right")) - 1
        first = int(np.searchsorted(line.start_ns[passes], begin_ns, side="left"))
        return int(batches[last] - batches[first]) if first <= last else 0

    found = []
    for stop in sorted(own, key=lambda stop: stop.call.start_ns):
        start = max(stop.call.start_ns, int(begins[0]))
        step = steps[max(0, int(np.searchsorted(begins, start, side="right")) - 1)]
        at = int(np.searchsorted(line.start_ns[marks], start, side="right")) - 1
        phase = Detail.NONE
        if at < 0 or line.start_ns[marks[at]] < step.begin_ns or not phased[marks[at]]:
            # Nothing has begun since the step did, or since the batch came: what comes next has.
            at = next((i for i in range(at + 1, len(marks)) if phased[marks[i]]), at)
        if at >= 0 and step.begin_ns <= line.start_ns[marks[at]] < step.end_ns and phased[marks[at]]:
            phase = Detail(int(details[marks[at]]))
        batch = micro_batch(int(marks[at]), step.begin_ns) if at >= 0 else 0
        found.append(Placed(replace(collectives[stop.key], step=step.step, micro_batch=batch), phase))
    return found


def _alone(collectives: Sequence[Collective], size_of: Mapping[str, int]) -> float:
    """Part of the transfers in calls of a group of several of which only one rank's part is known."""
    total = sum(c.transfer_ns for c in collectives)
    alone = sum(c.transfer_ns for c in collectives if len(c.ranks) == 1 and size_of.get(c.group, 1) > 1)
    return alone / total if total else 0.0
