"""What was live at each moment, by category and by stack, from the allocations of a trace or a snapshot; and the blocks
of the allocator's segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from diag.deferred import pl
from diag.model.memory import Category
from diag.tables.policy import MEMORY_GROWTH
from diag.traces import memory_snapshots as of
from diag.traces.memory_snapshots import DeviceSnapshot, Stack

Sizes = npt.NDArray[np.int64]


class Origin(Struct, frozen=True):
    """What allocated memory: its place in the code, or the operator and module if the code is not known. ``calls``: the
    user's frames, innermost first; () if they were not recorded."""

    category: Category
    place: str
    calls: tuple[str, ...] = ()


class Allocations(Struct, frozen=True, eq=False):
    """All allocations of a history, as columns. ``begin``, ``end``: the position of the event that allocates and of the
    one that frees; -1 for before the first event, and the number of events for after the last one. ``origin``: a row of
    ``origins``."""

    begin: Sizes
    end: Sizes
    size: Sizes
    origin: Sizes
    origins: tuple[Origin, ...]
    events: int

    def live_at(self, position: int) -> Sizes:
        """The rows that are live after the event at this position."""
        return np.flatnonzero((self.begin <= position) & (self.end > position))

    def by_category(self, position: int) -> dict[Category, int]:
        """Bytes that are live after the event at this position."""
        total: dict[Category, int] = {}
        for row in self.live_at(position).tolist():
            category = self.origins[int(self.origin[row])].category
            total[category] = total.get(category, 0) + int(self.size[row])
        return total


class History(Struct, frozen=True, eq=False):
    """``at``: moments on the axis of the curve, each the highest of its bin, so the sums are of one moment. ``bytes``
    and ``count``: a row for each of ``origins``, the largest first, a column for each moment: their sum is
    ``allocated``. ``peak``: the column of the highest."""

    at: Sizes
    origins: tuple[Origin, ...]
    bytes: Sizes
    count: Sizes
    peak: int

    @property
    def allocated(self) -> Sizes:
        total: Sizes = self.bytes.sum(axis=0)
        return total

    def of_category(self, category: Category) -> Sizes:
        """Its bytes at each moment."""
        rows = [row for row, origin in enumerate(self.origins) if origin.category == category]
        total: Sizes = self.bytes[rows].sum(axis=0)
        return total

    @property
    def categories(self) -> tuple[Category, ...]:
        """Those that hold anything, in the order in which they are stacked."""
        return tuple(category for category in Category if self.of_category(category).any())


def history(allocations: Allocations, at: Sizes, allocated: Sizes) -> History | None:
    """``at``, ``allocated``: the moment of each event, and the bytes after it. None without events."""
    if not len(at):
        return None
    moments = _moments(at, allocated)
    first = np.searchsorted(moments, allocations.begin, side="left")
    last = np.searchsorted(moments, allocations.end, side="left")  # the first moment after the free
    shape = (len(allocations.origins), len(moments) + 1)
    change, counted = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for column, sign in ((first, 1), (last, -1)):
        np.add.at(change, (allocations.origin, column), sign * allocations.size)
        np.add.at(counted, (allocations.origin, column), sign)
    held, count = change.cumsum(axis=1)[:, :-1], counted.cumsum(axis=1)[:, :-1]
    origins, held, count = _largest(allocations.origins, held, count)
    return History(at[moments], origins, held, count, int(held.sum(axis=0).argmax()))


