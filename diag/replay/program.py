"""What is replayed: for each rank a line of operations over consecutive steps, and the collectives that tie them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from diag.account.match import Key
from diag.model.steps import Detail, Kind


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
