"""Sends and receives: matched by group, source, destination and order. Other members of the group have no part in
them."""

from __future__ import annotations

from collections import defaultdict

from diag.hang.flight.board import Board
from diag.hang.flight.meetings import Meeting
from diag.hang.flight.record import Op

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
