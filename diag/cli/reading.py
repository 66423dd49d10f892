"""Options that several commands share, and commands whose options are a dataclass."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from diag.collectors.layout import MOST_RANKS
from diag.collectors.settings import CollectorSettings
from diag.collectors.trainer.keys import Option, option, options_of
from diag.collectors.trainer.options import COLLECT
from diag.errors import DiagError, ExitCode
from diag.words.terminal import console

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from diag.traces.kineto_names import CommRule

# -- progress ----------------------------------------------------------------------------------------------------------
#
# Progress on standard error, only on a terminal.


@contextmanager
def reading_progress(label: str = "reading") -> Iterator[Callable[[int, int, str], None] | None]:
    """A function that takes (files read, files in all, the file), or None where standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn(label, markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console(err=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def update(done: int, total: int, path: str) -> None:
            bar.update(task, completed=done, total=total, description=path.rsplit("/", 1)[-1])

        yield update


PathsArgument = Annotated[
    list[str],
    typer.Argument(
        help="A run directory; folders, files, tar archives or addresses (s3://...) of Kineto traces; files of NCCL "
        "Inspector; or memory snapshots."
    ),
]
RankOption = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE=RANK", help="Rank of a trace whose header and file name have none; repeatable."),
]
JobsOption = Annotated[
    int | None, typer.Option(min=1, help="Processes that read traces; by default as many as reduce the reading time.")
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Read on the workers of a running Dask scheduler. They need this version of diag, the same paths, and "
        "the folder that DIAG_CACHE names. Needs the extra: pip install 'diag\\[cluster]'.",
    ),
]
CommKernelsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REGEX=OPERATION",
        help="Count kernels with matching names as communication, as this operation (all_reduce, all_to_all, ...); "
        "repeatable. A diag.toml in the folder of the traces or in the current directory adds its own: "
        'comm_kernels = \\["REGEX=OPERATION"]. The first match is used, those of the command line first.',
    ),
]


def rank_list(text: str) -> list[int]:
    """The ranks of "0,17-19", in the order in which they are written. DiagError where it is no list of ranks, or names
    one that no training has."""
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()):
            raise _no_ranks(text, f"{part.strip()!r} is not a rank")
        if max(len(first), len(last)) > 18 or max(int(first), int(last)) >= MOST_RANKS:
            raise _no_ranks(text, f"a rank is below {MOST_RANKS:,}")
        if int(last) < int(first):
            raise _no_ranks(text, f"{part.strip()} ends before it begins")
        ranks.extend(range(int(first), int(last) + 1))
        if len(ranks) > MOST_RANKS:
            raise _no_ranks(text, f"it has more than {MOST_RANKS:,} ranks")
    return ranks


def _no_ranks(text: str, why: str) -> DiagError:
    return DiagError(f"--ranks {text[:80]}: {why}", hint="for example --ranks 0,17-19", exit_code=ExitCode.USAGE)


def comm_rules(rules: list[str] | None) -> tuple[CommRule, ...]:
    """The rules in REGEX=OPERATION."""
    if not rules:
        return ()
    from diag.traces.kineto_names import RuleError, parse_rule

    try:
        return tuple(parse_rule(text) for text in rules)
    except RuleError as error:
        raise typer.BadParameter(f"--comm-kernels {error}") from error


def ranks_by_path(assignments: list[str]) -> dict[str, int]:
    """Rank by path, from FILE=RANK."""
    ranks = {}
    for text in assignments:
        path, _, number = text.rpartition("=")
        if not path or not number.isdecimal() or len(number) > 18 or int(number) >= MOST_RANKS:
            raise typer.BadParameter(
                f"{text[:200]}: give FILE=RANK, a rank below {MOST_RANKS:,}, for example --rank traces/a.json=3"
            )
        ranks[path] = int(number)
    return ranks


# -- options from a dataclass ------------------------------------------------------------------------------------------


def with_options(
    cls: type[DataclassInstance], panels: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command that takes ``**values`` an option for each field of the dataclass, except those that it declares
    itself. ``panels``: the help has the fields' panels, else one list."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        parameters = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        types = get_type_hints(cls)
        for field, about in options_of(cls):
            if about.panel and field.name not in signature.parameters:
                kind: Any = types[field.name]
                if isinstance(field.default, tuple):
                    kind = list[str] | None
                elif about.path:
                    kind = Path | None
                parameters.append(
                    inspect.Parameter(
                        field.name,
                        inspect.Parameter.KEYWORD_ONLY,
                        default=field.default or None if isinstance(field.default, tuple) else field.default,
                        annotation=Annotated[kind, _typer_option(about, about.panel if panels else None)],
                    )
                )
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return add


def _typer_option(about: Option, panel: str | None) -> typer.models.OptionInfo:
    names = [about.flag] if about.flag != "--module/-m" else ["--module", "-m"]
    made: typer.models.OptionInfo = typer.Option(
        *names,
        help=about.help,
        min=about.least,
        max=about.most,
        metavar=about.metavar,
        rich_help_panel=panel,
    )
    return made


SKIP = 10  # steps before the first window, so that warm-up is over


@dataclass(frozen=True)
class RecordingOptions:
    """What the collectors of any training write, and where: ``diag run`` and ``diag attach``."""

    out: Path | None = option(None, COLLECT, "Run directory; by default runs/<time>-<strategy>.")  # noqa: RUF009
    trace: bool = option(True, COLLECT, "Record a torch.profiler window.", "--trace/--no-trace")
    trace_skip: int | None = option(
        None, COLLECT, "Steps before the first window; by default 10, fewer in a short run."
    )
    trace_active: int = option(3, COLLECT, "Steps per window.", least=1)
    trace_every: int = option(0, COLLECT, "Steps between two windows; 0: one window.", least=0)
    byte_budget_mb: int = option(1024, COLLECT, "Maximum data that one rank may write, in MB.", least=1)
    memory_snapshots: bool = option(
        False,
        COLLECT,
        "Record the GPU allocator's history, and write a memory snapshot near out-of-memory and when an allocation "
        "fails. Costs about 2 us an allocation and up to some hundred MB of host memory a rank.",
    )
    collective_timing: Literal["auto", "recorder", "off"] = option(
        "auto",
        COLLECT,
        "Durations of collectives on GPUs; auto: from NCCL Inspector where it is installed; recorder: else from "
        "PyTorch's Flight Recorder.",
    )

    def of_collectors(self) -> CollectorSettings:
        return CollectorSettings(
            trace=self.trace,
            trace_skip=SKIP if self.trace_skip is None else self.trace_skip,
            trace_active=self.trace_active,
            trace_every=self.trace_every,
            byte_budget=self.byte_budget_mb * 1_000_000,
            collective_timing=self.collective_timing,
            memory_snapshots=self.memory_snapshots,
        )
