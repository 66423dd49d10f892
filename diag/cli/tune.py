"""``diag tune``: follows its own advice, and measures whether it was right."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from diag.cli.reading import PolicyOption, override_thresholds
from diag.cli.writing import no_dash
from diag.errors import DiagError, ExitCode
from diag.words.terminal import say

# `diag run` has 20: with more loader processes the first steps use their full queues, and enough others must be left.
_STEPS = 48


def tune(
    context: typer.Context,
    rounds: Annotated[int, typer.Option(help="Maximum number of changes to try.", min=1)] = 3,
    repeats: Annotated[
        int, typer.Option(help="Runs with each change, and as many without it, alternating.", min=2)
    ] = 3,
    out: Annotated[
        Path | None, typer.Option(help="Folder for all runs; else runs/<time>-tune.", callback=no_dash)
    ] = None,
    show: Annotated[
        Path | None,
        typer.Option(help="Print the tuning that is in this folder, and train nothing.", callback=no_dash),
    ] = None,
    evidence: Annotated[
        bool,
        typer.Option("--evidence", "--verbose", "-v", help="Also print all that is known of each change."),
    ] = False,
    policy: PolicyOption = None,
) -> None:
    """Train, diagnose, apply the best advice, and keep it if runs with it are clearly faster than runs without.

    Takes every option of `diag run` as well: they describe the training to be tuned. What was predicted and what was
    measured of each change stays in the folder, which `diag dashboard` shows.
    """
    override_thresholds(policy)
    from diag.show.tuning import print_tuning
    from diag.tune.history import FILE_NAME, load
    from diag.tune.loop import train
    from diag.tune.loop import tune as tune_training
    from diag.watch.launch import require_torch

    if show is not None:
        kept = load(show)
        if kept is None:
            raise DiagError(f"there is no tuning here ({FILE_NAME})", path=show)
        print_tuning(kept, show, evidence=evidence)
        return
    arguments = list(context.args)
    if not any(argument.partition("=")[0] == "--steps" for argument in arguments):
        arguments = ["--steps", str(_STEPS), *arguments]
    # Mistakes are reported before minutes of training.
    command = context.find_root().command.get_command(context, "run")  # type: ignore[attr-defined]
    options = command.make_context("diag run", list(arguments)).params
    if not options["trace"] or not options["collect"]:
        raise DiagError(
            "tuning needs the recorded traces and metrics: leave out --no-trace and --no-collect",
            exit_code=ExitCode.USAGE,
        )
    if options["command"]:
        raise DiagError("tuning changes options of the bundled trainer: it takes no script", exit_code=ExitCode.USAGE)
    if options["nnodes"] > 1:
        raise DiagError("tuning starts the ranks of one node", hint="leave out --nnodes", exit_code=ExitCode.USAGE)
    require_torch()
    folder = out if out is not None else Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-tune"
    history = tune_training(arguments, folder, rounds, repeats, train, lambda text: say(f"diag: {text}", err=True))
    say()
    print_tuning(history, folder, evidence=evidence)
