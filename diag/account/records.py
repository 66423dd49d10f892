"""The partition of steps from the collectors' own records, for every step that no trace covers.

The host's phases give data wait, copies and checkpoints; the times in which a thread of the training was blocked in a
collective give exposed communication; the rest of forward, backward and optimizer counts as compute. On a GPU the host
only launches: its phases show the host's activity, not the device's, and communication is not visible (``comm_known``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account.policy import CLOCKS, CRITICAL_PATH
from diag.collectors.records import (
    ALL_TO_ALL,
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
)
from diag.model import UNKNOWN
from diag.model.ragged import edges_of, is_named, places_from
from diag.model.steps import Detail, Kind, by_details, by_kinds
from diag.rundir.columns import Ragged, Rows, Steps

from . import intervals as iv
from .calls import Calls, Group, some_of
from .intervals import Layer, Painted, disjoint
from .rank_steps import SOURCES, RankSteps

TRANSFER = "p2p"  # in the key of recorded sends and receives


class Recorded(NamedTuple):
    """What a rank recorded. ``rows``: all of its collectives. ``idle``: when its device was idle; given if the records
    are those of the device (``device_clock``), which computes otherwise."""

    rank: int
    steps: Steps
    rows: Rows
    groups: Mapping[str, Sequence[int]]
    on_device: bool
    idle: Mapping[Detail, iv.Intervals] | None = None


def partition(ranks: Sequence[Recorded]) -> Iterator[RankSteps]:
    """For each rank a step per record, on the rank's own monotonic clock.

    The ranks are laid one after the other on one line of time, so that each operation is done once for many of them."""
    batch: list[_OnLine] = []
    reach = size = 0
    for recorded in ranks:
        one = _OnLine(recorded)
        together = not batch or (
            one.layers == batch[0].layers
            and reach + one.length_ns < _END_OF_LINE
            and size + one.size <= CRITICAL_PATH.numbers_at_once
        )
        if not together:
            yield from _partition(batch)
            batch, reach, size = [], 0, 0
        batch.append(one)
        reach, size = reach + one.length_ns, size + one.size
    yield from _partition(batch)


_END_OF_LINE = 1 << 62  # of a sum of times, which int64 holds


class _OnLine:
    """A rank's records, and how much of the line they take."""

    def __init__(self, recorded: Recorded) -> None:
        steps, self.recorded = recorded.steps, recorded
        self.calls = calls_of(recorded.rows, recorded.groups)
        self.layers = None if recorded.idle is None else tuple(recorded.idle)
        self.size = len(steps.phases.left) + len(self.calls)
        # Activity outside of the steps does not count. Calls keep all of their time: some end after the last step.
        self.begin_ns, self.end_ns = (int(steps.begin_ns.min()), int(steps.end_ns.max())) if len(steps) else (0, 0)
        self.first_ns = int(self.calls.start_ns.min(initial=self.begin_ns))
        self.length_ns = int(self.calls.end_ns.max(initial=self.end_ns)) - self.first_ns + 2


