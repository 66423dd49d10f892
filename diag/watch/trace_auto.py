"""Asks for a profiler window by itself when the verdict over all ranks turns bad: a thread of the launcher.

It rests on the ranks' summaries of their newest steps alone, so it costs the training nothing, and the launcher a
moment every fifty steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from diag.collectors.layout import RunLayout
from diag.collectors.records import TraceAsked
from diag.collectors.settings import CollectorSettings
from diag.errors import DiagError

from .workers import Worker

INTERVAL_S = 2.0
STEPS = 3  # of a window
_STEPS_SEEN = 50  # the newest
_SURE = 0.5  # the least confidence: what the phases say at most, where collectives are not known
_MANY = 512  # ranks: from there on a look takes seconds
_INTERVAL_OF_MANY_S = 60.0
_CULPRITS, _OTHERS = 4, 4  # ranks that are recorded of a large job: without others nothing is slow
_ALL = 16  # ranks of a job that is recorded whole

State = tuple[str, tuple[int, ...]]  # cause, culprits


class AutoTrace:
    """Watches a run from ``start`` to ``stop``. Where a scheduled window shows what the run is like from its begin,
    only a change asks for another. ``workers``: of this launcher; of those of several nodes, that of rank 0 is the
    one."""

    def __init__(
        self,
        layout: RunLayout,
        settings: CollectorSettings,
        say: Callable[[str], None],
        workers: Callable[[], Sequence[Worker]],
    ) -> None:
        self._layout = layout
        self._left = settings.auto_traces
        self._traced = settings.trace
        self._say = say
        self._workers = workers
        self._size = 0  # of the first rank's summary
        self._seen = -1  # the last step that was looked at
        self._known: set[State] = set()  # what a window has been recorded of
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="diag-auto-trace", daemon=True)

    def start(self) -> None:
        if self._left > 0:
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> TraceAsked | None:
        """One round: the request, where something was asked for."""
        if self._left <= 0 or not self._grown() or not self._is_first():
            return None
        from diag.model.steps import Bottleneck, Severity  # numpy and more: not before the first steps are summed up
        from diag.summaries import open_summaries

        from .trace_ask import ask

        try:
            result = open_summaries(self._layout.root, most_steps=_STEPS_SEEN)
        except DiagError:
            return None  # one rank's, so far
        newest = result.attribution.steps[-1].step
        if newest <= self._seen:
            return None
        first, self._seen = self._seen < 0, newest
        verdict = result.verdict
        bad = verdict.severity != Severity.HEALTHY and verdict.bottleneck != Bottleneck.UNDETERMINED
        state = (verdict.cause, tuple(sorted(verdict.culprit_ranks)))
        if not bad or verdict.confidence < _SURE or state in self._known:
            return None
        if first and self._traced:
            self._known.add(state)
            return None
        why = f"automatic: {verdict.headline}"
        try:
            asked = ask(self._layout, STEPS, ranks_to_record(result.attribution.ranks, verdict.culprit_ranks), why)
        except (DiagError, OSError):
            return None  # another window is under way, the run is ending, or no disk is free: the next round sees
        self._known.add(state)
        self._left -= 1
        last = asked.first_step + asked.count - 1
        self._say(f"{verdict.headline} A profiler window of steps {asked.first_step} to {last} is being recorded.")
        return asked

    def _grown(self) -> bool:
        """Whether the first rank has written another line."""
        first = next(iter(self._layout.ranks().values()), None)
        try:
            size = first.summary.stat().st_size if first is not None else 0
        except OSError:
            return False
        grown, self._size = size > self._size, size
        return grown

    def _is_first(self) -> bool:
        return any(worker.rank == 0 for worker in self._workers())

    def _run(self) -> None:
        interval = INTERVAL_S
        while not self._stopped.wait(interval) and self._left > 0:
            ranks = len(self._layout.ranks())
            if ranks > _MANY:
                interval = _INTERVAL_OF_MANY_S
            if ranks <= 1:
                continue
            try:
                self.look()
            except Exception as error:  # analysing what is half written must not show in the training's output
                reason = f"{type(error).__name__}: {error}"
                self._say(f"No more profiler windows are asked for by themselves ({reason}); diag trace asks for one.")
                return


def ranks_to_record(ranks: Sequence[int], culprits: Sequence[int]) -> list[int] | None:
    """All of a small job (None); of a large one the culprits, and some others from all over it to hold them against."""
    if len(ranks) <= _ALL:
        return None
    named = list(culprits[:_CULPRITS])
    rest = [rank for rank in ranks if rank not in culprits] or list(ranks)
    return sorted({*named, *rest[:: max(1, len(rest) // _OTHERS)][:_OTHERS]})
