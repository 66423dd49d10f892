"""``diag triage``: which rank hung or died, why, and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from diag.cli.reading import PolicyOption, override_thresholds
from diag.collectors.layout import RunLayout, is_folder, is_regular
from diag.collectors.masking import masked
from diag.errors import DiagError, ExitCode
from diag.words.terminal import put, say


def triage(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH...",
            help="Logs of ranks, launcher and kernel, py-spy stacks, Flight Recorder dumps and ncclras reports, or "
            "folders of them, also .gz and .zst; - is standard input.",
        ),
    ] = None,
    ras: Annotated[
        bool,
        typer.Option(
            "--ras",
            help="Fetch two NCCL RAS reports of a running job, 5 s apart, and triage them too. `--ras HOST:PORT` "
            "sets the address (default: NCCL_RAS_ADDR, else localhost:28028).",
        ),
    ] = False,
    stacks: Annotated[
        bool,
        typer.Option(
            "--stacks",
            help="First ask every rank of a stuck run directory for its Python stacks and its Flight Recorder's dump, "
            "and show the stacks of all ranks as one tree. The training goes on as it is.",
        ),
    ] = False,
    evidence: Annotated[
        bool,
        typer.Option("--evidence", "--verbose", "-v", help="Also print all lines, stacks, and what was ruled out."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The JSON contract on standard output.")] = False,
    policy: PolicyOption = None,
) -> None:
    """Find the rank that a hang or a crash comes from, with the evidence and what to do next.

    The answer for a single run directory is kept in it as hang.json, which diag analyze and the dashboard show.

    Exit code 0: answered, also "healthy" and "undetermined"; 4: answered, but some files could not be read (listed in
    the report); 1: nothing to read.
    """
    override_thresholds(policy)
    from diag.ended.outcome import keep
    from diag.hang.api import incomplete
    from diag.hang.api import triage as triage_paths
    from diag.hang.ras.client import ask_twice, is_address
    from diag.rundir.following import packed_in
    from diag.rundir.local import local_paths
    from diag.show.triage import print_triage, to_json

    from .reading import reading_progress

    paths = paths or []
    reports = []
    if not paths and not ras:
        raise DiagError(
            "no log was given",
            hint="Give log files, folders of logs, - for standard input, or --ras.",
            exit_code=ExitCode.USAGE,
        )
    if ras:
        addresses = [path for path in paths if is_address(path) and not Path(path).exists()][:1]
        paths = [path for path in paths if path not in addresses]
        reports = ask_twice("".join(addresses))
    given = paths
    paths = local_paths(paths)
    paths += [copy for path in paths if is_folder(path) for copy in packed_in(path)]
    run = RunLayout(Path(paths[0])) if len(paths) == 1 and is_regular(RunLayout(Path(paths[0])).manifest) else None
    if stacks and run is None:
        raise DiagError("--stacks needs one run directory", exit_code=ExitCode.USAGE)
    with _stacks_of(given[0] if stacks else None) as silent, reading_progress() as progress:
        answer = triage_paths(paths, progress, reports)
    if silent:
        from diag.watch.stacks import no_stacks_words

        answer = replace(answer, gaps=(*answer.gaps, ("", no_stacks_words(silent))))
    usual = len(paths) == 1 and not ras and policy is None  # of the run alone, with the usual thresholds
    if usual and run is not None:
        with suppress(OSError):  # it is printed in any case
            keep(run, to_json(answer))
    if as_json:
        put(to_json(answer) + "\n")
    else:
        shown = [*(["--ras"] if ras else []), *map(masked, given)]
        print_triage(answer, evidence=evidence, tree=stacks, more=shlex.join(["diag", "triage", *shown, "-v"]))
    raise typer.Exit(ExitCode.DATA_INCOMPLETE if incomplete(answer) else ExitCode.OK)


@contextmanager
def _stacks_of(path: str | None) -> Iterator[list[int]]:
    """A context in which the ranks' answers are in the run, with the ranks that did not answer; heartbeats are short
    again after it. None: nothing is asked."""
    if path is None:
        yield []
        return
    from diag.watch.stacks import asked_for_stacks

    say("asking the ranks for their stacks", err=True)
    with asked_for_stacks(path) as silent:
        yield silent
