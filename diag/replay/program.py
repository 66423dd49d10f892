"""Programs: for each rank a line of operations over consecutive steps, with the collectives that connect the ranks; and
their replay, in which every rank runs its line and meets the others in the collectives. Linear in the operations."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain, groupby, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.account.critical_path import details_of, kinds_of, label_of
from diag.model.keys import Key
from diag.model.ragged import edges_of, owners
from diag.model.steps import Detail, Kind
from diag.replay.policy import REPLAY
from diag.traces.kineto_names import dtype_bytes

Series = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Durations = npt.NDArray[np.float64]


class Role(StrEnum):
    GATHER_FORWARD = "forward all-gather"
    GATHER_BACKWARD = "backward all-gather"
    SCATTER = "gradient reduce-scatter"
    REDUCE = "gradient all-reduce"
    OTHER = "other"


GATHERS = frozenset({Role.GATHER_FORWARD, Role.GATHER_BACKWARD})
GRADIENTS = frozenset({Role.SCATTER, Role.REDUCE})


END, ISSUE, WAIT, WORK = range(4)  # at the same time in this order

Row = tuple[int, int, int, int]  # of a line: code, ns, label, call


def work(ns: int, kind: Kind, detail: Detail) -> Row:
    """The main line is busy (or idle for a reason of its own) for ``ns``."""
    return WORK, ns, label_of(kind, detail), -1


def issue(call: int) -> Row:
    """The collective is entered."""
    return ISSUE, 0, 0, call


def wait(call: int) -> Row:
    """The main line stops until the collective is done on this rank."""
    return WAIT, 0, 0, call


def met(call: int) -> tuple[Row, Row]:
    """The main line enters the collective and waits for it."""
    return issue(call), wait(call)


STEP_END: Row = END, 0, 0, -1


class Line(Struct, frozen=True, eq=False):
    """A rank's operations as columns. ``code``: WORK, ISSUE, WAIT or END. ``ns``: of work, its time; of an issue, how
    much later than the main line another thread enters. ``label``: kind and detail of work
    (``diag.account.critical_path``). ``call``: the collective that is entered or waited for, as its place in the
    stretch; -1 for others."""

    code: npt.NDArray[np.int8]
    ns: Series
    label: npt.NDArray[np.int16]
    call: npt.NDArray[np.int32]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Line:
        code, ns, label, call = np.array(list(rows), dtype=np.int64).reshape(-1, 4).T
        return cls(code.astype(np.int8), ns.copy(), label.astype(np.int16), call.astype(np.int32))

    def rows(self) -> list[Row]:
        columns = (self.code.tolist(), self.ns.tolist(), self.label.tolist(), self.call.tolist())
        return list(zip(*columns, strict=True))

    def take(self, rows: Mask | Series | slice) -> Line:
        return Line(self.code[rows], self.ns[rows], self.label[rows], self.call[rows])

    def with_rows(self, before: Series, code: Series, call: npt.NDArray[np.int32]) -> Line:
        """The line with issues or waits inserted before these rows, in the order given."""
        return Line(
            np.insert(self.code, before, code),
            np.insert(self.ns, before, 0),
            np.insert(self.label, before, 0),
            np.insert(self.call, before, call),
        )

    def is_work(self, kinds: Iterable[Kind] = Kind, details: Iterable[Detail] = Detail) -> Mask:
        """Which rows are work of these kinds and details."""
        work: Mask = self.code == WORK
        if kinds is not Kind:
            work = work & _listed(kinds, len(Kind))[kinds_of(self.label)]
        return work & _listed(details, len(Detail))[details_of(self.label)] if details is not Detail else work


def _listed(values: Iterable[int], count: int) -> Mask:
    """For each of so many values, whether it is one of these: ten times faster to look up than ``np.isin``."""
    listed = np.zeros(count, dtype=np.bool_)
    listed[list(values)] = True
    return listed


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


class Stretch(Struct, frozen=True, eq=False):
    """Consecutive steps of all ranks: replayed together, because ranks drift across the borders of steps.

    ``begin_ns`` and ``end_ns`` (per rank; the latter for each step) are what was measured. ``collectives``: in the
    order in which the lines count them.
    """

    steps: tuple[int, ...]
    begin_ns: Mapping[int, int]
    end_ns: Mapping[int, Sequence[int]]
    lines: Mapping[int, Line]
    collectives: Mapping[Key, Collective]

    @property
    def laid(self) -> tuple[Line, Series]:
        """All lines one after the other as one: those of the i-th rank are at ``first[i]`` to ``first[i + 1]``."""
        lines = list(self.lines.values())
        columns = (np.concatenate([getattr(line, name) for line in lines]) for name in Line.__struct_fields__)
        return Line(*columns), edges_of([len(line.code) for line in lines])

    def chosen(self, which: Callable[[Collective], object]) -> Mask:
        """For each collective whether it is chosen, and False: for operations without one, whose place is -1."""
        return np.array([*(bool(which(c)) for c in self.collectives.values()), False], dtype=np.bool_)

    def with_lines(self, lines: Mapping[int, Line]) -> Stretch:
        """The same collectives, other lines; collectives that no line mentions any more are dropped."""
        left = np.zeros(len(self.collectives) + 1, dtype=np.bool_)
        for line in lines.values():
            left[line.call] = True
        left[-1] = False
        if left[:-1].all():
            return replace(self, lines=lines)
        places = np.where(left, np.cumsum(left, dtype=np.int32) - 1, np.int32(-1))
        return replace(
            self,
            lines={rank: replace(line, call=places[line.call]) for rank, line in lines.items()},
            collectives={key: c for (key, c), there in zip(self.collectives.items(), left, strict=False) if there},
        )

    def without(self, gone: Callable[[Collective], object]) -> Stretch:
        """The stretch without these collectives."""
        dropped = self.chosen(gone)
        return self.with_lines({rank: line.take(~dropped[line.call]) for rank, line in self.lines.items()})


class Program(Struct, frozen=True, eq=False):
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


class Mutated(Struct, frozen=True, eq=False):
    """A changed program, and the assumptions of the change. ``certain``: it does not depend on the costs, so it is the
    same with the fastest and the slowest wire; ``fastest``: with the fastest one, it is the likely one."""

    program: Program
    assumed: tuple[str, ...] = ()
    certain: bool = False
    fastest: bool = False


def over_stretches(program: Program, change: Callable[[Stretch], Stretch]) -> Program:
    return replace(program, stretches=tuple(change(stretch) for stretch in program.stretches))


def over_lines(program: Program, change: Callable[[int, Line, int], Line]) -> Program:
    """The program with other work: the lines mention the same collectives. ``change`` gets the stretch's number, a
    line of it and the rank."""
    stretches = (
        replace(stretch, lines={rank: change(number, line, rank) for rank, line in stretch.lines.items()})
        for number, stretch in enumerate(program.stretches)
    )
    return replace(program, stretches=tuple(stretches))


def with_collectives(program: Program, change: Callable[[Collective], Collective]) -> Program:
    return over_stretches(
        program, lambda s: replace(s, collectives={key: change(c) for key, c in s.collectives.items()})
    )


# -- units -------------------------------------------------------------------------------------------------------------
#
# Which sharding unit each collective of FSDP belongs to, and what it is for: by order, phase and size.
#
# No record names the unit, and a trace does so only in its few steps, in ranges of the host. But the order shows it:
# forward gathers the units one after the other; backward gathers them in reverse, except those that were kept, and
# reduces their gradients in reverse. Sizes show which units were left out (docs/concepts/sharding.md).


def labelled(calls: Iterable[tuple[Collective, Detail]]) -> list[Collective]:
    """A rank's collectives of one stretch, in order, with role and unit. Each comes with its step and micro-batch, and
    with the phase in which it was entered."""
    parts = groupby(calls, key=lambda call: (call[0].step, call[0].micro_batch))
    return [collective for _, part in parts for collective in _micro_batch(part)]


def _micro_batch(calls: Iterable[tuple[Collective, Detail]]) -> Iterator[Collective]:
    elements: list[int] = []  # of each unit, in order of forward
    free: dict[Role, set[int]] = {}
    at: dict[Role, int] = {}
    for collective, phase in calls:
        role, unit = _role(collective, phase), -1
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
        yield replace(collective, role=role, unit=unit)


def _role(collective: Collective, phase: Detail) -> Role:
    op = collective.op
    if op == "all_gather" and phase == Detail.FORWARD:
        return Role.GATHER_FORWARD
    if op == "all_gather" and phase == Detail.BACKWARD:
        return Role.GATHER_BACKWARD
    if op == "reduce_scatter" and phase == Detail.BACKWARD:
        return Role.SCATTER
    if op == "all_reduce" and phase == Detail.BACKWARD and collective.bytes > REPLAY.small_collective_bytes:
        return Role.REDUCE
    return Role.OTHER


def _elements(collective: Collective) -> int:
    """Elements, since gradients may be reduced in another type than parameters are gathered in; bytes where the type is
    unknown."""
    return collective.bytes // (dtype_bytes(collective.dtype) or 1)


_LONG_AGO = -(1 << 62)


class StuckError(ValueError):
    """A rank waits for a collective that another rank never enters: the program is impossible."""


class Replayed(Struct, frozen=True, eq=False):
    """``dur_ns``: of each step, in the order of the program's steps; ``end_ns``: the same for each rank. ``total_ns``:
    over all ranks, by kind; waiting for collectives is COMM. ``least_ns``: the least that each step can take: the work
    of its busiest rank, without collectives and what comes after the last step."""

    dur_ns: Series
    end_ns: Mapping[int, Series]
    total_ns: Mapping[Kind, int]
    least_ns: Durations

    @property
    def mean_ns(self) -> float:
        return float(self.dur_ns.mean())


def replay(program: Program) -> Replayed:
    """When every step ends on every rank. StuckError where the program cannot run to its end."""
    laid = [stretch.laid for stretch in program.stretches]
    events = [Events.of(stretch, *of_it) for stretch, of_it in zip(program.stretches, laid, strict=True)]
    step_ends, waited_ns = _run(program.stretches, events)
    durations: list[Series] = []
    least: list[Durations] = []
    ends: dict[int, list[Series]] = defaultdict(list)
    totals: Counter[Kind] = Counter({Kind.COMM: waited_ns})
    for stretch, (line, first), of_stretch in zip(program.stretches, laid, step_ends, strict=True):
        durations.append(step_durations(stretch.begin_ns, of_stretch))
        for rank, of_rank in of_stretch.items():
            ends[rank].append(of_rank)
        work = line.code == WORK
        spent = np.bincount(kinds_of(line.label[work]), weights=line.ns[work])
        totals.update({Kind(kind): int(ns) for kind, ns in enumerate(spent) if ns})
        steps, before = len(stretch.steps), np.cumsum(line.code == END)
        step = before - np.repeat((before - (line.code == END))[first[:-1]], np.diff(first))
        within = work & (step < steps)
        at = (owners(first) * steps + step)[within]
        by_step = np.bincount(at, weights=line.ns[within], minlength=len(stretch.lines) * steps)
        least.append(by_step.reshape(-1, steps).max(axis=0))
    by_rank = {rank: np.concatenate(parts) for rank, parts in ends.items()}
    return Replayed(np.concatenate(durations), by_rank, totals, np.concatenate(least))


def measured_durations(program: Program) -> Series:
    return np.concatenate([step_durations(stretch.begin_ns, stretch.end_ns) for stretch in program.stretches])


def step_durations(begin_ns: Mapping[int, int], end_ns: Mapping[int, Sequence[int] | Series]) -> Series:
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


class Events(NamedTuple):
    """All operations of the lines of a stretch but their work, as columns, one rank after the other: those of the i-th
    rank are ``first[i]`` to ``first[i + 1]``. ``at_ns``: the work before them, and an issue's delay."""

    ranks: tuple[int, ...]
    first: Series
    code: npt.NDArray[np.int8]
    call: npt.NDArray[np.int32]
    at_ns: Series

    @classmethod
    def of(cls, stretch: Stretch, line: Line, first: Series) -> Events:
        """``line``, ``first``: as the stretch is ``laid``."""
        work = line.code == WORK
        worked = np.cumsum(np.where(work, line.ns, 0))
        before = np.concatenate(([0], worked))[first]
        at_ns = worked - np.repeat(before[:-1], np.diff(first)) + np.where(work, 0, line.ns)
        edges = np.concatenate(([0], np.cumsum(~work)))[first]
        return cls(tuple(stretch.lines), edges, line.code[~work], line.call[~work], at_ns[~work])

    @property
    def together(self) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int32], Series]:
        """Of lines whose codes are equal: these, and call and time, [operations, ranks]."""
        ranks = len(self.ranks)
        return self.code[: self.first[1]], self.call.reshape(ranks, -1).T, self.at_ns.reshape(ranks, -1).T

    def alike(self, stretch: Stretch) -> bool:
        """Whether all ranks, and many, do the same at the same place of their lines: each enters a collective, perhaps
        of a part of the ranks, where its other members do, and before it waits for it."""
        counts = np.diff(self.first)
        if len(self.ranks) < REPLAY.least_ranks_in_lockstep or (counts != counts[0]).any():
            return False
        code, call, _ = self.together
        if (self.code.reshape(len(counts), -1) != code).any():
            return False
        issues = code == ISSUE
        entered = call[issues]
        turn = np.full(len(stretch.collectives) + 1, len(entered))
        turn[entered] = np.arange(len(entered))[:, None]
        waits = code == WAIT
        if (turn[call[waits]] >= np.cumsum(issues)[waits][:, None]).any():
            return False
        place = np.arange(len(entered))[:, None] * len(stretch.collectives) + entered
        places, members = np.unique(place, return_counts=True)
        which = places % max(1, len(stretch.collectives))
        sizes = np.array([len(c.tail_ns) for c in stretch.collectives.values()], dtype=np.int64)
        return len(np.unique(which)) == len(which) and np.array_equal(members, sizes[which])

    def rows(self) -> dict[int, Iterator[tuple[int, int, int]]]:
        """By rank: code, call and time of each."""
        columns = [column.tolist() for column in (self.code, self.call, self.at_ns)]
        return {
            rank: zip(*(column[i:j] for column in columns), strict=True)
            for rank, (i, j) in zip(self.ranks, pairwise(self.first.tolist()), strict=True)
        }


