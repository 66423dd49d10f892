"""Memory of each rank over the run: peaks, growth, fragmentation, retries, and what of it the model's states are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from diag.collectors.records import Manifest, MemoryRecord, StepRecord
from diag.model.states import ADAM_FP32, ModelStates, Sharding, model_states, sharding_of, shards_of
from diag.model.steps import Attribution
from diag.rundir.run import RankTables, Tables

_LEAST_STEPS = 8  # for a slope: with fewer, one large batch makes one
_PARTS, _MOST_OF, _CONTINUES = 5, 0.75, 0.25  # of the run, in most of which it grows by a quarter of the slope or more,
# and by as much without its largest rise
_JUMP, _LEAST_JUMP = 0.5, 1_000_000  # of what a run grows by, and bytes: so much from one step to the next is a jump


class RankMemory(Struct, frozen=True):
    """One rank's memory in bytes: on a device the allocator's, on a CPU the process's resident set (``allocated``).

    ``growth_per_step``: the median slope between the counted steps (Theil-Sen), None where they are too few; 0 where it
    grows in a few steps only. ``jump``: the largest of these few, as (step, bytes); None where there is none.
    ``fragmentation``: the fraction of the reserved memory in the fullest step that was never allocated at once; None
    without a device. ``retries`` and ``ooms``: since the first recorded step; None where not recorded.
    """

    rank: int
    allocated: int
    reserved: int | None
    capacity: int | None
    growth_per_step: int | None
    fragmentation: float | None
    retries: int | None
    ooms: int | None
    jump: tuple[int, int] | None = None

    @property
    def peak(self) -> int:
        """The peak that counts against the capacity."""
        return self.reserved if self.reserved is not None else self.allocated


class StatesEstimate(Struct, frozen=True):
    """Bytes of the model's states on each rank by formula, or the ``reason`` why they are unknown. ``basis``:
    parameters, strategy, types."""

    states: ModelStates | None
    reason: str = ""
    basis: str = ""


class RankPeaks(Struct, frozen=True):
    """The one home of peaks: what every page, report, budget and finding shows. A row without growth for each rank that
    recorded memory. ``on_device``: the rows are an allocator's. ``of_steps``: recorded in each step; else the peaks are
    those of the allocator's samples in traces, which the two peaks need not share."""

    rows: tuple[RankMemory, ...]
    on_device: bool
    of_steps: bool

    @property
    def highest(self) -> RankMemory | None:
        """The rank with the largest peak, the first of equal ones; None where none recorded memory."""
        return max(self.rows, key=lambda row: row.peak, default=None)

    @property
    def definition(self) -> str:
        """What a peak is, for people: tools differ in it."""
        if not self.on_device:
            return "The largest resident set of the process in any step; the run is on a CPU."
        recorded = "in any step" if self.of_steps else "in the profiled windows: a step outside of them may need more"
        return (
            f"The most that PyTorch's allocator reserved on the device {recorded}. Reserved is what the allocator took "
            "from the device (torch.cuda.max_memory_reserved); allocated, the part in use by tensors, is less "
            "(max_memory_allocated). nvidia-smi shows more: also the CUDA context, NCCL's buffers and other processes."
        )


class MemoryTable(Struct, frozen=True):
    """``RankPeaks`` with the growth of each rank and, by formula, what the model's states take."""

    rows: tuple[RankMemory, ...]
    on_device: bool
    of_steps: bool
    estimate: StatesEstimate


def rank_peaks(tables: Tables) -> RankPeaks:
    """From the records of all steps, also those that the verdict leaves out; else from traces."""
    recorded = {rank: _recorded(of_rank) for rank, of_rank in sorted(tables.ranks.items())}
    on_device = any(memory.allocated is not None for of_rank in recorded.values() for _, memory in of_rank)
    rows = [_row(rank, of_rank, on_device) for rank, of_rank in recorded.items() if of_rank]
    known = tuple(row for row in rows if row is not None)
    if known:
        return RankPeaks(known, on_device, True)
    peaks = [_traced_peak(of_rank) for _, of_rank in sorted(tables.ranks.items())]
    traced = tuple(peak for peak in peaks if peak is not None)
    return RankPeaks(traced, bool(traced), False)


