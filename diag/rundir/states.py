"""What a run and each of its ranks is doing, from heartbeats and the ends of the records. The one place that decides.

Stuck: no step for longer than ten seconds and than twenty usual steps, and than this training's own evaluations,
checkpoints and compilations have taken. A rank whose heartbeats stop, or whose training raised, needs no such patience.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, pairwise

from msgspec import Struct

from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.living import is_copied, process_is_stopped, process_runs
from diag.collectors.policy import RECORDING
from diag.collectors.records import CHECKPOINT, EVALUATION, FAILED, Manifest, RankRecord
from diag.events.rows import JobRank
from diag.rundir.policy import SILENCE
from diag.words.formatting import elapsed, listing

from .beats import Beat, beat_of, beats_wait
from .delays import delay_ns
from .lines import (
    LastStep,
    last_steps,
    read_heartbeat,
    read_identity,
)
from .pauses import Pause, longest
from .turns import skipped_by

BUSY_PHASES = (CHECKPOINT, EVALUATION)  # long by nature, and often on one rank alone


class State(StrEnum):
    STARTING = "starting"  # no step has ended
    COMPILING = "compiling"
    TRAINING = "training"
    EVALUATING = "evaluating"
    CHECKPOINTING = "checkpointing"
    SLOW = "slow"
    STUCK = "stuck"
    WAITING = "waiting"  # of a rank: in a collective, for others
    FINISHED = "finished"
    FAILED = "failed"  # with an exit code, or an exception
    STOPPED = "stopped"  # by a signal
    HUNG = "hung"  # and ended by diag
    UNCLOSED = "ended, not closed"  # no recorded end, and nothing of it is left
    UNKNOWN = "unknown"  # silent, on hosts whose processes cannot be seen from here
    RECORDED = "recorded"  # traces of another tool, without the state of the process


LIVE = frozenset(
    {
        State.STARTING, State.COMPILING, State.TRAINING, State.EVALUATING, State.CHECKPOINTING, State.SLOW, State.STUCK,
    }
)  # fmt: skip
_BUSY = {CHECKPOINT: State.CHECKPOINTING, EVALUATION: State.EVALUATING}


class RankState(Struct, frozen=True):
    """One rank. ``step``: under way, -1 before the first; ``phase``: as its heartbeat says; ``in_it_ns``: time in that
    phase, None if unknown; ``silent_ns``: since its last heartbeat. ``waits_in``: its unfinished collective, in words;
    ``waits_for``: the ranks that have not called it. ``line``: the training's own, which it is in: "train.py:57 in
    load". ``blocked_in``: the call to the system in which it has waited for seconds: "flock /data/lock".
    ``skipped``: of ranks that wait for each other, what this one has left out: "has called group 2 without ..."."""

    rank: int
    state: State
    step: int
    phase: str
    in_it_ns: int | None
    silent_ns: int
    waits_in: str = ""
    waits_for: tuple[int, ...] = ()
    raised: str = ""
    line: str = ""
    blocked_in: str = ""
    skipped: str = ""


class Standstill(Struct, frozen=True):
    """Why a training does not make progress, with durations in ns by rank. ``still_ns``: since the last step ended;
    None while steps still end, or without any. ``silent``: since the last heartbeat of a process that sends none any
    more, the longest first. ``raised``: ranks whose training raised, and the exception's name. ``busy``: ranks in a
    checkpoint or an evaluation. ``since_unix_ns``: when the last step ended."""

    still_ns: int | None
    silent: dict[int, int]
    raised: dict[int, str]
    busy: dict[int, str]
    since_unix_ns: int = 0
    last_step: int | None = None

    @property
    def words(self) -> str:
        """``no step for 2 min (rank 1 silent for 2 min)``."""
        reasons = [
            f"rank {rank} silent for {elapsed(ns)}"
            for rank, ns in list(self.silent.items())[: SILENCE.most_ranks_named]
        ]
        if len(self.silent) > SILENCE.most_ranks_named:
            reasons.append(f"{len(self.silent) - SILENCE.most_ranks_named:,} more ranks silent")
        for states in (self.raised, self.busy):
            for state in dict.fromkeys(states.values()):
                in_it = listing(
                    [rank for rank, its_state in states.items() if its_state == state], SILENCE.most_ranks_named
                )
                reasons.append(f"{in_it} {f'raised {state}' if states is self.raised else f'in its {state}'}")
        if self.still_ns is None:
            return ", ".join(reasons)
        still = f"no step for {elapsed(self.still_ns)}"
        return f"{still} ({', '.join(reasons)})" if reasons else still


@dataclass(frozen=True)
class Judged:
    """``ranks``: those whose heartbeats were read: all of them where the run is stuck. ``as_of_ns``: the moment that is
    judged, Unix time: now, or the last sign of a run that left no end. ``was``: the state at that moment, where it is
    not now."""

    state: State
    as_of_ns: int
    was: State | None = None
    standstill: Standstill | None = None
    ranks: tuple[RankState, ...] = ()


@dataclass
class _Rank:
    """What was read of a rank. ``age_ns``: since its last heartbeat."""

    files: RankLayout
    age_ns: int
    beat: Beat | None = None
    copied: bool = False
    steps: list[LastStep] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether its training has not reached its end."""
        return self.beat is not None and not self.beat.done

    @property
    def silent(self) -> bool:
        return self.open and not self.raised and self.age_ns >= SILENCE.least_still_s * 1e9

    @property
    def raised(self) -> str:
        return self.beat.phase.removeprefix(FAILED) if self.beat is not None and self.beat.failed else ""

    @property
    def in_call(self) -> bool:
        """Whether a collective that it called is not known to be finished."""
        return self.open and not self.silent and self.beat is not None and self.beat.may_wait

    @property
    def waits(self) -> bool:
        """Whether it waits in a collective. One whose thread is blocked outside of the job does not, whatever the
        Flight Recorder counts: where two calls end in another order than they began, its last one is the first."""
        return self.in_call and not self.misses

    @property
    def in_phase_ns(self) -> int | None:
        beat = self.beat
        return beat.sent_ns - beat.phase_since_ns + self.age_ns if beat is not None and beat.phase_since_ns else None

    @property
    def moves(self) -> bool:
        """Whether its phases or collectives went on within the last seconds: in a long evaluation, no step ends."""
        if self.beat is None or self.silent or not self.beat.unmoved_since_ns:
            return False
        return self.unmoved_ns < SILENCE.least_still_s * 1e9

    @property
    def unmoved_ns(self) -> int:
        """For how long its phase and its collectives have been the same; 0 if it is not known."""
        beat = self.beat
        since_ns = (beat.unmoved_since_ns or beat.phase_since_ns) if beat is not None else 0
        return beat.sent_ns - since_ns + self.age_ns if beat is not None and since_ns else 0

    @property
    def idle_ns(self) -> int:
        """For how long its training's thread has hardly run; 0 if it runs, or if that is not known."""
        beat = self.beat
        if beat is None or self.silent or not beat.idle_since_ns:
            return 0
        return max(0, beat.sent_ns - beat.idle_since_ns + self.age_ns)

    @property
    def misses(self) -> bool:
        """Whether it is blocked by something outside of the job: no evaluation, no checkpoint takes that long."""
        least_ns = SILENCE.idle_still_s * 1e9
        return self.open and self.beat is not None and self.beat.missing and self.idle_ns >= least_ns

    @property
    def still_ns(self) -> int | None:
        """Since its last step ended. Where its records are behind its heartbeat, as at the end of their budget, since
        the phase that it is in began."""
        if self.beat is None or not self.steps:
            return None
        if self.beat.step > self.steps[-1].step + 1:
            return self.in_phase_ns
        return self.beat.sent_ns - self.steps[-1].end_ns + self.age_ns


