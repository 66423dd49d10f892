"""What is replayed: for each rank a line of operations over consecutive steps, and the collectives that tie them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from diag.account.match import Key
from diag.model.steps import Detail, Kind
from diag.traces.kineto_names import dtype_bytes


class Role(StrEnum):
    """What a collective is for, where that can be told."""

    GATHER_FORWARD = "forward all-gather"
    GATHER_BACKWARD = "backward all-gather"
    SCATTER = "gradient reduce-scatter"
    REDUCE = "gradient all-reduce"
    OTHER = "other"


GATHERS = frozenset({Role.GATHER_FORWARD, Role.GATHER_BACKWARD})
GRADIENTS = frozenset({Role.SCATTER, Role.REDUCE})


class Work(Struct, frozen=True):
    """The main line is busy (or idle for a reason of its own) for ``ns``."""

    ns: int
    kind: Kind
    detail: Detail


class Issue(Struct, frozen=True):
    """The collective is entered, ``delay_ns`` after the main line got here (another thread may do it)."""

    key: Key
    delay_ns: int = 0


class Wait(Struct, frozen=True):
    """The main line stops until the collective is done on this rank."""

    key: Key


class StepEnd(Struct, frozen=True):
    step: int


Op = Work | Issue | Wait | StepEnd
Line = tuple[Op, ...]


class Collective(Struct, frozen=True):
    """One collective. It is done on a rank ``tail_ns[rank]`` after the first rank, and there ``transfer_ns`` after the
    last rank entered it. Where the wire is still busy with an earlier one of the group, all but ``latency_ns`` of the
    transfer comes after that.

    ``bytes`` is the full tensor, 0 if unknown. ``unit`` counts the sharding units in order of forward, -1 if unknown.
    """

    key: Key
    op: str
    group: str
    bytes: int
    dtype: str
    step: int
    transfer_ns: int
    tail_ns: Mapping[int, int]
    latency_ns: int = 0
    role: Role = Role.OTHER
    unit: int = -1
    micro_batch: int = 0

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset(self.tail_ns)


class Stretch(Struct, frozen=True):
    """Consecutive steps of all ranks: replayed together, because ranks drift across the borders of steps.

    ``begin_ns`` and ``end_ns`` (per rank; the latter for each step) are what was measured.
    """

    steps: tuple[int, ...]
    begin_ns: Mapping[int, int]
    end_ns: Mapping[int, tuple[int, ...]]
    lines: Mapping[int, Line]
    collectives: Mapping[Key, Collective]


class Program(Struct, frozen=True):
    """A run as it can be replayed. ``gloo``: the host itself moves the bytes, and waits unless told otherwise."""

    stretches: tuple[Stretch, ...]
    gloo: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.stretches[0].lines))

    def collectives(self) -> list[Collective]:
        return [collective for stretch in self.stretches for collective in stretch.collectives.values()]


class Refusal(Struct, frozen=True):
    """Why something is not replayed or predicted: a stated result."""

    reason: str


class Mutated(Struct, frozen=True):
    """A changed program, and what was taken for granted in changing it."""

    program: Program
    assumed: tuple[str, ...] = ()


def over_stretches(program: Program, change: Callable[[Stretch], Stretch]) -> Program:
    return replace(program, stretches=tuple(change(stretch) for stretch in program.stretches))


def with_collectives(program: Program, change: Callable[[Collective], Collective]) -> Program:
    """The same lines, other collectives."""
    return over_stretches(
        program, lambda s: replace(s, collectives={key: change(c) for key, c in s.collectives.items()})
    )


def with_lines(stretch: Stretch, change: Callable[[Line], list[Op]]) -> Stretch:
    """The same collectives, other lines; those that no line enters any more are dropped."""
    lines = {rank: tuple(change(line)) for rank, line in stretch.lines.items()}
    entered = {op.key for line in lines.values() for op in line if isinstance(op, Issue)}
    kept = {key: c for key, c in stretch.collectives.items() if key in entered}
    return replace(stretch, lines=lines, collectives=kept)


def without(stretch: Stretch, gone: Callable[[Collective], bool]) -> Stretch:
    """The stretch as if these collectives had never been."""
    keys = {key for key, collective in stretch.collectives.items() if gone(collective)}
    return with_lines(
        stretch, lambda line: [op for op in line if not (isinstance(op, Issue | Wait) and op.key in keys)]
    )


# -- units -------------------------------------------------------------------------------------------------------------
#
# Which sharding unit each collective of FSDP belongs to, and what it is for: by order, phase and size.
#
# No record names the unit, and a trace does so only in its few steps, in ranges of the host. But the order tells it:
# forward gathers the units one after the other, backward gathers them in reverse, those that were kept excepted, and
# reduces their gradients in reverse. Sizes settle who was left out (science.md 3.1).

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
