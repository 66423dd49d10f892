"""Clues to a hang or a crash in a run directory: collectives that differ, how ranks ended, which ranks stall."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from diag.collectors.records import CHECKPOINT, EVALUATION, HANG
from diag.ended.ends import left_by_itself
from diag.ended.model import Clue, Source
from diag.ended.policy import ENDED
from diag.ended.read import CalledCollective, Rank, Rundir
from diag.events.differs import By, Difference, Known, first_met, who_differs
from diag.events.policy import COLLECTIVES
from diag.events.rows import Call, Event, JobRank
from diag.rundir.beats import Beat, beats_wait
from diag.rundir.state_words import since_words, where_words
from diag.rundir.states import State
from diag.rundir.turns import skipped_by
from diag.words.formatting import begun, listing, spaced

# -- A training that hangs, by the heartbeats that ranks sent when they were asked -------------------------------------

_CLASSES = {CHECKPOINT: "slow_rank_checkpoint", EVALUATION: "slow_rank_eval"}


def clues_of_standstill(run: Rundir) -> list[Clue]:
    """Clues for ranks that are elsewhere while others wait in a collective."""
    asked = run.asked is not None and run.asked[1] == HANG
    if asked and run.asked is not None:
        number = run.asked[0]
        silent = {rank for rank, record in run.ranks.items() if _is_silent(record, number)}
    elif run.stuck and run.judged is not None:
        silent = {rank.rank for rank in run.judged.ranks if rank.state in (State.STUCK, State.UNKNOWN)}
    else:
        return []
    waiting = {rank for rank, record in run.ranks.items() if rank not in silent and _waits(record)}
    away = {rank for rank in run.ranks if rank not in waiting}
    beats = {rank: record.beat for rank, record in run.ranks.items()}
    groups = {rank: record.groups for rank, record in run.ranks.items()}
    if not away:
        return _clues_of_order(run, beats, waiting)
    if not waiting:
        return []
    needed = set(beats_wait(beats, groups, waiting).absent) or away
    if any(record.beat is not None and record.beat.failed for rank, record in run.ranks.items() if rank in needed):
        return []  # it raised: its exception is the clue
    by_class: dict[str, list[int]] = {}
    for rank in sorted(needed):
        by_class.setdefault(_CLASSES.get(_phase(run.ranks[rank]), "missing_rank"), []).append(rank)
    victims = tuple(sorted(waiting))
    return [
        Clue(
            fault_class=fault,
            culprits=tuple(run.ranks[rank].culprit for rank in ranks),
            evidence=(
                *(evidence_of_standstill(run.ranks[rank]) for rank in ranks[:4]),
                evidence_of_standstill(run.ranks[victims[0]]),
            ),
            confidence=ENDED.rank_silent
            if ranks[0] in silent and not run.ranks[ranks[0]].stopped
            else ENDED.rank_behind,
            note=_noted(run, ranks[0], victims, ranks[0] in silent, asked),
            victims=victims,
        )
        for fault, ranks in by_class.items()
    ]


def _clues_of_order(run: Rundir, beats: Mapping[int, Beat | None], waiting: set[int]) -> list[Clue]:
    """A clue for the ranks that have left the order of their calls, where all ranks wait for each other."""
    files = {rank: run.ranks[rank].files for rank in waiting}
    skipped = skipped_by(beats, beats_wait(beats, {}, waiting), files)
    if not skipped:
        return []
    first, call = next(iter(sorted(skipped.items())))
    victims = tuple(sorted(waiting - set(skipped)))
    return [
        Clue(
            fault_class="desync",
            culprits=tuple(run.ranks[rank].culprit for rank in sorted(skipped)),
            evidence=tuple(evidence_of_standstill(run.ranks[rank]) for rank in (*sorted(skipped)[:4], *victims[:1])),
            confidence=COLLECTIVES.differs_from_itself,
            note=f"Rank {first} {call.words}; {_who_waits(run, victims)}{_since(run)}",
            victims=victims,
        )
    ]


def _is_silent(record: Rank, number: int) -> bool:
    """Whether a rank with a heartbeat did not answer. One that failed or is done has sent its last heartbeat."""
    return record.beat is not None and record.answered < number and not record.beat.done and not record.beat.failed


def _waits(record: Rank) -> bool:
    """Whether a rank is in a collective, or was until the collective timed out."""
    if record.beat is None:
        return False
    return "imed out" in record.error if record.beat.failed else record.beat.may_wait


def _phase(record: Rank) -> str:
    return (record.failed_in or record.beat.phase) if record.beat is not None else "setup"


def _noted(run: Rundir, rank: int, victims: tuple[int, ...], silent: bool, asked: bool) -> str:
    record, state, since = run.ranks[rank], run.state_of(rank), _since(run)
    waiting, wait, where = spaced(listing(victims)), _wait(victims), _waits_in(run, victims)
    why = "its process is stopped or swapping, or a thread holds the GIL"
    if record.stopped:
        why = f"a signal or a debugger has stopped its process (`kill -CONT {record.pid}` there lets it go on)"
    if silent and not asked and state is not None:
        return f"Rank {rank} {where_words(state, timed=False)}, while {waiting} {wait} in {where}: {why}{since}"
    if silent:
        return f"Rank {rank} did not answer while {waiting} {wait} in a collective: {why}{since}"
    if record.beat is None:
        return f"Rank {rank} has sent no heartbeat, {waiting} {wait} in a collective{since}"
    if record.beat.done:
        return f"Rank {rank} had finished its training, {waiting} {wait} in a collective that it did not call{since}"
    seconds = (record.beat_ns - record.beat.phase_since_ns) / 1e9 if record.beat.phase_since_ns else 0.0
    span = f", for {seconds:.0f} s" if seconds >= 1 and not since else ""
    return (
        f"Rank {rank} is in its {_phase(record)} phase{span}, and in no collective; {waiting} {wait} in {where}{since}"
    )


def _since(run: Rundir) -> str:
    """A sentence of its own; "" where it is not known. When, not how long: what reads it may be older than the run's
    state, which says how long."""
    judged = run.judged
    return (
        f". {begun(since_words(judged.standstill, timed=False))}" if run.stuck and judged and judged.standstill else ""
    )


def _wait(ranks: Sequence[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def _waits_in(run: Rundir, ranks: Sequence[int]) -> str:
    beat = run.ranks[ranks[0]].beat
    return beat.waits_words if beat is not None else "a collective"


def _who_waits(run: Rundir, ranks: Sequence[int]) -> str:
    return f"{spaced(listing(ranks))} {_wait(ranks)} for it in {_waits_in(run, ranks)}"


def evidence_of_standstill(record: Rank) -> Source:
    beat = record.beat
    if beat is None:
        return Source(record.files.place, 0, f"rank {record.culprit.rank}: no heartbeat.json")
    # PyTorch's recorder numbers the calls in C++ as well: where there are its numbers, answer and figure have them.
    last = [f"#{number} of group {group} called" for group, number in beat.started if not beat.recorder]
    last += [f"#{number} of group {group} finished" for group, number in beat.finished if not beat.recorder]
    last += [
        f"in PyTorch's recorder #{called} of group {group} called, #{done} finished"
        for group, called, done in beat.recorder
    ]
    text = f"rank {record.culprit.rank}: step {beat.step}, phase {beat.phase}, {', '.join(last) or 'no collective yet'}"
    return Source(str(record.files.heartbeat), 0, text)


# -- Calls that differ from those of the other ranks, or from the rank's own previous step -----------------------------
#
# A training calls the same collectives step after step. Where two ranks differ, that call alone does not show which of
# them is wrong; the one that also differs from its own earlier steps is. So this names one rank of two, which a single
# dump or log line cannot. Ranks that ended in C++ (gloo aborts when it receives more than it expects) leave no record
# of their last step: gloo's message states what they expected.

Calls = tuple[CalledCollective, ...]

# gloo's transport: received more bytes than the buffer of this rank's call.
_TOO_LONG = re.compile(r"op\.preamble\.length <= op\.nbytes\. (?P<received>\d+) vs (?P<expected>\d+)")


@dataclass(frozen=True)
class _Odd:
    """Ranks that called ``did`` where the others called ``should``, as their ``place``-th collective of a step."""

    fault_class: str
    ranks: tuple[int, ...]
    step: int
    place: int
    did: CalledCollective | None
    should: CalledCollective | None
    confidence: float
    because: str
    aborted: tuple[int, ...] = ()  # those that gloo aborted: their calls are not recorded


def clues_of_calls(run: Rundir) -> list[Clue]:
    """One clue where the ranks' calls differ; none for a run without trouble."""
    opened = [record.open_step for record in run.ranks.values() if record.open_step is not None]
    if not opened or (run.asked is None and not run.stuck and not any(record.exit for record in run.ranks.values())):
        return []
    odd = _different(run, max(opened)) or _aborted(run, max(opened))
    return [_clue(run, odd)] if odd is not None else []


