"""A long history in few rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from diag.model.history import History, Stretch


def condensed(history: History, most: int) -> tuple[Stretch, ...]:
    """About so many stretches, none over a change of the step time or of the resolution. Each is the mean of its
    steps; ``steps`` is how many there are."""
    starts = [change.step for change in history.changes]

    def part(stretch: Stretch) -> tuple[bool, int]:
        return stretch.steps == 1, sum(stretch.last >= start for start in starts)

    parts = [list(of_part) for _, of_part in groupby(history.stretches, part)]
    whole = sum(stretch.last + 1 - stretch.first for stretch in history.stretches)
    found: list[Stretch] = []
    for of_part in parts:
        rows = max(1, round(most * (of_part[-1].last + 1 - of_part[0].first) / whole))
        size = -(-len(of_part) // rows)
        found += [_together(of_part[first : first + size]) for first in range(0, len(of_part), size)]
    return tuple(found)


def _together(several: Sequence[Stretch]) -> Stretch:
    steps = sum(stretch.steps for stretch in several)
    known = [stretch for stretch in several if stretch.parts is not None]
    weight = sum(stretch.steps for stretch in known)
    names = dict.fromkeys(name for stretch in known for name in stretch.parts or {})
    return Stretch(
        several[0].first,
        several[-1].last,
        steps,
        several[0].begin_unix_ns,
        several[-1].end_unix_ns,
        sum(stretch.step_ns * stretch.steps for stretch in several) / steps,
        max(stretch.longest_ns for stretch in several),
        {name: sum((s.parts or {}).get(name, 0.0) * s.steps for s in known) / weight for name in names} or None,
    )
