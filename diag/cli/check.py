"""``diag check``: checks a run against budgets, for CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diag.cli.reading import CommKernelsOption, JobsOption, PolicyOption, comm_rules, override_thresholds, set_up_numpy
from diag.cli.writing import no_dash
from diag.errors import DiagError, ExitCode
from diag.gate import budgets as of
from diag.words.terminal import put, say

if TYPE_CHECKING:
    from diag.gate.budgets import Budget


def _option(quantity: of.Quantity) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        f"--{quantity.name}", metavar=quantity.unit.value, help=quantity.help, rich_help_panel="Budgets"
    )
    return option


def check(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run directory, the folder of its pieces, or a folder of Kineto traces."),
    ],
    max_exposed_comm: Annotated[str | None, _option(of.EXPOSED_COMM)] = None,
    max_data_wait: Annotated[str | None, _option(of.DATA_WAIT)] = None,
    max_exposed_copies: Annotated[str | None, _option(of.EXPOSED_COPIES)] = None,
    max_host_wait: Annotated[str | None, _option(of.HOST_WAIT)] = None,
    max_checkpoint: Annotated[str | None, _option(of.CHECKPOINTS)] = None,
    max_straggler: Annotated[str | None, _option(of.STRAGGLER)] = None,
    max_step: Annotated[str | None, _option(of.STEP)] = None,
    min_mfu: Annotated[str | None, _option(of.MFU)] = None,
    min_tokens_per_second: Annotated[str | None, _option(of.TOKENS)] = None,
    max_peak_memory: Annotated[str | None, _option(of.PEAK_MEMORY)] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The run to measure a regression against.", rich_help_panel="Budgets"),
    ] = None,
    max_regression: Annotated[str | None, _option(of.REGRESSION)] = None,
    budget: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='A TOML file with these options as keys (max-step = "350ms"); options on the command line win. '
            "A path in it is relative to the file.",
            rich_help_panel="Budgets",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also fail where a value is too close to its limit to decide.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The JSON contract on standard output.")] = False,
    junit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write JUnit XML, a test case per budget.", callback=no_dash),
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Also print workflow commands, which GitHub Actions shows as annotations.")
    ] = False,
    comm_kernels: CommKernelsOption = None,
    jobs: JobsOption = None,
    policy: PolicyOption = None,
) -> None:
    """Check a run against budgets. A budget that cannot be measured never passes.

    Exit code 0: no budget is certainly exceeded; 3: a budget is; 4: the data cannot decide; 1, 2: nothing to check.
    """
    override_thresholds(policy)
    written = {
        of.EXPOSED_COMM: max_exposed_comm, of.DATA_WAIT: max_data_wait, of.EXPOSED_COPIES: max_exposed_copies,
        of.HOST_WAIT: max_host_wait,
        of.CHECKPOINTS: max_checkpoint, of.STRAGGLER: max_straggler, of.STEP: max_step, of.MFU: min_mfu,
        of.TOKENS: min_tokens_per_second, of.PEAK_MEMORY: max_peak_memory, of.REGRESSION: max_regression,
    }  # fmt: skip
    if as_json and github:
        raise DiagError(
            "--github and --json both write to standard output", hint="leave one out", exit_code=ExitCode.USAGE
        )
    limits = [of.parse_limit(quantity, text) for quantity, text in written.items() if text is not None]
    asked, against = _asked(limits, baseline, budget)
    set_up_numpy()
    from diag.api import Reading
    from diag.by_size import open_by_size
    from diag.gate.check import check as check_budgets
    from diag.show.gate import print_gate, to_json, workflow_commands

    from .reading import reading_progress

    with reading_progress() as progress:
        reading = Reading(jobs=jobs, progress=progress, comm_kernels=comm_rules(comm_kernels))
        before = open_by_size(against, reading=reading) if against is not None else None
        result = open_by_size(run, reading=reading)
    gate = check_budgets(result, asked, before, strict)
    if junit is not None:
        from diag.show.gate import to_junit

        _write(junit, to_junit(gate, str(run), result.verdict.headline))
    if as_json:
        put(to_json(gate, result) + "\n")
    else:
        print_gate(gate, result)
    for line in workflow_commands(gate) if github else ():
        say(line)
    raise typer.Exit(gate.exit_code)


def _asked(limits: list[Budget], baseline: Path | None, file: Path | None) -> tuple[list[Budget], Path | None]:
    """All budgets in the order of the definitions, and the baseline. Mistakes are reported before minutes of
    analysis."""
    by_quantity = {}
    if file is not None:
        from diag.gate.budgets import read_budgets

        from_file = read_budgets(file)
        by_quantity = {budget.quantity: budget for budget in from_file.budgets}
        baseline = baseline or from_file.baseline
    by_quantity |= {budget.quantity: budget for budget in limits}
    if not by_quantity:
        raise DiagError(
            "no budget was given", hint="for example --max-data-wait 5%, or --budget FILE", exit_code=ExitCode.USAGE
        )
    if (of.REGRESSION in by_quantity) != (baseline is not None):
        missing = "--max-regression, for example 5%" if baseline is not None else "--baseline RUN"
        raise DiagError("a regression needs a baseline and a limit", hint=f"give {missing}", exit_code=ExitCode.USAGE)
    return [by_quantity[quantity] for quantity in of.QUANTITIES if quantity in by_quantity], baseline


def _write(path: Path, content: bytes) -> None:
    from diag.collectors.files import replace_file

    try:
        replace_file(path, content)
    except OSError as error:
        raise DiagError(
            f"cannot be written: {error.strerror or error}", path=path, hint="give a place that you may write to"
        ) from error
