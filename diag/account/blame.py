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
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account.policy import CRITICAL_PATH
from diag.model.ragged import edges_of
from diag.model.steps import NO_BLAMES, Blames, Detail, Kind

from .calls import Listed
from .critical_path import LABELS, Activities, Activity, Readiness, Timeline, details_of, kinds_of, label_of
from .intervals import CoveredOfMany, Intervals, Times

# -- others ------------------------------------------------------------------------------------------------------------
#
# Activity of the others: for each rank, the median over all other ranks.

Values = npt.NDArray[np.int64]
Chosen = npt.NDArray[np.bool_]


def median_of_others(values: Values, axis: int = 0) -> Values:
    """For each row the median of all other rows, column by column, rounded down; a single row itself. ``axis``: that of
    the rows.

    In linear time: which of the middle values it is depends only on which side of them the row itself is. Where rows
    are equal to a middle value, it does not matter which of them is left out.
    """
    count = values.shape[axis]
    if count < 2:
        return values
    middle = count // 2
    # numpy finds one place of the order several times as fast as three.
    ordered = np.moveaxis(np.partition(values, middle, axis=axis), axis, 0)
    below, at = (np.expand_dims(row, axis) for row in (ordered[:middle].max(axis=0), ordered[middle]))
    if count % 2 == 0:  # an odd number of others: one of them is in the middle
        median: Values = np.where(values > below, below, at)
        return median
    above = np.expand_dims(ordered[middle + 1 :].min(axis=0), axis)
    halved: Values = np.where(values > at, below + at, np.where(values < at, at + above, below + above))
    halved //= 2
    return halved


# Labels of which one stage has more than another because it has other layers.
_OF_LAYERS = np.zeros(LABELS, dtype=np.bool_)
for _detail in Detail:
    _OF_LAYERS[label_of(Kind.COMPUTE, _detail)] = True
    _OF_LAYERS[label_of(Kind.IDLE, _detail)] = _detail != Detail.GC

_Message = tuple[bool, int | None, int | None, int]  # sent or received, own stage, stage at the other end, number