class _Line:
    """Ranks one after the other. ``shift_ns``: by rank, added to its times."""

    def __init__(self, ranks: Sequence[_OnLine]) -> None:
        self.ranks = ranks
        self.shift_ns = np.zeros(1, dtype=np.int64)  # one rank keeps its own times
        if len(ranks) > 1:
            begins = np.cumsum([0, *(rank.length_ns for rank in ranks[:-1])], dtype=np.int64)
            self.shift_ns = begins - np.array([rank.first_ns for rank in ranks], dtype=np.int64)
        self._begin_ns, self._end_ns = (
            np.array([getattr(rank, name) for rank in ranks], dtype=np.int64) for name in ("begin_ns", "end_ns")
        )

    def of_each(self, column: Callable[[_OnLine], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return np.concatenate([column(rank) for rank in self.ranks])

    def shift_of(self, counts: Sequence[int]) -> iv.Times:
        """For so many values of each rank."""
        return np.repeat(self.shift_ns, counts)

    def moved(self, column: Callable[[_OnLine], iv.Times]) -> iv.Times:
        """A column of times on the line."""
        columns = [column(rank) for rank in self.ranks]
        times: iv.Times = np.concatenate(columns) + self.shift_of(list(map(len, columns)))
        return times

    def spans(self, of_rank: Callable[[_OnLine], iv.Intervals]) -> iv.Intervals:
        """Any pairs of times, as far as they lie between the rank's first and last step."""
        pairs = [of_rank(rank) for rank in self.ranks]
        counts = list(map(len, pairs))
        low, high = (np.repeat(edge, counts)[:, None] for edge in (self._begin_ns, self._end_ns))
        inside: iv.Intervals = np.clip(np.concatenate(pairs), low, high) + self.shift_of(counts)[:, None]
        return inside


def _partition(ranks: Sequence[_OnLine]) -> Iterator[RankSteps]:
    if not ranks:
        return
    line = _Line(ranks)
    begins = line.moved(lambda rank: rank.recorded.steps.begin_ns)
    ends = line.moved(lambda rank: rank.recorded.steps.end_ns)
    waits = iv.make(line.spans(lambda rank: _waits(rank.recorded)))
    p2p = iv.make(line.spans(lambda rank: _waits(rank.recorded, P2P_PREFIX)))
    painted = Painted(disjoint(_layers(line, waits, p2p)))
    on_wire = iv.union(line.spans(_wired), waits)
    wired = iv.Covered(on_wire).between(begins, ends)
    pieces = painted.cut(begins, ends)
    hidden = np.maximum(0, wired - by_kinds(pieces)[:, Kind.COMM])
    optimizing = by_details(pieces, Kind.COMPUTE)[:, Detail.OPTIMIZER]
    steps_of = [len(rank.recorded.steps) for rank in ranks]
    shift = np.repeat(line.shift_of(steps_of), np.diff(pieces.edges))
    own = pieces.moved(pieces.every.start_ns - shift, pieces.every.end_ns - shift)
    inside, inside_edges = _inside(line, begins, ends, steps_of)
    first = 0
    for rank, steps in zip(ranks, steps_of, strict=True):
        recorded, of_rank = rank.recorded, slice(first, first + steps)
        edges = inside_edges[first : first + steps + 1]
        calls, places = some_of(rank.calls, inside[edges[0] : edges[-1]])
        none, every = np.zeros(steps, dtype=np.int64), np.ones(steps, dtype=np.bool_)
        yield RankSteps(
            rank=np.full(steps, recorded.rank),
            step=recorded.steps.step,
            begin_ns=recorded.steps.begin_ns,
            end_ns=recorded.steps.end_ns,
            source=np.full(steps, SOURCES.index("records" if recorded.idle is None else "events"), dtype=np.int8),
            segments=own.take(of_rank),
            overlapped_comm_ns=hidden[of_rank],
            optimizer_ns=optimizing[of_rank],
            calls=calls,
            places=places,
            place_edges=edges - edges[0],
            comm_known=every & (not recorded.on_device),
            hidden_known=every & bool(recorded.rows.whole.all()),
            pieces=none,
            fused_ns=none,
            beneath_ns=none,
            waits_known=every,
        )
        first += steps


def _inside(line: _Line, begins: iv.Times, ends: iv.Times, steps_of: Sequence[int]) -> tuple[iv.Times, iv.Times]:
    """The calls in each step: their places among those of its rank, which are in order of their starts, and the edges
    of the steps in these. ``steps_of``: how many steps each rank has."""
    starts, until = line.moved(lambda rank: rank.calls.start_ns), line.moved(lambda rank: rank.calls.end_ns)
    before = np.cumsum([0, *(len(rank.calls) for rank in line.ranks[:-1])], dtype=np.int64)
    first_call = np.repeat(before, steps_of)
    # Calls may end in any order: those before the first one that reaches into the step need not be looked at.
    first = np.searchsorted(np.maximum.accumulate(until), begins, side="right")
    counts = np.maximum(np.searchsorted(starts, ends, side="right") - first, 0)
    batch = np.cumsum(counts) // CRITICAL_PATH.pairs_at_once
    places, inside_of = [np.zeros(0, dtype=np.int64)], np.zeros(len(begins), dtype=np.int64)
    for of_batch in np.split(np.arange(len(begins)), np.flatnonzero(np.diff(batch)) + 1):
        near = counts[of_batch]
        step = np.repeat(of_batch, near)
        at = places_from(first[of_batch], near)
        # The call of the last rank to arrive has no duration if the transfer takes no time. At the edge of two steps it
        # belongs to the first: if it were in neither, only the other ranks would have met.
        inside = ((starts[at] < ends[step]) | (starts[at] == until[at])) & (until[at] > begins[step])
        places.append(at[inside] - first_call[step[inside]])
        inside_of += np.bincount(step[inside], minlength=len(begins))
    return np.concatenate(places), edges_of(inside_of)


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


def open_spans(calls: Calls) -> tuple[iv.Times, iv.Times]:
    """When a rank could be blocked in each call: all begins, and all ends. Of a recorded send or receive, when a thread
    was: an early receive is open for long, and the arrival of its data is not recorded."""
    transfer, waited = calls.labelled(TRANSFER), calls.waited
    start: iv.Times = np.where(transfer & waited, calls.wait_start_ns, calls.start_ns)
    end: iv.Times = np.where(transfer, np.where(waited, calls.wait_end_ns, calls.start_ns), calls.end_ns)
    return start, end


def blocked(rows: Sequence[CollectiveRow]) -> iv.Intervals:
    """When a thread of the training waited for a collective."""
    return iv.make(_blocked(Rows.of(rows)))


def _blocked(rows: Rows) -> iv.Intervals:
    """The same for each row of which it is known."""
    waited = rows.waited
    return np.stack((rows.wait_start_ns[waited], rows.wait_end_ns[waited]), axis=1)


def _waits(recorded: Recorded, groups: str = "") -> iv.Intervals:
    """When a thread of the training waited for a collective of groups whose names begin so; on a device, none does."""
    rows = recorded.rows
    return iv.EMPTY if recorded.on_device else _blocked(rows.take(rows.of_groups(groups)) if groups else rows)


def _wired(rank: _OnLine) -> iv.Intervals:
    """When the rank's calls were open, without sends and receives."""
    calls = rank.calls
    return np.stack((calls.start_ns, calls.end_ns), axis=1)[~calls.labelled(TRANSFER)]


def _layers(line: _Line, waits: iv.Intervals, p2p: iv.Intervals) -> list[Layer]:
    """Activity by priority. ``p2p``: the part of the waits for a peer's message."""
    phases = line.spans(lambda rank: _pairs(rank.recorded.steps.phases))
    named = line.of_each(lambda rank: rank.recorded.steps.codes(PHASES)[rank.recorded.steps.phases.name])
    spans = {name: iv.make(phases[named == code]) for code, name in enumerate(PHASES)}
    pauses = iv.make(line.spans(lambda rank: _pairs(rank.recorded.steps.gc)))
    of_device = line.ranks[0].layers
    whole = iv.EMPTY if of_device is None else iv.make(line.spans(_steps))
    idle = {detail: iv.make(line.spans(partial(_idle, detail))) for detail in of_device or ()}
    return [
        Layer(Kind.DATA, Detail.NONE, spans[DATA]),
        Layer(Kind.CHECKPOINT, Detail.NONE, spans[CHECKPOINT]),
        Layer(Kind.COPY, Detail.NONE, spans[H2D]),
        Layer(Kind.COMM, Detail.P2P, p2p),
        Layer(Kind.COMM, Detail.NONE, waits),
        Layer(Kind.IDLE, Detail.GC, pauses),
        *(Layer(Kind.IDLE, detail, during) for detail, during in idle.items()),
        Layer(Kind.COMPUTE, Detail.FORWARD, spans[FORWARD]),
        Layer(Kind.COMPUTE, Detail.BACKWARD, spans[BACKWARD]),
        Layer(Kind.COMPUTE, Detail.OPTIMIZER, spans[OPTIMIZER]),
        Layer(Kind.COMPUTE, Detail.NONE, whole),
    ]


def _steps(rank: _OnLine) -> iv.Intervals:
    return np.stack((rank.recorded.steps.begin_ns, rank.recorded.steps.end_ns), axis=1)


def _idle(detail: Detail, rank: _OnLine) -> iv.Intervals:
    return rank.recorded.idle[detail] if rank.recorded.idle is not None else iv.EMPTY


def _pairs(entries: Ragged) -> iv.Intervals:
    return np.stack((entries.left, entries.right), axis=1)


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
