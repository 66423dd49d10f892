"""Memory over time in traces, as text and in the JSON contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from diag.tables.memory_curves import HOST_MEMORY, MemoryCurve
from diag.words.formatting import duration, share, size


def curve_sentence(curve: MemoryCurve) -> str:
    """The peak of a curve, and how much of it was allocated before the window."""
    where = f"step {curve.step}, " if curve.step is not None else ""
    phase = curve.phase if curve.phase != "other" else "outside of the phases"
    held = f"{size(curve.peak_allocated)} allocated"
    if curve.peak_reserved is not None:
        held += f" (most reserved in the window: {size(curve.peak_reserved)})"
    text = f"Peak of the window: {held}, {duration(curve.peak_ns)} after its start ({where}{phase})."
    if curve.device == HOST_MEMORY:
        text += " This is what PyTorch allocated on the host since the window began; the process uses more."
    elif not curve.totals:
        text += " The trace has no totals of the device, so bytes count from the start of the window."
    live = curve.live
    if live.reason:
        return f"{text} What was allocated there is not known: {live.reason}."
    if live.before is not None and curve.peak_allocated:
        text += (
            f" {size(live.before)} of it ({share(live.before / curve.peak_allocated)}) was allocated before the window."
        )
    return text


def curves_to_dict(curves: Sequence[MemoryCurve]) -> list[dict[str, Any]]:
    """The peaks of the curves and what was allocated there, without the curves themselves."""
    return [
        {
            "rank": curve.rank,
            "device": curve.device,
            "has_totals": curve.totals,
            "samples": curve.samples,
            "peak_ns": curve.peak_ns,
            "peak_allocated_bytes": curve.peak_allocated,
            "peak_reserved_bytes": curve.peak_reserved,
            "step": curve.step,
            "phase": curve.phase,
            "live_at_peak": to_builtins(curve.live),
        }
        for curve in curves
    ]
