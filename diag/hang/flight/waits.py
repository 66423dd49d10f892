"""Who waits for whom, and who waits for nobody: the ranks that the others' waiting leads to.

A rank waits, in each of its pending ops, for the members that have not called it; where all have, for those that are
held up by an earlier op of their own. In a program that does not block itself, every rank's calls fit one common order,
and such a wait always leads to something earlier in it. So the chains end: at a rank that others wait for and that has
nothing pending (it stands in Python, or is gone), at one whose device stopped, or at a rank that left no dump. A rank
that is late in one group because it waits in another is passed through, never blamed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from .board import Board
from .meetings import Meeting, collective_meetings
from .record import Op, needs_all

# -- circle ------------------------------------------------------------------------------------------------------------
#
# Ranks that wait for each other.


def circle(meetings_of: dict[int, list[int]], ranks_of: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The ranks of a circle that waits for nobody outside it; empty where no waiting comes back to where it began.

    ``meetings_of`` a rank: those in which it waits; ``ranks_of`` a meeting: those it waits for. The rank that a search
    against the waits leaves last lies in a component from which nothing leads away (Kosaraju).
    """
    waits_of: dict[int, list[int]] = {}  # meeting -> ranks waiting in it
    waited_in: dict[int, list[int]] = {}  # rank -> meetings that wait for it
    for rank, meetings in meetings_of.items():
        for meeting in meetings:
            waits_of.setdefault(meeting, []).append(rank)
    for meeting, ranks in enumerate(ranks_of):
        for rank in ranks:
            waited_in.setdefault(rank, []).append(meeting)
    last: int | None = None
    seen: set[int] = set()
    for start in meetings_of:
        if start not in seen:
            last = start
            _visit(start, waited_in, waits_of, seen)
    if last is None:
        return ()
    ring: set[int] = set()
    _visit(last, meetings_of, dict(enumerate(map(list, ranks_of))), ring, include_start=False)
    return tuple(sorted(ring)) if last in ring else ()


def _visit(
    start: int, first: dict[int, list[int]], second: dict[int, list[int]], seen: set[int], include_start: bool = True
) -> None:
    """Adds to ``seen`` every rank that is reached through one mapping and then the other."""
    if include_start:
        seen.add(start)
    left, passed = [start], set()
    while left:
        for meeting in first.get(left.pop(), ()):
            if meeting in passed:
                continue
            passed.add(meeting)
            for rank in second.get(meeting, ()):
                if rank not in seen:
                    seen.add(rank)
                    left.append(rank)


# -- pairs -------------------------------------------------------------------------------------------------------------
#
# Sends and receives: matched by group, source, destination and order. Other members of the group have no part in
# them.

_Pair = tuple[int, str, str, int, int]  # whose, group, send or recv, source, destination


def pair_meetings(board: Board) -> list[Meeting]:
    """One for each pending send or receive."""
    pending: dict[_Pair, list[Op]] = defaultdict(list)
    for rank, ops in board.pending.items():
        for op in ops:
            if op.src is not None and op.dst is not None:
                pending[rank, op.group, op.name, op.src, op.dst].append(op)
    met: list[Meeting] = []
    for (rank, group, name, src, dst), ours in pending.items():
        for other in board.others(rank, ours[0]):
            if other not in board.dumps:
                met += [Meeting(op, (rank,), unknown=(other,)) for op in ours]
                continue
            counterpart = "recv" if name == "send" else "send"
            theirs = pending.get((other, group, counterpart, src, dst), [])
            called, finished = _progress(board, rank, other, (group, name, src, dst), len(ours), len(theirs))
            for index, op in enumerate(ours):
                if index >= called:
                    met.append(Meeting(op, (rank,), missing=(other,)))
                elif index < finished:
                    met.append(Meeting(op, (rank,), finished=(other,)))
                elif theirs[min(index - finished, len(theirs) - 1)] is not board.pending[other][0]:
                    # It waits for them, and they for something else first.
                    met.append(Meeting(op, (rank,), held_up=(other,)))
                else:
                    met.append(Meeting(op, (rank,)))
    return met


def _progress(
    board: Board, rank: int, other: int, pair: tuple[str, str, int, int], ours: int, theirs: int
) -> tuple[int, int]:
    """How many of our pending ops of this pair the other side has called, and how many of these it has finished.

    Where nothing was lost on either side, by counting from the beginning: a small message is sent before anybody
    receives it, so a receive that is held up here may have its send finished there. Elsewhere the pending ones are
    matched from the oldest on."""
    group, name, src, dst = pair
    mine, other_dump = board.dumps[rank], board.dumps[other]
    if mine.whole and other_dump.whole:
        before = mine.pair_counts[pair] - ours
        counterpart = "recv" if name == "send" else "send"
        called = other_dump.pair_counts.get((group, counterpart, src, dst), 0) - before
        return called, called - theirs
    return theirs, 0


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
