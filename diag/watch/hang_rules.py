"""When a training is called hung: rules on what each rank's successive heartbeats say. Pure; the clock is the caller's.

A rank that waits in a collective for as long as the limit hangs, whatever the others do: the collective's own time-out
would say the same. Three things get more time. Before any rank has finished a step, models are built and compiled.
A rank that announced a checkpoint or an evaluation is busy, and the others wait for it. And where nobody waits in a
collective, all ranks may be at something long that they did not announce.

Only heartbeats that keep coming say that a rank stands still. Where none come any more, the disk may be full, and the
training as well as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from diag.hang.rundir.heartbeat import BUSY_PHASES, Beat

BUSY_TIMES = 3  # the limit of the busy, in limits of a hang
LEAST_SETUP_S = 120.0
DOUBT_SHARE = 0.8  # of the limit: evidence is gathered while everybody still lives
NO_HEARTBEAT = "no heartbeat yet"
HEARD_SHARE = 0.5  # of a standstill: so long heartbeats must have come. An answer can hold them up for seconds

# The process group ends the job itself at its time-out, and what it leaves is worth less: be there before it.
_AHEAD_S = 10.0
_AHEAD_SHARE = 0.2


class State(StrEnum):
    MOVING = "moving"
    DOUBTFUL = "doubtful"  # most of the limit is over: time to gather evidence
    BUSY = "busy"  # some wait for one that is at a checkpoint or an evaluation
    HUNG = "hung"


@dataclass(frozen=True)
class Limits:
    """Seconds without progress."""

    hang_s: float
    setup_s: float
    busy_s: float

    @classmethod
    def of(cls, hang_s: float, collective_timeout_s: float) -> Limits:
        """``hang_s``: what was asked for; a little before the collectives' own time-out, where that is not later."""
        ahead = collective_timeout_s - min(_AHEAD_S, _AHEAD_SHARE * collective_timeout_s)
        hang_s = min(hang_s, ahead)
        return cls(hang_s, max(hang_s, LEAST_SETUP_S), BUSY_TIMES * hang_s)


@dataclass(frozen=True)
class Seen:
    """A rank's last heartbeat by the watcher's clock: when it first said so, and when the last one came that said so.
    ``beat`` of None: none has come."""

    beat: Beat | None
    since_s: float
    heard_s: float

    def says_so(self, now_s: float) -> bool:
        """Whether it is the rank that stands still, and not its heartbeats that stopped coming."""
        return self.beat is not None and self.heard_s - self.since_s >= HEARD_SHARE * (now_s - self.since_s)


@dataclass(frozen=True)
class Watch:
    """What has been seen of all ranks."""

    ranks: Mapping[int, Seen] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """``still_s``: how long nothing that counts has happened; ``limit_s``: how long it may."""

    state: State
    still_s: float = 0.0
    limit_s: float = 0.0
    waiting: tuple[int, ...] = ()  # ranks in a collective
    away: tuple[tuple[int, str], ...] = ()  # the other ranks and their phases

    @property
    def busy(self) -> tuple[tuple[int, str], ...]:
        return tuple((rank, phase) for rank, phase in self.away if phase in BUSY_PHASES)


def observed(watch: Watch, beats: Mapping[int, Beat | None], now_s: float) -> Watch:
    """The watch after a look at the heartbeats. A heartbeat that cannot be read leaves what was seen before."""
    ranks = dict(watch.ranks)
    for rank, beat in beats.items():
        before = ranks.get(rank)
        if before is None:
            ranks[rank] = Seen(beat, now_s, now_s)
        elif beat is not None and (before.beat is None or beat.sent_ns != before.beat.sent_ns):
            stands = before.beat is not None and not beat.moved_since(before.beat)
            ranks[rank] = Seen(beat, before.since_s if stands else now_s, now_s)
    return Watch(ranks)


def judged(watch: Watch, now_s: float, limits: Limits) -> Judgement:
    """What to think of the training now."""
    if not any(seen.beat for seen in watch.ranks.values()):
        return Judgement(State.MOVING)  # no collectors, or all ranks are still joining: that has a time-out of its own
    alive = {rank: seen for rank, seen in watch.ranks.items() if seen.beat is None or not seen.beat.done}
    heard = {rank: seen for rank, seen in sorted(alive.items()) if seen.says_so(now_s)}
    if not heard:
        return Judgement(State.MOVING)
    waiting = tuple(rank for rank, seen in heard.items() if seen.beat is not None and seen.beat.in_collective)
    away = tuple(
        (rank, seen.beat.phase if seen.beat else NO_HEARTBEAT)
        for rank, seen in sorted(alive.items())
        if rank not in waiting
    )
    since = [alive[rank].since_s for rank in waiting]
    still_s = now_s - (min(since) if since else max(seen.since_s for seen in alive.values()))
    busy = any(phase in BUSY_PHASES for _, phase in away)
    trained = any(seen.beat is not None and seen.beat.steps > 0 for seen in watch.ranks.values())
    limit_s = limits.hang_s if trained else limits.setup_s
    if busy or not waiting:
        limit_s = max(limit_s, limits.busy_s)
    found = Judgement(State.MOVING, still_s, limit_s, waiting, away)
    if still_s >= limit_s:
        return _with_state(found, State.HUNG)
    if busy and waiting and still_s >= DOUBT_SHARE * limits.hang_s:
        return _with_state(found, State.BUSY)
    return _with_state(found, State.DOUBTFUL) if still_s >= DOUBT_SHARE * limit_s else found


def _with_state(found: Judgement, state: State) -> Judgement:
    return Judgement(state, found.still_s, found.limit_s, found.waiting, found.away)
