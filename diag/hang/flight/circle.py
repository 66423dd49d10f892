"""Ranks that wait for each other."""

from __future__ import annotations


def circle(meetings_of: dict[int, list[int]], ranks_of: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The ranks of a circle that waits for nobody outside it; empty where no waiting comes back to where it began.

    ``meetings_of`` a rank: those in which it waits; ``ranks_of`` a meeting: those it waits for. The rank that a search
    against the waits leaves last lies in a component from which nothing leads away (Kosaraju).
    """
    waits_of: dict[int, list[int]] = {}  # meeting -> ranks waiting in it
    waited_in: dict[int, list[int]] = {}  # rank -> meetings that wait for it
    for rank, meetings in meetings_of.items():
        for meeting in meetings:
            waits_of.setdefault(meeting, []).append(rank)
    for meeting, ranks in enumerate(ranks_of):
        for rank in ranks:
            waited_in.setdefault(rank, []).append(meeting)
    last: int | None = None
    seen: set[int] = set()
    for start in meetings_of:
        if start not in seen:
            last = start
            _visit(start, waited_in, waits_of, seen)
    if last is None:
        return ()
    ring: set[int] = set()
    _visit(last, meetings_of, dict(enumerate(map(list, ranks_of))), ring, include_start=False)
    return tuple(sorted(ring)) if last in ring else ()


def _visit(
    start: int, first: dict[int, list[int]], second: dict[int, list[int]], seen: set[int], include_start: bool = True
) -> None:
    """Adds to ``seen`` every rank that is reached through one mapping and then the other."""
    if include_start:
        seen.add(start)
    left, passed = [start], set()
    while left:
        for meeting in first.get(left.pop(), ()):
            if meeting in passed:
                continue
            passed.add(meeting)
            for rank in second.get(meeting, ()):
                if rank not in seen:
                    seen.add(rank)
                    left.append(rank)
