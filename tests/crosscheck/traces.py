"""Synthetic traces for HTA: like tests.account.kineto_builder, with what HTA needs to read them as it should."""

from __future__ import annotations

import json
from pathlib import Path

from diag.api import open_run
from diag.crosscheck.analyses import cross_check
from diag.crosscheck.model import CrossCheck, Quantity
from tests.account.kineto_builder import KinetoBuilder
from tests.bench.hta_differences import Explained, explain

MS, US = 1_000_000, 1_000


def profiled(*starts: int, dur: int = 10 * MS, rank: int = 0) -> KinetoBuilder:
    """A rank with a ProfilerStep from each start, an operator in it, and no kernel yet."""
    builder = KinetoBuilder(rank=rank)
    for number, start in enumerate(starts):
        builder.step(number, start, start + dur, prefix="ProfilerStep#").op("aten::mm", start + US, start + 2 * US)
    return builder


def checked(*builders: KinetoBuilder, folder: Path) -> CrossCheck:
    """The cross-check of a folder with these traces, each difference explained."""
    for number, builder in enumerate(builders):
        builder.write(folder, f"trace{number}.json")
    run = open_run(folder)
    return explain(cross_check(run), run)


def numbers(check: CrossCheck, rank: int = 0) -> dict[Quantity, Explained]:
    """A rank's comparisons; the rank must not have failed."""
    found = next(item for item in check.ranks if item.rank == rank)
    assert not found.error
    return {item.quantity: item for item in found.comparisons if isinstance(item, Explained)}


def why(comparison: Explained) -> list[str]:
    return [reason.id for reason in comparison.reasons]


def make_compact(path: Path) -> None:
    """Rewrites a trace without a blank after its colons, as other JSON writers than Python's do."""
    path.write_text(json.dumps(json.loads(path.read_text()), separators=(",", ":")))
