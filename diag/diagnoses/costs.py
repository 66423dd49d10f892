"""The costs of a step, each declared once, and the account of a step by them.

A cost declares the pieces of the critical path, and of a late rank's excess, that count as it. Every piece has one cost
or none (compute, and the idle time of a CPU), so that costs and the rest add up to the path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from diag.model.steps import (
    HOST_DETAILS,
    QUEUED_DETAILS,
    Bottleneck,
    Detail,
    Kind,
)


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
    SHARING = Declared(  # communication, waiting for each other and pauses of ranks that use one GPU
        "turns on a shared GPU", Bottleneck.UNDETERMINED, part=True
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


# Costs that something else than the path explains, such as CPU scheduling: they are no pieces of the path, but are
# subtracted from what they looked like.
CHARGED = frozenset(cost for cost in Cost if cost.value.on_path and not cost.value.path and not cost.value.waiting)
# The classes that a change can make smaller.
REMOVABLE = (Bottleneck.DATA, Bottleneck.COMMUNICATION, Bottleneck.HOST, Bottleneck.COMPUTE)


def class_of(cost: Cost, on_device: bool) -> Bottleneck:
    """The class that a cost makes a step belong to. UNDETERMINED: idle time that the recording does not explain."""
    declared = cost.value
    return (declared.bottleneck_on_device if on_device else None) or declared.bottleneck


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


def cost_of(kind: Kind, detail: Detail, on_device: bool) -> Cost:
    """The cost that waiting for a rank counts as. On a CPU the host and the device are one: what a rank does between
    operators is its own work."""
    return _OF_WAITING[on_device][kind, detail]


def cost_on_path(kind: Kind, detail: Detail, on_device: bool) -> Cost | None:
    """The cost of a piece of the critical path; None for computation, and for the idle time of a CPU."""
    return _ON_PATH[on_device].get((kind, detail))
