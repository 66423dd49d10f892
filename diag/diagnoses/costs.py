"""Costs by label: what a piece of the critical path, or of a late rank's excess, counts as.

One table has the costs of the path's pieces, one those of waiting for a rank. The first row that matches counts. Every
piece has one cost or none (compute, and the idle time of a CPU), so that costs and the rest add up to the path.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diag.model.steps import (
    HOST_DETAILS,
    QUEUED_DETAILS,
    STARTUP_DETAILS,
    Blame,
    Bottleneck,
    Detail,
    Kind,
    StepAccount,
    by_causes,
)

Nanoseconds = npt.NDArray[np.int64]  # one value per step


class Cost(StrEnum):
    """Removable costs of a step. ``CLASS_OF`` maps each to the class that it makes the step belong to."""

    DATA = "data wait"
    COPY = "exposed copies"
    OFFLOAD = "exposed offload copies"  # of states kept on the host, and waiting until the host has them
    COMM = "exposed communication"
    STRAGGLER = "waiting for slower ranks"  # compute that one rank did and the others waited for
    HOST_STRAGGLER = "waiting for ranks with slower hosts"  # likewise, but it was their hosts that launched later
    GC = "garbage collection"
    CHECKPOINT = "checkpoints"
    HOST = "host wait"  # a device is idle because nothing was launched yet
    QUEUED = "launched, not running"  # a device waits for something that its trace does not contain
    CONTENTION = "waiting for a CPU core"
    BETWEEN = "code between the phases"  # on a core, and neither data loading, forward, backward nor optimizer
    STALL = "blocked outside of known waits"  # the training's thread sleeps, waits for I/O or a lock, or is stopped
    ONCE = "one long stall"  # of the host, in a window without step marks
    BUBBLE = "pipeline bubble"  # of all ranks' time, not of the path, on which some rank always works
    IMBALANCE = "unbalanced pipeline stages"


CLASS_OF = {
    Cost.DATA: Bottleneck.DATA,
    Cost.COPY: Bottleneck.DATA,
    Cost.OFFLOAD: Bottleneck.COMMUNICATION,
    Cost.COMM: Bottleneck.COMMUNICATION,
    Cost.STRAGGLER: Bottleneck.COMPUTE,
    Cost.HOST_STRAGGLER: Bottleneck.HOST,
    Cost.GC: Bottleneck.COMPUTE,
    Cost.CHECKPOINT: Bottleneck.COMPUTE,
    Cost.HOST: Bottleneck.HOST,
    Cost.CONTENTION: Bottleneck.HOST,
    Cost.BETWEEN: Bottleneck.HOST,
    Cost.STALL: Bottleneck.HOST,
    Cost.QUEUED: Bottleneck.UNDETERMINED,
    Cost.ONCE: Bottleneck.UNDETERMINED,
    Cost.BUBBLE: Bottleneck.COMPUTE,
    Cost.IMBALANCE: Bottleneck.COMPUTE,
}

# A device that is idle while its host collects garbage or saves a checkpoint waits for its host.
_ON_DEVICE = {Cost.GC: Bottleneck.HOST, Cost.CHECKPOINT: Bottleneck.HOST}
# The classes that a change can make smaller.
REMOVABLE = (Bottleneck.DATA, Bottleneck.COMMUNICATION, Bottleneck.HOST, Bottleneck.COMPUTE)


def class_of(cost: Cost, on_device: bool) -> Bottleneck:
    """The class that a cost makes a step belong to. UNDETERMINED: idle time that the recording does not explain."""
    return _ON_DEVICE.get(cost, CLASS_OF[cost]) if on_device else CLASS_OF[cost]


class Label(NamedTuple):
    """A row: pieces of this kind with one of these details (() is any) have this cost. ``on_device``: only those of a
    device, whose idle time the host causes; on a CPU it is Python between operators."""

    kind: Kind
    details: tuple[Detail, ...]
    cost: Cost
    on_device: bool = False


ON_PATH = (
    Label(Kind.DATA, (), Cost.DATA),
    Label(Kind.COPY, (Detail.OFFLOAD,), Cost.OFFLOAD),
    Label(Kind.COPY, (), Cost.COPY),
    Label(Kind.COMM, (), Cost.COMM),
    Label(Kind.CHECKPOINT, (), Cost.CHECKPOINT),
    Label(Kind.IDLE, (Detail.OFFLOAD,), Cost.OFFLOAD),
    Label(Kind.IDLE, (Detail.GC,), Cost.GC),
    Label(Kind.IDLE, HOST_DETAILS, Cost.HOST, on_device=True),
    Label(Kind.IDLE, QUEUED_DETAILS, Cost.QUEUED, on_device=True),
    Label(Kind.IDLE, (Detail.ONCE,), Cost.ONCE, on_device=True),
)
OF_WAITING = (
    Label(Kind.IDLE, HOST_DETAILS, Cost.HOST_STRAGGLER, on_device=True),
    *(Label(kind, (Detail.GC,), Cost.GC) for kind in Kind),
    *(Label(kind, (Detail.OFFLOAD,), Cost.OFFLOAD) for kind in Kind),
    Label(Kind.DATA, (), Cost.DATA),
    Label(Kind.COPY, (), Cost.COPY),
    Label(Kind.CHECKPOINT, (), Cost.CHECKPOINT),
    Label(Kind.COMPUTE, (), Cost.STRAGGLER),
    Label(Kind.IDLE, (), Cost.STRAGGLER),
)
# Costs of their own, and what is added as unexplained: none of it is computing longer.
_NO_STRAGGLING = (Detail.GC, Detail.OFFLOAD, Detail.UNKNOWN)


def _by_label(labels: Sequence[Label], on_device: bool) -> dict[tuple[Kind, Detail], Cost]:
    found: dict[tuple[Kind, Detail], Cost] = {}
    for label in labels:
        if on_device or not label.on_device:
            for detail in label.details or Detail:
                found.setdefault((label.kind, detail), label.cost)
    return found


_ON_PATH = {on_device: _by_label(ON_PATH, on_device) for on_device in (False, True)}
_OF_WAITING = {on_device: _by_label(OF_WAITING, on_device) for on_device in (False, True)}


def cost_of(blame: Blame, on_device: bool) -> Cost:
    """The cost that waiting for a rank counts as. On a CPU the host and the device are one: what a rank does between
    operators is its own work."""
    return _OF_WAITING[on_device][blame.kind, blame.detail]


def on_path(steps: Sequence[StepAccount], on_device: bool) -> tuple[dict[Cost, Nanoseconds], Nanoseconds]:
    """Nanoseconds of the steps' critical paths by cost, and those without one; together they are the path."""
    spent = by_causes([step.path for step in steps])
    rest = spent.sum(axis=(1, 2))
    costs: dict[Cost, Nanoseconds] = {}
    for (kind, detail), cost in _ON_PATH[on_device].items():
        costs[cost] = costs.get(cost, 0) + spent[:, kind, detail]
        rest = rest - spent[:, kind, detail]
    return costs, rest


