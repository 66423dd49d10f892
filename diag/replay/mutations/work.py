"""Less work on the ranks themselves: no straggler, less waiting for data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from statistics import fmean, median

from msgspec.structs import replace

from diag.model.steps import Kind
from diag.replay.costs import Costs, Level
from diag.replay.engine import step_durations
from diag.replay.mutations import Mutation
from diag.replay.program import Issue, Line, Mutated, Op, Program, Refusal, StepEnd, Wait, Work, over_stretches

_OWN = frozenset({Kind.COMPUTE, Kind.IDLE})
_WAITS = 0.05  # of a step: from here on it is one that waited for data
_MOSTLY = 0.8
_READY_NS = 2_000_000  # to take a batch that is ready from a loader's process (measured: 1 to 2 ms on a busy host)
_MODEL = 0.1  # by how much a batch may take longer or shorter than the average says

_Slot = tuple[int, int]  # step, operations between ranks before it in the step


def without_straggler(ranks: Collection[int], kinds: Collection[Kind] = _OWN) -> Mutation:
    """What these ranks do beyond the median of the others between two meetings is gone, on average over the steps."""

    def mutate(program: Program, _costs: Costs, _level: Level) -> Mutated | Refusal:
        peers = [rank for rank in program.ranks if rank not in ranks]
        if not peers or not set(ranks) <= set(program.ranks):
            return Refusal("it takes another rank to compare with")
        spent = {rank: _spent(program, rank, kinds) for rank in program.ranks}
        left = {rank: _left(spent[rank], [spent[peer] for peer in peers]) for rank in ranks}

        def change(line: Line, rank: int) -> Line:
            if rank not in left:
                return line
            return tuple(
                replace(op, ns=round(op.ns * left[rank].get(slot, 1.0)))
                if isinstance(op, Work) and op.kind in kinds
                else op
                for slot, op in _slots(line)
            )

        return Mutated(_over_lines(program, change), ("the rank becomes as fast as the others' median",))

    return mutate


def more_workers(now: int, new: int, batches_per_step: int = 1) -> Mutation:
    """The loader has ``new`` processes a rank instead of ``now`` (0: the training process loads itself)."""

    def mutate(program: Program, _costs: Costs, level: Level) -> Mutated | Refusal:
        if new <= now:
            return Refusal(f"{new} workers are not more than {now}")
        kept: dict[int, float] = {}
        bursty = False
        for rank in program.ranks:
            waits, durations = _per_step(program, rank)
            if not sum(waits):
                continue
            wait, step = fmean(waits), fmean(durations)
            if now and not _always(waits, durations, -(-now // batches_per_step)):
                bursty = True  # the loader keeps up on average: how long a batch takes it is not known
                left = (0.0, wait / 2, wait)[level]
            else:
                # Who always waits takes batches as fast as they come: `now` at a time (science.md rule 18).
                load = now * step if now else wait
                load *= (1 - _MODEL, 1.0, 1 + _MODEL)[level]
                ready = (0, _READY_NS // 2, _READY_NS)[level] * batches_per_step
                left = min(wait, max(ready, load / new - (step - wait)))
            kept[rank] = left / wait
        if not kept:
            return Refusal("no rank waits for data")

        def change(line: Line, rank: int) -> Line:
            share = kept.get(rank, 1.0)
            return tuple(
                replace(op, ns=round(op.ns * share)) if isinstance(op, Work) and op.kind == Kind.DATA else op
                for op in line
            )

        assumed = [f"there are cores and a store for {new} loader processes a rank"]
        if bursty:
            assumed.append("the loader keeps up on average, so how long a batch takes it is not known")
        return Mutated(_over_lines(program, change), tuple(assumed))

    return mutate


def _over_lines(program: Program, change: Callable[[Line, int], Line]) -> Program:
    return over_stretches(
        program, lambda s: replace(s, lines={rank: change(line, rank) for rank, line in s.lines.items()})
    )


def _slots(line: Line) -> Iterator[tuple[_Slot, Op]]:
    """Each operation with its slot: work of one slot lies between the same two meetings on all ranks."""
    steps = [op.step for op in line if isinstance(op, StepEnd)]
    done, count = 0, 0
    for op in line:
        yield (steps[min(done, len(steps) - 1)], count), op
        if isinstance(op, StepEnd):
            done, count = done + 1, 0
        elif isinstance(op, Issue | Wait):
            count += 1


def _spent(program: Program, rank: int, kinds: Collection[Kind]) -> dict[_Slot, int]:
    found: dict[_Slot, int] = defaultdict(int)
    for stretch in program.stretches:
        for slot, op in _slots(stretch.lines[rank]):
            if isinstance(op, Work):
                found[slot] += op.ns if op.kind in kinds else 0
    return found


def _left(own: Mapping[_Slot, int], peers: list[dict[_Slot, int]]) -> dict[_Slot, float]:
    """The share of each slot's work that stays. What a slot has too much in one step and too little in another is
    noise: only the mean excess over the steps is taken off, from the steps that have one."""
    excess: dict[int, dict[_Slot, float]] = defaultdict(dict)
    for slot, spent in own.items():
        others = [peer[slot] for peer in peers if slot in peer]
        if others:
            excess[slot[1]][slot] = spent - median(others)
    found: dict[_Slot, float] = {}
    for of_steps in excess.values():
        mean, positive = fmean(of_steps.values()), fmean(max(0.0, ns) for ns in of_steps.values())
        if mean > 0:
            found.update(
                (slot, 1 - ns * mean / positive / own[slot]) for slot, ns in of_steps.items() if ns > 0 and own[slot]
            )
    return found


def _per_step(program: Program, rank: int) -> tuple[list[int], list[int]]:
    """Nanoseconds that the rank waited for data in each step, and that the step took it."""
    waits: list[int] = []
    durations: list[int] = []
    for stretch in program.stretches:
        durations += step_durations({rank: stretch.begin_ns[rank]}, {rank: stretch.end_ns[rank]}).tolist()
        waited = 0
        for op in stretch.lines[rank]:
            if isinstance(op, Work) and op.kind == Kind.DATA:
                waited += op.ns
            elif isinstance(op, StepEnd):
                waits.append(waited)
                waited = 0
    return waits, durations


def _always(waits: list[int], durations: list[int], window: int) -> bool:
    """Whether the loader is what the steps wait for: mostly, over as many steps as its processes fill at once."""
    windows = range(max(1, len(waits) - window + 1))
    waited = [sum(waits[i : i + window]) >= _WAITS * sum(durations[i : i + window]) for i in windows]
    return fmean(waited) >= _MOSTLY
