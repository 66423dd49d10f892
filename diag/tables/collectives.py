"""The table of collectives with their bus bandwidth; and the pass of the model that each collective belongs to, with
its exposed transfer and the compute that could overlap it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct

from diag.account import intervals as iv
from diag.account.calls import Calls, Group, Some
from diag.account.durations import Durations
from diag.account.intervals import Covered, Intervals, intervals_of
from diag.account.match import SEND_RECV, SYNCHRONISING
from diag.account.policy import CLOCKS
from diag.account.records import is_transfer, open_span, open_spans
from diag.collectors.records import RECV, SEND
from diag.model.axes import PIPELINE, Axes, is_data
from diag.model.breakdown import CollectiveStat, CollectiveTable, ExposedCall
from diag.model.steps import Attribution, CollectiveCall, Detail, Kind, MatchedCollective, RankStep, Segments
from diag.rundir.columns import Bools, Ints, is_named
from diag.tables.policy import BANDWIDTH
from diag.traces.kineto_names import P2P_OPS

from .all_to_alls import all_to_all_table

# -- bandwidth ---------------------------------------------------------------------------------------------------------
#
# Algorithm and bus bandwidth of a collective, and the best of its group.
#
# Factors from nccl-tests' PERFORMANCE.md: the bus bandwidth is the load of one link in any optimal algorithm, so it
# compares across operations and group sizes with the hardware's.


def bus_factor(op: str, ranks: int | None, gloo: bool = False) -> float | None:
    """Bus bandwidth over algorithm bandwidth; None for operations without one, or a group of unknown size.

    gloo runs a reduce-scatter as an all-reduce of the full input (measured).
    """
    if ranks is None or ranks < 2:
        return None
    ring = (ranks - 1) / ranks
    if op == "all_reduce" or (gloo and op == "reduce_scatter"):
        return 2 * ring
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return ring
    return 1.0 if op in ("broadcast", "reduce", "send", "recv", "send_recv") else None


def saturating_bytes(sizes: Sequence[int], transfers_ns: Sequence[int]) -> int:
    """The size above which a group's bandwidth is within a fifth of its best: eff / (1 - eff) x latency x bandwidth.

    Latency is the median transfer of the smallest size, bandwidth the best observed one. SATURATING_BYTES with fewer
    than three sizes, or sizes within a factor of eight."""
    size, time = np.asarray(sizes, dtype=np.float64), np.asarray(transfers_ns, dtype=np.float64)
    distinct = np.unique(size)
    if len(distinct) < BANDWIDTH.least_sizes_for_a_line or distinct[-1] < BANDWIDTH.least_span_of_sizes * distinct[0]:
        return BANDWIDTH.saturating_bytes
    latency = float(np.median(time[size == distinct[0]]))
    return int(BANDWIDTH.saturated_share / (1 - BANDWIDTH.saturated_share) * latency * float((size / time).max()))


def best_bandwidth(sizes: Sequence[int], transfers_ns: Sequence[int], bus_gb_s: Sequence[float]) -> float | None:
    """The 95th percentile of a group's bus bandwidths at sizes that saturate it; None if no size does."""
    if not len(sizes):
        return None
    large = np.asarray(sizes) >= saturating_bytes(sizes, transfers_ns)
    return float(np.percentile(np.asarray(bus_gb_s)[large], 95)) if large.any() else None


# -- collective table --------------------------------------------------------------------------------------------------
#
# The per-collective table: waits, transfers and bandwidths of each group, operation and size (docs/concepts/clocks.md).


_Key = tuple[str, int, str]
_Row = tuple[str, str, str, int, int]  # group, op, dtype, bytes from, to


