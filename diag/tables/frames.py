"""The account of a run as polars data frames, for notebooks and scripts.

``COLUMNS`` documents every column and its unit, and is the schema of the frames. Times are integers in nanoseconds,
sizes in bytes, fractions from 0 to 1. Unknown values are null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import asdict

from diag.model.breakdown import CollectiveTable, KernelTable, ModuleTable
from diag.model.parts import UNKNOWN, Bools, Ints, PartColumns, parts_of_steps
from diag.model.steps import Attribution, Bottleneck, Finding, StepAccount
from diag.rundir.tables import Tables

if TYPE_CHECKING:
    from diag.tables.memory import MemoryTable

_INT, _FLOAT, _TEXT, _BOOL = pl.Int64(), pl.Float64(), pl.String(), pl.Boolean()
_RANKS = pl.List(pl.Int64())


class Column(Struct, frozen=True):
    """``meaning``: a sentence, with the unit if the name does not end in it."""

    type: pl.DataType
    meaning: str


_TIMES = {
    "dur_ns": Column(_INT, "Duration of the rank's step. The next six add up to it."),
    "compute_ns": Column(_INT, "Computation: kernels on a device, operators on a CPU."),
    "exposed_comm_ns": Column(_INT, "Communication that is not overlapped with computation."),
    "exposed_copy_ns": Column(_INT, "Copies between host and device that are not overlapped."),
    "data_wait_ns": Column(_INT, "Waiting for the next batch."),
    "checkpoint_ns": Column(_INT, "Saving a checkpoint."),
    "idle_ns": Column(_INT, "Idle: none of the above."),
    "exposed_wait_ns": Column(_INT, "Part of exposed_comm_ns: waiting for a later rank; null without aligned clocks."),
    "exposed_transfer_ns": Column(_INT, "The rest of exposed_comm_ns: data transfer."),
    "overlapped_comm_ns": Column(_INT, "Communication that is overlapped with computation. Not a part of dur_ns."),
    "optimizer_ns": Column(_INT, "The optimizer's step; a part of compute_ns or idle_ns."),
}  # fmt: skip

COLUMNS: dict[str, dict[str, Column]] = {
    "steps": {
        "step": Column(_INT, "Number of the step."),
        "rank": Column(_INT, "Global rank."),
        "counted": Column(
            _BOOL, "Whether the verdict counts the step: no warm-up, no step in or next to a profiler window."
        ),
        "note": Column(_TEXT, "Why it is not counted."),
        "bottleneck": Column(_TEXT, "Class of the step across all ranks."),
        "source": Column(_TEXT, "Source of the times: a trace, the collectors' records or device events."),
        **_TIMES,
    },
    "ranks": {
        "rank": Column(_INT, "Global rank."),
        "host": Column(_TEXT, "Host name."),
        "culprit": Column(_BOOL, "Whether the verdict names the rank."),
        "steps": Column(_INT, "Counted steps; the times are means over those in which they are known."),
        **_TIMES,
        "caused_wait_ns": Column(_INT, "Time per step that other ranks waited for this rank."),
    },
    "collectives": {
        "group": Column(_TEXT, "Process group."),
        "axis": Column(_TEXT, "Device mesh axis of the group; empty if unknown."),
        "op": Column(_TEXT, "Operation: all_reduce, all_gather, ..."),
        "dtype": Column(_TEXT, "Element type."),
        "bytes_mean": Column(_INT, "Mean size of the full tensor in bytes; 0 if unknown."),
        "count": Column(_INT, "Number of collectives of this group, operation, element type and size class."),
        "matched": Column(_INT, "Number of them that were matched across ranks with aligned clocks."),
        "duration_mean_ns": Column(_INT, "Mean duration on a rank."),
        "wait_mean_ns": Column(_INT, "Mean time from a rank's arrival to the last rank's."),
        "wait_max_ns": Column(_INT, "The longest such wait."),
        "transfer_mean_ns": Column(_INT, "Mean time from the last rank's arrival to the end."),
        "last_rank": Column(_INT, "The rank that arrived last most often."),
        "last_share": Column(_FLOAT, "Fraction of the matched collectives in which last_rank arrived last."),
        "algbw_gb_s": Column(_FLOAT, "Algorithm bandwidth in GB/s (1e9 bytes)."),
        "busbw_gb_s": Column(_FLOAT, "Bus bandwidth in GB/s, as nccl-tests defines it."),
        "efficiency": Column(_FLOAT, "Bus bandwidth divided by the group's best at sizes that saturate it."),
        "exposed_ns": Column(_INT, "Time not overlapped with computation; sum over ranks and counted steps."),
        "hidden_ns": Column(_INT, "Time overlapped with computation; sum over ranks and counted steps."),
    },
    "all_to_alls": {
        "group": Column(_TEXT, "Process group."),
        "axis": Column(_TEXT, "Device mesh axis of the group; empty if unknown."),
        "rank": Column(_INT, "Global rank."),
        "count": Column(_INT, "Number of all-to-alls of the group per step."),
        "sent_bytes": Column(_INT, "Mean bytes that the rank sends per step, including those to itself."),
        "received_bytes": Column(_INT, "Mean bytes that the rank receives per step, including those from itself."),
        "received_over_mean": Column(
            _FLOAT, "Bytes received divided by the mean over the ranks, where they differ (the dispatch to experts)."
        ),
        "imbalance": Column(_FLOAT, "Most bytes that a rank of the group receives over the mean; averaged over calls."),
        "caused_wait_ns": Column(_INT, "Mean time per step that the other ranks waited for this rank at all-to-alls."),
    },
    "kernels": {
        "name": Column(_TEXT, "Kernel name; on a CPU, the operator name."),
        "kind": Column(_TEXT, "Kind of kernel."),
        "operator": Column(_TEXT, "Operator that launched most of the calls."),
        "count": Column(_INT, "Calls on all ranks in the steps of profiler windows, or in all counted steps."),
        "total_ns": Column(_INT, "Total duration."),
        "mean_ns": Column(_INT, "Mean duration."),
        "max_ns": Column(_INT, "Longest duration."),
        "share": Column(_FLOAT, "Fraction of the device's busy time."),
        "exposed_ns": Column(_INT, "Time not overlapped with work of higher priority."),
        "bound": Column(_TEXT, "What bounds the kernel: math, memory or unknown."),
        "tflop_s": Column(_FLOAT, "TFLOP/s over the part of the time whose shapes are recorded."),
        "gb_s": Column(_FLOAT, "GB/s over the same part."),
    },
    "modules": {
        "source": Column(_TEXT, "Kind of trace range that identifies the modules."),
        "name": Column(_TEXT, "Module of the model."),
        "parent": Column(_TEXT, "Parent module."),
        "calls": Column(_INT, "Calls of the module."),
        "host_ns": Column(_INT, "Host time inside the module."),
        "forward_ns": Column(_INT, "Device time launched by the module's forward, including submodules."),
        "backward_ns": Column(_INT, "Device time launched by the module's backward, including submodules."),
        "recompute_ns": Column(_INT, "The part of backward_ns that recomputes the forward (activation checkpointing)."),
        "self_ns": Column(_INT, "Device time of the module without its submodules."),
        "share": Column(_FLOAT, "Fraction of the device's busy time."),
    },
    "memory": {
        "rank": Column(_INT, "Global rank."),
        "allocated": Column(_INT, "Peak of allocated device memory in bytes; on a CPU the resident set."),
        "reserved": Column(_INT, "Peak of reserved device memory in bytes."),
        "capacity": Column(_INT, "Memory of the device in bytes."),
        "growth_per_step": Column(_INT, "Growth from step to step in bytes."),
        "fragmentation": Column(_FLOAT, "Fraction of the reserved memory that was never allocated at once."),
        "retries": Column(_INT, "Retries of the caching allocator since the first recorded step."),
        "ooms": Column(_INT, "Out-of-memory errors since then."),
    },
    "costs": {
        "step": Column(_INT, "Number of the step; only counted steps."),
        "cost": Column(_TEXT, "The cost, as in evidence: data wait, exposed communication, ..."),
        "rank": Column(_INT, "A late rank; null in the rows of the whole cost."),
        "cost_ns": Column(_INT, "The cost; in the row of a rank, how long the others waited for it because of this."),
        "step_ns": Column(_INT, "Duration of the step."),
    },
    "path": {
        "step": Column(_INT, "Number of the step; only counted steps."),
        "rank": Column(_INT, "The rank whose activity is on the critical path."),
        "kind": Column(_TEXT, "compute, comm, copy, data, checkpoint or idle."),
        "detail": Column(_TEXT, "The finer cause: forward, launch, sync, ..."),
        "dur_ns": Column(_INT, "Duration of the piece. The pieces of a step add up to it."),
    },
    "calls": {
        "step": Column(_INT, "Number of the step; only counted steps."),
        "rank": Column(_INT, "Global rank."),
        "op": Column(_TEXT, "Operation: all_reduce, all_gather, ..."),
        "bytes": Column(_INT, "Size of the full tensor in bytes; 0 if unknown."),
        "phase": Column(_TEXT, "Pass that needs a gather's result, or that made the gradients."),
        "micro_batch": Column(_INT, "Micro-batch, from 0."),
        "place": Column(_INT, "Index among the calls of its operation in this pass, from 0."),
        "exposed_ns": Column(_INT, "Exposed transfer, after the last rank's arrival."),
        "transfer_ns": Column(_INT, "From the last rank's arrival to this rank's end."),
        "of_data": Column(_BOOL, "Whether its group is for data parallelism, or of unknown purpose."),
    },
    "meetings": {
        "step": Column(_INT, "Number of the step."),
        "counted": Column(_BOOL, "Whether the step counts."),
        "group": Column(_TEXT, "Process group."),
        "number": Column(_INT, "Sequence number of the collective in its group."),
        "op": Column(_TEXT, "Operation: all_reduce, all_gather, ..."),
        "bytes": Column(_INT, "Size of the full tensor in bytes; 0 if unknown."),
        "ranks": Column(_RANKS, "Ranks that took part."),
        "last_rank": Column(_INT, "The rank that arrived last."),
        "wait_ns": Column(_INT, "Waiting for the last rank; sum over the ranks."),
        "transfer_ns": Column(_INT, "From the last arrival to the end on the first rank."),
        "complete": Column(_BOOL, "Whether it was recorded on every rank of its group."),
        "inferred": Column(_BOOL, "Whether it was matched by counting and not by the library's number."),
        "sizes_differ": Column(_BOOL, "Whether the ranks passed different sizes."),
    },
    "stalls": {
        "step": Column(_INT, "Number of the step; only counted steps."),
        "rank": Column(_INT, "Global rank."),
        "part": Column(_TEXT, "Why the device is idle: not_launched, host_call, queued, ..."),
        "host": Column(_TEXT, "What the host does meanwhile; empty if the trace does not show it."),
        "at_ns": Column(_INT, "Begin of the idle time, from the begin of the step."),
        "dur_ns": Column(_INT, "Duration. Only the longest stalls of a step are listed."),
    },
    "scheduling": {
        "step": Column(_INT, "Number of the step; only counted steps."),
        "rank": Column(_INT, "Global rank."),
        "queued_ns": Column(_INT, "Ready to run without a CPU core, outside of loading and collectives."),
        "loading_ns": Column(_INT, "Data wait in which the loader or its workers had no core."),
        "communicating_ns": Column(_INT, "Waiting for collectives in which the threads that carry them had no core."),
        "between_ns": Column(_INT, "On a core between the phases."),
        "blocked_ns": Column(_INT, "Blocked outside of all known waits."),
        "frozen_ns": Column(_INT, "Stopped inside of collectives."),
    },
    "devices": {
        "rank": Column(_INT, "Global rank."),
        "at_ns": Column(_INT, "When it was sampled, on the rank's monotonic clock."),
        "sm_clock_mhz": Column(_INT, "Clock of the multiprocessors."),
        "memory_clock_mhz": Column(_INT, "Clock of the memory."),
        "power_mw": Column(_INT, "Power in milliwatts."),
        "temperature_c": Column(_INT, "Temperature in degrees Celsius."),
        "utilization_percent": Column(_INT, "Utilization."),
        "throttle_reasons": Column(pl.List(pl.String()), "Why the device lowers its clocks."),
        "power_limit_mw": Column(_INT, "Power limit in milliwatts."),
        "ecc_corrected": Column(_INT, "Corrected ECC errors since the driver was loaded."),
        "ecc_uncorrected": Column(_INT, "Uncorrected ECC errors since the driver was loaded."),
        "remap_pending": Column(_BOOL, "Whether a row remapping is pending."),
        "remap_failed": Column(_BOOL, "Whether a row remapping failed."),
        "retired_pages": Column(_INT, "Retired pages."),
        "pcie_width": Column(_INT, "PCIe lanes."),
        "pcie_generation": Column(_INT, "PCIe generation; an idle GPU may lower it."),
        "pcie_replays": Column(_INT, "PCIe replays."),
        "active_links": Column(_INT, "Active NVLinks or XGMI links."),
    },
    "checkpoints": {
        "step": Column(_INT, "Number of the step."),
        "rank": Column(_INT, "Global rank."),
        "asynchronous": Column(_BOOL, "Whether it was written in the background."),
        "blocking_ns": Column(_INT, "How long the training was blocked."),
        "waited_ns": Column(_INT, "The part of it that was spent waiting for the checkpoint before."),
        "background_ns": Column(_INT, "From then until all shards were on the disk."),
        "bytes": Column(_INT, "Bytes that this rank wrote."),
        "failed": Column(_TEXT, "Why there is no checkpoint; empty if there is one."),
    },
    "summaries": {
        "rank": Column(_INT, "Global rank. Only runs that are analysed from the ranks' summaries have rows."),
        **{name: _TIMES[name] for name in ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "data_wait_ns")},
    },
    "facts": {
        "key": Column(_TEXT, "Name of a setting of the run, such as trainer.prefetch."),
        "value": Column(_TEXT, "Its value."),
    },
    "findings": {
        "id": Column(_TEXT, "Id of the diagnosis."),
        "severity": Column(_TEXT, "healthy, warn or critical."),
        "bottleneck": Column(_TEXT, "Bottleneck class of the finding; null if it costs no step time by itself."),
        "share": Column(_FLOAT, "Cost as a fraction of the step time."),
        "cost_ns_per_step": Column(_INT, "Cost in nanoseconds per step."),
        "confidence": Column(_FLOAT, "From 0 to 1."),
        "ranks": Column(_RANKS, "Culprit ranks; empty if there are none."),
        "title": Column(_TEXT, "Title of the finding."),
        "action": Column(_TEXT, "Recommended action."),
    },
}  # fmt: skip


def frame(name: str, rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """The frame of this name, with exactly its columns; other keys are left out."""
    columns = COLUMNS[name]
    taken = [{column: _plain(row.get(column)) for column in columns} for row in rows]
    return pl.DataFrame(taken, schema={column: description.type for column, description in columns.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def steps(attribution: Attribution, bottleneck_of: Callable[[StepAccount], Bottleneck]) -> pl.DataFrame:
    """A row for each rank of each step."""
    parts, owner = parts_of_steps(attribution.steps)
    of_step: dict[str, list[Any]] = {
        "step": [step.step for step in attribution.steps],
        "counted": [step.usable for step in attribution.steps],
        "note": [step.note for step in attribution.steps],
        "bottleneck": [bottleneck_of(step).value for step in attribution.steps],
    }
    schema = {name: column.type for name, column in COLUMNS["steps"].items()}
    columns = {
        name: pl.Series(name, of_step[name], dtype=schema[name])[owner]
        if name in of_step
        else pl.Series(name, parts.sources, dtype=pl.String)[parts.source.astype(np.int64)]
        if name == "source"
        else _nullable(name, parts.column(name))
        for name in schema
    }
    return pl.DataFrame(columns, schema=schema)


def _nullable(name: str, values: Ints) -> pl.Series:
    return pl.Series(name, values).set(pl.Series(values == UNKNOWN), None)


def rank_means(attribution: Attribution, fields: Iterable[str] = tuple(_TIMES)) -> dict[int, dict[str, float | None]]:
    """By rank, the mean of each field of ``Parts`` (``idle_parts.queued_ns`` as well) over the counted steps in which
    it is known; None if it is never known. Overlapped communication that the counted steps lack is read from profiler
    windows. Every table of ranks shows these means."""
    counted, _ = parts_of_steps(attribution.usable or attribution.steps)
    traced, _ = parts_of_steps(attribution.traced)
    ranks = np.unique(counted.rank)
    means = {field: _means(counted, traced, field, ranks) for field in fields}
    return {rank: {field: means[field][at] for field in fields} for at, rank in enumerate(ranks.tolist())}


def _means(steps: PartColumns, traced: PartColumns, field: str, ranks: Ints) -> list[float | None]:
    values, known = steps.column(field), steps.column(field) != UNKNOWN
    if field != "overlapped_comm_ns":
        return _by_rank(steps.rank, values, known, ranks)
    # A lower bound if some communication was recorded at its end only.
    sure = _by_rank(steps.rank, values, steps.hidden_known, ranks)
    in_windows = _by_rank(traced.rank, traced.column(field), traced.hidden_known, ranks)
    return [in_windows[at] if mean is None else mean for at, mean in enumerate(sure)]


def _by_rank(rank: Ints, values: Ints, counted: Bools, ranks: Ints) -> list[float | None]:
    """The mean of the counted values of each of the ``ranks``; None without any."""
    at = np.searchsorted(ranks, rank[counted])
    number = np.bincount(at, minlength=len(ranks))
    total = np.zeros(len(ranks), dtype=np.int64)
    np.add.at(total, at, values[counted])
    return [ns / count if count else None for ns, count in zip(total.tolist(), number.tolist(), strict=True)]


def caused_waits(attribution: Attribution) -> dict[int, float]:
    """By rank, how many nanoseconds per step the others waited for it, for any reason."""
    counted = attribution.usable or attribution.steps
    caused: dict[int, int] = {}
    for step in counted:
        for blame in step.blames:
            caused[blame.rank] = caused.get(blame.rank, 0) + blame.ns
    return {rank: ns / len(counted) for rank, ns in caused.items()}


def ranks(attribution: Attribution, tables: Tables, culprits: Sequence[int]) -> pl.DataFrame:
    """A row for each rank: ``rank_means``, rounded."""
    caused = caused_waits(attribution)
    steps = Counter(parts_of_steps(attribution.usable or attribution.steps)[0].rank.tolist())
    rows = [
        {
            "rank": rank,
            "host": tables.ranks[rank].host if rank in tables.ranks else None,
            "culprit": rank in culprits,
            "steps": steps[rank],
            "caused_wait_ns": round(caused.get(rank, 0)),
            **{field: None if mean is None else round(mean) for field, mean in means.items()},
        }
        for rank, means in rank_means(attribution).items()
    ]
    return frame("ranks", rows)


def collectives(table: CollectiveTable) -> pl.DataFrame:
    """A row for each group, operation, element type and size class; the largest exposed time first."""
    return frame("collectives", map(asdict, table.rows)).sort("exposed_ns", descending=True, maintain_order=True)


def all_to_alls(table: CollectiveTable) -> pl.DataFrame:
    """A row for each group and rank; within a group, the rank that receives most first."""
    return frame("all_to_alls", map(asdict, table.all_to_alls))


def kernels(table: KernelTable) -> pl.DataFrame:
    """A row for each kernel, or operator on a CPU; the largest total first."""
    return frame("kernels", map(asdict, table.rows))


def modules(tables: Sequence[ModuleTable]) -> pl.DataFrame:
    """A row for each module from each kind of range in the traces."""
    return frame("modules", ({**asdict(row), "source": table.source} for table in tables for row in table.rows))


def memory(table: MemoryTable) -> pl.DataFrame:
    return frame("memory", map(asdict, table.rows))


def findings(examined: Sequence[Finding]) -> pl.DataFrame:
    """A row for each finding, the most expensive first."""
    return frame("findings", map(asdict, examined))
