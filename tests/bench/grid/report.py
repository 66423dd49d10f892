"""The table of the grid, and the list of what went wrong."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean

from tests.bench.grid.cases import Scored
from tests.bench.grid.misjudged import names_a_rank
from tests.bench.grid.truth import HEALTHY

_BINS = ((0.03, 0.085), (0.085, 0.10), (0.10, 0.12), (0.12, 0.20), (0.20, 0.35), (0.35, 1.0))


def wilson(right: int, tried: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a proportion."""
    if not tried:
        return 0.0, 1.0
    p, n = right / tried, tried
    middle, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


def summary(cases: Sequence[Scored]) -> dict[str, object]:
    """All numbers, ready for JSON."""
    healthy = [c for c in cases if c.truth.expected == HEALTHY and not c.truth.grey]
    errors, refused = replays(cases)
    right, wrong = ([c.said.confidence for c in cases if c.verdict_right == which] for which in (True, False))
    return {
        "cases": len(cases),
        "verdict": _rate(c.verdict_right for c in cases),
        "cause": _rate(c.cause_right for c in cases),
        "rank_and_cause": _rate(c.first_right for c in cases),
        "rank_and_cause_where_a_rank_is_at_fault": _rate(c.first_right for c in cases if names_a_rank(c)),
        "false_alarms": _rate(c.false_alarm for c in healthy),
        "abstained": _rate(c.abstained for c in cases),
        "macro_f1": round(macro_f1(cases), 4),
        "confidence_when_right": round(mean(right), 3) if right else None,
        "confidence_when_wrong": round(mean(wrong), 3) if wrong else None,
        "detection": {_span(low, high): _rate(detection(cases, low, high)[0]) for low, high in _BINS},
        "found": {_span(low, high): _rate(detection(cases, low, high)[1]) for low, high in _BINS},
        "replay_error": round(mean(errors), 5) if errors else None,
        "replay_refused": sum(refused.values()),
        "rows": {row: _row(own) for row, own in by_row(cases).items()},
    }


def _row(cases: Sequence[Scored]) -> dict[str, object]:
    return {
        "n": len(cases),
        "verdict": sum(c.verdict_right for c in cases),
        "cause": sum(c.cause_right for c in cases),
        "first": sum(c.first_right for c in cases),
        "abstained": sum(c.abstained for c in cases),
        "false_alarms": sum(c.false_alarm for c in cases),
    }


@dataclass(frozen=True)
class Rate:
    """So many of so many, and the 95 % interval."""

    right: int
    of: int
    part: float
    low: float
    high: float


def rate(flags: Iterable[bool]) -> Rate:
    seen = list(flags)
    return Rate(sum(seen), len(seen), sum(seen) / len(seen) if seen else 0.0, *wilson(sum(seen), len(seen)))


def _rate(flags: Iterable[bool]) -> dict[str, float | int]:
    seen = rate(flags)
    parts = {"rate": round(seen.part, 4), "low": round(seen.low, 4), "high": round(seen.high, 4)}
    return {"right": seen.right, "of": seen.of, **parts}


def _span(low: float, high: float) -> str:
    return f"{low:.3g}-{high:.3g}"


def detection(cases: Sequence[Scored], low: float, high: float) -> tuple[list[bool], list[bool]]:
    """Of planted faults that cost such a part of the step, as measured: whether the verdict was unhealthy; whether a
    right cause is among the findings, which begin at a twentieth. Not where nobody can tell."""
    asked = [c for c in cases if c.graded and not c.truth.abstain and low <= c.truth.share < high]
    found = [any(cause in c.said.found for a in c.truth.right for cause in a.causes) for c in asked]
    return [c.said.bottleneck != HEALTHY for c in asked], found