class StagePeers:
    """``stages``: the stage of each rank, empty without a pipeline; ``came``: the ranks' arrivals at their collectives;
    ``did``: their activity."""

    def __init__(
        self,
        stages: Mapping[int, int],
        timelines: Mapping[int, Timeline],
        came: Readiness,
        did: Activities,
    ) -> None:
        self._stages = stages
        self._did = did
        self._steps = {rank: timeline.steps for rank, timeline in timelines.items()}
        self._matched, self._came = came.matched, came
        self._done: dict[_Message, dict[int, Activity]] = {}
        self._by_group: dict[int, dict[int, dict[int, tuple[int, int]]]] = {}
        self._usual: dict[tuple[int, int, int, int], Activity] = {}

    def step_begin(self, rank: int, time_ns: int) -> int:
        """Begin of the step that holds the moment just before ``time_ns``; of the first step, if none does."""
        begins = self._steps[rank].begin_ns
        return int(begins[max(0, int(np.searchsorted(begins, time_ns, side="left")) - 1)])

    def _source(self, rank: int, begin_ns: int) -> int:
        """Of the step of a rank that begins then."""
        return int(self._steps[rank].source[int(np.searchsorted(self._steps[rank].begin_ns, begin_ns))])

    @cached_property
    def differ(self) -> Chosen:
        """By collective, whether its members do different work: a sender and its receiver, or ranks of several
        stages."""
        if not self._stages:
            return self._matched.pairs
        stage = np.array([self._stages.get(rank, -1) for rank in self._came.ranks])[self._came.row]
        apart: Chosen = self._matched.least(stage) != self._matched.most(stage)
        return self._matched.pairs | apart

    def others(self, number: int, activity: Activity, candidates: Times) -> Activity:
        """What the other members of a meeting of different work did before it, for each member in ``candidates``
        (places): the median over the others, by label. ``activity``: that of all members."""
        everybody = median_of_others(activity)
        ranks = self._matched.rank[self._came.members(number)]
        if self._matched.pairs[number]:
            alike = np.stack([self._of_alike(rank, number) for rank in ranks[candidates].tolist()])
        else:
            stages = [self._stages.get(rank) for rank in ranks.tolist()]
            mates = np.copy(activity)
            for stage in set(stages) - {None}:
                places = [at for at, stage_of_member in enumerate(stages) if stage_of_member == stage]
                mates[places] = median_of_others(activity[places])
            alike = mates[candidates]
        return np.where(_OF_LAYERS[self._did.labels], alike, everybody[candidates])

    def _of_alike(self, rank: int, number: int) -> Activity:
        """Activity of the other ranks of its stage up to the same call in their own pipelines; without such ranks, its
        own usual activity up to that call. Their activity at the same time would not compare: they do not wait for this
        rank."""
        call = self._message(number, rank)
        place = self._messages.get(call, {}).get(rank)
        if place is None or len(self._messages[call]) < 2 or call[1] is None:
            return self._own_usual(rank, number)
        if call not in self._done:
            mates, ready = zip(*self._messages[call].items(), strict=True)
            begins = [self.step_begin(mate, ready_ns) for mate, ready_ns in self._messages[call].items()]
            done = self._did.of_ranks(mates, np.array(begins, dtype=np.int64), np.array(ready, dtype=np.int64))
            self._done[call] = dict(zip(mates, median_of_others(done), strict=True))
        return self._done[call][rank]

    def _message(self, number: int, rank: int) -> _Message:
        at = self._came.members(number)
        (other,) = (r for r in self._matched.rank[at].tolist() if r != rank)
        sends = bool(self._matched.sent[at][self._matched.rank[at] == rank][0])
        return sends, self._stages.get(rank), self._stages.get(other), int(self._matched.seq[number])

    @cached_property
    def _messages(self) -> dict[_Message, dict[int, int]]:
        """For each message of a pipeline: when each rank of the stage that sends (or receives) it was ready."""
        ready_ns: dict[_Message, dict[int, int]] = defaultdict(dict)
        for number in np.flatnonzero(self._matched.pairs & (self._matched.sizes == 2)).tolist():
            for rank in self._matched.rank[self._came.members(number)].tolist():
                ready_ns[self._message(number, rank)][rank] = self._came.ready_of(number, rank)
        return ready_ns

    def _own_usual(self, rank: int, number: int) -> Activity:
        """The rank's usual activity from the step's begin to this send (or receive) of the step."""
        group = int(self._matched.group[number])
        places = self._places(rank, group)
        place, begin = places[number]
        source = self._source(rank, begin)
        if (rank, group, place, source) not in self._usual:
            alike = [k for k, (at, of) in places.items() if at == place and self._source(rank, of) == source]
            begins = np.array([places[k][1] for k in alike], dtype=np.int64)
            ready = np.array([self._came.ready_of(k, rank) for k in alike], dtype=np.int64)
            usual = np.median(self._did.of_ranks([rank] * len(alike), begins, ready), axis=0).astype(np.int64)
            self._usual[rank, group, place, source] = usual
        return self._usual[rank, group, place, source]

    def _places(self, rank: int, group: int) -> dict[int, tuple[int, int]]:
        """For each collective of the rank in a group: its index within the step, and the step's start time."""
        if rank not in self._by_group:
            by_group: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
            counts: Counter[tuple[int, int]] = Counter()
            for number in self._numbers.get(rank, ()):
                of = int(self._matched.group[number])
                begin = self.step_begin(rank, self._came.ready_of(number, rank))
                by_group[of][number] = counts[of, begin], begin
                counts[of, begin] += 1
            self._by_group[rank] = by_group
        return self._by_group[rank][group]

    @cached_property
    def _numbers(self) -> dict[int, list[int]]:
        """The collectives of each rank, in the order of their sequence numbers."""
        by_rank: dict[int, list[int]] = defaultdict(list)
        for number in np.lexsort((self._matched.seq, self._matched.group)).tolist():
            for rank in self._matched.rank[self._came.members(number)].tolist():
                by_rank[rank].append(number)
        return by_rank


# -- standing ----------------------------------------------------------------------------------------------------------
#
# How long the others were blocked by a late rank, for all ranks of many collectives at once.
#
# Mostly each rank is blocked from its own arrival to the last rank's. Then the wait for a rank is longer the earlier
# the others arrived, so the median of the waits is the wait of the middle one in the order of arrival, and no pair of
# ranks needs to be compared. Only ranks that came after some rank had left already are compared pair by pair.


