"""Budgets as workflow commands that GitHub Actions shows as annotations."""

from __future__ import annotations

from diag.gate.check import Gate, Status

from .gate import sentence


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
    """``::error title=...::...``, one line whatever the texts hold."""
    return f"::{level} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
