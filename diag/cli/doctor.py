"""``diag doctor``: what works on this machine, and what to do about the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from diag.cli.writing import no_dash
from diag.words.terminal import put, say


def doctor(
    out: Annotated[
        Path, typer.Option(help="Where runs will be recorded: its room and speed are measured.", callback=no_dash)
    ] = Path("runs"),
    python: Annotated[
        str | None,
        typer.Option(help="The Python that trains; by default that of diag if it has torch, else the one on PATH."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what works on this machine: torch, GPUs, NCCL, NVML, py-spy, storage; and what to do about the rest.

    A command that reads needs none of it. Whether a launcher's processes will be recorded: diag attach --check.
    """
    from diag.watch.doctor import examine, lines, training_python

    checks = examine(out, python or training_python())
    if as_json:
        rows = [{"name": one.name, "status": one.status, "found": one.found, "do": one.do or None} for one in checks]
        put(f"{json.dumps({'checks': rows}, indent=2)}\n")
        return
    for line in lines(checks):
        say(line)
