"""The parts of a step: their names, order and colours on all pages, and the mean of each on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import numpy as np

from diag.model import UNKNOWN
from diag.model.accounts import Attribution
from diag.model.parts import Ints, PartColumns
from diag.tables.zoom import Category


class Part(StrEnum):
    """In stacking order; the values are user-visible. The parts of a step add up to its duration."""

    COMPUTE = "compute"
    TRANSFER = "communication: transfer"
    WAITING = "communication: waiting for a rank"
    COMMUNICATION = "communication"  # if the clocks do not allow splitting it
    COPY = "copy between host and device"
    DATA = "data wait"
    CHECKPOINT = "checkpoint"
    HOST = "idle: waiting for the host"  # nothing launched, or inside a launch or another call of the host
    QUEUED = "idle: launched, not running"
    IDLE = "idle"


# The part of a step that a lane of a rank's account shows.
PART_OF: Mapping[Category, Part] = {
    Category.COMPUTE: Part.COMPUTE,
    Category.TRANSFER: Part.TRANSFER,
    Category.WAITING: Part.WAITING,
    Category.COMMUNICATION: Part.COMMUNICATION,
    Category.COPY: Part.COPY,
    Category.DATA: Part.DATA,
    Category.CHECKPOINT: Part.CHECKPOINT,
    Category.NOT_LAUNCHED: Part.HOST,
    Category.QUEUED: Part.QUEUED,
    Category.IDLE: Part.IDLE,
}


def split(parts: PartColumns) -> dict[Part, Ints]:
    """Nanoseconds by part, with every part; they add up to ``parts.dur_ns``."""
    known = parts.exposed_wait_ns != UNKNOWN
    host, queued = parts.column("idle_parts.by_host_ns"), parts.column("idle_parts.queued_ns")
    return {
        Part.COMPUTE: parts.compute_ns,
        Part.TRANSFER: np.where(known, parts.exposed_transfer_ns, 0),
        Part.WAITING: np.where(known, parts.exposed_wait_ns, 0),
        Part.COMMUNICATION: np.where(known, 0, parts.exposed_comm_ns),
        Part.COPY: parts.exposed_copy_ns,
        Part.DATA: parts.data_wait_ns,
        Part.CHECKPOINT: parts.checkpoint_ns,
        Part.HOST: host,
        Part.QUEUED: queued,
        Part.IDLE: parts.idle_ns - host - queued,
    }


def mean_parts(attribution: Attribution) -> dict[int, dict[Part, float]]:
    """By rank, nanoseconds of each part in the mean counted step."""
    parts = attribution.counted.parts
    of_part = split(parts)
    return {
        rank: {part: float(ns[parts.rank == rank].mean()) for part, ns in of_part.items()}
        for rank in np.unique(parts.rank).tolist()
    }


# From the palette of Okabe and Ito: see diag.app.theme.
LIGHT_PARTS = {
    Part.COMPUTE: "#0072b2",
    Part.TRANSFER: "#a63c06",
    Part.WAITING: "#f0a830",
    Part.COMMUNICATION: "#a63c06",
    Part.COPY: "#cc79a7",
    Part.DATA: "#00a878",
    Part.CHECKPOINT: "#7cc8f2",
    Part.HOST: "#3d4452",
    Part.QUEUED: "#73777f",
    Part.IDLE: "#c9ced6",
}
DARK_PARTS = {
    Part.COMPUTE: "#2a83c4",
    Part.TRANSFER: "#d1571b",
    Part.WAITING: "#f7bd55",
    Part.COMMUNICATION: "#d1571b",
    Part.COPY: "#d98cb8",
    Part.DATA: "#12b886",
    Part.CHECKPOINT: "#a5dcfa",
    Part.HOST: "#d0d4dc",
    Part.QUEUED: "#7c8088",
    Part.IDLE: "#4c5361",
}
