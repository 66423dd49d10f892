"""``diag history``: the life of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from diag.cli.reading import PathsArgument, PolicyOption, override_thresholds, set_up_numpy
from diag.errors import DiagError, ExitCode
from diag.words.terminal import put


def history(
    paths: PathsArgument,
    as_json: Annotated[bool, typer.Option("--json", help="The JSON contract on standard output.")] = False,
    policy: PolicyOption = None,
) -> None:
    """Show the life of a run: where its time went, when its steps became slower and because of what, what stopped it.

    A change is a lasting one, of 5% or more: evaluations, checkpoints and noise are none. Its cause comes from the
    costs of all ranks before and after it. Of a long run, older steps are known as sums over several; the table says
    which.

    Goodput is the share of the wall time that became new steps. Initialisation, checkpoints, evaluation, stalls,
    restarts and steps that were trained again are counted apart; they add up to the wall time. A stall is a step, or a
    pause between two, of more than 5 seconds and 5 usual steps.

    Runs of which one goes on where another one ended are one life: they resumed from a checkpoint of the same training,
    or are of one job of the scheduler or the launcher. Of a folder with more than one, each has its goodput and its
    last change, and hosts that were at fault in several are listed.

    Exit code 0: shown; 1: there is no run to show.
    """
    override_thresholds(policy)
    set_up_numpy()
    from diag.api import SeveralJobsError
    from diag.show.history import print_histories, print_history, several_to_json, to_json
    from diag.summaries import open_history, open_lives

    from .reading import reading_progress

    with reading_progress() as progress:
        try:
            life = open_history(*paths, progress=progress)
        except SeveralJobsError as error:
            several = open_lives(error.jobs, progress)
            if len(several) == 1 and not isinstance(several[0][1], DiagError):  # runs of one training
                life, several = several[0][1], []
        else:
            several = []
    if several:
        put(several_to_json(several) + "\n") if as_json else print_histories(several)
        raise typer.Exit(ExitCode.ERROR if all(isinstance(each, DiagError) for _, each in several) else ExitCode.OK)
    if as_json:
        put(to_json(life) + "\n")
    else:
        print_history(life)
