"""The table of collectives: waits, transfers and bandwidths of each group, operation and size
(docs/concepts/clocks.md)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account import intervals as iv
from diag.account.calls import Calls, Group, Some
from diag.account.intervals import Covered
from diag.account.match import SEND_RECV, SYNCHRONISING
from diag.account.policy import CLOCKS
from diag.account.records import open_spans
from diag.collectors.records import RECV, SEND
from diag.model.accounts import Attribution
from diag.model.axes import PIPELINE, Axes
from diag.model.breakdown import CollectiveStat, CollectiveTable, ExposedCall
from diag.model.ragged import owners
from diag.model.steps import CollectiveCall, Kind, MatchedCollective, RankStep, Segments, by_causes
from diag.rundir.columns import Bools, Ints, is_named
from diag.tables.policy import BANDWIDTH
from diag.traces.kineto_names import P2P_OPS

from .all_to_alls import all_to_all_table
from .bandwidth import best_bandwidth, bus_factor
from .passes import PASSES, Passes

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
        return owners(self.first)

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
        rest_exposed_ns=int(by_causes([s.segments for s in counted])[:, Kind.COMM].sum())
        - sum(s.exposed_ns for s in stats),
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
    phase = Passes([step]).of_call(call.op, call.start_ns)
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
        phase=phase.name.lower() if phase in PASSES else "",
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
