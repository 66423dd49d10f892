"""The registry of diagnoses, in the order of the reference: what each looks for, what it needs of a run, and the module
that is loaded where a run may show it. Nothing else of the analysis names a module of a finding."""

from __future__ import annotations

from diag.deferred import by_name
from diag.model.steps import Knob

from . import ids, needs
from .costs import Cost
from .subject import Column, Listed

_HERE = "diag.diagnoses"
_PARTS = f"{_HERE}.exposed_communication:PARTS"
_OF_PART = (Column.CALLS, Column.OWN_DEVICE)
_OVERLAP = {Knob.WRAP: "", Knob.PREFETCH: ""}  # they overlap communication with more computation

DIAGNOSES: tuple[Listed, ...] = (
    Listed(
        "slow-data",
        "slow data loading",
        f"{_HERE}.slow_data:DIAGNOSIS",
        reads=(Column.PHASES,),
        costs=(Cost.DATA,),
        knobs={id: {Knob.LOADER: ""} for id in ("slow-data-all-ranks", "slow-data-bursty")},
    ),
    Listed(
        "exposed-copies",
        "exposed copies between host and device",
        f"{_HERE}.exposed_copy:DIAGNOSIS",
        reads=(Column.PIECES, Column.DEVICE),
        costs=(Cost.COPY,),
    ),
    Listed(
        "exposed-offload",
        "exposed offload copies",
        f"{_HERE}.exposed_offload:DIAGNOSIS",
        reads=(Column.PIECES, Column.DEVICE),
        costs=(Cost.OFFLOAD,),
    ),
    Listed(
        "exposed-communication",
        "exposed communication",
        f"{_HERE}.exposed_communication:DIAGNOSIS",
        reads=(Column.PHASES, Column.OWN_DEVICE),
        costs=(Cost.COMM,),
        cannot_look=needs.communication,
        knobs={
            "root-only-unit": {Knob.WRAP: ""},
            "latency-bound-collectives": _OVERLAP,
            "communication-not-overlapped": _OVERLAP,
            "exposed-communication": _OVERLAP,
            "slow-network": _OVERLAP,
        },
    ),
    Listed(
        "low-bus-bandwidth",
        "low bus bandwidth",
        _PARTS,
        reads=_OF_PART,
        costs=(Cost.COMM,),
        cannot_look=needs.parts_and(by_name(f"{_HERE}.low_bus_bandwidth:cannot_look")),
    ),
    Listed(
        "missing-prefetch",
        "all-gathers without prefetch",
        _PARTS,
        reads=_OF_PART,
        costs=(Cost.COMM,),
        cannot_look=needs.cannot_tell_parts,
        knobs={"missing-prefetch": _OVERLAP},
    ),
    Listed(
        "regather-in-backward",
        "all-gathers in the backward",
        _PARTS,
        reads=_OF_PART,
        costs=(Cost.COMM,),
        cannot_look=needs.memory_and_parts,
        knobs={"regather-in-backward": {Knob.PREFETCH: ""}},
    ),
    Listed(
        "sync-every-micro-step",
        "gradient reduction in every micro-batch",
        _PARTS,
        reads=_OF_PART,
        costs=(Cost.COMM,),
        cannot_look=needs.micro_batches_and_parts,
    ),
    Listed(
        "reduce-scatter-stall",
        "backward stalled by reduce-scatter",
        _PARTS,
        reads=(*_OF_PART, Column.DEVICE),
        costs=(Cost.COMM,),
        cannot_look=needs.cannot_tell_parts,
        knobs={"reduce-scatter-stall": _OVERLAP},
    ),
    Listed(
        "ddp-buckets",
        "late DDP buckets",
        _PARTS,
        reads=_OF_PART,
        costs=(Cost.COMM,),
        cannot_look=needs.parts_and(by_name(f"{_HERE}.ddp_buckets:cannot_look")),
    ),
    Listed(
        "zero-buckets",
        "ZeRO's gradient reduction not overlapped with backward",
        _PARTS,
        reads=_OF_PART,
        costs=(Cost.COMM,),
        cannot_look=needs.cannot_tell_parts,
    ),
    Listed(
        ids.STRAGGLER,
        "stragglers",
        f"{_HERE}.straggler:DIAGNOSIS",
        costs=needs.STRAGGLING,
        cannot_look=needs.comparable_ranks,
        knobs={
            "compute-straggler": {
                Knob.STRAGGLER: "make {ranks} as fast as the others, or replace {its} host or device",
            },
        },
    ),
    Listed(
        ids.PIPELINE_BUBBLE,
        "pipeline bubbles",
        f"{_HERE}.pipeline_bubble:DIAGNOSIS",
        reads=(Column.PIECES, Column.OWN_DEVICE),
        costs=(Cost.BUBBLE,),
        cannot_look=needs.messages_of_stages,
    ),
    Listed(
        "unbalanced-stages",
        "unbalanced pipeline stages",
        f"{_HERE}.unbalanced_stages:DIAGNOSIS",
        reads=(Column.PIECES, Column.OWN_DEVICE),
        costs=(Cost.IMBALANCE,),
        cannot_look=needs.messages_of_stages,
    ),
    Listed(
        ids.SHARED_GPU,
        "shared GPUs",
        f"{_HERE}.shared_gpu:DIAGNOSIS",
        reads=(Column.DEVICE,),
        costs=(Cost.SHARING,),
        always=True,
        cannot_look=needs.gpus,
    ),
    Listed(
        "throttled-device",
        "throttled devices",
        f"{_HERE}.throttled_device:DIAGNOSIS",
        reads=(Column.SAMPLES, Column.DEVICE),
        costs=(Cost.STRAGGLER,),
        cannot_look=by_name(f"{_HERE}.throttled_device:cannot_look"),
    ),
    Listed(
        "unhealthy-memory",
        "unhealthy device memory",
        f"{_HERE}.unhealthy_memory:DIAGNOSIS",
        reads=(Column.SAMPLES, Column.DEVICE),
        cannot_look=by_name(f"{_HERE}.unhealthy_memory:cannot_look"),
    ),
    Listed(
        "degraded-links",
        "degraded device links",
        f"{_HERE}.degraded_links:DIAGNOSIS",
        reads=(Column.SAMPLES, Column.DEVICE),
        cannot_look=by_name(f"{_HERE}.degraded_links:cannot_look"),
    ),
    Listed(
        "contended-host",
        "CPU contention",
        f"{_HERE}.contended_host:DIAGNOSIS",
        reads=(Column.SCHEDULING,),
        costs=(Cost.CONTENTION,),
        cannot_look=needs.contention,
        knobs={
            "contended-host": {Knob.STRAGGLER: "give cores to {ranks}, or move the other processes of {its} host"},
        },
    ),
    Listed(
        "stalled-rank",
        "stalled ranks",
        f"{_HERE}.stalled_rank:DIAGNOSIS",
        reads=(Column.SCHEDULING,),
        costs=(Cost.STALL,),
        cannot_look=needs.blocked_time,
        knobs={"stalled-rank": {Knob.STRAGGLER: "remove what blocks {ranks}"}},
    ),
    Listed(
        ids.RANKS_TRAIN_ALONE,
        "ranks without communication",
        f"{_HERE}.ranks_train_alone:DIAGNOSIS",
        reads=(Column.CALLS,),
        cannot_look=needs.recorded_collectives,
    ),
    Listed(
        "garbage-collection",
        "garbage collection pauses",
        f"{_HERE}.garbage_collection:DIAGNOSIS",
        reads=(Column.PIECES,),
        costs=(Cost.GC,),
    ),
    Listed(
        "checkpoint-stall",
        "checkpoint stalls",
        f"{_HERE}.checkpoint_stall:DIAGNOSIS",
        reads=(Column.PHASES,),
        costs=(Cost.CHECKPOINT,),
    ),
    Listed(
        ids.CODE_BETWEEN_PHASES,
        "code between the phases",
        f"{_HERE}.code_between_phases:DIAGNOSIS",
        reads=(Column.SCHEDULING,),
        costs=(Cost.BETWEEN,),
        cannot_look=needs.between_phases,
    ),
    Listed(
        "long-evaluation",
        "long evaluation",
        f"{_HERE}.long_evaluation:DIAGNOSIS",
        reads=(Column.PHASES,),
        cannot_look=by_name(f"{_HERE}.long_evaluation:cannot_look"),
    ),
    Listed(
        "host-bound",
        "launch-bound devices",
        f"{_HERE}.host_bound:DIAGNOSIS",
        reads=(Column.PHASES, Column.DEVICE),
        costs=needs.WAITS_FOR_HOST,
        cannot_look=needs.idle_devices,
    ),
    Listed(
        "memory-pressure",
        "memory pressure",
        f"{_HERE}.memory_pressure:DIAGNOSIS",
        reads=(Column.MEMORY,),
        cannot_look=by_name(f"{_HERE}.memory_pressure:cannot_look"),
    ),
    Listed(
        "recompute-with-memory-free",
        "recomputation with free memory",
        f"{_HERE}.recompute_with_memory_free:DIAGNOSIS",
        reads=(Column.MEMORY, Column.DEVICE, Column.OWN_DEVICE),
        cannot_look=by_name(f"{_HERE}.recompute_with_memory_free:cannot_look"),
    ),
    Listed(
        ids.LOW_MFU,
        "low MFU",
        f"{_HERE}.low_mfu:DIAGNOSIS",
        reads=(Column.STEPS, Column.DEVICE, Column.OWN_DEVICE),
        cannot_look=by_name(f"{_HERE}.low_mfu:cannot_look"),
    ),
    Listed(
        "mismatched-collectives",
        "mismatched collectives",
        f"{_HERE}.mismatched_collectives:DIAGNOSIS",
        reads=(Column.CALLS,),
        cannot_look=needs.sequence_numbers,
    ),
    Listed(
        "not-finite",
        "loss or gradient norm that is not finite, or jumps",
        f"{_HERE}.odd_numbers:DIAGNOSIS",
        reads=(Column.NUMBERS,),
    ),
)
BY_ID = {each.id: each for each in DIAGNOSES}
