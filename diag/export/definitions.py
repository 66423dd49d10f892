"""Every exported metric, defined once: name, kind, unit, meaning; and the Grafana dashboard of them.

Names follow Prometheus: base units at the end, ``_total`` on counters. Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class Kind(StrEnum):
    """Kinds of metrics, by Prometheus' names. A counter only grows while the run lasts."""

    GAUGE = "gauge"
    COUNTER = "counter"


class MetricUnit(StrEnum):
    """Units of metrics; the values are OpenTelemetry's (UCUM)."""

    SECONDS = "s"
    BYTES = "By"
    RATIO = "1"
    NONE = ""


@dataclass(frozen=True, eq=False)  # compared by identity, which is faster with a million samples
class Metric:
    """A metric. ``per_rank``: it has one value per rank; otherwise one per run."""

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


# Labels. An unknown value is an empty label, which Prometheus treats as missing.
RUN, RANK, HOST, GPU = "run", "rank", "host", "gpu"
PART, OP, GROUP = "part", "op", "group"
DEVICE, NAME = "device", "name"  # of a reading of a host
STAT = "stat"  # of a summary: min, mean, max over the ranks

RECENT = 20  # number of the last finished steps in "recent" metrics

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
    "diag_tokens_per_second", Kind.GAUGE, MetricUnit.NONE, f"Tokens per second over the last {RECENT} finished steps."
)
LAST_STEP = Metric("diag_last_step", Kind.GAUGE, MetricUnit.NONE, "Number of the last finished step, by the heartbeat.")
LAST_STEP_TIME = Metric(
    "diag_last_step_timestamp_seconds", Kind.GAUGE, MetricUnit.SECONDS, "End of the last finished step, Unix time."
)
HEARTBEAT_TIME = Metric(
    "diag_heartbeat_timestamp_seconds",
    Kind.GAUGE,
    MetricUnit.SECONDS,
    "Time of the process's last heartbeat, Unix time.",
)
HEARTBEAT_AGE = Metric(
    "diag_heartbeat_age_seconds", Kind.GAUGE, MetricUnit.SECONDS, "Time since the last heartbeat when this was read."
)
ALLOCATED = Metric(
    "diag_device_memory_allocated_peak_bytes",
    Kind.GAUGE,
    MetricUnit.BYTES,
    "Peak of allocated device memory in the last step.",
)
RESERVED = Metric(
    "diag_device_memory_reserved_peak_bytes",
    Kind.GAUGE,
    MetricUnit.BYTES,
    "Peak of reserved device memory in the last step.",
)
CAPACITY = Metric("diag_device_memory_capacity_bytes", Kind.GAUGE, MetricUnit.BYTES, "Total memory of the device.")
RETRIES = Metric(
    "diag_device_memory_alloc_retries_total", Kind.COUNTER, MetricUnit.NONE,
    "Allocations that were retried after the cache was emptied.",
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
    "diag_collective_bytes_total",
    Kind.COUNTER,
    MetricUnit.BYTES,
    "Bytes of the full tensors of the collectives called.",
)
UNREADABLE = Metric(
    "diag_unreadable_lines_total",
    Kind.COUNTER,
    MetricUnit.NONE,
    "Unreadable lines of the records; skipped.",
)
MACHINE_COUNTER = Metric(
    "diag_machine_counter_total", Kind.COUNTER, MetricUnit.NONE,
    "Counters of a host since it started, by the kernel's name: rdma.port_xmit_wait, net.rx_dropped, pcie.aer_fatal, "
    "pressure.cpu.some_us, cpu.steal_ns, cgroup.cpu.throttled_us, gpu.nvlink_rcv_errors, ...",
)  # fmt: skip
MACHINE_READING = Metric(
    "diag_machine_reading", Kind.GAUGE, MetricUnit.NONE,
    "Other readings of a host: rdma.rate_mbit, net.speed_mbit, pcie.link_width, memory.available, gpu.memory_used, ...",
)  # fmt: skip
ANALYSED_PART = Metric(
    "diag_analysed_step_part_seconds", Kind.GAUGE, MetricUnit.SECONDS,
    f"Step time {_PARTS}; mean of the steps that the last diag analyze counted, wait and transfer separated.",
)  # fmt: skip

