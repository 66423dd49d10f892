"""The table of collectives: waits, transfers and bandwidths of each group, operation and size
(docs/concepts/clocks.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account.calls import Calls, Group
from diag.account.intervals import Covered, intervals_of
from diag.account.match import SEND_RECV
from diag.account.on_line import on_line
from diag.account.policy import CLOCKS
from diag.account.rank_steps import RankSteps
from diag.account.records import open_spans
from diag.collectors.records import RECV, SEND, SYNCHRONISING
from diag.model.accounts import Attribution
from diag.model.axes import PIPELINE, Axes
from diag.model.breakdown import CollectiveStat, CollectiveTable, ExposedCall
from diag.model.keys import Keys
from diag.model.matched import MatchedCollectives
from diag.model.ragged import edges_of, is_named, owners, places_from
from diag.model.steps import CollectiveCall, Detail, Kind, MatchedCollective
from diag.rundir.columns import Bools, Codes, Ints
from diag.tables.policy import BANDWIDTH
from diag.traces.kineto_names import P2P_OPS

from .all_to_alls import all_to_all_table
from .bandwidth import best_bandwidth, bus_factor
from .passes import GATHERS, PASSES, Passes

_Row = tuple[str, str, str, int, int]  # group, op, dtype, bytes from, to


class _Parts(Struct, frozen=True):
    """Each rank's part in each collective, as columns: those of one collective together, in order of its first part.
    ``first[i]`` to ``first[i + 1]`` are collective i. ``exposed_ns`` and ``hidden_ns``: no nanosecond counts twice.
    ``place``: of the call in ``calls``, from which the columns before it are."""

    group: Codes
    label: Codes
    op: Codes
    dtype: Codes
    seq: Ints
    bytes: Ints
    inferred: Bools
    rank: Ints
    step: Ints
    place: Ints
    duration_ns: Ints
    exposed_ns: Ints
    hidden_ns: Ints
    first: Ints
    calls: Calls

    @property
    def collective(self) -> Ints:
        """The number of each part's collective."""
        return owners(self.first)

    def named(self, op: str) -> Bools:
        return is_named(self.op, self.calls.names, op)

    @property
    def key_columns(self) -> Keys:
        """Of the collectives."""
        return self.calls.key_columns.take(self.place[self.first[:-1]])


_OF_CALLS = _Parts.__struct_fields__[:7]


class _Met(Struct, frozen=True):
    """The collectives as columns, with sums over their parts. ``group``: a place in ``groups``; ``op``: the name, that
    of a send and its receive together; ``group_size``: 0 if unknown. ``match``: its place among those that were
    matched, -1 where the group was not recorded whole on one clock; ``bound_ns``: upper bound of the transfer;
    ``seen_whole``: whether the transfer was measured from its begin; ``transfer_ns``: of the match, else 0."""

    group: Codes
    op: npt.NDArray[np.object_]
    dtype: Codes
    bytes: Ints
    parts: Ints
    duration_ns: Ints
    exposed_ns: Ints
    hidden_ns: Ints
    bound_ns: Ints
    inferred: Bools
    group_size: Ints
    match: Ints
    seen_whole: Bools
    transfer_ns: Ints
    groups: tuple[Group, ...]
    names: tuple[str, ...]

    def of(self, places: Ints) -> _Met:
        """Those at these places."""
        columns = {name: getattr(self, name)[places] for name in self.__struct_fields__[:-2]}
        return _Met(**columns, groups=self.groups, names=self.names)


