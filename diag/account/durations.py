"""Who waits for whom, from the durations of collectives alone: no clocks, no steps.

A collective ends on all its ranks at about the same time, and lasts on each from its own arrival. So the shortest
duration is that of the last rank to arrive, and the excess of another rank is its waiting. A rank that others wait for
waits less than they do. The total waiting separates a straggler from a rank that was only made late by one: ranks that
a straggler holds up in one group wait for it there, and are late in their other groups.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.account.policy import COLLECTIVE_DURATIONS
from diag.collectors.records import SYNCHRONISING
from diag.deferred import pl
from diag.model.accounts import Attribution
from diag.rundir.durations import SUMMED, each_once

from .blame import median_of_others

Series = npt.NDArray[np.float64]


class Durations(Struct, frozen=True, eq=False):
    """The account of a job's collectives. Nanoseconds.

    ``ranks``: those that took part in collectives. ``busy_ns``, ``wait_ns``: by rank, over all complete collectives;
    ``chunk_wait_ns[chunk, rank]``: the waiting by parts of the job, in order. ``complete`` of ``collectives`` were
    recorded on all their ranks; ``of_rank``: how many the times of a rank stand for, on average. ``wall_ns``: the time
    that the records span, None if they do not contain it. ``met``: a row for each complete collective, or for several
    (``calls``). ``sizes``: ranks of each group; ``members``: those of them that were recorded. ``steps``: the
    training's steps in that time, 0 if unknown.
    """

    ranks: tuple[int, ...]
    busy_ns: Series
    wait_ns: Series
    chunk_wait_ns: Series
    collectives: int
    complete: int
    wall_ns: int | None
    met: pl.DataFrame
    sizes: dict[str, int]
    members: dict[str, tuple[int, ...]]
    steps: int = 0
    of_rank: float = 0.0

    @property
    def share(self) -> float | None:
        """Fraction of the time in which a rank is in collectives, on average; None if the records do not contain it."""
        return float(self.busy_ns.mean()) / self.wall_ns if self.wall_ns and len(self.ranks) else None


class Late(Struct, frozen=True):
    """Ranks that the others wait for. ``cost_ns``: how much more the others wait than they do, over all records;
    ``of_busy``: the same as a fraction of the others' time in collectives. ``lasting``: of the latest rank's cost in
    each part of the job, the fraction in parts in which it was one of these ranks; ``led`` of ``telling`` parts were
    led by them, not counting those in which no rank was late."""

    ranks: tuple[int, ...]
    cost_ns: float
    of_busy: float
    lasting: float
    led: int
    telling: int


def durations_of(rows: pl.DataFrame, size_of: Mapping[str, int]) -> Durations:
    """``rows``: ``rank``, ``group``, ``seq``, ``op``, ``bytes``, ``duration_ns``, ``dumped_ns`` and ``end_ns``, in the
    order of each rank's calls; ``size_of``: the number of ranks of each group. Rows that are SUMMED have ``calls`` as
    well, over how many collectives, and ``weight``, how many the row stands for; others are one each."""
    wall_ns = _wall(rows)
    if "calls" not in rows.columns:
        rows = rows.with_columns(calls=1, weight=1.0)
    placed = rows.filter(pl.col("op").is_in([*SYNCHRONISING, SUMMED])).with_columns(
        place=(pl.int_range(pl.len()) / pl.len()).over("rank", "group")
    )
    calls = each_once(placed, ["rank", "group", "seq", "op"])
    key = ["group", "op", "seq"]
    sizes = pl.DataFrame(
        {"group": list(size_of), "size": list(size_of.values())}, schema={"group": pl.String, "size": pl.Int64}
    )
    met = (
        calls.group_by(key, maintain_order=True)
        .agg(
            bytes=pl.col("bytes").max(),
            members=pl.len(),
            transfer_ns=pl.col("duration_ns").min(),
            longest_ns=pl.col("duration_ns").max(),
            duration_ns=pl.col("duration_ns").mean(),
            last=pl.col("rank").get(pl.col("duration_ns").arg_min()),
            middle_ns=pl.col("duration_ns").median(),
            place=pl.col("place").mean(),
            calls=pl.col("calls").first(),
            weight=pl.col("weight").first(),
        )
        .join(sizes, on="group", how="left")
        .with_columns(wait_ns=pl.col("duration_ns") - pl.col("transfer_ns"))
    )
    whole = met.filter((pl.col("members") == pl.col("size")) & (pl.col("size") > 1))
    count = max(1, calls["rank"].n_unique())
    rows_of_rank, calls_of_rank = (float((times * whole["size"]).sum()) / count for times in (1, whole["calls"]))
    parts = min(int(calls_of_rank / COLLECTIVE_DURATIONS.least_collectives_of_a_part), int(rows_of_rank))
    chunks = max(1, min(COLLECTIVE_DURATIONS.parts_of_job, parts))
    whole = whole.with_columns(chunk=(pl.col("place") * chunks).floor().clip(0, chunks - 1).cast(pl.Int64))
    times = calls.select("rank", *key, "duration_ns")
    whole_calls = times.join(whole.select(*key, "transfer_ns", "chunk"), on=key, how="inner")
    whole_calls = whole_calls.with_columns(wait_ns=pl.col("duration_ns") - pl.col("transfer_ns"))
    ranks = tuple(whole_calls["rank"].unique().sort().to_list())
    busy, waits = np.zeros((chunks, len(ranks))), np.zeros((chunks, len(ranks)))
    spent = whole_calls.group_by("chunk", "rank").agg(pl.sum("duration_ns", "wait_ns"))
    place = spent["chunk"].to_numpy(), np.searchsorted(ranks, spent["rank"].to_numpy())
    busy[place], waits[place] = spent["duration_ns"].to_numpy(), spent["wait_ns"].to_numpy()
    members = calls.group_by("group").agg(pl.col("rank").unique().sort())
    return Durations(
        ranks,
        busy.sum(axis=0),
        waits.sum(axis=0),
        waits,
        int(met.filter(pl.col("size") > 1)["calls"].sum()),
        int(whole["calls"].sum()),
        wall_ns,
        whole,
        dict(size_of),
        {group: tuple(whole_calls) for group, whole_calls in members.iter_rows()},
        of_rank=float((whole["weight"] * whole["size"]).sum()) / count,
    )


def of_steps(account: Durations, attribution: Attribution, seen: float = 1.0) -> Durations:
    """The account of a run whose steps were recorded: the records span the steps' time. ``seen``: the fraction of the
    collectives that was not lost; the lost ones cost the same in the rest of the time."""
    wall_ns = round(seen * int(attribution.steps.dur_ns.sum()))
    steps = len(attribution.steps)
    return replace(account, wall_ns=wall_ns or None, steps=min(steps, max(1, round(seen * steps))))


def _wall(rows: pl.DataFrame) -> int | None:
    """The time that a rank's records span on its host's clock, on average over the ranks: from end to end of calls,
    else from dump to dump, if there are enough dumps that the time before the first one hardly counts."""
    spans = rows.group_by("rank").agg(
        ended=pl.col("end_ns").max() - pl.col("end_ns").min(),
        dumped=pl.col("dumped_ns").max() - pl.col("dumped_ns").min(),
        dumps=pl.col("dumped_ns").n_unique(),
    )
    if len(spans) and spans["ended"].null_count() == 0 and (spans["ended"] > 0).all():
        return int(spans["ended"].mean())  # type: ignore[arg-type]
    dumped = spans.filter((pl.col("dumps") >= COLLECTIVE_DURATIONS.dumps) & (pl.col("dumped") > 0))
    if not len(dumped) or len(dumped) < len(spans):
        return None
    # The records before the first dump took about as long as the time between two dumps.
    return int((dumped["dumped"] * dumped["dumps"] / (dumped["dumps"] - 1)).mean())  # type: ignore[arg-type]


def late_ranks(account: Durations, least: float = 0.1) -> Late | None:
    """The ranks that the others wait for, in most parts of the job; None if no rank stands out, if the cost is below
    ``least`` of the time in collectives, or if more ranks are late than wait."""
    count = len(account.ranks)
    if count < 2 or not account.complete:
        return None
    # Ranks that were made late by another have waited for it in another group: they wait less than the others, but more
    # than hardly at all.
    usual_ns = float(np.percentile(account.wait_ns, 75))
    chosen = np.flatnonzero(account.wait_ns <= COLLECTIVE_DURATIONS.stragglers_wait_share * usual_ns)
    others = np.setdiff1d(np.arange(count), chosen)
    if not usual_ns > 0 or not 0 < len(chosen) <= max(1, (count - 1) // 2):
        return None
    busy_ns, waited_ns = (float(np.median(times[others])) for times in (account.busy_ns, account.wait_ns))
    cost_ns = waited_ns - float(account.wait_ns[chosen].mean())
    if cost_ns < max(least * busy_ns, COLLECTIVE_DURATIONS.spread_of_ends_ns * account.of_rank):
        return None
    waits = account.chunk_wait_ns.astype(np.int64)
    by_part = median_of_others(waits, axis=1) - waits  # by how much less each rank waits
    worst_ns = by_part.max(axis=1)
    leading = by_part[:, chosen].max(axis=1) >= COLLECTIVE_DURATIONS.as_late_share * worst_ns
    telling = worst_ns >= COLLECTIVE_DURATIONS.part_with_a_late_rank_share * worst_ns.mean()
    return Late(
        tuple(account.ranks[row] for row in chosen.tolist()),
        cost_ns,
        cost_ns / busy_ns,
        float(worst_ns[leading].sum() / worst_ns.sum()),
        int((leading & telling).sum()),
        int(telling.sum()),
    )
