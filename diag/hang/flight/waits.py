"""Which ranks wait for which, and the ranks at which the chains of waiting end.

A rank waits, in each of its pending ops, for the members that have not called it; where all have, for those that are
held up by an earlier op of their own. In a program that does not block itself, every rank's calls fit one common order,
and such a wait always leads to something earlier in it. So the chains end: at a rank that others wait for and that has
nothing pending (it is stuck in Python, or is gone), at one whose device stopped, or at a rank that left no dump. A rank
that is late in one group because it waits in another is passed through and never a culprit."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from diag.events.operations import needs_all
from diag.hang.flight.board import Board, RecordedOp
from diag.hang.policy import HANG_DUMPS

# -- Pending collectives, each once, with all ranks that wait in it ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A collective, send or receive in which ranks wait. ``held_up``: waiters that are still in an earlier op of their
    own. ``finished``: members that have completed it."""

    op: RecordedOp
    waiters: tuple[int, ...]
    missing: tuple[int, ...] = ()  # members with a dump that have not called it
    unknown: tuple[int, ...] = ()  # members without a dump: they may not have called it
    held_up: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()


def pending_collectives(board: Board) -> list[PendingCall]:
    """The collectives that are pending on any rank, in calling order."""
    waiters: dict[tuple[str, int], list[int]] = defaultdict(list)
    samples: dict[tuple[str, int], RecordedOp] = {}
    for rank, ops in board.pending.items():
        for op in ops:
            if not op.p2p:
                waiters[op.group, op.number].append(rank)
                samples.setdefault((op.group, op.number), op)
    pending_calls: list[PendingCall] = []
    count: dict[str, int] = defaultdict(int)
    for key in sorted(waiters):
        op, waiting = samples[key], waiters[key]
        count[op.group] += 1
        if count[op.group] > HANG_DUMPS.pending_followed:
            continue
        members = board.members.get(op.group, ())
        known = [rank for rank in members if rank in board.dumps]
        missing = tuple(rank for rank in known if not board.called(rank, op))
        finished = tuple(rank for rank in known if board.finished(rank, op))
        pending_calls.append(
            PendingCall(
                op,
                tuple(waiting),
                missing,
                # Where a member has finished a call that needs all members, all have called it.
                () if finished and needs_all(op.name) else tuple(rank for rank in members if rank not in board.dumps),
                tuple(rank for rank in waiting if board.place[rank, op.group, op.number] > 0),
                finished,
            )
        )
    return pending_calls


# -- Circles: ranks that wait for each other ---------------------------------------------------------------------------