def collective_table(
    attribution: Attribution, steps: frozenset[int], world_size: int | None, gloo: bool
) -> CollectiveTable:
    """The collectives that started in these steps. Rows by decreasing exposed time, then by duration."""
    every = RankSteps.of(attribution.rank_steps)
    counted, parts, matches = every.of_steps(steps), parts_of(every, steps), attribution.collectives
    matched = parts.key_columns.last_in(matches.key_columns, parts.step[parts.first[:-1]], matches.step)
    collectives = _collectives(parts, matches, matched, world_size)
    uncertainty = attribution.clock_uncertainty_ns or 0
    rows = _by_row(collectives)
    ranks = _ranks_of(rows, parts)
    best = _best_of_groups(collectives, uncertainty, gloo)
    stats = [
        _stat(row, collectives.of(members), matches, ranks[row], uncertainty, gloo, best.get(row[0]), attribution.axes)
        for row, members in rows.items()
    ]
    return CollectiveTable(
        rows=tuple(sorted(stats, key=lambda s: (-s.exposed_ns, -s.duration_mean_ns * s.count, s.group, s.op))),
        rank_steps=len(counted),
        rest_exposed_ns=int(np.diff(intervals_of(counted.segments.every, Kind.COMM)).sum())
        - sum(s.exposed_ns for s in stats),
        rest_hidden_ns=int(counted.overlapped_comm_ns.sum()) - sum(s.hidden_ns for s in stats),
        all_to_alls=all_to_all_table(attribution, steps),
        longest=_longest(parts, matched, every, attribution),
    )


def _longest(parts: _Parts, matched: Ints, steps: RankSteps, attribution: Attribution) -> tuple[ExposedCall, ...]:
    """The calls with the longest exposed time, over all ranks and steps. ``matched``: by collective, its place among
    those that were matched, or -1."""
    exposed, most = parts.exposed_ns, BANDWIDTH.most_calls_listed
    least = max(1, int(np.partition(exposed, -most)[-most])) if len(exposed) > most else 1
    longest = np.flatnonzero(exposed >= least)
    longest = longest[np.argsort(-exposed[longest], kind="stable")][:most]
    place_of = {key: at for at, key in enumerate(zip(steps.rank.tolist(), steps.step.tolist(), strict=True))}
    members = list(zip(parts.rank[longest].tolist(), parts.step[longest].tolist(), strict=True))
    calls = parts.calls.take(parts.place[longest])
    passes = Passes(steps.take(np.array([place_of[member] for member in members], dtype=np.int64)))
    phases, _ = passes.of(np.arange(len(longest)), calls.start_ns, calls.with_op(*GATHERS))
    places = matched[np.searchsorted(parts.first, longest, side="right") - 1].tolist()
    return tuple(
        _exposed_call(
            call,
            exposed_ns,
            *member,
            Detail(phase),
            attribution.collectives[place] if place >= 0 else None,
            attribution,
        )
        for call, exposed_ns, member, phase, place in zip(
            calls, parts.exposed_ns[longest].tolist(), members, phases.tolist(), places, strict=True
        )
    )


def _exposed_call(
    call: CollectiveCall,
    exposed_ns: int,
    rank: int,
    step: int,
    phase: Detail,
    match: MatchedCollective | None,
    attribution: Attribution,
) -> ExposedCall:
    wait_ns = None
    uncertainty_ns = attribution.clock_uncertainty_ns or 0
    if match is not None and match.complete and rank in match.ranks:
        wait_ns = match.wait_ns[match.ranks.index(rank)]
    resolved = wait_ns is not None and uncertainty_ns <= CLOCKS.uncertainty_share * max(wait_ns, exposed_ns)
    return ExposedCall(
        rank=rank,
        step=step,
        op=call.op,
        group=call.group,
        bytes=call.bytes,
        start_ns=call.start_ns,
        end_ns=call.end_ns,
        exposed_ns=exposed_ns,
        wait_ns=wait_ns if resolved else None,
        axis=axis_of(call.op, call.group_ranks, attribution.axes),
        members=call.group_ranks,
        phase=phase.name.lower() if phase in PASSES else "",
    )


# -- parts and matches -------------------------------------------------------------------------------------------------


