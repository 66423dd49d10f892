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
from diag.account.calls import Group
from diag.account.intervals import intervals_of
from diag.account.on_line import on_line
from diag.account.rank_steps import RankSteps
from diag.account.records import open_spans
from diag.diagnoses.policy import COMMUNICATION
from diag.model.query import Query
from diag.model.steps import Evidence, Kind
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
    steps = RankSteps.of(subject.attribution.rank_steps).of_steps(subject.shares.numbers)
    seen = frozenset(subject.attribution.ranks)
    world = subject.tables.world_size or (2 if len(seen) == 1 else 0)  # a collective has at least two ranks
    calls, rank = steps.calls.take(steps.places), steps.rank[steps.of_place]
    width = int(rank.max(initial=0)) + 1
    with_group: dict[str, set[int]] = defaultdict(set)
    for place in np.unique(calls.group * width + rank).tolist():
        with_group[calls.groups[place // width].name].add(place % width)

    def lacks(group: Group) -> bool:
        if group.ranks:
            return not seen.issuperset(group.ranks)
        return len(with_group[group.name]) < (group.size or world)

    lacking = np.array([*map(lacks, calls.groups)], dtype=np.bool_)[calls.group]
    if not lacking.any():
        return None
    shift_ns, pieces = on_line(steps)
    calls, moved = calls.take(lacking), shift_ns[steps.of_place][lacking]
    sorts: dict[tuple[_Sort, int], int] = {}  # number of each sort and size
    groups = {calls.groups[code].ranks for code in np.unique(calls.group).tolist()}
    sizes, size = np.unique(calls.bytes, return_inverse=True)
    alike = np.ravel_multi_index(
        (calls.group, calls.op, calls.dtype, size), (len(calls.groups), len(calls.names), len(calls.names), len(sizes))
    )
    _, first, which = np.unique(alike, return_index=True, return_inverse=True)
    number_of = np.zeros(len(first), dtype=np.int64)
    for row in np.argsort(first).tolist():
        call = calls[int(first[row])]
        number_of[row] = sorts.setdefault(((call.group, call.op, call.dtype), call.bytes), len(sorts))
    numbers, spans = number_of[which], np.stack(open_spans(calls), axis=1) + moved[:, None]
    durations = _by_sort(sorts, numbers, spans)
    floors = _floors(durations)
    floor = np.array([floors[sort] for sort in sorts], dtype=np.int64)[numbers]
    exposed = iv.make(intervals_of(pieces.every, Kind.COMM))
    longer = spans + np.stack((floor * 0, -floor), axis=1)
    exposed_ns = iv.total(exposed)
    of_missing, waiting = (iv.total(iv.intersect(exposed, iv.make(each))) for each in (spans, longer))
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
