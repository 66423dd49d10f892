"""One step of a rank on its device's clock, condensed for the rank's summary (``step_lines``).

The collectors record an event on the training's stream at each edge of a phase, and where that stream waits for a
collective. ``diag.account.device_clock`` reads the same records in full; what both must agree on is here.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from .policy import RECORDING
from .records import CHECKPOINT, DATA, H2D, P2P_PREFIX, CollectiveRow, DeviceCall, DeviceStepRecord, StepRecord

NOTHING_LAUNCHED = (DATA, H2D, CHECKPOINT)  # phases in which the host launches no kernels
Span = tuple[int, int]


def in_order(record: DeviceStepRecord) -> bool:
    """Whether a record is plausible: no event was passed before one that must come first."""
    phases = all(0 <= row.start_ns <= row.end_ns <= record.dur_ns for row in record.phases)
    calls = all(
        (call.own_stream or call.start_ns >= 0)  # another stream may be ahead of the one that begins the step
        and call.start_ns <= call.end_ns
        and (call.wait_start_ns is None or 0 <= call.wait_start_ns <= (call.wait_end_ns or 0))
        for call in record.collectives
    )
    return record.dur_ns > 0 and phases and calls


def blocked_by(call: DeviceCall) -> Span | None:
    """When a collective blocked the training's stream, since the step began; None where that is not known, or nothing
    waited for it. After the collective the stream may have waited for a copy of its result."""
    if call.wait_start_ns is not None and call.wait_end_ns is not None:
        until = min(call.wait_end_ns, call.end_ns) if call.own_stream else call.wait_end_ns
        return call.wait_start_ns, max(call.wait_start_ns, until)
    return None if call.own_stream else (call.start_ns, call.end_ns)


def edges(host: StepRecord, record: DeviceStepRecord) -> tuple[list[int], list[int]]:
    """When the host recorded the events of the step, and when the device passed them, relative to the first. Without
    the phases if the two records have different ones (a graph was captured)."""
    at, since = [host.begin_ns, host.end_ns], [0, record.dur_ns]
    if [row.phase for row in host.phases] == [row.phase for row in record.phases]:
        for row, passed in zip(host.phases, record.phases, strict=True):
            at += [row.start_ns, row.end_ns]
            since += [passed.start_ns, passed.end_ns]
    return at, since


class DeviceBegins:
    """When the device begins one step after the other, on the host's clock. It passes no event before the host has
    recorded it, and works without a pause from one step to the next."""

    def __init__(self) -> None:
        self._last: Span | None = None  # begin and end of the step before

    def of(self, at: Sequence[int], since: Sequence[int], dur_ns: int) -> int:
        """``at``, ``since``: see ``edges``. A long step may drift by more than the duration of a very short one before
        it."""
        least = max(recorded - passed for recorded, passed in zip(at, since, strict=True))
        begin = least
        if self._last is not None:
            began, ended = self._last
            begin = max(least, ended - round(RECORDING.device_drift * dur_ns), began)
        self._last = begin, begin + dur_ns
        return begin


def not_launched(at: Sequence[int], since: Sequence[int], begin: int) -> Iterator[Span]:
    """From one event to the next on the device, until the host recorded the later one: before that, it had not launched
    all work between them. Since the step began."""
    order = sorted(range(len(since)), key=since.__getitem__)
    for earlier, later in pairwise(order):
        until = min(since[later], at[later] - begin)
        if until > since[earlier]:
            yield since[earlier], until


def unlaunched_ns(record: DeviceStepRecord, late: Iterator[Span], waits: Sequence[Span]) -> int:
    """How much of ``late`` the device was neither blocked in collectives nor in a phase in which nothing is launched.
    ``waits``: by start."""
    known = sorted([*waits, *((p.start_ns, p.end_ns) for p in record.phases if p.phase in NOTHING_LAUNCHED)])
    total = 0
    for start, end in late:
        position = start
        for begin, until in known:
            if begin >= end:
                break
            total += max(0, min(begin, end) - position)
            position = max(position, until)
        total += max(0, end - position)
    return total


class WaitsSeen:
    """Of the calls of each group and operation, how many had a wait that was observed on the device. Others are waited
    for in C++, in compiled code, in a graph, or in a later step."""

    def __init__(self) -> None:
        self._called: Counter[tuple[str, str]] = Counter()
        self._seen: Counter[tuple[str, str]] = Counter()

    def add(self, host: StepRecord, record: DeviceStepRecord, rows: Sequence[CollectiveRow]) -> None:
        """``rows``: the calls of the step, in order. For two consecutive calls in one phase, a wait for the second is
        enough: HSDP all-reduces the result of its reduce-scatter, and waits for that."""
        waited = {
            (call.group, call.seq)
            for call in record.collectives
            if not call.own_stream or call.wait_start_ns is not None
        }
        bounds = sorted(ns for row in host.phases for ns in (row.start_ns, row.end_ns))
        places = [bisect(bounds, row.start_ns) for row in rows]
        for at, row in enumerate(rows):
            follows = at + 1 < len(rows) and places[at + 1] == places[at]
            following = rows[at + 1] if follows else row
            self._called[row.group, row.op] += 1
            self._seen[row.group, row.op] += (row.group, row.seq) in waited or (
                following.group,
                following.seq,
            ) in waited

    @property
    def part(self) -> float:
        """For the kind with the smallest part; 0 without calls, and with messages between two ranks."""
        if not self._called or any(group.startswith(P2P_PREFIX) for group, _ in self._called):
            return 0.0
        return min(self._seen[kind] / count for kind, count in self._called.items())
