"""Memory of each rank over the run: peaks, growth, fragmentation, retries, and the share of the model's states."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diag.collectors.records import Manifest, MemoryRecord
from diag.deferred import pl
from diag.model import UNKNOWN
from diag.model.accounts import Attribution
from diag.model.states import ADAM_FP32, ModelStates, Sharding, model_states, sharding_of, shards_of
from diag.rundir.columns import Ints, Steps
from diag.rundir.tables import RankTables, Tables
from diag.tables.policy import MEMORY_GROWTH
from diag.traces.trace import Trace
from diag.words.formatting import counted


class RankMemory(Struct, frozen=True):
    """One rank's memory in bytes: on a device the allocator's, on a CPU the process's resident set (``allocated``).

    ``growth_per_step``: the median slope between the counted steps (Theil-Sen), None if they are too few; 0 if it grows
    in a few steps only. ``jump``: the largest of these few, as (step, bytes); None if there is none. ``fragmentation``:
    the fraction of the reserved memory in the fullest step that was never allocated at once; None without a device.
    ``retries`` and ``ooms``: since the first recorded step; None if not recorded.
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
    """The single source of peaks for every page, report, budget and finding. A row without growth for each rank that
    recorded memory. ``on_device``: the rows are an allocator's. ``of_steps``: recorded in each step; else the peaks are
    those of the allocator's samples in traces, whose two peaks may be at different times."""

    rows: tuple[RankMemory, ...]
    on_device: bool
    of_steps: bool

    @property
    def highest(self) -> RankMemory | None:
        """The rank with the largest peak, the first of equal ones; None if none recorded memory."""
        return max(self.rows, key=lambda row: row.peak, default=None)

    @property
    def definition(self) -> str:
        """The definition of a peak, for users: tools differ in it."""
        if not self.on_device:
            return "The largest resident set of the process in any step; the run is on a CPU."
        recorded = "in any step" if self.of_steps else "in the profiled windows: a step outside of them may need more"
        return (
            f"The most that PyTorch's allocator reserved on the device {recorded}. Reserved is what the allocator took "
            "from the device (torch.cuda.max_memory_reserved); allocated, the part in use by tensors, is less "
            "(max_memory_allocated). nvidia-smi shows more: also the CUDA context, NCCL's buffers and other processes."
        )


class MemoryTable(Struct, frozen=True):
    """``RankPeaks`` with the growth of each rank and, by formula, the memory of the model's states."""

    rows: tuple[RankMemory, ...]
    on_device: bool
    of_steps: bool
    estimate: StatesEstimate


def rank_peaks(tables: Tables) -> RankPeaks:
    """From the records of all steps, also those that the verdict leaves out; of very many ranks, from what their
    summaries have of these; else from traces."""
    if any(of_rank.memory for of_rank in tables.ranks.values()):
        return _condensed_peaks(tables)
    recorded = {rank: _recorded(of_rank) for rank, of_rank in sorted(tables.ranks.items()) if of_rank.steps}
    on_device = any((steps.memory_of("allocated") != UNKNOWN).any() for steps in recorded.values())
    rows = [_row(rank, steps, on_device) for rank, steps in recorded.items()]
    known = tuple(row for row in rows if row is not None)
    if known:
        return RankPeaks(known, on_device, True)
    peaks = [_traced_peak(of_rank) for _, of_rank in sorted(tables.ranks.items()) if of_rank.traces]
    traced = tuple(peak for peak in peaks if peak is not None)
    return RankPeaks(traced, bool(traced), False)


def memory_table(tables: Tables, attribution: Attribution) -> MemoryTable:
    """From the records of all steps; growth from those that the verdict counts."""
    counted = attribution.counted.numbers
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
    """The peak that every page, report and budget shows; None if no rank recorded memory."""
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


def _condensed_peaks(tables: Tables) -> RankPeaks:
    on_device = any(record.allocated is not None for of_rank in tables.ranks.values() for record in of_rank.memory)
    rows = (_condensed(rank, of_rank.memory, on_device) for rank, of_rank in sorted(tables.ranks.items()))
    return RankPeaks(tuple(row for row in rows if row is not None), on_device, True)


