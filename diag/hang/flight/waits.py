"""The rows of the dumps for the question who is behind: pending collectives, sends and receives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence

from diag.events.behind import PendingCall, Waits, pending_calls, who_is_behind
from diag.events.rows import Call, Did, Event, JobRank
from diag.hang.flight.board import Board, RecordedOp

OpCall = PendingCall[JobRank, RecordedOp]
OpWaits = Waits[JobRank, RecordedOp]


def _key(op: RecordedOp) -> Hashable:
    return (op.group, op.number, op.src, op.dst) if op.p2p else (op.group, op.number)


def _collectives(board: Board, order: Mapping[JobRank, Sequence[Hashable]], read: Collection[JobRank]) -> list[OpCall]:
    samples: dict[Hashable, RecordedOp] = {}
    events: list[Event[JobRank]] = []
    members: dict[Hashable, tuple[JobRank, ...]] = {}
    for rank, ops in board.pending.items():
        for op in ops:
            if not op.p2p:
                samples.setdefault(_key(op), op)
                members.setdefault(op.group, tuple(map(JobRank, board.members.get(op.group, ()))))
                events.append(Event(JobRank(rank), op.number, Call(op.name), Did.WAITS, op.group))
    for group, ranks in members.items():
        for of_group in ranks:
            dump = board.dumps.get(of_group)
            # None: the dump holds nothing of this group, and what is pending elsewhere is recent.
            if dump is not None and (number := dump.called(str(group))) is not None:
                events.append(Event(of_group, number, group=group))
    return pending_calls(events, members, lambda event: samples[event.group, event.number], order, read)


# -- Sends and receives, matched by group, source, destination and order -----------------------------------------------

_Pair = tuple[int, str, str, int, int]  # rank, group, send or recv, source, destination


def _pairs(board: Board) -> list[OpCall]:
    """The pending sends and receives."""
    pending: dict[_Pair, list[RecordedOp]] = defaultdict(list)
    for rank, ops in board.pending.items():
        for op in ops:
            if op.src is not None and op.dst is not None:
                pending[rank, op.group, op.name, op.src, op.dst].append(op)
    calls: list[OpCall] = []
    for (number, group, name, src, dst), own_ops in pending.items():
        rank = JobRank(number)
        for peer in map(JobRank, board.others(rank, own_ops[0])):
            if peer not in board.dumps:
                calls += [_pair(board, rank, peer, op, unknown=(peer,)) for op in own_ops]
                continue
            counterpart = "recv" if name == "send" else "send"
            peer_ops = pending.get((peer, group, counterpart, src, dst), [])
            called, finished = _progress(board, rank, peer, (group, name, src, dst), len(own_ops), len(peer_ops))
            for index, op in enumerate(own_ops):
                if index >= called:
                    calls.append(_pair(board, rank, peer, op, missing=(peer,)))
                elif index < finished:
                    calls.append(_pair(board, rank, peer, op, finished=(peer,)))
                elif peer_ops[min(index - finished, len(peer_ops) - 1)] is not board.pending[peer][0]:
                    # It waits for the peer, and the peer for something else first.
                    calls.append(_pair(board, rank, peer, op, held_up=(peer,)))
                else:
                    calls.append(_pair(board, rank, peer, op))
    return calls


def _pair(
    board: Board,
    rank: JobRank,
    peer: JobRank,
    op: RecordedOp,
    missing: tuple[JobRank, ...] = (),
    unknown: tuple[JobRank, ...] = (),
    held_up: tuple[JobRank, ...] = (),
    finished: tuple[JobRank, ...] = (),
) -> OpCall:
    sent = op.name == "send" and bool(finished)  # what was received has been sent
    first = board.pending[rank][0] is op
    return PendingCall(op, _key(op), (rank,), (rank, peer), missing, unknown, held_up, finished, True, sent, first)


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


def follow(board: Board) -> OpWaits:
    """All waits of the ranks with a dump, and where their chains end."""
    order = {JobRank(rank): [_key(op) for op in ops] for rank, ops in board.pending.items()}
    read = {JobRank(rank) for rank in board.dumps}
    return who_is_behind([*_collectives(board, order, read), *_pairs(board)], order, read)