def _moments(at: Sizes, allocated: Sizes) -> Sizes:
    """The position with the most bytes in each bin of time, and the last one."""
    later = np.maximum.accumulate(at)
    width = (int(later[-1]) - int(later[0])) // MEMORY_GROWTH.most_moments + 1
    begins = np.unique((later - later[0]) // width, return_index=True)[1]
    ends = [*begins[1:].tolist(), len(at)]
    highest = [begin + int(allocated[begin:end].argmax()) for begin, end in zip(begins.tolist(), ends, strict=True)]
    return np.unique(np.array([*highest, len(at) - 1], dtype=np.int64))


def _largest(origins: Sequence[Origin], held: Sizes, count: Sizes) -> tuple[tuple[Origin, ...], Sizes, Sizes]:
    """The origins that hold most at any moment; the others of each category are one row."""
    order = np.argsort(-held.max(axis=1, initial=0), kind="stable")
    order = order[held[order].max(axis=1, initial=0) > 0]
    kept, rest = order[: MEMORY_GROWTH.most_origins], order[MEMORY_GROWTH.most_origins :]
    names = [origins[row] for row in kept.tolist()]
    rows, counts = [held[kept]], [count[kept]]
    for category in Category:
        small = [row for row in rest.tolist() if origins[row].category == category]
        if small:
            names.append(
                Origin(category, f"{len(small):,} other places" if len(small) > 1 else origins[small[0]].place)
            )
            rows.append(held[small].sum(axis=0, keepdims=True))
            counts.append(count[small].sum(axis=0, keepdims=True))
    return tuple(names), np.concatenate(rows), np.concatenate(counts)


def matched(events: Iterable[tuple[bool, int, int, int]], freed_unknown: int, count: int) -> Lists:
    """The allocations of a history, as lists of begin, end, size and origin: ``events`` are (allocates, address, bytes,
    origin) by position. ``freed_unknown``: the origin of what was allocated before. What is still live ends after the
    last of the ``count`` events; ``Lists.live`` has its rows by address."""
    lists = Lists()
    for at, (allocates, address, size, origin) in enumerate(events):
        if allocates:
            lists.live[address] = lists.add(at, count, size, origin)
        elif (row := lists.live.pop(address, None)) is not None:
            lists.end[row] = at
        elif size:
            lists.add(-1, at, size, freed_unknown)
    return lists


class Lists(Struct):
    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    origin: list[int] = field(default_factory=list)
    live: dict[int, int] = field(default_factory=dict)

    def add(self, begin: int, end: int, size: int, origin: int) -> int:
        """The row of a new allocation."""
        self.begin.append(begin)
        self.end.append(end)
        self.size.append(size)
        self.origin.append(origin)
        return len(self.begin) - 1

    def columns(self, origins: Sequence[Origin], events: int) -> Allocations:
        """Origins that are equal become one row. ``origins``: by the numbers in ``origin``."""
        known = list(dict.fromkeys(origins[number] for number in sorted(set(self.origin))))
        rows = {origin: row for row, origin in enumerate(known)}
        row_of = {number: rows[origins[number]] for number in set(self.origin)}
        begin, end, size, origin = (
            np.array(column, dtype=np.int64)
            for column in (self.begin, self.end, self.size, [row_of[number] for number in self.origin])
        )
        return Allocations(begin, end, size, origin, tuple(known), events)


def of_snapshot(device: DeviceSnapshot, stacks: Sequence[Stack], freed: int) -> Allocations:
    """``freed``: the action at which memory counts as no longer allocated."""
    columns = device.events.select("action", "addr", "size", "stack")
    rows = (
        (action == of.ALLOC, address if action in (of.ALLOC, freed) else -1, size if action in (of.ALLOC, freed) else 0,
         stack if action == of.ALLOC else 0)
        for action, address, size, stack in columns.iter_rows()
    )  # fmt: skip
    found = matched(rows, 0, len(columns))
    in_use = device.blocks.filter(pl.col("state") == of.ALLOCATED)
    for address, size, stack in in_use.select("address", "requested", "stack").iter_rows():
        if found.live.pop(address, None) is None:
            found.add(-1, len(columns), size, stack)
    return found.columns([origin_of(stack) for stack in stacks], len(columns))


def origin_of(stack: Stack) -> Origin:
    return Origin(stack.category, stack.place, stack.calls)


class Block(Struct, frozen=True):
    """A block of a segment: bytes from its begin. ``category``: None for a free one; ``awaiting``: freed, and in use by
    another stream. Neighbours that are too narrow to be drawn are one block: ``blocks`` of them."""

    offset: int
    size: int
    category: Category | None
    place: str = ""
    awaiting: bool = False
    blocks: int = 1


class SegmentBlocks(Struct, frozen=True):
    """A segment that the allocator reserved, with its blocks in order of address."""

    size: int
    blocks: tuple[Block, ...]

    @property
    def free(self) -> int:
        return sum(block.size for block in self.blocks if block.category is None and not block.awaiting)


def map_of_blocks(device: DeviceSnapshot, stacks: Sequence[Stack]) -> tuple[SegmentBlocks, ...]:
    """The largest segments, the largest first. Blocks narrower than a thousandth of the largest segment are drawn with
    their neighbours of the same kind."""
    segments = device.segments.with_row_index("segment").sort("size", descending=True, maintain_order=True)
    segments = segments.head(MEMORY_GROWTH.most_segments_drawn)
    if segments.is_empty():
        return ()
    least = max(1, int(segments["size"][0]) // 1000)
    left, drawn = MEMORY_GROWTH.most_blocks_drawn, []
    by_segment = device.blocks.partition_by("segment", as_dict=True, maintain_order=True)
    for number, address, size in segments.select("segment", "address", "size").iter_rows():
        rows = by_segment.get((number,))
        blocks = list[Block]()
        for at, width, state, stack in (
            rows.sort("address").select("address", "size", "state", "stack").iter_rows() if rows is not None else ()
        ):
            used = stacks[stack]
            category = used.category if state == of.ALLOCATED else None
            place = used.place if state == of.ALLOCATED else ""
            block = Block(at - address, width, category, place, state == of.AWAITING_FREE)
            blocks[-1:] = _joined(blocks[-1:], block, least)
        drawn.append(SegmentBlocks(size, tuple(blocks[:left])))
        left -= min(left, len(blocks))
    return tuple(drawn)


def _joined(last: list[Block], block: Block, least: int) -> list[Block]:
    """The last block and this one; one block if both are narrow and of one kind."""
    if not last or max(last[0].size, block.size) >= least:
        return [*last, block]
    before = last[0]
    if (before.category, before.awaiting) != (block.category, block.awaiting):
        return [*last, block]
    place = before.place if before.place == block.place else ""
    return [Block(before.offset, before.size + block.size, block.category, place, block.awaiting, before.blocks + 1)]