def _condensed(rank: int, parts: Sequence[MemoryRecord], on_device: bool) -> RankMemory | None:
    """``parts``: the peaks of consecutive steps, and the counts at their ends. What was counted in the first of them is
    not known: it may be of before."""
    held = [(part.allocated if on_device else part.rss, part.reserved) for part in parts]
    known = [(allocated, reserved or allocated) for allocated, reserved in held if allocated is not None]
    if not known:
        return None
    capacities = [part.capacity for part in parts if part.capacity]

    def since(counts: list[int | None]) -> int | None:
        there = [count for count in counts if count is not None]
        return max(0, there[-1] - there[0]) if there else None

    return RankMemory(
        rank=rank,
        allocated=max(allocated for allocated, _ in known),
        reserved=max(reserved for _, reserved in known) if on_device else None,
        capacity=min(capacities, default=None),
        growth_per_step=None,
        fragmentation=None,  # the peaks of a part may be those of different steps
        retries=since([part.alloc_retries for part in parts]),
        ooms=since([part.ooms for part in parts]),
    )


def _traced_peak(rank: RankTables) -> RankMemory | None:
    """From the allocator's samples in traces recorded with ``profile_memory``; host memory is type 0. None for samples
    without totals (torch before 1.10)."""
    held = [peak for trace in rank.traces for peak in _sampled_peaks(trace)]
    if not held:
        return None
    allocated, reserved = (max(column) for column in zip(*held, strict=True))
    loose = 1 - allocated / reserved if reserved else None
    return RankMemory(rank.rank, allocated, reserved, None, None, loose, None, None)


_SAMPLED: WeakKeyDictionary[Trace, list[tuple[int, int]]] = WeakKeyDictionary()


def _sampled_peaks(trace: Trace) -> list[tuple[int, int]]:
    """The most that was allocated and reserved on each device. Kept: several diagnoses ask for it."""
    if trace not in _SAMPLED:
        samples = trace.counters.filter(pl.col("device_type") != 0).drop_nulls("allocated")
        peaks = samples.group_by("device").agg(pl.col("allocated", "reserved").max())
        _SAMPLED[trace] = [(int(a), int(r or a)) for _, a, r in peaks.iter_rows()]
    return _SAMPLED[trace]


def estimate_of(manifest: Manifest | None) -> StatesEstimate:
    if manifest is None:
        return StatesEstimate(None, "no manifest describes the training")
    parameters = manifest.model.get("parameters")
    if not isinstance(parameters, int) or parameters <= 0:
        return StatesEstimate(None, "the manifest has no parameter count")
    sharding = sharding_of(manifest.strategy or "")
    if sharding is None:
        return StatesEstimate(None, f"unknown sharding of strategy {manifest.strategy or '?'}")
    shards = shards_of(manifest.mesh, manifest.world_size)
    if shards is None and sharding != Sharding.NONE:
        return StatesEstimate(None, "unknown number of ranks that the model is sharded over")
    if not manifest.trainer:
        return StatesEstimate(None, "the optimizer and dtypes of the training are not recorded")
    # The bundled trainer: AdamW, and parameters in fp32 with any --precision.
    states = model_states(parameters, sharding, shards or 1, ADAM_FP32)
    cut = "" if sharding == Sharding.NONE else f"; {sharding.value} sharded over {counted(shards or 1, 'rank')}"
    each = ADAM_FP32
    basis = (
        f"{parameters:,} parameters at {each.parameters} + {each.gradients} + {each.optimizer} bytes for parameters, "
        f"gradients and Adam's two moments in fp32{cut}"
    )
    return StatesEstimate(states, "", basis)


def _recorded(tables: RankTables) -> Steps:
    """The steps that recorded memory."""
    return tables.steps.take(tables.steps.memory_of("rss") != UNKNOWN)


def _row(rank: int, steps: Steps, on_device: bool) -> RankMemory | None:
    steps = steps.take(steps.memory_of("allocated") != UNKNOWN) if on_device else steps
    if not steps:
        return None
    allocated = steps.memory_of("allocated" if on_device else "rss")
    reserved = np.where(steps.memory_of("reserved") == UNKNOWN, allocated, steps.memory_of("reserved"))
    fullest = int(reserved.argmax())
    capacity = steps.memory_of("capacity")
    capacity = capacity[(capacity != UNKNOWN) & (capacity != 0)]
    return RankMemory(
        rank=rank,
        allocated=int(allocated.max()),
        reserved=int(reserved[fullest]) if on_device else None,
        capacity=int(capacity.min()) if len(capacity) else None,
        growth_per_step=None,
        fragmentation=_fragmentation(steps, fullest) if on_device else None,
        retries=_since_first(steps.memory_of("alloc_retries")),
        ooms=_since_first(steps.memory_of("ooms")),
    )


