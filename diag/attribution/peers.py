"""Whom a rank's work may be compared with. The stages of a pipeline do different work on different layers: there a rank
is compared with the ranks of its own stage, and where it has none, with what itself usually does by then: in steps of
the same source, since a trace calls idle what records count as computing, and the profiler makes a step longer.

What does not depend on the layers is compared with everybody: waiting for data, copies, checkpoints, garbage
collection.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from diag.attribution.match import Key, is_pair
from diag.attribution.timeline import LABELS, Activity, Timeline, label_of
from diag.model import CollectiveCall, Detail, Kind, RankStep

# What a stage has more of than another because it has other layers.
_OF_LAYERS = np.zeros(LABELS, dtype=np.bool_)
for _detail in Detail:
    _OF_LAYERS[label_of(Kind.COMPUTE, _detail)] = True
    _OF_LAYERS[label_of(Kind.IDLE, _detail)] = _detail != Detail.GC


class StagePeers:
    """``stages``: the stage of each rank, empty without a pipeline; ``steps``: of each rank; ``ready``: when the ranks
    came to their collectives."""

    def __init__(
        self,
        stages: Mapping[int, int],
        timelines: Mapping[int, Timeline],
        steps: Mapping[int, Sequence[RankStep]],
        matched: Mapping[Key, Mapping[int, CollectiveCall]],
        ready: Mapping[Key, Mapping[int, int]],
    ) -> None:
        self._stages = stages
        self._timelines = timelines
        self._begins = {rank: np.array([s.begin_ns for s in own], dtype=np.int64) for rank, own in steps.items()}
        self._source = {(rank, s.begin_ns): s.source for rank, own in steps.items() for s in own}
        self._matched, self._ready = matched, ready
        self._by_group: dict[int, dict[str, dict[Key, tuple[int, int]]]] = {}
        self._usual: dict[tuple[int, str, int, str], Activity] = {}

    def step_begin(self, rank: int, time_ns: int) -> int:
        """When the step began in which the moment just before ``time_ns`` lies; the first one, where none had."""
        begins = self._begins[rank]
        return int(begins[max(0, int(np.searchsorted(begins, time_ns, side="left")) - 1)])

    def others(
        self, rank: int, key: Key, members: Mapping[int, CollectiveCall], activity: Mapping[int, Activity]
    ) -> Activity:
        """What the others of a meeting did while ``rank`` did ``activity[rank]``: their median, by label."""
        peers = [r for r in members if r != rank]
        everybody = _median(activity[r] for r in peers)
        pair = is_pair(members.values())
        if not pair and all(self._stages.get(r) == self._stages.get(rank) for r in peers):
            return everybody
        mates = [r for r, stage in self._stages.items() if stage == self._stages.get(rank) and r != rank]
        of_mates = self._by_then(rank, key, members, mates) if pair else [activity[r] for r in mates if r in members]
        if of_mates:
            return np.where(_OF_LAYERS, _median(of_mates), everybody)
        return np.where(_OF_LAYERS, self._own_usual(rank, key) if pair else activity[rank], everybody)

    def _by_then(
        self, rank: int, key: Key, members: Mapping[int, CollectiveCall], mates: Sequence[int]
    ) -> list[Activity]:
        """What the ranks of its stage, which are not in the meeting, have done of this step when they come to the same
        call in their own pipelines. At the same time would not do: they do not wait for it, but go on."""
        (other,) = (r for r in members if r != rank)
        found = []
        for mate in mates:
            ready = self._messages.get((mate, members[rank].op, self._stages.get(other), key[1]))
            if ready is not None and mate in self._timelines:
                found.append(self._timelines[mate].activity(self.step_begin(mate, ready), ready))
        return found

    @cached_property
    def _messages(self) -> dict[tuple[int, str, int | None, int], int]:
        """By rank, send or receive, stage at the other end, and number: when the rank was ready for it."""
        found = {}
        for key, members in self._matched.items():
            if len(members) == 2 and is_pair(members.values()):
                (a, b) = members
                for rank, other in ((a, b), (b, a)):
                    told = rank, members[rank].op, self._stages.get(other), key[1]
                    found[told] = self._ready[key][rank]
        return found

    def _own_usual(self, rank: int, key: Key) -> Activity:
        """What the rank has usually done of a step when it comes to this one of its sends, or receives."""
        places = self._places(rank, key[0])
        place, begin = places[key]
        source = self._source[rank, begin]
        if (rank, key[0], place, source) not in self._usual:
            alike = [k for k, (at, of) in places.items() if at == place and self._source[rank, of] == source]
            line, ready = self._timelines[rank], self._ready
            usual = _median(line.activity(places[k][1], ready[k][rank]) for k in alike)
            self._usual[rank, key[0], place, source] = usual
        return self._usual[rank, key[0], place, source]

    def _places(self, rank: int, group: str) -> dict[Key, tuple[int, int]]:
        """Of each of the rank's calls in a group, the how manieth of its step it is, and when that step began."""
        if rank not in self._by_group:
            by_group: dict[str, dict[Key, tuple[int, int]]] = defaultdict(dict)
            counts: Counter[tuple[str, int]] = Counter()
            for key in sorted(self._ready, key=lambda key: (key[0], key[1])):
                if rank in self._ready[key]:
                    begin = self.step_begin(rank, self._ready[key][rank])
                    by_group[key[0]][key] = counts[key[0], begin], begin
                    counts[key[0], begin] += 1
            self._by_group[rank] = by_group
        return self._by_group[rank][group]


def _median(activities: Iterable[Activity]) -> Activity:
    found: Activity = np.median(np.stack(list(activities)), axis=0).astype(np.int64)
    return found
