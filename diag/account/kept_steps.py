"""Accounts of ranks' steps as data that can be kept: msgpack and bytes of arrays, never code. A run directory may come
from anyone."""

from __future__ import annotations

from typing import Any

import msgspec

from diag.model.steps import Pieces, Segments, Stall
from diag.rundir.arrays import Array, check_places, edges_in

from .calls import Calls, Group
from .rank_steps import COLUMNS, FLAGS, SOURCES, RankSteps

_STEPS = {**dict.fromkeys(COLUMNS, "int64"), **dict.fromkeys(FLAGS, "bool"), "source": "int8"}
_SEGMENTS = {"start_ns": "int64", "end_ns": "int64", "kind": "int8", "detail": "int8"}
_CALLS = dict.fromkeys(Calls.columns(), "int64") | {"inferred": "bool"}
_CALLS |= dict.fromkeys(("group", "label", "op", "dtype"), "int32")


class KeptSteps(msgspec.Struct, array_like=True):
    """The fields of ``RankSteps``, without ``outside_operators_ns``, which steps get later. ``edges``: of the pieces,
    and of the places."""

    columns: dict[str, Array]
    pieces: dict[str, Array]
    stalls: dict[int, tuple[Stall, ...]]
    calls: dict[str, Array]
    groups: tuple[Group, ...]
    names: tuple[str, ...]
    places: Array
    edges: tuple[Array, Array]


def keep(steps: RankSteps) -> KeptSteps:
    return KeptSteps(
        columns={name: Array.of(getattr(steps, name)) for name in _STEPS},
        pieces={name: Array.of(getattr(steps.segments.every, name)) for name in _SEGMENTS},
        stalls=dict(steps.stalls),
        calls={name: Array.of(getattr(steps.calls, name)) for name in _CALLS},
        groups=steps.calls.groups,
        names=steps.calls.names,
        places=Array.of(steps.places),
        edges=(Array.of(steps.segments.edges), Array.of(steps.place_edges)),
    )


def steps_from(kept: KeptSteps) -> RankSteps:
    """ValueError or KeyError if the arrays do not fit together."""
    columns, pieces = _read(kept.columns, _STEPS), _read(kept.pieces, _SEGMENTS)
    calls = Calls(**_read(kept.calls, _CALLS), groups=kept.groups, names=kept.names)
    places, count = kept.places.read("int64"), len(columns["step"])
    check_places(columns["source"], len(SOURCES))
    check_places(places, len(calls))
    check_places(calls.group, len(calls.groups))
    for codes in (calls.label, calls.op, calls.dtype):
        check_places(codes, len(calls.names))
    of_pieces, of_places = (
        edges_in(edges, count, len(of)) for edges, of in zip(kept.edges, (pieces["kind"], places), strict=True)
    )
    return RankSteps(
        **columns,
        segments=Pieces(Segments(**pieces), of_pieces),
        calls=calls,
        places=places,
        place_edges=of_places,
        stalls=kept.stalls,
    )


def _read(kept: dict[str, Array], types: dict[str, str]) -> dict[str, Any]:
    columns = {name: kept[name].read(of_type) for name, of_type in types.items()}
    if len({column.shape for column in columns.values()}) > 1:
        raise ValueError("columns of different lengths")
    return columns
