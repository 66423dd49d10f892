"""Which sharding unit each collective of FSDP belongs to, and what it is for: by order, phase and size.

No record names the unit, and a trace does so only in its few steps, in ranges of the host. But the order tells it:
forward gathers the units one after the other, backward gathers them in reverse, those that were kept excepted, and
reduces their gradients in reverse. Sizes settle who was left out (science.md 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from diag.model.steps import Detail
from diag.replay.program import Collective, Role
from diag.traces.kineto_names import dtype_bytes

_SMALL = 64  # bytes: norms, losses and flags, which are no gradients


class Placed(Struct, frozen=True):
    """A collective, its step and micro-batch known, and the phase in which the ranks entered it."""

    collective: Collective
    phase: Detail


def labelled(calls: Iterable[Placed]) -> list[Collective]:
    """The collectives of one stretch, in the order in which they were entered, with role and unit."""
    parts = groupby(calls, key=lambda placed: (placed.collective.step, placed.collective.micro_batch))
    return [collective for _, part in parts for collective in _micro_batch(part)]


def _micro_batch(calls: Iterable[Placed]) -> list[Collective]:
    elements: list[int] = []  # of each unit, in order of forward
    free: dict[Role, set[int]] = {}
    at: dict[Role, int] = {}
    found = []
    for placed in calls:
        collective = placed.collective
        role, unit = _role(placed), -1
        if role == Role.GATHER_FORWARD:
            unit = len(elements)
            elements.append(_elements(collective))
        elif role in (Role.GATHER_BACKWARD, Role.SCATTER):
            left = free.setdefault(role, set(range(len(elements))))
            fits = [u for u in left if elements[u] == _elements(collective)]
            # Backward goes through the units in reverse; siblings within a layer may change places.
            expected = at.get(role, len(elements)) - 1
            unit = min(fits, key=lambda u: (abs(u - expected), -u), default=-1)
            left.discard(unit)
            at[role] = unit if unit >= 0 else expected
        found.append(replace(collective, role=role, unit=unit))
    return found


def _role(placed: Placed) -> Role:
    op, phase = placed.collective.op, placed.phase
    if op == "all_gather" and phase == Detail.FORWARD:
        return Role.GATHER_FORWARD
    if op == "all_gather" and phase == Detail.BACKWARD:
        return Role.GATHER_BACKWARD
    if op == "reduce_scatter" and phase == Detail.BACKWARD:
        return Role.SCATTER
    if op == "all_reduce" and phase == Detail.BACKWARD and placed.collective.bytes > _SMALL:
        return Role.REDUCE
    return Role.OTHER


def _elements(collective: Collective) -> int:
    """Gradients may be reduced in another type than the parameters are gathered in. Bytes where the type is unknown."""
    return collective.bytes // (dtype_bytes(collective.dtype) or 1)