def _run(stretches: Sequence[Stretch], events: Sequence[Events]) -> tuple[list[Mapping[int, Series]], int]:
    """By stretch, when each step ends on each rank; and how long all ranks waited for collectives."""
    found: list[Mapping[int, Series]] = [{}] * len(stretches)
    waited_ns = 0
    alike: dict[bytes, list[int]] = {}
    for at, (stretch, own) in enumerate(zip(stretches, events, strict=True)):
        if own.alike(stretch):
            alike.setdefault(own.together[0].tobytes(), []).append(at)
        else:
            found[at], waited = _in_turn(stretch, own)
            waited_ns += waited
    for places in alike.values():
        ends, waited = _in_lockstep([stretches[at] for at in places], [events[at] for at in places])
        waited_ns += waited
        for at, of_stretch in zip(places, ends, strict=True):
            found[at] = of_stretch
    return found, waited_ns


def _in_lockstep(stretches: Sequence[Stretch], events: Sequence[Events]) -> tuple[list[Mapping[int, Series]], int]:
    """``_run`` of stretches in which all ranks do the same at the same place. A rank is somewhere at ``base`` (its
    begin and its waiting so far) and the work before."""
    code = events[0].together[0]
    columns = edges_of([len(own.ranks) for own in events])  # of each stretch
    counted = edges_of([len(stretch.collectives) for stretch in stretches])
    call = np.concatenate([own.together[1] + first for own, first in zip(events, counted[:-1], strict=True)], axis=1)
    at_ns = np.concatenate([own.together[2] for own in events], axis=1)
    begun = [of.begin_ns[rank] for of, own in zip(stretches, events, strict=True) for rank in own.ranks]
    begin = base = np.array(begun, dtype=np.int64)
    entered = call[code == ISSUE]
    turn = np.full(counted[-1], -1)  # the operation at which its members enter it
    turn[entered] = np.arange(len(entered))[:, None]
    # At each operation, its members together: where those of each collective begin, and its number among them.
    order = np.argsort(entered, axis=1, kind="stable")
    of = np.take_along_axis(entered, order, axis=1)
    opens = np.diff(of, axis=1, prepend=-1) != 0
    begins, number = [np.flatnonzero(row) for row in opens], np.cumsum(opens, axis=1) - 1
    tail = np.zeros(entered.shape, dtype=np.int64)
    for stretch, own, column, first in zip(stretches, events, columns, counted, strict=False):
        tails = [c.tail_ns for c in stretch.collectives.values()]
        rows = np.repeat(turn[first : first + len(tails)], list(map(len, tails)))
        rank = np.fromiter(chain.from_iterable(tails), np.int64, len(rows))
        ns = np.fromiter(chain.from_iterable(of_call.values() for of_call in tails), np.int64, len(rows))
        by_rank = np.argsort(own.ranks)
        of_rank = column + by_rank[np.searchsorted(own.ranks, rank, sorter=by_rank)]
        tail[rows[rows >= 0], of_rank[rows >= 0]] = ns[rows >= 0]
    collectives = [c for stretch in stretches for c in stretch.collectives.values()]
    transfer, latency = np.array([(c.transfer_ns, c.latency_ns) for c in collectives], dtype=np.int64).reshape(-1, 2).T
    groups: dict[str, int] = {}
    group = np.array([groups.setdefault(c.group, len(groups)) for c in collectives], dtype=np.int64)
    every = np.arange(columns[-1])
    free = np.full((len(groups), len(every)), _LONG_AGO)
    done = np.zeros((len(entered), len(every)), dtype=np.int64)
    ends: list[Series] = []
    issued = 0
    for what, which, at in zip(code.tolist(), call, at_ns, strict=True):
        if what == ISSUE:
            own, first = order[issued], begins[issued]
            met = of[issued, first]
            wire = group[which], every
            free_ns = free[wire]
            queue, came = np.maximum.reduceat(free_ns[own], first), np.maximum.reduceat((base + at)[own], first)
            ended = np.maximum(came, queue - latency[met]) + transfer[met]
            done[issued, own] = ended[number[issued]]
            done[issued] += tail[issued]
            free[wire] = np.maximum(done[issued], free_ns)
            issued += 1
        elif what == END:
            ends.append(base + at)
        else:
            base = np.maximum(base, done[turn[which], every] - at)
    by_column = np.stack(ends, axis=1) if ends else np.zeros((len(every), 0), dtype=np.int64)
    of_each = np.split(by_column, columns[1:-1])
    found: list[Mapping[int, Series]] = [
        dict(zip(own.ranks, of, strict=True)) for own, of in zip(events, of_each, strict=True)
    ]
    return found, int((base - begin).sum())


