"""How long each collective was on the wire, with its time in the queue behind others of its group taken off."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct

from diag.account.match import Key
from diag.model.steps import CollectiveCall
from diag.replay.program import Collective


class Meeting(Struct, frozen=True):
    """One collective across the ranks: when each entered it and when it was done there. ``call``: anybody's part."""

    key: Key
    call: CollectiveCall
    start_ns: Mapping[int, int]
    done_ns: Mapping[int, int]

    @property
    def arrival_ns(self) -> int:
        return max(self.start_ns.values())

    @property
    def first_done_ns(self) -> int:
        return min(self.done_ns.values())


def transfers(meetings: Iterable[Meeting], latency_overlaps: bool) -> list[Collective]:
    """The collectives with the transfer that, replayed, ends them when they ended.

    Collectives of one group follow each other on a rank's wire (science.md 3.1). ``latency_overlaps``: only their bytes
    do; gloo works at two collectives of a group at a time, NCCL's kernels share a stream.
    """
    ordered = sorted(meetings, key=lambda m: (m.arrival_ns, m.first_done_ns, m.key))
    queue = _queues(ordered)
    latency = _latencies(ordered, queue) if latency_overlaps else {}
    found = []
    for meeting in ordered:
        call, free = meeting.call, queue[meeting.key]
        after_arrival = meeting.first_done_ns - meeting.arrival_ns
        shared = latency.get(call.group, 0)
        transfer = max(0, min(after_arrival, meeting.first_done_ns - free + shared))
        found.append(
            Collective(
                key=meeting.key,
                op=call.op,
                group=call.group,
                bytes=call.bytes,
                dtype=call.dtype,
                step=-1,
                transfer_ns=transfer,
                tail_ns={rank: done - meeting.first_done_ns for rank, done in meeting.done_ns.items()},
                latency_ns=min(shared, transfer),
            )
        )
    return found


def _queues(ordered: Iterable[Meeting]) -> dict[Key, int]:
    """For each collective, when the wires of its ranks were done with the ones before."""
    free: dict[tuple[int, str], int] = {}
    found = {}
    for meeting in ordered:
        wires = [(rank, meeting.call.group) for rank in meeting.start_ns]
        found[meeting.key] = max(free.get(wire, 0) for wire in wires)
        for wire in wires:
            free[wire] = max(free.get(wire, 0), meeting.done_ns[wire[0]])
    return found


def _latencies(ordered: Iterable[Meeting], queue: Mapping[Key, int]) -> dict[str, int]:
    """By group, the median transfer of the smallest size that did not queue: what a collective of no size would take,
    or more."""
    alone: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for meeting in ordered:
        if meeting.call.bytes > 0 and queue[meeting.key] <= meeting.arrival_ns:
            sizes = alone[meeting.call.group]
            sizes[meeting.call.bytes].append(max(0, meeting.first_done_ns - meeting.arrival_ns))
    return {group: int(np.median(sizes[min(sizes)])) for group, sizes in alone.items()}
