"""Communication with ranks that were not recorded (science.md 6.3): how much of it is waiting, probably for them.

Of a collective some of whose ranks are missing each duration is its transfer and an unknown wait: nobody knows when the
last rank came. The fastest call of the same group, operation and size, over all calls and ranks, is the best estimate
of the transfer; a smaller size takes no longer than a larger one, and none much longer than the latency and bandwidth
that other sizes have shown (where there are few calls of a size, each of them may have waited). What a call takes
longer is waiting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

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
        for group in {call.group for call in step.collectives}:
            with_group[group].add(step.rank)
    world = subject.tables.world_size or (2 if len(seen) == 1 else 0)  # a collective of one rank is none

    known: dict[tuple[int, str, int], bool] = {}  # of each rank's groups once: there are thousands of calls

    def lacks(rank: int, call: CollectiveCall) -> bool:
        at = rank, call.group, len(call.group_ranks) or call.group_size
        if at not in known:
            whole = seen.issuperset(call.group_ranks)
            if not call.group_ranks:
                whole = len(with_group[call.group]) >= (call.group_size or world)
            known[at] = not whole
        return known[at]

    timed = [
        [(call, *open_span(call)) for call in step.collectives if lacks(step.rank, call)] for step in steps
    ]  # call, start_ns, end_ns
    took: dict[_Sort, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for own in timed:
        for call, start, end in own:
            took[_sort(call)][call.bytes].append(end - start)
    if not took:
        return None
    floors = _floors(took)
    exposed_ns = of_missing = waiting = 0
    for step, own in zip(steps, timed, strict=True):
        exposed = intervals_of(step.segments, Kind.COMM)
        exposed_ns += iv.total(exposed)
        if own:
            spans = np.array([span for _, *span in own], dtype=np.int64)
            floor = np.array([floors[_sort(call), call.bytes] for call, _, _ in own], dtype=np.int64)
            of_missing += iv.total(iv.intersect(exposed, spans))
            waiting += iv.total(iv.intersect(exposed, np.stack((spans[:, 0], spans[:, 1] - floor), axis=1)))
    if not of_missing or of_missing < _MOSTLY * exposed_ns:
        return None
    groups = {call.group_ranks for own in timed for call, _, _ in own}
    absent = set().union(*groups) or set(range(subject.tables.world_size or 0))
    return Missing(
        tuple(sorted(absent - seen)),
        of_missing / exposed_ns,
        waiting / exposed_ns,
        _evidence(took, floors, waiting / exposed_ns),
    )


def _sort(call: CollectiveCall) -> _Sort:
    return call.group, call.op, call.dtype


def _floors(took: Mapping[_Sort, Mapping[int, Sequence[int]]]) -> dict[tuple[_Sort, int], int]:
    """Nanoseconds that the transfer of each sort and size takes at most, as far as the calls tell. ``took``: durations
    by sort and size."""
    fastest = {sort: {size: min(own) for size, own in by_size.items()} for sort, by_size in took.items()}
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
    took: Mapping[_Sort, Mapping[int, Sequence[int]]], floors: Mapping[tuple[_Sort, int], int], waiting: float
) -> tuple[Evidence, ...]:
    whole = "longer than the fastest call, of the exposed communication"
    found = [Evidence("collectives", whole, round(waiting, 3), "share")]
    by_key = {(sort, size): own for sort, by_size in took.items() for size, own in by_size.items()}
    for key in sorted(by_key, key=lambda key: -sum(by_key[key]))[:_SHOWN]:
        (_, op, _), size = key
        what, own = f"{op} of {size} bytes", by_key[key]
        median = round(float(np.median(own)) / 1e6, 3)
        found.append(Evidence("collectives", f"{what}, fastest", round(floors[key] / 1e6, 3), "ms"))
        found.append(Evidence("collectives", f"{what}, median of {len(own)}", median, "ms"))
    return tuple(found)
