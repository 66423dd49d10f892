"""What of a step the stages of a pipeline stand still by its schedule alone: what a finding measures against, and what
a plan and the linter foretell."""

from __future__ import annotations


def bubble(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Part of the step in which a stage waits, where all passes take equally long: of ``micro_batches`` ideal units,
    (p - 1) / v more. As part of the whole step (p - 1) / (v m + p - 1); Narayanan et al. give it as part of the ideal
    time, (p - 1) / (v m)."""
    idle = stages - 1
    return idle / (chunks * micro_batches + idle)
