"""What the right answer to a case is, from what was planted and what it costs: never from what diag says.

A cost's share is measured on the schedule itself: the same run is simulated without that cost, and the part of the step
that is saved is the share. Which class wins, and when two are "mixed", follows docs/concepts/verdict.md. Near the
edges of that rule (1.5 points either side) both answers are right: a share of 9.9 % is no error where 10.1 % would be
none. Costs of one class add up, and any cause within 1.5 points of the class's largest one is a right one. Below 11.5 %
a rank that is at fault may be left unnamed, but no other may be named. A fault of 5 % is below what is called ill, so
"healthy" is right. Two faults are mixed as their measured costs say, not as they were planted. Where nobody can tell
(the culprit's file is missing; a rank on a clock of its own is always last, and nothing small follows a large
collective to show it; one of two ranks was recorded), abstaining is right: no rank, and a confidence of at most 0.6.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

WARN = 0.10
TIE = 0.05
GREY = 0.015  # either side of an edge
HEALTHY, MIXED, UNDETERMINED = "healthy", "mixed", "undetermined"
COMPUTE, COMMUNICATION, DATA, HOST = "compute", "communication", "data", "host"

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """One thing that a change could remove. ``causes``: findings that name it rightly; ``culprits``: who is at fault,
    () for nobody in particular."""

    bottleneck: str
    share: float
    causes: frozenset[str]
    culprits: tuple[Ranks, ...] = ((),)


@dataclass(frozen=True)
class Answer:
    """An answer that is right: a class ("healthy" stands for itself), with any of these causes and culprits."""

    bottleneck: str
    causes: frozenset[str]
    culprits: tuple[Ranks, ...]


@dataclass(frozen=True)
class Truth:
    """``right``: every right answer, the expected one first. ``abstain``: saying that one cannot tell is right, too.
    ``share``: of what was planted. ``shares``: of each class."""

    right: tuple[Answer, ...]
    abstain: bool
    share: float
    shares: tuple[tuple[str, float], ...]

    @property
    def expected(self) -> str:
        return self.right[0].bottleneck

    @property
    def grey(self) -> bool:
        """Whether more than one class is right."""
        return len({answer.bottleneck for answer in self.right}) > 1


def truth_of(costs: Iterable[Cost], share: float, *, abstain: bool = False) -> Truth:
    """The right answers for these costs. Costs of one class add up; its largest one is its cause."""
    of_class: dict[str, list[Cost]] = defaultdict(list)
    for cost in costs:
        of_class[cost.bottleneck].append(cost)
    shares = {name: sum(cost.share for cost in own) for name, own in of_class.items()}
    ordered = sorted(shares, key=lambda name: -shares[name])
    top, highest = ordered[0], shares[ordered[0]]
    second = shares[ordered[1]] if len(ordered) > 1 else 0.0
    answers = []
    if highest >= WARN - GREY:
        apart = highest - second
        if second >= WARN - GREY and apart < TIE + GREY:
            pair = (_answer(top, of_class[top]), _answer(ordered[1], of_class[ordered[1]]))
            both = Answer(MIXED, pair[0].causes | pair[1].causes, (*pair[0].culprits, *pair[1].culprits))
            certain = second >= WARN + GREY and apart < TIE - GREY
            answers = [both] if certain else [both, pair[0], *(pair[1:] if apart < GREY else ())]
            if apart >= TIE or second < WARN:
                answers = [pair[0], both]
        else:
            answers = [_answer(top, of_class[top])]
    if highest < WARN + GREY:
        healthy = Answer(HEALTHY, frozenset(), ((),))
        answers = [healthy, *answers] if highest < WARN else [*answers, healthy]
    return Truth(tuple(answers), abstain, share, tuple(sorted(shares.items())))


def _answer(bottleneck: str, costs: list[Cost]) -> Answer:
    """Every cost of the class that is nearly as large as its largest one is a right cause."""
    largest = max(cost.share for cost in costs)
    named = [cost for cost in costs if cost.share >= largest - GREY]
    causes = frozenset().union(*(cost.causes for cost in named))
    culprits = tuple(dict.fromkeys(ranks for cost in named for ranks in cost.culprits))
    # A tenth of the step is what it takes to name a rank (docs/concepts/verdict.md).
    if largest < WARN + GREY and () not in culprits:
        culprits = (*culprits, ())
    return Answer(bottleneck, causes, culprits)
