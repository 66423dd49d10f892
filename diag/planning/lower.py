"""What would lower the peak of a run's device memory.

Where the model and the training are known, each change is simulated, allocation by allocation (``step_memory``), if the
simulation of the run itself agrees with what was measured. Else the model's states by formula bound what the rest is.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from diag.diagnoses.policy import MEMORY_USE
from diag.model.memory import Lower, Lowered
from diag.rundir.tables import Tables
from diag.tables.memory import MemoryTable, RankMemory
from diag.tables.would_fit import CHECKPOINTING, HALF, lower_peaks
from diag.words import sentences
from diag.words.formatting import share, size

from .measured import step_of_run
from .policy import PLANNING
from .step_memory import Step, step_peak


def lowered(tables: Tables, memory: MemoryTable) -> Lowered | None:
    """Of the rank whose device is the fullest. None without a device. No change where much of its memory stays free."""
    rows = [row for row in memory.rows if row.reserved is not None]
    if not memory.on_device or not rows:
        return None
    fullest = max(rows, key=lambda row: row.peak)
    grows = any((row.growth_per_step or 0) > 0 for row in rows)
    if fullest.capacity and not grows and fullest.peak <= MEMORY_USE.roomy_share * fullest.capacity:
        left = fullest.capacity - fullest.peak
        return Lowered((), sentences.MEMORY_IS_FREE(free=size(left), capacity=size(fullest.capacity)), 0)
    return _simulated(tables, fullest) or _by_formula(tables, fullest)


def _simulated(tables: Tables, row: RankMemory) -> Lowered | None:
    """None where the step is not known, or its simulation differs from what was measured."""
    step = step_of_run(tables.manifest, on_device=True)
    if isinstance(step, str):
        return None
    before = step_peak(step).bytes
    error = before / row.allocated - 1 if row.allocated else 1.0
    if abs(error) > PLANNING.peak_error_share:
        return None
    changes = [
        Lower(change, row.allocated - frees, frees, at_most=False, risk=risk)
        for change, risk, changed in _changed(step)
        if (frees := before - step_peak(changed).bytes) > 0
    ]
    unused = [lower for lower in _without_history(tables, row) if lower.change.startswith("PYTORCH")]
    return Lowered(
        tuple(sorted([*changes, *unused], key=lambda lower: -lower.frees)),
        sentences.PEAK_IS_SIMULATED(peak=size(before), measured=size(row.allocated), error=share(abs(error))),
        row.allocated,
    )


def _changed(step: Step) -> Iterator[tuple[str, str, Step]]:
    """Change, its price, and the step with it."""
    if step.sequences % 2 == 0:
        yield (*HALF, replace(step, sequences=step.sequences // 2, micro_batches=2 * step.micro_batches))
    if not step.recompute:
        yield (*CHECKPOINTING, replace(step, recompute=True))


def _by_formula(tables: Tables, row: RankMemory) -> Lowered:
    """Without changes of which no more is known than that they free at most nearly everything."""
    found = tuple(
        lower
        for lower in _without_history(tables, row)
        if not lower.at_most or lower.frees <= PLANNING.most_of_a_bound * row.allocated
    )
    return Lowered(found, sentences.PEAK_IS_BOUNDED() if found else sentences.PEAK_IS_NOT_KNOWN(), row.allocated)


def _without_history(tables: Tables, row: RankMemory) -> tuple[Lower, ...]:
    unused = None if row.reserved is None else row.reserved - row.allocated
    return lower_peaks(None, unused, "", tables.manifest, row.allocated)
