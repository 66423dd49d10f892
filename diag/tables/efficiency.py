"""MFU and HFU: the fraction of the device's dense peak that the model's own FLOPs, and all FLOPs, use
(docs/concepts/sharding.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from diag.account.attribute import queued_steps
from diag.account.policy import STEPS
from diag.collectors.records import WINDOW_AFTER, WINDOW_NONE, Manifest
from diag.model.breakdown import DevicePeak, Efficiency, Measure
from diag.rundir.columns import Steps
from diag.rundir.tables import StepSums, Tables
from diag.tables.policy import EFFICIENCY
from diag.words.formatting import counted

_ON_CPU = "the run is on a CPU"


class Totals(Struct, frozen=True):
    """Sums over one trace: nanoseconds of its counted steps; of products, convolutions and attention, and the part of
    them with known FLOPs; these FLOPs; nanoseconds of all computation and of recomputation."""

    steps_ns: int
    math_ns: int
    covered_ns: int
    flops: float
    compute_ns: int
    recomputed_ns: int
    basis: str  # evidence of recomputation, "" without
    beside_ns: int = 0  # time of kernels while they overlapped communication, if they also ran without
    alone_ns: int = 0  # the time that as many of the same kernels take without it
    beside: int = 0  # the number of these kernels


def efficiency(
    traced: Sequence[Totals],
    manifest: Manifest | None,
    recorded: Sequence[Steps] | StepSums,
    step_ns: float,
    world_size: int | None,
    peak: DevicePeak | None,
    device: str | None,
    on_device: bool,
    gpus: int | None = None,
) -> Efficiency:
    """``traced``: one per trace. ``recorded``: each rank's steps, or sums over all ranks. ``step_ns``: mean duration of
    a counted step, for runs where every step was traced, and for sums.
    ``gpus``: that all ranks of the run use; by default one each."""
    recompute = _recompute_share(traced)
    if not on_device:
        return Efficiency(Measure(None, _ON_CPU), Measure(None, _ON_CPU), recompute, None)
    if peak is None:
        unknown = Measure(None, f"the peak FLOP/s of {device or 'the device'} is not in the table")
        return Efficiency(unknown, unknown, recompute, None, _contention_share(traced))
    return Efficiency(
        mfu=_mfu(manifest, recorded, step_ns, world_size, gpus or world_size, peak),
        hfu=_hfu(traced, peak, world_size / gpus if world_size and gpus else 1.0),
        recompute_share=recompute,
        peak=peak,
        contention_share=_contention_share(traced),
    )


def flops_per_token(manifest: Manifest) -> float | None:
    """6 N + 12 L H d S; N as the manifest counts it, or all parameters if it has no count of its own."""
    model = manifest.model
    if isinstance(recorded := model.get("flops_per_token"), int | float):
        return float(recorded)
    values = [model.get(key) for key in ("parameters", "layers", "dim", "seq_len")]
    if not all(isinstance(value, int | float) for value in values):
        return None
    parameters, layers, dim, length = (float(value) for value in values if value is not None)
    return 6 * parameters + 12 * layers * dim * length


def _mfu(
    manifest: Manifest | None,
    recorded: Sequence[Steps] | StepSums,
    step_ns: float,
    world_size: int | None,
    gpus: int | None,
    peak: DevicePeak,
) -> Measure:
    if manifest is None:
        return Measure(None, "a folder of traces does not describe the model; a run directory does")
    per_token = flops_per_token(manifest)
    if per_token is None:
        return Measure(None, "the manifest does not give the model's parameters, layers, dim and seq_len")
    if isinstance(recorded, StepSums):
        known = recorded.tokens[recorded.tokens > 0]
        per_rank, seconds = float(known.mean()) / recorded.ranks if len(known) else 0.0, step_ns / 1e9
    else:
        per_rank, seconds = _of_a_rank(manifest, recorded, step_ns)
    of_all = per_rank * (world_size or 0)
    if not of_all or not seconds or not world_size or not gpus:
        return Measure(None, "no step recorded a token count")
    ranks = counted(world_size, "rank")
    if gpus != world_size:
        ranks += f" on {counted(gpus, 'GPU')}"
    basis = (
        f"{per_token:.3g} FLOPs per token x {of_all:,.0f} tokens per step of {seconds * 1e3:,.0f} ms, "
        f"{ranks}, {peak.tflop_s:g} TFLOP/s peak{' each' if gpus > 1 else ''}"
    )
    return Measure(per_token * of_all / seconds / (gpus * peak.tflop_s * 1e12), basis=basis)


def _of_a_rank(manifest: Manifest, recorded: Sequence[Steps], step_ns: float) -> tuple[float, float]:
    """Tokens of a rank and step, 0 if unknown, and the seconds of a step."""
    # The profiler slows the steps that it records, so steps without it are better. Their mean, as every step time: the
    # host runs ahead of the device in some and catches up in others.
    every = [steps for steps in recorded if steps]
    first = min((int(steps.step.min()) for steps in every), default=0) + STEPS.warm_up_steps
    disturbed = sorted(_after_windows(every, manifest))
    untraced = [
        steps.take(steps.in_window(WINDOW_NONE) & (steps.step >= first) & ~np.isin(steps.step, disturbed))
        for steps in every
    ]
    seen = untraced if any(untraced) else every
    tokens = np.concatenate([steps.tokens for steps in seen]) if seen else np.zeros(0, dtype=np.int64)
    tokens = tokens[tokens != 0]
    lasted = sum(int((steps.end_ns - steps.begin_ns).sum()) for steps in untraced)
    seconds = (float(lasted) / sum(map(len, untraced)) if any(untraced) else step_ns) / 1e9
    return int(tokens.sum()) / len(tokens) if len(tokens) else 0.0, seconds


def _after_windows(recorded: Sequence[Steps], manifest: Manifest) -> set[int]:
    """Steps after profiler windows that are shorter or longer than others. A rank that has written its trace waits for
    one that still writes: the host, which runs ahead of its device, in the step after."""
    queued = max(1, queued_steps(manifest))
    after = {step for steps in recorded for step in steps.step[steps.in_window(WINDOW_AFTER)].tolist()}
    return {step + later for step in after for later in range(1 + queued)}


def _hfu(traced: Sequence[Totals], peak: DevicePeak, ranks_per_gpu: float) -> Measure:
    if not traced:
        return Measure(None, "no trace of the device")
    time = sum(t.math_ns for t in traced)
    if not time:
        return Measure(None, "no matmul, convolution or attention kernel in the traced steps")
    share = sum(t.covered_ns for t in traced) / time
    if share < EFFICIENCY.least_covered_time_share:
        return Measure(
            None,
            f"recorded shapes cover {share:.0%} of the time in matmuls, convolutions and attention, "
            f"but {EFFICIENCY.least_covered_time_share:.0%} is needed; record with record_shapes=True",
        )
    value = ranks_per_gpu * sum(t.flops for t in traced) / (sum(t.steps_ns for t in traced) * peak.tflop_s * 1e3)
    return Measure(
        value,
        basis=f"of {peak.tflop_s:g} TFLOP/s; shapes cover {share:.0%} of the time in matmuls, convolutions, attention",
    )


def _contention_share(traced: Sequence[Totals]) -> Measure:
    compute, beside = sum(t.compute_ns for t in traced), sum(t.beside_ns for t in traced)
    alone, count = sum(t.alone_ns for t in traced), sum(t.beside for t in traced)
    if not compute or not alone:
        return Measure(None, "no kernel ran both with and without overlapping communication")
    basis = f"{count:,} kernels that overlap communication take {beside / alone:.2f} times as long as without overlap"
    return Measure(max(0.0, (beside - alone) / compute), basis=basis)


def _recompute_share(traced: Sequence[Totals]) -> Measure:
    if not traced:
        return Measure(None, "no trace covers a counted step")
    bases = sorted({t.basis for t in traced if t.basis})
    total = sum(t.compute_ns for t in traced)
    if not bases or not total:
        return Measure(
            None,
            "nothing in the traces marks recomputation: no checkpoint frame, node or FSDP hook, and no forward "
            "operator inside the backward",
        )
    return Measure(sum(t.recomputed_ns for t in traced) / total, basis=", ".join(bases))


def device_of(tables: Tables) -> str | None:
    """The accelerator's name, from the first rank that has it."""
    for rank in tables.ranks.values():
        if rank.identity is not None and rank.identity.device != "cpu":
            return rank.identity.device
    return next((name for rank in tables.ranks.values() for trace in rank.traces for name in trace.device_names), None)
