"""``diag triage``: which rank hung or died, why, and what to do."""

from __future__ import annotations

from typing import Annotated

import typer

from diag.errors import ExitCode


def triage(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Logs of the ranks, the launcher and the kernel, stacks of py-spy, Flight Recorder dumps, or folders "
            "of them, also .gz and .zst; - is standard input.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="The JSON contract on standard output.")] = False,
) -> None:
    """Say which rank a hang or a crash comes from, why it is believed, and what to do.

    Exit code 0: answered, also "healthy" and "undetermined"; 4: answered, but something could not be read (said in the
    report); 1: nothing to read.
    """
    from diag.cli.progress import reading_progress
    from diag.hang.api import incomplete
    from diag.hang.api import triage as triage_paths
    from diag.report.triage import print_triage, to_json

    with reading_progress() as progress:
        found = triage_paths(paths, progress)
    if as_json:
        typer.echo(to_json(found))
    else:
        print_triage(found)
    raise typer.Exit(ExitCode.DATA_INCOMPLETE if incomplete(found) else ExitCode.OK)
