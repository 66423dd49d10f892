"""The table of collectives, with the bus bandwidth each of them reached."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from diag.account import intervals as iv
from diag.account.attribute import MAX_UNCERTAINTY
from diag.account.layers import intervals_of
from diag.account.match import SEND_RECV, SYNCHRONISING, is_pair
from diag.account.records import open_span, open_spans
from diag.collectors.records import RECV, SEND
from diag.model.axes import PIPELINE, Axes
from diag.model.breakdown import CollectiveStat, CollectiveTable
from diag.model.steps import Attribution, CollectiveCall, Kind, MatchedCollective, RankStep
from diag.traces.comm_names import P2P_OPS

# -- bandwidth ---------------------------------------------------------------------------------------------------------
#
# What a collective's time says about the wire: algorithm and bus bandwidth, and the best that a group has shown.
#
# Factors from nccl-tests' PERFORMANCE.md: the bus bandwidth is what one link must have carried in any optimal
# algorithm, so it compares across operations and group sizes with the hardware's.

# Without sizes enough to see where bandwidth saturates: NVLink's latency times bandwidth is about 2 MB, InfiniBand's
# about 20, and torch.distributed's own estimate for it never goes below 100 MB.
SATURATING_BYTES: Final = 32 << 20
_SATURATED = 0.8  # of the asymptotic bandwidth
_LEAST_SIZES, _LEAST_SPAN = 3, 8  # below these a line through the sizes says nothing (science.md 4.3)


def bus_factor(op: str, ranks: int | None, gloo: bool = False) -> float | None:
    """Bus bandwidth over algorithm bandwidth; None for operations without one, or a group of unknown size.

    gloo runs a reduce-scatter as an all-reduce of the full input (measured, science.md finding 6).
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
    """The size from which on a group's bandwidth is within a fifth of its best: eff / (1 - eff) x latency x bandwidth.

    Latency is the median transfer of the smallest size, bandwidth the best seen; with fewer than three sizes, or sizes
    within a factor of eight, the constant above.
    """
    size, time = np.asarray(sizes, dtype=np.float64), np.asarray(transfers_ns, dtype=np.float64)
    distinct = np.unique(size)
    if len(distinct) < _LEAST_SIZES or distinct[-1] < _LEAST_SPAN * distinct[0]:
        return SATURATING_BYTES
    latency = float(np.median(time[size == distinct[0]]))
    return int(_SATURATED / (1 - _SATURATED) * latency * float((size / time).max()))


def best_bandwidth(sizes: Sequence[int], transfers_ns: Sequence[int], bus_gb_s: Sequence[float]) -> float | None:
    """The 95th percentile of a group's bus bandwidths at sizes that saturate it; None where no size does."""
    if not len(sizes):
        return None
    large = np.asarray(sizes) >= saturating_bytes(sizes, transfers_ns)
    return float(np.percentile(np.asarray(bus_gb_s)[large], 95)) if large.any() else None


# -- collective table --------------------------------------------------------------------------------------------------
#
# The per-collective table: waits, transfers and bandwidths of each group, operation and size (science.md 2.5).

_MOST_SIZES = 8  # of one group, operation and type; more are put into classes of powers of two

_Key = tuple[str, int, str]
_Row = tuple[str, str, str, int, int]  # group, op, dtype, bytes from, to


class _Part(Struct, frozen=True):
    """One rank's part in a collective, and what of its time was exposed and hidden, no nanosecond counted twice."""

    rank: int
    call: CollectiveCall
    exposed_ns: int
    hidden_ns: int


