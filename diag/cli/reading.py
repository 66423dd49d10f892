"""Options of every command that reads a run or traces, declared once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from diag.ingest.comm_rules import CommRule

PathsArgument = Annotated[
    list[str],
    typer.Argument(help="A run directory, or folders, files, tar archives or addresses (s3://...) of Kineto traces."),
]
RankOption = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE=RANK", help="The rank of a trace whose header and name do not say it; repeatable."),
]
JobsOption = Annotated[
    int | None, typer.Option(min=1, help="Processes that read traces; by default as many as save time.")
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
        help="Count the kernels whose names match as communication, by this operation (all_reduce, all_to_all, ...); "
        "repeatable. A diag.toml in the folder of the traces or in the current directory adds its own: "
        'comm_kernels = \\["REGEX=OPERATION"]. The first that matches counts, those of the command line first.',
    ),
]


def comm_rules(given: list[str] | None) -> tuple[CommRule, ...]:
    """The rules in REGEX=OPERATION."""
    if not given:
        return ()
    from diag.ingest.comm_rules import RuleError, parse_rule

    try:
        return tuple(parse_rule(text) for text in given)
    except RuleError as error:
        raise typer.BadParameter(f"--comm-kernels {error}") from error


def ranks_by_path(given: list[str]) -> dict[str, int]:
    """Rank by path, from FILE=RANK."""
    found = {}
    for text in given:
        path, _, number = text.rpartition("=")
        if not path or not number.isdecimal():
            raise typer.BadParameter(f"{text}: give FILE=RANK, for example --rank traces/a.json=3")
        found[path] = int(number)
    return found
