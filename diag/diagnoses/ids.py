"""Ids of findings that others than their own module name: the verdict treats each of these in a way of its own."""

from __future__ import annotations

from typing import Final

CODE_BETWEEN_PHASES: Final = "code-between-phases"
EXPERT_IMBALANCE: Final = "expert-imbalance"
LOW_MFU: Final = "low-mfu"
PIPELINE_BUBBLE: Final = "pipeline-bubble"
RANKS_TRAIN_ALONE: Final = "ranks-train-alone"
SHARED_GPU: Final = "shared-gpu"
SLOW_LINK: Final = "slow-link"
STRAGGLER: Final = "straggler"  # the diagnosis, and the finding that rests on durations of collectives alone
COMPUTE_STRAGGLER, COMPUTE_IMBALANCE = "compute-straggler", "compute-imbalance"
ONE_OR_ALL = frozenset({COMPUTE_STRAGGLER, COMPUTE_IMBALANCE})
