"""Replays a program: every rank runs its line, and they meet in the collectives. Linear in the operations."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account.match import Key
from diag.model.steps import Kind
from diag.replay.program import Issue, Program, Stretch, Wait, Work

Series = npt.NDArray[np.int64]


class StuckError(ValueError):
    """A rank waits for a collective that somebody never enters: the program is no possible run."""


class Replayed(Struct, frozen=True, eq=False):
    """``dur_ns``: of each step, in the order of the program's steps; ``end_ns``: of each rank, likewise.
    ``total_ns``: over all ranks, by kind; waiting for collectives is COMM."""

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
        found = _run(stretch, totals)
        durations.append(step_durations(stretch.begin_ns, found))
        for rank, own in found.items():
            ends[rank].extend(own)
    return Replayed(np.concatenate(durations), {rank: np.array(own) for rank, own in ends.items()}, totals)


def measured_durations(program: Program) -> Series:
    """Of each step, as it was measured, by the same definition."""
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
        """Everybody is there: when the collective ends on each rank, and when its wire is free again."""
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
