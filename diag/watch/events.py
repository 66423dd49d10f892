"""What somebody is told about a training: that it is stuck, that its verdict changed, and that it is over. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, to_builtins

from diag.collectors.records import NumberRecord
from diag.model.steps import Bottleneck, Severity, Verdict
from diag.rundir.numbers import first_odd
from diag.rundir.runs import RunState
from diag.rundir.state_words import behind_ranks
from diag.rundir.states import State
from diag.watch.policy import WATCHING
from diag.words.formatting import NBSP, elapsed
from diag.words.places import in_command, shown

ENDED, _GOES_ON = "ended", "stuck-over"


class Level(StrEnum):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"  # something is over


class Event(Struct, frozen=True):
    """``kind``: "stuck", "verdict", "not-finite" or "ended", with "-over" where it is over. ``text``: one sentence,
    which says it all; ``ranks``: at fault. ``step``: the last one that ended, None if there is none."""

    kind: str
    level: Level
    text: str
    run: str
    step: int | None
    ranks: tuple[int, ...]
    unix_ns: int

    @property
    def over(self) -> bool:
        return self.level is Level.INFO

    @property
    def goes_on(self) -> bool:
        """Whether the training goes on after a standstill: what was gathered in it is of no use any more."""
        return self.kind == _GOES_ON

    def to_dict(self) -> dict[str, Any]:
        content: dict[str, Any] = to_builtins(self)
        return content


_ENDED = {
    State.FINISHED: (Level.INFO, "The training has ended"),
    State.FAILED: (Level.CRITICAL, "The training failed"),
    State.HUNG: (Level.CRITICAL, "The training hung and was ended"),
    State.STOPPED: (Level.WARNING, "The training was stopped by a signal"),
    State.UNCLOSED: (Level.CRITICAL, "The training has no recorded end, and nothing of it is left"),
    State.UNKNOWN: (Level.WARNING, "The training sends no sign of life, and its hosts cannot be seen from here"),
}


class Events:
    """Compares each look at one run with those before; says each thing once, and when it is over."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._stuck_ns: int | None = None  # since when, while it is stuck
        self._ended: State | None = None
        self._not_finite = False  # whether a loss that is not finite was told
        self._verdict: tuple[str, tuple[int, ...]] | None = None  # the one that was told, while it holds
        self._candidate: tuple[str, tuple[int, ...]] | None = None  # of the last look at the verdict

    def look(self, state: RunState) -> list[Event]:
        """What the state of the run shows that it did not show before."""
        now_ns = state.as_of_ns
        events = []
        if state.stuck and self._stuck_ns is None:
            self._stuck_ns = state.standstill.since_unix_ns if state.standstill is not None else now_ns
            ranks = tuple(rank.rank for rank in behind_ranks(state.judged))
            events.append(self._event("stuck", Level.CRITICAL, _with_command(state.headline, state), state, ranks))
        elif not state.stuck and self._stuck_ns is not None:
            if state.live:
                after = f" after {elapsed(max(0, now_ns - self._stuck_ns))} without a step" if self._stuck_ns else ""
                text = f"The training goes on{after}."
                events.append(self._event(_GOES_ON, Level.INFO, text, state, ()))
            self._stuck_ns = None
        if state.state in _ENDED and self._ended is not state.state:
            level, words = _ENDED[state.state]
            code = f" with exit code {state.exit_code}" if state.exit_code else ""
            text = f"{words}{code}." if not state.headline else f"{words}. {state.headline}"
            text = text if level is Level.INFO else _with_command(text, state, "triage")
            events.append(self._event(ENDED, level, text, state, ()))
        self._ended = state.state if state.state in _ENDED else None
        return events

    def look_at_numbers(self, numbers: Mapping[int, Iterable[NumberRecord]], state: RunState) -> list[Event]:
        """The first loss or gradient norm that is not finite, once."""
        odd = first_odd(numbers, finite=False)
        if odd is None or self._not_finite:
            return []
        self._not_finite = True
        text = _with_command(f"{odd.words}.", state)
        return [self._event("not-finite", Level.CRITICAL, text, state, odd.ranks)]

    def look_at(self, verdict: Verdict, state: RunState) -> list[Event]:
        """What the verdict on the newest steps shows. It must hold in two looks: one window of steps may differ by
        chance."""
        bad = (
            verdict.severity is not Severity.HEALTHY
            and verdict.bottleneck is not Bottleneck.UNDETERMINED
            and verdict.confidence >= WATCHING.sure
        )
        seen = (verdict.cause, tuple(sorted(verdict.culprit_ranks))) if bad else None
        stable, self._candidate = seen == self._candidate, seen
        if not stable or seen == self._verdict:
            return []
        before, self._verdict = self._verdict, seen
        if seen is None:
            return [self._event("verdict-over", Level.INFO, f"That is over: {verdict.headline}", state, ())]
        level = Level.CRITICAL if verdict.severity is Severity.CRITICAL else Level.WARNING
        changed = "The verdict has changed: " if before is not None else ""
        text = _with_command(f"{changed}{verdict.headline}", state)
        return [self._event("verdict", level, text, state, seen[1])]

    def _event(self, kind: str, level: Level, text: str, state: RunState, ranks: tuple[int, ...]) -> Event:
        return Event(kind, level, text.replace(NBSP, " "), shown(self._run), state.last_step, ranks, state.as_of_ns)


def _with_command(text: str, state: RunState, command: str = "analyze") -> str:
    return f"{text} diag {command} {in_command(str(state.path))}"


def line_of(event: Event) -> str:
    """``step 8,120: The training is stuck: ...``, for a log."""
    return f"step {event.step:,}: {event.text}" if event.step is not None else event.text