def _different(run: Rundir, last: int) -> _Odd | None:
    """The first place at which recorded calls differ, in the last step or the one before."""
    for step in (last - 1, last):
        of_step = {
            rank: record.steps[step]
            for rank, record in run.ranks.items()
            if step in record.steps and not (record.open_step == step and left_by_itself(record))
        }
        for group in sorted({call.group for calls in of_step.values() for call in calls}):
            members = {rank: _of_group(calls, group) for rank, calls in of_step.items() if _is_member(run, rank, group)}
            before = {rank: _before(run.ranks[rank], step, group, calls) for rank, calls in members.items()}
            odd = _first_difference(step, members, before) or _alone(run, step, group, members, before)
            if odd is not None:
                return odd
    return None


def _before(record: Rank, step: int, group: str, calls: Calls) -> Calls:
    """The calls of a group in an earlier step of the rank: in the newest one that went as this one does so far, because
    steps may take turns, as where every fifth one logs; otherwise in the step before."""
    earlier = (_of_group(record.steps[at], group) for at in sorted(record.steps, reverse=True) if at < step)
    alike = next((found for found in earlier if _continues(calls, found)), None)
    return alike if alike is not None else _of_group(record.steps.get(step - 1, ()), group)


def _is_member(run: Rundir, rank: int, group: str) -> bool:
    named = [record.groups[group] for record in run.ranks.values() if group in record.groups]
    return rank in named[0] if named else True


