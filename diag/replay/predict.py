"""What a change would gain: the run replayed as it was and as it would be, and how sure the difference is."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diag.model.steps import Attribution
from diag.replay.build import build
from diag.replay.costs import Costs, Level, fit
from diag.replay.engine import Replayed, Series, StuckError, measured_durations, replay, replay_error
from diag.replay.mutations import Mutation
from diag.replay.program import Collective, Program, Refusal, with_collectives
from diag.rundir.run import Tables

MAX_ERROR = 0.05  # of the unmodified replay: above it nothing is predicted (science.md 4.3)
# How far measured gains lie beyond the interval of the costs, parts of the step and of the gain: with both, 35 of 36
# real changes are inside; 17 without (tests/bench/PREDICTIONS.md).
STEP_ERROR = 0.05
GAIN_ERROR = 0.1


class Prediction(Struct, frozen=True):
    """``gain_ns_per_step``: (low, likely, high); all 0 where ``refused`` says why there is none. ``step_ns``: the mean
    step as measured. ``assumptions``: what the change took for granted, a sentence each."""

    gain_ns_per_step: tuple[int, int, int]
    step_ns: int
    replay_error: float
    assumptions: tuple[str, ...] = ()
    refused: str | None = None

    @property
    def expected_ns_per_step(self) -> tuple[int, int, int]:
        """(low, likely, high) for a measurement: what the model leaves out, and what equal runs differ by, on top."""
        low, likely, high = self.gain_ns_per_step
        if not any(self.gain_ns_per_step):
            return self.gain_ns_per_step
        beyond = float(np.hypot(STEP_ERROR * self.step_ns, GAIN_ERROR * likely))
        return round(low - beyond), likely, round(high + beyond)


class Baseline(Struct, frozen=True, eq=False):
    """A run ready for predictions: replayed unmodified, its collectives' costs fitted."""

    program: Program
    costs: Costs
    replayed: Replayed
    error: float

    @property
    def step_ns(self) -> int:
        return int(measured_durations(self.program).mean())


def baseline(attribution: Attribution, tables: Tables) -> Baseline | Refusal:
    """The run's program, costs and replay: what every prediction starts from, made once."""
    program = build(attribution, tables)
    if isinstance(program, Refusal):
        return program
    try:
        replayed = replay(program)
    except StuckError as stuck:
        return Refusal(f"the run cannot be replayed: {stuck}")
    return Baseline(program, fit(program), replayed, replay_error(program, replayed))


def predict(attribution: Attribution, tables: Tables, mutation: Mutation) -> Prediction:
    """What the change gains per step."""
    found = baseline(attribution, tables)
    return Prediction((0, 0, 0), 0, 0.0, (), found.reason) if isinstance(found, Refusal) else gain(found, mutation)


def gain(base: Baseline, mutation: Mutation) -> Prediction:
    """The same from a baseline. The interval spans the costs' own, the replay error and the steps' variation."""
    nothing = Prediction((0, 0, 0), base.step_ns, base.error)
    if base.error > MAX_ERROR:
        return replace(nothing, refused=f"the replay misses the measured steps by {base.error:.1%}")
    gains = []
    assumed: tuple[str, ...] = ()
    for level in Level:
        changed = mutation(base.program, base.costs, level)
        if isinstance(changed, Refusal):
            return replace(nothing, refused=changed.reason)
        try:
            gains.append(base.replayed.dur_ns - replay(changed.program).dur_ns)
        except StuckError as stuck:
            return replace(nothing, refused=f"the changed run cannot be replayed: {stuck}")
        assumed = tuple(dict.fromkeys((*assumed, *changed.assumed)))
    means = sorted(float(g.mean()) for g in gains)
    likely = float(gains[Level.LIKELY].mean())
    if not any(g.any() for g in gains):
        return replace(nothing, assumptions=assumed)  # a change that changes nothing: this much is sure
    half = float(np.hypot(base.error * base.step_ns, _sure(gains[Level.LIKELY])))
    return replace(
        nothing, gain_ns_per_step=(round(means[0] - half), round(likely), round(means[-1] + half)), assumptions=assumed
    )


def _sure(series: Series) -> float:
    """Half the width of the 95 % interval of the mean."""
    return 1.96 * float(np.std(series)) / float(np.sqrt(len(series)))


def fitted_error(base: Baseline) -> float:
    """The replay error with every transfer from the fitted curves in place of the measured one: what the costs miss."""

    def fitted(collective: Collective) -> Collective:
        transfer = base.costs.of(collective, Level.LIKELY)
        return replace(collective, transfer_ns=transfer, latency_ns=min(collective.latency_ns, transfer))

    program = with_collectives(base.program, fitted)
    return replay_error(base.program, replay(program))