class _Parts(Struct, frozen=True):
    """Each rank's part in each collective, as columns: those of one collective together, in order of its first part.
    ``first[i]`` to ``first[i + 1]`` are collective i. ``exposed_ns`` and ``hidden_ns``: no nanosecond counts twice.
    ``place``: of the call in the ``calls`` of the rank; ``group``: in ``groups``; ``label`` (the last part of the key),
    ``op`` and ``dtype``: in ``names``."""

    rank: Ints
    step: Ints
    place: Ints
    group: Ints
    label: Ints
    op: Ints
    dtype: Ints
    seq: Ints
    bytes: Ints
    duration_ns: Ints
    exposed_ns: Ints
    hidden_ns: Ints
    inferred: Bools
    first: Ints
    groups: tuple[Group, ...]
    names: tuple[str, ...]
    calls: Mapping[int, Calls]

    @property
    def collective(self) -> Ints:
        """The number of each part's collective."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    def named(self, op: str) -> Bools:
        return is_named(self.op, self.names, op)

    def of_one(self, at: int) -> tuple[int, _Key]:
        """Step and key of a part's collective."""
        key = self.groups[self.group[at]].name, int(self.seq[at]), self.names[self.label[at]]
        return int(self.step[at]), key


class _Met(Struct, frozen=True, gc=False):
    """One collective, with sums over its ``parts``; ``match`` only if the whole group was recorded on one clock.
    ``bound_ns``: upper bound of the transfer. ``seen_whole``: whether the transfer was measured from its begin."""

    number: int
    group: Group
    op: str
    dtype: str
    bytes: int
    parts: int
    duration_ns: int
    exposed_ns: int
    hidden_ns: int
    bound_ns: int
    inferred: bool
    group_size: int | None
    match: MatchedCollective | None
    seen_whole: bool


def collective_table(
    attribution: Attribution, steps: frozenset[int], world_size: int | None, gloo: bool
) -> CollectiveTable:
    """The collectives that started in these steps. Rows by decreasing exposed time, then by duration."""
    counted = [step for step in attribution.rank_steps if step.step in steps]
    parts = _parts(attribution, steps)
    matches = {(match.step, match.key): match for match in attribution.collectives}
    collectives = _collectives(parts, matches, world_size)
    uncertainty = attribution.clock_uncertainty_ns or 0
    rows = _by_row(collectives)
    ranks = _ranks_of(rows, parts)
    best = _best_of_groups(collectives, uncertainty, gloo)
    stats = [
        _stat(row, members, ranks[row], uncertainty, gloo, best.get(row[0]), attribution.axes)
        for row, members in rows.items()
    ]
    return CollectiveTable(
        rows=tuple(sorted(stats, key=lambda s: (-s.exposed_ns, -s.duration_mean_ns * s.count, s.group, s.op))),
        rank_steps=len(counted),
        rest_exposed_ns=sum(s.segments.total(Kind.COMM) for s in counted) - sum(s.exposed_ns for s in stats),
        rest_hidden_ns=sum(s.overlapped_comm_ns for s in counted) - sum(s.hidden_ns for s in stats),
        all_to_alls=all_to_all_table(attribution, steps),
        longest=_longest(parts, matches, attribution),
    )


def _longest(
    parts: _Parts, matches: Mapping[tuple[int, _Key], MatchedCollective], attribution: Attribution
) -> tuple[ExposedCall, ...]:
    """The calls with the longest exposed time, over all ranks and steps."""
    longest = np.argsort(-parts.exposed_ns, kind="stable")[: BANDWIDTH.most_calls_listed]
    longest = longest[parts.exposed_ns[longest] > 0]
    steps = {(step.rank, step.step): step for step in attribution.rank_steps} if len(longest) else {}
    return tuple(
        _exposed_call(
            parts.calls[rank][int(parts.place[at])],
            int(parts.exposed_ns[at]),
            steps[rank, int(parts.step[at])],
            matches.get(parts.of_one(at)),
            attribution,
        )
        for at, rank in zip(longest.tolist(), parts.rank[longest].tolist(), strict=True)
    )


