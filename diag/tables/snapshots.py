"""Accounts of memory snapshots: the curve that leads to their state, the peak and its live allocations, the
fragmentation of the state, out-of-memory errors, and ranks, files or devices compared.

The state is known exactly: which blocks are in use. Each event before it is undone, from the last to the first, so the
curve needs no data from before the recorded history. Its bytes are those requested for tensors; the allocator rounds
each up (to 512 bytes; large ones to whole segments), which ``State.allocated`` includes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.collectors.layout import MOST_RANKS
from diag.collectors.reading import natural
from diag.deferred import pl
from diag.model import Gap
from diag.model.memory import Category
from diag.tables.policy import MEMORY_GROWTH
from diag.traces import memory_snapshots as of
from diag.traces.memory_snapshots import DeviceSnapshot, Snapshot, Stack
from diag.traces.text_stream import file_name

from . import memory_history
from .memory_curves import Share, shares_of
from .memory_history import Allocations, History, SegmentBlocks

WITHOUT_STACK = "no recorded stack, or older than the history"

Sizes = npt.NDArray[np.int64]


class State(Struct, frozen=True):
    """The allocator at the moment of the snapshot, in bytes. ``reserved``: of all segments; ``allocated``: in blocks in
    use by tensors, rounded; ``awaiting_free``: freed, and in use by another stream; ``inactive``: free in segments;
    ``split``: the part of it in segments that are partly in use, which cannot be returned to the device;
    ``largest_free``: the largest block that an allocation could get without a new segment."""

    segments: int
    reserved: int
    allocated: int
    requested: int
    awaiting_free: int
    inactive: int
    split: int
    largest_free: int

    @property
    def fragmentation(self) -> float:
        """The fraction of the reserved memory that is free in segments in use."""
        return self.split / self.reserved if self.reserved else 0.0


class OutOfMemory(Struct, frozen=True):
    """An allocation that failed: the requested bytes, and the device's free bytes (None: not recorded). ``place``:
    where it was requested; ``at_us``: on the curve's time axis."""

    requested: int
    device_free: int | None
    place: str
    at_us: int | None
    event: int = 0  # its position in the history


class SnapshotAccount(Struct, frozen=True, eq=False, dict=True):
    """One device of one snapshot. The arrays have one length, at most MOST_POINTS, and hold the largest value of each
    bin: ``at_us`` since the first event (the event's number if the snapshot has no times, ``timed`` False),
    ``allocated`` as requested for tensors, and ``reserved``. All are empty without a recorded history: then the peak is
    the state's. ``before``: bytes at the peak whose allocation is not recorded. Tables: the largest first.
    ``rank``: None if neither the snapshot nor its name has it. ``doubt``: why the curve may be wrong; "" if nothing
    indicates that."""

    path: str
    rank: int | None
    step: int | None
    reason: str
    device: int
    settings: str
    events: int
    timed: bool
    at_us: Sizes
    allocated: Sizes
    reserved: Sizes
    peak_us: int
    peak_allocated: int
    peak_reserved: int
    peak_phase: str
    before: int
    frames: tuple[Share, ...]
    modules: tuple[Share, ...]
    operators: tuple[Share, ...]
    phases: tuple[Share, ...]
    places: dict[str, int]
    state: State
    ooms: tuple[OutOfMemory, ...]
    doubt: str = ""
    several_devices: bool = False  # the process used more than this one
    content: DeviceSnapshot | None = None
    stacks: tuple[Stack, ...] = ()

    @property
    def rank_known(self) -> bool:
        return self.rank is not None

    @cached_property
    def allocations(self) -> Allocations | None:
        """Every allocation of the history; None if none was recorded."""
        if self.content is None or not self.events or self.doubt:
            return None
        freed = _freed(self.content.events["action"].to_numpy())
        return memory_history.of_snapshot(self.content, self.stacks, freed)

    @cached_property
    def history(self) -> History | None:
        """What was live over time; None if no history was recorded, or one that is not whole."""
        if self.allocations is None or self.content is None:
            return None
        events = self.content.events
        allocated = _curves(events, self.state)[0]
        return memory_history.history(self.allocations, _at_us(events), allocated)

    @cached_property
    def blocks(self) -> tuple[SegmentBlocks, ...]:
        """The largest segments with their blocks, when the snapshot was written."""
        return memory_history.map_of_blocks(self.content, self.stacks) if self.content is not None else ()

    def outside(self, capacity: float | None) -> int | None:
        """Bytes of the device that neither this allocator reserved nor were free when an allocation failed. None if
        that is not known: only a failed allocation records what is free. ``capacity``: of the device."""
        free = next((failure.device_free for failure in reversed(self.ooms) if failure.device_free is not None), None)
        if capacity is None or free is None:
            return None
        return max(0, int(capacity) - free - self.state.reserved)

    def categories_at_failure(self, failure: OutOfMemory) -> dict[Category, int]:
        """Bytes that were live when an allocation failed, by category; empty if that is not known."""
        return self.allocations.by_category(failure.event) if self.allocations is not None else {}