def replays(cases: Sequence[Scored]) -> tuple[list[float], Counter[str]]:
    """The errors of all replays, and how often which reason there was for none."""
    errors = [c.replay.error for c in cases if c.replay.error is not None]
    return errors, Counter(re.sub(r"rank \d+", "a rank", c.replay.refused) for c in cases if c.replay.error is None)


def by_row(cases: Sequence[Scored]) -> dict[str, list[Scored]]:
    rows: dict[str, list[Scored]] = defaultdict(list)
    for case in cases:
        rows[case.row].append(case)
    return dict(rows)


def macro_f1(cases: Sequence[Scored]) -> float:
    """Over the classes; a case with two right classes counts as the one that was said, if that was right."""
    pairs = [
        (c.said.bottleneck if c.verdict_right else c.truth.expected, c.said.bottleneck)
        for c in cases
        if not c.truth.abstain
    ]
    scores = []
    for name in sorted({true for true, _ in pairs}):
        hit = sum(true == said == name for true, said in pairs)
        told, real = sum(said == name for _, said in pairs), sum(true == name for true, _ in pairs)
        scores.append(2 * hit / (told + real))
    return mean(scores) if scores else 0.0


def table(cases: Sequence[Scored]) -> str:
    """For people."""
    numbers = summary(cases)
    lines = [
        f"{'row':<24}{'n':>4}{'verdict':>9}{'cause':>7}{'rank+cause':>12}{'95 %':>13}{'abstained':>11}"
        f"{'false alarms':>14}"
    ]
    rows = numbers["rows"]
    assert isinstance(rows, dict)
    for name, row in rows.items():
        low, high = wilson(row["first"], row["n"])
        lines.append(
            f"{name:<24}{row['n']:>4}{row['verdict']:>9}{row['cause']:>7}{row['first']:>12}{f'{low:.2f}-{high:.2f}':>13}"
            f"{row['abstained']:>11}{row['false_alarms']:>14}"
        )
    for key in (
        "verdict",
        "cause",
        "rank_and_cause",
        "rank_and_cause_where_a_rank_is_at_fault",
        "false_alarms",
        "abstained",
    ):
        lines.append(f"{key.replace('_', ' '):<42}{_told(numbers[key])}")
    lines.append(f"{'macro F1':<42}{numbers['macro_f1']}")
    sure, unsure = numbers["confidence_when_right"], numbers["confidence_when_wrong"]
    lines.append(f"{'mean confidence, right and wrong':<42}{sure}, {unsure}")
    for name, told in (("detection", "called unhealthy"), ("found", "cause found")):
        spans = numbers[name]
        assert isinstance(spans, dict)
        for span, seen in spans.items():
            lines.append(f"{f'{told}, fault of {span} of a step':<42}{_told(seen)}")
    lines.append(f"replay: mean error {numbers['replay_error']}, refused {numbers['replay_refused']}")
    return "\n".join(lines)


def _told(seen: object) -> str:
    assert isinstance(seen, dict)
    return f"{seen['right']} of {seen['of']}  {seen['rate']:.1%}  ({seen['low']:.1%} to {seen['high']:.1%})"


def wrong(cases: Sequence[Scored]) -> str:
    """Each case whose first answer was not right: what was expected, and what was said."""
    lines = []
    for c in cases:
        if c.first_right:
            continue
        expected = " or ".join(
            f"{a.bottleneck} {'/'.join(sorted(a.causes))} {' or '.join(str(list(r)) for r in a.culprits)}"
            for a in c.truth.right
        )
        shares = ", ".join(f"{name} {share:.1%}" for name, share in c.truth.shares)
        said = c.said
        lines.append(
            f"{c.id}\n  {c.job}\n  planted {c.truth.share:.1%}; {shares}\n"
            f"  expected {expected}{' or abstaining' if c.truth.abstain else ''}\n"
            f"  said {said.bottleneck} {said.cause} {list(said.culprits)} (confidence {said.confidence}):\n"
            f"    {said.headline}"
        )
    return "\n".join(lines)