def costs_of(steps: Sequence[StepAccount], on_device: bool) -> dict[Cost, Nanoseconds]:
    """Removable nanoseconds of each step, by cost, without costs that no step has."""
    costs, rest = on_path(steps, on_device)
    if on_device:  # from records alone it is not known whether something was launched
        recorded = [any(parts.source == "records" for parts in step.parts) for step in steps]
        rest = rest + np.where(recorded, costs[Cost.QUEUED], 0)
        costs[Cost.QUEUED] = np.where(recorded, 0, costs[Cost.QUEUED])
    late = {cost: np.zeros(len(steps), dtype=np.int64) for cost in (Cost.STRAGGLER, Cost.HOST_STRAGGLER)}
    for at, step in enumerate(steps):
        for blame in step.blames:
            if (cost := cost_of(blame, on_device)) in late and blame.detail not in _NO_STRAGGLING:
                late[cost][at] += blame.ns
    both = late[Cost.STRAGGLER] + late[Cost.HOST_STRAGGLER]
    by_host = late[Cost.HOST_STRAGGLER]
    once = np.array([step.together for step in steps], dtype=np.float64)
    # Ranks can be late to several overlapping collectives, and late because their hosts are: together they cost at most
    # the part of the path that has no other cost, or whose cost is the host's.
    left = rest + costs.get(Cost.HOST, 0)
    together = np.minimum(_rounded(both * once), left)
    costs[Cost.HOST_STRAGGLER] = _rounded(together.astype(np.float64) * by_host / np.maximum(1, both))
    unexplained = np.array([step.unexplained_ns for step in steps], dtype=np.int64)
    costs[Cost.STRAGGLER] = together - costs[Cost.HOST_STRAGGLER] + unexplained
    if on_device:
        # A host that is slower than the others makes its rank late: its launches on the path are the same nanoseconds.
        of_host = np.maximum(0, costs[Cost.HOST] - _rounded(by_host * once))
        costs[Cost.HOST] = np.minimum(of_host, left - together)
    return {cost: ns for cost, ns in costs.items() if ns.any()}


def _rounded(values: npt.NDArray[np.float64]) -> Nanoseconds:
    whole: Nanoseconds = np.rint(values).astype(np.int64)
    return whole


def judged_ns(steps: Sequence[StepAccount]) -> Nanoseconds:
    """The time of each step that is judged: the step and waiting whose cause lies outside of it, without start-up."""
    idle = by_causes([step.path for step in steps])[:, Kind.IDLE]
    whole = np.array([step.dur_ns + step.unexplained_ns for step in steps], dtype=np.int64)
    judged: Nanoseconds = whole - idle[:, STARTUP_DETAILS].sum(axis=1)
    return judged
