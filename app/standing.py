"""Where each rank of a stuck run is, for a table of few rows and a grid of hosts. Nothing here draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from diag.api import RankState, RunState, State, hosts_of, where_words
from diag.app.picture import Data, grid_of_states
from diag.app.theme import Theme


class Standing(StrEnum):
    """What a rank does that is stuck, or keeps others from going on."""

    AT_FAULT = "at fault"
    WAITING = "waits in a collective"
    ELSEWHERE = "in no collective"
    FINISHED = "has finished"


@dataclass(frozen=True)
class InOnePlace:
    """Ranks that are in the same place. ``where``: in words; where they came to it at different times, of the rank that
    is in it longest."""

    ranks: tuple[int, ...]
    standing: Standing
    where: str
    waits_for: tuple[int, ...]


def standings_of(state: RunState) -> dict[int, Standing]:
    """By rank, in the order of the ranks."""
    behind = {rank.rank for rank in state.behind}
    return {
        rank.rank: Standing.AT_FAULT if rank.rank in behind else _standing(rank)
        for rank in sorted(state.by_rank, key=lambda rank: rank.rank)
    }


def places_of(state: RunState) -> list[InOnePlace]:
    """Those at fault first, then the most ranks."""
    standings = standings_of(state)
    together: dict[tuple[object, ...], list[RankState]] = {}
    for rank in sorted(state.by_rank, key=lambda rank: rank.rank):
        place = (rank.state, rank.raised, rank.phase, rank.step, rank.skipped, rank.waits_in, rank.waits_for)
        key = (standings[rank.rank], *place, rank.blocked_in, rank.line)
        together.setdefault(key, []).append(rank)
    found = [_place(standings[ranks[0].rank], ranks) for ranks in together.values()]
    return sorted(found, key=lambda each: (each.standing is not Standing.AT_FAULT, -len(each.ranks), each.ranks))


def standing_picture(state: RunState, theme: Theme) -> Data:
    """The data of ``views/picture.js``: a grid of hosts by ranks."""
    standings = standings_of(state)
    where = {rank.rank: where_words(rank) for rank in state.by_rank}
    at_fault = [rank for rank, standing in standings.items() if standing is Standing.AT_FAULT]
    states = {rank: (standing.value, where[rank]) for rank, standing in standings.items()}
    return grid_of_states(
        states,
        hosts_of(state.path),
        {standing.value: shade for standing, shade in colours_of_standings(theme).items()},
        at_fault,
        theme,
    )


def colours_of_standings(theme: Theme) -> Mapping[Standing, str]:
    """None of those of the parts of a step; those of the matrix of calls for what is the same there."""
    return {
        Standing.AT_FAULT: theme.bad,
        Standing.WAITING: theme.grid,
        Standing.ELSEWHERE: theme.warn,
        Standing.FINISHED: theme.series[0],
    }


def _standing(rank: RankState) -> Standing:
    if rank.state is State.WAITING:
        return Standing.WAITING
    return Standing.FINISHED if rank.state is State.FINISHED else Standing.ELSEWHERE


def _place(standing: Standing, ranks: Sequence[RankState]) -> InOnePlace:
    longest = max(ranks, key=lambda rank: (rank.silent_ns if rank.state is State.STUCK else rank.in_it_ns) or 0)
    where = where_words(longest)
    if any(where_words(rank) != where for rank in ranks):
        where += f" (rank {longest.rank}, the longest)"
    return InOnePlace(tuple(rank.rank for rank in ranks), standing, where, ranks[0].waits_for)
