"""The launcher's thread that reads the heartbeats once a second, gathers evidence in time, and ends a hung training,
or only says that it hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from diag.collectors.layout import RunLayout, run_of
from diag.collectors.reading import read_object
from diag.collectors.records import CRASH, HANG
from diag.hang.rundir.heartbeat import Beat, beat_of
from diag.words.formatting import counted, listing, spaced

from .hang_gather import gather, take_back
from .hang_rules import Judgement, Limits, State, Watch, judged, observed
from .workers import Worker, end, workers_of

INTERVAL_S = 1.0
GRACE_S = 5.0  # between SIGTERM and SIGKILL
# Ranks of other nodes are looked at when those of this one have stood still for this share of the limit: with 64 nodes
# on shared storage, 64 launchers would else read 512 files a second each.
FAR_SHARE = 0.5

Say = Callable[[str], None]


@dataclass(frozen=True)
class Hang:
    """A training that was found hung, or that failed while it was about to be."""

    still_s: float
    limit_s: float
    waiting: tuple[int, ...]
    away: tuple[tuple[int, str], ...]
    ended_by_diag: bool

    @classmethod
    def of(cls, judgement: Judgement, ended_by_diag: bool) -> Hang:
        return cls(judgement.still_s, judgement.limit_s, judgement.waiting, judgement.away, ended_by_diag)


class Monitor:
    """Watches one run from ``start`` to ``stop``. ``expected``: ranks that must send heartbeats, those of this node."""

    def __init__(
        self,
        layout: RunLayout,
        limits: Limits,
        say: Say,
        *,
        expected: Callable[[], tuple[Worker, ...]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = INTERVAL_S,
        grace_s: float = GRACE_S,
        ends: bool = True,
    ) -> None:
        self._layout = layout
        self._ends = ends
        self._limits = limits
        self._say = say
        self._workers = expected or (lambda: workers_of(layout))
        self._clock = clock
        self._interval_s = interval_s
        self._grace_s = grace_s
        self._near: frozenset[int] = frozenset()  # ranks of this node; empty until they have started
        self._watch, self._far = Watch(), Watch()
        self._before_failure = Judgement(State.MOVING)
        self._gathered: object = None  # the standstill that evidence was gathered of
        self._said: object = None
        self._requests = 0
        self._gathering = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="diag-monitor", daemon=True)
        self.hang: Hang | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, ended_well: bool = False) -> None:
        """Returns when the thread has ended; of a hang that it is ending, when that is over. ``ended_well``: what was
        gathered in a doubt that passed with the last steps is taken back."""
        self._stopped.set()
        self._thread.join()
        if ended_well and self.hang is None and self._gathered is not None:
            self._gathered = None
            take_back(self._layout)

    def look(self) -> Judgement:
        """One round: reads, judges, gathers; ends the training and keeps ``hang`` when it is one."""
        self._follow()
        now_s = self._clock()
        watch = self._look_around(now_s)
        found = judged(watch, now_s, self._limits)
        failing = any(seen.beat is not None and seen.beat.failed for seen in watch.ranks.values())
        if not failing:
            self._before_failure = found
        if found.state == State.MOVING:
            # Ranks whose collective has timed out move for the last time: what was gathered is all there is.
            if self._gathered is not None and not failing:
                self._gathered = None
                take_back(self._layout)
            return found
        standstill = {rank: seen.since_s for rank, seen in self._watch.ranks.items()}  # of this node
        if self._gathered != standstill:
            self._gathered = standstill
            self._gather(HANG)
        if found.state == State.BUSY and self._said != standstill:
            self._said = standstill
            self._say(busy_words(found))
        if found.state == State.HUNG and not self._ends and self._said != standstill:
            self._said = standstill
            self._say(hang_words(found))
        if found.state == State.HUNG and self._ends and not self._stopped.is_set():
            self._say(hang_words(found))
            self.hang = Hang.of(found, ended_by_diag=True)
            end(self._workers(), self._grace_s)
        return found

    def others_die(self) -> None:
        """A process has failed, and the launcher is about to end the others: what they know is asked for first. Of a
        hang it is being asked for already, or has been: whoever fails now only gives up."""
        if self.failed() is None:
            self._gather(CRASH)
        else:
            with self._gathering:  # until they have answered
                pass

    def failed(self) -> Hang | None:
        """The hang that a training which has failed was in: its own, or the collectives' time-out that came first."""
        if self.hang is None and self._before_failure.state != State.MOVING:
            return Hang.of(self._before_failure, ended_by_diag=False)
        return self.hang

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            if self.look().state == State.HUNG and self._ends:
                return

    def _follow(self) -> None:
        """To where the training is recorded after its launcher has restarted it."""
        newest = self._layout.newest()
        if newest != self._layout:
            self._layout, self._near, self._gathered, self._said = newest, frozenset(), None, None
            self._watch, self._far, self._before_failure = Watch(), Watch(), Judgement(State.MOVING)

    def _gather(self, why: str) -> None:
        with self._gathering:
            self._requests += 1
            gather(self._layout, self._workers(), why, self._requests)

    def _look_around(self, now_s: float) -> Watch:
        """This node's ranks, and those of the others where these stand still."""
        ranks = set(self._layout.ranks())
        if not self._near:
            self._near = frozenset(worker.rank for worker in self._workers())
        near = ranks & self._near or ranks
        self._watch = observed(self._watch, self._beats(near), now_s)
        here = judged(self._watch, now_s, self._limits)
        if near == ranks or here.still_s < FAR_SHARE * self._limits.hang_s:
            self._far = Watch()
            return self._watch
        self._far = observed(self._far, self._beats(ranks - near), now_s)
        return Watch({**self._far.ranks, **self._watch.ranks})

    def _beats(self, ranks: Iterable[int]) -> Mapping[int, Beat | None]:
        return {rank: _beat(self._layout.rank(rank).heartbeat) for rank in ranks}


def _beat(path: Path) -> Beat | None:
    content = read_object(path, run_of(path))
    return beat_of(content) if content else None


def busy_words(found: Judgement) -> str:
    """``rank 1 has been in its checkpoint phase for 24 s, 3 ranks wait for it: it may take 90 s``."""
    ranks = [rank for rank, _ in found.busy]
    phases = " and ".join(dict.fromkeys(phase for _, phase in found.busy))
    return (
        f"{spaced(listing(ranks))} {'is' if len(ranks) == 1 else 'are'} busy with {phases}, "
        f"{spaced(counted(len(found.waiting), 'rank'))} waiting for {found.still_s:.0f} s: "
        f"no hang before {found.limit_s:.0f} s"
    )


def hang_words(found: Judgement) -> str:
    """``hang: nothing has moved for 31 s; ranks 0, 2, 3 wait in a collective, rank 1 is in data``."""
    parts = []
    if found.waiting:
        parts.append(f"{spaced(listing(found.waiting))} wait{'s' if len(found.waiting) == 1 else ''} in a collective")
    parts += [f"rank {rank} is in {phase}" for rank, phase in found.away[:4]]
    if len(found.away) > 4:
        parts.append(f"{len(found.away) - 4} more ranks elsewhere")
    return f"hang: no progress for {found.still_s:.0f} s; {', '.join(parts)}"
