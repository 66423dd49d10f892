"""The fit of the confidence, and how well it is calibrated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date

import msgspec
import numpy as np
import numpy.typing as npt

from diag.diagnoses.policy import CONFIDENCE
from diag.model.fits import Fit
from tests.bench.confidence.cases import FEATURES, Case

Vector = npt.NDArray[np.float64]

RIDGE = 0.3  # of each coefficient, in cases: a feature that few cases have keeps a small one
FREE = 0.75  # no rule bounds these cases by less
SWEEPS = 2000
BINS = 10
SCRIPT = "python -m tests.bench.confidence --fit"


def fitted(cases: Sequence[Case], day: str) -> Fit:
    """Cases that a rule decides are left out: what is not recorded would lower the coefficients of what is."""
    cases = [case for case in cases if case.bound >= FREE]
    sets = [case.set for case in cases]
    return fit_of(FEATURES, [case.features for case in cases], [case.right for case in cases], sets, day, SCRIPT)


def fit_of(
    names: Sequence[str],
    features: Sequence[Mapping[str, float]],
    is_right: Sequence[bool],
    sets: Sequence[str],
    day: str,
    script: str,
) -> Fit:
    """The most likely coefficients, none of them above 0, with a ridge: Newton's steps, a coefficient at a time."""
    x = np.array([[1.0, *(of_case[name] for name in names)] for of_case in features])
    right = np.array([float(one) for one in is_right])
    coefficients = np.zeros(x.shape[1])
    ridge = np.array([0.0, *[RIDGE] * len(names)])
    for _ in range(SWEEPS):
        before = coefficients.copy()
        for at in range(len(coefficients)):
            likely = 1 / (1 + np.exp(-x @ coefficients))
            slope = x[:, at] @ (right - likely) - ridge[at] * coefficients[at]
            curve = x[:, at] ** 2 @ (likely * (1 - likely)) + ridge[at]
            moved = coefficients[at] + slope / curve if curve else 0.0
            coefficients[at] = moved if at == 0 else min(0.0, moved)
        if np.abs(coefficients - before).max() < 1e-7:
            break
    return Fit(
        fitted=day,
        script=script,
        cases=len(right),
        right=int(right.sum()),
        sets=dict(sorted(Counter(sets).items())),
        ridge=RIDGE,
        intercept=round(float(coefficients[0]), 4),
        coefficients={name: round(float(c), 4) + 0.0 for name, c in zip(names, coefficients[1:], strict=True)},
    )


def encoded(model: Fit) -> bytes:
    return msgspec.json.format(msgspec.json.encode(model), indent=1) + b"\n"


def confidence(case: Case, model: Fit) -> float:
    """As ``diag.diagnoses.confidence.weighed`` gives it."""
    return round(min(model.probability(case.features), CONFIDENCE.at_most, case.most), 2)


def calibration_error(said: Sequence[float], right: Sequence[bool]) -> float:
    """The expected calibration error: the distance between the mean confidence and the part that was right, over tenths
    of the confidence, weighted by answers."""
    return sum(count * abs(mean - part) for _, count, mean, part in bins(said, right)) / max(1, len(said))


def error_by_chance(said: Sequence[float], draws: int = 1000) -> tuple[float, float]:
    """The calibration error of answers that are right exactly as often as they say: few answers in a tenth are right
    more or less often by chance. Its mean over so many draws, and what one draw in twenty exceeds."""
    drawn = np.random.default_rng(0)
    errors = [calibration_error(said, (drawn.random(len(said)) < np.array(said)).tolist()) for _ in range(draws)]
    return float(np.mean(errors)), float(np.percentile(errors, 95))


def bins(said: Sequence[float], right: Sequence[bool]) -> list[tuple[str, int, float, float]]:
    """For each tenth of the confidence: its name, answers, their mean confidence, and the part that was right."""
    of = np.array([min(BINS - 1, int(round(one * 100) // BINS)) for one in said])
    told, truth = np.array(said), np.array(right, dtype=float)
    return [
        (
            f"{at / BINS:.1f} to {(at + 1) / BINS:.1f}",
            int(n),
            float(told[of == at].mean()),
            float(truth[of == at].mean()),
        )
        for at in range(BINS)
        if (n := (of == at).sum())
    ]


def surely_wrong(cases: Sequence[Case], model: Fit, sure: float = 0.9) -> list[Case]:
    return [case for case in cases if not case.right and confidence(case, model) >= sure]


def today() -> str:
    return date.today().isoformat()
