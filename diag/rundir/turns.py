"""Which of several ranks that wait for each other left the order in which it calls collectives.

A rank that skips a call of one group, or makes two calls of different groups in turn, waits in the second one while
its peers wait in the first. Sequence numbers alone are the same from both sides. The recorded steps are not: the rank
at fault has called one group without the call of the other that came before it in each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from diag.collectors.layout import RankLayout
from diag.collectors.records import CollectiveLine
from diag.rundir.policy import SILENCE

from .beats import Beat, BeatWaits, group_name
from .lines import read_last_lines


@dataclass(frozen=True, slots=True)
class Skipped:
    """A call that a rank has not made, although it went on with the call that follows it. ``steps``: the recorded steps
    in which it made them in this order."""

    group: str
    number: int
    went_on: str  # with a call of this group
    steps: int

    @property
    def words(self) -> str:
        """``has called group 2 without #25 of group 1, which came first in the 20 steps before``."""
        return (
            f"has called group {self.went_on} without #{self.number} of group {self.group}, "
            f"which came first in the {self.steps} steps before"
        )


def skipped_by(
    beats: Mapping[int, Beat | None], waits: BeatWaits, files: Mapping[int, RankLayout]
) -> dict[int, Skipped]:
    """By rank, for ranks that wait for each other. Empty where the records do not tell them apart: no rank, or each of
    those whose records were read, has left its order."""
    waiting = {rank for call in waits.pending_calls for rank in call.waiters}
    missed = {
        (rank, group_name(call.op.group), call.op.number)
        for call in waits.pending_calls
        for rank in call.missing
        if rank in waiting
    }
    # Most ranks wait for the one at fault.
    asked = [rank for rank, _ in Counter(rank for rank, _, _ in missed).most_common(SILENCE.orders_compared)]
    step = min((beat.step for rank in waiting if (beat := beats.get(rank)) is not None), default=-1)
    skipped: dict[int, Skipped] = {}
    in_order = 0
    for rank in asked:
        beat = beats[rank]
        lines = read_last_lines(files[rank].collectives, CollectiveLine, SILENCE.orders_tail_bytes)[0]
        if beat is None or not _is_whole(lines, step, beat):
            continue
        calls = sorted({(group, number) for its, group, number in missed if its == rank})
        found = next((one for call in calls if (one := _skipped(lines, step, beat, *call)) is not None), None)
        if found is None:
            in_order += 1
        else:
            skipped[rank] = found
    return skipped if in_order else {}


def _is_whole(lines: Sequence[CollectiveLine], step: int, beat: Beat) -> bool:
    """Whether enough steps before this one are recorded, up to the one that the rank is in, with all their calls."""
    before = [line for line in lines if line.step < step]
    return (
        len(before) >= SILENCE.least_orders
        and lines[-1].step >= beat.step - 1
        and not any(line.dropped for line in lines)
    )


def _skipped(lines: Sequence[CollectiveLine], step: int, beat: Beat, group: str, number: int) -> Skipped | None:
    """Whether the rank, in this step, has gone on with a call of another group before which it called this one in every
    recorded step."""
    before = [
        [row.group for row in sorted(line.rows, key=attrgetter("start_ns"))] for line in lines if line.step < step
    ]
    last = {row.group: row.seq for line in lines if line.step < step for row in line.rows}
    started = dict(beat.started)
    if group not in last:
        return None
    made = started.get(group, -1) - last[group]
    for other, newest in started.items():
        calls = newest - last.get(other, newest)
        orders = [order for order in before if other in order] if calls > 0 and other != group else []
        if len(orders) >= SILENCE.least_orders and made < min(
            _calls_before(order, group, other, calls) for order in orders
        ):
            return Skipped(group, number, other, len(orders))
    return None


def _calls_before(order: Sequence[str], group: str, other: str, calls: int) -> int:
    """The calls of a group in a step up to the ``calls``-th one of another, or its last one."""
    places = [place for place, name in enumerate(order) if name == other]
    return order[: places[min(calls, len(places)) - 1]].count(group)
