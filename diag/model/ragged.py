"""Columns in which each owner has a run of entries: those of owner i are ``edges[i]`` to ``edges[i + 1]``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def edges_of(counts: Sequence[int] | Ints) -> Ints:
    """Where each one's entries begin, and the end."""
    edges: Ints = np.concatenate(([0], np.cumsum(np.asarray(counts, dtype=np.int64))))
    return edges


def is_named(codes: npt.NDArray[np.signedinteger], names: Sequence[str], *wanted: str) -> npt.NDArray[np.bool_]:
    """Whether the name of each code, a place in ``names``, is one of those wanted."""
    of_name = np.array([*(name in wanted for name in names), False])  # the last one for a code of no name, -1
    mask: npt.NDArray[np.bool_] = of_name[codes]
    return mask


def owners(edges: Ints) -> Ints:
    """The place to which each entry belongs."""
    return np.repeat(np.arange(len(edges) - 1), np.diff(edges))


def places_from(first: Ints, counts: Ints) -> Ints:
    """So many places from each first one on, one run after the other: ``counts[i]`` of them from ``first[i]``."""
    places: Ints = np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts)
    return places


def entries_of(edges: Ints, places: Ints | slice) -> tuple[Ints | slice, Ints]:
    """The entries of these owners, and their edges."""
    if isinstance(places, slice) and places.step in (None, 1):
        first, last, _ = places.indices(len(edges) - 1)
        last = max(first, last)
        return slice(int(edges[first]), int(edges[last])), edges[first : last + 1] - edges[first]
    begins = edges[:-1][places]
    counts = edges[1:][places] - begins
    return places_from(begins, counts), edges_of(counts)
