"""The table of kernels: the device's time by name, and the limit of each kernel (a roofline by shapes)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diag.deferred import pl
from diag.model.breakdown import Bound, DevicePeak, KernelKind, KernelStat, KernelTable
from diag.tables.policy import EFFICIENCY

from .kernel_kinds import bound_of
from .work import WorkTable

_HALF_BYTES = 2
_KEYS = ("name", "kind")


def partial(work: WorkTable) -> pl.DataFrame:
    """One row per (name, kind, operator) of one trace; these add up over traces."""
    covered = pl.col("flops").is_not_null()
    sums = work.frame.group_by(*_KEYS, "operator", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("dur_ns").sum().alias("total_ns"),
        pl.col("dur_ns").max().alias("max_ns"),
        pl.col("exposed_ns").sum(),
        pl.col("flops").sum(),
        pl.col("bytes").sum(),
        pl.col("dur_ns").filter(covered).sum().alias("covered_ns"),
        pl.col("element").max(),
    )
    # Converted to text only here: every trace has its own Enum.
    return sums.with_columns(pl.col("name").cast(pl.String), pl.col("operator").cast(pl.String).fill_null(""))


def kernel_table(parts: Sequence[pl.DataFrame], unit: str, rank_steps: int, peak: DevicePeak | None) -> KernelTable:
    """The table of all traces' parts; totals add up to the device's busy time before union."""
    if not parts or not sum(len(part) for part in parts):
        return KernelTable((), unit, 0, rank_steps, peak)
    rows = (
        pl.concat(parts)
        .sort("total_ns", descending=True, maintain_order=True)
        .group_by(*_KEYS, maintain_order=True)
        .agg(
            pl.col("operator").first(),  # the one with the largest total
            *(pl.col(key).sum() for key in ("count", "total_ns", "exposed_ns", "flops", "bytes", "covered_ns")),
            pl.col("max_ns").max(),
            pl.col("element").max(),
        )
        .sort(["total_ns", "name"], descending=[True, False])
    )
    busy = int(rows["total_ns"].sum())
    return KernelTable(
        rows=tuple(_stat(row, busy, peak, unit == "kernel") for row in rows.to_dicts()),
        unit=unit,
        busy_ns=busy,
        rank_steps=rank_steps,
        peak=peak,
    )


def _stat(row: dict[str, Any], busy: int, peak: DevicePeak | None, on_device: bool) -> KernelStat:
    kind, covered = KernelKind(row["kind"]), row["covered_ns"]
    intensity = row["flops"] / row["bytes"] if row["bytes"] else None
    # An operator's class shows no limit on a CPU, where most of a small one is overhead before its loop.
    bound, source = _bound(kind, intensity, row["element"], peak) if on_device else (Bound.UNKNOWN, "")
    return KernelStat(
        name=row["name"],
        kind=kind,
        operator=row["operator"],
        count=row["count"],
        total_ns=row["total_ns"],
        mean_ns=row["total_ns"] // row["count"],
        max_ns=row["max_ns"],
        share=row["total_ns"] / busy if busy else 0.0,
        exposed_ns=row["exposed_ns"],
        bound=bound,
        bound_from=source,
        flops=row["flops"],
        bytes=row["bytes"],
        shapes_share=covered / row["total_ns"] if row["total_ns"] else 0.0,
        intensity=intensity,
        tflop_s=row["flops"] / covered / 1e3 if covered else None,
        gb_s=row["bytes"] / covered if covered else None,
    )


def _bound(kind: KernelKind, intensity: float | None, element: int, peak: DevicePeak | None) -> tuple[Bound, str]:
    """From the ridge point if shapes and device are known, else by class."""
    if intensity is None:
        by_class = bound_of(kind)
        return by_class, "class" if by_class != Bound.UNKNOWN else ""
    if peak is None or peak.ridge is None:
        return Bound.UNKNOWN, ""
    if intensity >= peak.ridge:
        return Bound.MATH, "shapes"  # at any lower peak, too
    surely_memory = peak.ridge if element == _HALF_BYTES else peak.ridge / EFFICIENCY.bf16_over_fp32
    return (Bound.MEMORY, "shapes") if intensity < surely_memory else (Bound.UNKNOWN, "")
