"""``diag history``: the life of a run."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from diag.cli.reading import PathsArgument, PolicyOption, override_thresholds
from diag.words.terminal import put


def history(
    paths: PathsArgument,
    as_json: Annotated[bool, typer.Option("--json", help="The JSON contract on standard output.")] = False,
    policy: PolicyOption = None,
) -> None:
    """Show how long the steps of a run took over its life, when that changed, and because of what.

    A change is a lasting one, of 5% or more: evaluations, checkpoints and noise are none. Its cause comes from the
    costs of all ranks before and after it. Of a long run, older steps are known as sums over several; the table says
    which. Restarts of the training are attempts of their own.

    Exit code 0: shown; 1: there is no run to show.
    """
    override_thresholds(policy)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in diag analyze
    from diag.show.history import print_history, to_json
    from diag.summaries import open_history

    from .reading import reading_progress

    with reading_progress() as progress:
        attempts = open_history(*paths, progress=progress)
    if as_json:
        put(to_json(attempts) + "\n")
    else:
        print_history(attempts)
