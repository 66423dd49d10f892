"""``diag demo``: trains with FSDP2 on two ranks, without a fault and with a slow loader on one of them, and prints both
verdicts."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diag import processes
from diag.cli.writing import no_dash
from diag.errors import is_installed, not_installed
from diag.words.formatting import spaced
from diag.words.terminal import console, say

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from diag.api import Result

_RANK = 1
_RUNS = {
    "as-it-is": [],
    "slow-loader-on-rank-1": ["--inject", f"slow-loader:rank={_RANK},ms=300"],
}
_FINDING = "slow-data-one-rank"  # of what is planted


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the two runs; those of an earlier demo are replaced.", callback=no_dash)
    ] = Path("runs/demo"),
    steps: Annotated[int, typer.Option(help="Steps of each training.", min=8)] = 20,
) -> None:
    """Train a small model twice on two CPU ranks, once with a slow data loader on rank 1, and print both verdicts."""
    from diag.api import open_run
    from diag.collectors.layout import RunLayout
    from diag.show.json import save
    from diag.watch.launch import require_torch

    require_torch()
    results = {}
    for name, faults in _RUNS.items():
        folder = out / name
        if RunLayout(folder).is_run():
            shutil.rmtree(folder)  # from an earlier demo
        code = _train(folder, steps, faults)
        if code:
            say(f"the training ended with exit code {code}; its logs are in {folder}/ranks", err=True)
            raise typer.Exit(code)
        results[name] = open_run(folder)
        save(results[name])
    screen = console(width=110 if not sys.stdout.isatty() else None)
    screen.print()
    screen.print(_side_by_side(results))
    planted = list(_RUNS)[-1]
    screen.print(f"\nPlanted in the second run: the data loader of rank {_RANK} takes 300 ms for a batch.")
    screen.print(found(results[planted]))
    say(f"\nEvidence and advice:  diag analyze {out / planted}")
    say(f"In the browser:       diag dashboard {out}")
    if not is_installed("streamlit"):
        say(f"                      (first: {not_installed('streamlit', 'dashboard').hint})")


def found(result: Result) -> str:
    """Whether the answer names what was planted: as the verdict, below something that costs more, or not at all."""
    named = [finding for finding in result.examination.findings if finding.id == _FINDING and finding.ranks == (_RANK,)]
    if not named:
        return "It was not found: something else costs more. Run the demo again when less runs on this machine."
    if result.cause is named[0]:
        return "The verdict names it, and its rank."
    return spaced(f"Something else costs more on this machine. It is found as well: {named[0].title}.")


def _train(folder: Path, steps: int, faults: list[str]) -> int:
    command = [
        "run",
        "--quiet",
        "--strategy",
        "fsdp2",
        "--nproc",
        "2",
        "--steps",
        str(steps),
        *faults,
        "--out",
        str(folder),
    ]
    say(f"\n$ diag {' '.join(command)}")
    return processes.run(processes.python("-m", "diag", *command)).returncode


def _side_by_side(results: dict[str, Result]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=True, expand=False)
    table.add_column("")
    for name in results:
        table.add_column(name, ratio=1)
    rows = [
        ("verdict", [_verdict(r) for r in results.values()]),
        ("at fault", [Text(_culprit(r)) for r in results.values()]),
        ("confidence", [Text(f"{r.verdict.confidence:.0%}") for r in results.values()]),
        ("do", [Text(_action(r)) for r in results.values()]),
    ]
    for label, cells in rows:
        table.add_row(label, *cells)
    return table


def _verdict(result: Result) -> Text:
    from rich.text import Text

    from diag.show.answer import COLOUR

    return Text(result.verdict.headline, style=COLOUR[result.verdict.severity])


def _culprit(result: Result) -> str:
    ranks = result.verdict.culprit_ranks
    return f"rank {', '.join(map(str, ranks))}" if ranks else "no rank"


def _action(result: Result) -> str:
    return result.cause.action if result.cause is not None else "nothing"
