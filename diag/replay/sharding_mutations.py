"""Mutations of sharding: when units are gathered, kept and reduced, and how the model is divided into units."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

from msgspec.structs import replace

from diag.account.match import Key
from diag.model.steps import Detail, Kind
from diag.replay.policy import REPLAY

from .costs import Costs, Level
from .mutations import Mutation
from .program import (
    GATHERS,
    GRADIENTS,
    Collective,
    Issue,
    Line,
    Mutated,
    Op,
    Program,
    Refusal,
    Role,
    Stretch,
    Wait,
    Work,
    over_stretches,
    with_lines,
    without,
)

# -- schedule: when units are gathered and reduced ---------------------------------------------------------------------


def prefetch(depth: int) -> Mutation:
    """Each unit gathers the next ``depth`` ones, in forward and in backward, while it computes
    (``set_modules_to_forward_prefetch``, ``..._backward_prefetch``; on gloo with asynchronous unshard)."""

    def mutate(program: Program, _costs: Costs, level: Level) -> Mutated | Refusal:
        gathers = [c for c in program.collectives() if c.role in GATHERS]
        if len({c.unit for c in gathers}) < 2:
            return Refusal("fewer than two sharding units were recognised, so there is none to prefetch")
        assumed = ["overlapping communication does not slow down computation"]
        slowdown = 0.0
        if program.gloo:
            slowdown = REPLAY.slowdown_of_overlapped if level == Level.SLOW else 0.0
            assumed.append("all-gathers are asynchronous, which on gloo needs FSDP2's private _set_unshard_async_op")
        return Mutated(over_stretches(program, lambda s: gathered_ahead(s, depth, slowdown)), tuple(assumed))

    return mutate


def keep_gathered(program: Program, _costs: Costs, _level: Level) -> Mutated | Refusal:
    """``reshard_after_forward=False``: backward gathers nothing."""
    if not any(c.role == Role.GATHER_BACKWARD for c in program.collectives()):
        return Refusal("the backward already gathers nothing")
    assumed = ("there is memory for all gathered parameters",)
    return Mutated(over_stretches(program, lambda s: without(s, lambda c: c.role == Role.GATHER_BACKWARD)), assumed)


def sync_last_micro_batch(program: Program, _costs: Costs, _level: Level) -> Mutated | Refusal:
    last: dict[int, int] = {}
    for collective in program.collectives():
        if collective.role in GRADIENTS:
            last[collective.step] = max(last.get(collective.step, 0), collective.micro_batch)
    if not any(last.values()):
        return Refusal("no step reduces gradients in more than one micro-batch")

    def early(collective: Collective) -> bool:
        return collective.role in GRADIENTS and collective.micro_batch < last[collective.step]

    return Mutated(over_stretches(program, lambda s: without(s, early)), ("there is memory for unsharded gradients",))


def gathered_ahead(stretch: Stretch, depth: int, slowdown: float = 0.0) -> Stretch:
    """The stretch with units gathered ``depth`` units before their use; earlier gathers stay. ``slowdown``: fraction of
    a transfer by which it delays the work that it now overlaps."""
    collectives = stretch.collectives
    scatters = {(c.step, c.micro_batch, c.unit): c.key for c in collectives.values() if c.role == Role.SCATTER}

    def held_up(key: Key) -> list[Op]:
        cost = round(collectives[key].transfer_ns * slowdown)
        return [Work(cost, Kind.COMPUTE, Detail.NONE)] if cost else []

    def change(line: Line) -> list[Op]:
        order: dict[tuple[int, int, Role], list[Key]] = defaultdict(list)
        for op in line:
            if isinstance(op, Issue) and collectives[op.key].role in GATHERS:
                collective = collectives[op.key]
                order[collective.step, collective.micro_batch, collective.role].append(op.key)
        used_after: dict[Key, Key] = {}
        anchors: dict[Key, Issue | Wait] = {}
        for (step, micro_batch, role), keys in order.items():
            backward = role == Role.GATHER_BACKWARD
            for place, key in enumerate(keys[1:], start=1):
                if backward:
                    before = scatters.get((step, micro_batch, collectives[keys[place - 1]].unit))
                    if before is not None:
                        used_after[key] = before
                # The root's hook starts backward and gathers the first units: it has nothing to gather for itself.
                ahead = place - depth
                anchors[key] = Issue(keys[0]) if backward and ahead < 0 else Wait(keys[max(0, ahead)])
        return _issued_after(_waited_after(list(line), used_after), anchors, held_up)

    return with_lines(stretch, change)


def depth_of(stretch: Stretch) -> int:
    """How many units ahead the forward gathers most units, 0 where it waits for each gather at once."""
    depths = []
    for line in stretch.lines.values():
        issued: dict[Key, tuple[int, int]] = {}  # work and waits so far
        work = waits = last = 0
        for op in line:
            if isinstance(op, Work):
                work += op.ns
            elif isinstance(op, Issue | Wait) and stretch.collectives[op.key].role == Role.GATHER_FORWARD:
                if isinstance(op, Issue):
                    issued[op.key] = work, waits
                    continue
                work_then, waits_then = issued.get(op.key, (work, waits))
                # Ahead at all: most of the work since the last unit came is done after the issue.
                depths.append(waits - waits_then + (2 * (work - work_then) > work - last))
                waits, last = waits + 1, work
    return round(median(depths)) if depths else 0


def _waited_after(line: list[Op], used_after: dict[Key, Key]) -> list[Op]:
    """Moves the waits for keys back to where their results are used: after the collective that ``used_after`` names is
    issued, and waited for if that is at once. A synchronous gather was waited for where it was issued, which is
    earlier."""
    ops: list[Op] = []
    held: dict[Key, Op] = {}
    users: dict[Key, list[Key]] = defaultdict(list)
    for key, before in used_after.items():
        users[before].append(key)
    issued: set[Key] = set()
    for place, op in enumerate(line):
        if isinstance(op, Wait) and op.key in used_after and used_after[op.key] not in issued:
            held[op.key] = op
            continue
        ops.append(op)
        if isinstance(op, Issue):
            issued.add(op.key)
        if isinstance(op, Issue | Wait):
            following = line[place + 1] if place + 1 < len(line) else None
            if isinstance(op, Issue) and following == Wait(op.key):
                continue
            ops += [held.pop(key) for key in users.get(op.key, ()) if key in held]
    return ops + list(held.values())


def _issued_after(line: list[Op], anchors: dict[Key, Issue | Wait], held_up: Callable[[Key], list[Op]]) -> list[Op]:
    """Issues keys right after the operation that ``anchors`` names, unless they are issued before it already;
    ``held_up`` of those that are moved comes before their wait."""
    wait_at = {op.key: i for i, op in enumerate(line) if isinstance(op, Wait)}
    issue_at = {op.key: i for i, op in enumerate(line) if isinstance(op, Issue)}
    moved: dict[int, list[Op]] = defaultdict(list)
    gone: set[int] = set()
    for key, anchor in anchors.items():
        at = (issue_at if isinstance(anchor, Issue) else wait_at).get(anchor.key)
        if at is not None and at < issue_at[key]:
            moved[at].append(Issue(key))
            gone.add(issue_at[key])
    ops: list[Op] = []
    for place, op in enumerate(line):
        if isinstance(op, Wait) and issue_at.get(op.key) in gone:
            ops += held_up(op.key)
        if place not in gone:
            ops.append(op)
        ops += moved.get(place, ())
    return ops


# -- wrapping: how the model is divided into units ---------------------------------------------------------------------


_Part = tuple[int, int, Role, int]  # step, micro-batch, role, unit


def merge_units(size: int) -> Mutation:
    """``size`` neighbouring units become one; the root's, which keeps what no other unit has, stays as it is."""

    def mutate(program: Program, costs: Costs, level: Level) -> Mutated | Refusal:
        members = [c for c in program.collectives() if c.role in GATHERS or c.role == Role.SCATTER]
        if len({c.unit for c in members if c.unit >= 0}) < 3 or any(c.unit < 0 for c in members):
            return Refusal("the sharding units were not recognised, or are too few to merge")
        first = 0 if any(c.unit == 0 and c.role == Role.GATHER_BACKWARD for c in members) else 1
        changed = over_stretches(program, lambda s: _merged(s, size, first, costs, level))
        assumed = ("computation and the host's work for each unit stay as they are", *costs.borrowed(members))
        return Mutated(changed, assumed)

    return mutate