class _Met(Struct, frozen=True):
    """One collective: its parts on all ranks; ``match`` only where the whole group was seen on one clock."""

    parts: tuple[_Part, ...]
    match: MatchedCollective | None
    group_size: int | None

    @property
    def call(self) -> CollectiveCall:
        return self.parts[0].call

    @property
    def op(self) -> str:
        return SEND_RECV if self._pair else self.call.op

    @property
    def bound_ns(self) -> int:
        """The transfer took at most this long. A send ends when it is handed over, so that only its receive says."""
        parts = [part for part in self.parts if part.call.op == RECV] if self._pair else self.parts
        return min(part.call.end_ns - part.call.start_ns for part in parts)

    @property
    def seen_whole(self) -> bool:
        """Whether the transfer was measured from its begin: of a message that was under way when the receiver came,
        only the rest was."""
        if self.match is None or self.match.transfer_ns <= 0:
            return False
        if not self._pair:
            return True
        # Its part may lie in a step that does not count.
        last = next((part.call for part in self.parts if part.rank == self.match.last_arriver), None)
        return last is not None and last.op == SEND

    @property
    def _pair(self) -> bool:
        return is_pair(part.call for part in self.parts)


def collective_table(
    attribution: Attribution, steps: frozenset[int], world_size: int | None, gloo: bool
) -> CollectiveTable:
    """The collectives that started in these steps. Rows by falling exposed time, then by what they took."""
    counted = [step for step in attribution.rank_steps if step.step in steps]
    of_rank: dict[int, list[RankStep]] = defaultdict(list)
    for rank_step in attribution.rank_steps:
        of_rank[rank_step.rank].append(rank_step)
    found: dict[tuple[int, _Key], list[_Part]] = defaultdict(list)
    for rank, own in of_rank.items():
        for step, part in _parts(rank, own, steps):
            found[step, part.call.key].append(part)
    matches = {(match.step, match.key): match for match in attribution.collectives}
    collectives = [_met(parts, matches.get(at), world_size) for at, parts in found.items()]
    uncertainty = attribution.clock_uncertainty_ns or 0
    rows = _by_row(collectives)
    best = _best_of_groups(collectives, uncertainty, gloo)
    stats = [
        _stat(row, members, uncertainty, gloo, best.get(row[0]), attribution.axes) for row, members in rows.items()
    ]
    return CollectiveTable(
        rows=tuple(sorted(stats, key=lambda s: (-s.exposed_ns, -s.duration_mean_ns * s.count, s.group, s.op))),
        rank_steps=len(counted),
        rest_exposed_ns=sum(s.segments.total(Kind.COMM) for s in counted) - sum(s.exposed_ns for s in stats),
        rest_hidden_ns=sum(s.overlapped_comm_ns for s in counted) - sum(s.hidden_ns for s in stats),
    )


# -- parts and matches -------------------------------------------------------------------------------------------------


def _parts(rank: int, own: Sequence[RankStep], steps: frozenset[int]) -> list[tuple[int, _Part]]:
    """(step, part) of the calls of one rank that start in the steps. Where calls overlap, the first one has the
    time."""
    # A step from the records lists calls that only end in it, too: those are the step's before.
    listed = [(s.step, call) for s in own for call in s.collectives if call.start_ns >= s.begin_ns]
    listed.sort(key=lambda item: open_span(item[1]))
    if not listed:
        return []
    spans = open_spans([call for _, call in listed])
    reach = np.concatenate(([spans[0, 0]], np.maximum.accumulate(spans[:, 1])[:-1]))
    start = np.maximum(spans[:, 0], reach)
    end = np.maximum(spans[:, 1], start)
    segments = [s.segments for s in own if s.step in steps]
    exposed, hidden = (
        iv.Covered(iv.union(*(intervals_of(segment, kind) for segment in segments))).between(start, end)
        for kind in (Kind.COMM, Kind.COMPUTE)
    )
    return [
        (step, _Part(rank, call, int(exposed[i]), int(hidden[i])))
        for i, (step, call) in enumerate(listed)
        if step in steps
    ]


def _met(parts: Sequence[_Part], match: MatchedCollective | None, world_size: int | None) -> _Met:
    call = parts[0].call
    size = len(call.group_ranks) or call.group_size or None
    if size is None and world_size == len(parts) > 1:
        size = world_size
    meets = call.op in SYNCHRONISING or is_pair(part.call for part in parts)
    whole = match is not None and match.complete and len(match.ranks) == size and meets
    return _Met(tuple(parts), match if whole else None, size)


