"""Communication with ranks that were not recorded (science.md 6.3): how much of it is waiting, probably for them.

Of a collective some of whose ranks are missing each duration is its transfer and an unknown wait: nobody knows when the
last rank came. The fastest call of the same group, operation and size, over all calls and ranks, is the best estimate
of the transfer; a smaller size takes no longer than a larger one, and none much longer than the latency and bandwidth
that other sizes have shown (where there are few calls of a size, each of them may have waited). What a call takes
longer is waiting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from diag.attribution import intervals as iv
from diag.attribution.records import open_span
from diag.attribution.segments import intervals_of
from diag.findings.subject import Subject
from diag.ingest.run import rank_ranges
from diag.model import CollectiveCall, Evidence, Kind

MOST = 0.55  # what can be said for sure of ranks that nobody saw
_MOSTLY = 0.5  # of the exposed communication: below this the groups that were seen whole say why
_SHOWN = 3  # floors
_PROTOCOLS = 2.0  # between two protocols a size may be that much slower than latency and bandwidth add up to

_Sort = tuple[str, str, str]  # group, operation, type


class Missing(Struct, frozen=True):
    """``ranks``: those that are missing from the groups, () where nothing says which. ``part``: of the exposed
    communication, what belongs to these groups; ``waiting``: what of it is longer than the fastest call."""

    ranks: tuple[int, ...]
    part: float
    waiting: float
    evidence: tuple[Evidence, ...]

    @property
    def who(self) -> str:
        return rank_ranges(self.ranks) if self.ranks else "the other ranks"

    @property
    def action(self) -> str:
        return (
            f"Collect the traces of {self.who} of the same steps and analyze all ranks together: the last rank to "
            "arrive shows why the others wait."
        )


def missing_ranks(subject: Subject) -> Missing | None:
    """None where every group was recorded, or most of the exposed communication is of groups that were."""
    usable = set(subject.shares.numbers)
    steps = [step for step in subject.attribution.rank_steps if step.step in usable]
    seen = frozenset(subject.attribution.ranks)
    with_group: dict[str, set[int]] = defaultdict(set)
    for step in steps:
        for call in step.collectives:
            with_group[call.group].add(step.rank)
    world = subject.tables.world_size or (2 if len(seen) == 1 else 0)  # a collective of one rank is none

    known: dict[
        tuple[int, str, int], bool
    ] = {}  # of each rank's groups once: comparing the members of each call is slow

    def lacks(rank: int, call: CollectiveCall) -> bool:
        at = rank, call.group, len(call.group_ranks) or call.group_size
        if at not in known:
            whole = seen.issuperset(call.group_ranks)
            if not call.group_ranks:
                whole = len(with_group[call.group]) >= (call.group_size or world)
            known[at] = not whole
        return known[at]

    calls = {id(step): [call for call in step.collectives if lacks(step.rank, call)] for step in steps}
    if not any(calls.values()):
        return None
    floors = _floors([call for own in calls.values() for call in own])
    exposed_ns = of_missing = waiting = 0
    for step in steps:
        exposed = intervals_of(step.segments, Kind.COMM)
        spans = [open_span(call) for call in calls[id(step)]]
        waits = [
            (start, end - floors[_sort(call), call.bytes])
            for call, (start, end) in zip(calls[id(step)], spans, strict=True)
        ]
        exposed_ns += iv.total(exposed)
        of_missing += iv.total(iv.intersect(exposed, iv.make(spans)))
        waiting += iv.total(iv.intersect(exposed, iv.make(waits)))
    if not of_missing or of_missing < _MOSTLY * exposed_ns:
        return None
    named = {rank for own in calls.values() for call in own for rank in call.group_ranks}
    absent = named or set(range(subject.tables.world_size or 0))
    return Missing(
        tuple(sorted(absent - seen)),
        of_missing / exposed_ns,
        waiting / exposed_ns,
        _evidence([call for own in calls.values() for call in own], floors, waiting / exposed_ns),
    )


def _sort(call: CollectiveCall) -> _Sort:
    return call.group, call.op, call.dtype


def _floors(calls: Sequence[CollectiveCall]) -> dict[tuple[_Sort, int], int]:
    """Nanoseconds that the transfer of each sort and size takes at most, as far as the calls tell."""
    fastest: dict[_Sort, dict[int, int]] = defaultdict(dict)
    for call in calls:
        took = int(np.subtract(*open_span(call)[::-1]))
        own = fastest[_sort(call)]
        own[call.bytes] = min(took, own.get(call.bytes, took))
    found = {}
    for sort, by_size in fastest.items():
        latency = min(by_size.values())  # or more
        ns_a_byte = min((took / size for size, took in by_size.items() if size), default=0.0)
        larger = max(by_size.values())
        for size in sorted(by_size, reverse=True):
            larger = min(larger, by_size[size])
            floor = min(larger, round(_PROTOCOLS * (latency + size * ns_a_byte)))
            found[sort, size] = floor if size else latency
    return found


def _evidence(
    calls: Sequence[CollectiveCall], floors: dict[tuple[_Sort, int], int], waiting: float
) -> tuple[Evidence, ...]:
    took: dict[tuple[_Sort, int], list[int]] = defaultdict(list)
    for call in calls:
        start, end = open_span(call)
        took[_sort(call), call.bytes].append(end - start)
    found = [
        Evidence(
            "collectives", "longer than the fastest call, of the exposed communication", round(waiting, 3), "share"
        )
    ]
    for key in sorted(took, key=lambda key: -sum(took[key]))[:_SHOWN]:
        (_, op, _), size = key
        what = f"{op} of {size} bytes"
        found.append(Evidence("collectives", f"{what}, fastest", round(floors[key] / 1e6, 3), "ms"))
        found.append(
            Evidence(
                "collectives", f"{what}, median of {len(took[key])}", round(float(np.median(took[key])) / 1e6, 3), "ms"
            )
        )
    return tuple(found)