def circle(calls_of: dict[int, list[int]], ranks_of: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The ranks of a circle that waits for no rank outside it; empty where there is none.

    ``calls_of``: by rank, the calls in which it waits; ``ranks_of``: by call, the ranks that it waits for. The rank
    that a search against the waits finishes last lies in a component without outgoing waits (Kosaraju).
    """
    waits_of: dict[int, list[int]] = {}  # call -> ranks waiting in it
    waited_in: dict[int, list[int]] = {}  # rank -> pending calls that wait for it
    for rank, pending_calls in calls_of.items():
        for pending_call in pending_calls:
            waits_of.setdefault(pending_call, []).append(rank)
    for pending_call, ranks in enumerate(ranks_of):
        for rank in ranks:
            waited_in.setdefault(rank, []).append(pending_call)
    last: int | None = None
    seen: set[int] = set()
    for start in calls_of:
        if start not in seen:
            last = start
            _visit(start, waited_in, waits_of, seen)
    if last is None:
        return ()
    ring: set[int] = set()
    _visit(last, calls_of, dict(enumerate(map(list, ranks_of))), ring, include_start=False)
    return tuple(sorted(ring)) if last in ring else ()


def _visit(
    start: int, first: dict[int, list[int]], second: dict[int, list[int]], seen: set[int], include_start: bool = True
) -> None:
    """Adds to ``seen`` every rank that is reached through one mapping and then the other."""
    if include_start:
        seen.add(start)
    left, passed = [start], set()
    while left:
        for pending_call in first.get(left.pop(), ()):
            if pending_call in passed:
                continue
            passed.add(pending_call)
            for rank in second.get(pending_call, ()):
                if rank not in seen:
                    seen.add(rank)
                    left.append(rank)


# -- Sends and receives, matched by group, source, destination and order -----------------------------------------------

_Pair = tuple[int, str, str, int, int]  # rank, group, send or recv, source, destination


def pending_pairs(board: Board) -> list[PendingCall]:
    """The pending sends and receives."""
    pending: dict[_Pair, list[RecordedOp]] = defaultdict(list)
    for rank, ops in board.pending.items():
        for op in ops:
            if op.src is not None and op.dst is not None:
                pending[rank, op.group, op.name, op.src, op.dst].append(op)
    pending_calls: list[PendingCall] = []
    for (rank, group, name, src, dst), own_ops in pending.items():
        for peer in board.others(rank, own_ops[0]):
            if peer not in board.dumps:
                pending_calls += [PendingCall(op, (rank,), unknown=(peer,)) for op in own_ops]
                continue
            counterpart = "recv" if name == "send" else "send"
            peer_ops = pending.get((peer, group, counterpart, src, dst), [])
            called, finished = _progress(board, rank, peer, (group, name, src, dst), len(own_ops), len(peer_ops))
            for index, op in enumerate(own_ops):
                if index >= called:
                    pending_calls.append(PendingCall(op, (rank,), missing=(peer,)))
                elif index < finished:
                    pending_calls.append(PendingCall(op, (rank,), finished=(peer,)))
                elif peer_ops[min(index - finished, len(peer_ops) - 1)] is not board.pending[peer][0]:
                    # It waits for the peer, and the peer for something else first.
                    pending_calls.append(PendingCall(op, (rank,), held_up=(peer,)))
                else:
                    pending_calls.append(PendingCall(op, (rank,)))
    return pending_calls


def _progress(
    board: Board, rank: int, peer: int, pair: tuple[str, str, int, int], own_ops: int, peer_ops: int
) -> tuple[int, int]:
    """The number of a rank's pending ops of this pair that the peer has called, and how many of these it has finished.

    Where no entry was lost on either side, ops are counted from the beginning: a small message is sent before anybody
    receives it, so the send of a pending receive may have finished. Elsewhere pending ops are matched from the oldest
    on.
    """
    group, name, src, dst = pair
    own_dump, peer_dump = board.dumps[rank], board.dumps[peer]
    if own_dump.whole and peer_dump.whole:
        before = own_dump.pair_counts[pair] - own_ops
        counterpart = "recv" if name == "send" else "send"
        called = peer_dump.pair_counts.get((group, counterpart, src, dst), 0) - before
        return called, called - peer_ops
    return peer_ops, 0


@dataclass(frozen=True, slots=True)
class Waits:
    """Where the chains end."""

    stopped: dict[int, tuple[RecordedOp, ...]]  # ranks with ops that they have not finished and their peers have
    absent: tuple[int, ...]  # ranks that others wait for and that wait for nothing
    silent: tuple[int, ...]  # ranks without a dump that others wait for
    circle: tuple[int, ...]  # ranks that wait for each other and for no other rank, if none of the above is found
    stuck: tuple[RecordedOp, ...]  # ops that all members have called and none has finished
    behind: tuple[int, ...]  # ranks that are late, which their own waiting does not explain
    waited_for: dict[int, tuple[PendingCall, ...]]
    pending_calls: tuple[PendingCall, ...]

    @property
    def roots(self) -> tuple[int, ...]:
        return tuple(sorted({*self.stopped, *self.absent}))


def follow(board: Board) -> Waits:
    """All waits, and where their chains end."""
    pending_calls = [*pending_collectives(board), *pending_pairs(board)]
    stopped = _stopped(board, pending_calls)
    waited_for: dict[int, list[PendingCall]] = defaultdict(list)
    silent: set[int] = set()
    stuck: list[RecordedOp] = []
    targets: dict[int, list[int]] = {}  # rank -> pending calls
    of_call: list[tuple[int, ...]] = []
    for pending_call in pending_calls:
        waiters = [rank for rank in pending_call.waiters if rank not in stopped]
        if not waiters:
            continue
        others = board.others(pending_call.waiters[0], pending_call.op)
        late = dict.fromkeys((*pending_call.missing, *(rank for rank in stopped if rank in others)))
        for rank in waiters:
            targets.setdefault(rank, []).append(len(of_call))
        of_call.append((*late, *pending_call.held_up))
        for rank in late:
            waited_for[rank].append(pending_call)
        if late or pending_call.held_up:
            continue
        silent.update(pending_call.unknown)
        for rank in pending_call.unknown:
            waited_for[rank].append(pending_call)
        if not pending_call.unknown and (
            not pending_call.op.p2p or board.pending[pending_call.waiters[0]][0] is pending_call.op
        ):
            stuck.append(pending_call.op)
    absent = tuple(sorted(r for r in waited_for if r in board.dumps and not board.pending[r]))
    needed = {rank: ops for rank, ops in stopped.items() if waited_for.get(rank)} or stopped
    roots = {*needed, *absent, *silent}
    return Waits(
        stopped=needed,
        absent=absent,
        silent=tuple(sorted(silent)),
        circle=() if roots or stuck else circle(targets, of_call),
        stuck=tuple(stuck),
        behind=_behind(board, pending_calls, roots),
        waited_for={rank: tuple(calls) for rank, calls in waited_for.items()},
        pending_calls=tuple(pending_calls),
    )


def _stopped(board: Board, pending_calls: list[PendingCall]) -> dict[int, tuple[RecordedOp, ...]]:
    """Ranks with pending ops that other members finished, though these cannot finish without them: their device, or the
    thread that watches it, stopped. At most half of the members: with more, those that finished would be the odd
    ones."""
    stopped: dict[int, list[RecordedOp]] = defaultdict(list)
    for pending_call in pending_calls:
        if pending_call.op.name == "send" and pending_call.finished:  # what was received has been sent
            stopped[pending_call.waiters[0]].append(pending_call.op)
        members = board.members.get(pending_call.op.group, ())
        whole = len(pending_call.waiters) + len(pending_call.finished) == len(members)
        if whole and needs_all(pending_call.op.name) and len(pending_call.finished) >= len(pending_call.waiters):
            for rank in pending_call.waiters:
                stopped[rank].append(pending_call.op)
    return {rank: tuple(ops) for rank, ops in stopped.items()}


def _behind(board: Board, pending_calls: list[PendingCall], roots: set[int]) -> tuple[int, ...]:
    """Ranks that have not called an op that a peer has called, though the peer waits in all calls in which they wait.
    That waiting did not keep the peer from calling the op, so it does not explain why they are late. Holds where the
    members run one program and block in the same places; a rank that alone reads the loss back would look the same."""
    pending = {rank: {(op.group, op.number) for op in ops} for rank, ops in board.pending.items()}
    in_pairs = {rank for rank, ops in board.pending.items() if any(op.p2p for op in ops)}
    late: set[int] = set()
    for pending_call in pending_calls:
        if pending_call.op.p2p:
            continue
        candidates = [
            r for r in pending_call.missing if r not in roots and r not in in_pairs and r not in late and pending[r]
        ]
        for rank in candidates:
            for waiter in pending_call.waiters[:8]:
                place = board.place[waiter, pending_call.op.group, pending_call.op.number]
                earlier = {(op.group, op.number) for op in board.pending[waiter][:place]}
                if pending[rank] <= earlier:
                    late.add(rank)
                    break
    return tuple(sorted(late))
