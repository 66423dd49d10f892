"""The critical path by rank, category and module: every nanosecond of the step charged once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diag.account.critical_path import of_label
from diag.deferred import pl
from diag.model.accounts import StepAccounts
from diag.model.breakdown import PathStat, PathTable
from diag.model.steps import Detail

from .module_charge import SCHEMA, Stretches
from .module_ranges import UNATTRIBUTED

_KEYS = ("step", "rank", "label")


def shown(counted: StepAccounts) -> StepAccounts:
    """The steps that a trace of any rank covers: without one no module is known. All steps if there are none."""
    parts, owner = counted.parts, counted.of_part
    return counted.take(np.unique(owner[parts.from_source("trace")])) or counted


def whole(paths: Stretches, charged: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The columns of SCHEMA: the time charged to modules, and one row for each step, rank and label with the rest. The
    rows of a step add up to its path, and so to its duration."""
    inside = pl.concat([pl.DataFrame(schema=SCHEMA), *charged])
    taken = inside.group_by(*_KEYS).agg(pl.col("ns").sum().alias("taken"))
    rest = paths.totals().join(taken, on=_KEYS, how="left", maintain_order="left")
    rest = rest.with_columns(pl.col("ns") - pl.col("taken").fill_null(0), pl.lit(UNATTRIBUTED).alias("module"))
    return pl.concat([inside, rest.filter(pl.col("ns") != 0).select(*SCHEMA)])


def path_table(steps: StepAccounts, paths: Stretches, charged: Sequence[pl.DataFrame]) -> PathTable:
    """The table of these steps and their paths; rows by decreasing time."""
    rows = (
        whole(paths, charged)
        .group_by("rank", "label", "module")
        .agg(pl.col("ns").sum())
        .sort(["ns", "rank", "label", "module"], descending=[True, False, False, False])
    )
    total = int(rows["ns"].sum())
    return PathTable(
        rows=tuple(
            PathStat(rank, category_of(label), module, ns, round(ns / len(steps)), ns / total)
            for rank, label, module, ns in rows.iter_rows()
        ),
        steps=tuple(steps.step.tolist()),
        traced=bool(steps.parts.from_source("trace").any()),
        total_ns=total,
        in_modules_ns=int(rows.filter(pl.col("module") != UNATTRIBUTED)["ns"].sum()),
    )


def category_of(label: int) -> str:
    """The kind in the words of the JSON contract's culprits, and its detail after a slash."""
    kind, detail = of_label(label)
    name = kind.name.lower()
    return name if detail == Detail.NONE else f"{name}/{detail.name.lower()}"
