"""Whether a run keeps its budgets, as text and as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from rich.console import Console
from rich.text import Text

from diag import policy
from diag.api import Result, describe_run
from diag.collectors.layout import SCHEMA_VERSION
from diag.errors import ExitCode
from diag.gate.budgets import LimitUnit, shown
from diag.gate.check import MEANINGS, RULE, Checked, Gate, Status
from diag.words.formatting import spaced, visible
from diag.words.table import NUMBER, TEXT_RIGHT, Cell, Column, Table, table_of
from diag.words.terminal import report_console

from .table import print_table
from .text import print_gaps

_STYLE = {Status.KEPT: "green", Status.NOISE: "yellow", Status.EXCEEDED: "bold red", Status.UNKNOWN: "magenta"}


def to_json(gate: Gate, result: Result) -> str:
    """The document. Limits and measured values: shares of 1, nanoseconds, bytes, or a second."""
    content = {
        "schema_version": SCHEMA_VERSION,
        **policy.as_dict(),
        "run": describe_run(result),
        "check": {
            "exit_code": int(gate.exit_code),
            "strict": gate.strict,
            "rule": RULE,
            "budgets": [_row(gate, check) for check in gate.checked],
        },
        "verdict": {"cause": result.verdict.cause, "headline": result.verdict.headline},
    }
    return json.dumps(content, indent=1)


def _row(gate: Gate, check: Checked) -> dict[str, Any]:
    interval, quantity = check.interval, check.budget.quantity
    return {
        "name": quantity.name,
        "what": quantity.what,
        "unit": {
            LimitUnit.SHARE: "share",
            LimitUnit.DURATION: "ns",
            LimitUnit.SIZE: "bytes",
            LimitUnit.RATE: "per second",
        }[quantity.unit],
        "limit": check.budget.limit,
        "status": check.status,
        "failed": gate.failed(check),
        "value": interval.likely if interval is not None else None,
        # The upper end is open for a peak that may be higher.
        "interval": [_finite(interval.low), _finite(interval.high)] if interval is not None else None,
        "reason": spaced(check.reason),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def budget_table(gate: Gate) -> Table:
    """A row for each budget: the limit, what was measured, and whether it is kept."""
    checked = gate.checked
    return table_of(
        "budgets",
        "",
        {
            Column("budget", weight=0): [check.budget.quantity.name for check in checked],
            Column("limit", TEXT_RIGHT, weight=8): [check.budget.text for check in checked],
            Column("measured", NUMBER, weight=9): [
                Cell(None if check.interval is None else check.interval.likely, _measured(check)[0])
                for check in checked
            ],
            Column("interval", TEXT_RIGHT, label="95% interval", weight=5): [_measured(check)[1] for check in checked],
            Column("status", label="", weight=9): [str(check.status) for check in checked],
        },
    )


def print_gate(gate: Gate, result: Result, console: Console | None = None) -> None:
    """One line per budget, then the reasons, the outcome, and what each status means that is not kept."""
    console = report_console(console)
    print_table(
        console,
        budget_table(gate),
        {(place, "status"): _STYLE[check.status] for place, check in enumerate(gate.checked)},
    )
    for check in gate.checked:
        if check.reason:
            console.print(Text(f"{check.budget.quantity.name}: ", "bold") + Text(visible(spaced(check.reason))))
    console.print()
    console.print(Text(outcome(gate), _OUTCOME[gate.exit_code]))
    if gate.exit_code is ExitCode.GATE_EXCEEDED:
        console.print(Text(visible(result.verdict.headline)))
    statuses = {check.status for check in gate.checked}
    if legend := " ".join(meaning for status, meaning in MEANINGS.items() if status in statuses):
        console.print(Text(legend, "dim"))
    for note in policy.notes():
        console.print(Text.assemble(("!", "yellow"), " ", visible(note)))
    print_gaps(console, result.coverage.skipped)


_OUTCOME = {ExitCode.OK: "bold green", ExitCode.GATE_EXCEEDED: "bold red", ExitCode.DATA_INCOMPLETE: "bold magenta"}


def outcome(gate: Gate) -> str:
    """The meaning of the exit code, in a sentence."""

    def names(chosen: Callable[[Checked], bool]) -> str:
        return ", ".join(check.budget.quantity.name for check in gate.checked if chosen(check))

    failed, unknown = names(gate.failed), names(lambda check: check.status is Status.UNKNOWN)
    close = names(lambda check: check.status is Status.NOISE and not gate.strict)
    parts = [f"Failed: {failed}."] if failed else []
    if unknown:
        parts.append(f"Undecided: {unknown}.")
    if not parts:
        parts.append("Every budget is kept." if not close else "No budget is certainly exceeded.")
    if close:
        parts.append(f"Within noise of the limit: {close}.")
    return " ".join(parts)


def sentence(check: Checked) -> str:
    """``exposed communication as a share of the critical path: 31.0% (30.2% to 31.9%), at most 20%: exceeded``"""
    value, interval = _measured(check)
    measured = f"{value} ({interval})" if interval else value
    reason = f" ({spaced(check.reason).rstrip('.')})" if check.reason else ""
    return f"{check.budget.quantity.what}: {measured or 'not measured'}, {check.budget.text}: {check.status}{reason}"


def _measured(check: Checked) -> tuple[str, str]:
    interval, unit = check.interval, check.budget.quantity.unit
    if interval is None:
        return "", ""
    if interval.low == interval.high:
        return shown(interval.likely, unit), ""
    if not math.isfinite(interval.high):
        return shown(interval.likely, unit), "or more"
    return shown(interval.likely, unit), f"{shown(interval.low, unit)} to {shown(interval.high, unit)}"


# -- github ------------------------------------------------------------------------------------------------------------
#
# Budgets as workflow commands that GitHub Actions shows as annotations.


def workflow_commands(gate: Gate) -> list[str]:
    """One line per budget: ``::error`` where the exit code is not 0 because of it, ``::warning`` within noise."""
    return [
        command(
            "error" if gate.failed(check) or check.status is Status.UNKNOWN
            else "warning" if check.status is Status.NOISE
            else "notice",
            f"diag check: {check.budget.quantity.name}",
            sentence(check),
        )
        for check in gate.checked
    ]  # fmt: skip


def command(level: str, title: str, message: str) -> str:
    """``::error title=...::...``, always one line."""
    return f"::{level} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


# -- junit -------------------------------------------------------------------------------------------------------------
#
# Budgets as JUnit XML, in the form that Jenkins' junit-10.xsd and similar schemas accept: one test case per budget.

# Characters that XML 1.0 forbids, even as references.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(gate: Gate, run: str, headline: str) -> bytes:
    """The document. A budget that cannot be decided is an error, not skipped: skipped tests count as passed."""
    failed = [check for check in gate.checked if gate.failed(check)]
    unknown = [check for check in gate.checked if check.status is Status.UNKNOWN]
    counts = {"tests": str(len(gate.checked)), "failures": str(len(failed)), "errors": str(len(unknown))}
    suites = Element("testsuites", {"name": "diag check", **counts})
    suite = SubElement(suites, "testsuite", {"name": _allowed(run), **counts, "skipped": "0"})
    for check in gate.checked:
        case = SubElement(suite, "testcase", {"name": check.budget.quantity.name, "classname": "diag.check"})
        text = _allowed(sentence(check))
        if check in failed:
            SubElement(case, "failure", {"message": text, "type": str(check.status)}).text = _allowed(headline)
        elif check in unknown:
            SubElement(case, "error", {"message": text, "type": str(check.status)})
        SubElement(case, "system-out").text = text
    indent(suites)
    content: bytes = tostring(suites, encoding="UTF-8", xml_declaration=True)
    return content + b"\n"


def _allowed(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
