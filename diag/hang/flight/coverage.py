"""What the dumps cover, a sentence each."""

from __future__ import annotations

from collections import Counter

from diag.hang.flight.board import Board
from diag.hang.flight.record import Dumps
from diag.hang.flight.waits import Waits
from diag.hang.flight.wording import entry_of, listed


def coverage(board: Board, waits: Waits, dumps: Dumps, found: bool) -> tuple[str, ...]:
    """How many dumps of how many ranks, what they lack, and why there is no cause where there is none."""
    said = [
        f"Flight Recorder dumps of {len(board.dumps)} of {board.world_size} ranks (their number: {board.world_from})."
    ]
    if lost := sorted(rank for rank in {lost.rank for lost in dumps.unreadable} if rank is not None):
        said.append(f"The dumps of {listed(lost)} are empty or cannot be read.")
    if gone := sorted(board.unknown - set(lost)):
        said.append(f"There is no dump of {listed(gone)}.")
    sources = Counter(dump.rank_from for dump in board.dumps.values())
    if sources["the file name"]:
        said.append(f"The rank of {sources['the file name']} dumps is taken from the file name.")
    said += _limits(board)
    if not found:
        said.append(_why_nothing(board, waits))
    return tuple(said)


def _limits(board: Board) -> list[str]:
    said = []
    if cut := [rank for rank, dump in board.dumps.items() if dump.entries and not dump.whole]:
        said.append(f"The recorders of {len(cut)} ranks no longer hold their first entries.")
    if any(dump.backend == "gloo" for dump in board.dumps.values()):
        said.append("gloo records no sends and receives, and marks failed collectives like finished ones.")
    pending = {op.group for ops in board.pending.values() for op in ops}
    if unsure := sorted(pending & board.unsure):
        said.append(
            f"No dump lists the members of {', '.join(f'group {name}' for name in unsure[:5])}: taken from who called."
        )
    return said


def _why_nothing(board: Board, waits: Waits) -> str:
    if not any(board.pending.values()):
        return "No rank waits in a collective: the dumps show no hang."
    if waits.stuck:
        return (
            f"All members have come to {entry_of(board, waits.stuck[0])} with the same call, and it does not finish: "
            "no rank is missing. Look at the devices and the network."
        )
    if waits.silent:
        return f"The waiting ends at ranks without a dump: {listed(waits.silent)}. Their dumps are needed."
    return "Ranks wait, and the dumps do not show for whom."
