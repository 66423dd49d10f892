"""The costs of a step, each declared once, and the account of a step by them.

A cost declares the pieces of the critical path, and of a late rank's excess, that count as it. Every piece has one cost
or none (compute, and the idle time of a CPU), so that costs and the rest add up to the path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

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


class Label(NamedTuple):
    """Pieces of this kind (None is any) with one of these details (() is any). ``on_device``: only those of a device,
    whose idle time the host causes; on a CPU it is Python between operators. A label with details comes before one
    without."""

    kind: Kind | None
    details: tuple[Detail, ...] = ()
    on_device: bool = False


class Declared(Struct, frozen=True):
    """All that is known about a cost. Tables, evidence, ``--json``, the comparison with the phases and the dashboard
    take it from here.

    ``words``: its name for users. ``bottleneck``: the class that it makes a step belong to; ``bottleneck_on_device``:
    the class on a device, if that is another one. ``path``: the pieces of the critical path that it consists of;
    ``waiting``: what late ranks did more of, if waiting for them counts as this cost. ``usual_share``: the fraction of
    a step below which it is no cost. ``stragglers_first``: waiting for a rank that does more of it counts as a
    straggler, so it takes what stragglers leave. ``part``: whether it is a part of its own in tables of the step.
    ``in_phases``: whether the durations of phases show it as well. ``between_ranks``: it is waiting for other ranks, so
    ranks that train alone have none of it. ``lateness``: it is one of the reasons why a rank is late. ``on_path``: it
    is time of the critical path, and not the mean over all ranks."""

    words: str
    bottleneck: Bottleneck
    bottleneck_on_device: Bottleneck | None = None
    path: tuple[Label, ...] = ()
    waiting: tuple[Label, ...] = ()
    usual_share: Callable[[], float] | None = None
    stragglers_first: bool = False
    part: bool = False
    in_phases: bool = False
    between_ranks: bool = False
    lateness: bool = False
    on_path: bool = True


class Cost(Enum):
    """Removable costs of a step: the registry, in the order of every table. The name in lower case is the key in
    ``--json``."""

    COMM = Declared(
        "exposed communication",
        Bottleneck.COMMUNICATION,
        path=(Label(Kind.COMM),),
        part=True,
        in_phases=True,
        between_ranks=True,
    )
    OFFLOAD = Declared(  # of states kept on the host, and waiting until the host has them
        "exposed offload copies",
        Bottleneck.COMMUNICATION,
        path=(Label(Kind.COPY, (Detail.OFFLOAD,)), Label(Kind.IDLE, (Detail.OFFLOAD,))),
        waiting=(Label(None, (Detail.OFFLOAD,)),),
        part=True,
    )
    COPY = Declared(
        "exposed copies",
        Bottleneck.DATA,
        path=(Label(Kind.COPY),),
        waiting=(Label(Kind.COPY),),
        part=True,
        in_phases=True,
    )
    DATA = Declared(
        "data wait",
        Bottleneck.DATA,
        path=(Label(Kind.DATA),),
        waiting=(Label(Kind.DATA),),
        part=True,
        in_phases=True,
    )
    CHECKPOINT = Declared(  # a device that is idle meanwhile waits for its host
        "checkpoints",
        Bottleneck.COMPUTE,
        Bottleneck.HOST,
        path=(Label(Kind.CHECKPOINT),),
        waiting=(Label(Kind.CHECKPOINT),),
        part=True,
        in_phases=True,
    )
    HOST = Declared(  # a device is idle because nothing was launched yet
        "host wait",
        Bottleneck.HOST,
        path=(Label(Kind.IDLE, HOST_DETAILS, on_device=True),),
        stragglers_first=True,
        part=True,
    )
    CONTENTION = Declared("waiting for a CPU core", Bottleneck.HOST, part=True, in_phases=True, lateness=True)
    STALL = Declared(  # the training's thread sleeps, waits for I/O or a lock, or is stopped
        "blocked outside of known waits", Bottleneck.HOST, part=True, in_phases=True, lateness=True
    )
    BETWEEN = Declared(  # on a core, and neither data loading, forward, backward nor optimizer
        "code between the phases", Bottleneck.HOST, part=True, in_phases=True
    )
    STRAGGLER = Declared(  # compute that one rank did and the others waited for
        "waiting for slower ranks",
        Bottleneck.COMPUTE,
        waiting=(Label(Kind.COMPUTE), Label(Kind.IDLE)),
        in_phases=True,
        between_ranks=True,
        lateness=True,
    )
    HOST_STRAGGLER = Declared(  # likewise, but it was their hosts that launched later
        "waiting for ranks with slower hosts",
        Bottleneck.HOST,
        waiting=(Label(Kind.IDLE, HOST_DETAILS, on_device=True),),
        in_phases=True,
        between_ranks=True,
        lateness=True,
    )
    GC = Declared(  # a device that is idle meanwhile waits for its host
        "garbage collection",
        Bottleneck.COMPUTE,
        Bottleneck.HOST,
        path=(Label(Kind.IDLE, (Detail.GC,)),),
        waiting=(Label(None, (Detail.GC,)),),
    )
    QUEUED = Declared(  # a device waits for something that its trace does not contain
        "launched, not running",
        Bottleneck.UNDETERMINED,
        path=(Label(Kind.IDLE, QUEUED_DETAILS, on_device=True),),
    )
    ONCE = Declared(  # of the host, in a window without step marks
        "one long stall", Bottleneck.UNDETERMINED, path=(Label(Kind.IDLE, (Detail.ONCE,), on_device=True),)
    )
    BUBBLE = Declared(  # of all ranks' time: some rank always works on the path
        "pipeline bubble", Bottleneck.COMPUTE, between_ranks=True, on_path=False
    )
    IMBALANCE = Declared("unbalanced pipeline stages", Bottleneck.COMPUTE, between_ranks=True, on_path=False)

    @property
    def words(self) -> str:
        return self.value.words


# Costs that CPU scheduling explains: they are no pieces of the path, but are subtracted from what they looked like.
CHARGED = frozenset(cost for cost in Cost if cost.value.on_path and not cost.value.path and not cost.value.waiting)
# The classes that a change can make smaller.
REMOVABLE = (Bottleneck.DATA, Bottleneck.COMMUNICATION, Bottleneck.HOST, Bottleneck.COMPUTE)


def class_of(cost: Cost, on_device: bool) -> Bottleneck:
    """The class that a cost makes a step belong to. UNDETERMINED: idle time that the recording does not explain."""
    declared = cost.value
    return (declared.bottleneck_on_device if on_device else None) or declared.bottleneck


# Costs of their own, and what is added as unexplained: none of it is computing longer.
_NO_STRAGGLING = (Detail.GC, Detail.OFFLOAD, Detail.UNKNOWN)


def _by_label(labels: Sequence[tuple[Label, Cost]], on_device: bool) -> dict[tuple[Kind, Detail], Cost]:
    labelled: dict[tuple[Kind, Detail], Cost] = {}
    for label, cost in sorted(labels, key=lambda pair: not pair[0].details):
        for kind in Kind if label.kind is None else (label.kind,):
            for detail in label.details or Detail:
                if on_device or not label.on_device:
                    labelled.setdefault((kind, detail), cost)
    return labelled


ON_PATH = [(label, cost) for cost in Cost for label in cost.value.path]
OF_WAITING = [(label, cost) for cost in Cost for label in cost.value.waiting]
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
    dur_ns = np.array([step.dur_ns for step in steps], dtype=np.int64)
    for cost in costs:
        if (usual_share := cost.value.usual_share) is not None:
            usual = np.where(costs[cost] < usual_share() * dur_ns, costs[cost], 0)
            costs[cost], rest = costs[cost] - usual, rest + usual
    late = {cost: np.zeros(len(steps), dtype=np.int64) for cost in (Cost.STRAGGLER, Cost.HOST_STRAGGLER)}
    for at, step in enumerate(steps):
        for blame in step.blames:
            if (cost := cost_of(blame, on_device)) in late and blame.detail not in _NO_STRAGGLING:
                late[cost][at] += blame.ns
    both = late[Cost.STRAGGLER] + late[Cost.HOST_STRAGGLER]
    by_host = late[Cost.HOST_STRAGGLER]
    once = np.array([step.together for step in steps], dtype=np.float64)
    # Ranks can be late to several overlapping collectives, and late because their hosts are: together they cost at most
    # the part of the path that has no other cost, or one that takes what they leave.
    after = [cost for cost in costs if cost.value.stragglers_first]
    left = rest + sum(costs[cost] for cost in after)
    together = np.minimum(_rounded(both * once), left)
    costs[Cost.HOST_STRAGGLER] = _rounded(together.astype(np.float64) * by_host / np.maximum(1, both))
    unexplained = np.array([step.unexplained_ns for step in steps], dtype=np.int64)
    costs[Cost.STRAGGLER] = together - costs[Cost.HOST_STRAGGLER] + unexplained
    if on_device:
        # A host that is slower than the others makes its rank late: its launches on the path are the same nanoseconds.
        costs[Cost.HOST] = np.maximum(0, costs[Cost.HOST] - _rounded(by_host * once))
    left = left - together
    for cost in after:
        costs[cost] = np.minimum(costs[cost], left)
        left = left - costs[cost]
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
