"""The account of a run as polars data frames, for notebooks and scripts.

``COLUMNS`` documents every column and its unit, and is the schema of the frames. Times are integers in nanoseconds,
sizes in bytes, fractions from 0 to 1. Unknown values are null. Each frame is made when it is first asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import asdict

from diag.deferred import pl
from diag.model import UNKNOWN
from diag.model.accounts import Attribution
from diag.model.breakdown import CollectiveTable, KernelTable, ModuleTable
from diag.model.parts import Ints
from diag.model.steps import Bottleneck, Detail, Finding, Kind
from diag.rundir.tables import Tables
from diag.tables.rank_means import rank_means
from diag.words.table import (
    CLOCK,
    COUNT,
    FLAG,
    GB_S,
    INDEX,
    INDICES,
    MS,
    NUMBER,
    RATIO,
    SHARE,
    SIZE,
    TEXT,
    TFLOP_S,
    Column,
    data_frame,
    schema_of,
)

if TYPE_CHECKING:
    from diag.tables.memory import MemoryTable

_TIMES = (
    Column("dur_ns", MS, "Duration of the rank's step. The next six add up to it."),
    Column("compute_ns", MS, "Computation: kernels on a device, operators on a CPU."),
    Column("exposed_comm_ns", MS, "Communication that is not overlapped with computation."),
    Column("exposed_copy_ns", MS, "Copies between host and device that are not overlapped."),
    Column("data_wait_ns", MS, "Waiting for the next batch."),
    Column("checkpoint_ns", MS, "Saving a checkpoint."),
    Column("idle_ns", MS, "Idle: none of the above."),
    Column("exposed_wait_ns", MS, "Part of exposed_comm_ns: waiting for a later rank; null without aligned clocks."),
    Column("exposed_transfer_ns", MS, "The rest of exposed_comm_ns: data transfer."),
    Column("overlapped_comm_ns", MS, "Communication that is overlapped with computation. Not a part of dur_ns."),
    Column("optimizer_ns", MS, "The optimizer's step; a part of compute_ns or idle_ns."),
)
_TIME_FIELDS = [column.id for column in _TIMES]

_FRAMES: dict[str, tuple[Column, ...]] = {
    "steps": (
        Column("step", INDEX, "Number of the step."),
        Column("rank", INDEX, "Global rank."),
        Column(
            "counted", FLAG, "Whether the verdict counts the step: no warm-up, no step in or next to a profiler window."
        ),
        Column("note", TEXT, "Why it is not counted."),
        Column("bottleneck", TEXT, "Class of the step across all ranks."),
        Column("source", TEXT, "Source of the times: a trace, the collectors' records or device events."),
        *_TIMES,
    ),
    "ranks": (
        Column("rank", INDEX, "Global rank."),
        Column("host", TEXT, "Host name."),
        Column("culprit", FLAG, "Whether the verdict names the rank."),
        Column("steps", COUNT, "Counted steps; the times are means over those in which they are known."),
        *_TIMES,
        Column("caused_wait_ns", MS, "Time per step that other ranks waited for this rank."),
    ),
    "collectives": (
        Column("group", TEXT, "Process group."),
        Column("axis", TEXT, "Device mesh axis of the group; empty if unknown."),
        Column("op", TEXT, "Operation: all_reduce, all_gather, ..."),
        Column("dtype", TEXT, "Element type."),
        Column("bytes_mean", SIZE, "Mean size of the full tensor in bytes; 0 if unknown."),
        Column("count", COUNT, "Number of collectives of this group, operation, element type and size class."),
        Column("matched", COUNT, "Number of them that were matched across ranks with aligned clocks."),
        Column("duration_mean_ns", MS, "Mean duration on a rank."),
        Column("wait_mean_ns", MS, "Mean time from a rank's arrival to the last rank's."),
        Column("wait_max_ns", MS, "The longest such wait."),
        Column("transfer_mean_ns", MS, "Mean time from the last rank's arrival to the end on the first rank."),
        Column("tail_mean_ns", MS, "Mean time from there to the end on the last rank."),
        Column("last_rank", INDEX, "The rank that the others waited for longest."),
        Column("last_share", SHARE, "Fraction of all waiting in the matched collectives that was for last_rank."),
        Column("algbw_gb_s", GB_S, "Algorithm bandwidth in GB/s (1e9 bytes)."),
        Column("busbw_gb_s", GB_S, "Bus bandwidth in GB/s, as nccl-tests defines it."),
        Column("efficiency", SHARE, "Bus bandwidth divided by the group's best at sizes that saturate it."),
        Column("exposed_ns", MS, "Time not overlapped with computation; sum over ranks and counted steps."),
        Column("hidden_ns", MS, "Time overlapped with computation; sum over ranks and counted steps."),
    ),
    "all_to_alls": (
        Column("group", TEXT, "Process group."),
        Column("axis", TEXT, "Device mesh axis of the group; empty if unknown."),
        Column("rank", INDEX, "Global rank."),
        Column("count", COUNT, "Number of all-to-alls of the group per step."),
        Column("sent_bytes", SIZE, "Mean bytes that the rank sends per step, including those to itself."),
        Column("received_bytes", SIZE, "Mean bytes that the rank receives per step, including those from itself."),
        Column(
            "received_over_mean",
            RATIO,
            "Bytes received divided by the mean over the ranks, where they differ (the dispatch to experts).",
        ),
        Column("imbalance", RATIO, "Most bytes that a rank of the group receives over the mean; averaged over calls."),
        Column("caused_wait_ns", MS, "Mean time per step that the other ranks waited for this rank at all-to-alls."),
    ),
    "kernels": (
        Column("name", TEXT, "Kernel name; on a CPU, the operator name."),
        Column("kind", TEXT, "Kind of kernel."),
        Column("operator", TEXT, "Operator that launched most of the calls."),
        Column("count", COUNT, "Calls on all ranks in the steps of profiler windows, or in all counted steps."),
        Column("total_ns", MS, "Total duration."),
        Column("mean_ns", MS, "Mean duration."),
        Column("max_ns", MS, "Longest duration."),
        Column("share", SHARE, "Fraction of the device's busy time."),
        Column("exposed_ns", MS, "Time not overlapped with work of higher priority."),
        Column("bound", TEXT, "What bounds the kernel: math, memory or unknown."),
        Column("tflop_s", TFLOP_S, "TFLOP/s over the part of the time whose shapes are recorded."),
        Column("gb_s", GB_S, "GB/s over the same part."),
    ),
    "modules": (
        Column("source", TEXT, "Kind of trace range that identifies the modules."),
        Column("name", TEXT, "Module of the model."),
        Column("parent", TEXT, "Parent module."),
        Column("calls", COUNT, "Calls of the module."),
        Column("host_ns", MS, "Host time inside the module."),
        Column("forward_ns", MS, "Device time launched by the module's forward, including submodules."),
        Column("backward_ns", MS, "Device time launched by the module's backward, including submodules."),
        Column("recompute_ns", MS, "The part of backward_ns that recomputes the forward (activation checkpointing)."),
        Column("self_ns", MS, "Device time of the module without its submodules."),
        Column("share", SHARE, "Fraction of the device's busy time."),
    ),
    "memory": (
        Column("rank", INDEX, "Global rank."),
        Column("allocated", SIZE, "Peak of allocated device memory in bytes; on a CPU the resident set."),
        Column("reserved", SIZE, "Peak of reserved device memory in bytes."),
        Column("capacity", SIZE, "Memory of the device in bytes."),
        Column("growth_per_step", SIZE, "Growth from step to step in bytes."),
        Column("fragmentation", SHARE, "Fraction of the reserved memory that was never allocated at once."),
        Column("retries", COUNT, "Retries of the caching allocator since the first recorded step."),
        Column("ooms", COUNT, "Out-of-memory errors since then."),
    ),
    "costs": (
        Column("step", INDEX, "Number of the step; only counted steps."),
        Column("cost", TEXT, "The cost, as in evidence: data wait, exposed communication, ..."),
        Column("rank", INDEX, "A late rank; null in the rows of the whole cost."),
        Column("cost_ns", MS, "The cost; in the row of a rank, how long the others waited for it because of this."),
        Column("hidden_ns", MS, "The part of it that hides behind computation of the others, as the replay predicts."),
        Column("step_ns", MS, "Duration of the step."),
    ),
    "path": (
        Column("step", INDEX, "Number of the step; only counted steps."),
        Column("rank", INDEX, "The rank whose activity is on the critical path."),
        Column("kind", TEXT, "compute, comm, copy, data, checkpoint or idle."),
        Column("detail", TEXT, "The finer cause: forward, launch, sync, ..."),
        Column("dur_ns", MS, "Duration of the piece. The pieces of a step add up to it."),
    ),
    "calls": (
        Column("step", INDEX, "Number of the step; only counted steps."),
        Column("rank", INDEX, "Global rank."),
        Column("op", TEXT, "Operation: all_reduce, all_gather, ..."),
        Column("bytes", SIZE, "Size of the full tensor in bytes; 0 if unknown."),
        Column("phase", TEXT, "Pass that needs a gather's result, or that made the gradients."),
        Column("micro_batch", INDEX, "Micro-batch, from 0."),
        Column("place", INDEX, "Index among the calls of its operation in this pass, from 0."),
        Column("exposed_ns", MS, "Exposed transfer, after the last rank's arrival."),
        Column("transfer_ns", MS, "From the last rank's arrival to this rank's end."),
        Column("of_data", FLAG, "Whether its group is for data parallelism, or of unknown purpose."),
    ),
    "meetings": (
        Column("step", INDEX, "Number of the step."),
        Column("counted", FLAG, "Whether the step counts."),
        Column("group", TEXT, "Process group."),
        Column("number", INDEX, "Sequence number of the collective in its group."),
        Column("op", TEXT, "Operation: all_reduce, all_gather, ..."),
        Column("bytes", SIZE, "Size of the full tensor in bytes; 0 if unknown."),
        Column("ranks", INDICES, "Ranks that took part."),
        Column("last_rank", INDEX, "The rank that arrived last."),
        Column("wait_ns", MS, "Waiting for the last rank; sum over the ranks."),
        Column("transfer_ns", MS, "From the last arrival to the end on the first rank."),
        Column("complete", FLAG, "Whether it was recorded on every rank of its group."),
        Column("inferred", FLAG, "Whether it was matched by counting and not by the library's number."),
        Column("sizes_differ", FLAG, "Whether the ranks passed different sizes."),
    ),
    "stalls": (
        Column("step", INDEX, "Number of the step; only counted steps."),
        Column("rank", INDEX, "Global rank."),
        Column("part", TEXT, "Why the device is idle: not_launched, host_call, queued, ..."),
        Column("host", TEXT, "What the host does meanwhile; empty if the trace does not show it."),
        Column("at_ns", CLOCK, "Begin of the idle time, from the begin of the step."),
        Column("dur_ns", MS, "Duration. Only the longest stalls of a step are listed."),
    ),
    "scheduling": (
        Column("step", INDEX, "Number of the step; only counted steps."),
        Column("rank", INDEX, "Global rank."),
        Column("queued_ns", MS, "Ready to run without a CPU core, outside of loading and collectives."),
        Column("loading_ns", MS, "Data wait in which the loader or its workers had no core."),
        Column("communicating_ns", MS, "Waiting for collectives in which the threads that carry them had no core."),
        Column("between_ns", MS, "On a core between the phases."),
        Column("blocked_ns", MS, "Blocked outside of all known waits."),
        Column("frozen_ns", MS, "Stopped inside of collectives."),
    ),
    "checkpoints": (
        Column("step", INDEX, "Number of the step."),
        Column("rank", INDEX, "Global rank."),
        Column("asynchronous", FLAG, "Whether it was written in the background."),
        Column("blocking_ns", MS, "How long the training was blocked."),
        Column("waited_ns", MS, "The part of it that was spent waiting for the checkpoint before."),
        Column("background_ns", MS, "From then until all shards were on the disk."),
        Column("bytes", SIZE, "Bytes that this rank wrote."),
        Column("failed", TEXT, "Why there is no checkpoint; empty if there is one."),
    ),
    "numbers": (
        Column("step", INDEX, "Number of the step."),
        Column("rank", INDEX, "Global rank."),
        Column("what", TEXT, "What it is: loss, gradient norm, or as the training calls it."),
        Column("value", NUMBER, "The value, which is not finite, or jumps."),
        Column("usual", NUMBER, "The median of those before; null if there were none."),
    ),
    "summaries": (
        Column("rank", INDEX, "Global rank. Only runs that are analysed from the ranks' summaries have rows."),
        *_TIMES[1:5],  # compute to data wait
        _TIMES[6],  # idle: of devices, where it is known
        Column(
            "collective_wait_ns",
            MS,
            "Waiting for later ranks in a collective, by sums of measured durations; null where these are not needed.",
        ),
    ),
    "stretches": (
        Column("rank", INDEX, "Global rank whose steps these are; null for all ranks together."),
        Column("first", INDEX, "Number of the first step."),
        Column("last", INDEX, "Number of the last step; the same where each step is known."),
        Column("steps", COUNT, "How many steps were summed up; the times are means of one step."),
        Column("resolution", TEXT, "How well the steps are known: each step, or sums over 50, 1,000 or 20,000."),
        Column("begin_unix_ns", CLOCK, "Begin of the first step, Unix time; null without a clock."),
        Column("end_unix_ns", CLOCK, "End of the last step."),
        Column("step_ns", MS, "Duration of a step of the rank."),
        Column("longest_ns", MS, "The longest of the steps."),
        *_TIMES[1:7],  # compute to idle
    ),
    "changes": (
        Column("step", INDEX, "The first step of the new level of the step time."),
        Column("last", INDEX, "The last step of it."),
        Column("precision", COUNT, "By how many steps the change may be off."),
        Column("unix_ns", CLOCK, "When it was, Unix time; null without a clock."),
        Column("before_ns", MS, "A step before it, without the longest tenth: evaluations and checkpoints."),
        Column("after_ns", MS, "A step from then on."),
        Column("change", RATIO, "The difference as a fraction of before_ns; above 0 it became slower."),
        Column("cause", TEXT, "The cost that makes most of the difference, as in costs; empty if it is not known."),
        Column("ranks", INDICES, "Ranks at fault for it; empty if it is no rank in particular."),
        Column("hosts", TEXT, "Their hosts."),
        Column("basis", TEXT, "What the cause rests on."),
    ),
    "incidents": (
        Column("kind", TEXT, "slow, stalled (one step, or a pause before it) or stuck (until the end)."),
        Column("first", INDEX, "The first step of it."),
        Column("last", INDEX, "The last step of it."),
        Column("begin_unix_ns", CLOCK, "When it began, Unix time."),
        Column("end_unix_ns", CLOCK, "When it ended, or the last record was made."),
        Column("goes_on", FLAG, "Whether it lasts until the last record."),
        Column("lost_ns", MS, "Time that it cost the training, against the steps before it."),
        Column("lost_hours", NUMBER, "Hours that it cost all ranks together."),
        Column("cause", TEXT, "As in changes."),
        Column("ranks", INDICES, "Ranks at fault; empty if it is no rank in particular, or not known."),
        Column("hosts", TEXT, "Their hosts."),
    ),
    "goodput": (
        Column(
            "part",
            TEXT,
            "new_steps, repeated_steps, initialisation, checkpoints, evaluation, stalls, restarts or other. They add "
            "up to the wall time.",
        ),
        Column("ns", MS, "Its duration."),
        Column("share", SHARE, "As a fraction of the wall time."),
    ),
    "facts": (
        Column("key", TEXT, "What is known of the run, such as trainer.prefetch or versions.torch."),
        Column("value", TEXT, "Its value."),
        Column("source", TEXT, "Where it comes from: manifest.json, rank.json, or the analysis."),
    ),
    "findings": (
        Column("id", TEXT, "Id of the diagnosis."),
        Column("severity", TEXT, "healthy, warn or critical."),
        Column("bottleneck", TEXT, "Bottleneck class of the finding; null if it costs no step time by itself."),
        Column("share", SHARE, "Cost as a fraction of the step time."),
        Column("cost_ns_per_step", MS, "Cost in nanoseconds per step."),
        Column("confidence", SHARE, "From 0 to 1."),
        Column("ranks", INDICES, "Culprit ranks; empty if there are none."),
        Column("title", TEXT, "Title of the finding."),
        Column("action", TEXT, "Recommended action."),
    ),
    "spans": (
        Column("rank", INDEX, "Global rank."),
        Column("step", INDEX, "Number of the step."),
        Column("start_ns", CLOCK, "Begin of the piece. The pieces of a rank's step follow each other."),
        Column("end_ns", CLOCK, "End of the piece."),
        Column("kind", TEXT, "What the rank does: compute, comm, copy, data, checkpoint or idle."),
        Column("detail", TEXT, "The finer cause: forward, backward, gc, launch, ..."),
        Column("source", TEXT, "What recorded the step: trace, records, or events of the device."),
    ),
    "waits": (
        Column("step", INDEX, "Number of the step."),
        Column("rank", INDEX, "The late rank."),
        Column("kind", TEXT, "What it did more of than its peers, as in spans."),
        Column("detail", TEXT, "As in spans; unknown if no activity of its step explains it."),
        Column("wait_ns", MS, "How long others waited for the rank because of it."),
    ),
    "samples": (
        Column("rank", INDEX, "Global rank."),
        Column("at_ns", CLOCK, "When it was read, on the rank's own monotonic clock."),
        Column("field", TEXT, "What was read. Sizes are bytes; other units end the name."),
        Column(
            "value", NUMBER, "The value; 1 and 0 for yes and no. Of a machine, only values that changed have a row."
        ),
        Column("source", TEXT, "What was read: device, device health, host, machine, allocator or loader."),
    ),
}
# By id.
COLUMNS: dict[str, dict[str, Column]] = {
    name: {column.id: column for column in columns} for name, columns in _FRAMES.items()
}


def frame(name: str, rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """The frame of this name, with exactly its columns; other keys are left out."""
    columns = COLUMNS[name]
    return data_frame(columns.values(), ({id: _plain(row.get(id)) for id in columns} for row in rows))


def frame_of(name: str, columns: Mapping[str, Any]) -> pl.DataFrame:
    """The frame of this name, of its columns."""
    return pl.DataFrame(columns, schema=schema_of(COLUMNS[name].values()))


def names_of(members: type[Kind] | type[Detail]) -> npt.NDArray[np.str_]:
    """The names of kinds or details, by their numbers."""
    names = [""] * (max(members) + 1)
    for member in members:
        names[member] = member.name.lower()
    return np.array(names)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def steps(attribution: Attribution, bottlenecks: Mapping[int, Bottleneck]) -> pl.DataFrame:
    """A row for each rank of each step."""
    parts, owner = attribution.steps.parts, attribution.steps.of_part
    of_step: dict[str, list[Any]] = {
        "step": attribution.steps.step.tolist(),
        "counted": attribution.steps.usable.tolist(),
        "note": list(attribution.steps.note),
        "bottleneck": [bottlenecks[step].value for step in attribution.steps.step.tolist()],
    }
    schema = schema_of(COLUMNS["steps"].values())
    columns = {
        name: pl.Series(name, of_step[name], dtype=schema[name])[owner]
        if name in of_step
        else pl.Series(name, parts.sources, dtype=pl.String)[parts.source.astype(np.int64)]
        if name == "source"
        else _nullable(name, parts.column(name))
        for name in schema
    }
    return frame_of("steps", columns)


def _nullable(name: str, values: Ints) -> pl.Series:
    return pl.Series(name, values).set(pl.Series(values == UNKNOWN), None)


def caused_waits(attribution: Attribution) -> dict[int, float]:
    """By rank, how many nanoseconds per step the others waited for it, for any reason."""
    counted = attribution.counted
    blames = counted.blames
    late, at = np.unique(blames.rank, return_inverse=True)
    caused = np.zeros(len(late), dtype=np.int64)
    np.add.at(caused, at, blames.ns)
    return {rank: ns / len(counted) for rank, ns in zip(late.tolist(), caused.tolist(), strict=True)}


def ranks(attribution: Attribution, tables: Tables, culprits: Sequence[int]) -> pl.DataFrame:
    """A row for each rank: ``rank_means``, rounded."""
    caused = caused_waits(attribution)
    steps = Counter(attribution.counted.parts.rank.tolist())
    rows = [
        {
            "rank": rank,
            "host": tables.ranks[rank].host if rank in tables.ranks else None,
            "culprit": rank in culprits,
            "steps": steps[rank],
            "caused_wait_ns": round(caused.get(rank, 0)),
            **{field: None if mean is None else round(mean) for field, mean in means.items()},
        }
        for rank, means in rank_means(attribution, _TIME_FIELDS).items()
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
