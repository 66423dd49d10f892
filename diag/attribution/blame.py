"""Why the last rank was late: what it did differently from the others since they last met (science.md 2.6).

A wait is never a cause. At each collective on the path the ranks' activity since they were last in step is compared:
only what a rank did beyond the median of the others is charged to it, and at most as long as the others really waited.
Which others: those that do the same work (diag.attribution.peers).
They were in step at the end of a collective for which all of them stood still. One that computation hides on some rank
ties nobody together: a pause before it shows only later, where nothing is left to hide the waiting. Time in between of
which nothing was recorded (it lies outside of the steps) is charged as such: late for no known reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct

from diag.attribution.critical_path import EPSILON_NS, Readiness
from diag.attribution.intervals import CoveredOfMany
from diag.attribution.match import Key, is_handed_over, is_pair
from diag.attribution.peers import StagePeers
from diag.attribution.timeline import Timeline, label_of, of_label
from diag.collectors.records import SEND
from diag.model import Blame, CollectiveCall, Detail, Kind

_UNKNOWN = label_of(Kind.IDLE, Detail.UNKNOWN)
_COMM_LABELS = [label_of(Kind.COMM, detail) for detail in range(label_of(1, 0) - label_of(0, 0))]


class Lateness(Struct, frozen=True):
    """Who was late in a step. ``explained_ns``: the part of ``waited_ns`` whose reason is known; ``once_ns``: of it,
    counting ranks that were late at one meeting once."""

    blames: tuple[Blame, ...]
    waited_ns: int
    explained_ns: int
    once_ns: int


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
        self._ready, self._idle, self._in_step = readiness.ready, readiness.idle, readiness.in_step
        self._matched = matched
        self._timelines = timelines
        by_group: dict[str, list[Key]] = defaultdict(list)
        for key in matched:
            by_group[key[0]].append(key)
        self._previous: dict[Key, Key] = {}
        self._row = {rank: row for row, rank in enumerate(timelines)}
        self._standing = CoveredOfMany([timeline.standing for timeline in timelines.values()])
        for keys in by_group.values():
            keys.sort(key=lambda key: min(call.start_ns for call in matched[key].values()))
            self._previous.update(zip(keys[1:], keys, strict=False))

    def lateness(self, met: Iterable[Key]) -> Lateness:
        """Over all collectives at which the path met other ranks."""
        blamed: dict[tuple[int, int], int] = defaultdict(int)
        told: dict[int, int] = {}  # by late rank, the time until which waiting for it is accounted for
        charged: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by late rank: (when it was ready, nanoseconds)
        waited = explained = once = 0
        for key in met:
            members = self._matched[key]
            ready = self._ready[key]
            late = self._late(key, ready, told)
            if is_handed_over(members.values()):  # then the sender did not wait for its receiver
                late = {rank: ns for rank, ns in late.items() if members[rank].op == SEND}
            if not late:
                continue
            told.update({rank: max(ready[rank], told.get(rank, ready[rank])) for rank in late})
            once += max(late.values())
            activity, blank, since = {}, {}, {}
            # To one moment on all ranks: what the late one then did more of is what the others stood still for. How far
            # each has got in its work until it meets the others would not compare: some compute beside the transfer.
            time = max(ready[rank] for rank in late)
            for rank in members:
                since[rank] = self._last_met_ns(key, rank, ready[rank])
                activity[rank] = self._timelines[rank].activity(since[rank], time)
                blank[rank] = time - since[rank] - int(activity[rank].sum())
            for rank, late_ns in late.items():
                others = self._peers.others(rank, key, members, activity)
                excess = np.maximum(activity[rank] - others, 0)
                excess[_COMM_LABELS] = 0  # its own waits are not its fault
                total = int(excess.sum())
                waited += late_ns
                unknown = max(0, blank[rank] - int(np.median([ns for r, ns in blank.items() if r != rank])))
                unknown = min(unknown, late_ns)
                explained += late_ns - unknown
                if unknown > EPSILON_NS:
                    blamed[rank, _UNKNOWN] += unknown
                # What one group has waited for already, another one waits for later: it costs once.
                left = total - sum(ns for at, ns in charged[rank] if at > since[rank])
                share = max(0, min(late_ns, left)) / total if total else 0.0
                charged[rank].append((ready[rank], round(share * total)))
                for label in np.flatnonzero(excess):
                    blamed[rank, int(label)] += round(int(excess[label]) * share)
        blames = tuple(Blame(rank, *of_label(label), ns) for (rank, label), ns in sorted(blamed.items()) if ns > 0)
        return Lateness(blames, waited, explained, once)

    def _late(self, key: Key, ready: Mapping[int, int], told: Mapping[int, int]) -> dict[int, int]:
        """Ranks for which most of the others stood still, and how long: waiting that computation hid costs nothing, nor
        does what the late rank waited for as well, and what it is ``told`` for already counts once."""
        ranks = list(self._matched[key])
        idle = np.array([self._idle[key][rank] for rank in ranks], dtype=np.int64)
        times = np.array([ready[rank] for rank in ranks], dtype=np.int64)
        if times.max() - idle.min() <= EPSILON_NS:
            return {}
        rows = np.array([self._row[rank] for rank in ranks], dtype=np.int64)
        # At most half of the others can have waited for one that was ready before the middle one.
        asked = np.flatnonzero(times >= np.median(times))
        counted = np.array([told.get(ranks[i], int(idle.min())) for i in asked], dtype=np.int64)
        since = np.maximum(idle[:, None], counted)  # of each rank, and each that may be late
        others = self._standing.between(rows[:, None], since, times[asked])
        own = self._standing.between(rows[asked], since, times[asked])
        stood = others - own
        stood[asked, np.arange(len(asked))] = np.iinfo(np.int64).min  # itself: sorted, it comes before the others
        stood.sort(axis=0)
        usual = (stood[1 + (len(ranks) - 2) // 2] + stood[1 + (len(ranks) - 1) // 2]) // 2
        return {ranks[i]: int(ns) for i, ns in zip(asked.tolist(), usual, strict=True) if ns > EPSILON_NS}

    def _last_met_ns(self, key: Key, rank: int, arrival: int) -> int:
        """When the rank last left a meeting before ``arrival`` that all stood still for: its end, or its start if it
        was still under way; where its records begin, if there was none. A sender never waits for its receiver, so that
        the two do not meet: what counts is the step."""
        if is_pair(self._matched[key].values()):
            return min(self._peers.step_begin(rank, arrival), arrival)
        previous = self._previous.get(key)
        while previous is not None and not (rank in self._matched[previous] and self._in_step[previous]):
            previous = self._previous.get(previous)
        if previous is None:
            return min(int(self._timelines[rank].start_ns[0]), arrival)
        call = self._matched[previous][rank]
        return call.end_ns if call.end_ns <= arrival else min(call.start_ns, arrival)