def memory_table(tables: Tables, attribution: Attribution) -> MemoryTable:
    """From the records of all steps; growth from those that the verdict counts."""
    counted = frozenset(step.step for step in attribution.usable or attribution.steps)
    peaks = rank_peaks(tables)
    rows = tuple(_with_growth(row, _held(tables.ranks[row.rank], peaks.on_device), counted) for row in peaks.rows)
    return MemoryTable(rows, peaks.on_device, peaks.of_steps, estimate_of(tables.manifest))


class Peak(Struct, frozen=True):
    """The largest peak of all ranks in bytes. ``unknown``: how many ranks recorded none. ``of_steps`` False: from
    traces' samples only."""

    rank: int
    bytes: int
    capacity: int | None
    on_device: bool
    of_steps: bool
    unknown: int
    definition: str


def peak_memory(tables: Tables, attribution: Attribution) -> Peak | None:
    """The peak that every page, report and budget shows; None where no rank recorded memory."""
    peaks = rank_peaks(tables)
    highest = peaks.highest
    if highest is None:
        return None
    capacity = min((row.capacity for row in peaks.rows if row.capacity), default=None) if peaks.on_device else None
    return Peak(
        highest.rank,
        highest.peak,
        capacity,
        peaks.on_device,
        peaks.of_steps,
        len(attribution.ranks) - len(peaks.rows),
        peaks.definition,
    )


def _traced_peak(rank: RankTables) -> RankMemory | None:
    """From the allocator's samples in traces recorded with ``profile_memory``; host memory is type 0. Of samples
    without totals (torch before 1.10) no peak is known."""
    samples = [trace.counters.filter(pl.col("device_type") != 0).drop_nulls("allocated") for trace in rank.traces]
    of_devices = [one.group_by("device").agg(pl.col("allocated", "reserved").max()) for one in samples]
    held = [(int(a), int(r or a)) for one in of_devices for _, a, r in one.iter_rows()]
    if not held:
        return None
    allocated, reserved = (max(column) for column in zip(*held, strict=True))
    loose = 1 - allocated / reserved if reserved else None
    return RankMemory(rank.rank, allocated, reserved, None, None, loose, None, None)


def estimate_of(manifest: Manifest | None) -> StatesEstimate:
    if manifest is None:
        return StatesEstimate(None, "no manifest describes what was trained")
    parameters = manifest.model.get("parameters")
    if not isinstance(parameters, int) or parameters <= 0:
        return StatesEstimate(None, "the manifest does not say how many parameters the model has")
    sharding = sharding_of(manifest.strategy or "")
    if sharding is None:
        return StatesEstimate(None, f"what strategy {manifest.strategy or '?'} shards is not known")
    shards = shards_of(manifest.mesh, manifest.world_size)
    if shards is None and sharding != Sharding.NONE:
        return StatesEstimate(None, "over how many ranks the model is sharded is not known")
    if not manifest.trainer:
        return StatesEstimate(None, "which optimizer and types were trained with is not recorded")
    # The bundled trainer: AdamW, and parameters in fp32 with any --precision.
    states = model_states(parameters, sharding, shards or 1, ADAM_FP32)
    cut = "" if sharding == Sharding.NONE else f"; {sharding.value} cut over {shards} ranks"
    each = ADAM_FP32
    basis = (
        f"{parameters:,} parameters at {each.parameters} + {each.gradients} + {each.optimizer} bytes for parameters, "
        f"gradients and Adam's two moments in fp32{cut}"
    )
    return StatesEstimate(states, "", basis)


def _recorded(tables: RankTables) -> list[tuple[StepRecord, MemoryRecord]]:
    return [(record, record.memory) for record in tables.steps if record.memory is not None]


