"""Every metric that leaves ``diag``, defined once: name, kind, unit, meaning. Each exporter takes them from here.

Names follow Prometheus: base units at the end, ``_total`` on counters. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """Of a metric; the values are Prometheus' names. A counter only grows while the run lasts."""

    GAUGE = "gauge"
    COUNTER = "counter"


class MetricUnit(StrEnum):
    """The values are OpenTelemetry's (UCUM)."""

    SECONDS = "s"
    BYTES = "By"
    RATIO = "1"
    NONE = ""


@dataclass(frozen=True, eq=False)  # there is one of each: told apart by identity, in dictionaries of a million samples
class Metric:
    """``per_rank``: it has a value for each rank; the others are the run's."""

    name: str
    kind: Kind
    unit: MetricUnit
    help: str
    per_rank: bool = True


class Sample(NamedTuple):
    """One value of one metric."""

    metric: Metric
    labels: Mapping[str, str]
    value: float


# Labels. What is not known is an empty label, which is none in Prometheus.
RUN, RANK, HOST, GPU = "run", "rank", "host", "gpu"
PART, OP, GROUP = "part", "op", "group"
STAT = "stat"  # of a summary: min, mean, max over the ranks

RECENT = 20  # steps: what "lately" means below

_LATELY = f"mean of the last {RECENT} finished steps"
_PARTS = "by part; parts add up to the step"

STEPS = Metric("diag_steps_total", Kind.COUNTER, MetricUnit.NONE, "Steps finished.")
STEP_SECONDS = Metric("diag_step_seconds_total", Kind.COUNTER, MetricUnit.SECONDS, "Time in finished steps.")
PART_SECONDS = Metric(
    "diag_step_part_seconds_total", Kind.COUNTER, MetricUnit.SECONDS, f"Time in finished steps, {_PARTS}."
)
STEP_DURATION = Metric("diag_step_duration_seconds", Kind.GAUGE, MetricUnit.SECONDS, f"Step time, {_LATELY}.")
PART_DURATION = Metric(
    "diag_step_part_duration_seconds", Kind.GAUGE, MetricUnit.SECONDS, f"Step time {_PARTS}; {_LATELY}."
)
TOKENS = Metric("diag_tokens_total", Kind.COUNTER, MetricUnit.NONE, "Tokens in finished steps.")
TOKEN_RATE = Metric(
    "diag_tokens_per_second", Kind.GAUGE, MetricUnit.NONE, f"Tokens a second over the last {RECENT} finished steps."
)
LAST_STEP = Metric("diag_last_step", Kind.GAUGE, MetricUnit.NONE, "Number of the last finished step.")
LAST_STEP_TIME = Metric(
    "diag_last_step_timestamp_seconds", Kind.GAUGE, MetricUnit.SECONDS, "When the last finished step ended, Unix time."
)
HEARTBEAT_TIME = Metric(
    "diag_heartbeat_timestamp_seconds",
    Kind.GAUGE,
    MetricUnit.SECONDS,
    "When the process last said that it lives, Unix time.",
)
HEARTBEAT_AGE = Metric(
    "diag_heartbeat_age_seconds", Kind.GAUGE, MetricUnit.SECONDS, "Time since the last heartbeat when this was read."
)
ALLOCATED = Metric(
    "diag_device_memory_allocated_peak_bytes",
    Kind.GAUGE,
    MetricUnit.BYTES,
    "Most allocated on the device in the last step.",
)
RESERVED = Metric(
    "diag_device_memory_reserved_peak_bytes",
    Kind.GAUGE,
    MetricUnit.BYTES,
    "Most reserved on the device in the last step.",
)
CAPACITY = Metric("diag_device_memory_capacity_bytes", Kind.GAUGE, MetricUnit.BYTES, "Memory of the device.")
RETRIES = Metric(
    "diag_device_memory_alloc_retries_total", Kind.COUNTER, MetricUnit.NONE,
    "Allocations that needed the cache to be emptied first.",
)  # fmt: skip
RESIDENT = Metric(
    "diag_process_resident_memory_bytes",
    Kind.GAUGE,
    MetricUnit.BYTES,
    "Resident memory of the process in the last step.",
)
COLLECTIVES = Metric("diag_collectives_total", Kind.COUNTER, MetricUnit.NONE, "Collectives called, by op and group.")
COLLECTIVE_SECONDS = Metric(
    "diag_collective_seconds_total", Kind.COUNTER, MetricUnit.SECONDS,
    "Time from the start of each collective to its end on this rank, waiting for others included; they can overlap.",
)  # fmt: skip
COLLECTIVE_BYTES = Metric(
    "diag_collective_bytes_total", Kind.COUNTER, MetricUnit.BYTES, "Full tensors of the collectives called."
)
UNREADABLE = Metric(
    "diag_unreadable_lines_total",
    Kind.COUNTER,
    MetricUnit.NONE,
    "Lines of the records that could not be read; left out.",
)
ANALYSED_PART = Metric(
    "diag_analysed_step_part_seconds", Kind.GAUGE, MetricUnit.SECONDS,
    f"Step time {_PARTS}; mean of the steps that the last diag analyze counted, waiting told from transfer.",
)  # fmt: skip

RUN_INFO = Metric("diag_run_info", Kind.GAUGE, MetricUnit.NONE, "What is run; always 1.", per_rank=False)
WORLD_SIZE = Metric("diag_world_size", Kind.GAUGE, MetricUnit.NONE, "Ranks that the run should have.", per_rank=False)
RANKS = Metric("diag_ranks", Kind.GAUGE, MetricUnit.NONE, "Ranks whose records are followed.", per_rank=False)
EXIT_CODE = Metric(
    "diag_run_exit_code", Kind.GAUGE, MetricUnit.NONE, "How the run ended; missing while it lasts.", per_rank=False
)
MFU = Metric(
    "diag_mfu_ratio",
    Kind.GAUGE,
    MetricUnit.RATIO,
    f"Model FLOPs utilisation over the last {RECENT} steps.",
    per_rank=False,
)
VERDICT_INFO = Metric(
    "diag_verdict_info", Kind.GAUGE, MetricUnit.NONE, "The answer of the last diag analyze; always 1.", per_rank=False
)
VERDICT_SHARE = Metric(
    "diag_verdict_share_ratio", Kind.GAUGE, MetricUnit.RATIO, "Part of the step that the verdict's cause costs.",
    per_rank=False,
)  # fmt: skip
VERDICT_CONFIDENCE = Metric(
    "diag_verdict_confidence_ratio", Kind.GAUGE, MetricUnit.RATIO, "How sure the verdict is, 0 to 1.", per_rank=False
)
VERDICT_TIME = Metric(
    "diag_verdict_timestamp_seconds", Kind.GAUGE, MetricUnit.SECONDS, "When the last diag analyze answered, Unix time.",
    per_rank=False,
)  # fmt: skip

METRICS = (
    RUN_INFO, WORLD_SIZE, RANKS, EXIT_CODE, MFU, VERDICT_INFO, VERDICT_SHARE, VERDICT_CONFIDENCE, VERDICT_TIME,
    STEPS, STEP_SECONDS, STEP_DURATION, PART_SECONDS, PART_DURATION, ANALYSED_PART, TOKENS, TOKEN_RATE,
    LAST_STEP, LAST_STEP_TIME, HEARTBEAT_TIME, HEARTBEAT_AGE,
    ALLOCATED, RESERVED, CAPACITY, RETRIES, RESIDENT,
    COLLECTIVES, COLLECTIVE_SECONDS, COLLECTIVE_BYTES, UNREADABLE,
)  # fmt: skip