def ended_as(manifest: Manifest) -> State | None:
    """How the launcher recorded the end of the run; None without one."""
    if manifest.exit_code is None:
        return None
    if manifest.exit_code == 0:
        return State.FINISHED
    if manifest.hang.get("ended_by_diag"):
        return State.HUNG
    return State.STOPPED if manifest.ended_by.get("signal") else State.FAILED


def judge(
    ranks: Mapping[int, RankLayout],
    manifest: Manifest | None,
    changed: Callable[[], int],
    now_ns: int,
    planned_steps: int | None = None,
) -> Judged:
    """The state of a run and of its ranks. Never raises. ``changed``: returns when a record was last written, Unix ns.

    Cheap while all is well: a look at each heartbeat's time, and the heartbeats and the ends of the steps of a few
    ranks. A run without a recorded end whose heartbeats all stopped long ago lives only if its processes are seen."""
    end = ended_as(manifest) if manifest is not None else None
    if end is not None:
        return Judged(end, changed())
    if ranks:
        now_ns -= delay_ns(RunLayout(next(iter(ranks.values())).run))
    read = _read(ranks, now_ns)
    if manifest is None and not any(rank.beat for rank in read.values()):
        return Judged(State.RECORDED, changed())
    last_sign_ns = max(now_ns - rank.age_ns for rank in read.values()) if read else changed()
    quiet_ns = now_ns - last_sign_ns
    if read and len(read) == len(ranks) and all(not rank.open for rank in read.values() if rank.beat is not None):
        done = [rank for rank in read.values() if rank.beat is not None]
        if done and quiet_ns >= SILENCE.least_still_s * 1e9:  # no launcher records the end of an attached training
            failed = any(rank.raised for rank in done)
            for rank in read.values():
                rank.age_ns -= quiet_ns  # as of the last sign, like all that is said of the run
            return Judged(State.FAILED if failed else State.FINISHED, last_sign_ns, ranks=_states(read))
    if not ranks and quiet_ns < SILENCE.unbegun_s * 1e9:  # attached, and the job is in a queue
        return Judged(State.STARTING, now_ns)
    begun = bool(read) or any(last_steps(files.steps) for files in islice(ranks.values(), 1))
    if quiet_ns < (SILENCE.silent_s if begun else SILENCE.first_silent_s) * 1e9:  # ranks first import their libraries
        return _of_live(ranks, read, now_ns, planned_steps)
    seen = _seen(ranks, last_sign_ns)
    if seen is True and any(rank.beat for rank in read.values()):
        return _of_live(ranks, read, now_ns, planned_steps)
    by_own_clock = _read_by_own_clock(ranks, read)
    signs = [rank.beat.unix_ns for rank in by_own_clock.values() if rank.beat is not None]
    as_of_ns = max(signs, default=last_sign_ns)
    was = _of_live(ranks, by_own_clock, as_of_ns, planned_steps)
    unclear = seen is None and quiet_ns < SILENCE.unclear_s * 1e9
    return Judged(State.UNKNOWN if unclear else State.UNCLOSED, as_of_ns, was.state, was.standstill, was.ranks)


