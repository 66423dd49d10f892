"""Measured peaks beside the estimate: of each rank the allocator's on a device, the profiler's on a CPU.

On a CPU the resident size says little: it holds the interpreter, and pages that were freed stay in it. The profiler's
allocations of a window (``diag run --trace-memory``) say how far the peak lies above the window's start; what was held
then (``collectors/trainer/held.py``) is added.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from diag.collectors.records import HeldRecord, Manifest, StepRecord
from diag.errors import DiagError
from diag.model.states import ModelStates
from diag.plan.account import Part, Peak
from diag.plan.allocations import host_allocations
from diag.plan.of_run import step_of_run
from diag.plan.step_memory import Step, states_of, step_peak
from diag.rundir.run import RankTables, Tables

_WARM_UP = 2  # steps in which optimizer states, buckets and the allocator's blocks come to be


class RankPeak(Struct, frozen=True):
    """Bytes of one rank. ``reserved``: what the allocator took from the device for it; None on a CPU. ``unseen``: freed
    by other threads than the profiler records, and taken off its total."""

    rank: int
    peak: int
    reserved: int | None = None
    held: HeldRecord | None = None
    unseen: int = 0


class Compared(Struct, frozen=True):
    """``estimate`` and ``measured`` of one thing, in bytes. ``error``: the estimate's, relative."""

    name: str
    estimate: int
    measured: int
    rank: int

    @property
    def error(self) -> float:
        return self.estimate / self.measured - 1 if self.measured else 0.0


class Measured(Struct, frozen=True):
    """``step``: what was trained, or ``unknown``: why it is not known, and then there is no estimate. ``how``: where
    the measured peaks come from. ``missing``: ranks without one, and why."""

    step: Step | None
    unknown: str
    estimate: Peak | None
    ranks: tuple[RankPeak, ...]
    rows: tuple[Compared, ...]
    how: str
    missing: tuple[str, ...] = ()


def measured(tables: Tables) -> Measured:
    """DiagError where nothing was measured."""
    on_device = tables.on_device
    found, missing = [], []
    for rank, own in sorted(tables.ranks.items()):
        peak = _on_device(own) if on_device else _on_cpu(own, tables.manifest)
        if isinstance(peak, str):
            missing.append(f"rank {rank}: {peak}")
        else:
            found.append(peak)
    if not found:
        hint = "record it again" if on_device else "record it with diag run --trace-memory"
        raise DiagError(f"no rank recorded a peak of memory: {missing[0]}", path=str(tables.root), hint=hint)
    step = step_of_run(tables.manifest, on_device)
    how = "the CUDA allocator's peak" if on_device else "the profiler's allocations above what was held"
    if isinstance(step, str):
        return Measured(None, step, None, tuple(found), (), how, tuple(missing))
    estimate = step_peak(step)
    return Measured(step, "", estimate, tuple(found), tuple(_rows(step, estimate, found)), how, tuple(missing))


def _rows(step: Step, estimate: Peak, ranks: Sequence[RankPeak]) -> list[Compared]:
    """The peak of the fullest rank, and of the components what each rank held."""
    fullest = max(ranks, key=lambda rank: rank.peak)
    rows = [Compared("peak", estimate.bytes, fullest.peak, fullest.rank)]
    held = fullest.held
    if held is not None:
        states = states_of(step)
        rows += [
            Compared("parameters", states.parameters, held.parameters, fullest.rank),
            Compared("gradients", states.gradients, held.gradients, fullest.rank),
            Compared("optimizer", states.optimizer, held.optimizer, fullest.rank),
            Compared(
                "all else at the peak", _rest(estimate, states, step), _above(fullest.peak, held, step), fullest.rank
            ),
        ]
    if fullest.reserved is not None:
        rows.append(Compared("peak, against reserved", estimate.bytes, fullest.reserved, fullest.rank))
    return rows


def _rest(estimate: Peak, states: ModelStates, step: Step) -> int:
    buckets = states.gradients if step.in_buckets else 0
    return estimate.bytes - estimate.parts[Part.PARAMETERS] - estimate.parts[Part.OPTIMIZER] - buckets


def _above(peak: int, held: HeldRecord, step: Step) -> int:
    """What lies above the states that stay all through the step: gradients outside of buckets come and go."""
    stays = held.gradients if step.in_buckets else 0
    return peak - held.parameters - held.optimizer - stays


def _held(steps: Sequence[StepRecord]) -> HeldRecord | None:
    return next((record.held for record in reversed(steps) if record.held is not None), None)


def _on_device(own: RankTables) -> RankPeak | str:
    steps = own.steps[_WARM_UP:] if len(own.steps) > _WARM_UP else own.steps
    memories = [record.memory for record in steps if record.memory is not None]
    allocated = [memory.allocated for memory in memories if memory.allocated is not None]
    if not allocated:
        return "no step recorded the allocator's peak"
    reserved = max((memory.reserved for memory in memories if memory.reserved is not None), default=None)
    return RankPeak(own.rank, max(allocated), reserved, _held(own.steps))


def _on_cpu(own: RankTables, manifest: Manifest | None) -> RankPeak | str:
    if not own.traces:
        return "no profiler window was recorded"
    # Of the first window: the profiler does not see the end of what an earlier window left.
    found = host_allocations(own.traces[0].path)
    if found is None:
        return "the profiler window has no allocations in it"
    held = _held(own.steps)
    if held is None:
        return "what model and optimizer held is not recorded: the run did not reach its last step"
    stays = held.parameters + held.optimizer + held.buffers + _buckets(held, manifest)
    return RankPeak(own.rank, stays + found.peak, None, held, found.unseen)


def _buckets(held: HeldRecord, manifest: Manifest | None) -> int:
    """DDP's stay allocated between steps, whether gradients are views of them or lie beside them."""
    setup = manifest.trainer.get("setup", {}) if manifest is not None else {}
    if not isinstance(setup, dict) or "gradient_as_bucket_view" not in setup:
        return 0
    return held.gradients
