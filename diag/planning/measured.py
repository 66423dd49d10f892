"""Measured memory peaks compared with the estimate: for each rank, the allocator's on a device, the profiler's on a
CPU.

On a CPU the resident size is not a good measure: it includes the interpreter, and freed pages stay in it. The
profiler's allocations of a window (``diag run --trace-memory``) give the height of the peak above the window's start;
the bytes held at that time (``collectors/trainer/loop.py``) are added.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from diag.collectors.records import HeldRecord, Manifest
from diag.collectors.strategies import named
from diag.decoding import json_decoder
from diag.errors import DiagError
from diag.model import UNKNOWN
from diag.model.states import ModelStates, Sharding, sharding_of, shards_of
from diag.planning.policy import PLANNING
from diag.rundir.columns import Steps
from diag.rundir.tables import RankTables, Tables
from diag.traces.event_table import MEMORY_EVENT
from diag.traces.text_stream import blocks, damaged, opened

from .gathering import FlatUnits, MemoryUse, Peak
from .shape import RECIPES, Shape
from .step_memory import LINEAR_AND_HEAD, Kernels, Step, states_of, step_peak

# -- allocations -------------------------------------------------------------------------------------------------------
#
# The peak of one profiler window's allocations on the host, computed from the allocations themselves.
#
# The profiler's own running total is too high if gloo's threads free memory that a training thread allocated: the
# profiler records frees only of the threads that it profiles, which gloo's are not. Measured with fully_shard on two
# ranks: the copy that a reduce-scatter works on (``c10d::_reduce_scatter_base_``) stays in the total forever in some
# calls and not in others, depending on the thread that drops it last. On a loaded machine the same happens to the
# output buffer of an all-gather.

_MOST_BYTES = 1 << 60
_HOST = 0  # the profiler's number of the CPU
_COLLECTIVE = "c10d::"
_GATHERING = "FSDP::all_gather ("  # fully_shard's scope, in which it allocates the all-gather's output buffer


class Allocations(Struct, frozen=True):
    """``peak``: bytes above those held when the window began. ``unseen``: bytes whose free was not recorded."""

    peak: int
    unseen: int


class MemoryChange(Struct, frozen=True):
    """Bytes allocated at an address, or freed (negative)."""

    at_us: float
    address: int
    bytes: int


Span = tuple[float, float]


class _Args(Struct):
    bytes: Annotated[int, msgspec.Meta(gt=-_MOST_BYTES, lt=_MOST_BYTES)] = msgspec.field(default=0, name="Bytes")
    address: int = msgspec.field(default=0, name="Addr")
    device: int = msgspec.field(default=-1, name="Device Type")


class _Event(Struct):
    name: str = ""
    ph: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Document(Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")


def host_allocations(path: str) -> Allocations | None:
    """The allocations in a trace that torch exported with ``profile_memory``; None if it has none. DiagError for any
    other file."""
    with opened(path) as file:
        text = b"".join(blocks(file, path))
    try:
        events = json_decoder(_Document).decode(text).events
    except msgspec.DecodeError as error:
        raise damaged(path, str(error)) from error
    decode = json_decoder(_Args).decode
    changes, calls, gathers = [], [], []
    for event in events:
        if event.name == MEMORY_EVENT:
            try:
                allocation = decode(event.args)
            except msgspec.DecodeError as error:
                raise damaged(path, str(error)) from error
            if allocation.device == _HOST:
                changes.append(MemoryChange(event.ts, allocation.address, allocation.bytes))
        elif event.ph == "X" and event.name.startswith(_COLLECTIVE):
            calls.append((event.ts, event.ts + event.dur))
        elif event.ph == "X" and event.name.startswith(_GATHERING):
            gathers.append((event.ts, event.ts + event.dur))
    changes.sort(key=lambda change: change.at_us)
    return peak_of(changes, sorted(calls), sorted(gathers)) if changes else None


def peak_of(changes: Sequence[MemoryChange], calls: Sequence[Span], gathers: Sequence[Span] = ()) -> Allocations:
    """The peak of ``changes``, which are in order of time. ``calls``: the spans of collective calls; ``gathers``: the
    spans in which fully_shard began an all-gather; each disjoint and in order.

    A block whose address is allocated again while it is live was freed without a record. So was a block that was
    allocated in a collective's call and never freed: since the training waits for its collectives, it is free when the
    next block is allocated. An all-gather's output buffer that was never freed is free when a later one of its size is:
    they are freed in order.
    """
    alive: dict[int, int] = {}  # address: the change that allocated it
    freed: dict[int, int] = {}  # the change that allocated a block: the one that freed it
    lost: dict[int, int] = {}  # the change that allocated a block: the one by which it must be free
    in_collective, gathering = _within(changes, calls), _within(changes, gathers)
    for number, change in enumerate(changes):
        before = alive.pop(change.address, None)
        if change.bytes <= 0:
            if before is not None:
                freed[before] = number
            continue
        if before is not None:
            lost[before] = before + 1 if in_collective(before) else number
        alive[change.address] = number
    lost |= {number: number + 1 for number in alive.values() if in_collective(number)}
    next_freed: dict[int, int] = {}  # bytes: the change that frees the next buffer of an all-gather
    for number in reversed(range(len(changes))):
        size = changes[number].bytes
        if size <= 0 or not gathering(number) or in_collective(number):
            continue
        if number in freed:
            next_freed[size] = freed[number]
        elif size in next_freed:
            lost[number] = min(next_freed[size], lost.get(number, len(changes)))
    lost_bytes: dict[int, int] = {}
    for begin, end in lost.items():
        lost_bytes[end] = lost_bytes.get(end, 0) + changes[begin].bytes
    level = most = 0
    for number, change in enumerate(changes):
        level += change.bytes - lost_bytes.get(number, 0)
        most = max(most, level)
    return Allocations(most, sum(changes[number].bytes for number in lost))


def _within(changes: Sequence[MemoryChange], spans: Sequence[Span]) -> Callable[[int], bool]:
    """A function that returns whether a change, by its number, is in one of the spans (disjoint and in order)."""
    begins = [begin for begin, _ in spans]

    def within(number: int) -> bool:
        index = bisect_right(begins, changes[number].at_us) - 1
        return index >= 0 and changes[number].at_us <= spans[index][1]

    return within


# -- of run ------------------------------------------------------------------------------------------------------------
#
# The step of a run as the planner's input, from the manifest of the bundled trainer.

# Names, in the manifest, of the strategies whose step ``step_memory`` models.
_WALKED = ("ddp", "zero1", "fsdp2", "hsdp", "fsdp1", "fsdp1-no_shard")
_NUMBERS = ("layers", "dim", "heads", "kv_heads", "ffn_dim", "vocab", "seq_len", "batch_size")


def step_of_run(manifest: Manifest | None, on_device: bool) -> Step | str:
    """The step, or the reason why it is not known."""
    if manifest is None:
        return "no manifest describes the training"
    model, trainer = manifest.model, manifest.trainer
    numbers = {name: _number(model, name) for name in _NUMBERS}
    missing = [name for name, value in numbers.items() if value is None]
    if missing or not trainer:
        return f"the manifest lacks the model's {', '.join(missing)}" if missing else _FOREIGN
    strategy = (manifest.strategy or "").lower()
    sharding = sharding_of(strategy)
    ranks = manifest.world_size
    if strategy not in _WALKED or sharding is None or not ranks:
        return f"a step of {manifest.strategy or 'an unknown strategy'} is not modelled: {', '.join(_WALKED)} are"
    setup = trainer["setup"] if isinstance(trainer.get("setup"), dict) else {}
    if setup.get("comm_hook", "none") != "none" or setup.get("find_unused_parameters", "no") != "no":
        return "the allocations of DDP's communication hooks and of its search for unused parameters are not modelled"
    if any(manifest.mesh.get(axis, 1) > 1 for axis in ("tp", "pp", "cp")):
        return "the run used an axis of parallelism other than data parallelism"
    if trainer.get("checkpoint_policy", "full") != "full" or trainer.get("compile"):
        return "the activations that selective recomputation or a compiled block saves are not modelled"
    if "offload=yes" in trainer.get("settings", ()):
        return "a step with offloaded states is not modelled"
    shards = (shards_of(manifest.mesh, ranks) or ranks) if sharding != Sharding.NONE else 1
    shape = shape_of_run(model, {name: value or 0 for name, value in numbers.items()})
    precision = str(trainer.get("precision", "fp32"))
    wrap = str(trainer.get("wrap", "block"))
    kind = named(strategy)
    flat = kind is not None and kind.flat_parameters
    recipe = RECIPES["fp32" if precision == "fp32" else "fsdp-mixed"]
    return Step(
        shape=shape,
        recipe=replace(recipe, reduced=2) if trainer.get("reduce_dtype") == "bf16" else recipe,
        sharding=sharding,
        shards=shards,
        sequences=numbers["batch_size"] or 1,
        length=numbers["seq_len"] or 1,
        micro_batches=_number(trainer, "micro_batches") or 1,
        wrap=LINEAR_AND_HEAD if flat and wrap == "linear" else wrap,
        kept=_gathered_after_forward(str(trainer.get("reshard_after_forward", "yes"))),
        ahead=_number(trainer, "prefetch") or 0,
        recompute=bool(trainer.get("activation_checkpointing", False)),
        gloo=not on_device,
        kernels=Kernels(workspaces=_workspaces(manifest)) if on_device else ON_CPU,
        reduce_each=trainer.get("grad_sync") == "every",
        bucket_views=setup.get("gradient_as_bucket_view", "yes") == "yes",
        keeps_logits=False,
        flat=_flat(setup) if flat else None,
    )


_FOREIGN = "the run did not use the bundled trainer: its optimizer, dtypes and FSDP units are not recorded"
# torch 2.13 on a CPU: RMSNorm is a composition, AdamW updates one parameter at a time. Attention is flash attention
# there, too, also with grouped queries.
ON_CPU = Kernels(fused_norms=False, foreach=False, sums_queries=False)

# torch gives each thread that multiplies matrices a handle of cuBLAS with a workspace, from its own allocator and for
# good (torch 2.7 to 2.13, aten/src/ATen/cuda/CublasHandlePool.cpp: 32 MiB on Hopper, ":4096:2:16:8" elsewhere; cuBLASLt
# uses the same). Forward has one, and backward, which runs in autograd's own thread.
_THREADS = 2
_WORKSPACE, _WORKSPACE_OF_HOPPER = (2 * 4096 + 8 * 16) << 10, 32 << 20
_HOPPER = re.compile(r"(?<![A-Za-z0-9])G?H(?:20|100|200|800)(?![A-Za-z0-9])")


def _workspaces(manifest: Manifest) -> int:
    """Bytes of cuBLAS's workspaces; 0 without CUDA."""
    if not manifest.versions.get("cuda"):
        return 0
    return _THREADS * (_WORKSPACE_OF_HOPPER if _HOPPER.search(manifest.device or "") else _WORKSPACE)