def _read(ranks: Mapping[int, RankLayout], now_ns: int) -> dict[int, _Rank]:
    """The ages of all heartbeats, and the heartbeats of the first ranks and of those that are late."""
    written_ns = {rank: files.written_ns(RankLayout.heartbeat) for rank, files in ranks.items()}
    ages = {rank: now_ns - ns for rank, ns in written_ns.items() if ns is not None}
    read = {rank: _Rank(ranks[rank], max(0, age)) for rank, age in ages.items()}
    late = [rank for rank, age in ages.items() if age >= SILENCE.least_still_s * 1e9]
    for rank in dict.fromkeys([*islice(read, SILENCE.ranks_looked_at), *late[: SILENCE.most_heartbeats_read]]):
        _hear(read[rank], now_ns)
    if any(rank.copied for rank in read.values()):
        _hear_all(ranks, read, now_ns)
    return read


def _read_by_own_clock(ranks: Mapping[int, RankLayout], read: Mapping[int, _Rank]) -> dict[int, _Rank]:
    """Of a run that is over: ages at the last of the heartbeats, by their own clocks. ``read``: those that were read,
    none of which can have changed since."""
    some = dict(islice(ranks.items(), SILENCE.most_heartbeats_read))
    beats = {rank: (read[rank].beat if rank in read else None) or _beat(files) for rank, files in some.items()}
    last = max((beat.unix_ns for beat in beats.values() if beat is not None), default=0)
    return {
        rank: _Rank(some[rank], last - beat.unix_ns if beat is not None else 0, beat) for rank, beat in beats.items()
    }


