"""All-to-alls of expert parallelism: what each rank sends and receives, how long it computes on what it received, and
how long others wait for it.

A dispatch carries tokens to the ranks of their experts; a return (the combine) carries as much back the same way. Sizes
include the part that a rank keeps. The computation after an all-to-all ends at the next collective whose group contains
all of its ranks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.account import intervals as iv
from diag.account.intervals import Covered, intervals_of
from diag.account.rank_steps import RankSteps
from diag.collectors.records import ALL_TO_ALL, SYNCHRONISING
from diag.model import UNKNOWN
from diag.model.accounts import Attribution
from diag.model.breakdown import AllToAllStat
from diag.model.keys import Key
from diag.model.steps import CollectiveCall, Kind, RankStep
from diag.rundir.columns import Ints
from diag.tables.policy import BANDWIDTH

Series = npt.NDArray[np.float64]


class Exchange(Struct, frozen=True):
    """One all-to-all that was recorded on all ranks of its group. ``place``: its index among those of the group in the
    step. ``sent``, ``received``: bytes of each of ``ranks``; ``sent`` is None if unknown. ``own_ns``: how long each
    rank then computed or was idle, until it called the group's next collective; None if the next collective is not the
    same on all ranks. ``back``: it is the return of the previous one."""

    step: int
    place: int
    group: str
    ranks: tuple[int, ...]
    received: Series
    sent: Series | None
    own_ns: Series | None
    back: bool = False

    @property
    def imbalance(self) -> float:
        """The most that a rank receives over the mean; 1 if nothing is sent."""
        mean = float(self.received.mean())
        return float(self.received.max()) / mean if mean else 1.0


class _Part(Struct, frozen=True):
    call: CollectiveCall
    own_ns: int
    following: Key | None


def exchanges(attribution: Attribution, steps: Collection[int]) -> list[Exchange]:
    """The all-to-alls of known sizes that start in these steps, in the order of groups, steps and places."""
    met: dict[tuple[int, Key], dict[int, _Part]] = defaultdict(dict)
    counted = RankSteps.of(attribution.rank_steps).of_steps(steps)
    known = counted.calls.with_op(ALL_TO_ALL) & (counted.calls.received_bytes != UNKNOWN)
    for step in counted.take(np.unique(counted.of_place[known[counted.places]])):
        for part in _parts(step):
            met[step.step, part.call.key].setdefault(step.rank, part)
    by_group: dict[tuple[str, tuple[int, ...], int], list[tuple[int, Exchange]]] = defaultdict(list)
    for (number, _), members in met.items():
        exchange = _exchange(number, members)
        if exchange is not None:
            start = min(part.call.start_ns for part in members.values())
            by_group[exchange.group, exchange.ranks, number].append((start, exchange))
    placed = []
    for _, of_step in sorted(by_group.items()):
        placed += _placed([exchange for _, exchange in sorted(of_step, key=lambda item: item[0])])
    return placed


def _parts(step: RankStep) -> list[_Part]:
    """One rank's all-to-alls of a step."""
    calls = sorted((call for call in step.collectives if call.op in SYNCHRONISING), key=lambda call: call.start_ns)
    starts = [call.start_ns for call in calls]
    pairs: list[tuple[CollectiveCall, CollectiveCall | None]] = []
    for at, call in enumerate(calls):
        if call.op != ALL_TO_ALL or call.received_bytes is None or call.start_ns < step.begin_ns:
            continue
        first = max(at + 1, bisect_left(starts, call.end_ns))
        pairs.append((call, next((calls[i] for i in range(first, len(calls)) if _has_all(calls[i], call)), None)))
    since = np.array([call.end_ns for call, _ in pairs], dtype=np.int64)
    until = np.array([call.end_ns if later is None else later.start_ns for call, later in pairs], dtype=np.int64)
    busy = Covered(iv.union(*(intervals_of(step.segments, kind) for kind in (Kind.COMPUTE, Kind.IDLE))))
    return [
        _Part(call, own_ns, None if later is None else later.key)
        for (call, later), own_ns in zip(pairs, busy.between(since, until).tolist(), strict=True)
    ]


def received_bytes(steps: RankSteps) -> Ints:
    """Of the all-to-alls in these steps; UNKNOWN where it was not recorded."""
    received: Ints = steps.calls.received_bytes[steps.places[steps.calls.with_op(ALL_TO_ALL)[steps.places]]]
    return received


def _has_all(later: CollectiveCall, call: CollectiveCall) -> bool:
    """Whether the ranks of ``call`` meet again in ``later``."""
    if later.group == call.group:
        return True
    return bool(call.group_ranks) and set(later.group_ranks) >= set(call.group_ranks)


