"""The fit of the confidence, and how well it is calibrated."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from diag.diagnoses.confidence import told
from diag.model.fits import Fit, Rates
from tests.bench.confidence.cases import FEATURES, Case

Vector = npt.NDArray[np.float64]

RIDGE = 0.3  # of each coefficient, in cases: a feature that few cases have keeps a small one
FREE = 0.75  # the rules bound these cases by no less
SWEEPS = 2000
FOLDS = 10
SURE = 0.9  # from here on, nothing should be wrong
START = 0.1  # of each rate
LEAST_RATE = 1e-4  # an answer that is surely right would have no likelihood of being wrong
BINS = 10
SCRIPT = "python -m tests.bench.confidence --fit"


def fitted(cases: Sequence[Case], day: str) -> Rates:
    """The most likely rates, none below 0, with a ridge. Cases that a rule decides are left out: what is not recorded
    would raise the rates of what is."""
    cases = [case for case in cases if case.most >= FREE]
    x, right = _table(FEATURES, [case.features for case in cases]), [case.right for case in cases]
    truth = np.array(right, dtype=float)

    def step(at: int, rates: Vector) -> float:
        likely = np.exp(-np.maximum(x @ rates, LEAST_RATE))
        odds = (1 - truth) * likely / (1 - likely)
        slope, curve = float(x[:, at] @ (odds - truth)), float(x[:, at] ** 2 @ (odds / (1 - likely)))
        return max(0.0, _newton(at, rates, slope, curve))

    rates = _swept(step, np.full(x.shape[1], START))
    return Rates(**_described(FEATURES, right, [case.set for case in cases], rates, day, SCRIPT))


def fit_of(
    names: Sequence[str],
    features: Sequence[Mapping[str, float]],
    is_right: Sequence[bool],
    sets: Sequence[str],
    day: str,
    script: str,
) -> Fit:
    """The most likely coefficients of a logistic model, none of them above 0, with a ridge."""
    x, right = _table(names, features), np.array(is_right, dtype=float)

    def step(at: int, coefficients: Vector) -> float:
        likely = 1 / (1 + np.exp(-x @ coefficients))
        moved = _newton(
            at, coefficients, float(x[:, at] @ (right - likely)), float(x[:, at] ** 2 @ (likely * (1 - likely)))
        )
        return moved if at == 0 else min(0.0, moved)

    coefficients = _swept(step, np.zeros(x.shape[1]))
    return Fit(**_described(names, is_right, sets, coefficients, day, script))


def _table(names: Sequence[str], features: Sequence[Mapping[str, float]]) -> Vector:
    return np.array([[1.0, *(of_case[name] for name in names)] for of_case in features])


def _newton(at: int, values: Vector, slope: float, curve: float) -> float:
    """The value there after a step of Newton's. The intercept, the first, has no ridge."""
    ridge = RIDGE if at else 0.0
    curve += ridge
    return float(values[at] + ((slope - ridge * values[at]) / curve if curve else 0.0))


def _swept(step: Callable[[int, Vector], float], values: Vector) -> Vector:
    """A value at a time, until none moves. Both likelihoods are concave."""
    for _ in range(SWEEPS):
        before = values.copy()
        for at in range(len(values)):
            values[at] = step(at, values)
        if np.abs(values - before).max() < 1e-7:
            break
    return values


def _described(
    names: Sequence[str], right: Sequence[bool], sets: Sequence[str], values: Vector, day: str, script: str
) -> dict[str, Any]:
    return {
        "fitted": day,
        "script": script,
        "cases": len(right),
        "right": sum(right),
        "sets": dict(sorted(Counter(sets).items())),
        "ridge": RIDGE,
        "intercept": round(float(values[0]), 4),
        "coefficients": {name: round(float(c), 4) + 0.0 for name, c in zip(names, values[1:], strict=True)},
    }


def encoded(model: Fit) -> bytes:
    return msgspec.json.format(msgspec.json.encode(model), indent=1) + b"\n"


def confidence(case: Case, model: Fit) -> float:
    """As ``diag.diagnoses.confidence.weighed`` gives it."""
    return round(told(model.probability(case.features), case.most), 2)


def cross_validated(cases: Sequence[Case]) -> list[float]:
    """The confidence of each case by a fit on nine tenths of the others: no row of the grid, and no plan of a run of
    records, is on both sides."""
    fold = [zlib.crc32(_kind(case).encode()) % FOLDS for case in cases]
    fits = [fitted([case for case, of in zip(cases, fold, strict=True) if of != at], "") for at in range(FOLDS)]
    return [confidence(case, fits[of]) for case, of in zip(cases, fold, strict=True)]


def _kind(case: Case) -> str:
    """What a case is a variant of: the row of the grid, which collectors and sizes do not change; else itself."""
    _, row, number = case.name.split("/")
    planted = row in ("records", "summaries", "devices", "samples")
    return row + number if planted else row.removeprefix("dev-").removeprefix("rec-")


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


def surely_wrong(cases: Sequence[Case], model: Fit) -> list[Case]:
    return [case for case in cases if not case.right and confidence(case, model) >= SURE]


def today() -> str:
    return date.today().isoformat()