def split_root(units: int, root_share: float = 0.0) -> Mutation:
    """The one unit that holds the whole model becomes ``units`` equal ones, gathered when they are used; a part
    ``root_share`` of the bytes stays with the root (embeddings, head)."""

    def mutate(program: Program, costs: Costs, level: Level) -> Mutated | Refusal:
        members = [c for c in program.collectives() if c.role in GATHERS or c.role == Role.SCATTER]
        if {c.unit for c in members} != {0}:
            return Refusal("the model is not one sharding unit")
        changed = over_stretches(program, lambda s: _split(s, units, root_share, costs, level))
        assumed = (
            f"the {units} units have equal parts of the parameters and of the computation",
            "the host's work for each unit costs nothing",
            *costs.borrowed(members),
        )
        return Mutated(changed, assumed)

    return mutate


def _merged(stretch: Stretch, size: int, first: int, costs: Costs, level: Level) -> Stretch:
    parts: dict[_Part, list[Collective]] = defaultdict(list)
    for c in stretch.collectives.values():
        if (c.role in GATHERS or c.role == Role.SCATTER) and c.unit >= first:
            parts[c.step, c.micro_batch, c.role, first + (c.unit - first) // size].append(c)
    collectives = dict(stretch.collectives)
    gone: set[Key] = set()
    order = {op.key: place for place, op in enumerate(next(iter(stretch.lines.values()))) if isinstance(op, Issue)}
    for (_, _, role, unit), members in parts.items():
        members.sort(key=lambda c: order.get(c.key, 0))
        # Gathered when the first is needed, reduced when the last is there.
        merged = members[-1] if role == Role.SCATTER else members[0]
        transfer = costs.merged(members, level)
        collectives[merged.key] = replace(
            merged,
            bytes=sum(c.bytes for c in members),
            unit=unit,
            transfer_ns=transfer,
            latency_ns=min(merged.latency_ns, transfer),
            tail_ns=_tails(members, transfer),
        )
        gone.update(c.key for c in members if c.key != merged.key)
    lines = {
        rank: tuple(op for op in line if not (isinstance(op, Issue | Wait) and op.key in gone))
        for rank, line in stretch.lines.items()
    }
    coarser = replace(stretch, lines=lines, collectives={k: c for k, c in collectives.items() if k not in gone})
    # A rank that gathered one small unit ahead now gathers one large unit ahead.
    return gathered_ahead(coarser, depth) if (depth := depth_of(stretch)) else coarser


def _tails(members: Sequence[Collective], transfer_ns: int) -> dict[int, int]:
    """A rank with a slow link is late by the same fraction of the new transfer as of the old ones."""
    before = sum(c.transfer_ns for c in members)
    share = min(1.0, transfer_ns / before) if before else 1 / len(members)
    return {rank: round(sum(c.tail_ns[rank] for c in members) * share) for rank in members[0].tail_ns}


def _split(stretch: Stretch, units: int, root_share: float, costs: Costs, level: Level) -> Stretch:
    collectives = dict(stretch.collectives)
    pieces: dict[Key, list[Collective]] = {}  # of each gather and scatter of the root, in order of forward
    scatter_of: dict[tuple[int, int], Key] = {}
    for c in stretch.collectives.values():
        if c.role in (Role.GATHER_FORWARD, Role.SCATTER):
            shares = [root_share] * bool(root_share) + [(1 - root_share) / units] * units
            pieces[c.key] = [_piece(c, unit, share, costs, level) for unit, share in enumerate(shares)]
            if c.role == Role.SCATTER:
                scatter_of[c.step, c.micro_batch] = c.key
        if c.role in GATHERS or c.role == Role.SCATTER:
            del collectives[c.key]
    regathers: dict[Key, list[Collective]] = {}
    for key, parts in pieces.items():
        if parts[0].role == Role.GATHER_FORWARD:
            regathers[key] = [_again(c) for c in parts]
    collectives.update((c.key, c) for parts in (*pieces.values(), *regathers.values()) for c in parts)
    lines = {
        rank: tuple(_split_line(line, stretch, units, pieces, regathers, scatter_of))
        for rank, line in stretch.lines.items()
    }
    entered = {op.key for line in lines.values() for op in line if isinstance(op, Issue)}
    return replace(stretch, lines=lines, collectives={k: c for k, c in collectives.items() if k in entered})


def _piece(whole: Collective, unit: int, share: float, costs: Costs, level: Level) -> Collective:
    group, number, op = whole.key
    transfer = costs.resized(whole, whole.bytes * share, level)
    return replace(
        whole,
        key=(group, number, f"{op} {unit}"),
        unit=unit,
        bytes=round(whole.bytes * share),
        transfer_ns=transfer,
        latency_ns=min(whole.latency_ns, transfer),
        tail_ns=_tails([whole], transfer),
    )


def _again(gather: Collective) -> Collective:
    group, number, op = gather.key
    return replace(gather, key=(group, number, f"{op} backward"), role=Role.GATHER_BACKWARD)


def _split_line(
    line: Line,
    stretch: Stretch,
    units: int,
    pieces: dict[Key, list[Collective]],
    regathers: dict[Key, list[Collective]],
    scatter_of: dict[tuple[int, int], Key],
) -> list[Op]:
    """Between the gather and the reduction lie forward and backward: each is cut into equal parts of time."""
    ops: list[Op] = []
    place = 0
    issue_at = {op.key: i for i, op in enumerate(line) if isinstance(op, Issue)}
    wait_at = {op.key: i for i, op in enumerate(line) if isinstance(op, Wait)}
    for key, gather_at in issue_at.items():
        c = stretch.collectives[key]
        scatter = scatter_of.get((c.step, c.micro_batch))
        if c.role != Role.GATHER_FORWARD or scatter is None or scatter not in issue_at:
            continue
        begin, end = wait_at.get(key, gather_at) + 1, issue_at[scatter]
        middle = next(
            (i for i in range(begin, end) if (op := line[i]) and isinstance(op, Work) and op.detail == Detail.BACKWARD),
            end,
        )
        root = len(pieces[key]) - units
        ops += line[place:gather_at]
        ops += [step for gather in pieces[key][:root] for step in (Issue(gather.key), Wait(gather.key))]
        for gather, part in zip(pieces[key][root:], _equal_parts(line[begin:middle], units), strict=True):
            ops += [Issue(gather.key), Wait(gather.key), *part]
        reductions = pieces[scatter]
        for unit, part in zip(reversed(range(units)), _equal_parts(line[middle:end], units), strict=True):
            gather, reduction = regathers[key][root + unit], reductions[root + unit]
            ops += [Issue(gather.key), Wait(gather.key), *part, Issue(reduction.key), Wait(reduction.key)]
        ops += [step for reduction in reductions[:root] for step in (Issue(reduction.key), Wait(reduction.key))]
        place = max(wait_at.get(scatter, end), end) + 1
    return ops + [op for op in line[place:] if not (isinstance(op, Issue | Wait) and op.key in pieces)]


def _equal_parts(ops: Sequence[Op], count: int) -> list[list[Op]]:
    """The operations cut into ``count`` lists of equal work; other operations stay between the same pieces of
    work."""
    total = sum(op.ns for op in ops if isinstance(op, Work))
    parts: list[list[Op]] = [[] for _ in range(count)]
    done = 0
    for op in ops:
        at = min(count - 1, done * count // total) if total else 0
        if not isinstance(op, Work):
            parts[at].append(op)
            continue
        left = op.ns
        while left > 0:
            border = -(-(at + 1) * total // count) if at < count - 1 else total
            taken = min(left, max(0, border - done))
            if taken:
                parts[at].append(replace(op, ns=taken))
            done, left = done + taken, left - taken
            if left:
                at += 1
    return parts