def _exchange(step: int, members: Mapping[int, _Part]) -> Exchange | None:
    """None if it was not recorded on all ranks of the group."""
    ranks = tuple(sorted(members))
    parts = [members[rank] for rank in ranks]
    first = parts[0].call
    if len(ranks) < 2 or len(ranks) != (len(first.group_ranks) or first.group_size):
        return None
    sent = [part.call.sent_bytes for part in parts]
    together = parts[0].following is not None and len({part.following for part in parts}) == 1
    return Exchange(
        step=step,
        place=0,
        group=first.group,
        ranks=ranks,
        received=np.array([part.call.received_bytes for part in parts], dtype=np.float64),
        sent=None if None in sent else np.array(sent, dtype=np.float64),
        own_ns=np.array([part.own_ns for part in parts], dtype=np.float64) if together else None,
    )


def _placed(of_step: Sequence[Exchange]) -> list[Exchange]:
    """One group's all-to-alls of a step, in order, with their places. A return is not a dispatch, so the next one is
    not its return."""
    placed: list[Exchange] = []
    for place, exchange in enumerate(of_step):
        before = placed[-1] if placed else None
        back = before is not None and not before.back and _mirrors(exchange, before)
        placed.append(replace(exchange, place=place, back=back))
    return placed


def _mirrors(exchange: Exchange, before: Exchange) -> bool:
    if exchange.sent is None or before.sent is None:
        return False
    return bool((exchange.received == before.sent).all() and (exchange.sent == before.received).all())


def uneven(all_to_alls: Iterable[Exchange]) -> list[Exchange]:
    """The dispatches at the places of the step where the ranks receive unequal amounts."""
    by_place: dict[tuple[str, tuple[int, ...], int], list[Exchange]] = defaultdict(list)
    for exchange in all_to_alls:
        by_place[exchange.group, exchange.ranks, exchange.place].append(exchange)
    return [
        exchange
        for of_place in by_place.values()
        if np.mean([e.imbalance for e in of_place]) >= 1 + BANDWIDTH.uneven_share
        and np.mean([e.back for e in of_place]) < 0.5
        for exchange in of_place
    ]


def by_group(all_to_alls: Iterable[Exchange]) -> list[tuple[tuple[str, tuple[int, ...]], list[Exchange]]]:
    """The all-to-alls of each group, identified by its name and its ranks, in the order of both."""
    groups: dict[tuple[str, tuple[int, ...]], list[Exchange]] = defaultdict(list)
    for exchange in all_to_alls:
        groups[exchange.group, exchange.ranks].append(exchange)
    return sorted(groups.items(), key=lambda item: item[0])


def all_to_all_table(attribution: Attribution, steps: frozenset[int]) -> tuple[AllToAllStat, ...]:
    """A row for each rank and group, in the order of groups; ranks that receive most come first."""
    groups = by_group(exchanges(attribution, steps))
    waited = _waited(attribution, steps) if groups else {}
    rows: list[AllToAllStat] = []
    for (group, ranks), of_group in groups:
        table = _rows(group, ranks, of_group, waited, attribution.axes.of(ranks) or "")
        rows += sorted(table, key=lambda row: (-row.received_over_mean, -row.received_bytes, row.rank))
    return tuple(rows)


def _rows(
    group: str, ranks: tuple[int, ...], of_group: Sequence[Exchange], waited: Mapping[tuple[str, int], int], axis: str
) -> list[AllToAllStat]:
    steps = len({exchange.step for exchange in of_group})
    received = np.sum([exchange.received for exchange in of_group], axis=0) / steps
    of_sent = [exchange.sent for exchange in of_group if exchange.sent is not None]
    sent = np.sum(of_sent, axis=0) / steps if len(of_sent) == len(of_group) else None
    telling = uneven(of_group) or of_group
    dispatched = np.sum([exchange.received for exchange in telling], axis=0)
    over_mean = dispatched / dispatched.mean() if dispatched.any() else np.ones(len(ranks))
    imbalance = float(np.mean([exchange.imbalance for exchange in telling]))
    return [
        AllToAllStat(
            group=group,
            axis=axis,
            rank=rank,
            count=round(len(of_group) / steps),
            sent_bytes=None if sent is None else round(float(sent[at])),
            received_bytes=round(float(received[at])),
            received_over_mean=float(over_mean[at]),
            imbalance=imbalance,
            caused_wait_ns=round(waited.get((group, rank), 0) / steps) if waited else None,
        )
        for at, rank in enumerate(ranks)
    ]


def _waited(attribution: Attribution, steps: frozenset[int]) -> dict[tuple[str, int], int]:
    """By group and rank, how long the others waited for it when it arrived last at an all-to-all: their mean, summed
    over the steps. Empty if unknown."""
    waited: dict[tuple[str, int], int] = defaultdict(int)
    every = attribution.collectives
    for met in every.take(every.with_op(ALL_TO_ALL)):
        if met.step in steps and met.complete and len(met.ranks) > 1:
            waited[met.key[0], met.last_arriver] += sum(met.wait_ns) // (len(met.ranks) - 1)
    return dict(waited)
