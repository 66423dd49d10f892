"""In which modules late ranks spend more of their own time than the others do, from the traces of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from diag.account import gpu
from diag.account.cached_steps import windows_of
from diag.account.critical_path import label_of
from diag.account.rank_steps import RankSteps
from diag.deferred import pl
from diag.model.accounts import Attribution
from diag.model.steps import Detail, Kind, RankStep
from diag.rundir.tables import Tables
from diag.tables.policy import EFFICIENCY

from .module_charge import SCHEMA, accounted, by_rank, charge, of_rank_steps

# Time that makes a rank late by itself: no waits, and no time with another cause (data, copies, checkpoints, GC).
_OWN = [label_of(kind, detail) for kind in (Kind.COMPUTE, Kind.IDLE) for detail in Detail if detail != Detail.GC]


class ModuleExcess(Struct, frozen=True):
    """``ns``: how much longer per step the late ranks are in the module than the median of the ``others``."""

    module: str
    ns: int
    others: int


def module_excess(
    attribution: Attribution, tables: Tables, late: Sequence[int], steps: Iterable[int]
) -> list[ModuleExcess]:
    """Modules in which the late ranks work or idle longer, largest first, over the given steps that traces of late and
    of other ranks cover; empty if there are none, or if no range names a module."""
    steps_of = RankSteps.of(attribution.rank_steps)
    accounts = by_rank(steps_of.take(steps_of.from_source("trace")))
    traced = [rank for rank, by_step in sorted(accounts.items()) if by_step and rank in tables.ranks]
    slow = [rank for rank in traced if rank in late][: EFFICIENCY.most_late_ranks_read]
    usual = _spread([rank for rank in traced if rank not in late], EFFICIENCY.most_other_ranks_read)
    common = sorted(set(steps).intersection(*(accounts[rank] for rank in (*slow, *usual))))
    if not slow or not usual or not common:
        return []
    times: dict[int, dict[str, int]] = {}
    for rank in (*slow, *usual):
        times[rank] = _in_modules(tables, rank, [accounts[rank][step] for step in common])
        if not times[rank]:
            return []  # the traces of a job are alike: if one has no modules, there are none to compare
    excesses = []
    for module in sorted(set().union(*(times[rank] for rank in slow))):
        usually = float(np.median([times[rank].get(module, 0) for rank in usual]))
        slow_ns = float(np.mean([times[rank].get(module, 0) for rank in slow]))
        excesses.append(ModuleExcess(module, round((slow_ns - usually) / len(common)), len(usual)))
    return sorted((excess for excess in excesses if excess.ns > 0), key=lambda excess: (-excess.ns, excess.module))


def _in_modules(tables: Tables, rank: int, steps: Sequence[RankStep]) -> dict[str, int]:
    rank_tables = tables.ranks[rank]
    numbers = {step.step: step for step in steps}
    spent = of_rank_steps(steps).of_labels(_OWN)
    charged = [pl.DataFrame(schema=SCHEMA)]
    for trace in rank_tables.traces:
        windows = [window for window in windows_of(trace) if window[0] in numbers]
        charged.append(charge(trace, accounted(rank_tables, trace, windows, numbers), spent))
        gpu.forget(trace)
    summed = pl.concat(charged).group_by("module").agg(pl.col("ns").sum())
    return dict(zip(summed["module"].to_list(), summed["ns"].to_list(), strict=True))


def _spread(ranks: Sequence[int], most: int) -> list[int]:
    """At most this many of the ranks, evenly from the first to the last: neighbours share a host."""
    if len(ranks) <= most:
        return list(ranks)
    return [ranks[i] for i in np.linspace(0, len(ranks) - 1, most).round().astype(int).tolist()]
