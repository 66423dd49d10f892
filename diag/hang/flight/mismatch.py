"""Collectives in which the members of a group do not agree: the first one of each group, and who differs.

Compared are what must be equal for the library: the operation, the number of elements (not the shape), the types. Who
differs is a vote. An all-to-all's sizes, a gather's outputs and a scatter's inputs differ rightly and are not compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diag.hang.flight.board import Board
from diag.hang.flight.record import Signature, kind_of

_MAX_SHIFT = 8  # calls that a rank may have left out or made in addition
_MOST = 200_000  # numbers of a group that are compared, the last ones
_AFTER_SHIFT = 3  # calls that must then agree again, for it to be called that
_Table = npt.NDArray[np.int32]
_Key = tuple[str, int, int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """``odd``: the ranks that differ from the majority; of a tie all ranks, and ``tied``. ``shift``: how many calls the
    odd ranks left out (positive) or made in addition (negative), where leaving them out makes the rest agree."""

    group: str
    number: int
    fault_class: str
    odd: tuple[int, ...]
    tied: bool
    pending: bool  # somebody waits in it or in a later one of the group
    calls: dict[int, Signature]
    shift: int = 0
    broken_law: tuple[int, ...] = ()  # ranks whose own input and output do not fit the size of the group


def find_mismatches(board: Board) -> list[Mismatch]:
    """At most one for each group: later ones follow from the first."""
    found = [_in_group(board, name, members) for name, members in board.members.items() if len(members) > 1]
    return [mismatch for mismatch in found if mismatch is not None]


def _key(signature: Signature) -> _Key:
    kind = kind_of(signature.op)
    op = signature.op if kind.startswith("coalesced") else kind
    inputs = 0 if kind in ("scatter", "all_to_all") else signature.input_numel
    outputs = 0 if kind in ("gather", "all_to_all") else signature.output_numel
    types = () if kind in ("scatter", "gather") else tuple(sorted(set(signature.dtypes)))
    if kind.endswith("_v") or "gather_v" in kind or "scatter_v" in kind:
        inputs = outputs = 0
    return (op, inputs, outputs, types)


def _in_group(board: Board, name: str, members: tuple[int, ...]) -> Mismatch | None:
    ranks = [rank for rank in members if rank in board.dumps and name in board.dumps[rank].histories]
    histories = [board.dumps[rank].histories[name] for rank in ranks]
    if len(ranks) < 2:
        return None
    last = max(h.last for h in histories)
    first = max(min(h.first for h in histories), last - _MOST)
    keys: dict[_Key, int] = {}
    meaning = np.array(
        [keys.setdefault(_key(signature), len(keys)) for signature in board.signatures] + [-1], dtype=np.int32
    )
    table = np.full((len(ranks), last - first + 1), -1, dtype=np.int32)
    for row, history in zip(table, histories, strict=True):
        kept = meaning[np.frombuffer(history.signatures, dtype=np.int32)][max(0, first - history.first) :]
        start = max(0, history.first - first)
        row[start : start + len(kept)] = kept
    most = table.max(axis=0)
    differing = ((table != most) & (table >= 0)).any(axis=0)
    if not differing.any():
        return None
    column = int(differing.argmax())
    return _described(board, name, ranks, table, column, first + column, len(members))


def _described(
    board: Board, name: str, ranks: list[int], table: _Table, column: int, number: int, size: int
) -> Mismatch:
    by_value: dict[int, list[int]] = defaultdict(list)
    for row, value in enumerate(table[:, column]):
        if value >= 0:
            by_value[int(value)].append(row)
    groups = sorted(by_value.values(), key=len, reverse=True)
    tied = len(groups[0]) == len(groups[1])
    rows = [row for group in (groups if tied else groups[1:]) for row in group]
    calls = {ranks[row]: _call(board, ranks[row], name, number) for group in groups for row in group}
    broken = tuple(rank for rank, signature in calls.items() if not _keeps_law(signature, size))
    odd = [ranks[row] for row in rows]
    if tied and broken and len(broken) < len(calls):
        odd, tied = list(broken), False
    kinds = Counter(kind_of(signature.op) for signature in calls.values())
    shift = 0 if tied else _shift(table, groups[0][0], [ranks.index(rank) for rank in odd], column)
    return Mismatch(
        group=name,
        number=number,
        fault_class="desync" if shift else "mismatch_op" if len(kinds) > 1 else "mismatch_shape",
        odd=tuple(sorted(odd)),
        tied=tied,
        pending=any(
            op.group == name and not op.p2p and op.number >= number for ops in board.pending.values() for op in ops
        ),
        calls=calls,
        shift=shift,
        broken_law=broken,
    )


def _call(board: Board, rank: int, name: str, number: int) -> Signature:
    history = board.dumps[rank].histories[name]
    return board.signatures[history.signatures[number - history.first]]


def _keeps_law(signature: Signature, size: int) -> bool:
    """An all-gather puts out what each member puts in, from all of them; a reduce-scatter the reverse."""
    kind = kind_of(signature.op)
    if kind == "all_gather":
        return signature.output_numel == signature.input_numel * size
    if kind == "reduce_scatter":
        return signature.input_numel == signature.output_numel * size
    return True


def _shift(table: _Table, usual: int, odd: list[int], column: int) -> int:
    """By how many calls all odd rows are ahead of a usual one (they left out that many), or behind it; 0 where the
    later calls agree as they are."""
    if any(_agrees(table[usual], table[row], column + 1, 0, least=1) for row in odd):
        return 0
    for shift in (sign * size for size in range(1, _MAX_SHIFT + 1) for sign in (1, -1)):
        if all(_agrees(table[usual], table[row], column, shift) for row in odd):
            return shift
    return 0


def _agrees(usual: _Table, odd: _Table, column: int, shift: int, least: int = _AFTER_SHIFT) -> bool:
    theirs, ours = (usual[column + shift :], odd[column:]) if shift > 0 else (usual[column:], odd[column - shift :])
    length = min(len(theirs), len(ours))
    both = (theirs[:length] >= 0) & (ours[:length] >= 0)
    agreed = theirs[:length][both]
    # A row of equal calls agrees with itself at any shift.
    several = shift == 0 or len(set(agreed.tolist())) > 1
    return len(agreed) >= least and several and bool((agreed == ours[:length][both]).all())
