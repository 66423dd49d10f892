"""What is said of a run, a verdict, a finding or a change wherever it is shown: short facts, text without markup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diag.model.axes import axis_words
from diag.model.breakdown import CollectiveStat
from diag.model.steps import (
    Advice,
    Attribution,
    Bottleneck,
    Coverage,
    Division,
    Evidence,
    Finding,
    Risk,
    Severity,
    Verdict,
)

from .formatting import counted, duration, listing, measured, share, size

RISK = {
    Risk.SAFE: "safe",
    Risk.MEMORY: "takes memory",
    Risk.NUMERICS: "changes the numbers that are computed",
    Risk.CORRECTNESS: "may change what is trained",
}

_MESSAGES = ("send", "recv", "send_recv", "wait")
NOTHING_FOUND = "Nothing costs a twentieth of the step or more."
EVERYTHING_FOUND = "Everything looked for was found."
EVERYTHING_LOOKED_FOR = "Everything could be looked for."
MOST_GAPS = 50  # things that could not be read, shown on a page


def pieces(text: str) -> list[tuple[str, bool]]:
    """Of one of our own sentences: its text, and whether it is a command to type, which stands between backticks."""
    parts = text.split("`")
    return [(part, i % 2 == 1) for i, part in enumerate(parts)] if len(parts) % 2 else [(text, False)]


def run_facts(run: Mapping[str, Any], coverage: Coverage) -> list[str]:
    """Of ``api.describe_run``'s answer what fits under a title; the last one is the path."""
    total = len(coverage.ranks_used) + len(coverage.ranks_missing)
    hosts = run["hosts"]
    parts = [
        f"{len(coverage.ranks_used)} of {counted(total, 'rank')}",
        (hosts[0] if len(hosts) == 1 else counted(len(hosts), "host")) if hosts else None,
        run["strategy"],
        run["backend"],
        run["device"],
        run["model"].get("preset") and f"model {run['model']['preset']}",
        divided_into(run),
        run["path"],
    ]
    return [str(part) for part in parts if part]


def divided_into(run: Mapping[str, Any]) -> str:
    """``41 steps``, or ``1 window`` where nothing divides the run into steps."""
    return counted(run["steps"], "window" if run["steps_from"] == Division.UNDIVIDED else "step")


def steps_counted(attribution: Attribution) -> str:
    """How many steps of all an answer rests on."""
    steps = len(attribution.steps)
    used = len(attribution.usable) or steps
    if attribution.undivided:
        windows = "one window" if steps == 1 else f"{used:,} of {counted(steps, 'window')} counted"
        return f"{windows}, not divided into steps"
    return "one step" if steps == 1 else f"{used:,} of {counted(steps, 'step')} counted"


def averaged_over(attribution: Attribution) -> str:
    """The title of a table of mean milliseconds."""
    noun = "window" if attribution.undivided else "step"
    used = len(attribution.usable) or len(attribution.steps)
    if used == 1:
        return f"Milliseconds of the {'counted ' if len(attribution.steps) > 1 else ''}{noun}"
    return f"Mean milliseconds a {noun}, over {used:,} {noun}s"


def versions(run: Mapping[str, Any]) -> list[str]:
    """``torch 2.13.0``, and whatever else the run says that it ran with."""
    return [f"{name} {version}" for name, version in run["versions"].items()]


def class_name(bottleneck: Bottleneck) -> str:
    whole = bottleneck in (Bottleneck.MIXED, Bottleneck.UNDETERMINED)
    return bottleneck.value if whole else f"{bottleneck.value}-bound"


def verdict_facts(verdict: Verdict, steps: str = "") -> list[str]:
    """Whose fault it is, where it is somebody's, how sure that is, and what ``steps_counted`` says, if given. No
    confidence where there is no answer to be sure of."""
    facts = []
    if verdict.culprit_ranks:
        where = f" on {', '.join(verdict.culprit_hosts)}" if verdict.culprit_hosts else ""
        facts.append(f"At fault: {listing(verdict.culprit_ranks)}{where}")
    if verdict.bottleneck != Bottleneck.UNDETERMINED:
        facts.append(f"Confidence {share(verdict.confidence)}")
    return [*facts, steps if facts else sentence(steps)] if steps else facts


