"""``diag attach``: the environment that makes a training record itself, for launchers that start it elsewhere."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Annotated, Any

import typer

from diag.cli.reading import no_dash
from diag.cli.recording import SKIP, RecordingOptions, with_options
from diag.errors import DiagError, ExitCode
from diag.words.terminal import put

_FORMATS = ("shell", "lines", "json")


@with_options(RecordingOptions, panels=False)
def attach(
    out: Annotated[
        str,
        typer.Option(
            help="Run directory, on storage that all nodes share; or an address (s3://bucket/run, sftp://...), to "
            "which one process a node writes.",
            callback=no_dash,
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--format",
            help="shell: for eval; lines: NAME=VALUE, for --env-file and the like; json: an object, for the env_vars "
            "of Ray's runtime_env. The last two hold PYTHONPATH as it is here.",
        ),
    ] = "shell",
    trace_skip: Annotated[int, typer.Option(help="Steps before the first window.", min=0)] = SKIP,
    **values: Any,
) -> None:
    """Print the environment in which any training records itself: for Slurm, Kubernetes and other launchers.

    In a job's script, before the line that starts the training: `eval "$(diag attach --out RUN)"`. The script that
    trains stays as it is.
    """
    if output not in _FORMATS:
        raise DiagError(f"--format is one of {', '.join(_FORMATS)}, not {output}", exit_code=ExitCode.USAGE)
    from diag.collectors.packing import PACK_VARIABLE
    from diag.collectors.settings import SITE, attached, python_path
    from diag.watch.launch import Launch, open_run_directory
    from diag.watch.packing import place_of

    options = RecordingOptions(out=out, trace_skip=trace_skip, **values)
    settings = options.of_collectors()
    folder, packing = place_of(out, options.pack, options.pack_interval)
    layout = open_run_directory(folder, Launch(nproc=1), sys.argv[1:], "attach")
    variables = attached(layout.root, settings)
    if packing is not None:
        variables[PACK_VARIABLE] = packing.to_json()
    everything = {**variables, "PYTHONPATH": python_path()}
    if output == "json":
        put(f"{json.dumps(everything)}\n")
        return
    if output == "lines":
        for name, value in everything.items():
            put(f"{name}={value}\n")
        return
    for name, value in variables.items():
        put(f"export {name}={shlex.quote(value)}\n")
    # The PYTHONPATH of the shell that evaluates this comes after ours.
    put(f'export PYTHONPATH={shlex.quote(str(SITE))}"${{PYTHONPATH:+:$PYTHONPATH}}"\n')
