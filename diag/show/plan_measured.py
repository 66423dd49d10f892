"""Measured peaks beside the estimate, as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

from msgspec import to_builtins
from rich.console import Console
from rich.text import Text

from diag.collectors.layout import SCHEMA_VERSION
from diag.plan.measured import Compared, Measured
from diag.words.cells import print_columns, report_console
from diag.words.formatting import size, spaced


def to_json(found: Measured, path: str) -> str:
    """The document: bytes; errors are the estimate's, relative; what is not known is null."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "measured": {
            "run": path,
            "how": found.how,
            "ranks": [to_builtins(rank) for rank in found.ranks],
            "missing": list(found.missing),
            "estimate": to_builtins(found.estimate) if found.estimate is not None else None,
            "unknown": found.unknown or None,
            "compared": [_row(row) for row in found.rows],
        },
    }
    return json.dumps(document, indent=1)


def _row(row: Compared) -> dict[str, Any]:
    return {**to_builtins(row), "error": row.error}


def print_measured(found: Measured, path: str, console: Console | None = None) -> None:
    """How far the estimate is off first, then the components, then what the estimate consists of."""
    console = report_console(console)
    fullest = max(found.ranks, key=lambda rank: rank.peak)
    if found.estimate is None or found.step is None:
        console.print(Text(spaced(f"Measured: {size(fullest.peak)} on rank {fullest.rank}, {found.how}.")))
        console.print(Text(spaced(f"No estimate: {found.unknown}.")))
        return
    peak, step = found.rows[0], found.step
    answer = Text(
        f"The estimate is {_signed(peak.error)} off", "bold green" if abs(peak.error) <= 0.1 else "bold yellow"
    )
    rest = (
        f": {size(peak.estimate)} against {size(peak.measured)} on rank {peak.rank}, the fullest of {len(found.ranks)}."
    )
    console.print(answer + Text(spaced(rest)))
    console.print(
        Text(
            spaced(
                f"{path}: {step.shape.parameters:,} parameters, recipe {step.recipe.name}, {step.sequences} sequences "
                f"of {step.length} tokens a micro-batch, states shared by {step.shards}. Measured: {found.how}."
            )
        )
    )
    console.print()
    columns = {
        "in MB": [row.name for row in found.rows],
        "estimate": [_mb(row.estimate) for row in found.rows],
        "measured": [_mb(row.measured) for row in found.rows],
        "error": [_signed(row.error) for row in found.rows],
        "rank": [str(row.rank) for row in found.rows],
    }
    print_columns(console, columns, left=("in MB",), more=0)
    console.print()
    parts = ", ".join(f"{name} {_mb(count)}" for name, count in found.estimate.parts.items() if count)
    console.print(Text(spaced(f"Estimated at its peak, in {found.estimate.moment}: {parts} MB.")))
    for line in found.missing:
        console.print(Text(spaced(f"Not measured: {line}.")))


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f}"


def _signed(error: float) -> str:
    return f"{error:+.1%}" if abs(error) >= 0.0005 else "0.0%"