def finding_badge(finding: Finding) -> str:
    """How bad it is; what is not worth a warning is minor, which is not to say healthy."""
    return "minor" if finding.severity == Severity.HEALTHY else finding.severity.value


def finding_facts(finding: Finding) -> list[str]:
    facts = []
    if finding.cost_ns_per_step:
        facts.append(f"{share(finding.share)} of the step, {duration(finding.cost_ns_per_step)}")
    if finding.ranks:
        facts.append(listing(finding.ranks))
    return [*facts, f"confidence {share(finding.confidence)}", finding.id]


def group_name(row: CollectiveStat, several: bool) -> str:
    """Of a row of the collectives: its axis of the mesh, where there are ``several``; else the library's name for it,
    which can be a hash, or hold all of its ranks."""
    if row.op in _MESSAGES and len(row.members) == 2:
        return f"{row.members[0]} to {row.members[1]}"
    return axis_words(row.axis) if several and row.axis else row.group.split("@")[0]


EVIDENCE_COLUMNS = ("Table", "Rows", "Value")


def evidence_row(item: Evidence) -> tuple[str, str, str]:
    """The cells of EVIDENCE_COLUMNS."""
    return item.table, item.filter, measured(item.value, item.unit)


def fused_words(ns_per_step: float) -> str:
    """What the time in kernels that compute and communicate at once means, nanoseconds of a rank and step."""
    return (
        f"{duration(ns_per_step)} a step are spent in kernels that compute and communicate at once, and communication "
        "inside them cannot be told apart"
    )


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def gain(advice: Advice) -> str:
    """What a change saves, as replayed, with the interval that a measurement is expected in."""
    low, likely, high = advice.predicted_gain_ns
    doubt = ", so it may gain nothing: `diag tune` measures it" if low <= 0 else ""
    return (
        f"{duration(likely)} a step less, {share(advice.gain_share)} of it "
        f"(between {duration(low)} and {duration(high)}{doubt})"
    )


def price(advice: Advice) -> list[str]:
    """Memory and risk."""
    delta = advice.memory_delta_bytes
    if delta is None:
        memory = "memory not known"
    elif delta:
        memory = f"{size(abs(delta))} {'more' if delta > 0 else 'less'} memory for parameters and gradients"
    else:
        memory = "no more memory"
    return [memory, RISK[advice.risk]]


def not_predicted(not_advised: tuple[str, ...]) -> list[str]:
    """Why there is no advice at all, where that is so; not why single changes were left out."""
    return [f"{sentence(reason)}." for reason in not_advised if reason.startswith("nothing was predicted")]


def basis(coverage: Coverage) -> str:
    """The ranks that the answer rests on, and how well their clocks agree."""
    total = len(coverage.ranks_used) + len(coverage.ranks_missing)
    clock = coverage.clock_uncertainty_ns
    clocks = (
        "clocks not aligned" if clock is None else f"clocks aligned to ± {duration(clock)}" if clock else "one clock"
    )
    if coverage.clock_drift_ppm:
        clocks += f" after a drift of {coverage.clock_drift_ppm:.1f} ppm between them was taken out"
    return f"{len(coverage.ranks_used)} of {counted(total, 'rank')}{f', {clocks}' if total > 1 else ''}."


def incomplete(coverage: Coverage) -> str:
    """What is missing, in a sentence; "" where nothing is."""
    parts = []
    if coverage.ranks_missing:
        parts.append(f"nothing usable of {listing(coverage.ranks_missing)}")
    if coverage.skipped:
        parts.append(f"{counted(len(coverage.skipped), 'thing')} could not be read or used")
    return f"Incomplete: {', '.join(parts)}." if parts else ""
