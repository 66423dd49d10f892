"""The grid's results as a section of a Markdown document: tables for each half, then every wrong answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tests.bench.grid.cases import Scored
from tests.bench.grid.misjudged import names_a_rank, told
from tests.bench.grid.report import by_row, detection, rate, replays, wilson
from tests.bench.grid.truth import HEALTHY

_CLASSES = (HEALTHY, "compute", "communication", "data", "host", "mixed", "undetermined")

_INTRO = """\
Runs with a planted fault, diagnosed and scored: GPU traces from a simulator of DDP, FSDP2 and HSDP (no GPU was needed
for them, and no number of this page comes from one), and records of simulated CPU ranks. What is right is measured on
the simulated schedule: the same run without a cost is shorter by that cost's share. A class is expected from 10 % of
the step on, "mixed" where two are within 5 points; within 1.5 points of these edges both answers count. Rules and
thresholds were chosen on the tuning half. The held-out half has other models, worlds, shares, ranks and seeds.

Rows: H0, D4, N0 healthy; D slow data; N network; W sharding units; P no prefetch; B buckets; G reductions in every
micro-batch; R gathers and reductions of FSDP2; S slow ranks; L the host; K checkpoints; C garbage collection; X0
copies; M allocator; U use of the arithmetic; X1 two faults at once; Q1 clocks that are off; Q2 missing or damaged
files; rec- CPU records; insp- (by `--rows insp-`) the same jobs as files of NCCL Inspector, where the answer is the
late rank ("straggler"), or "healthy"; dev- (by `--rows dev-`) the same jobs without a profiler window, as events on the
devices' clocks and samples of their utilization, of which the class is asked for.
`python -m tests.bench.grid --case HALF/ROW/NUMBER` shows one case.
"""


def document(cases: Sequence[Scored], halves: Sequence[str], seed: int) -> str:
    """The whole section."""
    parts = ["# The fault grid\n", _INTRO]
    for half in halves:
        own = [case for case in cases if case.id.startswith(half)]
        if own:
            parts.append(_half(own, half, seed))
    return "\n".join(parts)


def _half(cases: Sequence[Scored], half: str, seed: int) -> str:
    name = {"tuning": "Tuning half", "heldout": "Held-out half"}.get(half, half)
    return "\n".join(
        (
            f"## {name}: {len(cases)} cases, seed {seed}\n",
            *_totals(cases),
            "\n### By row\n",
            *_rows(cases),
            "\n### Said against expected\n",
            "Rows: the expected class; columns: the one that was said. A right answer at an edge counts as expected.\n",
            *_confusion(cases),
            "\n### Wrong answers\n",
            *_wrong(cases),
            "",
        )
    )


def _totals(cases: Sequence[Scored]) -> list[str]:
    healthy = [c for c in cases if c.truth.expected == HEALTHY and not c.truth.grey]
    at_fault = [c for c in cases if names_a_rank(c)]
    warned, found = detection(cases, 0.10, 0.12)
    errors, refused = replays(cases)
    mean = sum(errors) / len(errors) if errors else 0.0
    lines = [
        "| measure | right | of | rate | 95 % interval |",
        "|---|---:|---:|---:|---|",
        _total("verdict (class)", [c.verdict_right for c in cases]),
        _total("class and cause", [c.cause_right for c in cases]),
        _total("class, cause and rank, first answer", [c.first_right for c in cases]),
        _total("the same, where a rank is at fault", [c.first_right for c in at_fault]),
        _total("false alarms on healthy runs", [c.false_alarm for c in healthy]),
        _total("faults of 10 to 12 % of the step: cause among the findings", found),
        _total("faults of 10 to 12 % of the step: verdict unhealthy", warned),
        "",
        f"Replay of the unchanged steps: mean error {mean:.3%}, largest {max(errors, default=0.0):.2%}, over "
        f"{len(errors)} cases; {sum(refused.values())} refused"
        + ("".join(f" ({count} x {why})" for why, count in refused.most_common(3)))
        + ". (A replay rests on the measured durations, and here they are exact: the error shows only that nothing of "
        "a schedule is lost.)",
    ]
    return lines


def _total(name: str, flags: Iterable[bool]) -> str:
    seen = rate(flags)
    return f"| {name} | {seen.right} | {seen.of} | {seen.part:.1%} | {seen.low:.1%} to {seen.high:.1%} |"


def _rows(cases: Sequence[Scored]) -> list[str]:
    lines = [
        "| row | n | verdict | cause | rank and cause | 95 % interval | false alarms | found at 10 % or more |",
        "|---|---:|---:|---:|---:|---|---:|---:|",
    ]
    for row, own in by_row(cases).items():
        first = sum(c.first_right for c in own)
        low, high = wilson(first, len(own))
        _, found = detection(own, 0.10, 1.0)
        detected = f"{sum(found)} of {len(found)}" if found else "-"
        verdict, cause = sum(c.verdict_right for c in own), sum(c.cause_right for c in own)
        lines.append(
            f"| {row} | {len(own)} | {verdict} | {cause} | {first} | "
            f"{low:.2f} to {high:.2f} | {sum(c.false_alarm for c in own)} | {detected} |"
        )
    return lines


def _confusion(cases: Sequence[Scored]) -> list[str]:
    pairs = Counter(
        (c.said.bottleneck if c.verdict_right and not c.abstained else c.truth.expected, c.said.bottleneck)
        for c in cases
        if not (c.truth.abstain and c.abstained)
    )
    lines = [f"| | {' | '.join(_CLASSES)} |", f"|---|{'---:|' * len(_CLASSES)}"]
    for true in _CLASSES:
        if any(pairs[true, said] for said in _CLASSES):
            lines.append(f"| {true} | {' | '.join(str(pairs[true, said] or '') for said in _CLASSES)} |")
    blind = sum(c.truth.abstain and c.abstained for c in cases)
    return [*lines, "", f"Left out: {blind} runs in which nobody can tell, and diag said so."]


def _wrong(cases: Sequence[Scored]) -> list[str]:
    lines = []
    for c in cases:
        if not c.first_right:
            lines.append(f"- `{c.id}` ({c.job}): {told(c)}")
    return lines or ["None."]