RUN_INFO = Metric(
    "diag_run_info", Kind.GAUGE, MetricUnit.NONE, "Labels that describe the run; always 1.", per_rank=False
)
WORLD_SIZE = Metric(
    "diag_world_size", Kind.GAUGE, MetricUnit.NONE, "Expected number of ranks, the world size.", per_rank=False
)
RANKS = Metric("diag_ranks", Kind.GAUGE, MetricUnit.NONE, "Ranks whose records are read.", per_rank=False)
EXIT_CODE = Metric(
    "diag_run_exit_code", Kind.GAUGE, MetricUnit.NONE, "Exit code of the run; missing while it runs.", per_rank=False
)
STATE = Metric(
    "diag_run_state_info",
    Kind.GAUGE,
    MetricUnit.NONE,
    "What the run is doing, as the label state: training, stuck, ended, ...; always 1.",
    per_rank=False,
)
STUCK = Metric(
    "diag_run_stuck",
    Kind.GAUGE,
    MetricUnit.NONE,
    "1 if the training makes no progress, else 0; missing when it has ended.",
    per_rank=False,
)
NOT_FINITE = Metric(
    "diag_not_finite_step",
    Kind.GAUGE,
    MetricUnit.NONE,
    "Step of the first loss or gradient norm that is not finite; missing while there is none.",
    per_rank=False,
)
SLOW = Metric(
    "diag_run_slow",
    Kind.GAUGE,
    MetricUnit.NONE,
    "1 if the newest steps, or the one under way, take much longer than before, else 0; missing when it has ended.",
    per_rank=False,
)
NO_STEP = Metric(
    "diag_no_step_seconds",
    Kind.GAUGE,
    MetricUnit.SECONDS,
    "Time since the last step of any rank; missing while steps end as usual.",
    per_rank=False,
)
SILENT = Metric(
    "diag_silent_ranks",
    Kind.GAUGE,
    MetricUnit.NONE,
    "Ranks that have not reached their end and send no heartbeat any more; missing when the run has ended.",
    per_rank=False,
)
BEHIND = Metric(
    "diag_rank_behind_info",
    Kind.GAUGE,
    MetricUnit.NONE,
    "A rank that the others of a stuck training wait for, and its phase; always 1.",
    per_rank=False,
)
MFU = Metric(
    "diag_mfu_ratio",
    Kind.GAUGE,
    MetricUnit.RATIO,
    f"Model FLOPs utilisation over the last {RECENT} steps.",
    per_rank=False,
)
VERDICT_INFO = Metric(
    "diag_verdict_info",
    Kind.GAUGE,
    MetricUnit.NONE,
    "Verdict of the last diag analyze, as labels; always 1.",
    per_rank=False,
)
VERDICT_SHARE = Metric(
    "diag_verdict_share_ratio", Kind.GAUGE, MetricUnit.RATIO, "Share of the step of all causes of the verdict's class.",
    per_rank=False,
)  # fmt: skip
VERDICT_CONFIDENCE = Metric(
    "diag_verdict_confidence_ratio", Kind.GAUGE, MetricUnit.RATIO, "Confidence of the verdict, 0 to 1.", per_rank=False
)
VERDICT_TIME = Metric(
    "diag_verdict_timestamp_seconds", Kind.GAUGE, MetricUnit.SECONDS, "Time of the last diag analyze, Unix time.",
    per_rank=False,
)  # fmt: skip

METRICS = (
    RUN_INFO, WORLD_SIZE, RANKS, EXIT_CODE, STATE, STUCK, SLOW, NO_STEP, SILENT, BEHIND, NOT_FINITE,
    MFU, VERDICT_INFO, VERDICT_SHARE, VERDICT_CONFIDENCE, VERDICT_TIME,
    STEPS, STEP_SECONDS, STEP_DURATION, PART_SECONDS, PART_DURATION, ANALYSED_PART, TOKENS, TOKEN_RATE,
    LAST_STEP, LAST_STEP_TIME, HEARTBEAT_TIME, HEARTBEAT_AGE,
    MACHINE_COUNTER, MACHINE_READING, ALLOCATED, RESERVED, CAPACITY, RETRIES, RESIDENT,
    COLLECTIVES, COLLECTIVE_SECONDS, COLLECTIVE_BYTES, UNREADABLE,
)  # fmt: skip


