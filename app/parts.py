"""What a step consists of, as the pages name and stack it."""

from __future__ import annotations

from enum import StrEnum

from diag.model.steps import Kind, Parts


class Part(StrEnum):
    """In stacking order; the values are what people read. The parts of a step add up to its duration."""

    COMPUTE = "compute"
    TRANSFER = "communication: transfer"
    WAITING = "communication: waiting for a rank"
    COMMUNICATION = "communication"  # where the clocks do not allow to split it
    COPY = "copy to the device"
    DATA = "data wait"
    CHECKPOINT = "checkpoint"
    HOST = "idle: waiting for the host"  # nothing launched, or inside a launch or another call of the host
    QUEUED = "idle: launched, not running"
    IDLE = "idle"


# Where waiting is left out, communication is transfers.
PART_OF = {
    Kind.COMPUTE: Part.COMPUTE,
    Kind.COMM: Part.TRANSFER,
    Kind.COPY: Part.COPY,
    Kind.DATA: Part.DATA,
    Kind.CHECKPOINT: Part.CHECKPOINT,
    Kind.IDLE: Part.IDLE,
}


def split(parts: Parts) -> dict[Part, int]:
    """Nanoseconds by part; every part is there, and they add up to ``parts.dur_ns``."""
    known = parts.exposed_wait_ns is not None and parts.exposed_transfer_ns is not None
    idle = parts.idle_parts
    host = idle.not_launched_ns + idle.in_launch_ns + idle.host_call_ns
    return {
        Part.COMPUTE: parts.compute_ns,
        Part.TRANSFER: (parts.exposed_transfer_ns or 0) if known else 0,
        Part.WAITING: (parts.exposed_wait_ns or 0) if known else 0,
        Part.COMMUNICATION: 0 if known else parts.exposed_comm_ns,
        Part.COPY: parts.exposed_copy_ns,
        Part.DATA: parts.data_wait_ns,
        Part.CHECKPOINT: parts.checkpoint_ns,
        Part.HOST: host,
        Part.QUEUED: idle.queued_ns,
        Part.IDLE: parts.idle_ns - host - idle.queued_ns,
    }
