"""When units are gathered, which gathers and reductions there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import median

from diag.account.match import Key
from diag.model.steps import Detail, Kind
from diag.replay.costs import Costs, Level
from diag.replay.mutations import Mutation
from diag.replay.program import (
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

# Of a gather's time, what the computation beside it became longer by on a host whose ranks had a core each: gloo moves
# the bytes with the same cores. On a wire that only sleeps it was nothing.
_BESIDE = 0.34


def prefetch(depth: int) -> Mutation:
    """Each unit gathers the next ``depth`` ones, in forward and in backward, while it computes
    (``set_modules_to_forward_prefetch``, ``..._backward_prefetch``; on gloo with asynchronous unshard)."""

    def mutate(program: Program, _costs: Costs, level: Level) -> Mutated | Refusal:
        gathers = [c for c in program.collectives() if c.role in GATHERS]
        if len({c.unit for c in gathers}) < 2:
            return Refusal("fewer than two sharding units were recognised, so there is none to gather ahead")
        assumed = ["computation is not slowed down by the communication beside it"]
        beside = 0.0
        if program.gloo:
            beside = _BESIDE if level == Level.SLOW else 0.0
            assumed.append("all-gathers are asynchronous, which on gloo takes FSDP2's private _set_unshard_async_op")
        return Mutated(over_stretches(program, lambda s: gathered_ahead(s, depth, beside)), tuple(assumed))

    return mutate


def keep_gathered(program: Program, _costs: Costs, _level: Level) -> Mutated | Refusal:
    """``reshard_after_forward=False``: backward gathers nothing."""
    if not any(c.role == Role.GATHER_BACKWARD for c in program.collectives()):
        return Refusal("backward gathers nothing as it is")
    assumed = ("the memory for all gathered parameters is there",)
    return Mutated(over_stretches(program, lambda s: without(s, lambda c: c.role == Role.GATHER_BACKWARD)), assumed)


def sync_last_micro_batch(program: Program, _costs: Costs, _level: Level) -> Mutated | Refusal:
    """Gradients are reduced in the last micro-batch of a step only."""
    last: dict[int, int] = {}
    for collective in program.collectives():
        if collective.role in GRADIENTS:
            last[collective.step] = max(last.get(collective.step, 0), collective.micro_batch)
    if not any(last.values()):
        return Refusal("no step reduces gradients in more than one micro-batch")

    def early(collective: Collective) -> bool:
        return collective.role in GRADIENTS and collective.micro_batch < last[collective.step]

    return Mutated(
        over_stretches(program, lambda s: without(s, early)), ("the memory for unsharded gradients is there",)
    )


def gathered_ahead(stretch: Stretch, depth: int, beside: float = 0.0) -> Stretch:
    """The stretch with units gathered ``depth`` units before they are used; what is gathered earlier stays so.
    ``beside``: part of a transfer by which it holds up the work that it now runs beside."""
    collectives = stretch.collectives
    scatters = {(c.step, c.micro_batch, c.unit): c.key for c in collectives.values() if c.role == Role.SCATTER}

    def held_up(key: Key) -> list[Op]:
        cost = round(collectives[key].transfer_ns * beside)
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
                # The root's hook starts backward and gathers the first ones: it has nothing to gather for itself.
                ahead = place - depth
                anchors[key] = Issue(keys[0]) if backward and ahead < 0 else Wait(keys[max(0, ahead)])
        return _issued_after(_waited_after(list(line), used_after), anchors, held_up)

    return with_lines(stretch, change)


def depth_of(stretch: Stretch) -> int:
    """How many units ahead forward gathers, 0 where it waits for each gather at once: of most units."""
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
                # Ahead at all: most of the work since the last unit came lies behind the issue.
                depths.append(waits - waits_then + (2 * (work - work_then) > work - last))
                waits, last = waits + 1, work
    return round(median(depths)) if depths else 0


def _waited_after(line: list[Op], used_after: dict[Key, Key]) -> list[Op]:
    """Waits for keys moved back to where the result is used: after the collective named for each is issued, and waited
    for if that is at once. A synchronous gather was waited for where it was issued, which is earlier."""
    found: list[Op] = []
    held: dict[Key, Op] = {}
    users: dict[Key, list[Key]] = defaultdict(list)
    for key, before in used_after.items():
        users[before].append(key)
    issued: set[Key] = set()
    for place, op in enumerate(line):
        if isinstance(op, Wait) and op.key in used_after and used_after[op.key] not in issued:
            held[op.key] = op
            continue
        found.append(op)
        if isinstance(op, Issue):
            issued.add(op.key)
        if isinstance(op, Issue | Wait):
            following = line[place + 1] if place + 1 < len(line) else None
            if isinstance(op, Issue) and following == Wait(op.key):
                continue
            found += [held.pop(key) for key in users.get(op.key, ()) if key in held]
    return found + list(held.values())


def _issued_after(line: list[Op], anchors: dict[Key, Issue | Wait], held_up: Callable[[Key], list[Op]]) -> list[Op]:
    """Keys issued right after the operation named for each, where they are not issued before it already; those that
    are moved come with ``held_up`` before their wait."""
    wait_at = {op.key: i for i, op in enumerate(line) if isinstance(op, Wait)}
    issue_at = {op.key: i for i, op in enumerate(line) if isinstance(op, Issue)}
    moved: dict[int, list[Op]] = defaultdict(list)
    gone: set[int] = set()
    for key, anchor in anchors.items():
        at = (issue_at if isinstance(anchor, Issue) else wait_at).get(anchor.key)
        if at is not None and at < issue_at[key]:
            moved[at].append(Issue(key))
            gone.add(issue_at[key])
    found: list[Op] = []
    for place, op in enumerate(line):
        if isinstance(op, Wait) and issue_at.get(op.key) in gone:
            found += held_up(op.key)
        if place not in gone:
            found.append(op)
        found += moved.get(place, ())
    return found
