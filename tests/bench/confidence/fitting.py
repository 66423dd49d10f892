"""The fit of the confidence, and how well it is calibrated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date

import msgspec
import numpy as np
import numpy.typing as npt

from diag.diagnoses.confidence import Fit
from diag.diagnoses.policy import CONFIDENCE
from tests.bench.confidence.cases import FEATURES, Case

Vector = npt.NDArray[np.float64]

RIDGE = 0.3  # of each coefficient, in cases: a feature that few cases have keeps a small one
FREE = 0.75  # no rule bounds these cases by less
SWEEPS = 2000
BINS = 10
SCRIPT = "python -m tests.bench.confidence --fit"


def fitted(cases: Sequence[Case], day: str) -> Fit:
    """The most likely coefficients, none of them above 0, with a ridge: Newton's steps, a coefficient at a time. Cases
    that a rule decides are left out: what is not recorded would lower the coefficients of what is."""
    cases = [case for case in cases if case.bound >= FREE]
    x = np.array([[1.0, *(case.features[name] for name in FEATURES)] for case in cases])
    right = np.array([float(case.right) for case in cases])
    coefficients = np.zeros(x.shape[1])
    ridge = np.array([0.0, *[RIDGE] * len(FEATURES)])
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
        script=SCRIPT,
        cases=len(cases),
        right=int(right.sum()),
        sets=dict(sorted(Counter(case.set for case in cases).items())),
        ridge=RIDGE,
        intercept=round(float(coefficients[0]), 4),
        coefficients={name: round(float(c), 4) + 0.0 for name, c in zip(FEATURES, coefficients[1:], strict=True)},
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
