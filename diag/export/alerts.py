"""Prometheus alerting rules for the metrics of ``diag metrics``, as YAML for ``rule_files``."""

from __future__ import annotations

import json
from typing import NamedTuple

from diag.export import definitions as of
from diag.rundir.states import State

# Findings about the devices of a rank.
_OF_DEVICES = ("throttled-device", "unhealthy-memory", "degraded-links", "low-bus-bandwidth")
_LOST = f"{State.UNKNOWN.value}|{State.UNCLOSED.value}"


class _Rule(NamedTuple):
    name: str
    expression: str
    for_: str
    severity: str
    summary: str
    description: str


_RULES = (
    _Rule(
        "DiagTrainingStuck",
        f"{of.STUCK.name} == 1",
        "0s",  # the metric itself waits for longer than the training's own pauses
        "critical",
        "Training {{ $labels.run }} is stuck",
        f"No step ends. {of.BEHIND.name} names the rank that the others wait for; `diag triage RUN --stacks` shows "
        "where every rank is.",
    ),
    _Rule(
        "DiagLossNotFinite",
        f"{of.NOT_FINITE.name} >= 0",
        "0s",
        "critical",
        "The loss of training {{ $labels.run }} is not finite",
        "The {{ $labels.what }} is not finite since step {{ $value }}, ranks {{ $labels.culprit_ranks }} (empty: all). "
        "Go back to the last checkpoint before that step.",
    ),
    _Rule(
        "DiagTrainingSlow",
        f"{of.SLOW.name} == 1",
        "5m",
        "warning",
        "Training {{ $labels.run }} is slower than before",
        "The newest steps, or the one under way, take much longer than the ones before. `diag analyze RUN` says why.",
    ),
    _Rule(
        "DiagCulpritChanged",
        f'{of.VERDICT_INFO.name}{{severity!="healthy"}} unless on (run, cause, culprit_ranks) '
        f"({of.VERDICT_INFO.name} offset 10m) and on (run) ({of.VERDICT_INFO.name} offset 10m)",
        "0s",
        "warning",
        "The verdict on training {{ $labels.run }} has changed",
        "{{ $labels.severity }}: {{ $labels.cause }}, ranks {{ $labels.culprit_ranks }}. It is that of the last "
        "`diag analyze`.",
    ),
    _Rule(
        "DiagRecorderSilent",
        f'{of.SILENT.name} > 0 and on (run) {of.STUCK.name} == 0 or on (run) {of.STATE.name}{{state=~"{_LOST}"}}',
        "1m",
        "warning",
        "Training {{ $labels.run }} is not recorded any more",
        "A rank sends no heartbeat although steps end, or no rank sends any and no end is recorded.",
    ),
    _Rule(
        "DiagDeviceUnhealthy",
        f'{of.VERDICT_INFO.name}{{cause=~"{"|".join(_OF_DEVICES)}"}}',
        "0s",
        "warning",
        "A device bounds training {{ $labels.run }}",
        "{{ $labels.cause }}, ranks {{ $labels.culprit_ranks }}. `diag analyze RUN` names host and device.",
    ),
)


def alerts() -> str:
    """The rules. JSON strings are strings of YAML."""
    lines = [
        "# Printed by `diag metrics --alerts`: add the file to rule_files of Prometheus.",
        "groups:",
        "- name: diag",
    ]
    lines.append("  rules:")
    for rule in _RULES:
        lines += [
            f"  - alert: {rule.name}",
            f"    expr: {json.dumps(rule.expression)}",
            f"    for: {rule.for_}",
            f"    labels: {{severity: {rule.severity}}}",
            "    annotations:",
            f"      summary: {json.dumps(rule.summary)}",
            f"      description: {json.dumps(rule.description)}",
        ]
    return "\n".join(lines) + "\n"
