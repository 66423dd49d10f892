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


class Incident(Struct, frozen=True):
    """Something that cost time, from ``first`` to ``last`` step. ``kind``: "slow", "stalled" (one step, or the time
    before it), "stuck" (until the attempt ended) or "restart". ``lost_ns``: time that it cost the training;
    ``lost_hours``: that of all ranks. ``cause``, ``ranks`` and ``hosts``: as of ``Change``. ``goes_on``: it has not
    ended. ``attempt``: in which it was; a restart is in the one that it began."""

    kind: str
    first: int
    last: int
    begin_unix_ns: int | None
    end_unix_ns: int | None
    lost_ns: int
    lost_hours: float
    cause: str = ""
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    goes_on: bool = False
    attempt: int = 0


class KeptSteps(Struct, frozen=True):
    """Steps around an incident, from ``first`` to ``last``, of which all records were kept. ``why``: "stalled",
    "verdict" (it changed), "stuck" or "restart"."""

    first: int
    last: int
    why: str
    begin_unix_ns: int | None
    end_unix_ns: int | None


class Goodput(Struct, frozen=True):
    """Where the time of a training went, in nanoseconds of the wall clock, by the clock of one rank. All but
    ``wall_ns`` add up to it. ``other``: between steps and after the last one, and steps that a profiler made longer.
    ``notes``: what is counted by an assumption."""

    wall_ns: int
    new_steps: int = 0
    repeated_steps: int = 0
    initialisation: int = 0
    checkpoints: int = 0
    evaluation: int = 0
    stalls: int = 0
    restarts: int = 0
    other: int = 0
    notes: tuple[str, ...] = ()

    @property
    def parts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__struct_fields__ if name not in ("wall_ns", "notes")}

    @property
    def share(self) -> float:
        """The fraction of the wall time that became new steps."""
        return self.new_steps / self.wall_ns if self.wall_ns else 0.0


class Restart(Struct, frozen=True):
    """Attempt ``number`` began again. ``down_ns``: from the last step of the attempt before to its first step.
    ``resumed_at``: the first step that it trained, by the numbers of the attempt before; ``repeated``: how many of its
    steps had been trained before, in ``repeated_ns``. ``basis``: where that is known from. ``ended``: how the attempt
    before ended."""

    number: int
    unix_ns: int
    down_ns: int
    resumed_at: int
    repeated: int
    repeated_ns: int
    basis: str
    ended: str = ""


class Origin(Struct, frozen=True):
    """Of which training a run is a part, as its manifest says. ``training``: the first run of it; ``resumed_step``: the
    first step after the checkpoint that it went on with, None where it is not known; ``job``: of the launcher, and
    ``scheduled``: of the scheduler, "" where none is named; ``command``: without the folder for the records."""

    training: str = ""
    resumed_step: int | None = None
    job: str = ""
    scheduled: str = ""
    command: tuple[str, ...] = ()


class History(Struct, frozen=True):
    """Of one attempt of a run. ``number``: 0, or that of the restart. ``rank``: whose steps the stretches are of; None
    without any."""

    path: str
    ranks: int
    rank: int | None
    stretches: tuple[Stretch, ...]
    changes: tuple[Change, ...]
    number: int = 0
    goodput: Goodput | None = None  # None without a clock
    incidents: tuple[Incident, ...] = ()
    on_device: bool = False
    begin_unix_ns: int | None = None  # when it was started
    end_unix_ns: int | None = None  # its last sign
    saved: int | None = None  # the last step with a checkpoint
    ended: str = ""  # how, in a word; "" while it trains
    hosts: tuple[str, ...] = ()  # all of them
    culprit_hosts: tuple[str, ...] = ()  # by the verdict of the attempt
    origin: Origin = Origin()
    kept: tuple[KeptSteps, ...] = ()  # in order of steps

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


class Life(Struct, frozen=True):
    """Of a job: all of its attempts. ``incidents`` are in order of time, with the restarts."""

    attempts: tuple[History, ...]
    goodput: Goodput | None
    incidents: tuple[Incident, ...]
    restarts: tuple[Restart, ...]


class FaultyHost(Struct, frozen=True):
    """A host that was at fault in several runs: ``runs``, of the ``took_part`` with other hosts in which it was.
    ``lost_hours``: of all ranks, in incidents because of its ranks."""

    host: str
    runs: tuple[str, ...]
    took_part: int
    lost_hours: float
