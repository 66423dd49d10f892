"""The partition of steps from the collectors' own records, for every step that no trace covers.

The host's phases give data wait, copies and checkpoints; the times in which a thread of the training was blocked in a
collective give exposed communication; the rest of forward, backward and optimizer counts as compute. On a GPU the host
only launches: its phases show the host's activity, not the device's, and communication is not visible (``comm_known``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from diag.account.policy import CLOCKS
from diag.collectors.records import (
    BACKWARD,
    CHECKPOINT,
    DATA,
    FORWARD,
    H2D,
    OPTIMIZER,
    P2P_PREFIX,
    PHASES,
    SEND,
    CollectiveRow,
    Manifest,
    StepRecord,
)
from diag.model.steps import CollectiveCall, Detail, Kind, RankStep, by_causes

from . import intervals as iv
from .intervals import Layer, Painted, disjoint
from .match import ALL_TO_ALL

_TRANSFER = "p2p"  # in the key of recorded sends and receives


def partition(
    rank: int,
    records: Sequence[StepRecord],
    rows: Sequence[CollectiveRow],
    groups: Mapping[str, Sequence[int]],
    on_device: bool,
    idle: Mapping[Detail, iv.Intervals] | None = None,
) -> list[RankStep]:
    """One ``RankStep`` per record, on the rank's own monotonic clock. ``rows`` are all collectives of the rank.
    ``idle``: when the device was idle; given if the records are those of the device (``device_clock``), which computes
    otherwise."""
    calls = calls_of(rows, groups)
    waits = iv.EMPTY if on_device else blocked(rows)
    p2p = iv.EMPTY if on_device else blocked([row for row in rows if is_p2p(row)])
    painted = Painted(disjoint(_layers(records, waits, p2p, idle)))
    on_wire = iv.union(iv.make((call.start_ns, call.end_ns) for call in calls if not is_transfer(call)), waits)
    begins, ends = (np.array([getattr(r, key) for r in records], dtype=np.int64) for key in ("begin_ns", "end_ns"))
    wired = iv.Covered(on_wire).between(begins, ends).tolist()
    starts, until = (np.array([getattr(c, key) for c in calls], dtype=np.int64) for key in ("start_ns", "end_ns"))
    # Calls may end in any order: those before the first one that reaches into the step need not be looked at.
    reaching = np.searchsorted(np.maximum.accumulate(until), begins, side="right").tolist()
    begun = np.searchsorted(starts, ends, side="right").tolist()
    whole = all(row.whole for row in rows)
    segments = painted.cut(begins, ends)
    spent = by_causes(segments)
    steps = []
    for at, (record, pieces, on_wire_ns) in enumerate(zip(records, segments, wired, strict=True)):
        # The call of the last rank to arrive has no duration if the transfer takes no time. At the edge of two steps it
        # belongs to the first: if it were in neither, only the other ranks would have met.
        near = slice(reaching[at], begun[at])
        inside = (starts[near] < record.end_ns) | (starts[near] == until[near])
        inside_step = (reaching[at] + np.flatnonzero(inside & (until[near] > record.begin_ns))).tolist()
        steps.append(
            RankStep(
                rank=rank,
                step=record.step,
                begin_ns=record.begin_ns,
                end_ns=record.end_ns,
                source="records" if idle is None else "events",
                segments=pieces,
                overlapped_comm_ns=max(0, on_wire_ns - int(spent[at, Kind.COMM].sum())),
                optimizer_ns=int(spent[at, Kind.COMPUTE, Detail.OPTIMIZER]),
                collectives=tuple(calls[i] for i in inside_step),
                comm_known=not on_device,
                hidden_known=whole,
            )
        )
    return steps


def calls_of(rows: Sequence[CollectiveRow], groups: Mapping[str, Sequence[int]]) -> list[CollectiveCall]:
    """The collectives, sends and receives whose end is known, in order of start."""
    # For each group, read once: its ranks, its name, and whether it is of sends and receives. Two groups of one name (a
    # mesh axis has the same name in all its groups) differ in their first member.
    known: dict[str, tuple[tuple[int, ...], str, bool]] = {}
    calls = []
    for row in rows:
        if row.end_ns is None:
            continue
        if row.group not in known:
            ranks = tuple(groups.get(row.group, ()))
            known[row.group] = ranks, f"{row.group}@{ranks[0]}" if ranks else row.group, is_p2p(row)
        ranks, group, p2p = known[row.group]
        if p2p:
            calls.append(_transfer(row, ranks))
            continue
        calls.append(
            CollectiveCall(
                (group, row.seq, row.op),
                row.op,
                group,
                ranks,
                row.bytes if row.whole else 0,  # a sum over several calls, which took longer than recorded
                row.start_ns,
                row.end_ns,
                dtype=row.dtype,
                group_size=len(ranks),
                waited_ns=_waited(row),
                sent_bytes=row.bytes if row.op == ALL_TO_ALL else None,
                received_bytes=row.received_bytes,
            )
        )
    return sorted(calls, key=lambda call: call.start_ns)


def is_p2p(row: CollectiveRow) -> bool:
    return row.group.startswith(P2P_PREFIX)


def is_transfer(call: CollectiveCall) -> bool:
    """Whether the call is a recorded send or receive. When its bytes were on the wire is unknown except for the time in
    which a thread was blocked in it: an early receive is open for long, and the arrival of its data is not recorded."""
    return call.key[2] == _TRANSFER


def open_span(call: CollectiveCall) -> tuple[int, int]:
    """When a rank could be blocked in the call."""
    if is_transfer(call):
        return call.waited_ns or (call.start_ns, call.start_ns)
    return call.start_ns, call.end_ns


def open_spans(calls: Sequence[CollectiveCall]) -> iv.Times:
    """``open_span`` of each call, [calls, 2]: a third of the time of single calls, as there are tens of thousands."""
    spans = np.empty((len(calls), 2), dtype=np.int64)
    spans[:, 0] = [call.start_ns for call in calls]
    spans[:, 1] = [call.end_ns for call in calls]
    for at in [at for at, call in enumerate(calls) if call.key[2] == _TRANSFER]:
        spans[at] = open_span(calls[at])
    return spans


def _transfer(row: CollectiveRow, ranks: tuple[int, ...]) -> CollectiveCall:
    """A send and its receive have one key. A send that was only handed over was not waited for."""
    waited = _waited(row)
    if row.op == SEND and waited is not None and waited[1] - waited[0] < CLOCKS.blocked_ns:
        waited = None
    return CollectiveCall(
        (row.group, row.seq, _TRANSFER),
        row.op,
        row.group,
        ranks,
        row.bytes,
        row.start_ns,
        row.end_ns or row.start_ns,
        dtype=row.dtype,
        group_size=len(ranks),
        waited_ns=waited,
    )


def blocked(rows: Sequence[CollectiveRow]) -> iv.Intervals:
    return iv.make(waited for row in rows if (waited := _waited(row)) is not None)


def _waited(row: CollectiveRow) -> tuple[int, int] | None:
    if row.wait_start_ns is None or row.wait_end_ns is None:
        return None
    return row.wait_start_ns, row.wait_end_ns


def _layers(
    records: Sequence[StepRecord],
    waits: iv.Intervals,
    p2p: iv.Intervals,
    idle: Mapping[Detail, iv.Intervals] | None,
) -> list[Layer]:
    """Activity by priority. ``p2p``: the part of the waits for a peer's message."""
    rows = [row for record in records for row in record.phases]
    spans = {name: iv.make((row.start_ns, row.end_ns) for row in rows if row.phase == name) for name in PHASES}
    whole = iv.EMPTY if idle is None else iv.make((record.begin_ns, record.end_ns) for record in records)
    return [
        Layer(Kind.DATA, Detail.NONE, spans[DATA]),
        Layer(Kind.CHECKPOINT, Detail.NONE, spans[CHECKPOINT]),
        Layer(Kind.COPY, Detail.NONE, spans[H2D]),
        Layer(Kind.COMM, Detail.P2P, p2p),
        Layer(Kind.COMM, Detail.NONE, waits),
        Layer(Kind.IDLE, Detail.GC, iv.make(pause for record in records for pause in record.gc)),
        *(Layer(Kind.IDLE, detail, during) for detail, during in (idle or {}).items()),
        Layer(Kind.COMPUTE, Detail.FORWARD, spans[FORWARD]),
        Layer(Kind.COMPUTE, Detail.BACKWARD, spans[BACKWARD]),
        Layer(Kind.COMPUTE, Detail.OPTIMIZER, spans[OPTIMIZER]),
        Layer(Kind.COMPUTE, Detail.NONE, whole),
    ]


# -- loader settings ---------------------------------------------------------------------------------------------------
#
# The manifest's settings of the training's DataLoader: options of the bundled trainer, or recorded by the hooks.


class LoaderSettings(Struct, frozen=True):
    """Settings of each rank's loader; None if unknown. ``workers``: its processes, 0 if the training loads its batches
    itself. ``prefetch_factor``: batches that each worker keeps ready. ``pin_memory``: batches are page-locked."""

    workers: int | None
    prefetch_factor: int | None
    pin_memory: bool | None


def loader_settings(manifest: Manifest | None) -> LoaderSettings:
    """Values that are not integers or booleans count as unknown."""
    settings = {**manifest.loader, **manifest.trainer} if manifest is not None else {}
    workers, factor, pinned = (settings.get(name) for name in ("num_workers", "prefetch_factor", "pin_memory"))
    return LoaderSettings(
        workers if isinstance(workers, int) else None,
        factor if isinstance(factor, int) else None,
        pinned if isinstance(pinned, bool) else None,
    )
