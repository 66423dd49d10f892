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
    kind = kind_of(op)
    if kind == "all_gather":
        return elements_out == elements_in * size
    if kind == "reduce_scatter":
        return elements_in == elements_out * size
    return True


def members_of(op: str, elements_in: int, elements_out: int) -> int | None:
    """The size of the group that input and output of an all-gather or a reduce-scatter fit; None where they do not say
    it."""
    kind = kind_of(op)
    large, small = (elements_out, elements_in) if kind == "all_gather" else (elements_in, elements_out)
    if kind not in ("all_gather", "reduce_scatter") or small <= 0 or large % small:
        return None
    return large // small