def parts_of(steps: RankSteps, numbers: frozenset[int]) -> _Parts:
    """The calls that start in the steps of these numbers. If calls of a rank overlap, the time belongs to the first
    one."""
    calls, begun, (shift_ns, pieces) = steps.calls, steps.begun, on_line(steps)
    place, at = steps.places[begun], steps.of_place[begun]
    start, end = (span[place] + shift_ns[at] for span in open_spans(calls))
    order = np.lexsort((end, start))
    place, at, start, end = (column[order] for column in (place, at, start, end))
    begin = np.maximum(start, np.concatenate((start[:1], np.maximum.accumulate(end)[:-1])))
    end = np.maximum(end, begin)
    among = np.isin(steps.step, list(numbers))
    own = pieces.take(np.flatnonzero(among)).every
    counted = among[at]
    exposed, hidden = (Covered(intervals_of(own, kind)).between(begin, end) for kind in (Kind.COMM, Kind.COMPUTE))
    place, at = place[counted], at[counted]
    every = {name: getattr(calls, name)[place] for name in _OF_CALLS}
    every |= {
        "rank": steps.rank[at],
        "step": steps.step[at],
        "place": place,
        "duration_ns": calls.end_ns[place] - calls.start_ns[place],
        "exposed_ns": exposed[counted],
        "hidden_ns": hidden[counted],
    }
    order, first = _together(every, [group.name for group in calls.groups])
    return _Parts(**{name: column[order] for name, column in every.items()}, first=first, calls=calls)


def _together(parts: Mapping[str, Ints], groups: Sequence[str]) -> tuple[Ints, Ints]:
    """The order that puts parts of equal step and key together, in order of the first part; and where each collective
    begins in it, and the end."""
    name_of = {name: at for at, name in enumerate(dict.fromkeys(groups))}
    name = np.array([name_of[group] for group in groups], dtype=np.int64)[parts["group"]]
    columns = (parts["seq"], parts["label"], name, parts["step"])
    order = np.lexsort(columns)
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = np.any([np.diff(column[order]) != 0 for column in columns], axis=0)
    begins = np.flatnonzero(new)
    counts = np.diff(begins, append=len(order))
    by_first = np.argsort(order[begins])
    return order[places_from(begins[by_first], counts[by_first])], edges_of(counts[by_first])


