"""How torchrun's workers end: a last look at the living before torchrun ends them, and a record of every exit code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.reading import read_json
from diag.collectors.records import RankExit

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


@contextmanager
def before_others_end(hook: Callable[[], None]) -> Iterator[list[int]]:
    """Calls ``hook`` when some workers have failed and others live, before torchrun ends those. Yields a list that then
    holds the ranks that had failed: any of them may be the cause, no rank that ends later is.

    torchrun has no interface for this. It ends workers through ``PContext.close``, which still does what it did; with
    a torch that ends them otherwise, the hook is not called and the list stays empty.
    """
    from torch.distributed.elastic.multiprocessing.api import PContext

    first: list[int] = []
    original = PContext.close

    def close(context: Any, *args: Any, **kwargs: Any) -> None:
        codes = _exit_codes(context)
        failed = [rank for rank, code in codes.items() if code]
        try:
            if failed and not first:
                first.extend(sorted(failed))
                if None in codes.values():
                    hook()
        finally:
            original(context, *args, **kwargs)

    PContext.close = close  # type: ignore[method-assign, assignment]
    try:
        yield first
    finally:
        PContext.close = original  # type: ignore[method-assign]


def _exit_codes(context: Any) -> dict[int, int | None]:
    """Exit codes by rank, None of processes that live; empty where this torch keeps them elsewhere."""
    try:
        return {
            int(context.envs[local_rank]["RANK"]): handler.proc.poll()
            for local_rank, handler in context.subprocess_handlers.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def exits_of(error: ChildFailedError, first: Collection[int], by_launcher: bool) -> list[RankExit]:
    """What torchrun says of its workers. ``first``: those that had failed before it ended the others."""
    return [
        RankExit(rank, failure.exitcode, first=rank in first and not by_launcher, by_launcher=by_launcher)
        for rank, failure in sorted(error.failures.items())
    ]


def write_exits(layout: RunLayout, exits: Sequence[RankExit]) -> None:
    """exits.json: what the triage needs and no log says. On shared storage another node's ranks may be there already.
    Nothing where the disk is full: the logs remain."""
    ranks = {one.rank for one in exits}
    before = read_json(layout.exits, layout.root)
    try:
        others = [one for one in before if one["rank"] not in ranks]  # type: ignore[attr-defined]
    except (KeyError, TypeError):
        others = []
    with suppress(OSError):
        replace_file(layout.exits, encode([*others, *(asdict(one) for one in exits)]))
