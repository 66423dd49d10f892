"""The partition of steps from the collectors' own records, for every step that no trace covers.

The host's phases give data wait, copies and checkpoints; the times in which a thread of the training was blocked in a
collective give exposed communication; the rest of forward, backward and optimizer counts as compute. On a GPU the host
only launches: its phases show the host's activity, not the device's, and communication is not visible (``comm_known``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from diag.account.policy import CLOCKS, CRITICAL_PATH
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
from diag.model import UNKNOWN
from diag.model.steps import CollectiveCall, Detail, Kind, RankStep, by_causes
from diag.rundir.columns import Rows, Steps, is_named, places_from

from . import intervals as iv
from .calls import Calls, Group, Some
from .intervals import Layer, Painted, disjoint
from .match import ALL_TO_ALL

TRANSFER = "p2p"  # in the key of recorded sends and receives


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
    recorded, rows = Steps.of(records), Rows.of(rows)
    begins, ends = recorded.begin_ns, recorded.end_ns
    calls = calls_of(rows, groups)
    waits = iv.EMPTY if on_device else blocked(rows)
    p2p = iv.EMPTY if on_device else blocked(rows.take(rows.of_groups(P2P_PREFIX)))
    painted = Painted(disjoint(_layers(recorded, waits, p2p, idle)))
    spans = np.stack((calls.start_ns, calls.end_ns), axis=1)
    on_wire = iv.union(spans[~calls.labelled(TRANSFER)], waits)
    wired = iv.Covered(on_wire).between(begins, ends)
    whole = bool(rows.whole.all())
    segments = painted.cut(begins, ends)
    spent = by_causes(segments)
    hidden = np.maximum(0, wired - spent[:, Kind.COMM].sum(axis=1))
    optimizing = spent[:, Kind.COMPUTE, Detail.OPTIMIZER]
    source = "records" if idle is None else "events"
    columns = (column.tolist() for column in (recorded.step, begins, ends, hidden, optimizing))
    return [
        RankStep(
            rank=rank,
            step=step,
            begin_ns=begin,
            end_ns=end,
            source=source,
            segments=pieces,
            overlapped_comm_ns=hidden_ns,
            optimizer_ns=optimizer_ns,
            collectives=Some(calls, inside),
            comm_known=not on_device,
            hidden_known=whole,
        )
        for step, begin, end, hidden_ns, optimizer_ns, pieces, inside in zip(
            *columns, segments, _inside(calls, begins, ends), strict=True
        )
    ]


def _inside(calls: Calls, begins: iv.Times, ends: iv.Times) -> Iterator[iv.Times]:
    """Of each step, the places of the calls in it. ``calls``: in order of their starts."""
    starts, until = calls.start_ns, calls.end_ns
    # Calls may end in any order: those before the first one that reaches into the step need not be looked at.
    first = np.searchsorted(np.maximum.accumulate(until), begins, side="right")
    counts = np.maximum(np.searchsorted(starts, ends, side="right") - first, 0)
    batch = np.cumsum(counts) // CRITICAL_PATH.pairs_at_once
    for of_batch in np.split(np.arange(len(begins)), np.flatnonzero(np.diff(batch)) + 1):
        near = counts[of_batch]
        step = np.repeat(of_batch, near)
        at = places_from(first[of_batch], near)
        # The call of the last rank to arrive has no duration if the transfer takes no time. At the edge of two steps it
        # belongs to the first: if it were in neither, only the other ranks would have met.
        inside = ((starts[at] < ends[step]) | (starts[at] == until[at])) & (until[at] > begins[step])
        edges = np.searchsorted(step[inside], np.append(of_batch, len(begins))).tolist()
        places = at[inside]
        yield from (places[i:j] for i, j in pairwise(edges))


def calls_of(rows: Sequence[CollectiveRow], groups: Mapping[str, Sequence[int]]) -> Calls:
    """The collectives, sends and receives whose end is known, in order of start.

    A send and its receive have one key. A send that was only handed over was not waited for."""
    rows = Rows.of(rows)
    rows = rows.take(rows.end_ns != UNKNOWN).sorted_by("start_ns")
    transfer = rows.of_groups(P2P_PREFIX)
    # Two groups of one name (a mesh axis has the same name in all its groups) differ in their first member.
    known: list[Group] = []
    for name in rows.names:
        ranks = tuple(groups.get(name, ()))
        qualified = name if name.startswith(P2P_PREFIX) or not ranks else f"{name}@{ranks[0]}"
        known.append(Group(qualified, ranks, len(ranks)))
    names = (*rows.names, TRANSFER)
    exchanged, sent = (is_named(rows.op, rows.names, op) for op in (ALL_TO_ALL, SEND))
    waited = rows.waited & ~(transfer & sent & (rows.wait_end_ns - rows.wait_start_ns < CLOCKS.blocked_ns))
    return Calls(
        group=rows.group,
        seq=rows.seq,
        label=np.where(transfer, len(names) - 1, rows.op).astype(np.int32),
        op=rows.op,
        # The sum over several calls took longer than recorded.
        bytes=np.where(transfer | rows.whole, rows.bytes, 0),
        dtype=rows.dtype,
        start_ns=rows.start_ns,
        end_ns=rows.end_ns,
        inferred=np.broadcast_to(np.False_, len(rows)),
        wait_start_ns=np.where(waited, rows.wait_start_ns, UNKNOWN),
        wait_end_ns=np.where(waited, rows.wait_end_ns, UNKNOWN),
        sent_bytes=np.where(exchanged & ~transfer, rows.bytes, UNKNOWN),
        received_bytes=np.where(transfer, UNKNOWN, rows.received_bytes),
        groups=tuple(known),
        names=names,
    )


def is_transfer(call: CollectiveCall) -> bool:
    """Whether the call is a recorded send or receive. When its bytes were on the wire is unknown except for the time in
    which a thread was blocked in it: an early receive is open for long, and the arrival of its data is not recorded."""
    return call.key[2] == TRANSFER


def open_span(call: CollectiveCall) -> tuple[int, int]:
    """When a rank could be blocked in the call."""
    if is_transfer(call):
        return call.waited_ns or (call.start_ns, call.start_ns)
    return call.start_ns, call.end_ns


def open_spans(calls: Calls) -> tuple[iv.Times, iv.Times]:
    """``open_span`` of each call: all begins, and all ends."""
    transfer, waited = calls.labelled(TRANSFER), calls.waited
    start: iv.Times = np.where(transfer & waited, calls.wait_start_ns, calls.start_ns)
    end: iv.Times = np.where(transfer, np.where(waited, calls.wait_end_ns, calls.start_ns), calls.end_ns)
    return start, end


def blocked(rows: Sequence[CollectiveRow]) -> iv.Intervals:
    """When a thread of the training waited for a collective."""
    rows = Rows.of(rows)
    waited = rows.waited
    return iv.make(np.stack((rows.wait_start_ns[waited], rows.wait_end_ns[waited]), axis=1))


def _layers(
    records: Steps,
    waits: iv.Intervals,
    p2p: iv.Intervals,
    idle: Mapping[Detail, iv.Intervals] | None,
) -> list[Layer]:
    """Activity by priority. ``p2p``: the part of the waits for a peer's message."""
    phases = np.stack((records.phases.left, records.phases.right), axis=1)
    spans = {name: iv.make(phases[records.in_phases(name)]) for name in PHASES}
    pauses = iv.make(np.stack((records.gc.left, records.gc.right), axis=1))
    whole = iv.EMPTY if idle is None else iv.make(np.stack((records.begin_ns, records.end_ns), axis=1))
    return [
        Layer(Kind.DATA, Detail.NONE, spans[DATA]),
        Layer(Kind.CHECKPOINT, Detail.NONE, spans[CHECKPOINT]),
        Layer(Kind.COPY, Detail.NONE, spans[H2D]),
        Layer(Kind.COMM, Detail.P2P, p2p),
        Layer(Kind.COMM, Detail.NONE, waits),
        Layer(Kind.IDLE, Detail.GC, pauses),
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
