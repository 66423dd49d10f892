"""The report of memory snapshots alone. ``diag analyze`` loads it by its name if the paths hold nothing else."""

from __future__ import annotations

import json

import typer

from diag.errors import ExitCode
from diag.words.terminal import put


def print_snapshots(paths: list[str], as_json: bool) -> None:
    """typer.Exit if some of them cannot be read."""
    from diag.api import open_memory_snapshots
    from diag.show import snapshots

    table = open_memory_snapshots(*paths)
    if as_json:
        put(json.dumps(snapshots.snapshots_to_dict(table), indent=1) + "\n")
    else:
        snapshots.print_snapshots(table)
    if table.gaps:
        raise typer.Exit(ExitCode.DATA_INCOMPLETE)
