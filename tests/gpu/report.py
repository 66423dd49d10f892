"""The report of a check: Markdown for people, JSON for programs."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.gpu.checks import AGREEMENTS, FAILED, NOT_APPLICABLE, PASSED, Check, Checked, checks_of
from tests.gpu.plan import Machine

REPORT, CHECKS = "report.md", "checks.json"


def write_report(folder: Path) -> int:
    """Checks the folder, writes both files and prints the first. The exit code: 0 where no check failed."""
    checked = Checked.open(folder)
    found = checks_of(checked)
    content = {
        "machine": asdict(checked.machine),
        "checks": [asdict(check) for check in found],
        "left_out": checked.left_out,
    }
    (folder / CHECKS).write_text(json.dumps(content, indent=1) + "\n")
    text = document(checked, found)
    (folder / REPORT).write_text(text)
    print(text)
    return int(any(check.state == FAILED for check in found))


def document(checked: Checked, found: Sequence[Check]) -> str:
    """What no CPU can show comes first, then what is missing of it, then the trainings."""
    counts = Counter(check.state for check in found)
    names = {name for name, _, _ in AGREEMENTS}
    leading = sorted((one for one in found if one.name in names), key=lambda one: one.state == NOT_APPLICABLE)
    shown = [one for one in leading if one.state != NOT_APPLICABLE]
    missing = [one for one in leading if one.state == NOT_APPLICABLE]
    return "\n".join(
        [
            "# GPU check",
            "",
            f"{_machine(checked.machine)}",
            "",
            f"{len(found)} checks: {counts[PASSED]} passed, {counts[FAILED]} failed, {counts[NOT_APPLICABLE]} not "
            f"applicable. {len(checked.runs)} trainings in {checked.seconds:.0f} s.",
            "",
            "## What no CPU can show",
            "",
            *_table(shown),
            "",
            "Not shown:",
            "",
            *([f"- {one.name}: {one.reason}." for one in missing] or ["Nothing is missing."]),
            "",
            "## Trainings",
            "",
            *_table([one for one in found if one.name not in names]),
            "",
            "## What was recorded",
            "",
            *_cases(checked),
            "",
            "## Not planted, not run",
            "",
            *([f"- {name}: {why}." for name, why in checked.left_out.items()] or ["Nothing."]),
            "",
            "## Commands",
            "",
            *(f"- `{_command(run['command'])}`" for run in checked.runs.values()),
            "",
        ]
    )


def _table(checks: Sequence[Check]) -> list[str]:
    if not checks:
        return ["Nothing."]
    return ["| check | expected | found | result |", "|---|---|---|---|", *(_row(check) for check in checks)]


def _cases(checked: Checked) -> list[str]:
    """The runs that began: what became of them, and which of their files did not travel."""
    lines = []
    for name, case in checked.cases.items():
        if name not in checked.runs:
            continue
        packed = f", {case['bytes'] / 1e6:.1f} MB" if "bytes" in case else ""
        behind = ", ".join(f"{path} ({size / 1e6:.1f} MB)" for path, size in case.get("left_behind", {}).items())
        lines.append(
            f"- {name}: {case['state']}, {case['seconds']:.0f} s{packed}: {case['why']}."
            + (f" Left behind: {behind}." if behind else "")
        )
    return lines or ["The record does not say."]


def _machine(machine: Machine) -> str:
    versions = f"torch {machine.torch}" + (f", NCCL {machine.nccl}" if machine.nccl else "")
    if not machine.gpus:
        return f"{machine.ranks} ranks on the CPU with gloo; {versions}. Checks that need a GPU do not apply."
    how = ", one a GPU" if machine.gpus > 1 else ""
    if machine.shared:
        how = " on one GPU (NCCL_MULTI_RANK_GPU_ENABLE=1)"
    elif machine.one_rank:
        how = f": {machine.one_rank}"
    ranks = f"{machine.ranks} rank{'s' if machine.ranks > 1 else ''}"
    return (
        f"{machine.gpus} x {machine.name} ({machine.vendor}), {machine.memory / 1e9:.0f} GB each; {versions}. "
        f"{ranks}{how}."
    )


def _row(check: Check) -> str:
    result = check.state if check.state == PASSED else check.state.upper() if check.state == FAILED else check.state
    result += f": {check.reason}" if check.reason else ""
    cells = (check.name, check.expected, check.found, result)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _command(command: Sequence[str]) -> str:
    return shlex.join(["python", *command[1:]])
