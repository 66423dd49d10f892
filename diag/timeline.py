"""The timeline of an analysed run, at any zoom: for the dashboard."""

from __future__ import annotations

from diag.api import Result
from diag.tables.zoom import AllRanks, Lane, all_ranks, event_lanes

_RANKS_KEPT = 2  # ranks whose events stay in memory; a rank with a million events takes 50 MB


def timeline_of(result: Result) -> AllRanks:
    """The timeline of every rank; computed on the first call for a result."""
    kept = vars(result)
    if "_timeline" not in kept:
        kept["_timeline"] = all_ranks(result.attribution)
    timeline: AllRanks = kept["_timeline"]
    return timeline


def events_of(result: Result, rank: int) -> tuple[Lane, ...]:
    """The events of a rank's traces on the timeline's clock; those of the last requested ranks stay in memory."""
    events: dict[int, tuple[Lane, ...]] = vars(result).setdefault("_events", {})
    lanes = events.get(rank)
    if lanes is None:
        lanes = event_lanes(result.tables.ranks[rank], timeline_of(result).ranks[rank])
        for before in list(events)[: 1 - _RANKS_KEPT]:
            events.pop(before, None)
        events[rank] = lanes
    return lanes
