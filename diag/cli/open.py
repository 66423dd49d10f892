"""``diag open``: a step in Perfetto, of one rank or of several on one clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diag.collectors.layout import MOST_RANKS
from diag.errors import DiagError, ExitCode
from diag.words.formatting import counted
from diag.words.terminal import put, say


def open_trace(
    path: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or Kineto traces.")],
    rank: Annotated[
        int | None,
        typer.Option(help="Rank whose trace is opened.", min=0, max=MOST_RANKS, show_default=False),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS",
            help="Instead of a rank: the ranks whose step is opened on one timeline, as 0-3,7 or all. Their clocks are "
            "aligned as in `diag analyze`.",
            show_default=False,
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            help="Step to open; by default the first that a trace covers. A step that was not profiled is made from "
            "its records: phases and collectives.",
            show_default=False,
        ),
    ] = None,
    from_ms: Annotated[
        float | None,
        typer.Option("--from", metavar="MS", help="Instead of a step: begin, in ms since the trace's first event."),
    ] = None,
    to_ms: Annotated[float | None, typer.Option("--to", metavar="MS", help="End of that window.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Only write the trace (.json.gz or .json; .zip with --ranks), serve nothing; - is standard output, "
            "for a pipe.",
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
) -> None:
    """Open a step in Perfetto, from traces that are cut down to it.

    The events that overlap the step are served on 127.0.0.1:9001, the one
    port that Perfetto's page may read, until the page has fetched them once.

    Nothing is uploaded: https://ui.perfetto.dev runs in your browser and
    reads the trace from this machine.

    On a remote machine forward the port (ssh -L 9001:127.0.0.1:9001 HOST)
    and open the printed link at home.
    """
    from .reading import rank_list, reading_progress
    from .writing import is_stdout

    windowed = from_ms is not None or to_ms is not None
    if step is not None and windowed:
        raise DiagError("give either --step, or --from and --to", exit_code=ExitCode.USAGE)
    if (rank is None) == (ranks is None):
        raise DiagError("give either --rank or --ranks", exit_code=ExitCode.USAGE)
    if rank is None:
        if windowed:
            raise DiagError("--ranks opens a step: give --step", exit_code=ExitCode.USAGE)
        _open_together(path, None if ranks == "all" else rank_list(ranks or ""), step, output, browser)
        return

    import tempfile

    from diag.perfetto import excerpt_text, step_of, window_of, write_excerpt
    from diag.rundir.attempts import attempt_path
    from diag.traces.reading import Reading

    to_stdout = is_stdout(output)
    with reading_progress() as progress:
        reading = Reading(progress=progress)
        path = str(attempt_path(path))
        excerpt = window_of(path, rank, from_ms, to_ms, reading) if windowed else step_of(path, rank, step, reading)
    if excerpt.recorded:
        made = f"{excerpt.why}: the step is made from what was recorded of it, its phases and collectives."
        say(made, err=to_stdout)
    if to_stdout:
        for piece in excerpt_text(excerpt):
            put(piece)
        return
    if output is not None:
        events = write_excerpt(excerpt, output)
        say(f"{output}: {events:,} events of rank {rank}, {excerpt.title}, of {excerpt.path}")
        return

    from diag.perfetto import show
    from diag.serve.server import ended_by_signals

    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="diag-open-") as folder:
        file = Path(folder) / f"rank{rank}-{excerpt.title.replace(' ', '-')}.json.gz"
        events = write_excerpt(excerpt, file)
        say(f"{events:,} events of rank {rank}, {excerpt.title}, of {excerpt.path}")
        if show(file, excerpt.begin_ns, excerpt.end_ns, open_browser=browser, say=say):
            say("Fetched.")


def _open_together(path: str, ranks: list[int] | None, step: int | None, output: Path | None, browser: bool) -> None:
    import shutil
    import sys
    import tempfile

    from diag.api import open_run
    from diag.collectors.reading import open_regular
    from diag.perfetto import save_archive, show, together
    from diag.serve.server import ended_by_signals
    from diag.traces.reading import Reading

    from .reading import reading_progress
    from .writing import is_stdout

    to_stdout = is_stdout(output)
    with reading_progress() as progress:
        chosen = together(open_run(path, reading=Reading(progress=progress)), step, ranks)
    for sentence in chosen.about:
        say(sentence, err=to_stdout)
    title = f"step {chosen.step} of {counted(len(chosen.members), 'rank')}"
    if output is not None and not to_stdout:
        save_archive(chosen.members, output)
        say(f"{output}: {title}, on one clock")
        return
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="diag-open-") as folder:
        file = Path(folder) / f"step-{chosen.step}-{len(chosen.members)}-ranks.zip"
        save_archive(chosen.members, file)  # an archive is complete before it is read: it is written back and forth
        if to_stdout:
            with open_regular(file) as archive:
                shutil.copyfileobj(archive, sys.stdout.buffer)
            return
        say(f"{title}, on one clock")
        if show(file, -1, -1, open_browser=browser, say=say):
            say("Fetched.")