def _by_row(collectives: Iterable[_Met]) -> dict[_Row, list[_Met]]:
    """Collectives of equal group, operation and type by their exact size, or by classes where sizes are many."""
    alike: dict[tuple[str, str, str], list[_Met]] = defaultdict(list)
    for met in collectives:
        alike[met.call.group, met.op, met.call.dtype].append(met)
    rows: dict[_Row, list[_Met]] = defaultdict(list)
    for (group, op, dtype), members in alike.items():
        exact = len({met.call.bytes for met in members}) <= _MOST_SIZES
        for met in members:
            size = met.call.bytes
            low = size if exact or not size else 1 << (size.bit_length() - 1)
            rows[group, op, dtype, low, size if exact or not size else 2 * low].append(met)
    return rows


# -- numbers -----------------------------------------------------------------------------------------------------------


def _transfers(members: Iterable[_Met], uncertainty_ns: int) -> list[tuple[_Met, int]]:
    """Collectives with a transfer that the clocks can resolve, on the whole: with clocks off by more than a quarter of
    the mean transfer there is none."""
    found = [(met, met.match.transfer_ns) for met in members if met.match is not None and met.seen_whole]
    mean = sum(ns for _, ns in found) / len(found) if found else 0.0
    return found if uncertainty_ns <= MAX_UNCERTAINTY * mean else []


def _resolved(times_ns: list[int], uncertainty_ns: int) -> list[int]:
    """The times, or none of them where even the longest is within four times what the clocks may be off."""
    return times_ns if uncertainty_ns <= MAX_UNCERTAINTY * max(times_ns, default=0) else []


def _best_of_groups(collectives: Sequence[_Met], uncertainty_ns: int, gloo: bool) -> Mapping[str, float | None]:
    """Of each group, the best bus bandwidth at saturating sizes."""
    seen: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    for met, transfer in _transfers(collectives, uncertainty_ns):
        factor = bus_factor(met.op, met.group_size, gloo)
        if factor and met.call.bytes:
            seen[met.call.group].append((met.call.bytes, transfer, factor * met.call.bytes / transfer))
    return {group: best_bandwidth(*zip(*rows, strict=True)) for group, rows in seen.items()}


def _stat(
    row: _Row, members: Sequence[_Met], uncertainty_ns: int, gloo: bool, best: float | None, axes: Axes
) -> CollectiveStat:
    group, op, dtype, low, high = row
    ranks = next((met.call.group_ranks for met in members if met.call.group_ranks), ())
    matches = [met.match for met in members if met.match is not None]
    waits = _resolved([wait for match in matches for wait in match.wait_ns], uncertainty_ns)
    tails = _resolved([max(match.tail_ns) for match in matches], uncertainty_ns)
    last = Counter(match.last_arriver for match in matches if waits).most_common()
    transfers = _transfers(members, uncertainty_ns)
    timed = transfers or [(met, met.bound_ns) for met in members]
    total, time = sum(met.call.bytes for met, _ in timed), sum(ns for _, ns in timed)
    algbw = total / time if low and time else None
    size = next((met.group_size for met in members if met.group_size), None)
    factor = bus_factor(op, size, gloo)
    busbw = algbw * factor if algbw is not None and factor else None
    parts = [part for met in members for part in met.parts]
    return CollectiveStat(
        group=group,
        op=op,
        dtype=dtype,
        bytes_low=low,
        bytes_high=high,
        bytes_mean=_mean([met.call.bytes for met in members]) or 0,
        count=len(members),
        matched=len(matches),
        ranks=len({part.rank for part in parts}),
        group_size=size,
        duration_mean_ns=_mean([part.call.end_ns - part.call.start_ns for part in parts]) or 0,
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
        exposed_ns=sum(part.exposed_ns for part in parts),
        hidden_ns=sum(part.hidden_ns for part in parts),
        inferred=any(part.call.inferred for part in parts),
        last_counts=tuple(last),
        axis=(PIPELINE if op in P2P_OPS and axes.stages() else axes.of(ranks)) or "",
        members=ranks,
    )


def _mean(values: Sequence[int]) -> int | None:
    return round(sum(values) / len(values)) if values else None
