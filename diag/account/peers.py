"""Whom a rank's work may be compared with. The stages of a pipeline do different work on different layers: there a rank
is compared with the ranks of its own stage, and where it has none, with what itself usually does by then: in steps of
the same source, since a trace calls idle what records count as computing, and the profiler makes a step longer.

What does not depend on the layers is compared with everybody: waiting for data, copies, checkpoints, garbage
collection.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from diag.model.steps import CollectiveCall, Detail, Kind, RankStep

from .critical_path import Attendance, Readiness
from .intervals import Times
from .match import Key, is_pair
from .timeline import LABELS, Activity, Timeline, label_of

# -- others ------------------------------------------------------------------------------------------------------------
#
# What the others did: the median over all ranks but one, for each of them.

Values = npt.NDArray[np.int64]


def median_of_others(values: Values) -> Values:
    """For each row the median of all other rows, column by column, rounded down; itself where there is only one.

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
        found: Values = np.where(values > below, below, at)
        return found
    others = np.where(values > at, below + at, np.where(values < at, at + above, below + above))
    halved: Values = others // 2
    return halved


# What a stage has more of than another because it has other layers.
_OF_LAYERS = np.zeros(LABELS, dtype=np.bool_)
for _detail in Detail:
    _OF_LAYERS[label_of(Kind.COMPUTE, _detail)] = True
    _OF_LAYERS[label_of(Kind.IDLE, _detail)] = _detail != Detail.GC

_Message = tuple[str, int | None, int | None, int]  # send or receive, own stage, stage at the other end, number


class StagePeers:
    """``stages``: the stage of each rank, empty without a pipeline; ``steps``: of each rank; ``came``: when the ranks
    came to their collectives."""

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
        self._begins = {rank: np.array([s.begin_ns for s in own], dtype=np.int64) for rank, own in steps.items()}
        self._source = {(rank, s.begin_ns): s.source for rank, own in steps.items() for s in own}
        self._matched, self._came = matched, came.of
        self._done: dict[_Message, dict[int, Activity]] = {}
        self._by_group: dict[int, dict[str, dict[Key, tuple[int, int]]]] = {}
        self._usual: dict[tuple[int, str, int, str], Activity] = {}

    def step_begin(self, rank: int, time_ns: int) -> int:
        """When the step began in which the moment just before ``time_ns`` lies; the first one, where none had."""
        begins = self._begins[rank]
        return int(begins[max(0, int(np.searchsorted(begins, time_ns, side="left")) - 1)])

    def others(
        self,
        key: Key,
        members: Mapping[int, CollectiveCall],
        came: Attendance,
        activity: Activity,
        asked: Times,
        labels: Times,
    ) -> Activity:
        """What the others of a meeting did while each of those that are ``asked`` about (by place) did its own: their
        median, by label. ``activity``: of all members, in the order of ``came``; its columns are these ``labels``."""
        everybody = median_of_others(activity)
        pair = is_pair(members.values())
        stages = [self._stages.get(rank) for rank in came.rank.tolist()] if self._stages else []
        if not pair and len(set(stages)) < 2:
            return everybody[asked]
        if pair:
            alike = np.stack([self._of_alike(int(came.rank[at]), key, members)[labels] for at in asked.tolist()])
        else:
            mates = np.copy(activity)
            for stage in set(stages) - {None}:
                own = [at for at, other in enumerate(stages) if other == stage]
                mates[own] = median_of_others(activity[own])
            alike = mates[asked]
        return np.where(_OF_LAYERS[labels], alike, everybody[asked])

    def _of_alike(self, rank: int, key: Key, members: Mapping[int, CollectiveCall]) -> Activity:
        """What the other ranks of its stage, which are not in the meeting, have done of this step when they come to the
        same call in their own pipelines; where there are none, what itself has usually done by then. At the same time
        would not do: they do not wait for it, but go on."""
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
        """Of the ranks of a stage that send, or receive, the same message of their pipelines: when each was ready."""
        found: dict[_Message, dict[int, int]] = defaultdict(dict)
        for key, members in self._matched.items():
            if len(members) == 2 and is_pair(members.values()):
                (a, b) = members
                for rank, other in ((a, b), (b, a)):
                    message = members[rank].op, self._stages.get(rank), self._stages.get(other), key[1]
                    found[message][rank] = self._came[key].ready_of(rank)
        return found

    def _own_usual(self, rank: int, key: Key) -> Activity:
        """What the rank has usually done of a step when it comes to this one of its sends, or receives."""
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
        """Of each of the rank's calls in a group, the how manieth of its step it is, and when that step began."""
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
        found: dict[int, list[Key]] = defaultdict(list)
        for key in sorted(self._came, key=lambda key: (key[0], key[1])):
            for rank in self._came[key].rank.tolist():
                found[rank].append(key)
        return found
