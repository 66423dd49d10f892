"""In what way an answer is wrong, in one line."""

from __future__ import annotations

from tests.bench.grid.cases import Scored
from tests.bench.grid.truth import HEALTHY, MIXED, TIE, WARN

_NEAR = 0.03  # of the step from an edge


def names_a_rank(case: Scored) -> bool:
    """Whether a rank is at fault that the answer has to name."""
    return case.truth.expected != HEALTHY and () not in case.truth.right[0].culprits


def told(case: Scored) -> str:
    """What was planted, what was said, and where the two part."""
    expected, said = case.truth.right[0], case.said
    shares = ", ".join(f"{name} {share:.1%}" for name, share in case.truth.shares if share >= 0.005)
    right = f"{expected.bottleneck} {'/'.join(sorted(expected.causes))} {_who(expected.culprits[0])}".strip()
    answered = f"{said.bottleneck} {said.cause} {_who(said.culprits)} ({said.share:.0%})".strip()
    return f"costs {shares}; expected {right}; said {answered}: {why(case)}."


def why(case: Scored) -> str:
    """The kind of the error."""
    said, truth = case.said, case.truth
    expected = {cause for answer in truth.right for cause in answer.causes}
    if truth.abstain:
        return f"the data cannot tell, and the confidence was {said.confidence:.2f}"
    if not case.verdict_right:
        shares = sorted((share for _, share in truth.shares), reverse=True)
        if HEALTHY in (said.bottleneck, truth.expected) and abs(shares[0] - WARN) <= _NEAR:
            return f"the cost is {abs(shares[0] - WARN):.1%} from the threshold"
        if MIXED in (said.bottleneck, truth.expected) and abs(shares[0] - shares[1] - TIE) <= _NEAR:
            return "the two costs are near the edge of a tie"
        if said.bottleneck == HEALTHY and expected & set(said.found):
            return f"the cause was found, but judged to cost {said.share:.1%}"
        return "another class"
    if not case.cause_right:
        known = expected & set(said.found)
        return "another cause of the class, the expected one second" if known else "the cause was not found"
    return "no rank named" if not said.culprits else "other ranks named"


def _who(ranks: tuple[int, ...]) -> str:
    return f"of rank {', '.join(map(str, sorted(ranks)))}" if ranks else ""
