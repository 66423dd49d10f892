"""``diag compare``: which part of the step changed between two runs."""

from __future__ import annotations

from typing import Annotated

import typer

from diag.cli.reading import CommKernelsOption, JobsOption, PolicyOption, comm_rules, override_thresholds, set_up_numpy
from diag.errors import DiagError, ExitCode
from diag.words.terminal import put


def compare(
    before: Annotated[
        str,
        typer.Argument(metavar="A", help="A run directory, the folder of its pieces, or a folder of Kineto traces."),
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="The run that is compared with it.")],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare runs whose steps do different work, at your own risk.")
    ] = False,
    tables: Annotated[
        bool, typer.Option("--tables", help="Also the collectives, kernels and modules that differ most.")
    ] = False,
    evidence: Annotated[
        bool,
        typer.Option("--evidence", "--verbose", "-v", help="Also both verdicts, all parts, and how runs are compared."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The JSON contract on standard output.")] = False,
    comm_kernels: CommKernelsOption = None,
    jobs: JobsOption = None,
    policy: PolicyOption = None,
) -> None:
    """Show in which part of the step two runs differ, and how certain that is.

    Exit code 0: compared; 4: compared, but data is missing; 1: not comparable, or nothing to compare.
    """
    override_thresholds(policy)
    set_up_numpy()
    from diag.api import Reading, compare_runs
    from diag.by_size import open_by_size
    from diag.show.compare import differences_by_name, print_comparison, to_json

    from .reading import reading_progress

    with reading_progress() as progress:
        reading = Reading(jobs=jobs, progress=progress, comm_kernels=comm_rules(comm_kernels))
        first, second = (open_by_size(path, reading=reading) for path in (before, after))
    comparison = compare_runs(first, second)
    if comparison.not_comparable and not anyway:
        raise DiagError(
            f"{after} does different work from {before}: " + "; ".join(comparison.not_comparable),
            hint="--anyway compares them at your own risk",
        )
    by_name = differences_by_name(first, second) if tables else ()
    if as_json:
        put(to_json(comparison, first, second, by_name if tables else None) + "\n")
    else:
        print_comparison(comparison, first, second, by_name=by_name, evidence=evidence)
    missing = first.coverage.incomplete or second.coverage.incomplete
    raise typer.Exit(ExitCode.DATA_INCOMPLETE if missing else ExitCode.OK)
