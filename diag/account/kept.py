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
from isal import isal_zlib
from msgspec import Struct

from diag.model.parts import PartColumns, PartRows, parts_of_steps
from diag.model.steps import Attribution, Blames, CriticalPath, MatchedCollective, StepAccount, blames_of_steps
from diag.rundir.columns import Ragged, Rows, Steps
from diag.rundir.policy import BLOCKS
from diag.rundir.tables import Tables, axes_of

from .cached_steps import code
from .frontier import Frontier
from .kept_steps import Array, KeptSteps, check_places, keep, steps_from
from .scheduling import RankScheduling, Scheduling


class Block(Struct, frozen=True):
    """``account``: of some steps, with the pieces, calls and collectives of those that are kept in detail.
    ``frontier`` and ``scheduling``: of the steps that count. By rank, ``rows``: of the steps that are kept in detail;
    ``groups``: that the first steps of the run do not name."""

    account: Attribution
    frontier: Frontier | None
    scheduling: Scheduling
    rows: Mapping[int, Rows]
    groups: Mapping[int, Mapping[str, list[int]]]


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
    steps: list[tuple[int, int, bool, str, bool, int, int, int]]
    path: dict[str, Array]
    path_ends: Array
    path_keys: list[list[tuple[str, int, str]]]
    changes: list[list[tuple[str, int, str]]]
    blames: dict[str, Array]
    blame_ends: Array
    parts: dict[str, Array]
    part_ends: Array
    sources: tuple[str, ...]
    frontier: tuple[list[int], list[int], dict[str, Array], bool] | None
    numbers: list[int]
    detailed: frozenset[int]
    detail: KeptSteps
    collectives: tuple[MatchedCollective, ...]
    rows: dict[int, _KeptRows]
    scheduling: dict[int, tuple[dict[str, Array], dict[str, Array], dict[str, float], dict[str, float | bool | None]]]


_STEP = ("step", "dur_ns", "usable", "note", "window", "waited_ns", "explained_ns", "once_ns")
_BLAMES = ("rank", "kind", "detail", "ns")
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
    accounts = block.account.steps
    parts, owner = parts_of_steps(accounts)
    if parts.stalls:
        return None
    paths = [step.path for step in accounts]
    blames, of_blame = blames_of_steps(accounts)
    front = block.frontier
    kept = _Kept(
        of_run=_OfRun(**{name: getattr(block.account, name) for name in _OfRun.__struct_fields__}),
        steps=[tuple(getattr(step, name) for name in _STEP) for step in accounts],
        path={name: Array.of(np.concatenate([getattr(path, name) for path in paths])) for name in _PATH},
        path_ends=Array.of(np.cumsum([len(path.kind) for path in paths])),
        path_keys=[list(path.keys) for path in paths],
        changes=[sorted(path.changes) for path in paths],
        blames={name: Array.of(getattr(blames, name)) for name in _BLAMES},
        blame_ends=Array.of(np.searchsorted(of_blame, np.arange(len(accounts)), side="right")),
        parts={name: Array.of(getattr(parts, name)) for name in _PARTS},
        part_ends=Array.of(np.searchsorted(owner, np.arange(len(accounts)), side="right")),
        sources=parts.sources,
        frontier=None
        if front is None
        else (
            list(front.numbers),
            list(front.ranks),
            {name: Array.of(getattr(front, name)) for name in _FRONTIER},
            front.communication_known,
        ),
        numbers=list(block.scheduling.numbers),
        detailed=block.account.detailed or frozenset(),
        detail=keep(block.account.rank_steps),
        collectives=block.account.collectives,
        rows={
            rank: _KeptRows(
                {name: Array.of(getattr(rows, name)) for name in Rows.columns()}, rows.names, dict(block.groups[rank])
            )
            for rank, rows in block.rows.items()
        },
        scheduling={
            rank: (
                {name: Array.of(getattr(of_rank, name)) for name in _SERIES},
                {name: Array.of(series) for name, series in of_rank.after_ns.items()},
                dict(of_rank.blocked_in),
                {name: getattr(of_rank, name) for name in _VALUES},
            )
            for rank, of_rank in block.scheduling.ranks.items()
        },
    )
    return key + bytes(isal_zlib.compress(msgspec.msgpack.encode(kept), 1))


def unpacked(key: bytes, data: bytes | None, detailed: Sequence[int]) -> Block | None:
    """The block that was kept under this key, with these steps in detail; None if another one was, or it is not
    whole, or has not all of these steps in detail."""
    if data is None or not data.startswith(key):
        return None
    try:
        content = zlib.decompressobj().decompress(data[len(key) :], BLOCKS.kept_bytes)
        kept = msgspec.msgpack.decode(content, type=_Kept)
        return _block(kept, frozenset(detailed)) if kept.detailed >= set(detailed) else None
    except (zlib.error, msgspec.DecodeError, ValueError, KeyError, IndexError, TypeError):
        return None


def _block(kept: _Kept, detailed: frozenset[int]) -> Block:
    path: dict[str, Any] = {name: array.read() for name, array in kept.path.items()}
    parts = PartColumns(**{name: kept.parts[name].read() for name in _PARTS}, stalls={}, sources=kept.sources)
    blames = Blames(*(kept.blames[name].read() for name in _BLAMES))
    path_edges, part_edges, blame_edges = (
        pairwise([0, *ends.read().tolist()]) for ends in (kept.path_ends, kept.part_ends, kept.blame_ends)
    )
    steps = []
    for at, (values, pieces, rows, blamed) in enumerate(
        zip(kept.steps, path_edges, part_edges, blame_edges, strict=True)
    ):
        of_step = {name: path[name][pieces[0] : pieces[1]] for name in _PATH}
        own_path = CriticalPath(**of_step, keys=tuple(kept.path_keys[at]), changes=frozenset(kept.changes[at]))
        of_step = dict(zip(_STEP, values, strict=True))
        steps.append(
            StepAccount(**of_step, parts=PartRows(parts, range(*rows)), path=own_path, blames=blames[slice(*blamed)])
        )
    front = None
    if kept.frontier is not None:
        numbers, ranks, arrays, known = kept.frontier
        columns: dict[str, Any] = {name: arrays[name].read() for name in _FRONTIER}
        front = Frontier(tuple(numbers), tuple(ranks), **columns, communication_known=known)
    scheduling = {}
    for rank, (series, after, blocked_in, single) in kept.scheduling.items():
        own: dict[str, Any] = {
            **{name: series[name].read() for name in _SERIES},
            **{name: single[name] for name in _VALUES},
        }
        scheduling[rank] = RankScheduling(
            **own, blocked_in=blocked_in, after_ns={name: array.read() for name, array in after.items()}
        )
    account = Attribution(
        **msgspec.structs.asdict(kept.of_run),
        steps=tuple(steps),
        rank_steps=tuple(step for step in steps_from(kept.detail) if step.step in detailed),
        collectives=tuple(met for met in kept.collectives if met.step in detailed),
        detailed=detailed,
    )
    return Block(
        account,
        front,
        Scheduling(tuple(kept.numbers), scheduling),
        rows={rank: of_rank.read(list(detailed)) for rank, of_rank in kept.rows.items()},
        groups={rank: of_rank.groups for rank, of_rank in kept.rows.items()},
    )
