"""``diag trace``: a profiler window of a job that is running, or a snapshot of its memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from diag.cli.reading import rank_list
from diag.errors import ExitCode
from diag.words.terminal import put, say

if TYPE_CHECKING:
    from diag.collectors.records import TraceAsked
    from diag.watch.traces import Answer


def trace(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run directory of the job, or its address.")],
    steps: Annotated[int, typer.Option(help="Steps to record.", min=1, max=100)] = 3,
    ranks: Annotated[
        str | None, typer.Option(metavar="RANKS", help="Ranks to record, for example 0,17-19; by default all.")
    ] = None,
    ahead: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How far ahead the window begins, so that every rank sees the request in time: by default 3 seconds; "
            "more on storage that shows new files late.",
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory",
            help="Write a snapshot of the GPU allocator instead, at once. Its curve and stacks need a job that was "
            "started with --memory-snapshots; without it the snapshot has the blocks alone.",
        ),
    ] = False,
    wait: Annotated[bool, typer.Option(help="--no-wait returns as soon as the request is written.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON on standard output: the request, and each rank's answer.")
    ] = False,
) -> None:
    """Record a torch.profiler window of a running job, on all ranks or some, at the same steps.

    The ranks need their collectors, and nothing else: no restart, and no cost until they are asked. A rank that reads
    of it too late reports that, and records no other steps instead.

    Exit code 0: all ranks recorded it; 4: some did not (each is listed with the reason); 1: none did.
    """
    from diag.watch import traces as asking
    from diag.watch.reach import Reach

    from .reading import reading_progress

    reach = Reach(run)
    layout = reach.layout
    chosen = rank_list(ranks) if ranks is not None else None
    if memory:
        asked = asking.ask_for_memory(layout, chosen, "diag trace --memory")
    else:
        asked = asking.ask(layout, steps, chosen, "diag trace", ahead)
    reach.hand_on(layout.trace_asked)
    answers: list[Answer] = []
    if wait:
        with reading_progress("waiting") as progress:
            answers = asking.wait(layout, asked, progress, refresh=reach.refresh)
    if as_json:
        put(json.dumps(_document(asked, answers)) + "\n")
    else:
        _print(run, asked, answers)
    done = sum(answer.path is not None for answer in answers)
    if wait and done < len(answers):
        raise typer.Exit(ExitCode.DATA_INCOMPLETE if done else ExitCode.ERROR)


def _print(run: str, asked: TraceAsked, answers: list[Answer]) -> None:
    request = f"Steps {asked.first_step} to {asked.first_step + asked.count - 1}"
    if asked.memory:
        request = f"Memory snapshots at step {asked.first_step} or later"
    say(request + ("." if answers else f" are asked for; {run} will have them."))
    for answer in answers:
        if answer.path is not None:
            say(f"rank {answer.rank}: {answer.path} ({answer.path.stat().st_size / 1e6:.1f} MB)")
        else:
            say(f"rank {answer.rank}: no {'snapshot' if asked.memory else 'trace'}: {answer.why_not}")
    if any(answer.path is not None for answer in answers):
        say(f"Next: diag analyze {run}")


def _document(asked: TraceAsked, answers: list[Answer]) -> dict[str, object]:
    from diag.collectors.layout import SCHEMA_VERSION

    return {
        "schema_version": SCHEMA_VERSION,
        "asked": {
            "number": asked.number,
            "first_step": asked.first_step,
            "count": asked.count,
            "ranks": asked.ranks,
            "memory": asked.memory,
        },
        "ranks": [
            {"rank": a.rank, "path": str(a.path) if a.path is not None else None, "reason": a.why_not or None}
            for a in answers
        ],
    }
