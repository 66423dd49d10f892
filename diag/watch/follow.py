"""Follows a run: looks at its state every few seconds and at the verdict on its newest steps now and then, and passes
on what is new. Reads records alone, so it costs the training nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.records import NumberRecord
from diag.errors import DiagError
from diag.model.steps import Verdict
from diag.rundir.beats import beat_of
from diag.rundir.lines import read_heartbeat
from diag.rundir.numbers import numbers_of
from diag.rundir.runs import RunState, state_of
from diag.watch.policy import WATCHING

from .events import Event, Events


class Follower:
    """``tell`` is called with each event; ``keep`` with each and the attempt that it is about."""

    def __init__(
        self,
        run: RunLayout,
        tell: Callable[[Event], object],
        keep: Callable[[Event, RunLayout], object] = lambda _event, _attempt: None,
    ) -> None:
        self._run = run
        self._tell, self._keep = tell, keep
        self._events = Events(str(run.root))
        self._root = run.root
        self._size = 0  # of the first rank's summary, when the verdict was looked at
        self._next_s = 0.0  # when the next verdict is due, on the monotonic clock
        self._state: RunState | None = None  # of the last whole look
        self._next_whole_s = 0.0  # when the next one is due at the latest
        self._first: RankLayout | None = None
        self._reached: tuple[object, ...] = ()  # what the first rank had done by then

    def look(self) -> RunState:
        """One round; returns the state of the run. Never raises for what the records hold."""
        newest = self._run.newest()
        if newest.root != self._root:  # the launcher has restarted the training
            self._root, self._events, self._size, self._state = newest.root, Events(str(self._run.root)), 0, None
        state, moved = self._state, self._moved(newest)
        # While the first rank goes on, the training is not stuck; while it is stuck and stands, nothing is new.
        waits = state is not None and state.live and moved != state.stuck and time.monotonic() < self._next_whole_s
        if state is None or not waits:
            began_s = time.process_time()
            state = self._state = state_of(newest.root, with_answer=False)
            took_s = time.process_time() - began_s
            pause_s = min(took_s / WATCHING.most_look_load, WATCHING.quiet_s) if state.stuck else WATCHING.whole_look_s
            self._next_whole_s = time.monotonic() + pause_s
            for event in (*self._events.look(state), *self._events.look_at_numbers(_numbers(newest), state)):
                self._tell(event)
                self._keep(event, newest)
        if state.live and not state.stuck and (judged := self._verdict(newest)) is not None:
            verdict, last_step = judged
            at_verdict = replace(state, last_step=last_step, as_of_ns=time.time_ns())  # the whole look may be older
            for event in self._events.look_at(verdict, at_verdict):
                self._tell(event)
                self._keep(event, newest)
        return state

    def _moved(self, layout: RunLayout) -> bool:
        """Whether the first rank has gone on since the last look. Reads one heartbeat, where a whole look takes as long
        as a hundred."""
        first = self._first_rank(layout)
        heartbeat = read_heartbeat(first)[0] if first is not None else None
        if heartbeat is None:
            return False
        before, self._reached = self._reached, beat_of(heartbeat).reached
        return before != self._reached

    def _first_rank(self, layout: RunLayout) -> RankLayout | None:
        """It is kept: to list a thousand ranks takes as long as to look at them."""
        if self._first is None or self._first.run != layout.root:
            self._first = next(iter(layout.ranks().values()), None)
        return self._first

    def _verdict(self, layout: RunLayout) -> tuple[Verdict, int] | None:
        """The verdict on the newest steps, and the last of them; None if none is due or known."""
        now_s = time.monotonic()
        if now_s < self._next_s or not self._grown(layout):
            return None
        from diag.summaries import open_summaries  # numpy and more: not before there is a summary

        began_s = time.process_time()
        try:
            result = open_summaries(layout.root, most_steps=WATCHING.steps_analysed)
        except DiagError:  # of one rank alone, or of steps that do not count
            return None
        finally:
            # The first one loads code, and two must agree before anything is said.
            took_s = time.process_time() - began_s if self._next_s else 0.0
            self._next_s = now_s + max(WATCHING.verdict_every_s, took_s / WATCHING.most_load)
        return result.verdict, result.attribution.steps[-1].step

    def _grown(self, layout: RunLayout) -> bool:
        try:
            first = self._first_rank(layout)
            size = first.summary.stat().st_size if first is not None else 0
        except OSError:
            return False
        grown, self._size = size > self._size, size
        return grown


def _numbers(layout: RunLayout) -> Mapping[int, Sequence[NumberRecord]]:
    try:
        return numbers_of(layout.ranks())
    except OSError:
        return {}


class FollowThread:
    """A follower in the launcher, from ``start`` to ``stop``. ``is_mine``: of several nodes' launchers, one follows."""

    def __init__(
        self,
        run: RunLayout,
        tell: Callable[[Event], object],
        is_mine: Callable[[], bool],
        keep: Callable[[Event, RunLayout], object],
    ) -> None:
        self._follower = Follower(run, tell, keep)
        self._is_mine = is_mine
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="diag-follow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(WATCHING.answer_s)  # an analysis may be under way

    def _run(self) -> None:
        mine = False
        while not self._stopped.wait(WATCHING.look_s):
            try:
                mine = mine or self._is_mine()
                if mine:
                    self._follower.look()
            except Exception:  # half-written records must not cause a traceback in the training's output
                continue