def _row(rank: int, records: Sequence[tuple[StepRecord, MemoryRecord]], on_device: bool) -> RankMemory | None:
    memories = [memory for _, memory in records if not on_device or memory.allocated is not None]
    if not memories:
        return None
    fullest = max(memories, key=_reserved) if on_device else None
    return RankMemory(
        rank=rank,
        allocated=max((memory.allocated or 0) if on_device else memory.rss for memory in memories),
        reserved=_reserved(fullest) if fullest is not None else None,
        capacity=min((m.capacity for m in memories if m.capacity), default=None),
        growth_per_step=None,
        fragmentation=_fragmentation(fullest) if fullest is not None else None,
        retries=_since_first([m.alloc_retries for m in memories]),
        ooms=_since_first([m.ooms for m in memories]),
    )


def _with_growth(row: RankMemory, every: Sequence[tuple[int, int]], counted: frozenset[int]) -> RankMemory:
    growth = growth_of([held for held in every if held[0] in counted], every)
    return replace(row, growth_per_step=growth.per_step, jump=growth.jump)


def _held(rank: RankTables, on_device: bool) -> list[tuple[int, int]]:
    """(step, bytes) of every step."""
    records = [(step.step, memory) for step, memory in _recorded(rank)]
    if not on_device:
        return [(step, memory.rss) for step, memory in records]
    return [(step, memory.allocated) for step, memory in records if memory.allocated is not None]


def _reserved(memory: MemoryRecord) -> int:
    return memory.reserved if memory.reserved is not None else memory.allocated or 0


def _fragmentation(memory: MemoryRecord) -> float | None:
    if memory.reserved is None or not memory.reserved:
        return None
    return max(0.0, 1 - (memory.allocated or 0) / memory.reserved)


def _since_first(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return known[-1] - known[0] if known else None


class Growth(Struct, frozen=True):
    """``per_step``: bytes, None where the steps are too few. ``jump``: see ``RankMemory``."""

    per_step: int | None
    jump: tuple[int, int] | None = None


def growth_of(held: Sequence[tuple[int, int]], every: Sequence[tuple[int, int]]) -> Growth:
    """Of (step, bytes), in order: ``held`` of the counted steps, ``every`` of all. The median of the slopes between all
    pairs of steps (Theil-Sen): one large batch makes no slope. A process that loads a library, or writes a trace, takes
    its memory in a few steps and keeps it: it grows only if most parts of the run do, and without the largest rise
    from one counted step to the next as well. Else that rise is the jump."""
    if len(held) < _LEAST_STEPS:
        return Growth(None)
    slope = _slope(held)
    rises = [size - before for (_, before), (_, size) in pairwise(held)]
    at = int(np.argmax(rises))
    without = [(step, size - (rises[at] if place > at else 0)) for place, (step, size) in enumerate(held)]
    if slope > 0 and _lasting(held, slope) and _slope(without) >= _CONTINUES * slope:
        return Growth(round(slope))
    whole = held[-1][1] - held[0][1]
    if rises[at] < max(_LEAST_JUMP, _JUMP * whole) or whole < _JUMP * rises[at]:
        return Growth(min(0, round(slope)))
    (since, _), (until, _) = held[at], held[at + 1]
    between = [(size - before, step) for (_, before), (step, size) in pairwise(every) if since < step <= until]
    return Growth(min(0, round(slope)), (max(between)[1], rises[at]))


def _slope(held: Sequence[tuple[int, int]]) -> float:
    # Every n-th step of a long run: half a million pairs say what is to be said.
    thinned = held[:: max(1, len(held) // 1000)]
    step, size = (np.array(column, dtype=np.float64) for column in zip(*thinned, strict=True))
    later, earlier = np.triu_indices(len(step), 1)[::-1]
    return float(np.median((size[later] - size[earlier]) / (step[later] - step[earlier])))


def _lasting(held: Sequence[tuple[int, int]], slope: float) -> bool:
    """Whether most parts of the run grow as well, each by a part of what the slope says of it: medians of neighbouring
    parts are compared, so that no single step decides."""
    parts = np.array_split(np.array(held, dtype=np.float64), _PARTS)
    grown = [np.median(later, axis=0) - np.median(part, axis=0) for part, later in pairwise(parts)]
    return sum(bool(rise >= _CONTINUES * slope * steps) for steps, rise in grown) >= _MOST_OF * len(grown)
