"""Who waits for whom, and who waits for nobody: the ranks that the others' waiting leads to.

A rank waits, in each of its pending ops, for the members that have not called it; where all have, for those that are
held up by an earlier op of their own. In a program that does not block itself, every rank's calls fit one common order,
and such a wait always leads to something earlier in it. So the chains end: at a rank that others wait for and that has
nothing pending (it stands in Python, or is gone), at one whose device stopped, or at a rank that left no dump. A rank
that is late in one group because it waits in another is passed through, never blamed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from diag.hang.flight.board import Board
from diag.hang.flight.circle import circle
from diag.hang.flight.meetings import Meeting, collective_meetings
from diag.hang.flight.pairs import pair_meetings
from diag.hang.flight.record import Op, needs_all


@dataclass(frozen=True, slots=True)
class Waits:
    """Where the chains end."""

    stopped: dict[int, tuple[Op, ...]]  # ranks that have not finished what their peers have, and what
    absent: tuple[int, ...]  # ranks that others wait for and that wait for nothing
    silent: tuple[int, ...]  # the same, of ranks without a dump
    circle: tuple[int, ...]  # ranks that wait for each other and for nobody else, where nothing of the above is found
    stuck: tuple[Op, ...]  # what all members have come to, and none has finished
    behind: tuple[int, ...]  # late, and their own waiting does not explain it
    waited_for: dict[int, tuple[Meeting, ...]]
    meetings: tuple[Meeting, ...]

    @property
    def roots(self) -> tuple[int, ...]:
        return tuple(sorted({*self.stopped, *self.absent}))


def follow(board: Board) -> Waits:
    """Everybody's waits, and where they end."""
    meetings = [*collective_meetings(board), *pair_meetings(board)]
    stopped = _stopped(board, meetings)
    waited_for: dict[int, list[Meeting]] = defaultdict(list)
    silent: set[int] = set()
    stuck: list[Op] = []
    targets: dict[int, list[int]] = {}  # rank -> meetings
    of_meeting: list[tuple[int, ...]] = []
    for meeting in meetings:
        waiters = [rank for rank in meeting.waiters if rank not in stopped]
        if not waiters:
            continue
        met = (*meeting.missing, *(rank for rank in stopped if _takes_part(board, meeting, rank)))
        for rank in waiters:
            targets.setdefault(rank, []).append(len(of_meeting))
        of_meeting.append((*met, *meeting.held_up))
        for rank in met:
            waited_for[rank].append(meeting)
        if met or meeting.held_up:
            continue
        silent.update(meeting.unknown)
        for rank in meeting.unknown:
            waited_for[rank].append(meeting)
        if not meeting.unknown and (not meeting.op.p2p or board.pending[meeting.waiters[0]][0] is meeting.op):
            stuck.append(meeting.op)
    absent = tuple(sorted(r for r in waited_for if r in board.dumps and not board.pending[r]))
    needed = {rank: ops for rank, ops in stopped.items() if waited_for.get(rank)} or stopped
    roots = {*needed, *absent, *silent}
    return Waits(
        stopped=needed,
        absent=absent,
        silent=tuple(sorted(silent)),
        circle=() if roots or stuck else circle(targets, of_meeting),
        stuck=tuple(stuck),
        behind=_behind(board, meetings, roots),
        waited_for={rank: tuple(found) for rank, found in waited_for.items()},
        meetings=tuple(meetings),
    )


def _takes_part(board: Board, meeting: Meeting, rank: int) -> bool:
    return rank not in meeting.missing and any(
        rank in board.others(waiter, meeting.op) for waiter in meeting.waiters[:1]
    )


def _stopped(board: Board, meetings: list[Meeting]) -> dict[int, tuple[Op, ...]]:
    """Ranks that have pending what other members have finished, though these cannot finish without them: their device,
    or the thread that watches it, stopped. They are half of the members at most: more would be the others' oddity."""
    found: dict[int, list[Op]] = defaultdict(list)
    for meeting in meetings:
        if meeting.op.name == "send" and meeting.finished:  # what was received has been sent
            found[meeting.waiters[0]].append(meeting.op)
        members = board.members.get(meeting.op.group, ())
        whole = len(meeting.waiters) + len(meeting.finished) == len(members)
        if whole and needs_all(meeting.op.name) and len(meeting.finished) >= len(meeting.waiters):
            for rank in meeting.waiters:
                found[rank].append(meeting.op)
    return {rank: tuple(ops) for rank, ops in found.items()}


def _behind(board: Board, meetings: list[Meeting], roots: set[int]) -> tuple[int, ...]:
    """Ranks that have not called what a peer has, though the peer waits in all that they wait in: the wait did not keep
    the peer from calling it, so it does not explain them. Holds where the members run one program and block in the same
    places; a rank that alone reads the loss back would look the same."""
    pending = {rank: {(op.group, op.number) for op in ops} for rank, ops in board.pending.items()}
    in_pairs = {rank for rank, ops in board.pending.items() if any(op.p2p for op in ops)}
    late: set[int] = set()
    for meeting in meetings:
        if meeting.op.p2p:
            continue
        candidates = [
            r for r in meeting.missing if r not in roots and r not in in_pairs and r not in late and pending[r]
        ]
        for rank in candidates:
            for waiter in meeting.waiters[:8]:
                place = board.place[waiter, meeting.op.group, meeting.op.number]
                earlier = {(op.group, op.number) for op in board.pending[waiter][:place]}
                if pending[rank] <= earlier:
                    late.add(rank)
                    break
    return tuple(sorted(late))
