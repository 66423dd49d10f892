"""The critical path of one step across all ranks, walked backwards from the last rank's end (science.md 2.6)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diag.attribution.match import Key
from diag.attribution.timeline import Timeline, of_label
from diag.model import CollectiveCall, Kind, PathPiece, RankStep

# A wait shorter than this is the noise of two clocks readings and a thread's wake-up, not a reason to change ranks.
EPSILON_NS = 50_000


@dataclass(frozen=True)
class Walk:
    """The path, first piece first."""

    pieces: tuple[PathPiece, ...]

    @property
    def dur_ns(self) -> int:
        return sum(piece.dur_ns for piece in self.pieces)

    def held_up_at(self, arrivals: Iterable[tuple[Key, int, int]]) -> list[Key]:
        """The collectives whose last rank was on the path when it arrived: (key, last rank, arrival) in, keys out."""
        starts = [piece.start_ns for piece in self.pieces]
        found = []
        for key, rank, arrival in arrivals:
            # An arrival is where a piece ends; the next one is the transfer, or the wait of somebody who came earlier.
            index = bisect_left(starts, arrival) - 1
            near = self.pieces[max(index, 0) : index + 2]
            if any(p.rank == rank and p.start_ns <= arrival <= p.end_ns for p in near):
                found.append(key)
        return found


def walk(
    steps: Mapping[int, RankStep],
    timelines: Mapping[int, Timeline],
    matched: Mapping[Key, Mapping[int, CollectiveCall]],
) -> Walk:
    """``steps``: rank to its part of this step, on the common clock. The pieces are consecutive in time."""
    rank = max(steps, key=lambda r: (steps[r].end_ns, -r))
    time = steps[rank].end_ns
    pieces: list[PathPiece] = []
    seen: set[Key] = set()
    while time > steps[rank].begin_ns:
        index = timelines[rank].segment_before(time)
        if index is None:
            break
        line = timelines[rank]
        start = max(int(line.start_ns[index]), steps[rank].begin_ns)
        kind, detail = of_label(int(line.label[index]))
        if kind != Kind.COMM:
            pieces.append(PathPiece(rank, start, time, kind, detail))
            time = start
            continue
        call = line.releasing_call(start, time)
        if call is not None and start < call.start_ns < time:
            start = call.start_ns  # one stretch of communication, several collectives one after the other
        key = call.key if call is not None else None
        last = _last_to_arrive(matched.get(key, {}), steps) if key is not None and key not in seen else None
        if key is not None:
            seen.add(key)
        if last is None or last[0] == rank or min(last[1], time) - start <= EPSILON_NS:
            pieces.append(PathPiece(rank, start, time, kind, detail, key))
            time = start
            continue
        arrival = min(last[1], time)
        if arrival < time:
            pieces.append(PathPiece(rank, arrival, time, kind, detail, key))
        rank, time = last[0], arrival
    return Walk(tuple(reversed(pieces)))


def _last_to_arrive(members: Mapping[int, CollectiveCall], steps: Mapping[int, RankStep]) -> tuple[int, int] | None:
    """Rank and time of the last arrival among the ranks of this step; None where fewer than two took part."""
    arrivals = [(call.start_ns, rank) for rank, call in members.items() if rank in steps]
    if len(arrivals) < 2:
        return None
    time, rank = max(arrivals)
    return rank, time