def _exposed_call(
    call: CollectiveCall, exposed_ns: int, step: RankStep, match: MatchedCollective | None, attribution: Attribution
) -> ExposedCall:
    wait_ns = None
    uncertainty_ns = attribution.clock_uncertainty_ns or 0
    if match is not None and match.complete and step.rank in match.ranks:
        wait_ns = match.wait_ns[match.ranks.index(step.rank)]
    resolved = wait_ns is not None and uncertainty_ns <= CLOCKS.uncertainty_share * max(wait_ns, exposed_ns)
    ((phase, _),) = _Passes(step).of([call])
    return ExposedCall(
        rank=step.rank,
        step=step.step,
        op=call.op,
        group=call.group,
        bytes=call.bytes,
        start_ns=call.start_ns,
        end_ns=call.end_ns,
        exposed_ns=exposed_ns,
        wait_ns=wait_ns if resolved else None,
        axis=_axis(call.op, call.group_ranks, attribution.axes),
        members=call.group_ranks,
        phase=phase.name.lower() if phase in _PASSES else "",
    )


# -- parts and matches -------------------------------------------------------------------------------------------------


def _parts(attribution: Attribution, steps: frozenset[int]) -> _Parts:
    """The calls that start in the steps."""
    of_rank: dict[int, list[RankStep]] = defaultdict(list)
    for rank_step in attribution.rank_steps:
        of_rank[rank_step.rank].append(rank_step)
    groups: dict[Group, int] = {}
    names: dict[str, int] = {}
    calls: dict[int, Calls] = {}
    columns: list[dict[str, npt.NDArray[Any]]] = []
    for rank, rank_steps in of_rank.items():
        own, place, step, spent = _of_rank(rank_steps, steps)
        calls[rank] = own
        group = np.array([groups.setdefault(group, len(groups)) for group in own.groups], dtype=np.int64)
        name = np.array([names.setdefault(name, len(names)) for name in own.names], dtype=np.int64)
        columns.append(
            {
                "rank": np.full(len(place), rank),
                "step": step,
                "place": place,
                "group": group[own.group[place]],
                "label": name[own.label[place]],
                "op": name[own.op[place]],
                "dtype": name[own.dtype[place]],
                "seq": own.seq[place],
                "bytes": own.bytes[place],
                "duration_ns": own.end_ns[place] - own.start_ns[place],
                "exposed_ns": spent[0],
                "hidden_ns": spent[1],
                "inferred": own.inferred[place],
            }
        )
    every = {name: np.concatenate([of_rank[name] for of_rank in columns]) for name in columns[0]} if columns else {}
    if not every:
        every = {name: np.zeros(0, dtype=np.int64) for name in _Parts.__struct_fields__[:13]}
    order, first = _together(every, [group.name for group in groups])
    return _Parts(
        **{name: column[order] for name, column in every.items()},
        first=first,
        groups=tuple(groups),
        names=tuple(names),
        calls=calls,
    )


def _together(parts: Mapping[str, Ints], groups: Sequence[str]) -> tuple[Ints, Ints]:
    """The order that puts parts of equal step and key together, in order of the first part; and where each collective
    begins in it, and the end."""
    count = len(parts["step"])
    name_of = {name: at for at, name in enumerate(dict.fromkeys(groups))}
    name = np.array([name_of[group] for group in groups], dtype=np.int64)[parts["group"]]
    columns = (parts["seq"], parts["label"], name, parts["step"])
    order = np.lexsort(columns)
    new = np.zeros(count, dtype=np.bool_)
    new[:1] = True
    for column in columns:
        new[1:] |= np.diff(column[order]) != 0
    begins = order[new]  # of each collective, the first part
    of_part = np.empty(count, dtype=np.int64)
    of_part[order] = np.argsort(np.argsort(begins))[np.cumsum(new) - 1]
    return np.argsort(of_part, kind="stable"), np.searchsorted(np.sort(of_part), np.arange(len(begins) + 1))


