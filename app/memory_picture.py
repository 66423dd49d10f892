"""Memory over time by category, what is live at a moment, and the blocks of the allocator's segments: data for
``views/memory.js``; nothing here draws."""

from __future__ import annotations

from typing import Any

from diag.app.curves import phase_colour
from diag.app.figures import GB, MB, MS
from diag.app.picture import colours_of
from diag.app.theme import Theme
from diag.model.memory import MEANING, Category
from diag.tables.memory_curves import HOST_MEMORY, MemoryCurve
from diag.tables.memory_history import History, SegmentBlocks
from diag.tables.snapshots import SnapshotAccount
from diag.words.formatting import counted, duration, size, visible

Data = dict[str, Any]  # as JSON


def of_curve(curve: MemoryCurve, capacity: float | None, theme: Theme) -> Data | None:
    """None if the trace does not record the addresses of allocations."""
    history = curve.history
    if history is None:
        return None
    moments = [f"{duration(at)} after the window began" for at in history.at.tolist()]
    data = _over_time(history, (history.at / MS).tolist(), "ms since the window began", moments, theme)
    if curve.reserved is not None:
        data["reserved"] = [(curve.at_ns / MS).tolist(), curve.reserved.tolist()]
    where = "host" if curve.device == HOST_MEMORY else "device"
    return data | {
        "alt": f"Memory of the {where} on rank {curve.rank} by category",
        "bands": [
            [band.phase, phase_colour(band.phase, theme), band.begin_ns / MS, band.end_ns / MS] for band in curve.bands
        ],
        "capacity": capacity,
    }


def of_account(account: SnapshotAccount, capacity: float | None, theme: Theme) -> Data | None:
    """None if the snapshot has neither a history nor blocks. ``capacity``: of the device, None if not known."""
    segments = _segments(account.blocks, theme)
    history = account.history
    if history is None:
        empty = {"at": [], "categories": [], "origins": [], "alt": "The blocks of the allocator's segments"}
        return empty | {"segments": segments, "colours": colours_of(theme)} if segments else None
    scale = MS / 1000 if account.timed else 1
    at = (history.at / scale).tolist()
    moments = [
        f"{duration(1000 * moment)} after the first event" if account.timed else f"event {moment:,}"
        for moment in history.at.tolist()
    ]
    data = _over_time(history, at, "ms since the first event" if account.timed else "event", moments, theme)
    outside = account.outside(capacity)
    return data | {
        "alt": "Allocated memory before the snapshot by category",
        "reserved": [(account.at_us / scale).tolist(), account.reserved.tolist()],
        "failures": [
            [None if failure.at_us is None else failure.at_us / scale, failure.requested,
             f"{size(failure.requested)} requested"]
            for failure in account.ooms
        ],
        "outside": outside and [Category.OUTSIDE.value, theme.memory[Category.OUTSIDE], outside, size(outside)],
        "capacity": capacity,
        "segments": segments,
    }  # fmt: skip


def _over_time(history: History, at: list[float], axis: str, moments: list[str], theme: Theme) -> Data:
    categories = history.categories
    unit = GB if int(history.allocated.max()) >= GB else MB
    return {
        "at": at,
        "axis": axis,
        "unit": [unit, "GB" if unit == GB else "MB"],
        "moments": moments,
        "peak": history.peak,
        "categories": [
            [category.value, theme.memory[category], MEANING[category], history.of_category(category).tolist()]
            for category in categories
        ],
        "origins": [
            [
                categories.index(origin.category),
                visible(origin.place),
                " ← ".join(map(visible, origin.calls[1:])),
                held.tolist(),
                count.tolist(),
            ]
            for origin, held, count in zip(history.origins, history.bytes, history.count, strict=True)
        ],
        "colours": colours_of(theme),
    }


def _segments(segments: tuple[SegmentBlocks, ...], theme: Theme) -> list[Data]:
    return [
        {
            "size": segment.size,
            "name": size(segment.size),
            "free": f"{size(segment.free)} free" if segment.free else "",
            "blocks": [
                [
                    block.offset,
                    block.size,
                    theme.memory[block.category] if block.category is not None else "",
                    visible(_about(block.category, block.awaiting, block.size, block.place, block.blocks)),
                ]
                for block in segment.blocks
            ],
        }
        for segment in segments
    ]


def _about(category: Category | None, awaiting: bool, bytes_: int, place: str, blocks: int) -> str:
    kind = category.value if category is not None else "freed, in use by another stream" if awaiting else "free"
    several = f" in {counted(blocks, 'block')}" if blocks > 1 else ""
    return f"{size(bytes_)} {kind}{several}" + (f"\n{place}" if place else "")
