"""Options of the commands that read a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diag.collectors.layout import MOST_RANKS
from diag.deferred import by_name
from diag.errors import DiagError, ExitCode
from diag.policy import ENVIRONMENT as POLICY_ENVIRONMENT
from diag.words.terminal import console

if TYPE_CHECKING:
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


# -- numpy -------------------------------------------------------------------------------------------------------------


def set_up_numpy() -> None:
    """What numpy reads from the environment when it is loaded, unless the user set it."""
    # Nothing here multiplies matrices, and OpenBLAS's threads spin when numpy is loaded: 60 ms of CPU time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # numpy asks for huge pages: for the tables of 24,576 ranks, the kernel takes 0.7 s more than with small ones.
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")


# -- live runs ---------------------------------------------------------------------------------------------------------


# Analyses follow nothing.
_followed: Callable[[str, Callable[[str], object]], AbstractContextManager[Path]] = by_name(
    "diag.rundir.following:followed"
)


@contextmanager
def following(path: str | None) -> Iterator[Path | None]:
    """The local run directory of what was given, kept up to date until the end of the context: of an address, or of
    pieces in several folders."""
    if path is None:
        yield None
        return
    from diag.words.terminal import say

    with _followed(path, lambda reason: say(f"diag: {reason}", err=True)) as local:
        yield local


PathsArgument = Annotated[
    list[str],
    typer.Argument(
        help="A run directory, or its pieces from several nodes; folders, files, tar archives or addresses (s3://...) "
        "of Kineto traces; files of NCCL Inspector; or memory snapshots."
    ),
]
RankOption = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE=RANK", help="Rank of a trace whose header and file name have none; repeatable."),
]
StepsOption = Annotated[
    str | None,
    typer.Option(
        "--steps", metavar="A:B", help="Only the steps from A to B, both included; A: or :B leaves one end open."
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="STEP|TIME|DURATION",
        help="Only the steps since this one: its number, a time (14:03 or 2026-11-24T14:03, UTC), or how long before "
        "the last step (30min, 2h, 1d).",
    ),
]
JobsOption = Annotated[
    int | None, typer.Option(min=1, help="Processes that read traces; by default as many as reduce the reading time.")
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Read on the workers of a running Dask scheduler. They need this version of diag, the same paths, and "
        "the folder that DIAG_CACHE names. Needs the extra cluster.",
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


PolicyOption = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        envvar=POLICY_ENVIRONMENT,
        help="Override thresholds by those of a TOML file, which has a table for each topic; `diag help policy` lists "
        "them. The answer says which are overridden.",
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


def override_thresholds(file: Path | None, cluster: str | None = None) -> None:
    """Applies the file of --policy. DiagError where it cannot be used, or its values cannot reach the ``cluster``."""
    if file is None:
        return
    if cluster is not None:
        raise DiagError(
            "--policy and --cluster cannot be combined",
            hint="the workers of a cluster read with the usual thresholds: leave one out",
            exit_code=ExitCode.USAGE,
        )
    from diag.policy import use

    use(file)


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
