"""The life of a run: how long its steps took over time, when that changed, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Stretch(Struct, frozen=True):
    """Steps of one rank that are known together, from ``first`` to ``last``; ``steps``: how many of them were recorded.
    One step, where each is known; else a sum over several. ``begin_unix_ns``, ``end_unix_ns``: None without a clock.
    Times are means a step in nanoseconds; the parts are those of ``diag.model.steps.Parts``, None where they are not
    known. ``longest_ns``: of the steps."""

    first: int
    last: int
    steps: int
    begin_unix_ns: int | None
    end_unix_ns: int | None
    step_ns: float
    longest_ns: float
    parts: Mapping[str, float] | None = None

    @property
    def resolution(self) -> str:
        """How well the steps are known."""
        return "each step" if self.steps == 1 else f"sums over {self.steps:,} steps"


class Change(Struct, frozen=True):
    """From ``step`` on, for ``steps`` steps up to ``last``, a step takes ``after_ns`` instead of ``before_ns``, without
    evaluations and checkpoints. ``unix_ns``: when, None without a clock; ``precision``: by how many steps the place may
    be off. ``cause``: the cost that makes the difference, in words, "" if it is not known. ``ranks`` and ``hosts``: at
    fault for it, () if it is no rank in particular. ``basis``: what the cause rests on."""

    step: int
    last: int
    unix_ns: int | None
    precision: int
    before_ns: float
    after_ns: float
    cause: str = ""
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    basis: str = ""

    @property
    def steps(self) -> int:
        return self.last + 1 - self.step

    @property
    def slower(self) -> bool:
        return self.after_ns > self.before_ns

    @property
    def by(self) -> float:
        """The relative change of the step time."""
        return self.after_ns / self.before_ns - 1 if self.before_ns else 0.0


class History(Struct, frozen=True):
    """Of one attempt of a run: ``number`` 0, or that of the launcher's restart. ``rank``: whose steps the stretches
    are of; None without any. ``now``: the last change, if the run is still at its level."""

    path: str
    ranks: int
    rank: int | None
    stretches: tuple[Stretch, ...]
    changes: tuple[Change, ...]
    number: int = 0

    @property
    def now(self) -> Change | None:
        return self.changes[-1] if self.changes else None

    @property
    def resolutions(self) -> tuple[tuple[int, int, int], ...]:
        """(steps in a stretch, first step, last step) of consecutive stretches of one resolution."""
        found: list[tuple[int, int, int]] = []
        for stretch in self.stretches:
            if found and found[-1][0] == stretch.steps:
                found[-1] = (stretch.steps, found[-1][1], stretch.last)
            else:
                found.append((stretch.steps, stretch.first, stretch.last))
        return tuple(found)
