"""Which ranks come last to their collectives, counted over collectives (science.md 6.2).

The kernels of an all-reduce, all-gather, reduce-scatter, all-to-all or barrier end on all ranks at about the same time,
so that the rank with the shortest one came last, and the others waited for it as much longer as theirs are. That needs
no common clock, and in one step there are hundreds of them. A broadcast, a reduce, a send and a receive do not end
together. Nor do the kernels of a rank that shares its device: where the clocks are good enough to see who started last,
and see somebody else, nobody is named.
"""

from __future__ import annotations

from collections import defaultdict
from math import comb

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account.match import SYNCHRONISING, Key
from diag.account.others import median_of_others
from diag.model.steps import CollectiveCall, Evidence

from .culprits import MAX_CHANCE, PERSISTENT, at_least
from .subject import CRITICAL, Subject, ranks_text

_NOISE_NS = 20_000  # kernels of four MI300s ended within 11 us of each other, of eight V100s within 62 [measured]
_NOISE = 0.1  # of the shortest of them: a ring does not end everywhere at once
_NEARLY_ALL = 0.9  # of the waiting for late ranks
_AGREE = 0.5  # of the collectives in which the suspects had the shortest kernels

Times = npt.NDArray[np.int64]


class LastArrivals(Struct, frozen=True):
    """``ranks``: those that came last more often than by chance, worst first; ``last``: (collectives in which one of
    them did, collectives in which anybody was late). ``waited_ns``: what they made the middle one of the others wait,
    in all of the steps; ``part``: of the waiting for any rank."""

    ranks: tuple[int, ...]
    last: tuple[int, int]
    waited_ns: int
    part: float
    chance: float

    def evidence(self, steps: int) -> list[Evidence]:
        who = ranks_text(self.ranks)
        often, of = self.last
        waited = round(self.waited_ns / max(1, steps) / 1e6, 3)
        return [
            Evidence("collectives", f"{who} last, of {of} collectives with a late rank", float(often), "collectives"),
            Evidence("collectives", f"waiting for {who}, the median of the others", waited, "ms a step"),
        ]


def last_arrivals(subject: Subject) -> LastArrivals | None:
    """None where nobody stands out, or where it cannot be told: on a CPU a call's duration holds other work."""
    if not subject.shares.on_device:
        return None
    met = _complete(subject)
    ranks = subject.attribution.ranks
    place = {rank: i for i, rank in enumerate(ranks)}
    late = np.zeros((len(met), len(ranks)), dtype=np.int64)
    for i, members in enumerate(met.values()):
        took = np.array([call.end_ns - call.start_ns for call in members.values()], dtype=np.int64)
        waited = np.maximum(median_of_others(took[:, None])[:, 0] - took, 0)
        least = max(_NOISE_NS, round(_NOISE * int(took.min())))
        last = (took <= took.min() + least) & (waited > least)  # those that come before it are waiting for it, too
        late[i, [place[rank] for rank in members]] = np.where(last, waited, 0)
    worst = late.max(axis=1, initial=0)
    telling = worst > 0
    total = late.sum(axis=0)
    if not telling.any():
        return None
    # All that the others waited for, and not much less than for the worst, stand trial together: at most half of them.
    suspects = np.flatnonzero(total >= total.max() / 2)
    if len(suspects) > len(ranks) / 2:
        return None
    leading = telling & (late[:, suspects].max(axis=1) >= worst)
    often, of = int(leading.sum()), int(telling.sum())
    part = float(worst[leading].sum()) / float(worst.sum())
    # Whichever ranks were the worst would have been suspected.
    chance = min(1.0, comb(len(ranks), len(suspects)) * at_least(often, of, len(suspects) / len(ranks)))
    waited_ns = int(worst[leading].sum())
    counted = min(often / of, part) >= PERSISTENT and chance <= MAX_CHANCE
    # Few large collectives prove nothing by their count; nearly all of the waiting, and a large part of the time, does.
    weighed = part >= _NEARLY_ALL and often > 1 and waited_ns >= CRITICAL * float(subject.shares.dur_ns.sum())
    if not (counted or weighed):
        return None
    names = tuple(ranks[i] for i in sorted(suspects.tolist(), key=lambda i: -int(total[i])))
    keys = [key for key, leads in zip(met, leading.tolist(), strict=True) if leads]
    if not _clocks_agree(subject, keys, frozenset(names)):
        return None
    return LastArrivals(names, (often, of), waited_ns, part, chance)


def _complete(subject: Subject) -> dict[Key, dict[int, CollectiveCall]]:
    """The collectives of the steps that count, of which every member was recorded, with one size for all."""
    usable = set(subject.shares.numbers)
    found: dict[Key, dict[int, CollectiveCall]] = defaultdict(dict)
    for step in subject.attribution.rank_steps:
        if step.step in usable and step.source == "trace":
            for call in step.collectives:
                if call.op in SYNCHRONISING:
                    found[call.key].setdefault(step.rank, call)
    world = subject.tables.world_size
    return {
        key: members
        for key, members in found.items()
        if len(members) > 1
        and len(members) == (next(iter(members.values())).group_size or world)
        and len({call.bytes for call in members.values()}) == 1
    }


def _clocks_agree(subject: Subject, keys: list[Key], suspects: frozenset[int]) -> bool:
    """Whether, by the clocks, these ranks started last as well; true where the clocks do not tell."""
    clock = subject.attribution.clock_uncertainty_ns
    if not subject.attribution.aligned or clock is None:
        return True
    asked = frozenset(keys)
    started = [met for met in subject.attribution.collectives if met.key in asked and max(met.wait_ns) > 2 * clock]
    same = sum(met.last_arriver in suspects for met in started)
    return not started or same >= _AGREE * len(started)
