"""The critical path of one step across all ranks, walked backwards from the last rank's end (science.md 2.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diag.attribution.match import Key
from diag.attribution.timeline import Timeline, of_label
from diag.model import CollectiveCall, Detail, Kind, PathPiece, RankStep

# A wait shorter than this is the noise of two clocks readings and a thread's wake-up, not a reason to change ranks.
EPSILON_NS = 50_000


@dataclass(frozen=True)
class Walk:
    """The path, first piece first, and the collectives at which the ranks on it met the others."""

    pieces: tuple[PathPiece, ...]
    met: tuple[Key, ...]

    @property
    def dur_ns(self) -> int:
        return sum(piece.dur_ns for piece in self.pieces)


def walk(
    steps: Mapping[int, RankStep],
    timelines: Mapping[int, Timeline],
    matched: Mapping[Key, Mapping[int, CollectiveCall]],
) -> Walk:
    """``steps``: rank to its part of this step, on the common clock. The pieces are consecutive in time."""
    rank = max(steps, key=lambda r: (steps[r].end_ns, -r))
    time = steps[rank].end_ns
    pieces: list[PathPiece] = []
    met: list[Key] = []
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
        members = {r: c for r, c in matched[call.key].items() if r in steps} if call and call.key in matched else {}
        if call is None or len(members) < 2 or call.key in seen:
            pieces.append(PathPiece(rank, start, time, kind, detail, call.key if call else None))
            time = start
            continue
        seen.add(call.key)
        met.append(call.key)
        last = max(members, key=lambda r: (members[r].start_ns, r))
        arrival = min(members[last].start_ns, time)
        if last == rank or arrival - max(start, members[rank].start_ns) <= EPSILON_NS:
            pieces.append(PathPiece(rank, start, time, kind, detail, call.key))
            time = start
            continue
        if arrival < time:
            pieces.append(PathPiece(rank, arrival, time, Kind.COMM, Detail.NONE, call.key))
        rank, time = last, arrival
    return Walk(tuple(reversed(pieces)), tuple(reversed(met)))
