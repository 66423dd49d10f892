"""Ranks, calls and states in words."""

from __future__ import annotations

from collections.abc import Iterable

from diag.hang.flight.board import Board
from diag.hang.flight.record import Op, Signature
from diag.hang.flight.waits import Waits

_SHOWN = 12


def listed(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 3 and 5", "ranks 0 to 7"."""
    found = sorted(ranks)
    if len(found) == 1:
        return f"rank {found[0]}"
    spans: list[tuple[int, int]] = []
    for rank in found:
        if spans and spans[-1][1] == rank - 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    texts = [t for a, b in spans for t in ([f"{a} to {b}"] if b - a > 1 else [str(r) for r in range(a, b + 1)])]
    if len(texts) > _SHOWN:
        texts = [*texts[: _SHOWN - 1], f"{len(found)} in all"]
    return f"ranks {', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else f"ranks {texts[0]}"


def entry_of(board: Board, op: Op) -> str:
    """ "all_reduce #57 of group 35 (TENSOR_MODEL_PARALLEL_GROUP)"."""
    return f"{_title(board, op)} of {board.groups[op.group].title}"


def _title(board: Board, op: Op) -> str:
    members = board.members.get(op.group, ())
    if op.src is not None and op.dst is not None and max(op.src, op.dst) < len(members):
        return f"{op.name} from rank {members[op.src]} to {members[op.dst]}"
    return op.title


def call_text(signature: Signature) -> str:
    """ "all_reduce of 4096x5120 BFloat16"."""
    sizes = " + ".join("x".join(map(str, size)) or "a scalar" for size in signature.input_sizes[:3])
    if len(signature.input_sizes) > 3:
        sizes += f" + {len(signature.input_sizes) - 3} more"
    return " ".join(filter(None, (signature.op, sizes and f"of {sizes}", "/".join(sorted(set(signature.dtypes))))))


def state_of(board: Board, waits: Waits, rank: int) -> str:
    """Where a rank stands, from its own dump."""
    dump = board.dumps[rank]
    if rank in waits.stopped:
        first = waits.stopped[rank][0]
        return f"did not finish {entry_of(board, first)}, which its peers finished"
    if not dump.entries:
        called = ", ".join(f"#{number} of group {name}" for name, number in list(dump.last_called.items())[:3])
        if called:
            return f"no entries pending: hung in Python, outside any collective (last called: {called})"
        return "no entries: hung in Python before any collective"
    if dump.last is None:
        return "no entries that can be read"
    state = "finished" if not any(op.record_id == dump.last.record_id for op in board.pending[rank]) else "pending"
    return f"last call: {entry_of(board, dump.last)}, {state}"
