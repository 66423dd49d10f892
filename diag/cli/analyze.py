"""``diag analyze``: the verdict, with its evidence."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from diag.errors import ExitCode


class Tool(StrEnum):
    """Other tools that can measure the same traces."""

    HTA = "hta"


def analyze(
    paths: Annotated[list[Path], typer.Argument(help="A run directory, or a folder or files of Kineto traces.")],
    as_json: Annotated[bool, typer.Option("--json", help="The JSON contract on standard output.")] = False,
    cross_check: Annotated[
        Tool | None,
        typer.Option(
            help="Show HolisticTraceAnalysis's temporal breakdown and overlap of the same traces beside ours, and the "
            "reason for every difference. Needs the extra: pip install 'diag\\[hta]'."
        ),
    ] = None,
    hta: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ANALYSIS",
            help="An analysis that is HolisticTraceAnalysis's, on one rank; may be repeated. "
            "critical-path:rank=R,step=N: the critical path inside a step. sequences:rank=R,operator=TEXT,length=N: "
            "frequent sequences of at least N kernels under operators whose name contains TEXT. Each setting may be "
            "left out.",
        ),
    ] = None,
) -> None:
    """Say what bounds a run, whose fault it is, and why it is believed.

    Exit code 0: analysed; 4: analysed, but data is missing (said in the report); 1: nothing to analyse.
    """
    from diag.api import open_run
    from diag.crosscheck.compare import cross_check as check
    from diag.crosscheck.process import hta_version
    from diag.crosscheck.requests import parse_request
    from diag.report import crosscheck as shown
    from diag.report.json import save, to_json
    from diag.report.text import print_report

    requests = [parse_request(text) for text in hta or []]
    if cross_check or requests:
        hta_version()  # before minutes of analysis
    result = open_run(*paths)
    if not as_json:
        print_report(result)
    checked = check(result) if cross_check else None
    offered = [request(result) for request in requests]
    if as_json:
        typer.echo(to_json(result, added=shown.to_dict(checked, offered)))
    else:
        if checked:
            shown.print_cross_check(checked)
        for found in offered:
            shown.print_offered(found)
    save(result)
    raise typer.Exit(ExitCode.DATA_INCOMPLETE if result.coverage.incomplete else ExitCode.OK)
