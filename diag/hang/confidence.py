"""How sure an answer is, and why.

It begins with what the cause's own evidence is worth: 0.9 where a program says what failed, 0.7 for an effect that has
one usual cause, 0.5 for one that has several, and what the rule that found it says of votes and absences. Then it is
multiplied for what speaks against it, and its doubt is multiplied for what speaks for it; it never passes 0.95.

On public threads that nobody who wrote the rules had seen, 29 of 32 answers from 0.9 on were right, 21 of 28 from 0.7
to 0.8, 34 of 45 below: there it is on the low side on purpose, for a wrong answer must not look sure
(tests/bench/REAL_LOGS.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diag.hang.model import Clue
from diag.hang.signatures import CLASSES

MOST = 0.95
_COARSEST = "net_failure"  # says less than every other class of a network
_RIVAL = 0.8
_NOBODY = 0.85
_CONTRADICTED = 0.85
_SUPPORTED = 0.6  # of the doubt is left


@dataclass(frozen=True)
class Confidence:
    value: float
    because: tuple[str, ...]


def confidence_of(cause: Clue, others: Sequence[Clue]) -> Confidence:
    value, because = cause.confidence, [f"{cause.confidence:.2f} from its own evidence"]
    ranks = {c.rank for c in cause.culprits if c.rank is not None}
    if not any(c.rank is not None or c.host for c in cause.culprits):
        value *= _NOBODY
        because.append(f"times {_NOBODY}: nothing ties it to a rank or host")
    rivals = [other for other in others if _rival(cause, other)]
    if rivals:
        value *= _RIVAL
        because.append(f"times {_RIVAL}: {rivals[0].fault_class} could be the cause as well")
    for other in others:
        if other.from_dumps == cause.from_dumps:
            continue
        named = {c.rank for c in other.culprits if c.rank is not None}
        source = "the dumps" if other.from_dumps else "the logs"
        if ranks and named and named <= ranks:
            value = 1 - (1 - value) * _SUPPORTED
            because.append(f"doubt times {_SUPPORTED}: {source} name the same ranks")
            break
        if ranks and named and not named & ranks:
            value *= _CONTRADICTED
            because.append(f"times {_CONTRADICTED}: {source} name others ({other.fault_class})")
            break
    return Confidence(round(min(value, MOST), 2), tuple(because))


def _rival(cause: Clue, other: Clue) -> bool:
    """Another class of the same priority and about as sure, about somebody else."""
    if other.fault_class in (cause.fault_class, _COARSEST):
        return False
    same = CLASSES[other.fault_class].priority == CLASSES[cause.fault_class].priority
    explained = other.fault_class in CLASSES[cause.fault_class].rules_out
    ranks = {c.rank for c in cause.culprits if c.rank is not None}
    about_same = bool(ranks & {c.rank for c in other.culprits if c.rank is not None})
    return same and not explained and not about_same and other.confidence >= cause.confidence - 0.1
