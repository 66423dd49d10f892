"""Mutations of sharding: when units are gathered, kept and reduced, and how the model is divided into units."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from diag.account.critical_path import label_of
from diag.model.keys import Key
from diag.model.ragged import edges_of, places_from
from diag.model.steps import Detail, Kind
from diag.replay.policy import REPLAY

from .costs import Costs, Level
from .mutations import Mutation
from .program import (
    GATHERS,
    GRADIENTS,
    ISSUE,
    WAIT,
    WORK,
    Collective,
    Line,
    Mutated,
    Program,
    Refusal,
    Role,
    Row,
    Series,
    Stretch,
    met,
    over_stretches,
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
        changed = over_stretches(program, lambda s: gathered_ahead(s, depth, slowdown))
        return Mutated(changed, tuple(assumed), certain=not program.gloo, fastest=True)

    return mutate


def keep_gathered(program: Program, _costs: Costs, _level: Level) -> Mutated | Refusal:
    """``reshard_after_forward=False``: backward gathers nothing."""
    if not any(c.role == Role.GATHER_BACKWARD for c in program.collectives()):
        return Refusal("the backward already gathers nothing")
    assumed = ("there is memory for all gathered parameters",)
    return Mutated(
        over_stretches(program, lambda s: s.without(lambda c: c.role == Role.GATHER_BACKWARD)), assumed, True
    )


def sync_last_micro_batch(program: Program, _costs: Costs, _level: Level) -> Mutated | Refusal:
    last: dict[int, int] = {}
    for collective in program.collectives():
        if collective.role in GRADIENTS:
            last[collective.step] = max(last.get(collective.step, 0), collective.micro_batch)
    if not any(last.values()):
        return Refusal("no step reduces gradients in more than one micro-batch")

    def early(collective: Collective) -> bool:
        return collective.role in GRADIENTS and collective.micro_batch < last[collective.step]

    changed = over_stretches(program, lambda s: s.without(early))
    return Mutated(changed, ("there is memory for unsharded gradients",), certain=True)


class Mark(NamedTuple):
    """An operation of a line, or all work between two of them, as (WORK, -1). ``at``: its number in the line, for work
    that of the operation after it; -1 if it is new: then work is as long as this call holds up what it overlaps."""

    code: int
    call: int
    at: int


def rearranged(stretch: Stretch, change: Callable[[list[Mark]], list[Mark]], held_up_ns: Sequence[int]) -> Stretch:
    """The stretch with the lines' operations in another order. Lines that differ in their times only are changed
    together. ``held_up_ns``: of new work, for each call."""
    line, first = stretch.laid
    at = np.flatnonzero(line.code != WORK)
    edges = np.searchsorted(at, first)
    # Of each rank its operations and the end of its line, and where the work before each begins.
    rows, begins = np.insert(at, edges[1:], first[1:]), np.insert(at + 1, edges[:-1], first[:-1])
    worked, code, call = begins < rows, line.code[at], line.call[at]
    alike: dict[tuple[bytes, ...], list[int]] = defaultdict(list)
    for place, (i, j) in enumerate(pairwise(edges.tolist())):
        works = worked[i + place : j + place + 1]
        alike[code[i:j].tobytes(), call[i:j].tobytes(), works.tobytes()].append(place)
    changed: dict[int, Line] = {}
    for places in alike.values():
        i, j = edges[places[0] : places[0] + 2].tolist()
        works = worked[i + places[0] : j + places[0] + 1].tolist()
        marks = []
        for number, (what, which) in enumerate(zip(code[i:j].tolist(), call[i:j].tolist(), strict=True)):
            marks += [Mark(WORK, -1, number)] * works[number] + [Mark(what, which, number)]
        order = np.array(change(marks + [Mark(WORK, -1, j - i)] * works[-1]), dtype=np.int64).reshape(-1, 3)
        own = (edges[places] + places)[:, None] + np.arange(j - i + 1)
        changed |= zip(places, _in_order(line, rows[own], begins[own], order, held_up_ns), strict=True)
    return stretch.with_lines({rank: changed[place] for place, rank in enumerate(stretch.lines)})


def _in_order(line: Line, rows: Series, begins: Series, order: Series, held_up_ns: Sequence[int]) -> Iterator[Line]:
    """The lines of several ranks, which are parts of this one. ``rows``, ``begins``: of each operation of each of them,
    [ranks, operations]; ``order``: a row for each ``Mark``."""
    code, call, at = order.T
    work, new = code == WORK, at < 0
    first = np.where(new, 0, np.where(work, begins[:, at], rows[:, at]))
    count = np.where(work & ~new, rows[:, at] - begins[:, at], 1)
    taken = line.take(places_from(first.ravel(), count.ravel()))
    added, works = (np.cumsum(count) - count.ravel()).reshape(count.shape)[:, new], work[new]
    held_up = np.append(np.array(held_up_ns, dtype=np.int64), 0)[call[new]]
    taken.code[added], taken.label[added] = code[new], label_of(Kind.COMPUTE, Detail.NONE)
    taken.ns[added], taken.call[added] = np.where(works, held_up, 0), np.where(works, -1, call[new])
    return (taken.take(slice(i, j)) for i, j in pairwise(edges_of(count.sum(axis=1)).tolist()))


def gathered_ahead(stretch: Stretch, depth: int, slowdown: float = 0.0) -> Stretch:
    """The stretch with units gathered ``depth`` units before their use; earlier gathers stay. ``slowdown``: fraction of
    a transfer by which it delays the work that it now overlaps."""
    collectives = list(stretch.collectives.values())
    scatters = {
        (c.ranks, c.step, c.micro_batch, c.unit): at for at, c in enumerate(collectives) if c.role == Role.SCATTER
    }
    held_up_ns = [round(c.transfer_ns * slowdown) for c in collectives]

    def change(line: list[Mark]) -> list[Mark]:
        gathers: dict[tuple[int, int, Role], list[int]] = defaultdict(list)
        for mark in line:
            if mark.code == ISSUE and (c := collectives[mark.call]).role in GATHERS:
                gathers[c.step, c.micro_batch, c.role].append(mark.call)
        used_after: dict[int, int] = {}
        anchors: dict[int, tuple[int, int]] = {}
        for (step, micro_batch, role), calls in gathers.items():
            backward = role == Role.GATHER_BACKWARD
            for place, call in enumerate(calls[1:], start=1):
                if backward:
                    own = collectives[calls[place - 1]]
                    before = scatters.get((own.ranks, step, micro_batch, own.unit))
                    if before is not None:
                        used_after[call] = before
                # The root's hook starts backward and gathers the first units: it has nothing to gather for itself.
                ahead = place - depth
                anchors[call] = (ISSUE, calls[0]) if backward and ahead < 0 else (WAIT, calls[max(0, ahead)])
        return _issued_after(_waited_after(line, used_after), anchors, held_up_ns)

    return rearranged(stretch, change, held_up_ns)


def depth_of(stretch: Stretch) -> int:
    """How many units ahead the forward gathers most units, 0 where it waits for each gather at once."""
    forward = stretch.chosen(lambda c: c.role == Role.GATHER_FORWARD)
    depths: list[int] = []
    for line in stretch.lines.values():
        worked = np.cumsum(np.where(line.code == WORK, line.ns, 0))
        issued: dict[int, tuple[int, int]] = {}  # work and waits so far
        waits = last = 0
        rows = np.flatnonzero(forward[line.call])
        for code, call, work in zip(
            line.code[rows].tolist(), line.call[rows].tolist(), worked[rows].tolist(), strict=True
        ):
            if code == ISSUE:
                issued[call] = work, waits
                continue
            work_then, waits_then = issued.get(call, (work, waits))
            # Ahead at all: most of the work since the last unit came is done after the issue.
            depths.append(waits - waits_then + (2 * (work - work_then) > work - last))
            waits, last = waits + 1, work
    return round(median(depths)) if depths else 0


def _waited_after(line: list[Mark], used_after: dict[int, int]) -> list[Mark]:
    """Moves the waits for calls back to where their results are used: after the collective that ``used_after`` names is
    issued, and waited for if that is at once. A synchronous gather was waited for where it was issued, which is
    earlier."""
    marks: list[Mark] = []
    held: dict[int, Mark] = {}
    users: dict[int, list[int]] = defaultdict(list)
    for call, before in used_after.items():
        users[before].append(call)
    issued: set[int] = set()
    for place, mark in enumerate(line):
        if mark.code == WAIT and mark.call in used_after and used_after[mark.call] not in issued:
            held[mark.call] = mark
            continue
        marks.append(mark)
        if mark.code == ISSUE:
            issued.add(mark.call)
        if mark.code in (ISSUE, WAIT):
            following = line[place + 1][:2] if place + 1 < len(line) else None
            if mark.code == ISSUE and following == (WAIT, mark.call):
                continue
            marks += [held.pop(call) for call in users.get(mark.call, ()) if call in held]
    return marks + list(held.values())


def _issued_after(line: list[Mark], anchors: dict[int, tuple[int, int]], held_up_ns: Sequence[int]) -> list[Mark]:
    """Issues calls right after the operation that ``anchors`` names, unless they are issued before it already; what
    those that are moved hold up comes before their wait."""
    place_of = {(mark.code, mark.call): i for i, mark in enumerate(line) if mark.code in (ISSUE, WAIT)}
    moved: dict[int, list[Mark]] = defaultdict(list)
    gone: set[int] = set()
    for call, anchor in anchors.items():
        at = place_of.get(anchor)
        if at is not None and at < place_of[ISSUE, call]:
            moved[at].append(Mark(ISSUE, call, -1))
            gone.add(place_of[ISSUE, call])
    marks: list[Mark] = []
    for place, mark in enumerate(line):
        if mark.code == WAIT and place_of.get((ISSUE, mark.call)) in gone and held_up_ns[mark.call]:
            marks.append(Mark(WORK, mark.call, -1))
        if place not in gone:
            marks.append(mark)
        marks += moved.get(place, ())
    return marks


# -- wrapping: how the model is divided into units ---------------------------------------------------------------------


_Part = tuple[frozenset[int], int, int, Role, int]  # ranks, step, micro-batch, role, unit


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

    cut: list[tuple[Stretch, dict[int, Line]]] = []  # the lines, which do not depend on the costs

    def mutate(program: Program, costs: Costs, level: Level) -> Mutated | Refusal:
        members = [c for c in program.collectives() if c.role in GATHERS or c.role == Role.SCATTER]
        if {c.unit for c in members} != {0}:
            return Refusal("the model is not one sharding unit")
        changed = over_stretches(program, lambda s: _split(s, units, root_share, costs, level, cut))
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
            parts[c.ranks, c.step, c.micro_batch, c.role, first + (c.unit - first) // size].append(c)
    collectives = dict(stretch.collectives)
    gone: set[Key] = set()
    first_line = next(iter(stretch.lines.values()))
    issued = first_line.call[first_line.code == ISSUE].tolist()
    keys = list(stretch.collectives)
    order = {keys[call]: place for place, call in enumerate(issued)}
    for (*_, role, unit), members in parts.items():
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
    coarser = replace(stretch, collectives=collectives).without(lambda c: c.key in gone)
    # A rank that gathered one small unit ahead now gathers one large unit ahead.
    return gathered_ahead(coarser, depth) if (depth := depth_of(stretch)) else coarser


def _tails(members: Sequence[Collective], transfer_ns: int) -> dict[int, int]:
    """A rank with a slow link is late by the same fraction of the new transfer as of the old ones."""
    before = sum(c.transfer_ns for c in members)
    share = min(1.0, transfer_ns / before) if before else 1 / len(members)
    return {rank: round(sum(c.tail_ns[rank] for c in members) * share) for rank in members[0].tail_ns}


def _split(
    stretch: Stretch,
    units: int,
    root_share: float,
    costs: Costs,
    level: Level,
    cut: list[tuple[Stretch, dict[int, Line]]],
) -> Stretch:
    shares = [root_share] * bool(root_share) + [(1 - root_share) / units] * units
    old = list(stretch.collectives.values())
    collectives: dict[Key, Collective] = {}
    kept: dict[int, int] = {-1: -1}  # the new places of the others
    pieces: dict[int, list[int]] = {}  # those of the pieces of each gather and scatter, in order of forward
    again: dict[int, list[int]] = {}  # and of the gathers in backward
    scatter_of: dict[tuple[frozenset[int], int, int], int] = {}

    def added(parts: list[Collective]) -> list[int]:
        collectives.update((c.key, c) for c in parts)
        return list(range(len(collectives) - len(parts), len(collectives)))

    for at, c in enumerate(old):
        if c.role in (Role.GATHER_FORWARD, Role.SCATTER):
            parts = [_piece(c, unit, share, costs, level) for unit, share in enumerate(shares)]
            pieces[at] = added(parts)
            if c.role == Role.SCATTER:
                scatter_of[c.ranks, c.step, c.micro_batch] = at
            else:
                again[at] = added([_again(c) for c in parts])
        elif c.role != Role.GATHER_BACKWARD:
            kept[at] = added([c])[0]
    scatters = {at: scatter_of.get((old[at].ranks, old[at].step, old[at].micro_batch), -1) for at in again}
    lines = next((lines for before, lines in cut if before is stretch), {})
    if not lines:
        for rank, line in stretch.lines.items():
            lines[rank] = Line.of(_split_line(line.rows(), units, kept, pieces, again, scatters))
        cut.append((stretch, lines))
    return replace(stretch, collectives=collectives).with_lines(lines)


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


_BACKWARD = frozenset(label_of(kind, Detail.BACKWARD) for kind in Kind)


def _split_line(
    line: list[Row],
    units: int,
    kept: Mapping[int, int],
    pieces: Mapping[int, list[int]],
    again: Mapping[int, list[int]],
    scatters: Mapping[int, int],
) -> list[Row]:
    """Between the gather and the end of backward lie forward and backward: each is cut into equal parts of time.

    A micro-batch whose gradients are not reduced (``scatters``: -1) gathers its units all the same.
    """
    issue_at = {call: place for place, (code, _, _, call) in enumerate(line) if code == ISSUE}
    wait_at = {call: place for place, (code, _, _, call) in enumerate(line) if code == WAIT}
    gathers = [call for call in issue_at if call in again]
    limits = [*(issue_at[call] for call in gathers[1:]), len(line)]
    rows: list[Row] = []
    last = 0

    def others(begin: int, end: int) -> list[Row]:
        return [(code, ns, label, kept[call]) for code, ns, label, call in line[begin:end] if call in kept]

    for gather, limit in zip(gathers, limits, strict=True):
        at, scatter = issue_at[gather], scatters[gather]
        begin = wait_at.get(gather, at) + 1
        backward = [i for i in range(begin, limit) if line[i][0] == WORK and line[i][2] in _BACKWARD]
        reduced = scatter in issue_at
        end = issue_at[scatter] if reduced else max(backward, default=begin - 1) + 1
        middle = min([end, *backward[:1]])
        root = len(pieces[gather]) - units
        rows += others(last, at) + [row for call in pieces[gather][:root] for row in met(call)] + others(at, begin)
        for call, part in zip(pieces[gather][root:], _equal_parts(others(begin, middle), units), strict=True):
            rows += [*met(call), *part]
        reductions = pieces[scatter] if reduced else []
        for unit, part in zip(reversed(range(units)), _equal_parts(others(middle, end), units), strict=True):
            rows += [*met(again[gather][root + unit]), *part]
            rows += [row for call in reductions[root + unit :][:1] for row in met(call)]
        rows += [row for call in reductions[:root] for row in met(call)]
        last = end
    return rows + others(last, len(line))


def _equal_parts(rows: Sequence[Row], count: int) -> list[list[Row]]:
    """The operations cut into ``count`` lists of equal work; other operations stay between the same pieces of
    work."""
    total = sum(ns for code, ns, _, _ in rows if code == WORK)
    parts: list[list[Row]] = [[] for _ in range(count)]
    done = 0
    for row in rows:
        code, left, label, call = row
        at = min(count - 1, done * count // total) if total else 0
        if code != WORK:
            parts[at].append(row)
            continue
        while left > 0:
            border = -(-(at + 1) * total // count) if at < count - 1 else total
            taken = min(left, max(0, border - done))
            if taken:
                parts[at].append((WORK, taken, label, call))
            done, left = done + taken, left - taken
            if left:
                at += 1
    return parts
