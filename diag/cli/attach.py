"""``diag attach``: the environment that makes a training record itself, for launchers that start it elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from diag.cli.recording import SKIP, RecordingOptions, with_options
from diag.cli.writing import no_dash
from diag.errors import DiagError, ExitCode
from diag.words.terminal import put, say

if TYPE_CHECKING:
    from diag.watch.attaching import Attaching


@with_options(RecordingOptions, panels=False)
def attach(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="With --check, after `--`: what starts a Python on each node, in the training's container, as "
            "`srun --container-image IMAGE python`; by default the Python on PATH.",
        ),
    ] = None,
    *,
    out: Annotated[
        str,
        typer.Option(
            help="Run directory, on storage that all nodes share; or an address (s3://bucket/run, sftp://...), to "
            "which one process a node writes.",
            callback=no_dash,
        ),
    ],
    output: Annotated[
        Literal["shell", "lines", "json", "k8s"],
        typer.Option(
            "--format",
            help="shell: for eval; lines: NAME=VALUE, for --env-file and the like; json: an object, for the env_vars "
            "of Ray's runtime_env; k8s: the env of a container, in YAML. Lines and json hold PYTHONPATH as it is here.",
        ),
    ] = "shell",
    recorder: Annotated[
        str | None,
        typer.Option(
            help="With --format k8s: the folder in the container that holds the recorder, as the target `recorder` of "
            "examples/recorder.Dockerfile makes it; by default where it is here.",
            metavar="FOLDER",
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch/--no-watch",
            help="A process next to rank 0 says in the job's log when the training is stuck or its verdict changes. It "
            "sends messages as the variables DIAG_NOTIFY and DIAG_ON_EVENT of the job say.",
        ),
    ] = True,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Print nothing to evaluate. Start a Python as the training will be, and say whether the recorder "
            "would start in it: exit code 1 if not.",
        ),
    ] = False,
    trace_skip: Annotated[int, typer.Option(help="Steps before the first window.", min=0)] = SKIP,
    **values: Any,
) -> None:
    """Print the environment in which any training records itself: for Slurm, Kubernetes and other launchers.

    In a job's script, before the line that starts the training: `eval "$(diag attach --out RUN)"`. The script that
    trains stays as it is. Every node, pod and process may evaluate the line: all of one attempt of a job record
    together. A requeue or a restart is the next attempt, in the same run directory.
    """
    from diag.watch.attaching import in_containers, not_recorded

    options = RecordingOptions(out=out, trace_skip=trace_skip, **values)
    if check:
        raise typer.Exit(_check(options, command))
    if command:
        raise DiagError(
            "a command belongs to --check", hint="evaluate the line, then start it", exit_code=ExitCode.USAGE
        )
    try:
        if output == "k8s":
            attaching = in_containers(
                out, options.of_collectors(), options.pack_interval, options.pack, recorder, watch
            )
        else:
            attaching = _here(options, watch)
    except DiagError as error:
        if output == "shell":  # the exit code is lost in `eval "$(diag attach ...)"`
            put(not_recorded(error))
        raise
    forms = {
        "shell": attaching.as_shell,
        "lines": attaching.as_lines,
        "json": attaching.as_json,
        "k8s": attaching.as_kubernetes,
    }
    put(forms[output]())


def _here(options: RecordingOptions, watch: bool) -> Attaching:
    """For processes that find the recorder where it is now, in a run directory that is made, or joined."""
    from diag.collectors.launchers import job_in
    from diag.watch.attaching import Attaching, variables_of
    from diag.watch.launch import shared_run_directory
    from diag.watch.packing import place_of

    job = job_in()
    attempt = job.key if job is not None and job.attempt is not None else ""
    folder, packing = place_of(options.out, options.pack, options.pack_interval, attempt)
    assert folder is not None
    layout, is_used = shared_run_directory(folder, sys.argv[1:])
    if is_used:
        say(
            f"diag: {layout.root} holds an attempt already. The next one is recorded in {layout.root}/restart-N",
            err=True,
        )
    return Attaching(variables_of(layout.root, options.of_collectors(), packing, job, watch))


def _check(options: RecordingOptions, command: list[str] | None) -> ExitCode:
    from diag.collectors.layout import RunLayout
    from diag.watch.attaching import Attaching, variables_of
    from diag.watch.launch import refuse_unshared
    from diag.watch.packing import place_of
    from diag.watch.probing import check, path_python

    assert options.out is not None
    folder, packing = place_of(options.out, options.pack, options.pack_interval)
    assert folder is not None
    refuse_unshared(RunLayout(folder))
    settings = options.of_collectors()
    attaching = Attaching(variables_of(folder, settings, packing, None, False))
    checked = check(
        command or [path_python()],
        attaching.everything(),
        attaching.site,
        options.out,
        packing.python if packing is not None else "",
        settings.byte_budget,
    )
    for line in checked.lines():
        say(line)
    return checked.exit_code
