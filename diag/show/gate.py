"""Whether a run keeps to its budgets, as text and as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from rich.console import Console
from rich.table import Table
from rich.text import Text

from diag.api import Result, describe_run
from diag.collectors.layout import SCHEMA_VERSION
from diag.errors import ExitCode
from diag.gate.budgets import LimitUnit, shown
from diag.gate.check import RULE, Checked, Gate, Status
from diag.words.cells import report_console
from diag.words.formatting import spaced, visible

from .text import print_gaps

_STYLE = {Status.KEPT: "green", Status.NOISE: "yellow", Status.EXCEEDED: "bold red", Status.UNKNOWN: "magenta"}


def to_json(gate: Gate, result: Result) -> str:
    """The document. Limits and measured values: shares of 1, nanoseconds, bytes, or a second."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "run": describe_run(result),
        "check": {
            "exit_code": int(gate.exit_code),
            "strict": gate.strict,
            "rule": RULE,
            "budgets": [_row(gate, one) for one in gate.checked],
        },
        "verdict": {"cause": result.verdict.cause, "headline": result.verdict.headline},
    }
    return json.dumps(content, indent=1)


def _row(gate: Gate, one: Checked) -> dict[str, Any]:
    found, quantity = one.interval, one.budget.quantity
    return {
        "name": quantity.name,
        "what": quantity.what,
        "unit": {
            LimitUnit.SHARE: "share",
            LimitUnit.DURATION: "ns",
            LimitUnit.SIZE: "bytes",
            LimitUnit.RATE: "per second",
        }[quantity.unit],
        "limit": one.budget.limit,
        "status": one.status,
        "failed": gate.failed(one),
        "value": found.likely if found is not None else None,
        # Of a peak that may be higher the upper end is open.
        "interval": [_finite(found.low), _finite(found.high)] if found is not None else None,
        "reason": spaced(one.reason),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def print_gate(gate: Gate, result: Result, console: Console | None = None) -> None:
    """A line a budget, the failed ones first explained, and the rule."""
    console = report_console(console)
    table = Table(box=None, pad_edge=False)
    for name in ("budget", "limit", "measured", "95% interval", ""):
        table.add_column(name, justify="left" if name in ("budget", "") else "right", no_wrap=True)
    for one in gate.checked:
        table.add_row(one.budget.quantity.name, one.budget.text, *_measured(one), Text(one.status, _STYLE[one.status]))
    console.print(table)
    for one in gate.checked:
        if one.reason:
            console.print(Text(f"{one.budget.quantity.name}: ", "bold") + Text(visible(spaced(one.reason))))
    console.print()
    console.print(Text(outcome(gate), _OUTCOME[gate.exit_code]))
    if gate.exit_code is ExitCode.GATE_EXCEEDED:
        console.print(Text(visible(result.verdict.headline)))
    console.print(Text(RULE, "dim"))
    print_gaps(console, result.coverage.skipped)


_OUTCOME = {ExitCode.OK: "bold green", ExitCode.GATE_EXCEEDED: "bold red", ExitCode.DATA_INCOMPLETE: "bold magenta"}


def outcome(gate: Gate) -> str:
    """The meaning of the exit code, in a sentence."""

    def names(chosen: Callable[[Checked], bool]) -> str:
        return ", ".join(one.budget.quantity.name for one in gate.checked if chosen(one))

    failed, unknown = names(gate.failed), names(lambda one: one.status is Status.UNKNOWN)
    close = names(lambda one: one.status is Status.NOISE and not gate.strict)
    parts = [f"Not kept: {failed}."] if failed else []
    if unknown:
        parts.append(f"Cannot be decided: {unknown}.")
    if not parts:
        parts.append("Every budget is kept." if not close else "No budget is surely exceeded.")
    if close:
        parts.append(f"Within noise of the limit: {close}.")
    return " ".join(parts)


def sentence(one: Checked) -> str:
    """``exposed communication, of the critical path: 31.0% (30.2% to 31.9%), at most 20%: exceeded``"""
    value, interval = _measured(one)
    found = f"{value} ({interval})" if interval else value
    reason = f" ({spaced(one.reason).rstrip('.')})" if one.reason else ""
    return f"{one.budget.quantity.what}: {found or 'not measured'}, {one.budget.text}: {one.status}{reason}"


def _measured(one: Checked) -> tuple[str, str]:
    found, unit = one.interval, one.budget.quantity.unit
    if found is None:
        return "", ""
    if found.low == found.high:
        return shown(found.likely, unit), ""
    if not math.isfinite(found.high):
        return shown(found.likely, unit), "or more"
    return shown(found.likely, unit), f"{shown(found.low, unit)} to {shown(found.high, unit)}"


# -- github ------------------------------------------------------------------------------------------------------------
#
# Budgets as workflow commands that GitHub Actions shows as annotations.


def workflow_commands(gate: Gate) -> list[str]:
    """A line a budget: ``::error`` where the exit code is not 0 because of it, ``::warning`` within noise."""
    return [
        command(
            "error" if gate.failed(one) or one.status is Status.UNKNOWN
            else "warning" if one.status is Status.NOISE
            else "notice",
            f"diag check: {one.budget.quantity.name}",
            sentence(one),
        )
        for one in gate.checked
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
# Budgets as JUnit XML, in the form that Jenkins' junit-10.xsd and its kin accept: a test case a budget.

# What XML 1.0 cannot hold, not even as a reference.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(gate: Gate, run: str, headline: str) -> bytes:
    """The document. A budget that cannot be decided is an error, not skipped: skipped tests count as passed."""
    failed = [one for one in gate.checked if gate.failed(one)]
    unknown = [one for one in gate.checked if one.status is Status.UNKNOWN]
    counts = {"tests": str(len(gate.checked)), "failures": str(len(failed)), "errors": str(len(unknown))}
    suites = Element("testsuites", {"name": "diag check", **counts})
    suite = SubElement(suites, "testsuite", {"name": _allowed(run), **counts, "skipped": "0"})
    for one in gate.checked:
        case = SubElement(suite, "testcase", {"name": one.budget.quantity.name, "classname": "diag.check"})
        text = _allowed(sentence(one))
        if one in failed:
            SubElement(case, "failure", {"message": text, "type": str(one.status)}).text = _allowed(headline)
        elif one in unknown:
            SubElement(case, "error", {"message": text, "type": str(one.status)})
        SubElement(case, "system-out").text = text
    indent(suites)
    content: bytes = tostring(suites, encoding="UTF-8", xml_declaration=True)
    return content + b"\n"


def _allowed(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
