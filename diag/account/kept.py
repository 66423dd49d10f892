"""What the account of a block of steps gave, kept beside the run: a run that has grown costs only what is new.

The account of a block depends on the records of its steps, on the code and on thresholds. Its name in the store is its
place in the run, and a hash of all of these comes first in what is kept: if it differs, the block is accounted again.
The store is the trace cache's, with its digests; what it holds is data (msgpack and arrays of fixed types), never code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from diag.decoding import msgpack_decoder
from diag.model.accounts import PATH_COLUMNS, STEP_COLUMNS, Attribution, Paths, StepAccounts
from diag.model.keys import Keys
from diag.model.matched import COLLECTIVE_COLUMNS, MEMBER_COLUMNS, MatchedCollectives
from diag.model.parts import PartColumns
from diag.model.steps import Blames
from diag.rundir.arrays import Array, check_places, edges_in
from diag.rundir.columns import Ragged, Rows, Steps
from diag.rundir.tables import Tables, axes_of

from .cached_steps import code
from .frontier import Frontier
from .joined import Block, Values
from .kept_steps import KeptSteps, keep, steps_from
from .rank_steps import RankSteps
from .scheduling import RankScheduling, Scheduling


class _OfRun(Struct, array_like=True):
    """The fields of the same names of an ``Attribution``."""

    ranks: tuple[int, ...]
    clock_uncertainty_ns: int | None
    clock_drift: float
    aligned: bool
    untied: tuple[int, ...]
    comm_known: bool


class _KeptRows(Struct, array_like=True):
    columns: dict[str, Array]
    names: tuple[str, ...]
    groups: dict[str, list[int]]

    def read(self, steps: Sequence[int]) -> Rows:
        """Those of these steps."""
        columns: dict[str, Any] = {name: self.columns[name].read() for name in Rows.columns()}
        rows = Rows(**columns, names=self.names)
        for codes in (rows.group, rows.op, rows.dtype):
            check_places(codes, len(rows.names))
        return rows.take(np.isin(rows.step, steps))


class _Kept(Struct, array_like=True):
    of_run: _OfRun
    steps: dict[str, Array]
    note: tuple[str, ...]
    path: dict[str, Array]
    path_keys: tuple[dict[str, Array], tuple[str, ...]]
    blames: dict[str, Array]
    parts: dict[str, Array]
    sources: tuple[str, ...]
    edges: dict[str, Array]
    frontier: tuple[list[int], list[int], dict[str, Array], bool] | None
    numbers: list[int]
    values: tuple[Values, ...]
    detailed: frozenset[int]
    detail: KeptSteps
    collectives: tuple[dict[str, Array], dict[str, Array], tuple[str, ...]]
    rows: dict[int, _KeptRows]
    scheduling: dict[int, tuple[dict[str, Array], dict[str, Array]]]  # the values are those of the blocks


_BLAMES = ("rank", "kind", "detail", "ns")
_KEYS = ("group", "seq", "label")
_PARTS = tuple(column.name for column in fields(PartColumns) if column.name not in ("stalls", "sources"))
_FRONTIER = ("dur_ns", "increment_ns", "leader", "late_ns", "communication_ns")
_SERIES = (
    "queued_ns", "loading_ns", "communicating_ns", "between_ns", "blocked_ns", "paused_ns", "frozen_ns",
    "outside_backward_ns", "meets",
)  # fmt: skip


def key_of(
    tables: Tables, part: Tables, left_out: Mapping[int, str], counted: Sequence[int], digests: Mapping[int, bytes]
) -> bytes:
    """A hash of everything that the account of a block depends on. ``part``: the steps of the block, without their
    rows; ``digests``: of the rows in the files, by rank."""
    hashed = blake2b(code().encode(), digest_size=32)
    hashed.update(repr((part.world_size, axes_of(tables), sorted(left_out.items()), list(counted))).encode())
    for rank, of_rank in sorted(part.ranks.items()):
        hashed.update(repr((rank, of_rank.identity, of_rank.groups, of_rank.scheduling)).encode())
        hashed.update(digests[rank])
        hashed.update(b"".join(_bytes_of(of_rank.steps)))
    return hashed.digest()


def _bytes_of(columns: Steps | Ragged) -> Iterator[bytes]:
    for name in columns.__slots__:
        values = getattr(columns, name)
        if isinstance(values, Ragged):
            yield from _bytes_of(values)
        elif isinstance(values, np.ndarray) and values.dtype != np.object_:
            yield values.tobytes()
        elif isinstance(values, tuple):
            yield repr(values).encode()


def packed(key: bytes, block: Block) -> bytes | None:
    """The block as bytes; None if it holds what is not kept: stalls of a device."""
    accounts = block.account.steps
    paths, blames, parts = accounts.paths, accounts.blames, accounts.parts
    if parts.stalls:
        return None
    edges = {"path": paths.edges, "keys": paths.key_edges, "blames": accounts.blame_edges, "parts": accounts.part_edges}
    front, met = block.frontier, block.account.collectives
    kept = _Kept(
        of_run=_OfRun(**{name: getattr(block.account, name) for name in _OfRun.__struct_fields__}),
        steps=_arrays(accounts, STEP_COLUMNS),
        note=accounts.note,
        path=_arrays(paths, PATH_COLUMNS),
        path_keys=(_arrays(paths.keys, _KEYS), paths.keys.names),
        blames=_arrays(blames, _BLAMES),
        parts=_arrays(parts, _PARTS),
        sources=parts.sources,
        edges={name: Array.of(of_steps) for name, of_steps in edges.items()},
        frontier=None
        if front is None
        else (
            list(front.numbers),
            list(front.ranks),
            _arrays(front, _FRONTIER),
            front.communication_known,
        ),
        numbers=list(block.scheduling.numbers),
        values=block.values,
        detailed=block.account.detailed or frozenset(),
        detail=keep(RankSteps.of(block.account.rank_steps)),
        collectives=(
            _arrays(met, (*COLLECTIVE_COLUMNS, "edges")),
            _arrays(met, MEMBER_COLUMNS),
            met.names,
        ),
        rows={
            rank: _KeptRows(_arrays(rows, Rows.columns()), rows.names, dict(block.groups[rank]))
            for rank, rows in block.rows.items()
        },
        scheduling={
            rank: (
                _arrays(of_rank, _SERIES),
                {name: Array.of(series) for name, series in of_rank.after_ns.items()},
            )
            for rank, of_rank in block.scheduling.ranks.items()
        },
    )
    return key + msgspec.msgpack.encode(kept)


def _arrays(table: object, names: Sequence[str]) -> dict[str, Array]:
    return {name: Array.of(getattr(table, name)) for name in names}


def _columns(arrays: Mapping[str, Array], names: Sequence[str]) -> dict[str, Any]:
    """ValueError if their lengths differ."""
    columns = {name: arrays[name].read() for name in names}
    if len({len(column) for column in columns.values()}) > 1:
        raise ValueError("columns of different lengths")
    return columns


def _steps(kept: _Kept) -> StepAccounts:
    """ValueError or KeyError if the arrays do not fit together."""
    columns, path = _columns(kept.steps, STEP_COLUMNS), _columns(kept.path, PATH_COLUMNS)
    of_keys, names = kept.path_keys
    keys = Keys(**_columns(of_keys, _KEYS), names=names)
    check_places(keys.group, len(names))
    check_places(keys.label, len(names))
    blames = Blames(**_columns(kept.blames, _BLAMES))
    parts = PartColumns(**_columns(kept.parts, _PARTS), stalls={}, sources=kept.sources)
    check_places(parts.source, len(parts.sources))
    steps = len(columns["step"])
    edges = {
        name: edges_in(kept.edges[name], steps, entries)
        for name, entries in (
            ("path", len(path["rank"])), ("keys", len(keys.seq)), ("blames", len(blames)), ("parts", len(parts))
        )
    }  # fmt: skip
    if len(kept.note) != steps:
        raise ValueError("notes that are not those of the steps")
    paths = Paths(**path, edges=edges["path"], keys=keys, key_edges=edges["keys"])
    if (paths.collective >= np.diff(paths.key_edges)[paths.of_step]).any():
        raise ValueError("a collective without a key")
    return StepAccounts(
        **columns, note=kept.note, paths=paths, blames=blames, blame_edges=edges["blames"], parts=parts,
        part_edges=edges["parts"],
    )  # fmt: skip


def _collectives(kept: _Kept) -> MatchedCollectives:
    """ValueError or KeyError if the arrays do not fit together."""
    of_each, of_members, names = kept.collectives
    columns, members = _columns(of_each, COLLECTIVE_COLUMNS), _columns(of_members, MEMBER_COLUMNS)
    edges = edges_in(of_each["edges"], len(columns["step"]), len(members["rank"]))
    if (np.diff(edges) < 1).any():
        raise ValueError("a collective without a member")
    for codes in ("group", "label", "op"):
        check_places(columns[codes], len(names))
    return MatchedCollectives(**columns, **members, edges=edges, names=names)


def unpacked(key: bytes, data: bytes | None, detailed: Sequence[int]) -> Block | None:
    """The block that was kept under this key, with these steps in detail; None if another one was, or it is not
    whole, or has not all of these steps in detail."""
    if data is None or not data.startswith(key):
        return None
    try:
        kept = msgpack_decoder(_Kept).decode(memoryview(data)[len(key) :])
        return _block(kept, frozenset(detailed)) if kept.detailed >= set(detailed) else None
    except (msgspec.DecodeError, ValueError, KeyError, IndexError, TypeError):
        return None


def _block(kept: _Kept, detailed: frozenset[int]) -> Block:
    front = None
    if kept.frontier is not None:
        numbers, ranks, arrays, known = kept.frontier
        columns: dict[str, Any] = {name: arrays[name].read() for name in _FRONTIER}
        front = Frontier(tuple(numbers), tuple(ranks), **columns, communication_known=known)
    scheduling = {}
    for rank, (series, after) in kept.scheduling.items():
        own: dict[str, Any] = {name: series[name].read() for name in _SERIES}
        after_ns = {name: array.read() for name, array in after.items()}
        scheduling[rank] = RankScheduling(
            **own, **msgspec.structs.asdict(kept.values[0].ranks[rank]), after_ns=after_ns
        )
    account = Attribution(
        **msgspec.structs.asdict(kept.of_run),
        steps=_steps(kept),
        rank_steps=steps_from(kept.detail).of_steps(detailed),
        collectives=_collectives(kept).of_steps(detailed),
        detailed=detailed,
    )
    return Block(
        account,
        front,
        Scheduling(tuple(kept.numbers), scheduling),
        kept.values,
        rows={rank: of_rank.read(list(detailed)) for rank, of_rank in kept.rows.items()},
        groups={rank: of_rank.groups for rank, of_rank in kept.rows.items()},
    )
