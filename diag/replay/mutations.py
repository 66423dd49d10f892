"""Mutations: changes of a program, made by functions of their settings. A ``Mutation`` returns the changed program and
its assumptions, or the reason why it cannot be applied. Here: work of the ranks, and the network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from math import log2
from statistics import fmean, median

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from diag.model.keys import Key
from diag.model.ragged import owners
from diag.model.steps import HOST_DETAILS, Detail, Kind
from diag.replay.policy import REPLAY
from diag.tables.bandwidth import bus_factor
from diag.traces.kineto_names import dtype_bytes

from .costs import Costs, Level
from .program import (
    END,
    GATHERS,
    GRADIENTS,
    ISSUE,
    WAIT,
    Collective,
    Line,
    Mutated,
    Program,
    Refusal,
    Role,
    Series,
    Stretch,
    over_lines,
    over_stretches,
    step_durations,
    with_collectives,
)

Mutation = Callable[[Program, Costs, Level], Mutated | Refusal]
Share = npt.NDArray[np.float64]


def in_turn(*mutations: Mutation) -> Mutation:
    """The mutations one after the other: changes that are advised together are predicted together."""

    def mutate(program: Program, costs: Costs, level: Level) -> Mutated | Refusal:
        assumed: list[str] = []
        certain = fastest = True
        for mutation in mutations:
            result = mutation(program, costs, level)
            if isinstance(result, Refusal):
                return result
            program = result.program
            assumed += result.assumed
            certain &= result.certain
            fastest &= result.certain or result.fastest
        return Mutated(program, tuple(assumed), certain, fastest)

    return mutate


_RANK_WORK = frozenset({Kind.COMPUTE, Kind.IDLE})


def without_straggler(ranks: Collection[int], kinds: Collection[Kind] = _RANK_WORK, part: float = 1.0) -> Mutation:
    """Removes the time, or a part of it, that these ranks spend beyond the median of the others between two
    collectives, on average over the steps."""

    def mutate(program: Program, _costs: Costs, _level: Level) -> Mutated | Refusal:
        if refusal := _not_comparable(program, ranks):
            return refusal
        peers = [rank for rank in program.ranks if rank not in ranks]
        slots = _Slots(program)
        others = _medians(np.stack([slots.spent(peer, kinds) for peer in peers]))
        left = {rank: 1 - part * (1 - _left(slots.spent(rank, kinds), others, slots.width)) for rank in ranks}

        def change(number: int, line: Line, rank: int) -> Line:
            return _scaled(line, kinds, left[rank][slots.of(number, rank)]) if rank in left else line

        return Mutated(over_lines(program, change), (_like_others(ranks, kinds, part),), certain=True)

    return mutate


def _not_comparable(program: Program, ranks: Collection[int]) -> Refusal | None:
    if set(ranks) < set(program.ranks):
        return None
    return Refusal("there is no other rank to compare with")


def _these(ranks: Collection[int]) -> str:
    return "the rank" if len(ranks) == 1 else "the ranks"


def _like_others(ranks: Collection[int], kinds: Collection[Kind], part: float) -> str:
    these, one = _these(ranks), len(ranks) == 1
    if part < 1:
        return f"{part:.0%} of what {these} {'takes' if one else 'take'} longer than the others' median goes away"
    if Kind.DATA in kinds:
        return f"the loader{'' if one else 's'} of {these} become{'s' if one else ''} as fast as the others' median"
    return f"{these} become{'s' if one else ''} as fast as the others' median"


def without_data_wait(part: float = 1.0) -> Mutation:
    """Every rank waits for data by this part shorter."""

    def mutate(program: Program, _costs: Costs, _level: Level) -> Mutated | Refusal:
        def change(_number: int, line: Line, _rank: int) -> Line:
            return _scaled(line, (Kind.DATA,), 1 - part)

        left = "no rank waits for data" if part == 1 else f"every rank waits for data {part:.0%} less"
        return Mutated(over_lines(program, change), (left,), certain=True)

    return mutate


def without_host_wait(part: float = 1.0) -> Mutation:
    """Every device waits by this part shorter for work that its host has not launched yet."""

    def mutate(program: Program, _costs: Costs, _level: Level) -> Mutated | Refusal:
        lines = [line for stretch in program.stretches for line in stretch.lines.values()]
        if not any(line.ns[line.is_work((Kind.IDLE,), HOST_DETAILS)].any() for line in lines):
            return Refusal("no device waits for its host")

        def change(_number: int, line: Line, _rank: int) -> Line:
            return _scaled(line, (Kind.IDLE,), 1 - part, HOST_DETAILS)

        less = "no device waits for its host" if part == 1 else f"every device waits for its host {part:.0%} less"
        assumed = f"{less}: all work is launched in time, for example by a CUDA graph, and takes as long as now"
        return Mutated(over_lines(program, change), (assumed,), certain=True)

    return mutate


def _scaled(line: Line, kinds: Collection[Kind], share: Share | float, details: Iterable[Detail] = Detail) -> Line:
    """The line with work of these kinds and details that takes a part ``share`` of its time."""
    less = np.rint(line.ns * share).astype(np.int64)
    return replace(line, ns=np.where(line.is_work(kinds, details), less, line.ns))


def more_workers(now: int, new: int, batches_per_step: int = 1) -> Mutation:
    """The loader has ``new`` processes a rank instead of ``now`` (0: the training process loads itself)."""

    def mutate(program: Program, _costs: Costs, level: Level) -> Mutated | Refusal:
        if new <= now:
            return Refusal(f"{new} workers are not more than {now}")
        remaining: dict[int, float] = {}
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
                # A rank that always waits takes batches as fast as they come: `now` at a time.
                load = now * step if now else wait
                load *= (1 - REPLAY.error_of_batch_time, 1.0, 1 + REPLAY.error_of_batch_time)[level]
                ready = (0, REPLAY.ready_batch_ns // 2, REPLAY.ready_batch_ns)[level] * batches_per_step
                left = min(wait, max(ready, load / new - (step - wait)))
            remaining[rank] = left / wait
        if not remaining:
            return Refusal("no rank waits for data")

        def change(_number: int, line: Line, rank: int) -> Line:
            return _scaled(line, (Kind.DATA,), remaining[rank]) if rank in remaining else line

        assumed = [f"there are cores and storage bandwidth for {new} loader processes a rank"]
        if bursty:
            assumed.append("the loader keeps up on average, so its time per batch is unknown")
        return Mutated(over_lines(program, change), tuple(assumed))

    return mutate


class _Slots:
    """Work of one slot, [step, number of issues and waits before it in the step], lies between the same two issues or
    waits on all ranks."""

    def __init__(self, program: Program) -> None:
        self._stretches = program.stretches
        self._first = np.cumsum([0, *(len(stretch.steps) for stretch in program.stretches)]).tolist()
        counted = [{rank: self._counted(line) for rank, line in s.lines.items()} for s in program.stretches]
        self.width = 1 + max((count.max(initial=0) for lines in counted for _, count in lines.values()), default=0)
        self._slots: list[dict[int, Series]] = [
            {rank: (first + step) * self.width + count for rank, (step, count) in lines.items()}
            for first, lines in zip(self._first, counted, strict=False)
        ]

    @staticmethod
    def _counted(line: Line) -> tuple[Series, Series]:
        """For each operation its step in the stretch, and the number of issues and waits before it in the step."""
        ends, meets = line.code == END, (line.code == ISSUE) | (line.code == WAIT)
        step, count = np.cumsum(ends) - ends, np.cumsum(meets) - meets
        count -= np.append(0, count[ends])[step]
        return np.minimum(step, max(0, int(ends.sum()) - 1)), count

    def of(self, number: int, rank: int) -> Series:
        """The slot of each operation, in this stretch."""
        return self._slots[number][rank]

    def spent(self, rank: int, kinds: Collection[Kind]) -> Share:
        """Nanoseconds by slot, [steps x slots of a step]; NaN where the rank does not work."""
        total = np.full(self._first[-1] * self.width, np.nan)
        for number, stretch in enumerate(self._stretches):
            line = stretch.lines[rank]
            work = line.is_work()
            slots = self.of(number, rank)[work]
            spent = np.bincount(slots, weights=np.where(line.is_work(kinds), line.ns, 0)[work], minlength=len(total))
            total[slots] = spent[slots]
        return total


def _medians(spent: Share) -> Share:
    """For each slot the median of the ranks that work in it; NaN where none does."""
    ordered = np.sort(spent, axis=0)
    count = (~np.isnan(spent)).sum(axis=0)
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, len(spent) - 1)
    low_ns, high_ns = (np.take_along_axis(ordered, at[np.newaxis], axis=0)[0] for at in (low, high))
    medians: Share = (low_ns + high_ns) / 2
    return medians


def _left(spent: Share, others: Share, width: int) -> Share:
    """The fraction of each slot's work that stays. An excess in one step and a deficit in another are noise: only the
    mean excess over the steps is subtracted, from the steps that have one."""
    shares = np.ones(len(spent))
    excess = spent - others
    for at in range(width):
        own, ns = spent[at::width], excess[at::width]
        known = ns[~np.isnan(ns)].tolist()
        if known and (mean := fmean(known)) > 0:
            more = (ns > 0) & (own > 0)
            positive = fmean(max(0.0, value) for value in known)
            shares[at::width][more] = 1 - ns[more] * mean / positive / own[more]
    return shares


def _per_step(program: Program, rank: int) -> tuple[list[int], list[int]]:
    """For each step, nanoseconds that the rank waited for data, and nanoseconds that the step took on it."""
    waits: list[int] = []
    durations: list[int] = []
    for stretch in program.stretches:
        durations += step_durations({rank: stretch.begin_ns[rank]}, {rank: stretch.end_ns[rank]}).tolist()
        line = stretch.lines[rank]
        waited = np.cumsum(np.where(line.is_work((Kind.DATA,)), line.ns, 0))
        waits += np.diff(waited[line.code == END], prepend=0).tolist()
    return waits, durations


def _always(waits: list[int], durations: list[int], window: int) -> bool:
    """Whether most windows wait for the loader; ``window``: as many steps as its processes fill at once."""
    windows = range(max(1, len(waits) - window + 1))
    waited = [sum(waits[i : i + window]) >= REPLAY.waiting_step_share * sum(durations[i : i + window]) for i in windows]
    return fmean(waited) >= REPLAY.mostly_share


def more_bandwidth(factor: float) -> Mutation:
    """Every byte moves ``factor`` times as fast; latencies stay."""

    def mutate(program: Program, costs: Costs, level: Level) -> Mutated | Refusal:
        def faster(collective: Collective) -> Collective:
            curve = costs.curve(collective)
            if curve is None:
                return collective
            latency = min(collective.transfer_ns, round(curve.latency()[level]))
            return _lasting(collective, latency + round((collective.transfer_ns - latency) / factor))

        return Mutated(
            with_collectives(program, faster),
            ("latencies and slower links of single ranks stay as they are", *costs.borrowed(program.collectives())),
        )

    return mutate


def faster_links(ranks: Collection[int], part: float = 1.0) -> Mutation:
    """Removes the time, or a part of it, by which these ranks get their results later than the median of the others."""

    def mutate(program: Program, _costs: Costs, _level: Level) -> Mutated | Refusal:
        if refusal := _not_comparable(program, ranks):
            return refusal

        def change(collective: Collective) -> Collective:
            tails = collective.tail_ns
            others = [ns for rank, ns in tails.items() if rank not in ranks]
            if not others:
                return collective
            usual = median(others)
            sooner = {rank: ns - round(part * max(0, ns - usual)) for rank, ns in tails.items() if rank in ranks}
            return replace(collective, tail_ns={**tails, **sooner}) if sooner else collective

        left = "as soon as the others' median" if part == 1 else f"{part:.0%} nearer to the others' median"
        verb = "gets its" if len(ranks) == 1 else "get their"
        assumed = f"{_these(ranks)} {verb} results {left}"
        return Mutated(with_collectives(program, change), (assumed,), certain=True)

    return mutate


def on_ranks(number: int) -> Mutation:
    """The collectives of all ranks are among ``number`` ranks, each of which does the work of one rank now."""

    def mutate(program: Program, costs: Costs, level: Level) -> Mutated | Refusal:
        now = len(program.ranks)
        of_all = [c for c in program.collectives() if len(c.ranks) == now]
        if now < 2 or number < 2:
            return Refusal("what collectives cost is known of two and more ranks only")
        if not of_all:
            return Refusal("no collective is among all ranks: which groups would grow is not known")
        # A tree has as many stages as the logarithm of its ranks, a ring as many as ranks.
        tree, ring = log2(number) / log2(now), (number - 1) / (now - 1)
        stages = sorted((tree, (tree * ring) ** 0.5, ring))[level]

        def change(collective: Collective) -> Collective:
            if len(collective.ranks) != now:
                return collective
            before, after = (bus_factor(collective.op, n, program.gloo) or 1.0 for n in (now, number))
            curve = costs.curve(collective)
            latency = min(collective.transfer_ns, round(curve.latency()[level])) if curve is not None else 0
            moving = (collective.transfer_ns - latency) * after / before
            return _lasting(collective, round(latency * stages + moving))

        assumed = (
            f"each of {number} ranks does the work that one of {now} does now, on links as fast as those measured",
            "the latency of a collective grows with the logarithm of the ranks at best, in proportion at worst",
            "no rank is slower than those that were recorded",
        )
        return Mutated(with_collectives(program, change), (*assumed, *costs.borrowed(of_all)))

    return mutate


def reduce_in(dtype: str) -> Mutation:
    def mutate(program: Program, costs: Costs, level: Level) -> Mutated | Refusal:
        gradients = [c for c in program.collectives() if c.role in GRADIENTS]
        new = dtype_bytes(dtype)
        if not gradients:
            return Refusal("no reduction of gradients was recognised")
        if not new or not all(dtype_bytes(c.dtype) for c in gradients):
            return Refusal("the type of the gradients is not known")

        def smaller(collective: Collective) -> Collective:
            if collective.role not in GRADIENTS:
                return collective
            size = collective.bytes * new // dtype_bytes(collective.dtype)
            moved = _lasting(collective, costs.resized(collective, size, level))
            return replace(moved, bytes=size, dtype=dtype)

        assumed = (f"summing in {dtype} takes the host or device no longer", *costs.borrowed(gradients))
        return Mutated(with_collectives(program, smaller), assumed)

    return mutate


def hybrid_shard(ranks_per_shard: int) -> Mutation:
    """Parameters are sharded over neighbouring ranks only, and gradients all-reduced between these groups (HSDP)."""

    def mutate(program: Program, costs: Costs, level: Level) -> Mutated | Refusal:
        world = len(program.ranks)
        sharded = [c for c in program.collectives() if c.role in GATHERS or c.role == Role.SCATTER]
        if not sharded or any(len(c.ranks) != world for c in sharded):
            return Refusal("the sharding group is not known, or is not that of all ranks")
        if not 1 < ranks_per_shard < world or world % ranks_per_shard:
            return Refusal(f"{world} ranks cannot be divided into shards of {ranks_per_shard}")
        changed = over_stretches(program, lambda s: _hybrid(s, ranks_per_shard, costs, level, program.gloo))
        assumed = (
            "links within a shard are as fast as those of all ranks together; within a host they are usually faster",
            "the all-reduces between shards cost what the measured reductions cost, by bytes on the wire",
        )
        return Mutated(changed, (*assumed, *costs.borrowed(sharded)))

    return mutate


def _lasting(collective: Collective, transfer_ns: int) -> Collective:
    return replace(collective, transfer_ns=transfer_ns, latency_ns=min(collective.latency_ns, transfer_ns))


def _hybrid(stretch: Stretch, size: int, costs: Costs, level: Level, gloo: bool) -> Stretch:
    ranks = sorted(stretch.lines)
    collectives: dict[Key, Collective] = {}
    # Places of what each rank enters instead of a collective, and, once that is done, of an all-reduce (-1: none).
    instead = np.full((len(stretch.collectives) + 1, len(ranks)), -1, dtype=np.int32)
    then = instead.copy()
    for at, collective in enumerate(stretch.collectives.values()):
        if collective.role not in GATHERS and collective.role != Role.SCATTER:
            instead[at] = len(collectives)
            collectives[collective.key] = collective
            continue
        group, number, op = collective.key
        shrunk = _on_fewer(collective, size, costs, level, gloo)
        for first in range(0, len(ranks), size):
            tails = _part(collective.tail_ns, ranks[first : first + size])
            key = (f"{group} shard {first // size}", number, op)
            instead[at, first : first + size] = len(collectives)
            collectives[key] = replace(shrunk, key=key, group=key[0], tail_ns=tails)
        if collective.role == Role.SCATTER:
            reduced = _across(collective, size, len(ranks) // size, costs, level, gloo)
            for first in range(size):
                tails = dict.fromkeys(ranks[first::size], 0)
                key = (f"{group} replica {first}", number, "all_reduce")
                then[at, first::size] = len(collectives)
                collectives[key] = replace(reduced, key=key, group=key[0], tail_ns=tails)
    line, edges = stretch.laid
    place = np.searchsorted(ranks, list(stretch.lines))[owners(edges)]
    # FSDP2 all-reduces a shard once it is reduced.
    after = np.flatnonzero((line.code == WAIT) & (then[line.call, place] >= 0))
    reduced_by = np.repeat(then[line.call[after], place[after]], 2)
    both = np.tile([ISSUE, WAIT], len(after))
    line = replace(line, call=instead[line.call, place]).with_rows(np.repeat(after, 2) + 1, both, reduced_by)
    edges = edges + 2 * np.searchsorted(after, edges)
    of_ranks = zip(stretch.lines, pairwise(edges.tolist()), strict=True)
    lines = {rank: line.take(slice(i, j)) for rank, (i, j) in of_ranks}
    return replace(stretch, lines=lines, collectives=collectives)


def _on_fewer(collective: Collective, size: int, costs: Costs, level: Level, gloo: bool) -> Collective:
    """The same tensor among fewer ranks: scaled by bytes on the wire; at worst no faster."""
    before, after = (bus_factor(collective.op, n, gloo) or 1.0 for n in (len(collective.ranks), size))
    ratio = 1.0 if level == Level.SLOW else after / before
    return _lasting(collective, costs.resized(collective, collective.bytes * ratio, level))


def _across(scattered: Collective, size: int, replicas: int, costs: Costs, level: Level, gloo: bool) -> Collective:
    """The all-reduce of one rank's shard among its replicas, at the cost of a reduce-scatter of as many wire bytes."""
    on_wire = (bus_factor("all_reduce", replicas, gloo) or 1.0) * scattered.bytes / size
    equal = on_wire / (bus_factor(scattered.op, len(scattered.ranks), gloo) or 1.0)
    moved = _lasting(scattered, costs.resized(scattered, equal, level))
    return replace(moved, op="all_reduce", role=Role.REDUCE, bytes=scattered.bytes // size)


def _part(tails: Mapping[int, int], ranks: list[int]) -> dict[int, int]:
    first = min(tails[rank] for rank in ranks)
    return {rank: tails[rank] - first for rank in ranks}