def _hear(rank: _Rank, now_ns: int) -> None:
    """Reads a rank's heartbeat. Its age is by the rank's clock or the storage's, whichever is later; by the rank's
    alone where the file was copied: then the storage's time is that of the copy. A clock that is ahead says nothing."""
    rank.beat = _beat(rank.files)
    if rank.beat is None:
        return
    by_itself_ns = now_ns - rank.beat.unix_ns
    if by_itself_ns < 0:
        return
    behind_ns = by_itself_ns - rank.age_ns
    if behind_ns > RECORDING.gone_s * 1e9 and (identity := _identity(rank.files)) is not None:
        rank.copied = bool(is_copied(behind_ns, identity.unix_ns, rank.files.written_ns(RankLayout.identity)))
    rank.age_ns = by_itself_ns if rank.copied else min(rank.age_ns, by_itself_ns)


def _beat(files: RankLayout) -> Beat | None:
    heartbeat, _ = read_heartbeat(files)
    return beat_of(heartbeat) if heartbeat is not None else None


def _identity(files: RankLayout) -> RankRecord | None:
    from diag.errors import DiagError

    try:
        return read_identity(files)[0]
    except DiagError:  # in a newer schema
        return None


def _is_stopped(rank: _Rank) -> bool:
    identity = _identity(rank.files)
    return identity is not None and process_is_stopped(identity)


def _seen(ranks: Mapping[int, RankLayout], last_sign_ns: int) -> bool | None:
    """Whether a process of the run is seen on this host; None where all are on others."""
    seen: bool | None = None
    for files in islice(ranks.values(), SILENCE.ranks_looked_at):
        identity = _identity(files)
        runs = process_runs(identity, last_sign_ns) if identity is not None else None
        if runs:
            return True
        seen = runs if seen is None else seen
    return seen


# -- What it means -----------------------------------------------------------------------------------------------------


def _of_live(ranks: Mapping[int, RankLayout], read: dict[int, _Rank], now_ns: int, planned_steps: int | None) -> Judged:
    heard = [rank for rank in read.values() if rank.open]
    for rank in heard[: SILENCE.ranks_looked_at]:
        rank.steps = last_steps(rank.files.steps)
    stills = [still for rank in heard if (still := rank.still_ns) is not None]
    still_ns = min(stills, default=None)
    usual_ns, slower = _usual([rank.steps for rank in heard])
    if still_ns is None or usual_ns is None:
        return _of_first_step(ranks, read, heard, now_ns)
    base_ns = max(SILENCE.least_still_s * 1e9, SILENCE.still_steps * usual_ns)
    last_step = max((rank.steps[-1].step for rank in heard if rank.steps), default=None)
    if still_ns >= SILENCE.least_still_s * 1e9:
        _hear_all(ranks, read, now_ns)
    heard = [rank for rank in read.values() if rank.open]
    silent = [rank for rank in heard if rank.silent]
    busy_phase = next((rank.beat.phase for rank in heard if rank.beat is not None and _is_busy(rank)), None)
    busy = _BUSY[busy_phase] if busy_phase is not None else None
    all_done = last_step is not None and last_step + 1 == planned_steps
    state = busy or (State.SLOW if slower else State.TRAINING)
    if still_ns >= base_ns:
        # Where no rank sends heartbeats, the storage may be the reason.
        some_silent = bool(silent) and (len(silent) < len(heard) or still_ns >= SILENCE.silent_s * 1e9)
        compiles = any(rank.beat is not None and rank.beat.compiles for rank in heard)
        pauses = _pauses(heard)
        if some_silent or _raised(heard, still_ns):
            state = State.STUCK
        elif heard and all(rank.raised for rank in heard):
            pass  # the processes are ending
        elif busy or compiles or all_done:
            known_ns = pauses.of(busy_phase)
            patience_ns = max(base_ns, SILENCE.own_times * known_ns if known_ns else SILENCE.first_busy_s * 1e9)
            state = busy or (State.COMPILING if compiles else State.TRAINING)
            state = State.STUCK if still_ns >= patience_ns else state
        elif _all_blocked(heard):
            state = State.STUCK
        else:
            patience_ns = max(base_ns, SILENCE.own_times * pauses.period_ns)
            if any(rank.moves for rank in heard):
                patience_ns = max(patience_ns, SILENCE.first_busy_s * 1e9)
            elif not any(rank.in_call for rank in heard):  # all may evaluate or save, which nothing announces
                patience_ns = max(patience_ns, SILENCE.first_pause_s * 1e9)
            stuck = still_ns >= patience_ns
            state = State.STUCK if stuck else State.SLOW if still_ns > pauses.period_ns else State.TRAINING
    elif not busy and still_ns >= SILENCE.stall_ns(usual_ns):
        state = State.SLOW if still_ns > _pauses(heard).period_ns else state
    standstill = _standstill(read, still_ns if still_ns >= base_ns else None, now_ns, last_step)
    return Judged(state, now_ns, None, standstill, _states(read, ask_order=state is State.STUCK))


