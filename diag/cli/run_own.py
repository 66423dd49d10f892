"""``diag run SCRIPT`` and ``diag run -- COMMAND``: a training of the user's, as it is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from diag.cli.ended import say_end
from diag.collectors.settings import CollectorSettings, collecting
from diag.errors import DiagError, ExitCode

if TYPE_CHECKING:
    from diag.watch.launch import Launch

# Options of `diag run` that say what to record and when to call it hung; and where and how many, which is a command's
# own affair.
_OF_RECORDING = frozenset(
    {
        "command", "hang_timeout", "out", "collect", "byte_budget_mb",
        "trace", "trace_skip", "auto_traces", "trace_active", "trace_every", "trace_stacks", "trace_memory",
    }
)  # fmt: skip
_OF_LAUNCH = frozenset({"module", "nproc", "nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv_id"})
_HANG_S = 300.0  # without progress, before it is said


def run_own(
    context: typer.Context, command: Sequence[str], launch: Launch, settings: CollectorSettings, out: Path | None
) -> int:
    """The exit code of the training."""
    from diag.watch.launch import open_run_directory
    from diag.watch.launch_script import environment_of, run_command, run_script

    module = bool(context.params["module"])
    if not command:
        raise DiagError("-m needs the name of a module", exit_code=ExitCode.USAGE)
    is_script = module or command[0].endswith(".py")
    _refuse(context, _OF_RECORDING | _OF_LAUNCH if is_script else _OF_RECORDING, "script" if is_script else "command")
    if is_script and not module and not Path(command[0]).is_file():
        raise DiagError("there is no such script", path=Path(command[0]), exit_code=ExitCode.USAGE)
    collect = collecting(launch.environment)
    named = context.params["hang_timeout"] is not None
    launch = replace(
        launch,
        nproc=launch.nproc if _given(context, "nproc") else 1,
        hang_timeout_s=(launch.hang_timeout_s if named else _HANG_S) if collect else 0,
        ends_hung=named,  # only who says how long it may take wants it ended
    )
    name = Path(command[0]).stem
    world_size = launch.nproc * launch.nnodes if is_script else None
    layout = open_run_directory(out, launch, sys.argv[1:], name, world_size=world_size)
    launch = replace(launch, environment=environment_of(layout, settings, collect))
    if is_script:
        outcome = run_script(layout, launch, settings, command, module)
    else:
        outcome = run_command(layout, launch, settings, command)
    return say_end(layout, outcome, collect, shown=True)


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse(context: typer.Context, allowed: frozenset[str], what: str) -> None:
    """Options that would say nothing to the training: they describe the bundled one."""
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in allowed and _given(context, name):
            raise DiagError(
                f"{parameter.opts[0]} means nothing to a {what} of yours",
                hint=f"options of the {what} itself go behind its name",
                exit_code=ExitCode.USAGE,
            )
