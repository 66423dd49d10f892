"""Blame: which rank made the others wait in a collective, and what it did meanwhile (docs/concepts/critical-path.md).

Waiting is never a cause. For each collective on the critical path, the activity of the ranks since they were last in
step is compared: a rank is charged its excess over the median of its peers, at most as long as others waited.
Ranks are in step at the end of a collective that blocked all of them. A collective that is overlapped with compute on
some rank does not tie the ranks together: a pause before it shows only later, where the waiting is exposed. Time
between the two without records (it lies outside of the steps) is charged without a reason.

Pipeline stages run different layers, so a rank is compared with the ranks of its own stage; if it has no such peer,
with its own usual activity up to that point, in steps of the same source: a trace calls idle what records count as
compute, and the profiler makes steps longer. Activity that does not depend on the layers is compared across all ranks:
data wait, copies, checkpoints, garbage collection.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account.policy import CRITICAL_PATH
from diag.collectors.records import SEND
from diag.model.steps import Blame, CollectiveCall, Detail, Kind, RankStep

from .critical_path import LABELS, Activity, Attendance, Readiness, Timeline, label_of, of_label
from .intervals import CoveredOfMany, Intervals, Times
from .match import Key, is_handed_over, is_pair

# -- others ------------------------------------------------------------------------------------------------------------
#
# Activity of the others: for each rank, the median over all other ranks.

Values = npt.NDArray[np.int64]


def median_of_others(values: Values) -> Values:
    """For each row the median of all other rows, column by column, rounded down; a single row itself.

    In linear time: which of the middle values it is depends only on which side of them the row itself is. Where rows
    are equal to a middle value, it does not matter which of them is left out.
    """
    count = len(values)
    if count < 2:
        return values
    middle = count // 2
    kth = (middle - 1, middle, min(middle + 1, count - 1))
    ordered = np.partition(values, sorted(set(kth)), axis=0)
    below, at, above = (ordered[index] for index in kth)
    if count % 2 == 0:  # an odd number of others: one of them is in the middle
        median: Values = np.where(values > below, below, at)
        return median
    others = np.where(values > at, below + at, np.where(values < at, at + above, below + above))
    halved: Values = others // 2
    return halved


# Labels of which one stage has more than another because it has other layers.
_OF_LAYERS = np.zeros(LABELS, dtype=np.bool_)
for _detail in Detail:
    _OF_LAYERS[label_of(Kind.COMPUTE, _detail)] = True
    _OF_LAYERS[label_of(Kind.IDLE, _detail)] = _detail != Detail.GC

_Message = tuple[str, int | None, int | None, int]  # send or receive, own stage, stage at the other end, number


class StagePeers:
    """``stages``: the stage of each rank, empty without a pipeline; ``steps``: each rank's steps; ``came``: the ranks'
    arrivals at their collectives."""

    def __init__(
        self,
        stages: Mapping[int, int],
        timelines: Mapping[int, Timeline],
        steps: Mapping[int, Sequence[RankStep]],
        matched: Mapping[Key, Mapping[int, CollectiveCall]],
        came: Readiness,
    ) -> None:
        self._stages = stages
        self._timelines = timelines
        self._begins = {
            rank: np.array([s.begin_ns for s in of_rank], dtype=np.int64) for rank, of_rank in steps.items()
        }
        self._source = {(rank, s.begin_ns): s.source for rank, of_rank in steps.items() for s in of_rank}
        self._matched, self._came = matched, came.of
        self._done: dict[_Message, dict[int, Activity]] = {}
        self._by_group: dict[int, dict[str, dict[Key, tuple[int, int]]]] = {}
        self._usual: dict[tuple[int, str, int, str], Activity] = {}

    def step_begin(self, rank: int, time_ns: int) -> int:
        """Begin of the step that holds the moment just before ``time_ns``; of the first step, if none does."""
        begins = self._begins[rank]
        return int(begins[max(0, int(np.searchsorted(begins, time_ns, side="left")) - 1)])

    def others(
        self,
        key: Key,
        members: Mapping[int, CollectiveCall],
        came: Attendance,
        activity: Activity,
        candidates: Times,
        labels: Times,
    ) -> Activity:
        """What the other members of a meeting did before it, for each member in ``candidates`` (places): the median
        over the others, by label. ``activity``: that of all members, in the order of ``came``; its columns are
        ``labels``."""
        everybody = median_of_others(activity)
        pair = is_pair(members.values())
        stages = [self._stages.get(rank) for rank in came.rank.tolist()] if self._stages else []
        if not pair and len(set(stages)) < 2:
            return everybody[candidates]
        if pair:
            ranks = came.rank[candidates].tolist()
            alike = np.stack([self._of_alike(int(rank), key, members)[labels] for rank in ranks])
        else:
            mates = np.copy(activity)
            for stage in set(stages) - {None}:
                places = [at for at, stage_of_member in enumerate(stages) if stage_of_member == stage]
                mates[places] = median_of_others(activity[places])
            alike = mates[candidates]
        return np.where(_OF_LAYERS[labels], alike, everybody[candidates])

    def _of_alike(self, rank: int, key: Key, members: Mapping[int, CollectiveCall]) -> Activity:
        """Activity of the other ranks of its stage up to the same call in their own pipelines; without such ranks, its
        own usual activity up to that call. Their activity at the same time would not compare: they do not wait for this
        rank."""
        (other,) = (r for r in members if r != rank)
        call = members[rank].op, self._stages.get(rank), self._stages.get(other), key[1]
        place = self._messages.get(call, {}).get(rank)
        if place is None or len(self._messages[call]) < 2 or call[1] is None:
            return self._own_usual(rank, key)
        if call not in self._done:
            done = [
                self._timelines[mate].activity(self.step_begin(mate, ready), ready)
                for mate, ready in self._messages[call].items()
            ]
            self._done[call] = dict(zip(self._messages[call], median_of_others(np.stack(done)), strict=True))
        return self._done[call][rank]

    @cached_property
    def _messages(self) -> dict[_Message, dict[int, int]]:
        """For each message of a pipeline: when each rank of the stage that sends (or receives) it was ready."""
        ready_ns: dict[_Message, dict[int, int]] = defaultdict(dict)
        for key, members in self._matched.items():
            if len(members) == 2 and is_pair(members.values()):
                (a, b) = members
                for rank, other in ((a, b), (b, a)):
                    message = members[rank].op, self._stages.get(rank), self._stages.get(other), key[1]
                    ready_ns[message][rank] = self._came[key].ready_of(rank)
        return ready_ns

    def _own_usual(self, rank: int, key: Key) -> Activity:
        """The rank's usual activity from the step's begin to this send (or receive) of the step."""
        places = self._places(rank, key[0])
        place, begin = places[key]
        source = self._source[rank, begin]
        if (rank, key[0], place, source) not in self._usual:
            alike = [k for k, (at, of) in places.items() if at == place and self._source[rank, of] == source]
            begins = np.array([places[k][1] for k in alike], dtype=np.int64)
            ready = np.array([self._came[k].ready_of(rank) for k in alike], dtype=np.int64)
            usual = np.median(self._timelines[rank].activities(begins, ready), axis=0).astype(np.int64)
            self._usual[rank, key[0], place, source] = usual
        return self._usual[rank, key[0], place, source]

    def _places(self, rank: int, group: str) -> dict[Key, tuple[int, int]]:
        """For each call of the rank in a group: its index within the step, and the step's start time."""
        if rank not in self._by_group:
            by_group: dict[str, dict[Key, tuple[int, int]]] = defaultdict(dict)
            counts: Counter[tuple[str, int]] = Counter()
            for key in self._keys.get(rank, ()):
                begin = self.step_begin(rank, self._came[key].ready_of(rank))
                by_group[key[0]][key] = counts[key[0], begin], begin
                counts[key[0], begin] += 1
            self._by_group[rank] = by_group
        return self._by_group[rank][group]

    @cached_property
    def _keys(self) -> dict[int, list[Key]]:
        """The collectives of each rank, in the order of their numbers."""
        by_rank: dict[int, list[Key]] = defaultdict(list)
        for key in sorted(self._came, key=lambda key: (key[0], key[1])):
            for rank in self._came[key].rank.tolist():
                by_rank[rank].append(key)
        return by_rank