# -- Grafana -----------------------------------------------------------------------------------------------------------


# In the queries below, a name in capitals is a metric defined above, for the selected run.

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24


class _Panel(NamedTuple):
    """A panel. ``queries``: (expression, legend). ``kind``: "stat" shows a number, "name" a text, "lines" and "stacked"
    a time series."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    description: str = ""
    kind: str = "lines"
    width: int = 12
    height: int = 8


# In reading order; panels fill rows of 24 columns.
_PANELS = (
    _Panel(
        "Verdict",
        "none",
        (("VERDICT_INFO", "{{severity}}: {{bottleneck}} ({{cause}})"),),
        "From the last diag analyze. The label culprit_ranks names the ranks at fault.",
        "name", 8, 4,
    ),
    _Panel(
        "Share of the step, confidence",
        "percentunit",
        (("VERDICT_SHARE", "share"), ("VERDICT_CONFIDENCE", "confidence")),
        "Share and confidence of the verdict.",
        "stat", 5, 4,
    ),
    _Panel("Age of the verdict", "s", (("time() - VERDICT_TIME", ""),), "", "stat", 3, 4),
    _Panel(
        "Last step",
        "none",
        (("max(LAST_STEP)", "first"), ("min(LAST_STEP)", "last")),
        "Last finished step of the fastest and of the slowest rank.",
        "stat", 4, 4,
    ),
    _Panel("Ranks", "none", (("max(RANKS)", "recorded"), ("max(WORLD_SIZE)", "world size")), "", "stat", 4, 4),
    _Panel(
        "State",
        "none",
        (
            ("STATE", "{{state}}"),
            ("BEHIND", "rank {{rank}} is behind, in {{phase}}"),
            ("NOT_FINITE", "the {{what}} is not finite"),
        ),
        "What the run is doing, which ranks the others of a stuck training wait for, and whether the loss is finite.",
        "name", 12, 8,
    ),
    _Panel(
        "Without progress",
        "s",
        (("NO_STEP", "no step for"), ("STUCK", "stuck"), ("SLOW", "slow"), ("SILENT", "silent ranks")),
        "Time since the last step of any rank, while none ends as usual; ranks that send no heartbeat.",
    ),
    _Panel(
        "Step time",
        "s",
        (("max(STEP_DURATION)", "slowest rank"), ("min(STEP_DURATION)", "fastest rank")),
        f"Mean of the last {RECENT} steps of each rank.",
    ),
    _Panel(
        "Parts of a step",
        "s",
        (("sum by (part) (rate(PART_SECONDS)) / scalar(sum(rate(STEPS)))", "{{part}}"),),
        "Mean over the ranks, from the step records. Here exposed_comm includes waiting for a slower rank.",
        "stacked",
    ),
    _Panel(
        "Largest part over the ranks",
        "s",
        (("max by (part) (PART_DURATION)", "{{part}}"),),
        f"Mean of the last {RECENT} steps. Shows a rank that is late.",
    ),
    _Panel(
        "Parts as analysed, with wait and transfer",
        "s",
        (("max by (part) (ANALYSED_PART)", "{{part}}"),),
        "Largest over the ranks, from the last diag analyze.",
    ),
    _Panel(
        "Fraction of the time in steps",
        "percentunit",
        (("sum(rate(STEP_SECONDS)) / scalar(max(RANKS))", "in steps"),),
        "Mean over the ranks. Below 1: time between steps.",
    ),
    _Panel(
        "Tokens per second",
        "short",
        (
            ("sum(rate(TOKENS))", "all ranks"),
            ("max(TOKEN_RATE)", f"best rank, last {RECENT} steps"),
            ("min(TOKEN_RATE)", f"worst rank, last {RECENT} steps"),
        ),
    ),
    _Panel(
        "Model FLOPs utilisation", "percentunit", (("MFU", "MFU"),), "Relative to the dense BF16 peak, where known."
    ),
    _Panel(
        "Device memory",
        "decbytes",
        (
            ("max(ALLOCATED)", "allocated, fullest rank"),
            ("max(RESERVED)", "reserved, fullest rank"),
            ("min(CAPACITY)", "capacity"),
        ),
        "Peaks of the last step.",
    ),
    _Panel("Resident memory", "decbytes", (("max(RESIDENT)", "resident, largest process"),)),
    _Panel("Allocation retries per second", "ops", (("sum(rate(RETRIES))", "all ranks"),)),
    _Panel(
        "Time of a collective",
        "s",
        (
            (
                "sum by (op, group) (rate(COLLECTIVE_SECONDS)) / sum by (op, group) (rate(COLLECTIVES))",
                "{{op}} {{group}}",
            ),
        ),
        "Mean, waiting for other ranks included.",
    ),
    _Panel(
        "Bytes of collectives per second",
        "Bps",
        (("sum by (op, group) (rate(COLLECTIVE_BYTES))", "{{op}} {{group}}"),),
        "Full tensors, sum over the ranks.",
    ),
    _Panel(
        "Time since heartbeat and step",
        "s",
        (
            ("time() - min(HEARTBEAT_TIME)", "oldest heartbeat"),
            ("time() - min(LAST_STEP_TIME)", "oldest last step"),
            ("max(HEARTBEAT_AGE)", "oldest heartbeat, when read"),
        ),
        "A live rank writes a heartbeat every second.",
    ),
    _Panel(
        "Counters of the hosts per second",
        "short",
        (("sum by (host, name) (rate(MACHINE_COUNTER))", "{{host}} {{name}}"),),
        "Ports, PCIe, pressure, control group, GPU links. Times are in the unit of the name.",
    ),
    _Panel(
        "Readings of the hosts",
        "short",
        (("max by (host, name) (MACHINE_READING)", "{{host}} {{name}}"),),
        "Rates of ports, widths of links, memory.",
    ),
    _Panel(
        "Unreadable lines, exit code",
        "none",
        (("sum(UNREADABLE)", "unreadable lines"), ("EXIT_CODE", "exit code")),
        "", "stat", 6,
    ),
    _Panel("Run", "none", (("RUN_INFO", "{{strategy}} {{backend}} {{device}}"),), "", "name", 6),
)  # fmt: skip


def dashboard() -> str:
    """The dashboard as JSON, to import into Grafana."""
    runs = f"label_values({RUN_INFO.name}, run)"
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {"name": "run", "label": "Run", "type": "query", "datasource": _SOURCE, "refresh": 2}
        | {"query": {"query": runs, "refId": "run"}, "sort": 2, "includeAll": False, "multi": False},
    ]
    content = {
        "title": "diag: a training run",
        "uid": "diag-run",
        "tags": ["diag", "pytorch"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [{**variable, "current": {}, "hide": 0} for variable in variables]},
        "panels": _placed(),
    }
    return json.dumps(content, indent=1) + "\n"


def _placed() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    x = y = 0
    for number, panel in enumerate(_PANELS, start=1):
        place = {"h": panel.height, "w": panel.width, "x": x, "y": y}
        panels.append({"id": number, "gridPos": place, **_drawn(panel)})
        x += panel.width
        if x >= _COLUMNS:
            x, y = 0, y + panel.height
    return panels


def _drawn(panel: _Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.kind in ("stat", "name"):
        text = "name" if panel.kind == "name" else "auto"
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": text, "colorMode": "none"}
    else:
        stacked = panel.kind == "stacked"
        defaults["custom"] = {
            "fillOpacity": 60 if stacked else 0,
            "stacking": {"mode": "normal" if stacked else "none"},
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "title": panel.title,
        "type": "stat" if panel.kind in ("stat", "name") else "timeseries",
        "description": panel.description,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {"refId": "ABCD"[index], "datasource": _SOURCE, "expr": _query(query), "legendFormat": legend}
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


def _query(query: str) -> str:
    """The query in PromQL: each metric with the run's label, and the range for ``rate``."""
    with_names = re.sub(r"\b[A-Z][A-Z_]+\b", lambda match: globals()[match[0]].name + '{run="$run"}', query)
    return re.sub(r"rate\((\w+\{[^}]*\})\)", r"rate(\1[$__rate_interval])", with_names)
