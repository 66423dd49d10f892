"""Collectives by the names that libraries give them, and what holds for each kind."""

from __future__ import annotations

# Each rank's result needs every rank's part: where one member has finished it, all have come to it. Not so for a send,
# a broadcast (its root may finish alone), or an all-to-all, whose parts may be empty.
_NEEDS_ALL = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier"})


def kind_of(op: str) -> str:
    """``_ALLGATHER_BASE`` and ``all_gather_into_tensor`` are an ``all_gather``."""
    name = op.lower().strip("_")
    for kind in ("all_to_all", "reduce_scatter", "all_gather", "all_reduce", "broadcast", "barrier"):
        if name.startswith((kind, kind.replace("_", ""))):
            return "barrier" if "barrier" in name else kind
    return name


def needs_all(op: str) -> bool:
    return kind_of(op) in _NEEDS_ALL


def keeps_law(op: str, elements_in: int, elements_out: int, size: int) -> bool:
    """Whether input and output fit a group of this size: an all-gather's output is the input of all members; a
    reduce-scatter's reverse."""
    sides = _sides(op, elements_in, elements_out)
    return sides is None or sides[1] == sides[0] * size


def members_of(op: str, elements_in: int, elements_out: int) -> int | None:
    """The size of the group that input and output of an all-gather or a reduce-scatter fit; None where they do not say
    it."""
    part, whole = _sides(op, elements_in, elements_out) or (0, 0)
    return whole // part if part > 0 and whole % part == 0 else None


def _sides(op: str, elements_in: int, elements_out: int) -> tuple[int, int] | None:
    """The elements of one member and those of all; None for an operation whose input and output are alike."""
    kind = kind_of(op)
    if kind == "all_gather":
        return elements_in, elements_out
    return (elements_out, elements_in) if kind == "reduce_scatter" else None