class Standing:
    """``sets``: for each rank, by row, the intervals in which it only waited for collectives."""

    def __init__(self, sets: Sequence[Intervals]) -> None:
        self._covered = CoveredOfMany(sets)

    def usual(
        self, rows: Times, idle_ns: Times, ready_ns: Times, candidates: Chosen, counted_ns: Times, least_ns: int
    ) -> Times:
        """For each member in ``candidates``: how long the others were blocked before it was ready, without the time in
        which it was blocked itself; the median over the others. 0 for all other members. All arrays have the shape
        (collectives, members). ``counted_ns``: the time from which blocking counts. Of values up to
        ``least_ns``, some are upper bounds."""
        blocked_ns = self._while_all_stand(rows, idle_ns, ready_ns, candidates, counted_ns, least_ns)
        # Being blocked for part of the time gives a smaller value than being blocked throughout.
        some = np.flatnonzero((blocked_ns > least_ns).any(axis=1))
        if not len(some):
            return blocked_ns
        until = self._covered.stretch_end(rows[some], idle_ns[some])
        first, second = np.partition(until, 1, axis=1)[:, :2].T[:, :, None]
        left_before = ready_ns[some] > np.where(until == first, second, first)  # some other rank
        again = left_before & (blocked_ns[some] > least_ns)
        for place in np.flatnonzero(again.any(axis=1)).tolist():
            met, pairs = some[place], np.flatnonzero(again[place])
            for chunk in np.array_split(pairs, 1 + len(pairs) * rows.shape[1] // CRITICAL_PATH.pairs_at_once):
                blocked_ns[met, chunk] = self._by_pairs(
                    rows[met], idle_ns[met], ready_ns[met], chunk, counted_ns[met, chunk], until[place]
                )
        return blocked_ns

    def _while_all_stand(
        self, rows: Times, idle_ns: Times, ready_ns: Times, candidates: Chosen, counted_ns: Times, least_ns: int
    ) -> Times:
        """``usual`` if all ranks are blocked from ``idle_ns`` until the rank is ready; an upper bound where that is
        no longer than ``least_ns``."""
        order = np.argsort(idle_ns, axis=1, kind="stable")
        place = np.empty_like(order)
        np.put_along_axis(place, order, np.broadcast_to(np.arange(rows.shape[1]), rows.shape), axis=1)
        at, met = np.nonzero(candidates.T)  # by member, in the order of time: that is faster to look up
        others = rows.shape[1] - 1
        middle = np.unique([(others - 1) // 2, others // 2])[:, None]  # of an odd number of others, one
        middle = middle + (middle >= place[met, at])  # the rank itself is left out
        since = np.maximum(idle_ns[met, order[met, middle]], counted_ns[met, at])
        since = np.minimum(since, ready_ns[met, at])
        blocked_ns = np.zeros_like(idle_ns)
        blocked_ns[met, at] = stood = (ready_ns[met, at] - since).sum(axis=0) // len(middle)
        # The time in which it was blocked itself can only make it shorter.
        long = stood > least_ns
        met, at, since = met[long], at[long], since[:, long]
        row, ready = rows[met, at], ready_ns[met, at]
        itself = self._covered.until(row, ready) - self._covered.until(row, since)
        blocked_ns[met, at] = (ready - since - itself).sum(axis=0) // len(middle)
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
    """The late ranks of several steps. The blames of step i are ``edges[i]`` to ``edges[i + 1]`` of ``blames``; other
    columns have a row for each step. ``explained_ns``: the part of ``waited_ns`` with a known reason; ``once_ns``: the
    waiting if several ranks that were late at one meeting count once."""

    blames: Blames
    edges: Times
    waited_ns: Times
    explained_ns: Times
    once_ns: Times

    @classmethod
    def none(cls, steps: int) -> Lateness:
        return cls(NO_BLAMES, np.zeros(steps + 1, dtype=np.int64), *np.zeros((3, steps), dtype=np.int64))

    @classmethod
    def joined(cls, several: Sequence[Lateness]) -> Lateness:
        """One after the other."""
        if len(several) == 1:
            return several[0]
        sums = (np.concatenate([getattr(each, name) for each in several]) for name in cls.__struct_fields__[2:])
        edges = edges_of(np.concatenate([np.diff(each.edges) for each in several]))
        return cls(Blames.joined([each.blames for each in several]), edges, *sums)


class _Late(NamedTuple):
    """Meetings with late ranks, one of each of some steps and all of the same number of members. ``at``: where their
    members are among all that took part in a collective; ``late``: which of them were late, and ``waited_ns`` for how
    long the others waited for them; ``since_ns``: the begin of the compared window, which ends at ``time_ns``. All but
    ``step``, ``met`` and ``time_ns`` have the shape (meetings, members)."""

    step: Times
    met: Times
    at: Times
    late: Chosen
    waited_ns: Times
    since_ns: Times
    time_ns: Times

    def only(self, which: Times | Chosen) -> _Late:
        """Some of the meetings."""
        return _Late(
            self.step[which], self.met[which], self.at[which], self.late[which], self.waited_ns[which],
            self.since_ns[which], self.time_ns[which],
        )  # fmt: skip


class Meetings:
    """Finds, for a collective, the previous one of the same group, and what each rank did in between.

    Steps do not depend on each other, so the first meetings of all steps are looked at together, then the second ones,
    and so on."""

    def __init__(
        self,
        timelines: Mapping[int, Timeline],
        came: Readiness,
        stages: Mapping[int, int],
    ) -> None:
        """``stages``: as of ``StagePeers``."""
        self._came, self._matched = came, came.matched
        self._timelines = timelines
        self._stages = stages
        self._ranks = np.array(came.ranks, dtype=np.int64)
        self._standing = Standing([timeline.standing for timeline in timelines.values()])

    def lateness(self, met: Listed) -> Lateness:
        """By step, over all collectives at which its path met other ranks."""
        steps = len(met.edges) - 1
        if not len(met.numbers):
            return Lateness.none(steps)
        at_once = max(1, CRITICAL_PATH.numbers_at_once // (len(self._ranks) * len(self._labels)))
        parts = [self._of_steps(met.of(slice(first, first + at_once))) for first in range(0, steps, at_once)]
        return Lateness.joined(parts)

    def _of_steps(self, met: Listed) -> Lateness:
        steps, by_round = len(met.edges) - 1, self._late_ranks(met)
        if not by_round:
            return Lateness.none(steps)
        blame_ns = np.zeros((steps, len(self._ranks), len(self._labels)), dtype=np.int64)
        unknown = np.zeros(blame_ns.shape[:2], dtype=np.int64)
        charged = _Charged(*unknown.shape)
        waited, explained, once = np.zeros((3, steps), dtype=np.int64)
        for of_round in by_round:
            for late, activity in self._activities(of_round):
                once[late.step] += np.where(late.late, late.waited_ns, 0).max(axis=1)
                others = self._others(late, activity)
                blank = late.time_ns[:, None] - late.since_ns - activity.sum(axis=2)
                unseen = np.maximum(0, blank - (median_of_others(2 * blank, axis=1) / 2).astype(np.int64))
                i, member = np.nonzero(late.late)
                step, row, since = late.step[i], self._came.row[late.at[i, member]], late.since_ns[i, member]
                waited_ns = late.waited_ns[i, member]
                unseen_ns = np.minimum(unseen[i, member], waited_ns)
                excess = np.maximum(activity[i, member] - others[i, member], 0)
                excess[:, self._of_comm] = 0  # its own waits are not its fault
                total = excess.sum(axis=1)
                np.add.at(waited, step, waited_ns)
                np.add.at(explained, step, waited_ns - unseen_ns)
                unknown[step, row] += np.where(unseen_ns > CRITICAL_PATH.noise_of_waits_ns, unseen_ns, 0)
                # If one group has waited for a delay already, another group's later wait for the same delay costs
                # nothing more.
                left = total - charged.after(step, row, since)
                share = np.maximum(0, np.minimum(waited_ns, left)) / np.maximum(total, 1)
                charged.add(step, row, self._came.ready_ns[late.at[i, member]], np.rint(share * total).astype(np.int64))
                blame_ns[step, row] += np.rint(excess * share[:, None]).astype(np.int64)
        return Lateness(*self._blames(blame_ns, unknown), waited, explained, once)

    def _blames(self, blame_ns: Times, unknown: Times) -> tuple[Blames, Times]:
        """Of all steps, by rank and label, without zeros, and their edges. ``blame_ns``: shape (steps, rows, labels in
        use)."""
        step, row, column = np.nonzero(blame_ns > 0)
        unseen_step, unseen_row = np.nonzero(unknown > 0)
        steps = np.concatenate((step, unseen_step))
        ranks = self._ranks[np.concatenate((row, unseen_row))]
        labels = np.concatenate((self._labels[column], np.full(len(unseen_step), _UNKNOWN, dtype=np.int16)))
        spent = np.concatenate((blame_ns[step, row, column], unknown[unseen_step, unseen_row]))
        order = np.lexsort((spent, labels, ranks, steps))
        label = labels[order]
        blames = Blames(ranks[order].astype(np.int32), kinds_of(label), details_of(label), spent[order])
        return blames, np.searchsorted(steps[order], np.arange(len(blame_ns) + 1))

    def _late_ranks(self, met: Listed) -> list[list[_Late]]:
        """The meetings with late ranks: the first ones of all steps, then the second ones, and so on."""
        came, matched, counts = self._came, self._matched, np.diff(met.edges)
        # By step and row: waiting for the rank is accounted for until then.
        accounted_ns = np.full((len(counts), len(self._ranks)), _NEVER)
        found: list[_Late] = []
        for place in range(int(counts.max(initial=0))):
            steps = np.flatnonzero(counts > place)
            numbers = met.numbers[met.edges[steps] + place]
            for size in np.unique(matched.sizes[numbers]).tolist():
                alike = matched.sizes[numbers] == size
                step, number = steps[alike], numbers[alike]
                at = matched.edges[number][:, None] + np.arange(size)
                late, waited_ns = self._late(at, accounted_ns[step[:, None], came.row[at]])
                # A sender did not wait for its receiver.
                late &= ~matched.handed_over[number][:, None] | matched.sent[at]
                some = late.any(axis=1)
                step, number, at, late, waited_ns = step[some], number[some], at[some], late[some], waited_ns[some]
                if not len(step):
                    continue
                of, member = np.nonzero(late)
                row, ready = came.row[at[of, member]], came.ready_ns[at[of, member]]
                accounted_ns[step[of], row] = np.maximum(ready, accounted_ns[step[of], row])
                # Every rank is compared up to the same moment: the late rank's excess until then is what the others
                # waited for. Their progress up to the meeting would not compare: some compute during the transfer.
                until = np.where(late, came.ready_ns[at], _NEVER).max(axis=1)
                found.append(_Late(step, number, at, late, waited_ns, self._last_met_ns(number, at), until))
        return self._in_turn(found, len(counts))

    @staticmethod
    def _in_turn(found: Sequence[_Late], steps: int) -> list[list[_Late]]:
        """The same meetings: each step's first one with late ranks, then each step's second one, and so on."""
        seen = np.zeros(steps, dtype=np.int64)
        by_round: dict[int, list[_Late]] = defaultdict(list)
        for late in found:
            turns = seen[late.step]
            seen[late.step] += 1
            for turn in np.unique(turns).tolist():
                by_round[turn].append(late.only(turns == turn))
        return [by_round[turn] for turn in sorted(by_round)]

    def _activities(self, late_ranks: Sequence[_Late]) -> Iterator[tuple[_Late, Activity]]:
        """Each of these meetings with its members' activity since they last met, shape (meetings, members, labels in
        use)."""
        for late in late_ranks:
            # One member after the other, each in the order of time: that takes half of the time of another order.
            by_member = self._came.row[late.at].T
            until = np.broadcast_to(late.time_ns, by_member.shape)
            done = self._did.between(by_member.ravel(), late.since_ns.T.ravel(), until.ravel())
            yield late, np.ascontiguousarray(done.reshape(*by_member.shape, -1).transpose(1, 0, 2))

    def _others(self, late: _Late, activity: Activity) -> Activity:
        """What the others did meanwhile, for each member that was late; of the shape of ``activity``."""
        others = median_of_others(activity, axis=1)
        for i in np.flatnonzero(self._peers.differ[late.met]).tolist():
            candidates = np.flatnonzero(late.late[i])
            others[i, candidates] = self._peers.others(int(late.met[i]), activity[i], candidates)
        return others

    # Not needed where no ranks meet: a large trace has a million pieces.
    @cached_property
    def _did(self) -> Activities:
        return Activities(self._timelines)

    @cached_property
    def _peers(self) -> StagePeers:
        return StagePeers(self._stages, self._timelines, self._came, self._did)

    @property
    def _labels(self) -> npt.NDArray[np.int16]:
        return self._did.labels

    @cached_property
    def _of_comm(self) -> npt.NDArray[np.bool_]:
        return np.isin(self._labels, _COMM_LABELS)

    def _late(self, at: Times, accounted_ns: Times) -> tuple[Chosen, Times]:
        """Members for which most of the others were blocked, and for how long. Waiting that compute overlaps costs
        nothing, nor does waiting while the late rank waited as well. Time before ``accounted_ns`` is charged already
        and counts once. ``at``: where the members are; all arrays have the shape (meetings, members)."""
        ready, idle = self._came.ready_ns[at], self._came.idle_ns[at]
        first = idle.min(axis=1)[:, None]
        # At most half of the others can have waited for a rank that was ready before the middle one.
        candidates = ready >= np.median(ready, axis=1)[:, None]
        candidates &= ready.max(axis=1)[:, None] - first > CRITICAL_PATH.noise_of_waits_ns
        counted = np.where(accounted_ns == _NEVER, first, accounted_ns)
        usual = self._standing.usual(
            self._came.row[at], idle, ready, candidates, counted, CRITICAL_PATH.noise_of_waits_ns
        )
        return candidates & (usual > CRITICAL_PATH.noise_of_waits_ns), usual

    def _last_met_ns(self, number: Times, at: Times) -> Times:
        """When each rank last left an earlier meeting that blocked all ranks: the meeting's end; its start, if it was
        still running; the begin of the rank's records, if there was none. A sender never waits for its receiver, so the
        two do not meet: then it is the begin of the step."""
        ready = self._came.ready_ns[at]
        begun, left = (column[at] for column in self._last_met)
        last_met: Times = np.where(left <= ready, left, np.minimum(begun, ready))
        for i in np.flatnonzero(self._matched.pairs[number]).tolist():
            members = zip(self._matched.rank[at[i]].tolist(), ready[i].tolist(), strict=True)
            begins = [self._peers.step_begin(rank, time_ns) for rank, time_ns in members]
            last_met[i] = np.minimum(begins, ready[i])
        return last_met

    @cached_property
    def _last_met(self) -> tuple[Times, Times]:
        """For each rank of each collective: when it entered and left the group's previous collective that blocked all
        its ranks. Both are the begin of the rank's records if there was none."""
        came, sizes = self._came, self._matched.sizes
        group = np.repeat(self._matched.group, sizes)
        first_start = self._matched.least(came.start_ns)
        order = np.lexsort((np.repeat(first_start, sizes), came.row, group))
        places = np.arange(len(order))
        opens = np.ones(len(order), dtype=np.bool_)  # the rank's first collective of the group
        opens[1:] = (np.diff(group[order]) != 0) | (np.diff(came.row[order]) != 0)
        blocked_all = np.repeat(came.in_step, sizes)[order]
        since = np.maximum.accumulate(np.where(opens, places, 0))
        last = np.maximum.accumulate(np.where(blocked_all, places, -1))
        before = np.where(opens, -1, np.concatenate(([-1], last[:-1])))
        known = before >= since
        records = np.array([int(timeline.start_ns[0]) for timeline in self._timelines.values()], dtype=np.int64)[
            came.row
        ]
        begun, left = records.copy(), records.copy()
        begun[order[known]] = came.start_ns[order[before[known]]]
        left[order[known]] = came.end_ns[order[before[known]]]
        return begun, left


class _Charged:
    """Charges so far, by step and row: (when the rank was ready, nanoseconds)."""

    def __init__(self, steps: int, rows: int) -> None:
        self._count = np.zeros((steps, rows), dtype=np.int64)
        self._at = np.full((steps, rows, 4), _NEVER)
        self._ns = np.zeros((steps, rows, 4), dtype=np.int64)

    def add(self, steps: Times, rows: Times, at_ns: Times, ns: Times) -> None:
        if int(self._count[steps, rows].max(initial=0)) == self._at.shape[2]:
            self._at = np.concatenate((self._at, np.full_like(self._at, _NEVER)), axis=2)
            self._ns = np.concatenate((self._ns, np.zeros_like(self._ns)), axis=2)
        count = self._count[steps, rows]
        self._at[steps, rows, count] = at_ns
        self._ns[steps, rows, count] = ns
        self._count[steps, rows] += 1

    def after(self, steps: Times, rows: Times, since_ns: Times) -> Times:
        """The sum of the charges of each rank that was ready after ``since_ns``."""
        later = self._at[steps, rows] > since_ns[:, None]
        charged_ns: Times = np.where(later, self._ns[steps, rows], 0).sum(axis=1)
        return charged_ns
