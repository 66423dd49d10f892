"""Programs: for each rank a line of operations over consecutive steps, with the collectives that connect the ranks; and
their replay, in which every rank runs its line and meets the others in the collectives. Linear in the operations."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from itertools import groupby

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.account.match import Key
from diag.model.steps import Detail, Kind
from diag.replay.policy import REPLAY
from diag.traces.kineto_names import dtype_bytes


class Role(StrEnum):
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
    """One collective. The first rank is done ``transfer_ns`` after the last rank entered it, each rank
    ``tail_ns[rank]`` after the first. Where the wire is still busy with an earlier collective of the group, all but
    ``latency_ns`` of the transfer comes after that.

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
    """A run that can be replayed. ``gloo``: the host itself moves the bytes, and waits unless the call is
    asynchronous."""

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
    """A changed program, and the assumptions of the change."""

    program: Program
    assumed: tuple[str, ...] = ()


def over_stretches(program: Program, change: Callable[[Stretch], Stretch]) -> Program:
    return replace(program, stretches=tuple(change(stretch) for stretch in program.stretches))


def with_collectives(program: Program, change: Callable[[Collective], Collective]) -> Program:
    return over_stretches(
        program, lambda s: replace(s, collectives={key: change(c) for key, c in s.collectives.items()})
    )


def with_lines(stretch: Stretch, change: Callable[[Line], list[Op]]) -> Stretch:
    """The same collectives, other lines; collectives that no line enters any more are dropped."""
    lines = {rank: tuple(change(line)) for rank, line in stretch.lines.items()}
    entered = {op.key for line in lines.values() for op in line if isinstance(op, Issue)}
    collectives = {key: c for key, c in stretch.collectives.items() if key in entered}
    return replace(stretch, lines=lines, collectives=collectives)


def without(stretch: Stretch, gone: Callable[[Collective], bool]) -> Stretch:
    """The stretch without these collectives."""
    keys = {key for key, collective in stretch.collectives.items() if gone(collective)}
    return with_lines(
        stretch, lambda line: [op for op in line if not (isinstance(op, Issue | Wait) and op.key in keys)]
    )


# -- units -------------------------------------------------------------------------------------------------------------
#
# Which sharding unit each collective of FSDP belongs to, and what it is for: by order, phase and size.
#
# No record names the unit, and a trace does so only in its few steps, in ranges of the host. But the order shows it:
# forward gathers the units one after the other; backward gathers them in reverse, except those that were kept, and
# reduces their gradients in reverse. Sizes show which units were left out (docs/concepts/sharding.md).


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
    collectives = []
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
        collectives.append(replace(collective, role=role, unit=unit))
    return collectives


def _role(placed: Placed) -> Role:
    op, phase = placed.collective.op, placed.phase
    if op == "all_gather" and phase == Detail.FORWARD:
        return Role.GATHER_FORWARD
    if op == "all_gather" and phase == Detail.BACKWARD:
        return Role.GATHER_BACKWARD
    if op == "reduce_scatter" and phase == Detail.BACKWARD:
        return Role.SCATTER
    if op == "all_reduce" and phase == Detail.BACKWARD and placed.collective.bytes > REPLAY.small_collective_bytes:
        return Role.REDUCE
    return Role.OTHER


def _elements(collective: Collective) -> int:
    """Elements, since gradients may be reduced in another type than parameters are gathered in; bytes where the type is
    unknown."""
    return collective.bytes // (dtype_bytes(collective.dtype) or 1)


# -- replay ------------------------------------------------------------------------------------------------------------


Series = npt.NDArray[np.int64]


class StuckError(ValueError):
    """A rank waits for a collective that another rank never enters: the program is impossible."""


class Replayed(Struct, frozen=True, eq=False):
    """``dur_ns``: of each step, in the order of the program's steps; ``end_ns``: the same for each rank. ``total_ns``:
    over all ranks, by kind; waiting for collectives is COMM."""

    dur_ns: Series
    end_ns: Mapping[int, Series]
    total_ns: Mapping[Kind, int]

    @property
    def mean_ns(self) -> float:
        return float(self.dur_ns.mean())