def _first_difference(step: int, calls: Mapping[int, Calls], before: Mapping[int, Calls]) -> _Odd | None:
    met = first_met(
        Event(JobRank(rank), place, _call(call))
        for rank, of_rank in calls.items()
        for place, call in enumerate(of_rank)
    )
    if not met:
        return None
    place = met[0].number
    steady = {event.who: _continues(calls[event.who][: place + 1], before[event.who]) for event in met}
    # A whole step, to see whether one call was left out of it.
    usual = [calls[rank] for rank, its_is in steady.items() if its_is] or list(calls.values())
    longest = max((*usual, *before.values()), key=len)
    difference = who_differs(
        met, known=Known(steady), since=lambda rank: _whats(calls[rank][place:]), step=_whats(longest[place:])
    )
    return _odd(step, difference, lambda event: calls[event.who][place]) if difference is not None else None


_BEFORE = JobRank(-1)  # stands for a rank's own step before


def _alone(run: Rundir, step: int, group: str, calls: Mapping[int, Calls], before: Mapping[int, Calls]) -> _Odd | None:
    """For two ranks of which one recorded the step: compares its calls of the group with those of an earlier step.
    Steps differ without a fault, as the first one that logs; where a whole step's calls of the group ended after the
    difference, the other rank had taken part in it. Where the other process is there and left no record of the step,
    that it is silent is what stops the job."""
    if len(calls) != 1 or run.world_size != 2:
        return None
    rank, current = next(iter(calls.items()))
    if any(record.runs for other, record in run.ranks.items() if other != rank):
        return None
    both = {JobRank(rank): current, _BEFORE: before[rank]}
    met = first_met(
        Event(who, place, _call(call)) for who, of_rank in both.items() for place, call in enumerate(of_rank)
    )
    if not met:
        return None
    place = met[0].number
    later = (_of_group(its, group) for at, its in run.ranks[rank].steps.items() if at > step)
    if sum(call.ended for call in chain(current[place + 1 :], *later)) >= len(before[rank]):
        return None
    known = Known({JobRank(rank): False, _BEFORE: True})
    difference = who_differs(
        met, known=known, since=lambda who: _whats(both[who][place:]), step=_whats(before[rank][place:])
    )
    return _odd(step, difference, lambda event: both[event.who][place]) if difference is not None else None


def _odd(step: int, difference: Difference[JobRank], recorded: Callable[[Event[JobRank]], CalledCollective]) -> _Odd:
    because = f"unlike its calls of step {step - 1}" if difference.by is By.HISTORY else difference.by.value
    did, should = recorded(difference.strange), recorded(difference.usual)
    place = difference.usual.number
    return _Odd(difference.fault_class, difference.odd, step, place, did, should, difference.confidence, because)


def _call(call: CalledCollective) -> Call:
    op, size, dtype = call.what
    return Call(op, sizes=size, types=dtype)


