"""Accounts of ranks' steps as data that can be kept: msgpack and bytes of arrays, never code. A run directory may come
from anyone.

The pieces and calls of all steps are columns, one step after the other, with the edges of each step in them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np

from diag.model.ragged import owners
from diag.model.steps import Pieces, RankStep, Segments, Stall
from diag.rundir.arrays import Array, check_places, edges_in
from diag.rundir.columns import Ints

from .calls import Calls, Group, Some, calls_in

_NUMBERS = (
    "rank", "step", "begin_ns", "end_ns", "overlapped_comm_ns", "optimizer_ns", "comm_known", "hidden_known", "pieces",
    "fused_ns", "beneath_ns", "waits_known",
)  # fmt: skip
_SEGMENTS = {"start_ns": "int64", "end_ns": "int64", "kind": "int8", "detail": "int8"}
_CALLS = {"group": "int32", "label": "int32", "op": "int32", "dtype": "int32", "inferred": "bool"}  # others: int64


class KeptCalls(msgspec.Struct, array_like=True):
    """Of one rank. ``groups`` and ``names``: places among those of all ranks."""

    columns: dict[str, Array]
    groups: list[int]
    names: list[int]


class KeptSteps(msgspec.Struct, array_like=True):
    numbers: Array  # [steps, fields]
    sources: list[str]
    pieces: dict[str, Array]
    piece_edges: Array
    stalls: dict[int, tuple[Stall, ...]]
    calls: dict[int, KeptCalls]  # by rank
    places: Array  # of each step's calls among those of its rank
    place_edges: Array
    groups: list[Group]
    names: list[str]


def keep(steps: Sequence[RankStep]) -> KeptSteps:
    """Without ``outside_operators_ns``, which steps get later."""
    by_rank: dict[int, list[int]] = defaultdict(list)
    for at, step in enumerate(steps):
        by_rank[step.rank].append(at)
    groups: dict[Group, int] = {}
    names: dict[str, int] = {}
    calls: dict[int, KeptCalls] = {}
    places: list[Ints] = [np.zeros(0, dtype=np.int64)] * len(steps)
    for rank, of_rank in by_rank.items():
        own, listed = calls_in([steps[at].collectives for at in of_rank])
        for at, of_step in zip(of_rank, listed, strict=True):
            places[at] = of_step
        calls[rank] = KeptCalls(
            {name: Array.of(getattr(own, name)) for name in Calls.columns()},
            [groups.setdefault(group, len(groups)) for group in own.groups],
            [names.setdefault(name, len(names)) for name in own.names],
        )
    pieces = Pieces.of([step.segments for step in steps])
    numbers = np.array([[getattr(step, name) for name in _NUMBERS] for step in steps], dtype=np.int64)
    return KeptSteps(
        numbers=Array.of(numbers.reshape(len(steps), len(_NUMBERS))),
        sources=[step.source for step in steps],
        pieces={name: Array.of(getattr(pieces.every, name)) for name in _SEGMENTS},
        piece_edges=Array.of(pieces.edges),
        stalls={at: step.stalls for at, step in enumerate(steps) if step.stalls},
        calls=calls,
        places=Array.of(np.concatenate([*places, np.zeros(0, dtype=np.int64)])),
        place_edges=Array.of(np.cumsum([0, *map(len, places)], dtype=np.int64)),
        groups=list(groups),
        names=list(names),
    )


def steps_from(kept: KeptSteps, of: Collection[int] | None = None) -> list[RankStep]:
    """All, or those of these steps. ValueError or KeyError if the arrays do not fit together."""
    numbers = kept.numbers.read("int64")
    columns: dict[str, Any] = {name: kept.pieces[name].read(of_type) for name, of_type in _SEGMENTS.items()}
    if len({len(column) for column in columns.values()}) > 1:
        raise ValueError("columns of different lengths")
    pieces = Pieces(Segments(**columns), edges_in(kept.piece_edges, len(numbers), len(columns["kind"])))
    calls = {rank: _calls(of_rank, kept.groups, kept.names) for rank, of_rank in kept.calls.items()}
    places = kept.places.read("int64")
    edges = edges_in(kept.place_edges, len(numbers), len(places))
    ranks, there = (numbers[:, _NUMBERS.index(name)] for name in ("rank", "step"))
    listed = np.array([len(calls[rank]) for rank in ranks.tolist()], dtype=np.int64)
    if len(kept.sources) != len(numbers) or ((places < 0) | (places >= listed[owners(edges)])).any():
        raise ValueError("arrays that do not fit together")
    steps = []
    for at in range(len(numbers)) if of is None else np.flatnonzero(np.isin(there, list(of))).tolist():
        of_step: dict[str, Any] = dict(zip(_NUMBERS, numbers[at].tolist(), strict=True))
        for name in ("comm_known", "hidden_known", "waits_known"):
            of_step[name] = bool(of_step[name])
        collectives = Some(calls[of_step["rank"]], places[edges[at] : edges[at + 1]])
        stalls = kept.stalls.get(at, ())
        steps.append(
            RankStep(**of_step, source=kept.sources[at], segments=pieces[at], collectives=collectives, stalls=stalls)
        )
    return steps


def _calls(kept: KeptCalls, groups: Sequence[Group], names: Sequence[str]) -> Calls:
    columns: dict[str, Any] = {name: kept.columns[name].read(_CALLS.get(name, "int64")) for name in Calls.columns()}
    if len({column.shape for column in columns.values()}) > 1:
        raise ValueError("columns of different lengths")
    own_groups = tuple(groups[place] for place in kept.groups)
    calls = Calls(**columns, groups=own_groups, names=tuple(names[place] for place in kept.names))
    check_places(calls.group, len(calls.groups))
    for codes in (calls.label, calls.op, calls.dtype):
        check_places(codes, len(calls.names))
    return calls