def _of_first_step(ranks: Mapping[int, RankLayout], read: dict[int, _Rank], heard: list[_Rank], now_ns: int) -> Judged:
    """Before two steps have ended nothing shows how long one takes."""
    # Imports and loading a model may keep the GIL, and so the recorder's thread, for a while.
    # One that is seen to be stopped does nothing of that.
    silent = any(rank.age_ns >= SILENCE.first_silent_s * 1e9 or (rank.silent and _is_stopped(rank)) for rank in heard)
    compiles = any(rank.beat is not None and rank.beat.compiles for rank in heard)
    if not heard:  # all have reached their end, or none sends heartbeats
        some = any(rank.beat is not None for rank in read.values())
        some = some or any(last_steps(files.steps) for files in islice(ranks.values(), 1))
        return Judged(State.TRAINING if some else State.STARTING, now_ns, None, None, _states(read))
    still_ns = min((rank.unmoved_ns for rank in heard), default=0)
    # The others wait for one that downloads, reads a checkpoint or prepares the data, often for longer than any step.
    works = not all(rank.waits or rank.misses for rank in heard)
    limit_s = SILENCE.first_work_s if works else SILENCE.first_step_s
    state = State.COMPILING if compiles else State.STARTING
    if silent or _raised(heard, still_ns) or (not compiles and still_ns >= limit_s * 1e9):
        state = State.STUCK
    standstill = _standstill(read, still_ns if state is State.STUCK else None, now_ns, None)
    return Judged(state, now_ns, None, standstill, _states(read))


def _hear_all(ranks: Mapping[int, RankLayout], read: dict[int, _Rank], now_ns: int) -> None:
    for rank in islice(read.values(), SILENCE.most_heartbeats_read):
        if rank.beat is None:
            _hear(rank, now_ns)
    for number in islice(ranks, SILENCE.most_heartbeats_read):  # without a heartbeat
        read.setdefault(number, _Rank(ranks[number], 0))


def _pauses(heard: list[_Rank]) -> Pause:
    """The longest pauses of the first ranks."""
    return longest([rank.files for rank in heard[: SILENCE.ranks_looked_at] if rank.steps])


def _is_busy(rank: _Rank) -> bool:
    return not rank.silent and rank.beat is not None and rank.beat.phase in BUSY_PHASES


def _raised(heard: list[_Rank], still_ns: int) -> bool:
    """Whether ranks whose training raised hold the job up: the others wait for them, or no process ends."""
    raised = sum(bool(rank.raised) for rank in heard)
    least_s = SILENCE.ending_s if raised == len(heard) else SILENCE.least_still_s
    return raised > 0 and still_ns >= least_s * 1e9


def _all_blocked(heard: list[_Rank]) -> bool:
    """Whether something outside of the job blocks ranks, and all others wait in collectives."""
    return any(rank.misses for rank in heard) and all(rank.misses or rank.waits for rank in heard)


