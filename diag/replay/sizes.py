"""How large the sharding units are, and how much memory a device has left (science.md 4.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from diag.replay.program import GATHERS, GRADIENTS, Program, Role
from diag.rundir.run import Tables

# Units that are gathered at the same time: one in use, one gathered ahead, one being freed (science.md 3.1).
GATHERED_AT_ONCE = 3


class Sizes(Struct, frozen=True):
    """Bytes of full tensors in one micro-batch of one step, as the collectives show them.

    ``units``: each sharding unit's parameters, in order of forward. ``regathered``: of those that backward gathers
    again. ``gradients``: what is reduced.
    """

    units: tuple[int, ...]
    regathered: int
    gradients: int

    @property
    def parameters(self) -> int:
        return sum(self.units)

    @property
    def largest(self) -> int:
        return max(self.units, default=0)

    @property
    def largest_gradient(self) -> int:
        """The gradients of the largest unit, in the type that they are reduced in."""
        return round(self.largest * self.gradients / self.parameters) if self.parameters else 0

    def transient(self, largest: int, units: int) -> int:
        """What gathered parameters and unreduced gradients take at the peak, with units of this size."""
        gathered = min(GATHERED_AT_ONCE, units) * largest
        gradients = round(largest * self.gradients / self.parameters) if self.parameters else 0
        return gathered + gradients


def sizes_of(program: Program) -> Sizes:
    usual = _usual_step(program)
    first = [c for c in program.collectives() if c.micro_batch == 0 and c.step == usual]
    forward = sorted((c for c in first if c.role == Role.GATHER_FORWARD), key=lambda c: c.unit)
    return Sizes(
        units=tuple(c.bytes for c in forward),
        regathered=sum(c.bytes for c in first if c.role == Role.GATHER_BACKWARD),
        gradients=sum(c.bytes for c in first if c.role in GRADIENTS),
    )


def _usual_step(program: Program) -> int:
    """A step with as many collectives as most have."""
    counts: Counter[int] = Counter(c.step for c in program.collectives() if c.role in GATHERS | GRADIENTS)
    usual = Counter(counts.values()).most_common(1)
    return next((step for step, count in sorted(counts.items()) if usual and count == usual[0][0]), -1)


def headroom(tables: Tables) -> int | None:
    """Capacity less the peak that the allocator reserved, least over the ranks; None where no rank tells both."""
    left = []
    for rank in tables.ranks.values():
        recorded = [s.memory for s in rank.steps if s.memory is not None and s.memory.capacity]
        if recorded:
            left.append(min((m.capacity or 0) - (m.reserved or 0) for m in recorded))
    return min(left, default=None)


def grouped(units: Iterable[int], by: int) -> tuple[int, ...]:
    """Sizes of the units when ``by`` neighbours become one."""
    sizes = list(units)
    return tuple(sum(sizes[i : i + by]) for i in range(0, len(sizes), by))