def shape_of_run(model: dict[str, Any], numbers: dict[str, int]) -> Shape:
    heads = numbers["heads"]
    return Shape(
        name=str(model.get("preset", "model")),
        layers=numbers["layers"],
        hidden=numbers["dim"],
        heads=heads,
        kv_heads=numbers["kv_heads"],
        head_size=numbers["dim"] // heads,
        ffn=numbers["ffn_dim"],
        vocab=numbers["vocab"],
        tied=bool(model.get("tied", False)),
    )


def _number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _flat(setup: dict[str, Any]) -> FlatUnits:
    return FlatUnits(
        keeps=setup.get("sharding") == "shard_grad_op",
        backward_prefetch=str(setup.get("backward_prefetch", "pre")),
        forward_prefetch=setup.get("forward_prefetch") == "yes",
        padded=setup.get("use_orig_params", "yes") == "yes",
    )


def _gathered_after_forward(reshard: str) -> float:
    """The fraction of a unit's parameters that stays gathered after forward."""
    if reshard == "no":
        return 1.0
    return 1 / int(reshard) if reshard.isdecimal() and int(reshard) else 0.0


class RankPeak(Struct, frozen=True):
    """Bytes of one rank. ``reserved``: by the allocator on the device; None on a CPU. ``unseen``: freed by threads that
    the profiler does not record, and subtracted from its total."""

    rank: int
    peak: int
    reserved: int | None = None
    held: HeldRecord | None = None
    unseen: int = 0