def _usual(steps: list[list[LastStep]]) -> tuple[float | None, bool]:
    """The usual time between the ends of two steps, and whether the last ones take much longer; None without two
    steps."""
    most = max(steps, key=len, default=[])
    periods = [b.end_ns - a.end_ns for a, b in pairwise(most) if b.end_ns > a.end_ns]
    if not periods:
        return None, False
    newest, before = periods[-SILENCE.newest_steps :], periods[: -SILENCE.newest_steps]
    if len(before) < SILENCE.newest_steps:
        return statistics.median(periods), False
    usual = statistics.median(before)
    return usual, statistics.median(newest) >= SILENCE.slower * usual


# -- Who waits for whom ------------------------------------------------------------------------------------------------


def _standstill(
    read: Mapping[int, _Rank], still_ns: int | None, now_ns: int, last_step: int | None
) -> Standstill | None:
    least_s = SILENCE.silent_s if still_ns is None else SILENCE.least_still_s
    silent = {
        rank: its.age_ns for rank, its in read.items() if its.open and not its.raised and its.age_ns >= least_s * 1e9
    }
    raised = {rank: its.raised for rank, its in read.items() if its.open and its.raised}
    busy = {rank: its.beat.phase for rank, its in read.items() if its.beat is not None and _is_busy(its)}
    if still_ns is None and not silent:
        return None
    longest_first = dict(sorted(silent.items(), key=lambda entry: -entry[1]))
    since_ns = now_ns - still_ns if still_ns is not None else 0
    return Standstill(still_ns, longest_first, raised, busy, since_ns, last_step)


def _states(read: Mapping[int, _Rank], ask_order: bool = False) -> tuple[RankState, ...]:
    """``ask_order``: whether, if all ranks wait, the records are asked which one left the order of its calls."""
    beats = {rank: its.beat for rank, its in read.items()}
    waiting = {rank for rank, its in read.items() if its.waits}
    waits = beats_wait(beats, {}, waiting)
    awaited = waits.awaited()
    skipped: dict[int, str] = {}
    if ask_order and waiting and all(its.waits for its in read.values() if its.beat is None or its.open):
        files = {rank: its.files for rank, its in read.items()}
        skipped = {rank: call.words for rank, call in skipped_by(beats, waits, files).items()}
    states = []
    for rank, its in sorted(read.items()):
        if its.beat is None:
            if rank in waits.waited_for:
                states.append(RankState(rank, State.UNKNOWN, -1, "", None, its.age_ns))
            continue
        of_rank = _state_of_rank(rank, its, rank in waiting, awaited.get(JobRank(rank), ()), skipped.get(rank, ""))
        states.append(of_rank)
    return tuple(states)


def by_heartbeat(rank: int, files: RankLayout, beat: Beat, as_of_ns: int) -> RankState:
    """The state of a rank that was not judged, by its heartbeat alone. ``as_of_ns``: by its own clock."""
    its = _Rank(files, max(0, as_of_ns - beat.unix_ns), beat)
    return _state_of_rank(rank, its, its.waits, (), "")


def _state_of_rank(rank: int, its: _Rank, waits: bool, awaited: tuple[int, ...], skipped: str) -> RankState:
    beat = its.beat
    assert beat is not None
    if beat.done:
        state = State.FINISHED
    elif its.raised:
        state = State.FAILED
    elif its.silent:
        state = State.STUCK
    elif beat.phase in BUSY_PHASES:
        state = _BUSY[beat.phase]
    elif beat.compiles:
        state = State.COMPILING
    elif waits:
        state = State.WAITING
    else:
        state = State.STARTING if beat.step <= 0 and not beat.steps else State.TRAINING
    return RankState(
        rank, state, beat.step, beat.phase, its.in_phase_ns, its.age_ns, beat.waits_words if waits else "",
        awaited, its.raised, beat.line,
        beat.call if its.idle_ns >= SILENCE.idle_still_s * 1e9 else "", skipped,
    )  # fmt: skip
