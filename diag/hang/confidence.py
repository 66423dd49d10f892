"""How sure an answer is of its class, and apart from that of who is at fault, as fitted on the first runs of the sets
of public failures (docs/concepts/confidence.md).

``confidence.json`` has the two models, and ``tests/bench/hang_confidence`` the cases and the script that fits them. The
cases are logs in which a line names the failure. Public threads hold few lines of several ranks, so votes of ranks,
ranks that are missing, dumps and records keep the values of their rules, and so does weak evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from msgspec import Struct
from msgspec.structs import asdict

from diag.decoding import json_decoder
from diag.ended.model import Culprit
from diag.hang.policy import HANG_EVIDENCE
from diag.model.fits import Fit


class Doubts(Struct, frozen=True, kw_only=True):
    """Reasons for doubt, each from 0 (none) to 1."""

    line: float  # one less what the decisive line says by itself
    ended: float  # 1: a process ended, and may have been a victim
    no_rank: float  # 1: who is at fault is known by a host, an address or a device only
    several: float  # one less one over the number of culprits


OF_CLASS, OF_CULPRIT = ("line", "ended", "no_rank"), ("line", "no_rank", "several")


class Models(Struct, frozen=True):
    """``confidence.json``."""

    of_class: Fit
    of_culprit: Fit


@cache
def models() -> Models:
    """The fitted models."""
    return json_decoder(Models).decode(files("diag.hang").joinpath("confidence.json").read_bytes())


def doubts_of(of_line: float, ends: bool, culprits: Sequence[Culprit]) -> Doubts:
    """``of_line``: what the evidence says by itself; ``ends``: the class is the end of a process."""
    known = named(culprits)
    return Doubts(
        line=round(1 - of_line, 2),
        ended=float(ends),
        no_rank=float(bool(known) and all(culprit.rank is None for culprit in known)),
        several=round(1 - 1 / max(1, len(known)), 2),
    )


def named(culprits: Sequence[Culprit]) -> list[Culprit]:
    """Those that name somebody or something."""
    return [c for c in culprits if c.rank is not None or c.host or c.gpu is not None or c.peer or c.devices]


def fitted(doubts: Doubts, by_rule: float, culprits: Sequence[Culprit], rivals: bool) -> tuple[float, float | None]:
    """The confidence of the class and of the culprits, None where nobody is named. ``by_rule``: what the rules of the
    evidence give; ``rivals``: another cause, or other ranks, are as likely."""
    bound = bounded(by_rule, with_rivals=rivals)
    values = asdict(doubts)
    of_class = round(min(models().of_class.probability(values), bound), 2)
    if not named(culprits):
        return of_class, None
    # Whoever is at fault is so because of the cause.
    of_culprit = min(models().of_culprit.probability(values), of_class, bounded_culprit(bound, by_rule, doubts))
    return of_class, round(of_culprit, 2)


def bounded(by_rule: float, with_rivals: bool = False) -> float:
    """What logic allows at most: no more than 0.9 of a rule makes an answer sure."""
    bound = HANG_EVIDENCE.confidence_at_most
    if by_rule < HANG_EVIDENCE.names_the_cause:
        bound = HANG_EVIDENCE.unless_the_cause_is_named
    if by_rule <= HANG_EVIDENCE.suggests:
        bound = HANG_EVIDENCE.when_it_suggests
    return min(bound, HANG_EVIDENCE.with_a_rival) if with_rivals else bound


def bounded_culprit(bound: float, by_rule: float, doubts: Doubts) -> float:
    """Of several, nothing shows that each is at fault."""
    if doubts.several:
        return min(bound, by_rule)
    return min(bound, HANG_EVIDENCE.unless_the_cause_is_named) if doubts.no_rank else bound