class Compared(Struct, frozen=True):
    """``estimate`` and ``measured`` of one quantity, in bytes. ``error``: relative error of the estimate."""

    name: str
    estimate: int
    measured: int
    rank: int

    @property
    def error(self) -> float:
        return self.estimate / self.measured - 1 if self.measured else 0.0


class Measured(Struct, frozen=True):
    """``step``: the step of the run; without one ``unknown`` is the reason, and there is no estimate. ``how``: the
    source of the measured peaks. ``missing``: ranks without a peak, and why."""

    step: Step | None
    unknown: str
    estimate: Peak | None
    ranks: tuple[RankPeak, ...]
    rows: tuple[Compared, ...]
    how: str
    missing: tuple[str, ...] = ()


def measured(tables: Tables) -> Measured:
    """Measured peaks of a run, compared with the estimate. DiagError if nothing was measured."""
    on_device = tables.on_device
    peaks, missing = [], []
    for rank, rank_tables in sorted(tables.ranks.items()):
        peak = _on_device(rank_tables) if on_device else _on_cpu(rank_tables, tables.manifest)
        if isinstance(peak, str):
            missing.append(f"rank {rank}: {peak}")
        else:
            peaks.append(peak)
    if not peaks:
        hint = "record it again" if on_device else "record it with diag run --trace-memory"
        raise DiagError(f"no rank recorded its peak memory: {missing[0]}", path=str(tables.root), hint=hint)
    step = step_of_run(tables.manifest, on_device)
    how = "the CUDA allocator's peak" if on_device else "the profiler's allocations on top of those held before"
    if isinstance(step, str):
        return Measured(None, step, None, tuple(peaks), (), how, tuple(missing))
    estimate = step_peak(step)
    return Measured(step, "", estimate, tuple(peaks), tuple(_rows(step, estimate, peaks)), how, tuple(missing))


