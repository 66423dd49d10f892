"""Where every rank of a hang is in every group: a row for the ranks that are at the same calls, those at fault first.
Data for ``views/matrix.js``; nothing here draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diag.app.picture import colours_of, grid_of_states
from diag.app.policy import DASHBOARD
from diag.app.theme import Theme, ink_on
from diag.hang.api import At, GroupPlaces, Place
from diag.words.formatting import counted, rank_ranges, visible

Data = dict[str, Any]  # as JSON
_Member = tuple[int, int]  # (0, rank), or (1, the member's number) where the rank is not known
_Cells = tuple[Place | None, ...]  # by group
_EXPECTED = (At.HERE, At.UNKNOWN)
_WORST = (At.NEVER_BEGAN, At.BEHIND, At.UNFINISHED, At.INITIALISING, At.ENDED, At.UNKNOWN, At.HERE)


def matrix_of(groups: Sequence[GroupPlaces], culprits: Sequence[int], theme: Theme) -> Data:
    """The rows by groups, with the last call of each."""
    shades, rows = colours(theme), _rows(groups, culprits)
    shown, seen = rows[: DASHBOARD.most_matrix_rows], {place.at for group in groups for place in group.members}
    left_out = sum(len(members) for members, _ in rows[len(shown) :])
    return {
        "columns": [_column(group) for group in groups],
        "rows": [
            {
                "name": _name(members),
                "fault": all(kind == 0 and number in culprits for kind, number in members),
                "cells": [_cell(place, group) for place, group in zip(cells, groups, strict=True)],
            }
            for members, cells in shown
        ],
        "states": [[at.value, shades[at], ink_on(shades[at])] for at in At],
        "seen": [place for place, at in enumerate(At) if at in seen],
        "more": f"{counted(left_out, 'rank')} more in other places, not drawn." if left_out else "",
        "colours": colours_of(theme),
    }


def picture_of_places(groups: Sequence[GroupPlaces], culprits: Sequence[int], theme: Theme) -> Data | None:
    """A grid of many ranks, each in the colour of the worst place that it has in a group; None for few ranks."""
    worst: dict[int, Place] = {}
    for place in (place for group in groups for place in group.members):
        before = worst.get(place.rank) if place.rank is not None else place
        if place.rank is not None and (before is None or _WORST.index(place.at) < _WORST.index(before.at)):
            worst[place.rank] = place
    if len(worst) <= DASHBOARD.most_bars_of_ranks:
        return None
    states = {rank: (place.at.value, place.last and f"last call: {place.last}") for rank, place in worst.items()}
    shades = {at.value: shade for at, shade in colours(theme).items()}
    return grid_of_states(states, {}, shades, [rank for rank in culprits if rank in states], theme)


def colours(theme: Theme) -> dict[At, str]:
    """The colour of each position in a group: none of those of the parts of a step."""
    return {
        At.HERE: theme.grid,
        At.BEHIND: theme.bad,
        At.UNFINISHED: theme.warn,
        At.NEVER_BEGAN: theme.bad,
        At.INITIALISING: theme.warn,
        At.ENDED: theme.series[0],
        At.UNKNOWN: theme.ground,
    }


def _rows(groups: Sequence[GroupPlaces], culprits: Sequence[int]) -> list[tuple[list[_Member], _Cells]]:
    """The members at the same calls in the same groups, with these: those at fault, each by itself, then those that are
    elsewhere than expected, then the most."""
    of: dict[_Member, list[Place | None]] = {}
    for column, group in enumerate(groups):
        for place in group.members:
            member = (0, place.rank) if place.rank is not None else (1, place.group_rank)
            of.setdefault(member, [None] * len(groups))[column] = place
    merged: dict[tuple[object, ...], tuple[list[_Member], _Cells]] = {}
    for member in sorted(of):
        at_fault = member[0] == 0 and member[1] in culprits
        key = (member if at_fault else None, *(place and (place.at, place.last, place.waits) for place in of[member]))
        merged.setdefault(key, ([], tuple(of[member])))[0].append(member)

    def order(row: tuple[list[_Member], _Cells]) -> tuple[object, ...]:
        members, cells = row
        elsewhere = any(place is not None and place.at not in _EXPECTED for place in cells)
        return not (members[0][0] == 0 and members[0][1] in culprits), not elsewhere, -len(members), members[0]

    return sorted(merged.values(), key=order)


def _name(members: Sequence[_Member]) -> str:
    known = [number for kind, number in members if kind == 0]
    unknown = [f"member {number}" for kind, number in members if kind == 1]
    return ", ".join(filter(None, (rank_ranges(known) if known else "", *unknown)))


def _column(group: GroupPlaces) -> Data:
    ops = list(dict.fromkeys(place.op for place in group.members if place.op))
    return {
        "title": visible(group.title),
        "op": visible(ops[0]) if len(ops) == 1 else "",
        "about": f"{visible(group.title)}, {counted(group.size, 'rank')}",
    }


def _cell(place: Place | None, group: GroupPlaces) -> list[Any] | None:
    """Its state, text and tooltip; the operation stands once above the column where all members called the same."""
    if place is None:
        return None
    alone = len({other.op for other in group.members if other.op}) == 1
    text = " ".join(filter(None, ("" if alone else place.op, place.at_call)))
    about = [place.at.value]
    if place.last:
        about.append(visible(f"last call: {place.last}{', not finished' if place.waits else ''}"))
    return [list(At).index(place.at), visible(text), "\n".join(about)]
