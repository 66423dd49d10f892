"""Short phrases about runs, steps and groups that several packages use: text without markup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diag.collectors.records import RESTART, STALLED, STUCK, VERDICT
from diag.model.accounts import Attribution
from diag.model.axes import axis_words
from diag.model.breakdown import CollectiveStat, ExposedCall
from diag.model.retained import Retained
from diag.model.steps import Bottleneck, Coverage, Division, Verdict

from .formatting import counted, duration, listing
from .sentences import LOWER_CONFIDENCE

_ONLY_DURATIONS = "{} records durations of collectives only"
ONLY_DURATIONS = _ONLY_DURATIONS.format("NCCL Inspector")  # of files of which nothing else is known
_MESSAGES = ("send", "recv", "send_recv", "wait")


def only_durations(source: str) -> str:
    """``ONLY_DURATIONS`` of another source."""
    return _ONLY_DURATIONS.format(source)


def pieces(text: str) -> list[tuple[str, bool]]:
    """The pieces of one of our own sentences, each with whether it is a command to type (between backticks)."""
    parts = text.split("`")
    return [(part, i % 2 == 1) for i, part in enumerate(parts)] if len(parts) % 2 else [(text, False)]


def run_facts(run: Mapping[str, Any], coverage: Coverage) -> list[str]:
    """The part of ``api.describe_run``'s answer that fits under a title; the last fact is the path."""
    total = len(coverage.ranks_used) + len(coverage.ranks_missing)
    hosts = run["hosts"]
    parts = [
        f"{len(coverage.ranks_used):,} of {counted(total, 'rank')}",
        (hosts[0] if len(hosts) == 1 else counted(len(hosts), "host")) if hosts else None,
        run["strategy"],
        run["backend"],
        run["device"],
        run["model"].get("preset") and f"model {run['model']['preset']}",
        divided_into(run),
        f"attempt {run['attempt'] + 1} of {restarts + 1}" if (restarts := run.get("restarts")) else None,
        run["path"],
    ]
    return [str(part) for part in parts if part]


def divided_into(run: Mapping[str, Any]) -> str:
    """``41 steps``, or ``1 window`` where nothing divides the run into steps; "" where no step was recorded. Of a run
    whose oldest records were removed ``22,001 steps, 382 in full``."""
    if not run["steps"]:
        return ""
    if (only := run.get("only")) is not None:
        return f"only steps {only['first']:,} to {only['last']:,}"
    if (known := run.get("steps_known")) is not None and known > run["steps"]:
        return f"{counted(known, 'step')}, {run['steps']:,} in full"
    return counted(run["steps"], "window" if run["steps_from"] == Division.UNDIVIDED else "step")


KEPT_NAMED = 3  # spans of steps, the newest ones
WHY_KEPT = {
    VERDICT: "the verdict changed",
    STUCK: "stuck",
    STALLED: "a step stalled",
    RESTART: "after a restart",
}


def resolutions(left: Retained) -> str:
    """Which steps are known, and how well."""
    parts = [f"steps {left.first:,} to {left.last:,} are there in full"]
    if left.phases_from is not None and left.phases_from < left.first:
        parts.append(f"the phases of each step since step {left.phases_from:,}")
    if left.sums_from is not None and left.sums_from < left.first:
        parts.append(f"sums since step {left.sums_from:,}")
    if left.kept:
        newest = left.kept[-KEPT_NAMED:]
        around = "; ".join(f"{span.first:,} to {span.last:,} ({WHY_KEPT.get(span.why, span.why)})" for span in newest)
        more = f", and of {counted(len(left.kept) - len(newest), 'earlier incident')}" if left.kept[KEPT_NAMED:] else ""
        asked = f"--steps {newest[-1].first}:{newest[-1].last}"
        parts.append(f"also in full, around incidents: steps {around}{more} ({asked} analyses the last of these)")
    return "; ".join(parts)