def _in_turn(stretch: Stretch, events: Events) -> tuple[dict[int, Series], int]:
    """The same, each rank as far as it can go, in turn: for few ranks, or in any order of the collectives."""
    collectives = list(stretch.collectives.values())
    absent = [len(c.tail_ns) for c in collectives]
    arrival = [_LONG_AGO] * len(collectives)
    done: list[dict[int, int]] = [{}] * len(collectives)
    blocked: dict[int, list[int]] = defaultdict(list)
    free: dict[tuple[int, str], int] = {}
    ends: dict[int, list[int]] = {rank: [] for rank in events.ranks}
    base = dict(stretch.begin_ns)
    lines = events.rows()
    held: dict[int, tuple[int, int]] = {}  # what a blocked rank waits for, and its work before
    ready = deque(sorted(lines))

    def begin(which: int) -> None:
        """All ranks have entered: sets when the collective ends on each rank, and when its wire is free again."""
        c = collectives[which]
        queue = max(free.get((rank, c.group), 0) for rank in c.tail_ns)
        first = max(arrival[which], queue - c.latency_ns) + c.transfer_ns
        done[which] = {rank: first + tail for rank, tail in c.tail_ns.items()}
        for rank, end in done[which].items():
            free[rank, c.group] = max(end, free.get((rank, c.group), 0))
        ready.extend(blocked.pop(which, ()))

    while ready:
        rank = ready.popleft()
        now = base[rank]
        if rank in held:
            which, at = held.pop(rank)
            now = max(now, done[which][rank] - at)
        for what, which, at in lines[rank]:
            if what == ISSUE:
                arrival[which] = max(arrival[which], now + at)
                absent[which] -= 1
                if not absent[which]:
                    begin(which)
            elif what == END:
                ends[rank].append(now + at)
            elif done[which]:
                now = max(now, done[which][rank] - at)
            else:
                held[rank] = which, at
                blocked[which].append(rank)
                break
        base[rank] = now
    for rank, (which, _) in held.items():
        entered = {r for r, all_of in events.rows().items() if _ahead(all_of, which) and not _ahead(lines[r], which)}
        c = collectives[which]
        raise StuckError(f"rank {rank} waits for {c.key}, which ranks {sorted(c.ranks - entered)} never enter")
    waited_ns = sum(base[rank] - begin_ns for rank, begin_ns in stretch.begin_ns.items())
    return {rank: np.array(of_rank, dtype=np.int64) for rank, of_rank in ends.items()}, waited_ns


def _ahead(line: Iterator[tuple[int, int, int]], which: int) -> bool:
    """Whether the rest of a line still enters the collective."""
    return any(what == ISSUE and call == which for what, call, _ in line)