def _whats(calls: Calls) -> list[Hashable]:
    return [call.what for call in calls]


def _continues(calls: Sequence[CalledCollective], expected: Sequence[CalledCollective]) -> bool:
    return len(calls) <= len(expected) and all(a.what == b.what for a, b in zip(calls, expected, strict=False))


def _of_group(calls: Calls, group: str) -> Calls:
    return tuple(call for call in calls if call.group == group)


def _aborted(run: Rundir, step: int) -> _Odd | None:
    """Ranks that gloo aborted while all records of the last step agree."""
    aborted = {rank: match for rank, record in run.ranks.items() if (match := _TOO_LONG.search(record.log)) is not None}
    aborted = {rank: match for rank, match in aborted.items() if step not in run.ranks[rank].steps}
    alive = [record for record in run.ranks.values() if step in record.steps]
    if not aborted or not alive:
        return None
    pending = next((call for record in alive for call in record.steps[step] if not call.ended), None)
    sizes = {call.bytes for record in run.ranks.values() for calls in record.steps.values() for call in calls}
    steady = [
        record
        for record in alive
        if step - 1 in record.steps and _continues(record.steps[step], record.steps[step - 1])
    ]
    culprits, classes = [], []
    for rank, match in aborted.items():
        received, expected = int(match["received"]), int(match["expected"])
        # gloo cuts a tensor into segments: the expected one into as many as the one that arrived.
        waits = {call.bytes for record in alive for call in record.steps[step][-2:]}
        cuts = {size // received for size in waits if received and size % received == 0} | {1}
        expected_sizes = {expected * cut for cut in cuts}
        if pending is not None and pending.bytes in expected_sizes:
            continue  # it was in the same call as the others: the data that arrived was wrong
        culprits.append(rank)
        classes.append("desync" if expected_sizes & sizes else "mismatch_shape")
    if not culprits:
        return None
    if len(run.ranks) == 2 and not steady:
        everybody = tuple(run.ranks)
        because = "it is unknown which is wrong"
        return _Odd(
            classes[0], everybody, step, -1, None, pending, COLLECTIVES.differs_openly, because, tuple(culprits)
        )
    because = (
        "no call of the others has the size that it expected"
        if classes[0] == "mismatch_shape"
        else ("the size that it expected is that of another call of the step")
    )
    return _Odd(classes[0], tuple(culprits), step, -1, None, pending, ENDED.by_message, because, tuple(culprits))


def _clue(run: Rundir, odd: _Odd) -> Clue:
    ranks = [run.ranks[rank] for rank in odd.ranks]
    others = [record for rank, record in run.ranks.items() if rank not in odd.ranks]
    return Clue(
        fault_class=odd.fault_class,
        culprits=tuple(record.culprit for record in ranks),
        evidence=tuple(_evidence(record, odd) for record in (*ranks[:4], *others[:1])),
        confidence=odd.confidence,
        note=_note(odd),
        victims=tuple(rank for rank in run.ranks if rank not in odd.ranks),
    )


def _note(odd: _Odd) -> str:
    subject = begun(spaced(listing(odd.aborted or odd.ranks)))
    if odd.did is None:
        where = f", where the others call {odd.should}" if odd.should is not None else ""
        return f"{subject} received more than expected in step {odd.step}{where}; {odd.because}"
    where = f"as collective {odd.place + 1} of step {odd.step}"
    if odd.fault_class == "desync":
        return f"{subject} left out {odd.should} {where} and went on with {odd.did}; {odd.because}"
    return f"{subject} called {odd.did} {where}, others {odd.should}; {odd.because}"


def _evidence(record: Rank, odd: _Odd) -> Source:
    calls = record.steps.get(odd.step)
    if calls is None:
        match = _TOO_LONG.search(record.log)
        text = match[0] if match else "left no record of that step"
        return Source(str(record.files.log), 0, f"rank {record.culprit.rank}: {text}")
    shown = calls[max(0, odd.place - 1) : odd.place + 2] if odd.place >= 0 else calls[-2:]
    words = ", ".join(f"#{call.seq} {call}{'' if call.ended else ' (waits)'}" for call in shown)
    files = record.files
    from_beat = record.open_step == odd.step  # the calls of a step that did not end
    source = files.heartbeat if from_beat else files.collectives
    return Source(str(source), 0, f"rank {record.culprit.rank}, step {odd.step}: … {words}")