def _collectives(parts: _Parts, matches: MatchedCollectives, matched: Ints, world_size: int | None) -> _Met:
    """``matched``: by collective, its place in ``matches``, or -1."""
    first, counts = parts.first[:-1], np.diff(parts.first)
    sent, received = parts.named(SEND), parts.named(RECV)

    def by(function: np.ufunc, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return function.reduceat(column, first) if len(first) else column

    pair = by(np.logical_and, sent | received) & by(np.logical_or, sent) & by(np.logical_or, received)
    # A send ends when it is handed over, so only its receive bounds it.
    unbound = pair[parts.collective] & ~received
    group = parts.group[first]
    groups, names = parts.calls.groups, parts.calls.names
    size_of = [len(each.ranks) or each.size for each in groups]
    group_size = np.array([*size_of, 0], dtype=np.int64)[group]
    if world_size is not None and world_size > 1:
        group_size = np.where((group_size == 0) & (counts == world_size), world_size, group_size)
    # Of the matches: the last row stands for none.
    complete, members, last, transfer_ns = (
        np.append(column, 0)[matched]
        for column in (matches.complete, matches.sizes, matches.last_arriver, matches.transfer_ns)
    )
    meets = pair | is_named(parts.op, names, *SYNCHRONISING)[first]
    whole = (matched >= 0) & (complete != 0) & (members == group_size) & meets
    seen_whole = whole & (transfer_ns > 0)
    # A message may be in transfer already when the receiver arrives. The sender's part may lie in a step that does not
    # count. Of a rank with several parts, the first.
    by_last = np.flatnonzero(parts.rank == last[parts.collective])
    of_last, once = np.unique(parts.collective[by_last], return_index=True)
    last_sends = np.zeros(len(first), dtype=np.bool_)
    last_sends[of_last] = sent[by_last[once]]
    return _Met(
        group=group,
        op=np.where(pair, SEND_RECV, np.array([*names, ""], dtype=np.object_)[parts.op[first]]),
        dtype=parts.dtype[first],
        bytes=parts.bytes[first],
        parts=counts,
        duration_ns=by(np.add, parts.duration_ns),
        exposed_ns=by(np.add, parts.exposed_ns),
        hidden_ns=by(np.add, parts.hidden_ns),
        bound_ns=by(np.minimum, np.where(unbound, np.iinfo(np.int64).max, parts.duration_ns)),
        inferred=by(np.logical_or, parts.inferred.astype(np.bool_)),
        group_size=group_size,
        match=np.where(whole, matched, -1),
        seen_whole=seen_whole & (~pair | last_sends),
        transfer_ns=transfer_ns,
        groups=groups,
        names=names,
    )


def _ranks_of(rows: Mapping[_Row, Ints], parts: _Parts) -> dict[_Row, int]:
    """How many ranks took part in the collectives of each row."""
    row_of = np.zeros(len(parts.first) - 1, dtype=np.int64)
    for at, members in enumerate(rows.values()):
        row_of[members] = at
    span = int(parts.rank.max(initial=0)) + 1
    both = np.unique(row_of[parts.collective] * span + parts.rank)
    return dict(zip(rows, np.bincount(both // span, minlength=len(rows)).tolist(), strict=True))


def _by_row(met: _Met) -> dict[_Row, Ints]:
    """The places of the collectives of equal group, operation and type by exact size, or by size class if there are
    many sizes. Rows in the order in which they come up."""
    rows: dict[_Row, Ints] = {}
    names = dict.fromkeys(group.name for group in met.groups)
    name = np.array([*map({name: at for at, name in enumerate(names)}.__getitem__, (g.name for g in met.groups)), 0])
    ops = {op: at for at, op in enumerate(dict.fromkeys(met.op.tolist()))}
    op = np.array([ops[each] for each in met.op.tolist()], dtype=np.int64)
    for alike in _alike((name[met.group] * max(1, len(ops)) + op) * (1 + len(met.names)) + met.dtype):
        sizes = met.bytes[alike]
        exact = len(np.unique(sizes)) <= BANDWIDTH.most_sizes_listed
        group, kind, dtype = (
            met.groups[met.group[alike[0]]].name,
            str(met.op[alike[0]]),
            met.names[met.dtype[alike[0]]],
        )
        low = sizes if exact else np.array([size and 1 << (size.bit_length() - 1) for size in sizes.tolist()])
        for of_size in _alike(low):
            least = int(low[of_size[0]])
            rows[group, kind, dtype, least, least if exact or not least else 2 * least] = alike[of_size]
    return rows


def _alike(values: Ints) -> list[Ints]:
    """The places of equal values, in the order in which they come up."""
    _, first, of = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(of, kind="stable")
    runs = np.split(order, np.flatnonzero(np.diff(of[order])) + 1) if len(order) else []
    return [runs[at] for at in np.argsort(first).tolist()]


def _transfers(met: _Met, uncertainty_ns: int) -> Ints:
    """The places of the collectives with a transfer that the clocks can resolve. All or none: none if the clocks are
    off by more than a quarter of the mean transfer."""
    seen = np.flatnonzero(met.seen_whole)
    mean = int(met.transfer_ns[seen].sum()) / len(seen) if len(seen) else 0.0
    return seen if uncertainty_ns <= CLOCKS.uncertainty_share * mean else seen[:0]


def _resolved(times_ns: Ints, uncertainty_ns: int) -> Ints:
    """The times, or none if even the longest is within four times the uncertainty of the clocks."""
    return times_ns if uncertainty_ns <= CLOCKS.uncertainty_share * int(times_ns.max(initial=0)) else times_ns[:0]


def _best_of_groups(met: _Met, uncertainty_ns: int, gloo: bool) -> Mapping[str, float | None]:
    """For each group, the best bus bandwidth at saturating sizes."""
    transfers = _transfers(met, uncertainty_ns)
    factors: dict[tuple[str, int], float | None] = {}
    for each in zip(met.op[transfers].tolist(), met.group_size[transfers].tolist(), strict=True):
        if each not in factors:
            factors[each] = bus_factor(each[0], each[1] or None, gloo)
    factor = np.array(
        [
            factors[each] or 0.0
            for each in zip(met.op[transfers].tolist(), met.group_size[transfers].tolist(), strict=True)
        ],
        dtype=np.float64,
    )
    used = (factor > 0) & (met.bytes[transfers] > 0)
    transfers, factor = transfers[used], factor[used]
    speed = factor * met.bytes[transfers] / met.transfer_ns[transfers]
    names = np.array([met.groups[group].name for group in met.group[transfers].tolist()], dtype=np.object_)
    return {
        name: best_bandwidth(met.bytes[transfers[own]], met.transfer_ns[transfers[own]], speed[own])
        for name in dict.fromkeys(names.tolist())
        for own in (names == name,)
    }


def _stat(
    row: _Row,
    met: _Met,
    every: MatchedCollectives,
    taking_part: int,
    uncertainty_ns: int,
    gloo: bool,
    best: float | None,
    axes: Axes,
) -> CollectiveStat:
    """``met``: the collectives of the row; ``every``: all that were matched."""
    group, op, dtype, low, high = row
    of_groups = (met.groups[code].ranks for code in dict.fromkeys(met.group.tolist()))
    ranks = next((of_group for of_group in of_groups if of_group), ())
    matches = every.take(met.match[met.match >= 0])
    waits = _resolved(matches.wait_ns, uncertainty_ns)
    tails = _resolved(matches.by(matches.tail_ns, np.maximum), uncertainty_ns)
    waited = zip(matches.last_arriver.tolist(), matches.by(matches.wait_ns, np.add).tolist(), strict=True)
    last = who_was_waited_for(waited if len(waits) else ())
    transfers = _transfers(met, uncertainty_ns)
    if len(transfers):
        total, time = int(met.bytes[transfers].sum()), int(met.transfer_ns[transfers].sum())
    else:
        total, time = int(met.bytes.sum()), int(met.bound_ns.sum())
    algbw = total / time if low and time else None
    size = next(iter(met.group_size[met.group_size > 0].tolist()), None)
    factor = bus_factor(op, size, gloo)
    busbw = algbw * factor if algbw is not None and factor else None
    return CollectiveStat(
        group=group,
        op=op,
        dtype=dtype,
        bytes_low=low,
        bytes_high=high,
        bytes_mean=_mean(met.bytes) or 0,
        count=len(met.op),
        matched=len(matches),
        ranks=taking_part,
        group_size=size,
        duration_mean_ns=round(int(met.duration_ns.sum()) / int(met.parts.sum())),
        wait_mean_ns=_mean(waits),
        wait_max_ns=int(waits.max()) if len(waits) else None,
        last_rank=last[0][0] if last else None,
        last_share=last[0][1] / sum(ns for _, ns in last) if last else None,
        transfer_mean_ns=_mean(met.transfer_ns[transfers]),
        transfer_bound_ns=_mean(met.bound_ns) or 0,
        tail_mean_ns=_mean(tails),
        algbw_gb_s=algbw,
        busbw_gb_s=busbw,
        bandwidth_is_bound=not len(transfers) and algbw is not None,
        efficiency=busbw / best if busbw is not None and best and len(transfers) else None,
        exposed_ns=int(met.exposed_ns.sum()),
        hidden_ns=int(met.hidden_ns.sum()),
        inferred=bool(met.inferred.any()),
        waited_for=last,
        axis=axis_of(op, ranks, axes),
        members=ranks,
    )


def who_was_waited_for(waits: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranks with the nanoseconds that the others waited for them, the longest first, from the last rank of each
    collective and that waiting. A count would make a rank that is last by microseconds as bad as a slow one."""
    total = Counter[int]()
    for rank, ns in waits:
        total[rank] += ns
    return tuple((rank, ns) for rank, ns in total.most_common() if ns > 0)


def axis_of(op: str, ranks: tuple[int, ...], axes: Axes) -> str:
    """The axis of the mesh that a group of ranks lies along; "" if unknown."""
    return (PIPELINE if op in P2P_OPS and axes.stages() else axes.of(ranks)) or ""


def _mean(values: Ints) -> int | None:
    return round(int(values.sum()) / len(values)) if len(values) else None
