"""The sums of one trace that MFU, HFU and the share of recomputation rest on."""

from __future__ import annotations

from diag.deferred import pl

from .efficiency import Totals
from .kernel_kinds import MATH_KINDS
from .recompute import Recomputed
from .work import WorkTable


def totals(work: WorkTable, steps_ns: int, recomputation: Recomputed) -> Totals:
    """The sums of one trace, so that its table need not be kept."""
    math = work.frame.filter(pl.col("kind").is_in([str(kind) for kind in MATH_KINDS]))
    known = math.filter(pl.col("flops").is_not_null())
    compute, time = (work.frame["class"] == "compute").to_numpy(), work.frame["dur_ns"].to_numpy()
    return Totals(
        steps_ns=steps_ns,
        math_ns=int(math["dur_ns"].sum()),
        covered_ns=int(known["dur_ns"].sum()),
        flops=float(known["flops"].sum()),
        compute_ns=int(time[compute].sum()),
        recomputed_ns=int(time[compute & recomputation.mask].sum()),
        basis=recomputation.basis,
        **_contention(work.frame),
    )


def _contention(frame: pl.DataFrame) -> dict[str, int]:
    """Kernels of one name, operator and shape: those that overlap communication for more than half of their time,
    compared with those that do not overlap it at all."""
    dur, beside = pl.col("dur_ns"), pl.col("beside_ns")
    compared = (
        frame.filter(pl.col("class") == "compute")
        .group_by("name", "operator", "flops")
        .agg(
            dur.filter(2 * beside > dur).sum().alias("beside_ns"),
            (2 * beside > dur).sum().cast(pl.Int64).alias("beside"),
            dur.filter(beside == 0).mean().alias("alone"),
        )
        .filter(pl.col("beside") > 0, pl.col("alone").is_not_null())
    )
    return {
        "beside_ns": int(compared["beside_ns"].sum()),
        "alone_ns": round(float((compared["beside"] * compared["alone"]).sum())),
        "beside": int(compared["beside"].sum()),
    }