def replay(program: Program) -> Replayed:
    """When every step ends on every rank. StuckError where the program cannot run to its end."""
    durations: list[Series] = []
    ends: dict[int, list[int]] = defaultdict(list)
    totals: Counter[Kind] = Counter()
    for stretch in program.stretches:
        step_ends = _run(stretch, totals)
        durations.append(step_durations(stretch.begin_ns, step_ends))
        for rank, rank_ends in step_ends.items():
            ends[rank].extend(rank_ends)
    return Replayed(np.concatenate(durations), {rank: np.array(rank_ends) for rank, rank_ends in ends.items()}, totals)


def measured_durations(program: Program) -> Series:
    return np.concatenate([step_durations(stretch.begin_ns, stretch.end_ns) for stretch in program.stretches])


def step_durations(begin_ns: Mapping[int, int], end_ns: Mapping[int, tuple[int, ...] | list[int]]) -> Series:
    """How much later each step ends on the last rank than the one before it.

    Unlike ``StepAccount.dur_ns``, which follows one step's own path back to its begin, these add up to the time that
    passed, also where ranks begin a step at different times: what a change gains per step is a difference of these.
    """
    frontier: Series = np.array(list(end_ns.values()), dtype=np.int64).max(axis=0)
    durations: Series = np.diff(frontier, prepend=np.int64(max(begin_ns.values())))
    return durations


def replay_error(program: Program, replayed: Replayed) -> float:
    """Mean over the steps of |replayed - measured| / measured."""
    measured = measured_durations(program)
    return float(np.mean(np.abs(replayed.dur_ns - measured) / np.maximum(measured, 1)))


def _run(stretch: Stretch, totals: Counter[Kind]) -> dict[int, list[int]]:
    lines, collectives = stretch.lines, stretch.collectives
    members = {key: c.ranks for key, c in collectives.items()}
    now = dict(stretch.begin_ns)
    place = dict.fromkeys(lines, 0)
    entered: dict[Key, dict[int, int]] = defaultdict(dict)
    done: dict[Key, dict[int, int]] = {}
    free: dict[tuple[int, str], int] = {}
    blocked: dict[Key, list[int]] = defaultdict(list)
    ends: dict[int, list[int]] = {rank: [] for rank in lines}
    ready = deque(sorted(lines))

    def begin(key: Key) -> None:
        """All ranks have entered: sets when the collective ends on each rank, and when its wire is free again."""
        collective, arrivals = collectives[key], entered[key]
        wire = collective.group
        queue = max(free.get((rank, wire), 0) for rank in arrivals)
        first = max(
            max(arrivals.values()) + collective.transfer_ns, queue + collective.transfer_ns - collective.latency_ns
        )
        done[key] = {rank: first + tail for rank, tail in collective.tail_ns.items()}
        for rank, end in done[key].items():
            free[rank, wire] = max(end, free.get((rank, wire), 0))
        ready.extend(blocked.pop(key, ()))

    while ready:
        rank = ready.popleft()
        line, at, time = lines[rank], place[rank], now[rank]
        while at < len(line):
            op = line[at]
            if isinstance(op, Work):
                time += op.ns
                totals[op.kind] += op.ns
            elif isinstance(op, Issue):
                entered[op.key][rank] = time + op.delay_ns
                if len(entered[op.key]) == len(members[op.key]):
                    begin(op.key)
            elif isinstance(op, Wait):
                if op.key not in done:
                    blocked[op.key].append(rank)
                    break
                totals[Kind.COMM] += max(0, done[op.key][rank] - time)
                time = max(time, done[op.key][rank])
            else:
                ends[rank].append(time)
            at += 1
        place[rank], now[rank] = at, time
    for key, waiting in blocked.items():
        if waiting:
            absent = sorted(members[key] - set(entered[key])) if key in members else []
            raise StuckError(f"rank {waiting[0]} waits for {key}, which ranks {absent} never enter")
    return ends