def steps_counted(attribution: Attribution, left: Retained | None = None) -> str:
    """How many steps of all an answer rests on; "" where no step was recorded. ``left``: of a run whose oldest records
    were removed."""
    steps = len(attribution.steps)
    if not steps:
        return ""
    used = len(attribution.usable) or steps
    if attribution.undivided:
        windows = "one window" if steps == 1 else f"{used:,} of {counted(steps, 'window')} counted"
        return f"{windows}, not divided into steps"
    if steps == 1:
        return "one step"
    inside = ", all in profiler windows" if attribution.in_windows else ""
    if left is not None:
        return f"the newest {used:,} of {counted(left.steps, 'step')} counted{inside}"
    return f"{used:,} of {counted(steps, 'step')} counted{inside}"


def averaged_over(attribution: Attribution) -> str:
    """The title of a table of mean milliseconds."""
    noun = "window" if attribution.undivided else "step"
    used = len(attribution.usable) or len(attribution.steps)
    if used == 1:
        return f"Milliseconds of the {'counted ' if len(attribution.steps) > 1 else ''}{noun}"
    return f"Mean milliseconds a {noun}, over {used:,} {noun}s"


def class_name(bottleneck: Bottleneck) -> str:
    whole = bottleneck in (Bottleneck.MIXED, Bottleneck.UNDETERMINED)
    return bottleneck.value if whole else f"{bottleneck.value}-bound"


def group_name(row: CollectiveStat | ExposedCall, several: bool) -> str:
    """A group's axis of the mesh, where there are ``several``; else the library's name for it, which can be a hash, or
    contain all of its ranks."""
    if row.op in _MESSAGES and len(row.members) == 2:
        return f"{row.members[0]} to {row.members[1]}"
    return axis_words(row.axis) if several and row.axis else row.group.split("@")[0]


def operation(op: str) -> str:
    """The usual spelling of an operation: ``all-gather``."""
    return op.replace("_", "-")


def per_whole(attribution: Attribution) -> str:
    """What a mean is of, in words: nothing marks the steps of some windows."""
    return "in this window" if attribution.undivided else "a step"


def fused_words(ns_per_step: float, per: str) -> str:
    """The effect of kernels that compute and communicate at once, nanoseconds of a rank and step."""
    return (
        f"{duration(ns_per_step)} {per} are spent in fused kernels that compute and communicate; the communication in "
        "them cannot be separated"
    )


# Features of the confidence's model (diag.diagnoses.confidence.Features) in words.
DOUBTS = {
    "noise": "the steps vary",
    "close_cause": "another cause nearly as large",
    "one_or_all": "one late rank and differences between all ranks cost nearly as much",
    "mixed": "two bottlenecks",
    "unseen_waits": "ranks that were not recorded may be late",
    "open_waits": "how much is waiting for ranks that were not recorded is unknown",
    "phases_mixed": "phases that contain communication",
    "unseen_pauses": "a paused rank would look the same",
    "hosts_next": "with faster devices, the hosts' loading would take nearly as long",
    "clock": "the ranks' clocks are not known to agree",
}


def largest_doubt(verdict: Verdict) -> str:
    """What lowers the confidence most, in a few words; "" for a verdict without doubts."""
    doubt = max(verdict.doubts, key=lambda doubt: doubt.by, default=None)
    return "" if doubt is None else DOUBTS.get(doubt.name, doubt.name)


def doubts(verdict: Verdict) -> str:
    """What lowers the confidence, in a sentence; "" for a verdict without doubts."""
    lowered = (
        f"{DOUBTS.get(doubt.name, doubt.name)} ({counted(round(100 * doubt.by), 'point')})" for doubt in verdict.doubts
    )
    listed = ", ".join(lowered)
    return LOWER_CONFIDENCE(reasons=listed) if listed else ""


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def incomplete(coverage: Coverage) -> str:
    """The missing data in a sentence; "" where nothing is missing."""
    parts = []
    if coverage.ranks_missing:
        parts.append(f"no usable data of {listing(coverage.ranks_missing)}")
    if coverage.skipped:
        parts.append(f"{counted(len(coverage.skipped), 'input')} could not be read or used")
    return f"Incomplete: {', '.join(parts)}." if parts else ""