def _rows(step: Step, estimate: Peak, ranks: Sequence[RankPeak]) -> list[Compared]:
    """Rows for the peak of the fullest rank, and for its components."""
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
                "other allocations at the peak",
                _rest(estimate, states, step),
                _above(fullest.peak, held, step),
                fullest.rank,
            ),
        ]
    if fullest.reserved is not None:
        rows.append(Compared("peak, against reserved", estimate.bytes, fullest.reserved, fullest.rank))
    return rows


def _rest(estimate: Peak, states: ModelStates, step: Step) -> int:
    buckets = states.gradients if step.in_buckets else 0
    return estimate.bytes - estimate.parts[MemoryUse.PARAMETERS] - estimate.parts[MemoryUse.OPTIMIZER] - buckets


def _above(peak: int, held: HeldRecord, step: Step) -> int:
    """The part of the peak above the states that stay for the whole step: gradients outside of buckets do not."""
    permanent = held.gradients if step.in_buckets else 0
    return peak - held.parameters - held.optimizer - permanent


def _held(steps: Steps) -> HeldRecord | None:
    return next((held for held in reversed(steps.held.tolist()) if held is not None), None)


def _on_device(rank_tables: RankTables) -> RankPeak | str:
    steps = (
        rank_tables.steps[PLANNING.warm_up_steps :]
        if len(rank_tables.steps) > PLANNING.warm_up_steps
        else rank_tables.steps
    )
    allocated, reserved = (int(steps.memory_of(field).max(initial=UNKNOWN)) for field in ("allocated", "reserved"))
    if allocated == UNKNOWN:
        return "no step recorded the allocator's peak"
    known = None if reserved == UNKNOWN else reserved
    return RankPeak(rank_tables.rank, allocated, known, _held(rank_tables.steps))


def _on_cpu(rank_tables: RankTables, manifest: Manifest | None) -> RankPeak | str:
    if not rank_tables.traces:
        return "no profiler window was recorded"
    # The first window only: the profiler does not record the free of memory that was allocated in an earlier window.
    allocations = host_allocations(rank_tables.traces[0].path)
    if allocations is None:
        return "the profiler window contains no allocations"
    held = _held(rank_tables.steps)
    if held is None:
        return "the memory of model and optimizer is not recorded: the run did not reach its last step"
    permanent = held.parameters + held.optimizer + held.buffers + _buckets(held, manifest)
    return RankPeak(rank_tables.rank, permanent + allocations.peak, None, held, allocations.unseen)


def _buckets(held: HeldRecord, manifest: Manifest | None) -> int:
    """Bytes of DDP's buckets, which stay allocated between steps, whether gradients are views of them or not."""
    setup = manifest.trainer.get("setup", {}) if manifest is not None else {}
    if not isinstance(setup, dict) or "gradient_as_bucket_view" not in setup:
        return 0
    return held.gradients
