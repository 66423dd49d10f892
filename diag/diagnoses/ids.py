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
ALLOCATOR_RETRIES, NEAR_OUT_OF_MEMORY = "allocator-retries", "near-out-of-memory"
EXPOSED_COMMUNICATION: Final = "exposed-communication"
WAITING_FOR_MISSING: Final = "waiting-for-missing-ranks"
# Of collectives that some ranks did not record: nothing tells the waiting for these ranks from the transfer.
OPEN_WAITS = frozenset({EXPOSED_COMMUNICATION, WAITING_FOR_MISSING})
NOT_FINITE: Final = "not-finite"
UNHEALTHY_MEMORY: Final = "unhealthy-memory"
# They cost no time, but may end the run or make it worthless.
DANGERS = frozenset({ALLOCATOR_RETRIES, NEAR_OUT_OF_MEMORY, NOT_FINITE, UNHEALTHY_MEMORY})
