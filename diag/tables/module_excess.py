"""In which modules late ranks spend more of their own time than the others do, from the traces of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from diag.account import gpu
from diag.account.kept_steps import windows_of
from diag.account.timeline import label_of
from diag.model.steps import Attribution, Detail, Kind, RankStep
from diag.rundir.run import Tables

from .module_charge import SCHEMA, accounted, charge, of_rank_steps
from .path_table import by_rank

# Traces are read again for this, so of many ranks these many stand for all: a median of four is steady enough.
MOST_LATE = 2
MOST_OTHERS = 4
# What makes a rank late by itself: neither waits nor what has a cause of its own (data, copies, checkpoints, GC).
_OWN = [label_of(kind, detail) for kind in (Kind.COMPUTE, Kind.IDLE) for detail in Detail if detail != Detail.GC]


class ModuleExcess(Struct, frozen=True):
    """``ns``: how much longer than the median of the ``others`` the late ranks are in the module, a step."""

    module: str
    ns: int
    others: int


def module_excess(
    attribution: Attribution, tables: Tables, late: Sequence[int], steps: Iterable[int]
) -> list[ModuleExcess]:
    """Modules in which the late ranks work or idle longer, largest first, over those of the steps that traces of late
    and of other ranks cover; empty where there is none, or where no range names a module."""
    accounts = by_rank(step for step in attribution.rank_steps if step.source == "trace")
    traced = [rank for rank, own in sorted(accounts.items()) if own and rank in tables.ranks]
    slow = [rank for rank in traced if rank in late][:MOST_LATE]
    usual = _spread([rank for rank in traced if rank not in late], MOST_OTHERS)
    common = sorted(set(steps).intersection(*(accounts[rank] for rank in (*slow, *usual))))
    if not slow or not usual or not common:
        return []
    times: dict[int, dict[str, int]] = {}
    for rank in (*slow, *usual):
        times[rank] = _in_modules(tables, rank, [accounts[rank][step] for step in common])
        if not times[rank]:
            return []  # the traces of a job are alike: without modules in one there are none to compare
    found = []
    for module in sorted(set().union(*(times[rank] for rank in slow))):
        usually = float(np.median([times[rank].get(module, 0) for rank in usual]))
        own = float(np.mean([times[rank].get(module, 0) for rank in slow]))
        found.append(ModuleExcess(module, round((own - usually) / len(common)), len(usual)))
    return sorted((excess for excess in found if excess.ns > 0), key=lambda excess: (-excess.ns, excess.module))


def _in_modules(tables: Tables, rank: int, steps: Sequence[RankStep]) -> dict[str, int]:
    """Nanoseconds of a rank's own time by module, over these steps."""
    own = tables.ranks[rank]
    numbers = {step.step: step for step in steps}
    spent = of_rank_steps(steps).of_labels(_OWN)
    charged = [pl.DataFrame(schema=SCHEMA)]
    for trace in own.traces:
        windows = [window for window in windows_of(trace) if window[0] in numbers]
        charged.append(charge(trace, accounted(own, trace, windows, numbers), spent))
        gpu.forget(trace)
    summed = pl.concat(charged).group_by("module").agg(pl.col("ns").sum())
    return dict(zip(summed["module"].to_list(), summed["ns"].to_list(), strict=True))


def _spread(ranks: Sequence[int], most: int) -> list[int]:
    """At most so many of the ranks, evenly from the first to the last: neighbours share a host."""
    if len(ranks) <= most:
        return list(ranks)
    return [ranks[i] for i in np.linspace(0, len(ranks) - 1, most).round().astype(int).tolist()]
