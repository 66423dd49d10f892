"""When the main line of a rank stood still for which collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from diag.attribution.match import Key
from diag.attribution.timeline import Timeline, kinds_of
from diag.model import CollectiveCall, Kind

_SAME_TIME_NS = 50_000  # the end of a kernel and the start of the one that waited for it, and a thread's wake-up


@dataclass(frozen=True)
class Stop:
    """The rank entered the collective at ``entered_ns``, and its main line waited for it from ``start_ns``. It was done
    on this rank at ``done_ns``, perhaps before the wait began."""

    key: Key
    call: CollectiveCall
    entered_ns: int
    start_ns: int
    done_ns: int

    def after(self, begin_ns: int) -> Stop:
        """The part of it that is later."""
        return replace(self, entered_ns=max(self.entered_ns, begin_ns), start_ns=max(self.start_ns, begin_ns))

    def alone(self, rank: int) -> Stop:
        """As a matter of this rank only."""
        group, number, op = self.key
        return replace(self, key=(group, number, f"{op} of rank {rank}"))


def stops(line: Timeline) -> list[Stop]:
    """One for each call of a rank, by start of the wait; calls that nobody is known to have waited for have one where
    their result was needed at the latest."""
    found: dict[CollectiveCall, Stop] = {}
    for call in line.calls:
        if call.waited_ns is not None:
            start, end = call.waited_ns
            found[call] = _stop(call, start, min(call.end_ns, end))
    unknown = [call for call in line.calls if call.waited_ns is None]
    if unknown:
        found |= _stops_by_exposure(line, unknown)
        found |= _latest(line, [call for call in unknown if call not in found])
    return sorted(found.values(), key=lambda stop: (stop.start_ns, stop.done_ns))


def _stop(call: CollectiveCall, start_ns: int, done_ns: int) -> Stop:
    done = max(done_ns, call.start_ns)
    return Stop(call.key, call, call.start_ns, max(start_ns, call.start_ns), done)


def _stops_by_exposure(line: Timeline, calls: Sequence[CollectiveCall]) -> Mapping[CollectiveCall, Stop]:
    """Exposed communication that ends when a collective ends was a wait for it, and for those that ended within."""
    chosen = kinds_of(line.label) == Kind.COMM
    starts, ends = line.start_ns[chosen], line.end_ns[chosen]
    found = {}
    for call in calls:
        at = int(np.searchsorted(ends, call.end_ns - _SAME_TIME_NS, side="left"))
        # Where the line goes on before the call ends, it did not wait for this one.
        if at < len(ends) and max(starts[at], call.start_ns) < call.end_ns:
            found[call] = _stop(call, int(starts[at]), min(call.end_ns, int(ends[at])))
    return found


def _latest(line: Timeline, calls: Sequence[CollectiveCall]) -> Mapping[CollectiveCall, Stop]:
    """Hidden collectives: a unit's parameters are needed before the next ones are gathered, all else by the end."""
    ordered = sorted(line.calls, key=lambda call: call.start_ns)
    end = int(line.end_ns[-1])
    found = {}
    for call in calls:
        later = (
            other.start_ns
            for other in ordered
            if other.op == call.op and other.group == call.group and other.start_ns >= call.end_ns
        )
        start = next(later, end) if call.op == "all_gather" else end
        found[call] = _stop(call, max(start, call.end_ns), call.end_ns)
    return found
