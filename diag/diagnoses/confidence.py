"""How sure an answer is: the part of such answers that is right, by a model that was fitted on cases with a known truth
(docs/concepts/confidence.md).

Each feature is a reason for doubt, 0 where there is none, which makes the answer wrong at a rate of its own; the rates
add. ``confidence.json`` has them, and ``tests/bench/confidence`` the cases and the script that fits them. What no case
can teach, because the evidence is not in the records at all, is a matter of logic: a few named rules bound the
probability. What is nearly sure is told from what is sure: an answer is at 0.9 or more only where the model says
``CONFIDENCE.sure_from`` or more.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from msgspec import Struct
from msgspec.structs import asdict

from diag.decoding import json_decoder
from diag.diagnoses.policy import CONFIDENCE
from diag.model import Doubt
from diag.model.fits import Rates


class Features(Struct, frozen=True, kw_only=True):
    """Reasons for doubt, each from 0 (none) to 1. Ratios are squared: half a doubt makes a quarter of the errors."""

    noise: float  # error of the largest share over itself plus the distance to the next threshold, squared
    close_cause: float  # the next finding of the same class over the one that the answer names, squared; 0 without one
    one_or_all: float  # what the other explanation of late ranks, one rank or all, costs over this one, squared
    mixed: float  # 1: two classes cost nearly as much, and the answer names both
    unseen_waits: float  # fraction of ranks not recorded, where the answer is about time in collectives
    open_waits: float  # 1: and the answer itself cannot tell the waiting for them from the transfer
    phases_mixed: float  # 1: the answer rests on durations of the hosts' phases, and these contain communication
    unseen_pauses: float  # 1: and on these alone, and says that a rank computes longer, as a paused one would seem to
    hosts_next: float  # part of the cost that the hosts' own work would take in its place, squared
    clock: float  # uncertainty of the ranks' clocks over the time that the answer is about


NO_DOUBT = Features(**dict.fromkeys(Features.__struct_fields__, 0.0))


class Rule(Struct, frozen=True):
    """A bound of the confidence that follows from what the records can show at all."""

    name: str
    most: float


@cache
def fit() -> Rates:
    """The fitted model."""
    return json_decoder(Rates).decode(files("diag.diagnoses").joinpath("confidence.json").read_bytes())


def told(fitted: float, most: float = 1.0) -> float:
    """The confidence that is told for the model's probability, at most ``most``."""
    return min(fitted, most, CONFIDENCE.at_most if fitted >= CONFIDENCE.sure_from else CONFIDENCE.unless_sure)


def weighed(features: Features, rules: tuple[Rule, ...]) -> tuple[float, tuple[Doubt, ...]]:
    """The confidence, and what lowered it, the largest first: by how much the model's probability would be higher."""
    model, values = fit(), asdict(features)
    fitted = model.probability(values)
    confidence = told(fitted, min((rule.most for rule in rules), default=1.0))
    doubts = [
        Doubt(name, round(value, 4), model.probability({**values, name: 0.0}) - fitted)
        for name, value in values.items()
    ]
    doubts += [Doubt(rule.name, rule.most, min(fitted, CONFIDENCE.at_most) - rule.most) for rule in rules]
    listed = sorted((doubt for doubt in doubts if doubt.by >= CONFIDENCE.least_told), key=lambda doubt: -doubt.by)
    return round(confidence, 2), tuple(Doubt(doubt.name, doubt.value, round(doubt.by, 2)) for doubt in listed)
