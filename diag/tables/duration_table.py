"""The table of collectives from durations alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from diag.account.durations import Durations
from diag.deferred import pl
from diag.model.breakdown import CollectiveStat, CollectiveTable
from diag.tables.collectives import who_was_waited_for
from diag.tables.policy import BANDWIDTH

from .bandwidth import best_bandwidth, bus_factor


def duration_table(account: Durations) -> CollectiveTable:
    """The table from durations alone, of collectives that were recorded on all their ranks: the shortest duration is
    the transfer, a rank's excess over it is its waiting."""
    met, size_of = account.met, account.sizes
    best: dict[str, float | None] = {}
    for (group,), members in met.group_by("group"):
        factors = np.array([bus_factor(op, size_of[str(group)]) or 0.0 for op in members["op"]])
        sizes, times = members["bytes"].to_numpy(), np.maximum(1, members["transfer_ns"].to_numpy())
        timed = (factors > 0) & (sizes > 0)
        bus = factors[timed] * sizes[timed] / times[timed]
        best[str(group)] = best_bandwidth(sizes[timed].tolist(), times[timed].tolist(), bus.tolist())
    several = met.group_by("group", "op").agg(pl.col("bytes").n_unique().alias("sizes"))
    classes = met.join(several, on=["group", "op"]).with_columns(
        low=pl.when(pl.col("sizes") <= BANDWIDTH.most_sizes_listed)
        .then("bytes")
        .otherwise(_power_of_two(pl.col("bytes")))
    )
    rows = []
    for (group, op, low), members in classes.group_by("group", "op", "low"):
        exact = int(members["sizes"][0]) <= BANDWIDTH.most_sizes_listed or not low
        rows.append(_duration_stat(str(group), str(op), int(low), exact, members, account, best))
    return CollectiveTable(
        rows=tuple(sorted(rows, key=lambda row: (-row.duration_mean_ns * row.count, row.group, row.op, row.bytes_low))),
        rank_steps=0,
        rest_exposed_ns=0,
        rest_hidden_ns=0,
    )


def _power_of_two(size: pl.Expr) -> pl.Expr:
    """The largest power of two that is not above it; 0 for 0."""
    power: pl.Expr = pl.when(size > 0).then(2 ** size.log(2).floor().cast(pl.Int64)).otherwise(0).cast(pl.Int64)
    return power


def _duration_stat(
    group: str,
    op: str,
    low: int,
    exact: bool,
    rows: pl.DataFrame,
    account: Durations,
    best: Mapping[str, float | None],
) -> CollectiveStat:
    size_of = account.sizes
    transfer_ns, total = int(rows["transfer_ns"].sum()), int(rows["bytes"].sum())
    algbw = total / transfer_ns if total and transfer_ns else None
    factor = bus_factor(op, size_of[group])
    busbw = algbw * factor if algbw is not None and factor else None
    last = who_was_waited_for(
        zip(rows["last"].to_list(), (rows["wait_ns"] * size_of[group]).round().cast(pl.Int64).to_list(), strict=True)
    )
    top = best.get(group)
    transfer_mean_ns = round(transfer_ns / len(rows))
    return CollectiveStat(
        group=group,
        op=op,
        dtype="",
        bytes_low=low,
        bytes_high=low if exact else 2 * low,
        bytes_mean=round(total / len(rows)),
        count=len(rows),
        matched=len(rows),
        ranks=size_of[group],
        group_size=size_of[group],
        duration_mean_ns=round(float(rows["duration_ns"].sum()) / len(rows)),
        wait_mean_ns=round(float(rows["wait_ns"].sum()) / len(rows)),
        wait_max_ns=max((rows["longest_ns"] - rows["transfer_ns"]).to_list()),
        last_rank=last[0][0] if last else None,
        last_share=last[0][1] / sum(ns for _, ns in last) if last else None,
        transfer_mean_ns=transfer_mean_ns,
        transfer_bound_ns=transfer_mean_ns,
        tail_mean_ns=None,
        algbw_gb_s=algbw,
        busbw_gb_s=busbw,
        bandwidth_is_bound=False,
        efficiency=busbw / top if busbw is not None and top else None,
        exposed_ns=0,
        hidden_ns=0,
        inferred=False,
        waited_for=last,
        members=account.members.get(group, ()),
    )
