"""The runs of a folder at a glance, worst first: state, culprit, cause, step time over the steps, its parts, and the
change against a baseline. Data for ``views/cockpit.js``; nothing here draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from diag.api import Result, State
from diag.app.curves import spark_of, spark_words
from diag.app.figures import MS
from diag.app.picture import colours_of
from diag.app.policy import DASHBOARD
from diag.app.run_view import Part, path_of
from diag.app.theme import Theme
from diag.diagnoses.compare import Work, reasons_between, work_of
from diag.live import Curves
from diag.model.steps import Severity
from diag.words.formatting import duration, number, relative, visible

Data = dict[str, Any]  # as JSON

# What a run comes to by its state alone, before its verdict counts.
_BROKEN = (State.STUCK, State.HUNG, State.FAILED)
_OF_SEVERITY = {Severity.CRITICAL: 1, Severity.WARN: 2, None: 3, Severity.HEALTHY: 4}
_TONES = {
    Severity.CRITICAL: ("✕", "critical"),
    Severity.WARN: ("!", "warning"),
    Severity.HEALTHY: ("✓", "healthy"),
}


class Outlook(Struct, frozen=True):
    """What the cockpit needs of an analysed run besides its row in the table: nanoseconds of the step by part, and what
    decides whether another run's step is the same work."""

    parts_ns: Mapping[Part, float]
    work: Work


class Line(Struct, frozen=True):
    """A run of the cockpit. ``state_words``: more about its state, such as since when it is stuck; ``cause``: in words;
    ``share``: of the step that the cause takes. None and "" for what is not known."""

    name: str
    state: State
    state_text: str
    state_words: str
    severity: Severity | None
    culprit: str
    cause: str
    share: float
    step_ns: float | None
    outlook: Outlook | None
    curves: Curves | None

    @property
    def badness(self) -> tuple[int, float, str]:
        """A sort key, worst first: runs that do not go on, then by severity and what the cause takes."""
        return (0 if self.state in _BROKEN else _OF_SEVERITY[self.severity], -self.share, self.name)


def outlook_of(result: Result) -> Outlook | None:
    """None where no step was recorded."""
    parts_ns = path_of(result)
    return Outlook(parts_ns, work_of(result.tables)) if parts_ns else None


def cockpit_of(
    lines: Sequence[Line], baseline: Line | None, theme: Theme, looks: Mapping[str, tuple[str, str]]
) -> Data:
    """The rows, worst first. ``baseline``: what the steps are compared with; ``looks``: colour and dash of the runs
    whose curves are drawn, by name."""
    ordered = sorted(lines, key=lambda line: line.badness)
    shown = [part for part in Part if any(line.outlook and part in line.outlook.parts_ns for line in lines)]
    # A run that was analysed meanwhile has its parts before its row has the step.
    known = [
        *(line.step_ns for line in lines if line.step_ns is not None),
        *(sum(line.outlook.parts_ns.values()) for line in lines if line.outlook is not None),
    ]
    return {
        "rows": [
            {
                "name": visible(line.name),
                "state": line.state_text,
                "broken": line.state in _BROKEN,
                "live": visible(line.state_words),
                "mark": _TONES[line.severity] if line.severity is not None else ("", ""),
                "culprit": visible(line.culprit),
                "cause": visible(line.cause),
                "look": looks.get(line.name, ()),
                "spark": spark_of(line.curves),
                "sparkAbout": spark_words(line.curves),
                "parts": [
                    [shown.index(part), ns / MS] for part, ns in line.outlook.parts_ns.items()
                ] if line.outlook is not None else [],
                "about": _about(line),
                "step": "" if line.step_ns is None else duration(line.step_ns),
                "stepMs": None if line.step_ns is None else line.step_ns / MS,
                **_change(line, baseline),
            }
            for line in ordered
        ],
        "parts": [[part.value, theme.part[part]] for part in shown],
        "end": max(known, default=1.0) / MS,
        "colours": colours_of(theme),
    }  # fmt: skip


def _about(line: Line) -> str:
    if line.outlook is None:
        return ""
    parts = sorted(line.outlook.parts_ns.items(), key=lambda item: -item[1])
    return "\n".join(f"{part.value} {number(ns / MS)} ms" for part, ns in parts)


def _change(line: Line, baseline: Line | None) -> Data:
    """The change of the mean step against the baseline's: better and worse only where the steps are the same work."""
    nothing: Data = {"change": "", "changed": None, "tone": "", "changeAbout": ""}
    if baseline is None or baseline.step_ns is None or line.step_ns is None:
        return nothing
    if line.name == baseline.name:
        return nothing | {"change": "baseline", "changed": 0.0}
    change = line.step_ns / baseline.step_ns - 1
    shown: Data = {"change": relative(change + 1), "changed": change}
    steps = f"{duration(line.step_ns)} against {duration(baseline.step_ns)}"
    if line.outlook is None or baseline.outlook is None:
        reasons: tuple[str, ...] = ("not known to be the same work",)
    else:
        reasons = reasons_between(baseline.outlook.work, line.outlook.work)
    if reasons:
        return shown | {"tone": "", "changeAbout": f"{steps}. Not comparable: {'; '.join(reasons)}"}
    alike = abs(change) < DASHBOARD.equal_ranks_share
    tone = "" if alike else "worse" if change > 0 else "better"
    return shown | {"tone": tone, "changeAbout": steps}