class Larger(Struct, frozen=True):
    """A place that holds more at one peak than at the others: bytes there, and the others' median."""

    place: str
    bytes: int
    median: int


class Compared(StrEnum):
    """What the peaks are of. Snapshots of unknown ranks may be of one process at several times, so they are files."""

    RANKS = "ranks"
    FILES = "files"
    DEVICES = "devices"


class Comparison(Struct, frozen=True):
    """The highest peak, compared with the median of the others. ``of``: what is compared; ``name``: the one with the
    highest peak. ``rank``: None unless ranks are compared."""

    rank: int | None
    peak: int
    median: int
    larger: tuple[Larger, ...]
    of: Compared
    name: str
    number: int  # how many are compared


class SnapshotTable(Struct, frozen=True, eq=False):
    """All snapshots of a run, by rank and step; those of unknown rank come last. ``compared`` is None unless there are
    two ranks, files or devices."""

    accounts: tuple[SnapshotAccount, ...]
    compared: Comparison | None
    gaps: tuple[Gap, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The known ones."""
        return tuple(sorted({account.rank for account in self.accounts if account.rank is not None}))

    @property
    def failed(self) -> tuple[tuple[SnapshotAccount, OutOfMemory], ...]:
        """The failed allocations."""
        return tuple((account, oom) for account in self.accounts for oom in account.ooms)


def snapshots_of(files: Iterable[Path | str]) -> SnapshotTable:
    """The accounts of the snapshots in these files, those that can be read."""
    return snapshot_table(*of.read_snapshots(files))


def snapshot_table(snapshots: Sequence[Snapshot], gaps: Iterable[Gap] = ()) -> SnapshotTable:
    """The accounts of all devices of these snapshots."""
    accounts = [account_of(snapshot, device) for snapshot in snapshots for device in snapshot.devices]
    accounts.sort(
        key=lambda account: (
            MOST_RANKS if account.rank is None else account.rank,
            -1 if account.step is None else account.step,
            natural(account.path),
            account.device,
        )
    )
    return SnapshotTable(tuple(accounts), _compared(accounts), tuple(gaps))


def account_of(snapshot: Snapshot, device: DeviceSnapshot) -> SnapshotAccount:
    events, blocks = device.events, device.blocks
    action = events["action"].to_numpy()
    state = _state(device)
    allocated, reserved, doubt = _curves(events, state)
    peak = int(allocated.argmax()) if len(events) else -1
    live = _live_at(events[: peak + 1], events[peak + 1 :], blocks)
    held = int(allocated[peak]) if len(events) else state.requested
    timed = _is_timed(events)
    at_us = _at_us(events)
    first = _bins(at_us)
    stacks = snapshot.stacks
    known = [(stacks[stack], size) for stack, size in live if stack]
    before = sum(size for stack, size in live if not stack)
    places = _sums([*((stack.place, size) for stack, size in known), (WITHOUT_STACK, before)])
    ooms = [
        _oom(row, stacks, int(at_us[at]) if timed else None, int(at))
        for at, row in zip(np.flatnonzero(action == of.OOM), events.filter(action == of.OOM).rows(), strict=True)
    ]
    return SnapshotAccount(
        path=snapshot.path,
        rank=snapshot.rank,
        step=snapshot.step,
        reason=snapshot.reason,
        device=device.device,
        settings=snapshot.settings,
        events=len(events),
        timed=timed,
        at_us=at_us[first],
        allocated=np.maximum.reduceat(allocated, first) if len(first) else allocated,
        reserved=np.maximum.reduceat(reserved, first) if len(first) else reserved,
        peak_us=int(at_us[peak]) if len(events) else 0,
        peak_allocated=held,
        peak_reserved=int(reserved.max()) if len(events) else state.reserved,
        peak_phase=stacks[int(events["stack"][peak])].phase if len(events) else of.OTHER,
        before=before,
        frames=shares_of(((stack.place, size) for stack, size in known), held),
        modules=shares_of(((stack.module, size) for stack, size in known if stack.module), held),
        operators=shares_of(((f"aten::{stack.operator}", size) for stack, size in known if stack.operator), held),
        phases=shares_of(((stack.phase, size) for stack, size in known), held) if _has_phases(known) else (),
        places=places,
        state=state,
        ooms=tuple(ooms[-MEMORY_GROWTH.most_failures_kept :]),
        doubt=doubt,
        several_devices=len(snapshot.devices) > 1,
        content=device,
        stacks=stacks,
    )


def _is_timed(events: pl.DataFrame) -> bool:
    return bool(len(events)) and not events["time_us"].null_count()


def _at_us(events: pl.DataFrame) -> Sizes:
    """Since the first event; the numbers of the events if they have no times."""
    if not _is_timed(events):
        return np.arange(len(events), dtype=np.int64)
    at_us: Sizes = events["time_us"].to_numpy() - events["time_us"][0]
    return at_us


def _has_phases(known: Iterable[tuple[Stack, int]]) -> bool:
    """Whether any stack has a phase of its step."""
    return any(stack.phase != of.OTHER for stack, _ in known)


def _state(device: DeviceSnapshot) -> State:
    blocks = device.blocks
    in_state = {
        state: blocks.filter(pl.col("state") == state) for state in (of.ALLOCATED, of.AWAITING_FREE, of.INACTIVE)
    }
    used = blocks.filter(pl.col("state") != of.INACTIVE)["segment"].unique()
    free = in_state[of.INACTIVE]
    split = free.filter(pl.col("segment").is_in(used.implode()))
    return State(
        segments=len(device.segments),
        reserved=int(device.segments["size"].sum()),
        allocated=int(in_state[of.ALLOCATED]["size"].sum()),
        requested=int(in_state[of.ALLOCATED]["requested"].sum()),
        awaiting_free=int(in_state[of.AWAITING_FREE]["size"].sum()),
        inactive=int(free["size"].sum()),
        split=int(split["size"].sum()),
        largest_free=int(free["size"].max() or 0),  # type: ignore[arg-type]
    )


def _curves(events: pl.DataFrame, state: State) -> tuple[Sizes, Sizes, str]:
    """Bytes that were allocated and reserved after each event, counted back from the state; and a doubt."""
    action, size = events["action"].to_numpy(), events["size"].to_numpy()
    freed = _freed(action)
    allocated = _back(state.requested, np.where(action == of.ALLOC, size, 0) - np.where(action == freed, size, 0))
    grown = np.where(action == of.SEGMENT_ALLOC, size, 0) - np.where(action == of.SEGMENT_FREE, size, 0)
    reserved = _back(state.reserved, grown)
    if len(events) and min(int(allocated.min()), int(reserved.min())) < 0:
        doubt = "the recorded events free more memory than was allocated: some kinds were not recorded (skip_actions)"
        return np.maximum(allocated, 0), np.maximum(reserved, 0), doubt
    return allocated, reserved, ""


def _freed(action: npt.NDArray[np.int8]) -> int:
    """The event at which memory counts as no longer allocated: the request, if it was recorded, as in
    torch.cuda.memory_allocated."""
    return of.FREE_REQUESTED if (action == of.FREE_REQUESTED).any() else of.FREE_COMPLETED


def _back(end: int, delta: Sizes) -> Sizes:
    """The sum after each step that leads to ``end``."""
    total = np.cumsum(delta)
    return end - (total[-1] - total) if len(total) else total


def _live_at(until: pl.DataFrame, after: pl.DataFrame, blocks: pl.DataFrame) -> list[tuple[int, int]]:
    """(stack, bytes) of each allocation that was live after the events ``until``, which the events ``after`` follow.
    Stack 0: unknown, because it was allocated before the history begins."""
    freed = _freed(pl.concat([until["action"], after["action"]]).to_numpy())
    live = {
        addr: (stack, size)
        for addr, size, stack, state in blocks.select("address", "requested", "stack", "state").iter_rows()
        if state == of.ALLOCATED
    }
    columns = ("action", "addr", "size", "stack")
    for action, addr, size, _ in after.select(columns).reverse().iter_rows():
        if action == of.ALLOC:
            live.pop(addr, None)
        elif action == freed:
            live[addr] = 0, size
    unknown = {addr for addr, (stack, _) in live.items() if not stack}
    if unknown:
        for action, addr, _, stack in until.select(columns).reverse().iter_rows():
            if action == of.ALLOC and addr in unknown:
                live[addr] = stack, live[addr][1]
                unknown.discard(addr)
    return list(live.values())


def _bins(at_us: Sizes) -> Sizes:
    """The first event of each bin."""
    if len(at_us) <= MEMORY_GROWTH.most_points_of_curve:
        return np.arange(len(at_us))
    later = np.maximum.accumulate(at_us)
    width = (int(later[-1]) - int(later[0])) // MEMORY_GROWTH.most_points_of_curve + 1
    return np.unique((later - later[0]) // width, return_index=True)[1].astype(np.int64)


def _oom(row: tuple[int, ...], stacks: Sequence[Stack], at_us: int | None, event: int) -> OutOfMemory:
    _, _, size, _, free, stack = row
    return OutOfMemory(size, free, stacks[stack].place, at_us, event)


def _sums(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for name, size in pairs:
        total[name] = total.get(name, 0) + size
    return total


def _compared(accounts: Sequence[SnapshotAccount]) -> Comparison | None:
    """Compares ranks if there are two, else files, else the devices of one file, each by its highest peak."""
    if len({account.rank for account in accounts if account.rank is not None}) > 1:
        return _comparison(Compared.RANKS, accounts, lambda account: account.rank)
    if len({account.path for account in accounts}) > 1:
        unknown = [account for account in accounts if account.rank is None]
        of_files = _comparison(Compared.FILES, unknown, lambda account: account.path)
        return of_files if len(unknown) == len(accounts) else None
    return _comparison(Compared.DEVICES, accounts, lambda account: account.device)


def _comparison(
    of: Compared, accounts: Sequence[SnapshotAccount], by: Callable[[SnapshotAccount], int | str | None]
) -> Comparison | None:
    fullest: dict[int | str, SnapshotAccount] = {}
    for account in accounts:
        key = by(account)
        if key is not None and (key not in fullest or account.peak_allocated > fullest[key].peak_allocated):
            fullest[key] = account
    if len(fullest) < 2:
        return None
    key, highest = max(fullest.items(), key=lambda item: item[1].peak_allocated)  # the first of equal ones
    others = [account for account in fullest.values() if account is not highest]
    larger = []
    for place, size in highest.places.items():
        median = int(np.median([account.places.get(place, 0) for account in others]))
        if size > median:
            larger.append(Larger(place, size, median))
    larger.sort(key=lambda row: (row.median - row.bytes, row.place))
    names = {Compared.RANKS: "rank {}", Compared.FILES: "{}", Compared.DEVICES: "device {}"}
    return Comparison(
        highest.rank if of == Compared.RANKS else None,
        highest.peak_allocated,
        int(np.median([account.peak_allocated for account in others])),
        tuple(larger[: MEMORY_GROWTH.most_allocations_compared]),
        of,
        names[of].format(file_name(highest.path) if of == Compared.FILES else key),
        len(fullest),
    )
