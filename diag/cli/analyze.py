"""``diag analyze``: the verdict, with its evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diag.errors import ExitCode


def analyze(
    paths: Annotated[list[Path], typer.Argument(help="A run directory, or a folder or files of Kineto traces.")],
    as_json: Annotated[bool, typer.Option("--json", help="The JSON contract on standard output.")] = False,
) -> None:
    """Say what bounds a run, whose fault it is, and why it is believed.

    Exit code 0: analysed; 4: analysed, but data is missing (said in the report); 1: nothing to analyse.
    """
    from diag.api import open_run
    from diag.report.json import save, to_json
    from diag.report.text import print_report

    result = open_run(*paths)
    if as_json:
        typer.echo(to_json(result))
    else:
        print_report(result)
    save(result)
    raise typer.Exit(ExitCode.DATA_INCOMPLETE if result.coverage.incomplete else ExitCode.OK)
