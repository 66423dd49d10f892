"""When the main line of a rank stood still for which collective."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diag.account.match import Key
from diag.account.timeline import Timeline, kinds_of
from diag.model.steps import CollectiveCall, Kind

_SAME_TIME_NS = 50_000  # the end of a kernel and the start of the one that waited for it, and a thread's wake-up

_QUEUED_NS = 20_000


class Stop(Struct, frozen=True):
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


def stops(line: Timeline, step_ends_ns: Sequence[int]) -> list[Stop]:
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
        found |= _latest(line, [call for call in unknown if call not in found], step_ends_ns)
    return sorted(found.values(), key=lambda stop: (stop.start_ns, stop.done_ns))


def queued(found: Sequence[Stop]) -> list[Stop]:
    """The same, but kernels that follow each other at once on one stream count as entered when the first was: a kernel
    begins when its stream is free, not when it is issued."""
    last: dict[str, tuple[int, int]] = {}  # group: when its wire was done, and when that one was entered
    entered: dict[Key, int] = {}
    for stop in sorted(found, key=lambda stop: stop.entered_ns):
        done, before = last.get(stop.call.group, (0, 0))
        entered[stop.key] = before if done <= stop.entered_ns <= done + _QUEUED_NS else stop.entered_ns
        last[stop.call.group] = (max(done, stop.done_ns), entered[stop.key])
    return [replace(stop, entered_ns=entered[stop.key]) for stop in found]


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


def _latest(
    line: Timeline, calls: Sequence[CollectiveCall], step_ends_ns: Sequence[int]
) -> Mapping[CollectiveCall, Stop]:
    """Hidden collectives: parameters are needed before the next ones are gathered, all else by the end of the step."""
    starts: dict[tuple[str, str], list[int]] = defaultdict(list)
    for call in line.calls:
        starts[call.op, call.group].append(call.start_ns)
    ordered = {key: sorted(own) for key, own in starts.items()}
    found = {}
    for call in calls:
        end = step_ends_ns[min(bisect_left(step_ends_ns, call.end_ns), len(step_ends_ns) - 1)]
        later = ordered[call.op, call.group]
        at = bisect_left(later, call.end_ns)
        needed = later[at] if call.op == "all_gather" and at < len(later) else end
        found[call] = _stop(call, max(needed, call.end_ns), call.end_ns)
    return found