def _with_growth(row: RankMemory, every: Sequence[tuple[int, int]], counted: frozenset[int]) -> RankMemory:
    growth = growth_of([held for held in every if held[0] in counted], every)
    return replace(row, growth_per_step=growth.per_step, jump=growth.jump)


def _held(rank: RankTables, on_device: bool) -> list[tuple[int, int]]:
    """(step, bytes) of every step."""
    held = rank.steps.memory_of("allocated" if on_device else "rss")
    known = held != UNKNOWN
    return list(zip(rank.steps.step[known].tolist(), held[known].tolist(), strict=True))


def _fragmentation(steps: Steps, at: int) -> float | None:
    allocated, reserved = (int(steps.memory_of(field)[at]) for field in ("allocated", "reserved"))
    return max(0.0, 1 - allocated / reserved) if reserved not in (0, UNKNOWN) else None


def _since_first(counts: Ints) -> int | None:
    known = counts[counts != UNKNOWN]
    return int(known[-1] - known[0]) if len(known) else None


class Growth(Struct, frozen=True):
    """``per_step``: bytes, None if the steps are too few. ``jump``: see ``RankMemory``."""

    per_step: int | None
    jump: tuple[int, int] | None = None


def growth_of(held: Sequence[tuple[int, int]], every: Sequence[tuple[int, int]]) -> Growth:
    """From (step, bytes), in order: ``held`` for the counted steps, ``every`` for all. The median of the slopes between
    all pairs of steps (Theil-Sen): one large batch makes no slope. A process that loads a library, or writes a trace,
    takes its memory in a few steps and keeps it. So it counts as growing only if most parts of the run grow, also
    without the largest rise from one counted step to the next. Else that rise is the jump."""
    if len(held) < MEMORY_GROWTH.least_steps:
        return Growth(None)
    slope = _slope(held)
    rises = [size - before for (_, before), (_, size) in pairwise(held)]
    at = int(np.argmax(rises))
    without = [(step, size - (rises[at] if place > at else 0)) for place, (step, size) in enumerate(held)]
    if slope > 0 and _lasting(held, slope) and _slope(without) >= MEMORY_GROWTH.growth_of_a_part * slope:
        return Growth(round(slope))
    whole = held[-1][1] - held[0][1]
    if (
        rises[at] < max(MEMORY_GROWTH.least_jump_bytes, MEMORY_GROWTH.jump_share * whole)
        or whole < MEMORY_GROWTH.jump_share * rises[at]
    ):
        return Growth(min(0, round(slope)))
    (since, _), (until, _) = held[at], held[at + 1]
    between = [(size - before, step) for (_, before), (step, size) in pairwise(every) if since < step <= until]
    return Growth(min(0, round(slope)), (max(between)[1], rises[at]))


def _slope(held: Sequence[tuple[int, int]]) -> float:
    # Every n-th step of a long run: half a million pairs are enough.
    thinned = held[:: max(1, len(held) // 1000)]
    step, size = (np.array(column, dtype=np.float64) for column in zip(*thinned, strict=True))
    later, earlier = np.triu_indices(len(step), 1)[::-1]
    return float(np.median((size[later] - size[earlier]) / (step[later] - step[earlier])))


def _lasting(held: Sequence[tuple[int, int]], slope: float) -> bool:
    """Whether most parts of the run grow as well, each by a fraction of the growth that the slope predicts: medians of
    neighbouring parts are compared, so that no single step decides."""
    parts = np.array_split(np.array(held, dtype=np.float64), MEMORY_GROWTH.parts)
    grown = [np.median(later, axis=0) - np.median(part, axis=0) for part, later in pairwise(parts)]
    return sum(
        bool(rise >= MEMORY_GROWTH.growth_of_a_part * slope * steps) for steps, rise in grown
    ) >= MEMORY_GROWTH.growing_parts_share * len(grown)
