"""Communication with ranks that were not recorded: how much of it is waiting, probably for them.

Where some ranks of a collective are missing, each duration is its transfer and an unknown wait: the arrival of the last
rank is unknown. The fastest call of the same group, operation and size, over all calls and ranks, is the best estimate
of the transfer. A smaller size takes no longer than a larger one, and none takes much longer than the latency and
bandwidth of other sizes predict (where there are few calls of a size, each of them may have waited). Time beyond that
is waiting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account import intervals as iv
from diag.account.calls import Group, calls_in
from diag.account.intervals import intervals_of
from diag.account.records import open_spans
from diag.diagnoses.policy import COMMUNICATION
from diag.model.query import Query
from diag.model.steps import Evidence, Kind, RankStep
from diag.words.formatting import rank_ranges

from .subject import Subject

_Sort = tuple[str, str, str]  # group, operation, type


class Missing(Struct, frozen=True):
    """``ranks``: those missing from the groups, () where unknown. ``part``: the fraction of the exposed communication
    in these groups; ``waiting``: the fraction of it beyond the fastest call."""

    ranks: tuple[int, ...]
    part: float
    waiting: float
    evidence: tuple[Evidence, ...]

    @property
    def names(self) -> str:
        return rank_ranges(self.ranks) if self.ranks else "the other ranks"

    @property
    def action(self) -> str:
        return (
            f"Collect traces of {self.names} for the same steps and analyze all ranks together: the last rank to "
            "arrive shows why the others wait."
        )


def missing_ranks(subject: Subject) -> Missing | None:
    """None where every group was recorded, or most of the exposed communication is in groups that were."""
    usable = set(subject.shares.numbers)
    steps = [step for step in subject.attribution.rank_steps if step.step in usable]
    seen = frozenset(subject.attribution.ranks)
    world = subject.tables.world_size or (2 if len(seen) == 1 else 0)  # a collective has at least two ranks
    of_rank: dict[int, list[RankStep]] = defaultdict(list)
    for step in steps:
        of_rank[step.rank].append(step)
    listed = {rank: calls_in([step.collectives for step in own]) for rank, own in of_rank.items()}
    with_group: dict[str, set[int]] = defaultdict(set)
    for rank, (calls, _) in listed.items():
        for code in np.unique(calls.group).tolist():
            with_group[calls.groups[code].name].add(rank)

    def lacks(group: Group) -> bool:
        if group.ranks:
            return not seen.issuperset(group.ranks)
        return len(with_group[group.name]) < (group.size or world)

    lacking = {rank: np.array([*map(lacks, calls.groups)], dtype=np.bool_) for rank, (calls, _) in listed.items()}
    if not any(of_groups.any() for of_groups in lacking.values()):
        return None
    sorts: dict[tuple[_Sort, int], int] = {}  # number of each sort and size
    groups = set()
    spans: dict[int, iv.Intervals] = {}
    numbers: dict[int, npt.NDArray[np.int64]] = {}
    for rank, (calls, places) in listed.items():
        own = calls.take(at := np.concatenate(places)).take(lacking[rank][calls.group[at]])
        spans[rank] = np.stack(open_spans(own), axis=1)
        sizes, size = np.unique(own.bytes, return_inverse=True)
        alike = np.ravel_multi_index(
            (own.group, own.op, own.dtype, size), (len(own.groups), len(own.names), len(own.names), max(1, len(sizes)))
        )
        _, first, which = np.unique(alike, return_index=True, return_inverse=True)
        number_of = np.zeros(len(first), dtype=np.int64)
        for row in np.argsort(first).tolist():
            call = own[int(first[row])]
            groups.add(call.group_ranks)
            number_of[row] = sorts.setdefault(((call.group, call.op, call.dtype), call.bytes), len(sorts))
        numbers[rank] = number_of[which]
    if not sorts:
        return None
    durations = _by_sort(sorts, np.concatenate([*numbers.values()]), np.concatenate([*spans.values()]))
    floors = _floors(durations)
    floor = np.array([floors[sort] for sort in sorts], dtype=np.int64)
    exposed_ns = of_missing = waiting = 0
    for rank, own_steps in of_rank.items():
        exposed = iv.union(*(intervals_of(step.segments, Kind.COMM) for step in own_steps))
        exposed_ns += iv.total(exposed)
        at_least = floor[numbers[rank]]
        longer = spans[rank] - np.stack((np.zeros_like(at_least), at_least), axis=1)
        of_missing += iv.total(iv.intersect(exposed, iv.make(spans[rank])))
        waiting += iv.total(iv.intersect(exposed, iv.make(longer)))
    if not of_missing or of_missing < COMMUNICATION.incomplete_groups_share * exposed_ns:
        return None
    absent = set().union(*groups) or set(range(subject.tables.world_size or 0))
    return Missing(
        tuple(sorted(absent - seen)),
        of_missing / exposed_ns,
        waiting / exposed_ns,
        _evidence(durations, floors, waiting / exposed_ns),
    )


def _by_sort(
    sorts: Mapping[tuple[_Sort, int], int], numbers: npt.NDArray[np.int64], spans: iv.Intervals
) -> dict[tuple[_Sort, int], npt.NDArray[np.int64]]:
    """Durations of the calls in nanoseconds by sort and size. ``numbers``: the calls' numbers in ``sorts``."""
    durations = (spans[:, 1] - spans[:, 0])[np.argsort(numbers, kind="stable")]
    ends = np.cumsum(np.bincount(numbers, minlength=len(sorts)))
    return dict(zip(sorts, np.split(durations, ends[:-1]), strict=True))


def _floors(durations: Mapping[tuple[_Sort, int], npt.NDArray[np.int64]]) -> dict[tuple[_Sort, int], int]:
    """Upper bound of the transfer of each sort and size in nanoseconds. ``durations``: by sort and size."""
    fastest: dict[_Sort, dict[int, int]] = defaultdict(dict)
    for (sort, size), durations_ns in durations.items():
        fastest[sort][size] = int(durations_ns.min())
    floors = {}
    for sort, by_size in fastest.items():
        latency = min(by_size.values())  # or more
        ns_a_byte = min((ns / size for size, ns in by_size.items() if size), default=0.0)
        larger = max(by_size.values())
        for size in sorted(by_size, reverse=True):
            larger = min(larger, by_size[size])
            floor = min(larger, round(COMMUNICATION.between_two_protocols * (latency + size * ns_a_byte)))
            floors[sort, size] = floor if size else latency
    return floors


def _evidence(
    durations: Mapping[tuple[_Sort, int], npt.NDArray[np.int64]],
    floors: Mapping[tuple[_Sort, int], int],
    waiting: float,
) -> tuple[Evidence, ...]:
    whole = "time beyond the fastest call, share of exposed communication"
    evidence = [Evidence(whole, round(waiting, 3), "share", Query("calls"))]
    for key in sorted(durations, key=lambda key: -int(durations[key].sum()))[: COMMUNICATION.floors_shown]:
        (_, op, _), size = key
        call_text, durations_ns = f"{op} of {size} bytes", durations[key]
        rows = Query("calls", {"op": op, "bytes": size})
        median = round(float(np.median(durations_ns)) / 1e6, 3)
        evidence.append(Evidence(f"{call_text}, fastest", round(floors[key] / 1e6, 3), "ms", rows))
        evidence.append(Evidence(f"{call_text}, median of {len(durations_ns)}", median, "ms", rows))
    return tuple(evidence)