# -- blame -------------------------------------------------------------------------------------------------------------


# -- standing ----------------------------------------------------------------------------------------------------------
#
# How long the others were blocked by a late rank, for all ranks of a collective at once.
#
# Mostly each rank is blocked from its own arrival to the last rank's. Then the wait for a rank is longer the earlier
# the others arrived, so the median of the waits is the wait of the middle one in the order of arrival, and no pair of
# ranks needs to be compared. Only ranks that came after some rank had left already are compared pair by pair.


class Standing:
    """``sets``: for each rank, by row, the intervals in which it only waited for collectives."""

    def __init__(self, sets: Sequence[Intervals]) -> None:
        self._covered = CoveredOfMany(sets)

    def usual(
        self, rows: Times, idle_ns: Times, ready_ns: Times, candidates: Times, counted_ns: Times, least_ns: int
    ) -> Times:
        """For each member in ``candidates`` (places): how long the others were blocked before it was ready, without the
        time in which it was blocked itself; the median over the others. ``rows``, ``idle_ns``, ``ready_ns``: of all
        members; ``counted_ns``: for each member in ``candidates``, the time from which blocking counts. Values below
        ``least_ns`` may be too small."""
        until = self._covered.stretch_end(rows, idle_ns)
        blocked_ns = self._while_all_stand(rows, idle_ns, ready_ns, candidates, counted_ns)
        first, second = np.partition(until, 1)[:2].tolist()
        left_before = ready_ns[candidates] > np.where(until[candidates] == first, second, first)  # some other rank
        # Being blocked for part of the time gives a smaller value than being blocked throughout.
        pairs = np.flatnonzero(left_before & (blocked_ns > least_ns))
        if len(pairs):
            for chunk in np.array_split(pairs, 1 + len(pairs) * len(rows) // CRITICAL_PATH.pairs_at_once):
                blocked_ns[chunk] = self._by_pairs(rows, idle_ns, ready_ns, candidates[chunk], counted_ns[chunk], until)
        return blocked_ns

    def _while_all_stand(
        self, rows: Times, idle_ns: Times, ready_ns: Times, candidates: Times, counted_ns: Times
    ) -> Times:
        """``usual`` if all ranks are blocked from ``idle_ns`` until the rank is ready."""
        order = np.argsort(idle_ns, kind="stable")
        place = np.empty(len(rows), dtype=np.int64)
        place[order] = np.arange(len(rows))
        others = len(rows) - 1
        middle = np.array([[(others - 1) // 2], [others // 2]])
        middle = middle + (middle >= place[candidates])  # the rank itself is left out
        since = np.maximum(idle_ns[order][middle], counted_ns)
        stood = np.maximum(ready_ns[candidates] - since, 0)
        blocked_ns: Times = (stood - self._covered.between(rows[candidates], since, ready_ns[candidates])).sum(
            axis=0
        ) // 2
        return blocked_ns

    def _by_pairs(
        self, rows: Times, idle_ns: Times, ready_ns: Times, candidates: Times, counted_ns: Times, until: Times
    ) -> Times:
        """``usual`` for ranks that arrived when some of the others were no longer, or not yet, blocked. ``until``: the
        end of the stretch in which each rank arrived."""
        times = ready_ns[candidates]
        since = np.maximum(idle_ns[:, None], counted_ns)
        stood = np.maximum(np.minimum(until[:, None], times) - since, 0)
        at, of = np.nonzero(self._covered.next_begin(rows, until)[:, None] < times)  # it was blocked once more
        stood[at, of] = self._covered.between(rows[at], since[at, of], times[of])
        itself = self._covered.between(rows[candidates], since.min(axis=0), times) > 0
        stood[:, itself] -= self._covered.between(rows[candidates[itself]], since[:, itself], times[itself])
        stood[candidates, np.arange(len(candidates))] = np.iinfo(
            np.int64
        ).min  # the rank itself sorts before the others
        others = len(rows) - 1
        low, high = 1 + (others - 1) // 2, 1 + others // 2
        stood.partition((low, high), axis=0)
        blocked_ns: Times = (stood[low] + stood[high]) // 2
        return blocked_ns


_UNKNOWN = label_of(Kind.IDLE, Detail.UNKNOWN)
_COMM_LABELS = [label_of(Kind.COMM, detail) for detail in Detail]
_NEVER = np.iinfo(np.int64).min


class Lateness(Struct, frozen=True):
    """The late ranks of a step. ``explained_ns``: the part of ``waited_ns`` with a known reason; ``once_ns``: the
    waiting if several ranks that were late at one meeting count once."""

    blames: tuple[Blame, ...]
    waited_ns: int
    explained_ns: int
    once_ns: int


class _Late(NamedTuple):
    """A meeting with late ranks. ``at``: their places in it; ``waited_ns``: the waiting for each of them; ``since_ns``:
    for each member, the begin of the compared window, which ends at ``time_ns``."""

    key: Key
    came: Attendance
    at: Times
    waited_ns: Times
    since_ns: Times
    time_ns: int


class Meetings:
    """Finds, for a collective, the previous one of the same group, and what each rank did in between."""

    def __init__(
        self,
        matched: Mapping[Key, Mapping[int, CollectiveCall]],
        timelines: Mapping[int, Timeline],
        readiness: Readiness,
        peers: StagePeers,
    ) -> None:
        self._peers = peers
        self._came = readiness.of
        self._matched = matched
        self._timelines = list(timelines.values())
        self._ranks = np.array(readiness.ranks, dtype=np.int64)
        self._standing = Standing([timeline.standing for timeline in self._timelines])

    def lateness(self, met: Iterable[Key]) -> Lateness:
        """Over all collectives at which the path met other ranks."""
        late_ranks = self._late_ranks(met)
        if not late_ranks:
            return Lateness((), 0, 0, 0)
        blame_ns = np.zeros((len(self._ranks), len(self._labels)), dtype=np.int64)
        unknown = np.zeros(len(self._ranks), dtype=np.int64)
        charged = _Charged(len(self._ranks))
        waited = explained = once = 0
        for late, activity in zip(late_ranks, self._activities(late_ranks), strict=True):
            ready, rows = late.came.ready_ns[late.at], late.came.row[late.at]
            once += int(late.waited_ns.max())
            others = self._peers.others(late.key, self._matched[late.key], late.came, activity, late.at, self._labels)
            excess = np.maximum(activity[late.at] - others, 0)
            excess[:, self._of_comm] = 0  # its own waits are not its fault
            total = excess.sum(axis=1)
            blank = late.time_ns - late.since_ns - activity.sum(axis=1)
            unseen = np.maximum(0, blank - (median_of_others(2 * blank) / 2).astype(np.int64))[late.at]
            unseen = np.minimum(unseen, late.waited_ns)
            waited += int(late.waited_ns.sum())
            explained += int((late.waited_ns - unseen).sum())
            unknown[rows] += np.where(unseen > CRITICAL_PATH.noise_of_waits_ns, unseen, 0)
            # If one group has waited for a delay already, another group's later wait for the same delay costs nothing
            # more.
            left = total - charged.after(rows, late.since_ns[late.at])
            share = np.maximum(0, np.minimum(late.waited_ns, left)) / np.maximum(total, 1)
            charged.add(rows, ready, np.rint(share * total).astype(np.int64))
            blame_ns[rows] += np.rint(excess * share[:, None]).astype(np.int64)
        return Lateness(self._blames(blame_ns, unknown), waited, explained, once)

    def _blames(self, blame_ns: Times, unknown: Times) -> tuple[Blame, ...]:
        """By rank and label, without zeros. ``blame_ns``: shape (rows, labels in use)."""
        at, column = np.nonzero(blame_ns > 0)
        ranks, labels = self._ranks[at].tolist(), self._labels[column].tolist()
        blamed = list(zip(ranks, labels, blame_ns[at, column].tolist(), strict=True))
        unseen = np.flatnonzero(unknown > 0)
        blamed += [
            (rank, _UNKNOWN, ns)
            for rank, ns in zip(self._ranks[unseen].tolist(), unknown[unseen].tolist(), strict=True)
        ]
        return tuple(Blame(rank, *of_label(label), ns) for rank, label, ns in sorted(blamed))

    def _late_ranks(self, met: Iterable[Key]) -> list[_Late]:
        accounted_ns = np.full(len(self._ranks), _NEVER)  # by row: waiting for the rank is accounted for until then
        late_ranks = []
        for key in met:
            came = self._came[key]
            at, waited_ns = self._late(came, accounted_ns)
            if is_handed_over(self._matched[key].values()):  # a sender did not wait for its receiver
                sent = [self._matched[key][rank].op == SEND for rank in came.rank[at].tolist()]
                at, waited_ns = at[sent], waited_ns[sent]
            if not len(at):
                continue
            rows, ready = came.row[at], came.ready_ns[at]
            accounted_ns[rows] = np.maximum(ready, accounted_ns[rows])
            # Every rank is compared up to the same moment: the late rank's excess until then is what the others waited
            # for. Their progress up to the meeting would not compare: some compute during the transfer.
            late_ranks.append(_Late(key, came, at, waited_ns, self._last_met_ns(key, came), int(ready.max())))
        return late_ranks

    def _activities(self, late_ranks: list[_Late]) -> list[npt.NDArray[np.int64]]:
        """For each of these meetings, its members' activity since they last met: shape (members, labels in use). One
        query per rank."""
        rows = np.concatenate([late.came.row for late in late_ranks])
        since = np.concatenate([late.since_ns for late in late_ranks])
        until = np.concatenate([np.full(len(late.came.row), late.time_ns) for late in late_ranks])
        done = np.zeros((len(rows), len(self._labels)), dtype=np.int64)
        order = np.argsort(rows, kind="stable")
        edges = np.searchsorted(rows[order], np.arange(len(self._timelines) + 1))
        for row in np.unique(rows).tolist():
            of_row = order[edges[row] : edges[row + 1]]
            done[of_row] = self._timelines[row].activities(since[of_row], until[of_row])[:, self._labels]
        return np.split(done, np.cumsum([len(late.came.row) for late in late_ranks])[:-1])

    @cached_property
    def _labels(self) -> npt.NDArray[np.int64]:
        return np.unique(np.concatenate([timeline.labels for timeline in self._timelines]))

    @cached_property
    def _of_comm(self) -> npt.NDArray[np.bool_]:
        return np.isin(self._labels, _COMM_LABELS)

    def _late(self, came: Attendance, accounted_ns: Times) -> tuple[Times, Times]:
        """Ranks for which most of the others were blocked, by place, and for how long. Waiting that compute overlaps
        costs nothing, nor does waiting while the late rank waited as well. Time before ``accounted_ns`` is charged
        already and counts once."""
        first = came.idle_ns.min()
        if came.ready_ns.max() - first <= CRITICAL_PATH.noise_of_waits_ns:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        # At most half of the others can have waited for a rank that was ready before the middle one.
        candidates = np.flatnonzero(came.ready_ns >= np.median(came.ready_ns))
        before = accounted_ns[came.row[candidates]]
        counted = np.where(before == _NEVER, first, before)
        usual = self._standing.usual(
            came.row, came.idle_ns, came.ready_ns, candidates, counted, CRITICAL_PATH.noise_of_waits_ns
        )
        late = usual > CRITICAL_PATH.noise_of_waits_ns
        return candidates[late], usual[late]

    def _last_met_ns(self, key: Key, came: Attendance) -> Times:
        """When each rank last left an earlier meeting that blocked all ranks: the meeting's end; its start, if it was
        still running; the begin of the rank's records, if there was none. A sender never waits for its receiver, so the
        two do not meet: then it is the begin of the step."""
        ready = came.ready_ns
        if is_pair(self._matched[key].values()):
            begins = (
                self._peers.step_begin(rank, at) for rank, at in zip(came.rank.tolist(), ready.tolist(), strict=True)
            )
            return np.minimum(np.fromiter(begins, dtype=np.int64, count=len(ready)), ready)
        begun, left = self._last_met[key]
        return np.where(left <= ready, left, np.minimum(begun, ready))

    @cached_property
    def _last_met(self) -> dict[Key, tuple[Times, Times]]:
        """For each collective: when each of its ranks entered and left the group's previous collective that blocked all
        its ranks. Both are the begin of the rank's records if there was none."""
        by_group: dict[str, list[Key]] = defaultdict(list)
        for key in self._came:
            by_group[key[0]].append(key)
        records = np.array([int(timeline.start_ns[0]) for timeline in self._timelines], dtype=np.int64)
        begun, left = np.empty_like(records), np.empty_like(records)
        last_met = {}
        for keys in by_group.values():
            keys.sort(key=lambda key: int(self._came[key].start_ns.min()))
            members = np.concatenate([self._came[key].row for key in keys])
            begun[members], left[members] = records[members], records[members]
            for key in keys:
                came = self._came[key]
                last_met[key] = begun[came.row], left[came.row]
                if came.in_step:
                    begun[came.row], left[came.row] = came.start_ns, came.end_ns
        return last_met


class _Charged:
    """Charges so far, by row: (when the rank was ready, nanoseconds)."""

    def __init__(self, rows: int) -> None:
        self._count = np.zeros(rows, dtype=np.int64)
        self._at = np.full((rows, 4), _NEVER)
        self._ns = np.zeros((rows, 4), dtype=np.int64)

    def add(self, rows: Times, at_ns: Times, ns: Times) -> None:
        if int(self._count[rows].max()) == self._at.shape[1]:
            self._at = np.concatenate((self._at, np.full_like(self._at, _NEVER)), axis=1)
            self._ns = np.concatenate((self._ns, np.zeros_like(self._ns)), axis=1)
        self._at[rows, self._count[rows]] = at_ns
        self._ns[rows, self._count[rows]] = ns
        self._count[rows] += 1

    def after(self, rows: Times, since_ns: Times) -> Times:
        """The sum of the charges of each rank that was ready after ``since_ns``."""
        charged_ns: Times = np.where(self._at[rows] > since_ns[:, None], self._ns[rows], 0).sum(axis=1)
        return charged_ns
