"""How sure an answer is: the part of such answers that is right, by a model that was fitted on cases with a known truth
(docs/concepts/confidence.md).

A logistic model of named features gives the probability. ``confidence.json`` has its coefficients, and
``tests/bench/confidence`` the cases and the script that fits them. Each feature is a reason for doubt: 0 where there is
none, and no coefficient is positive, so that more doubt never makes an answer surer. What no case can teach, because
the evidence is not in the records at all, is a matter of logic: a few named rules bound the probability.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from diag.diagnoses.policy import CONFIDENCE
from diag.model.fits import Fit
from diag.model.steps import Doubt


class Features(Struct, frozen=True, kw_only=True):
    """Reasons for doubt, each from 0 (none) to 1."""

    few_steps: float  # one over the root of the number of counted steps
    noise: float  # half-width of the largest share's 95 % interval over itself plus the distance to such an edge
    close_cause: float  # the next finding of the same class over the one that the answer names; 0 where it names none
    one_or_all: float  # what the waiting for late ranks says for the other explanation, one rank or all, over this one
    second_class: float  # the second largest share over the largest, where it is worth a warning, too; else 0
    unseen_waits: float  # root of the fraction of ranks not recorded, where the answer is about time in collectives
    phases_alone: float  # 1: the answer rests on the durations of the hosts' phases alone, as from their summaries
    phases_mixed: float  # 1: and these contain communication
    unseen_pauses: float  # 1: and it says that a rank computes longer, as a paused rank would seem to
    clock: float  # uncertainty of the ranks' clocks over the time that the answer is about


NO_DOUBT = Features(**dict.fromkeys(Features.__struct_fields__, 0.0))


class Rule(Struct, frozen=True):
    """A bound of the confidence that follows from what the records can show at all. ``fitted``: a feature says it, too,
    and the fit has its cases."""

    name: str
    most: float
    fitted: bool = False


@cache
def fit() -> Fit:
    """The fitted model."""
    return msgspec.json.decode(files("diag.diagnoses").joinpath("confidence.json").read_bytes(), type=Fit)


def weighed(features: Features, rules: tuple[Rule, ...]) -> tuple[float, tuple[Doubt, ...]]:
    """The confidence, and what lowered it, the largest first: by how much it would be higher without each."""
    model, values = fit(), asdict(features)
    fitted = model.probability(values)
    confidence = min([fitted, CONFIDENCE.at_most, *(rule.most for rule in rules)])
    doubts = [
        Doubt(name, round(value, 4), model.probability({**values, name: 0.0}) - fitted)
        for name, value in values.items()
    ]
    doubts += [Doubt(rule.name, rule.most, min(fitted, CONFIDENCE.at_most) - rule.most) for rule in rules]
    told = sorted((doubt for doubt in doubts if doubt.by >= CONFIDENCE.least_told), key=lambda doubt: -doubt.by)
    return round(confidence, 2), tuple(Doubt(doubt.name, doubt.value, round(doubt.by, 2)) for doubt in told)
