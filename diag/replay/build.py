"""Reads the program off the account of a run: who worked how long, entered what, and waited for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from diag.attribution.match import SYNCHRONISING, Key
from diag.attribution.timeline import Timeline, details_of
from diag.ingest.run import Tables, rank_ranges
from diag.model import Attribution, Detail, RankStep
from diag.replay.line import operations
from diag.replay.program import Collective, Program, Refusal, Stretch
from diag.replay.units import Placed, labelled
from diag.replay.waits import Stop, stops
from diag.replay.wire import Meeting, transfers

_PHASES = (Detail.FORWARD, Detail.BACKWARD, Detail.OPTIMIZER)
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
    if tables.missing:
        return f"{rank_ranges(tables.missing)} was not recorded, so who waited for it is not known"
    if len(attribution.ranks) > 1 and (not attribution.aligned or attribution.untied):
        return "the ranks' clocks could not be aligned, so waiting and transfer cannot be told apart"
    return ""


def _consecutive(attribution: Attribution) -> list[dict[int, list[RankStep]]]:
    """Runs of consecutive usable steps that every rank has: rank to its steps."""
    by_step: dict[int, dict[int, RankStep]] = defaultdict(dict)
    for step in attribution.rank_steps:
        by_step[step.step][step.rank] = step
    found: list[dict[int, list[RankStep]]] = []
    before = None
    for account in attribution.usable:
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
    waited = {rank: _inside(stops(line), line) for rank, line in lines.items()}
    collectives = {c.key: c for c in transfers(_meetings(waited), latency_overlaps=gloo)}
    known: dict[Key, Collective] = {}
    for rank in sorted(run):
        for collective in labelled(_placed(collectives, waited[rank], lines[rank], run[rank])):
            known.setdefault(collective.key, collective)
    return Stretch(
        steps=tuple(step.step for step in next(iter(run.values()))),
        begin_ns={rank: steps[0].begin_ns for rank, steps in run.items()},
        end_ns={rank: tuple(step.end_ns for step in steps) for rank, steps in run.items()},
        lines={rank: operations(lines[rank], waited[rank], run[rank], queued=not gloo) for rank in run},
        collectives=known,
    )


def _inside(found: Sequence[Stop], line: Timeline) -> list[Stop]:
    """Of the stretch: neither done before it began, nor entered after it ended; cut where it began."""
    begin, end = int(line.start_ns[0]), int(line.end_ns[-1])
    return [stop.after(begin) for stop in found if stop.done_ns > begin and stop.entered_ns < end]


def _meetings(waited: dict[int, list[Stop]]) -> list[Meeting]:
    """The collectives across the ranks. One in which nobody waits for everybody (a broadcast's root leaves at once) is
    each rank's own affair, and gets a key of its own on each."""
    found: dict[Key, dict[int, Stop]] = defaultdict(dict)
    for rank, own in waited.items():
        for stop in own:
            found[stop.key].setdefault(rank, stop)
    for key, members in list(found.items()):
        last = max(stop.entered_ns for stop in members.values())
        if key[2] not in SYNCHRONISING and min(stop.done_ns for stop in members.values()) < last:
            for rank, stop in found.pop(key).items():
                found[stop.alone(rank).key] = {rank: stop.alone(rank)}
                waited[rank] = [s.alone(rank) if s.key == key else s for s in waited[rank]]
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
    """One rank's collectives in the order in which it entered them, each with its step and phase."""
    begins = np.array([step.begin_ns for step in steps])
    phased = np.flatnonzero(np.isin(details_of(line.label), _PHASES))
    details = details_of(line.label)
    found = []
    for stop in sorted(own, key=lambda stop: stop.entered_ns):
        step = steps[max(0, int(np.searchsorted(begins, stop.entered_ns, side="right")) - 1)]
        at = int(np.searchsorted(line.start_ns[phased], stop.entered_ns, side="right")) - 1
        if at < 0 or line.start_ns[phased[at]] < step.begin_ns:
            at += 1  # entered before anything was computed in this step: it belongs to what comes first
        inside = at < len(phased) and line.start_ns[phased[at]] < step.end_ns
        phase = Detail(int(details[phased[at]])) if inside else Detail.NONE
        found.append(Placed(replace(collectives[stop.key], step=step.step), phase))
    return found


def _alone(collectives: Sequence[Collective], size_of: Mapping[str, int]) -> float:
    """Part of the transfers in calls of a group of several of which only one rank's part is known."""
    total = sum(c.transfer_ns for c in collectives)
    alone = sum(c.transfer_ns for c in collectives if len(c.ranks) == 1 and size_of.get(c.group, 1) > 1)
    return alone / total if total else 0.0
