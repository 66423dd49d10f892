"""Probabilities that were fitted on cases with a known truth: models of named reasons for doubt.

Each feature is a reason for doubt, 0 where there is none, and more doubt never makes an answer surer. The coefficients
are data, with the cases and the script that fits them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp

from msgspec import Struct


class Fit(Struct, frozen=True, kw_only=True):
    """A logistic model. ``coefficients``: by feature, none above 0. ``cases``, ``right``: what it was fitted on, and
    ``sets`` how many cases of each set."""

    fitted: str
    script: str
    cases: int
    right: int
    sets: dict[str, int]
    ridge: float
    intercept: float
    coefficients: dict[str, float]

    def probability(self, features: Mapping[str, float]) -> float:
        score = self.intercept + sum(coefficient * features[name] for name, coefficient in self.coefficients.items())
        return 1 / (1 + exp(-score))


class Rates(Fit, frozen=True, kw_only=True):
    """A log-linear binomial model: each doubt makes an answer wrong by itself, so their probabilities of not doing so
    multiply. ``coefficients``: rates by feature, none below 0."""

    def probability(self, features: Mapping[str, float]) -> float:
        rate = self.intercept + sum(coefficient * features[name] for name, coefficient in self.coefficients.items())
        return exp(-rate)
