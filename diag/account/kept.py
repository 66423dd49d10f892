"""What the account of a block of steps gave, kept beside the run: a run that has grown costs only what is new.

The account of a block depends on the records of its steps, on the code and on thresholds. Its name in the store is its
place in the run, and a hash of all of these comes first in what is kept: if it differs, the block is accounted again.
The store is the trace cache's, with its digests; what it holds is data (msgpack and arrays of fixed types), never code.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from isal import isal_zlib
from msgspec import Struct

from diag.model.parts import PartColumns, PartRows, parts_of_steps
from diag.model.steps import Blame, CriticalPath, Detail, Kind, StepAccount
from diag.rundir.columns import Ragged, Steps
from diag.rundir.policy import BLOCKS
from diag.rundir.tables import Tables, axes_of

from .cached_steps import code
from .frontier import Frontier
from .scheduling import RankScheduling, Scheduling

_TYPES = ("int8", "int16", "int32", "int64", "float64", "bool")


class Block(Struct, frozen=True):
    """The accounts of some steps. ``frontier`` and ``scheduling``: of those that count."""

    steps: tuple[StepAccount, ...]
    frontier: Frontier | None
    scheduling: Scheduling


class _Array(Struct, array_like=True):
    type: str
    shape: tuple[int, ...]
    data: bytes


class _Kept(Struct, array_like=True):
    steps: list[tuple[int, int, bool, str, bool, int, int, int]]
    path: dict[str, _Array]
    path_ends: _Array
    path_keys: list[list[tuple[str, int, str]]]
    changes: list[list[tuple[str, int, str]]]
    blames: _Array  # [blames, 5]: place of the step, rank, kind, detail, ns
    parts: dict[str, _Array]
    part_ends: _Array
    sources: tuple[str, ...]
    frontier: tuple[list[int], list[int], dict[str, _Array], bool] | None
    numbers: list[int]
    scheduling: dict[int, tuple[dict[str, _Array], dict[str, _Array], dict[str, float], dict[str, float | bool | None]]]


_STEP = ("step", "dur_ns", "usable", "note", "window", "waited_ns", "explained_ns", "once_ns")
_PATH = ("rank", "start_ns", "end_ns", "kind", "detail", "collective")
_PARTS = tuple(column.name for column in fields(PartColumns) if column.name not in ("stalls", "sources"))
_FRONTIER = ("dur_ns", "increment_ns", "leader", "late_ns", "communication_ns")
_SERIES = (
    "queued_ns", "loading_ns", "communicating_ns", "between_ns", "blocked_ns", "paused_ns", "frozen_ns", "meets",
)  # fmt: skip
_VALUES = ("runnable", "starved", "loader_active", "knows_blocked")


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
        _hash_columns(hashed, of_rank.steps)
    return hashed.digest()


def _hash_columns(hashed: blake2b, columns: Steps | Ragged) -> None:
    for column in fields(columns):
        values = getattr(columns, column.name)
        if isinstance(values, Ragged):
            _hash_columns(hashed, values)
        elif isinstance(values, np.ndarray) and values.dtype != np.object_:
            hashed.update(np.ascontiguousarray(values).tobytes())
        elif isinstance(values, tuple):
            hashed.update(repr(values).encode())


def packed(key: bytes, block: Block) -> bytes | None:
    """The block as bytes; None if it holds what is not kept: stalls of a device."""
    parts, owner = parts_of_steps(block.steps)
    if parts.stalls:
        return None
    paths = [step.path for step in block.steps]
    blames = [
        (at, blame.rank, blame.kind, blame.detail, blame.ns)
        for at, step in enumerate(block.steps)
        for blame in step.blames
    ]
    front = block.frontier
    kept = _Kept(
        steps=[tuple(getattr(step, name) for name in _STEP) for step in block.steps],
        path={name: _array(np.concatenate([getattr(path, name) for path in paths])) for name in _PATH},
        path_ends=_array(np.cumsum([len(path.kind) for path in paths])),
        path_keys=[list(path.keys) for path in paths],
        changes=[sorted(path.changes) for path in paths],
        blames=_array(np.array(blames, dtype=np.int64).reshape(-1, 5)),
        parts={name: _array(getattr(parts, name)) for name in _PARTS},
        part_ends=_array(np.searchsorted(owner, np.arange(len(block.steps)), side="right")),
        sources=parts.sources,
        frontier=None
        if front is None
        else (
            list(front.numbers),
            list(front.ranks),
            {name: _array(getattr(front, name)) for name in _FRONTIER},
            front.communication_known,
        ),
        numbers=list(block.scheduling.numbers),
        scheduling={
            rank: (
                {name: _array(getattr(of_rank, name)) for name in _SERIES},
                {name: _array(series) for name, series in of_rank.after_ns.items()},
                dict(of_rank.blocked_in),
                {name: getattr(of_rank, name) for name in _VALUES},
            )
            for rank, of_rank in block.scheduling.ranks.items()
        },
    )
    return key + bytes(isal_zlib.compress(msgspec.msgpack.encode(kept), 1))


def unpacked(key: bytes, data: bytes | None) -> Block | None:
    """The block that was kept under this key; None if another one was, or it is not whole."""
    if data is None or not data.startswith(key):
        return None
    try:
        content = zlib.decompressobj().decompress(data[len(key) :], BLOCKS.kept_bytes)
        return _block(msgspec.msgpack.decode(content, type=_Kept))
    except (zlib.error, msgspec.DecodeError, ValueError, KeyError, IndexError, TypeError):
        return None


def _block(kept: _Kept) -> Block:
    path: dict[str, Any] = {name: _read(array) for name, array in kept.path.items()}
    parts = PartColumns(**{name: _read(kept.parts[name]) for name in _PARTS}, stalls={}, sources=kept.sources)
    blames: list[list[Blame]] = [[] for _ in kept.steps]
    for at, rank, kind, detail, ns in _read(kept.blames).tolist():
        blames[at].append(Blame(rank, Kind(kind), Detail(detail), ns))
    path_edges, part_edges = (pairwise([0, *_read(ends).tolist()]) for ends in (kept.path_ends, kept.part_ends))
    steps = []
    for at, (values, pieces, rows) in enumerate(zip(kept.steps, path_edges, part_edges, strict=True)):
        of_step = {name: path[name][pieces[0] : pieces[1]] for name in _PATH}
        own_path = CriticalPath(**of_step, keys=tuple(kept.path_keys[at]), changes=frozenset(kept.changes[at]))
        of_step = dict(zip(_STEP, values, strict=True))
        steps.append(
            StepAccount(**of_step, parts=PartRows(parts, range(*rows)), path=own_path, blames=tuple(blames[at]))
        )
    front = None
    if kept.frontier is not None:
        numbers, ranks, arrays, known = kept.frontier
        columns: dict[str, Any] = {name: _read(arrays[name]) for name in _FRONTIER}
        front = Frontier(tuple(numbers), tuple(ranks), **columns, communication_known=known)
    scheduling = {}
    for rank, (series, after, blocked_in, single) in kept.scheduling.items():
        own: dict[str, Any] = {
            **{name: _read(series[name]) for name in _SERIES},
            **{name: single[name] for name in _VALUES},
        }
        scheduling[rank] = RankScheduling(
            **own, blocked_in=blocked_in, after_ns={name: _read(array) for name, array in after.items()}
        )
    return Block(tuple(steps), front, Scheduling(tuple(kept.numbers), scheduling))


def _array(values: npt.NDArray[Any]) -> _Array:
    return _Array(str(values.dtype), values.shape, np.ascontiguousarray(values).tobytes())


def _read(array: _Array) -> npt.NDArray[Any]:
    """ValueError where its bytes are not those of an array of this type and shape."""
    if array.type not in _TYPES:
        raise ValueError(array.type)
    return np.frombuffer(array.data, dtype=array.type).reshape(array.shape)