def _of_rank(rank_steps: Sequence[RankStep], steps: frozenset[int]) -> tuple[Calls, Ints, Ints, tuple[Ints, Ints]]:
    """The calls of one rank; the places of those that start in the steps, by begin, and their steps; and their exposed
    and hidden time. If calls overlap, the time belongs to the first one."""
    calls, place = _listed(rank_steps)
    of_step = np.repeat(np.arange(len(rank_steps)), [len(step.collectives) for step in rank_steps])
    # A step from the records also lists calls that only end in it: those belong to the previous step.
    begins = np.array([step.begin_ns for step in rank_steps], dtype=np.int64)
    own = calls.start_ns[place] >= begins[of_step]
    place, of_step = place[own], of_step[own]
    start, end = (span[place] for span in open_spans(calls))
    order = np.lexsort((end, start))
    place, of_step, start, end = place[order], of_step[order], start[order], end[order]
    reach = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    begin = np.maximum(start, reach)
    end = np.maximum(end, begin)
    counted = np.array([step.step in steps for step in rank_steps], dtype=np.bool_)[of_step]
    segments = [step.segments for step in rank_steps if step.step in steps]
    exposed, hidden = (_covered(segments, kind).between(begin, end)[counted] for kind in (Kind.COMM, Kind.COMPUTE))
    numbers = np.array([step.step for step in rank_steps], dtype=np.int64)
    return calls, place[counted], numbers[of_step[counted]], (exposed, hidden)


def _listed(rank_steps: Sequence[RankStep]) -> tuple[Calls, Ints]:
    """The calls of all steps, and the place of each listed one."""
    some = [step.collectives for step in rank_steps if isinstance(step.collectives, Some)]
    if some and len(some) == len(rank_steps) and all(of_step.calls is some[0].calls for of_step in some):
        return some[0].calls, np.concatenate([of_step.places for of_step in some])
    calls = Calls.of([call for step in rank_steps for call in step.collectives])
    return calls, np.arange(len(calls))


def _covered(segments: Sequence[Segments], kind: Kind) -> Covered:
    if not segments:
        return Covered(iv.EMPTY)
    start, end, kinds = (
        np.concatenate([getattr(of, name) for of in segments]) for name in ("start_ns", "end_ns", "kind")
    )
    chosen = kinds == kind
    return Covered(iv.make(np.stack((start[chosen], end[chosen]), axis=1)))


def _collectives(
    parts: _Parts, matches: Mapping[tuple[int, _Key], MatchedCollective], world_size: int | None
) -> list[_Met]:
    if not len(parts.rank):
        return []
    first = parts.first[:-1]
    sent, received = parts.named(SEND), parts.named(RECV)
    pair = np.logical_and.reduceat(sent | received, first)
    pair &= np.logical_or.reduceat(sent, first) & np.logical_or.reduceat(received, first)
    # A send ends when it is handed over, so only its receive bounds it.
    unbound = pair[parts.collective] & ~received
    bound = np.minimum.reduceat(np.where(unbound, np.iinfo(np.int64).max, parts.duration_ns), first)
    sums = [
        np.add.reduceat(column, first).tolist() for column in (parts.duration_ns, parts.exposed_ns, parts.hidden_ns)
    ]
    inferred = np.logical_or.reduceat(parts.inferred.astype(np.bool_), first)
    collectives = []
    for number, (begin, count, is_pair, bound_ns, duration_ns, exposed_ns, hidden_ns, is_inferred) in enumerate(
        zip(
            first.tolist(),
            np.diff(parts.first).tolist(),
            pair.tolist(),
            bound.tolist(),
            *sums,
            inferred.tolist(),
            strict=True,
        )
    ):
        group, op = parts.groups[parts.group[begin]], parts.names[parts.op[begin]]
        members = len(group.ranks) or group.size or None
        if members is None and world_size == count > 1:
            members = world_size
        match = matches.get(parts.of_one(begin))
        meets = is_pair or op in SYNCHRONISING
        whole = match if match is not None and match.complete and len(match.ranks) == members and meets else None
        seen = whole is not None and whole.transfer_ns > 0
        if whole is not None and seen and is_pair:
            # A message may be in transfer already when the receiver arrives. The sender's part may lie in a step that
            # does not count.
            last = begin + np.flatnonzero(parts.rank[begin : begin + count] == whole.last_arriver)[:1]
            seen = bool(sent[last].any())
        collectives.append(
            _Met(
                number=number,
                group=group,
                op=SEND_RECV if is_pair else op,
                dtype=parts.names[parts.dtype[begin]],
                bytes=int(parts.bytes[begin]),
                parts=count,
                duration_ns=duration_ns,
                exposed_ns=exposed_ns,
                hidden_ns=hidden_ns,
                bound_ns=bound_ns,
                inferred=is_inferred,
                group_size=members,
                match=whole,
                seen_whole=seen,
            )
        )
    return collectives


