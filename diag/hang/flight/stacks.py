"""Stacks of the culprits, and of one rank that waits for them, to be read side by side."""

from __future__ import annotations

from collections.abc import Iterable

from diag.hang.flight.board import Board
from diag.hang.flight.waits import Waits
from diag.hang.flight.wording import entry_of, state_of
from diag.hang.model import Clue, Evidence, Stack

_CULPRITS = 8


def stacks_of(board: Board, waits: Waits, clues: Iterable[Clue]) -> tuple[Stack, ...]:
    """Of the culprits of the first clue: where each made its last call. Then of a typical victim: where it waits. A
    dump has no stack of this moment: after its last call a rank has gone on."""
    for clue in clues:
        culprits = [culprit.rank for culprit in clue.culprits if culprit.rank is not None]
        shown = [_culprit(board, waits, rank) for rank in culprits[:_CULPRITS] if rank in board.dumps]
        victim = _typical(board, waits, culprits)
        return (*shown, *([_victim(board, victim)] if victim is not None else []))
    return ()


def _culprit(board: Board, waits: Waits, rank: int) -> Stack:
    dump = board.dumps[rank]
    where = Evidence(dump.path, 0, f"rank {rank}: {state_of(board, waits, rank)}")
    if not dump.entries:
        what = "hung in Python outside any collective" if dump.last_called else "hung in Python before any collective"
        return Stack(rank, f"culprit: no entries: {what}", (), where)
    op = waits.stopped[rank][0] if rank in waits.stopped else dump.last
    assert op is not None
    return Stack(rank, f"culprit: {entry_of(board, op)}{_without(op.frames)}", op.frames, where)


def _typical(board: Board, waits: Waits, culprits: list[int]) -> int | None:
    """The first rank that waits for a culprit itself, else any that waits."""
    for culprit in culprits:
        for meeting in waits.waited_for.get(culprit, ()):
            for rank in meeting.waiters:
                if rank not in culprits:
                    return rank
    return next((rank for rank, ops in sorted(board.pending.items()) if ops and rank not in culprits), None)


def _victim(board: Board, rank: int) -> Stack:
    op = board.pending[rank][0]
    text = f"waits in {entry_of(board, op)}"
    evidence = Evidence(board.dumps[rank].path, 0, f"rank {rank}: {text}")
    return Stack(rank, f"a typical victim: {text}{_without(op.frames)}", op.frames, evidence)


def _without(frames: tuple[str, ...]) -> str:
    return "" if frames else " (the dump has no stacks)"
