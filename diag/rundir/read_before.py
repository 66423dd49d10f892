"""The steps of a long run that were read before, kept as columns beside it: a run that has grown costs its new lines.

A stream of steps only grows at its end. What was read of it is kept with the length and a check sum of these bytes. If
they are others now, the stream is read from its begin. A stream with lines that were left out is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from isal import isal_zlib

from diag.collectors import records
from diag.collectors.layout import RankLayout, numbered_parts
from diag.collectors.reading import open_regular, size_of
from diag.collectors.records import HeldRecord, StepRecord
from diag.decoding import msgpack_decoder
from diag.model import Gap, HugeError
from diag.model.ragged import edges_of
from diag.rundir.policy import BLOCKS
from diag.traces.shelf import hash_of_sources

from . import columns
from .arrays import Array, check_places, edges_in
from .columns import NO_STEPS, Ragged, Steps, StepsBuilder
from .lines import each_piece, pieces
from .tables import Store


class _Part(msgspec.Struct, array_like=True):
    """How much of a part of the stream was read, and a check sum of it."""

    number: int
    size: int
    checksum: int


class _Kept(msgspec.Struct, array_like=True):
    code: str
    parts: list[_Part]
    columns: dict[str, Array]
    held: dict[int, HeldRecord]  # by place
    names: tuple[str, ...]


def read_steps_of(ranks: Mapping[int, RankLayout], store: Store | None) -> dict[int, tuple[Steps, list[Gap]]]:
    """``read_steps`` of each rank. What is not kept is made into columns for many ranks together, of which the steps of
    a rank are views: of few steps, a column costs mostly the calls that make it."""
    if store is not None:
        return {rank: read_steps(files, store) for rank, files in ranks.items()}
    together = _Together()
    gaps = {rank: each_piece(files.steps, StepRecord, together.taker(rank), files.run) for rank, files in ranks.items()}
    steps = together.built()
    return {
        rank: (steps[rank], gaps[rank]) if rank in steps else read_steps(files, None) for rank, files in ranks.items()
    }


class _Together:
    """The steps of several ranks, which come one rank after the other."""

    def __init__(self) -> None:
        self._builder = StepsBuilder()
        self._taken: list[StepRecord] = []
        self._of: dict[int, int] = {}  # how many of those taken are of each rank
        self._counts: dict[int, int] = {}
        self._huge: set[int] = set()

    def taker(self, rank: int) -> Callable[[list[StepRecord]], None]:
        self._counts[rank] = 0

        def take(records: list[StepRecord]) -> None:
            self._taken += records
            self._of[rank] = self._of.get(rank, 0) + len(records)
            if len(self._taken) >= BLOCKS.steps_at_once:
                self._add()

        return take

    def _add(self) -> None:
        try:
            self._builder.add(self._taken)
        except HugeError:
            self._huge |= self._of.keys()
        else:
            for rank, count in self._of.items():
                self._counts[rank] += count
        self._taken, self._of = [], {}

    def built(self) -> dict[int, Steps]:
        """Without the ranks that have a number which does not fit, and those next to them."""
        self._add()
        steps = self._builder.built()
        edges = pairwise(edges_of(list(self._counts.values())).tolist())
        return {
            rank: steps[first:last]
            for rank, (first, last) in zip(self._counts, edges, strict=True)
            if rank not in self._huge
        }


def read_steps(files: RankLayout, store: Store | None) -> tuple[Steps, list[Gap]]:
    """The steps of a rank, in the order of its file, and gaps for what cannot be read. ``store``: of a long run."""
    there = numbered_parts(files.steps) if store is not None else []
    if store is None or not there:
        builder = StepsBuilder()
        gaps = each_piece(files.steps, StepRecord, builder.add, files.run, checks=True)
        return builder.built(), gaps
    name = f"steps-{files.folder.name}"
    parts, before = _before(store.load(name), files.run, there)
    begins, sizes = {part.number: part.size for part in parts}, dict[int, int]()
    builder, gaps = StepsBuilder(before), []
    for number, path in there:
        begin, sizes[number] = begins.get(number, 0), size_of(path)
        if sizes[number] != begin:
            gaps += each_piece(path, StepRecord, builder.add, files.run, (begin, sizes[number]), checks=True)
    steps = builder.built()
    new = sum(sizes.values()) - sum(begins.values())
    if not gaps and new >= BLOCKS.new_share_of_steps * sum(sizes.values()):
        summed = [_Part(number, sizes[number], _checksum(path, files.run, sizes[number])) for number, path in there]
        if all(part.checksum >= 0 for part in summed):
            store.save(name, msgspec.msgpack.encode(_packed(steps, summed)))
    return steps, gaps


def _before(data: bytes | None, run: Path, there: Sequence[tuple[int, Path]]) -> tuple[list[_Part], Steps | None]:
    """What was kept, if the parts of the stream still begin with it; else nothing."""
    try:
        kept = msgpack_decoder(_Kept).decode(data or b"")
        paths = dict(there[: len(kept.parts)])
        if kept.code != _code() or [part.number for part in kept.parts] != list(paths):
            return [], None
        for part in kept.parts:
            whole = part is kept.parts[-1] or size_of(paths[part.number]) == part.size
            if not whole or _checksum(paths[part.number], run, part.size) != part.checksum:
                return [], None
        return kept.parts, _unpacked(kept)
    except (msgspec.DecodeError, ValueError, KeyError, IndexError):
        return [], None


def _checksum(path: Path, run: Path, size: int) -> int:
    """CRC-32 of the first bytes of a file; -1 if it has fewer, or a line does not end there."""
    checksum = read = 0
    ends = True
    try:
        with open_regular(path, run) as file:
            for piece in pieces(file, size):
                checksum, read = isal_zlib.crc32(piece, checksum), read + len(piece)
                ends = piece.endswith(b"\n")
    except OSError:
        return -1
    return checksum if read == size and ends else -1


def _packed(steps: Steps, parts: list[_Part]) -> _Kept:
    arrays = dict[str, Array]()
    for name in Steps.columns():
        column = getattr(steps, name)
        if isinstance(column, Ragged):
            arrays |= {f"{name}.{each}": Array.of(getattr(column, each)) for each in Ragged.__slots__}
        elif name != "held":
            arrays[name] = Array.of(column)
    held = {place: of_step for place, of_step in enumerate(steps.held.tolist()) if of_step is not None}
    return _Kept(_code(), parts, arrays, held, steps.names)


def _unpacked(kept: _Kept) -> Steps:
    """ValueError or KeyError if the arrays do not fit together."""
    count = len(kept.columns["step"].read())
    made: dict[str, Any] = {}
    for name in Steps.columns():
        empty = getattr(NO_STEPS, name)
        if isinstance(empty, Ragged):
            own = {each: _like(getattr(empty, each), kept.columns[f"{name}.{each}"]) for each in Ragged.__slots__}
            own["first"] = edges_in(kept.columns[f"{name}.first"], count, len(own["name"]))
            check_places(own["name"], len(kept.names))
            if len({len(own[each]) for each in ("name", "left", "right")}) > 1:
                raise ValueError("columns of different lengths")
            made[name] = Ragged(**own)
        elif name != "held":
            made[name] = _like(empty, kept.columns[name])
            if len(made[name]) != count:
                raise ValueError("columns of different lengths")
    check_places(made["window"], len(kept.names))
    made["held"] = np.empty(count, dtype=np.object_)
    for place, of_step in kept.held.items():
        made["held"][place] = of_step
    return Steps(**made, names=kept.names)


def _like(empty: Any, kept: Array) -> Any:
    """The array. ValueError if it has another type or width than this one without rows."""
    column = kept.read(str(empty.dtype))
    if column.shape[1:] != empty.shape[1:]:
        raise ValueError(column.shape)
    return column


@cache
def _code() -> str:
    """Stands for the code that makes these columns."""
    return hash_of_sources(*(Path(module.__file__ or "") for module in (columns, records)), Path(__file__))
