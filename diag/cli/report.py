"""``diag report``: what the dashboard's first page shows, as one HTML file to send, or as text to paste."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diag import processes
from diag.cli.reading import (
    ClusterOption,
    CommKernelsOption,
    JobsOption,
    PathsArgument,
    PolicyOption,
    RankOption,
    SinceOption,
    StepsOption,
    comm_rules,
    override_thresholds,
    ranks_by_path,
    set_up_numpy,
)
from diag.cli.writing import is_stdout
from diag.errors import DiagError, ExitCode
from diag.show import KEPT, REDACTED
from diag.words.formatting import counted, visible
from diag.words.terminal import put, say

if TYPE_CHECKING:
    from diag.api import Result
    from diag.show.redact import Pseudonyms


_PACKED = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".zip")  # names of archives


class Form(StrEnum):
    HTML, ISSUE, MESSAGE = "html", "issue", "message"


def report(
    paths: PathsArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The file, replaced if it is there; - is standard output, for a pipe. Without it, report.html; an "
            "issue and a message are printed.",
        ),
    ] = None,
    form: Annotated[
        Form,
        typer.Option("--format", help="html: one file. issue: Markdown to paste. message: a few lines of plain text."),
    ] = Form.HTML,
    redact: Annotated[
        bool,
        typer.Option("--redact", help=f"{REDACTED} {KEPT}"),
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            metavar="FOLDER",
            help="Write a redacted copy of the run directory instead, which can be analysed again with the same "
            "verdict. " + REDACTED,
        ),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
    steps: StepsOption = None,
    since: SinceOption = None,
    rank: RankOption = None,
    comm_kernels: CommKernelsOption = None,
    jobs: JobsOption = None,
    cluster: ClusterOption = None,
    policy: PolicyOption = None,
) -> None:
    """Write the verdict, figures, findings and advice into one HTML file that loads nothing from anywhere, or as text.

    Exit code 0: written; 4: written, but data is missing (the report lists it); 1: nothing to analyse, or not written.
    """
    override_thresholds(policy, cluster)
    set_up_numpy()
    if bundle is not None and (len(paths) > 1 or out is not None or open_it or form is not Form.HTML):
        hint = "one run, without -o, --open and --format: diag report RUN --bundle FOLDER"
        raise DiagError("--bundle writes a copy of one run", hint=hint, exit_code=ExitCode.USAGE)
    if bundle is not None and bundle.name.endswith(_PACKED):
        raise DiagError(
            "--bundle writes a folder, and this is the name of an archive",
            path=bundle,
            hint=f"--bundle {bundle.name.partition('.')[0]}, and pack that folder to send it",
            exit_code=ExitCode.USAGE,
        )
    printed = out is None and form is not Form.HTML
    if printed and open_it:
        raise DiagError("--open needs a file", hint="give -o report.html", exit_code=ExitCode.USAGE)
    out = out or Path("report.html")
    target = None if printed else _target(out, open_it)  # before minutes of analysis
    from diag.api import Reading
    from diag.by_size import open_by_size
    from diag.show.redact import Pseudonyms

    from .reading import reading_progress

    with reading_progress() as progress:
        reading = Reading(
            jobs=jobs,
            cluster=cluster,
            ranks=ranks_by_path(rank or []),
            progress=progress,
            comm_kernels=comm_rules(comm_kernels),
        )
        result = open_by_size(*paths, reading=reading, steps=steps, since=since)
    if bundle is not None:
        _bundle(result, bundle)
        raise typer.Exit(ExitCode.DATA_INCOMPLETE if result.coverage.incomplete else ExitCode.OK)
    shown = ["--redact", "-o", "report.html"] if redact else ["-o", out.name]
    shown = [*(f"--{name}={value}" for name, value in (("steps", steps), ("since", since)) if value), *shown]
    command = shlex.join(["diag", "report", *paths, *shown])
    named = [Path(path) for path in (*paths, target, policy) if path is not None]
    names = Pseudonyms(result, named) if redact else None
    content = _written(result, form, command, names).encode(errors="backslashreplace")  # names of files
    if target is None:
        put(content)
    else:
        _write(target, content)
        _print_written(result, out, target, len(content), open_it)
    raise typer.Exit(ExitCode.DATA_INCOMPLETE if result.coverage.incomplete else ExitCode.OK)


def _bundle(result: Result, folder: Path) -> None:
    from diag.show.bundle import write_bundle
    from diag.show.redact import Pseudonyms

    written = write_bundle(result.tables.root, folder, Pseudonyms(result, [folder]))
    much = f"{counted(written.files, 'file')}, {written.bytes / 1e6:.1f} MB"
    say(f"Written: {folder} ({much}). `diag analyze {folder}` analyses it.")
    for gap in written.left_out:
        say(f"Left out: {visible(gap.path)}: {visible(gap.reason)}")
    say("Logs and messages are free text: look through them before you pass the folder on.")


def _written(result: Result, form: Form, command: str, names: Pseudonyms | None) -> str:
    from diag.version import version

    if form is Form.HTML:
        from diag.app.html_report.render import render

        return render(result, command, version(), names)
    from diag.show.brief import as_issue, as_message
    from diag.show.page import advice_of, page_of
    from diag.show.policy import PAGE
    from diag.show.redacted import page_without_names, redacted

    page, advised = page_of(result, PAGE.ranks_that_matter), advice_of(result)
    if names is not None:
        page, advised = page_without_names(page, names), redacted(advised, names)
    return as_issue(page, advised, version()) if form is Form.ISSUE else as_message(page, advised)


def _target(out: Path, open_it: bool) -> Path | None:
    """The file to write, the one that a link points to; None for standard output."""
    if is_stdout(out):
        if open_it:
            raise DiagError("--open needs a file", hint="give -o report.html", exit_code=ExitCode.USAGE)
        return None
    target = out.resolve()
    if target.is_dir():
        raise DiagError("is a folder", path=out, hint=f"give a file in it: -o {shlex.quote(str(out / 'report.html'))}")
    if target.exists() and not target.is_file():
        raise DiagError("is not a file that can be replaced", path=out, hint="give a file; -o - is for pipes")
    return target


def _write(target: Path, content: bytes) -> None:
    from diag.collectors.files import replace_file

    try:
        # It quotes the command line and logs; a file that others may read already stays so.
        shared = target.exists() and target.stat().st_mode & 0o077
        replace_file(target, content, private=not shared)
    except OSError as error:
        raise DiagError(
            f"the report cannot be written: {error.strerror or error}",
            path=target,
            hint="give a place that you may write to: -o FILE",
        ) from error


def _print_written(result: Result, out: Path, target: Path, size: int, open_it: bool) -> None:
    missing = ", with data missing" if result.coverage.incomplete else ""
    say(f"Written: {out} ({size / 1e6:.1f} MB{missing}). It opens in any browser, without a network.")
    if open_it and not processes.open_in_browser(target.as_uri()):
        say("diag: no browser was found", err=True)
