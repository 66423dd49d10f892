"""What the ranks wait in: each pending collective once, whoever waits in it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from diag.hang.flight.board import Board
from diag.hang.flight.record import Op, needs_all

_MANY = 64  # pending collectives of one group that are followed: the oldest ones


@dataclass(frozen=True, slots=True)
class Meeting:
    """One collective, or one send or receive, in which somebody waits. ``held_up``: waiters that an earlier op of their
    own keeps from it. ``finished``: members that are through."""

    op: Op
    waiters: tuple[int, ...]
    missing: tuple[int, ...] = ()  # members with a dump that have not called it
    unknown: tuple[int, ...] = ()  # members without a dump that may not have
    held_up: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()


def collective_meetings(board: Board) -> list[Meeting]:
    """One for each collective that is pending anywhere, in the order in which they were called."""
    waiters: dict[tuple[str, int], list[int]] = defaultdict(list)
    samples: dict[tuple[str, int], Op] = {}
    for rank, ops in board.pending.items():
        for op in ops:
            if not op.p2p:
                waiters[op.group, op.number].append(rank)
                samples.setdefault((op.group, op.number), op)
    met: list[Meeting] = []
    count: dict[str, int] = defaultdict(int)
    for key in sorted(waiters):
        op, waiting = samples[key], waiters[key]
        count[op.group] += 1
        if count[op.group] > _MANY:
            continue
        members = board.members.get(op.group, ())
        known = [rank for rank in members if rank in board.dumps]
        missing = tuple(rank for rank in known if not board.called(rank, op))
        finished = tuple(rank for rank in known if board.finished(rank, op))
        met.append(
            Meeting(
                op,
                tuple(waiting),
                missing,
                # Where somebody has finished what needs all, all have called it.
                () if finished and needs_all(op.name) else tuple(rank for rank in members if rank not in board.dumps),
                tuple(rank for rank in waiting if board.place[rank, op.group, op.number] > 0),
                finished,
            )
        )
    return met
