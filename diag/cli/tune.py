"""``diag tune``: follows its own advice, and measures whether it was right."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from diag.errors import DiagError, ExitCode
from diag.words.terminal import say

# `diag run` has 20: after the full queues of more loader processes enough steps are left to measure.
_STEPS = 48


def tune(
    context: typer.Context,
    rounds: Annotated[int, typer.Option(help="Changes to try at most.", min=1)] = 3,
    repeats: Annotated[int, typer.Option(help="Runs with each change, and as many without it, in turns.", min=2)] = 3,
    out: Annotated[Path | None, typer.Option(help="Folder for all runs; else runs/<time>-tune.")] = None,
) -> None:
    """Train, diagnose, apply the best advice, and keep it if runs with it are clearly faster than runs without.

    Takes every option of `diag run` as well: they describe the training to be tuned. What was predicted and what was
    measured of each change stays in the folder, which `diag dashboard` shows.
    """
    from diag.show.tune import print_history
    from diag.tune.loop import train
    from diag.tune.loop import tune as tune_training
    from diag.watch.launch import require_torch

    arguments = list(context.args)
    if not any(argument.partition("=")[0] == "--steps" for argument in arguments):
        arguments = ["--steps", str(_STEPS), *arguments]
    # Mistakes are reported before minutes of training.
    command = context.find_root().command.get_command(context, "run")  # type: ignore[attr-defined]
    given = command.make_context("diag run", list(arguments)).params
    if not given["trace"] or not given["collect"]:
        raise DiagError(
            "tuning rests on what is recorded: leave out --no-trace and --no-collect", exit_code=ExitCode.USAGE
        )
    if given["command"]:
        raise DiagError("tuning changes options of the bundled trainer: it takes no script", exit_code=ExitCode.USAGE)
    if given["nnodes"] > 1:
        raise DiagError("tuning starts the ranks of one node", hint="leave out --nnodes", exit_code=ExitCode.USAGE)
    require_torch()
    folder = out if out is not None else Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-tune"
    history = tune_training(arguments, folder, rounds, repeats, train, lambda text: say(f"diag: {text}", err=True))
    print_history(history)
    say(f"\nAll runs: {folder}. In the browser: diag dashboard {folder}")