def _ranks_of(rows: Mapping[_Row, Sequence[_Met]], parts: _Parts) -> dict[_Row, int]:
    """How many ranks took part in the collectives of each row."""
    row_of = np.zeros(len(parts.first) - 1, dtype=np.int64)
    for at, members in enumerate(rows.values()):
        row_of[[met.number for met in members]] = at
    span = int(parts.rank.max(initial=0)) + 1
    both = np.unique(row_of[parts.collective] * span + parts.rank)
    return dict(zip(rows, np.bincount(both // span, minlength=len(rows)).tolist(), strict=True))


def _by_row(collectives: Iterable[_Met]) -> dict[_Row, list[_Met]]:
    """Collectives of equal group, operation and type by exact size, or by size class if there are many sizes."""
    alike: dict[tuple[str, str, str], list[_Met]] = defaultdict(list)
    for met in collectives:
        alike[met.group.name, met.op, met.dtype].append(met)
    rows: dict[_Row, list[_Met]] = defaultdict(list)
    for (group, op, dtype), members in alike.items():
        exact = len({met.bytes for met in members}) <= BANDWIDTH.most_sizes_listed
        for met in members:
            size = met.bytes
            low = size if exact or not size else 1 << (size.bit_length() - 1)
            rows[group, op, dtype, low, size if exact or not size else 2 * low].append(met)
    return rows


# -- numbers -----------------------------------------------------------------------------------------------------------


def _transfers(members: Iterable[_Met], uncertainty_ns: int) -> list[tuple[_Met, int]]:
    """Collectives with a transfer that the clocks can resolve. All or none: none if the clocks are off by more than a
    quarter of the mean transfer."""
    transfers = [(met, met.match.transfer_ns) for met in members if met.match is not None and met.seen_whole]
    mean = sum(ns for _, ns in transfers) / len(transfers) if transfers else 0.0
    return transfers if uncertainty_ns <= CLOCKS.uncertainty_share * mean else []


def _resolved(times_ns: list[int], uncertainty_ns: int) -> list[int]:
    """The times, or none if even the longest is within four times the uncertainty of the clocks."""
    return times_ns if uncertainty_ns <= CLOCKS.uncertainty_share * max(times_ns, default=0) else []


def _best_of_groups(collectives: Sequence[_Met], uncertainty_ns: int, gloo: bool) -> Mapping[str, float | None]:
    """For each group, the best bus bandwidth at saturating sizes."""
    seen: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    for met, transfer in _transfers(collectives, uncertainty_ns):
        factor = bus_factor(met.op, met.group_size, gloo)
        if factor and met.bytes:
            seen[met.group.name].append((met.bytes, transfer, factor * met.bytes / transfer))
    return {group: best_bandwidth(*zip(*rows, strict=True)) for group, rows in seen.items()}


def _stat(
    row: _Row,
    members: Sequence[_Met],
    taking_part: int,
    uncertainty_ns: int,
    gloo: bool,
    best: float | None,
    axes: Axes,
) -> CollectiveStat:
    group, op, dtype, low, high = row
    ranks = next((met.group.ranks for met in members if met.group.ranks), ())
    matches = [met.match for met in members if met.match is not None]
    waits = _resolved([wait for match in matches for wait in match.wait_ns], uncertainty_ns)
    tails = _resolved([max(match.tail_ns) for match in matches], uncertainty_ns)
    last = Counter(match.last_arriver for match in matches if waits).most_common()
    transfers = _transfers(members, uncertainty_ns)
    timed = transfers or [(met, met.bound_ns) for met in members]
    total, time = sum(met.bytes for met, _ in timed), sum(ns for _, ns in timed)
    algbw = total / time if low and time else None
    size = next((met.group_size for met in members if met.group_size), None)
    factor = bus_factor(op, size, gloo)
    busbw = algbw * factor if algbw is not None and factor else None
    return CollectiveStat(
        group=group,
        op=op,
        dtype=dtype,
        bytes_low=low,
        bytes_high=high,
        bytes_mean=_mean([met.bytes for met in members]) or 0,
        count=len(members),
        matched=len(matches),
        ranks=taking_part,
        group_size=size,
        duration_mean_ns=round(sum(met.duration_ns for met in members) / sum(met.parts for met in members)),
        wait_mean_ns=_mean(waits),
        wait_max_ns=max(waits, default=None),
        last_rank=last[0][0] if last else None,
        last_share=last[0][1] / len(matches) if last else None,
        transfer_mean_ns=_mean([ns for _, ns in transfers]),
        transfer_bound_ns=_mean([met.bound_ns for met in members]) or 0,
        tail_mean_ns=_mean(tails),
        algbw_gb_s=algbw,
        busbw_gb_s=busbw,
        bandwidth_is_bound=not transfers and algbw is not None,
        efficiency=busbw / best if busbw is not None and best and transfers else None,
        exposed_ns=sum(met.exposed_ns for met in members),
        hidden_ns=sum(met.hidden_ns for met in members),
        inferred=any(met.inferred for met in members),
        last_counts=tuple(last),
        axis=_axis(op, ranks, axes),
        members=ranks,
    )


def _axis(op: str, ranks: tuple[int, ...], axes: Axes) -> str:
    """The axis of the mesh that a group of ranks lies along; "" if unknown."""
    return (PIPELINE if op in P2P_OPS and axes.stages() else axes.of(ranks)) or ""


def _mean(values: Sequence[int]) -> int | None:
    return round(sum(values) / len(values)) if values else None


# -- durations ---------------------------------------------------------------------------------------------------------


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
    last = Counter(rows["last"].to_list()).most_common()
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
        last_rank=last[0][0],
        last_share=last[0][1] / len(rows),
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
        last_counts=tuple(last),
        members=account.members.get(group, ()),
    )


# -- passes ------------------------------------------------------------------------------------------------------------


GATHERS = frozenset({"all_gather"})
REDUCTIONS = frozenset({"reduce_scatter", "all_reduce", "reduce"})
_DETAILS = tuple(Detail)
_PASSES = (Detail.FORWARD, Detail.BACKWARD, Detail.OPTIMIZER)


class PhasedCall(Struct, frozen=True):
    """One rank's part in one collective.

    ``phase``: the pass that needs a gather's result, or that made the gradients; ``micro``: the micro-batch, from 0;
    ``place``: index among the collectives of its operation in this pass, from 0, of ``places``. ``exposed_ns``: the
    exposed transfer, after the last rank's arrival. ``room_ns``: the rank's compute between the previous collective of
    the operation in this pass and this one; ``after_ns``: compute in passes of this kind from the call's end to the
    step's. ``transfer_ns``: from the last rank's arrival to this rank's end.
    """

    rank: int
    step: int
    op: str
    bytes: int
    phase: Detail
    micro: int
    place: int
    places: int
    exposed_ns: int
    room_ns: int
    start_ns: int
    end_ns: int
    after_ns: int
    transfer_ns: int
    of_data: bool = True  # its group is for data parallelism, or of unknown purpose


def phased_calls(attribution: Attribution, steps: Collection[int]) -> list[PhasedCall]:
    """The collectives that start in these steps, by rank and start."""
    arrival = {met.key: met.arrival_ns for met in attribution.collectives}
    counted = frozenset(steps)
    axes = attribution.axes
    # By the identity of the tuple of ranks, which the calls of a group share: hashing a thousand ranks per call is
    # slow.
    groups = {id(call.group_ranks): call.group_ranks for step in attribution.rank_steps for call in step.collectives}
    of_data = {group: is_data(axes.of(ranks)) for group, ranks in groups.items()}
    return [
        call for step in attribution.rank_steps if step.step in counted for call in _calls_of(step, arrival, of_data)
    ]


def _calls_of(
    step: RankStep, arrival: dict[tuple[str, int, str], int], of_data: dict[int, bool]
) -> Iterator[PhasedCall]:
    calls = [call for call in step.collectives if step.begin_ns <= call.start_ns < step.end_ns]
    calls.sort(key=open_span)
    if not calls:
        return
    passes = _Passes(step)
    start, end = np.array([_transfer_span(call, arrival) for call in calls], dtype=np.int64).T
    reach = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    begin = np.maximum(start, reach)  # if calls overlap, the time belongs to the first one
    exposed = Covered(intervals_of(step.segments, Kind.COMM)).between(begin, end)
    pass_of_call = passes.of(calls)
    members: dict[tuple[str, Detail, int, bool], list[int]] = {}
    for i, (phase, micro) in enumerate(pass_of_call):
        members.setdefault((calls[i].op, phase, micro, of_data[id(calls[i].group_ranks)]), []).append(i)
    until = np.full(len(calls), step.end_ns, dtype=np.int64)
    after = {phase: Covered(passes.computing(phase)).between(end, until) for phase, _ in set(pass_of_call)}
    computed = Covered(intervals_of(step.segments, Kind.COMPUTE))
    for (op, phase, micro, data), indices in members.items():
        ends = np.array([calls[indices[0]].start_ns, *(calls[i].end_ns for i in indices[:-1])], dtype=np.int64)
        starts = np.array([calls[i].start_ns for i in indices], dtype=np.int64)
        room = computed.between(ends, starts)
        for place, i in enumerate(indices):
            moved = max(0, int(end[i] - start[i]))
            yield PhasedCall(
                step.rank, step.step, op, calls[i].bytes, phase, micro, place, len(indices), int(exposed[i]),
                int(room[place]), calls[i].start_ns, calls[i].end_ns, int(after[phase][i]), moved, data,
            )  # fmt: skip


def _transfer_span(call: CollectiveCall, arrival: dict[tuple[str, int, str], int]) -> tuple[int, int]:
    """From the last rank's arrival to the end."""
    start, end = open_span(call)
    met = arrival.get(call.key, start)
    return max(start, min(met, end) if is_transfer(call) else met), end


class _Passes:
    """The passes of one step in order."""

    def __init__(self, step: RankStep) -> None:
        cut = self._step = step.segments
        in_pass = np.isin(cut.kind, (Kind.COMPUTE, Kind.IDLE)) & np.isin(cut.detail, _PASSES)
        self._start: npt.NDArray[np.int64] = cut.start_ns[in_pass]
        self._detail = cut.detail[in_pass]
        # A forward after a backward begins the next micro-batch. Recomputation counts as backward.
        again = (self._detail[1:] == Detail.FORWARD) & (self._detail[:-1] == Detail.BACKWARD)
        self._micro = np.concatenate(([0], np.cumsum(again))) if len(self._detail) else np.zeros(0, dtype=np.int64)

    def computing(self, phase: Detail) -> Intervals:
        """When the rank computes in passes of this kind."""
        chosen = (self._step.kind == Kind.COMPUTE) & (self._step.detail == phase)
        return np.stack((self._step.start_ns[chosen], self._step.end_ns[chosen]), axis=1)

    def of(self, calls: Sequence[CollectiveCall]) -> list[tuple[Detail, int]]:
        """The pass and the micro-batch of each call: a gather belongs to the work after it, any other operation to the
        work before it."""
        at = np.searchsorted(self._start, np.array([call.start_ns for call in calls], dtype=np.int64), side="left")
        at -= np.array([call.op not in GATHERS for call in calls], dtype=np.int64)
        return [
            (_DETAILS[self._detail[i]], int(self._micro[i])) if 0 <= i < len(self._detail) else (Detail.NONE, 0)
            for i in at.tolist()
        ]
