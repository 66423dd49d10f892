"""``diag analyze``: the verdict, with its evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

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
from diag.deferred import by_name
from diag.errors import DiagError, ExitCode
from diag.words.terminal import put

if TYPE_CHECKING:
    from typing import Any

    from diag.api import Job, Jobs, Reading, Result


class Tool(StrEnum):
    """Other tools that can measure the same traces."""

    HTA = "hta"


class TableName(StrEnum):
    """The tables behind the verdict."""

    COLLECTIVES = "collectives"
    KERNELS = "kernels"
    MODULES = "modules"
    EFFICIENCY = "efficiency"
    PATH = "path"


class Asked(Protocol):
    """What is shown of another tool."""

    def to_dict(self, result: Result) -> dict[str, Any]: ...

    def print(self, result: Result) -> None: ...


# What few runs or requests need, each in a module that is loaded by its name.
_OTHER_TOOLS = {Tool.HTA: "diag.cli.other_tools"}
_JOBS = "diag.show.jobs"
_SNAPSHOTS = "diag.cli.snapshots"
_printed: Callable[[Sequence[str], object], Any] = by_name("diag.show.printed:Printed")
_print_report: Callable[..., None] = by_name("diag.show.text:print_report")
_print_breakdown: Callable[[Result, str], None] = by_name("diag.show.breakdowns:print_breakdown")
_open_summaries: Callable[[str, Callable[[int, int, str], None] | None], Result] = by_name(
    "diag.summaries:open_summaries"
)
_open_by_size: Callable[..., Result] = by_name("diag.by_size:open_by_size")
_open_each: Callable[[Jobs, Reading], Iterator[tuple[Job, Result | DiagError]]] = by_name("diag.summaries:open_each")


def _asked_of_others(tool: Tool | None, analyses: Sequence[str]) -> Asked | None:
    if tool is None and not analyses:
        return None
    asked: Asked = import_module(_OTHER_TOOLS[tool or Tool.HTA]).Asked.of(tool is not None, analyses)
    return asked


def analyze(
    paths: PathsArgument,
    as_json: Annotated[bool, typer.Option("--json", help="The JSON contract on standard output.")] = False,
    cross_check: Annotated[
        Tool | None,
        typer.Option(
            help="Show HolisticTraceAnalysis's temporal breakdown and overlap of the same traces next to diag's. "
            "Needs the extra hta."
        ),
    ] = None,
    hta: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ANALYSIS",
            help="Run an analysis of HolisticTraceAnalysis on one rank; repeatable. "
            "critical-path:rank=R,step=N: the critical path inside a step. sequences:rank=R,operator=TEXT,length=N: "
            "frequent sequences of at least N kernels under operators whose name contains TEXT. Each setting is "
            "optional.",
        ),
    ] = None,
    table: Annotated[
        list[TableName] | None, typer.Option(help="Also print this table; repeatable. --json holds all of them.")
    ] = None,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Also print the evidence of each finding, and all changes to try.")
    ] = False,
    checked: Annotated[
        bool,
        typer.Option(
            "--checked", help="Also print what was looked for and not found, and what could not be looked for."
        ),
    ] = False,
    tables: Annotated[bool, typer.Option("--tables", help="Also print all ranks, and every --table.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="All of --evidence, --checked and --tables.")
    ] = False,
    summary: Annotated[
        bool | None,
        typer.Option(
            "--summary/--no-summary",
            help="Read only the summaries that the ranks wrote of their newest steps; the default for a run of more "
            "than 512 ranks, most of them without a trace.",
        ),
    ] = None,
    steps: StepsOption = None,
    since: SinceOption = None,
    rank: RankOption = None,
    comm_kernels: CommKernelsOption = None,
    jobs: JobsOption = None,
    cluster: ClusterOption = None,
    policy: PolicyOption = None,
) -> None:
    """Find what bounds a run, which ranks are at fault, and the evidence for it.

    The step time is the mean of the counted steps: no warm-up, none in profiler windows. A finding that names a rank
    costs what is charged to it: how long the others wait for it because of that.

    Snapshots of PyTorch's memory (torch.cuda.memory._dump_snapshot), a file or a folder of them, are a report of their
    own: peak, what was allocated there, fragmentation, failed allocations, and ranks compared.

    Writes verdict.json into a run directory of diag, for the dashboard, and what it may need again into tables/ there;
    nothing else into what it reads.

    Traces of several jobs, and folders of runs, are listed with the verdict of each; FOLDER::NAME is one of them.

    Exit code 0: analysed; 4: analysed, but data is missing (the report lists it); 1: nothing to analyse.
    """
    override_thresholds(policy, cluster)
    of_others = cluster is not None or cross_check is not None or bool(hta)
    shows = (as_json, table, evidence, checked, tables, verbose)
    printed = _printed([] if of_others else paths, ("analyze", shows, summary, steps, since, rank, comm_kernels))
    if (known := printed.again()) is not None:
        raise typer.Exit(known)
    set_up_numpy()
    from diag.api import Reading, SeveralJobsError, local_paths, open_run
    from diag.rundir.asked import steps_asked
    from diag.show.answer import Part, print_answer
    from diag.show.json import fields_of, save, to_json

    from .reading import reading_progress

    if summary is None and _print_snapshots(paths, as_json):
        return
    if steps_asked(steps, since) is not None and summary:
        raise DiagError("--summary reads the newest steps", hint="leave it out", exit_code=ExitCode.USAGE)
    asked = _asked_of_others(cross_check, hta or [])
    paths = local_paths(paths) if len(paths) > 1 else paths  # the pieces of a job have one name
    with reading_progress() as progress:
        reading = Reading(
            jobs=jobs,
            cluster=cluster,
            ranks=ranks_by_path(rank or []),
            progress=progress,
            comm_kernels=comm_rules(comm_kernels),
        )
        result: Result
        try:
            if summary:
                result = _open_summaries(_one_run(paths), progress)
            elif summary is None:
                result = _open_by_size(*paths, reading=reading, steps=steps, since=since)
            else:
                result = open_run(*paths, reading=reading, steps=steps, since=since)
        except SeveralJobsError as several:
            if table or cross_check or hta or steps or since:  # these are of one job
                raise
            raise typer.Exit(_list_jobs(several.jobs, reading, as_json)) from None
    fields = None
    with printed.noted():
        if as_json:
            fields = fields_of(result)
            added = asked.to_dict(result) if asked is not None else {}
            put(to_json(result, tables=True, added=added, fields=fields) + "\n")
        else:
            asked_for = {Part.EVIDENCE: evidence, Part.CHECKED: checked, Part.TABLES: tables}
            parts = [part for part in Part if verbose or asked_for[part]]
            if parts:
                _print_report(result, parts=parts, paths=paths)
            else:
                print_answer(result, paths=paths)
            if table and Part.TABLES not in parts:
                for name in table:
                    _print_breakdown(result, name.value)
            if asked is not None:
                asked.print(result)
    if result.tables.only is None:  # verdict.json is about the whole run
        save(result, fields)
    code = ExitCode.DATA_INCOMPLETE if result.coverage.incomplete else ExitCode.OK
    printed.keep(result, code)
    raise typer.Exit(code)


def _one_run(paths: Sequence[str]) -> str:
    from diag.rundir.attempts import attempt_paths

    run, *others = attempt_paths(paths)
    if others:
        raise DiagError("--summary reads one run directory", exit_code=ExitCode.USAGE)
    return run


def _print_snapshots(paths: list[str], as_json: bool) -> bool:
    """Whether the paths hold memory snapshots and nothing to analyse; if so, prints them."""
    from diag.traces.snapshot_files import snapshots_alone

    if not snapshots_alone(paths):
        return False
    import_module(_SNAPSHOTS).print_snapshots(paths, as_json)
    return True


def _list_jobs(several: Jobs, reading: Reading, as_json: bool) -> ExitCode:
    """Analyses and prints each of several jobs."""
    from diag.api import Result
    from diag.show.json import save

    jobs_shown = import_module(_JOBS)
    jobs = []
    for job, outcome in _open_each(several, reading):
        jobs.append(jobs_shown.listed(job, outcome))
        if isinstance(outcome, Result):
            save(outcome)
    if as_json:
        put(jobs_shown.to_json(several, jobs) + "\n")
    else:
        jobs_shown.print_jobs(several, jobs)
    return ExitCode(jobs_shown.exit_code(several, jobs))
