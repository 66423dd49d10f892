"""Some lines of streams that may be long, of very many ranks: where they are is looked for, and no other line is
read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from msgspec import Struct

from diag.collectors.layout import numbered_parts
from diag.collectors.reading import open_regular
from diag.decoding import json_decoder
from diag.model import DAMAGED
from diag.rundir.policy import RUN_READING

T = TypeVar("T")


class _Numbered(Struct):
    first: int


class LinesBetween(Generic[T]):
    """Lines that begin with the steps from ``first`` to ``last``, and the one before them, which may hold the first of
    these. Lines are in the order of their steps. One that cannot be read is left out."""

    def __init__(self, kind: type[T], first: int, last: int, run: Path) -> None:
        self._decode = json_decoder(kind).decode
        self._first, self._last, self._run = first, last, run
        self._near: dict[tuple[int, int], float] = {}  # ranks write alike: where the last one had it, in its file

    def of(self, stream: Path) -> list[T]:
        """Those of one rank."""
        found: list[T] = []
        for number, part in reversed(numbered_parts(stream)):  # the newest first
            try:
                with open_regular(part, self._run, buffering=0) as file:
                    lines, is_before = self._of_part(file, number)
            except OSError:  # it was removed meanwhile, for example
                continue
            found[:0] = lines
            if is_before:
                break
        return found

    def _of_part(self, file: BinaryIO, part: int) -> tuple[list[T], bool]:
        """Its lines, and whether it begins before them, so that no older part has any."""
        size, head = os.fstat(file.fileno()).st_size, _first_of(file, 0, at_line=True)
        if head is not None and head > self._last:
            return [], False
        begin, _ = self._place(file, size, self._first, (part, 0))
        _, end = self._place(file, size, self._last, (part, 1), begin)
        found = []
        for row in _lines(file, begin, end, size):
            try:
                found.append(self._decode(row))
            except DAMAGED:
                continue
        return found, head is not None and head <= self._first

    def _place(self, file: BinaryIO, size: int, step: int, key: tuple[int, int], low: int = 0) -> tuple[int, int]:
        """Two places near each other: the first whole line after the one has this step or one before it, or it is where
        the search began; the one after the other has a later step, or it is the end."""
        margin, high = RUN_READING.probe_bytes, size
        if (near := self._near.get(key)) is not None:
            for place in (int(near * size) - margin, int(near * size) + margin):
                if low < place < high:
                    low, high = (place, high) if _is_before(file, place, step) else (low, place)
        while high - low > 2 * margin:
            place = (low + high) // 2
            low, high = (place, high) if _is_before(file, place, step) else (low, place)
        self._near[key] = (low + high) / 2 / max(1, size)
        return low, high


def _is_before(file: BinaryIO, place: int, step: int) -> bool:
    """Whether the first whole line after this place begins with this step or one before it."""
    first = _first_of(file, place)
    return first is not None and first <= step


def _first_of(file: BinaryIO, place: int, at_line: bool = False) -> int | None:
    """The step with which the first whole line after this place begins; None if there is none, or it is damaged."""
    data = os.pread(file.fileno(), RUN_READING.probe_bytes, place)
    begin = 0 if at_line else data.find(b"\n") + 1
    end = data.find(b"\n", begin)
    while end < 0 and (more := os.pread(file.fileno(), RUN_READING.probe_bytes, place + len(data))):
        if len(data) > RUN_READING.piece_bytes:
            return None
        data += more
        begin = begin or (0 if at_line else data.find(b"\n") + 1)
        end = data.find(b"\n", begin) if begin or at_line else -1
    try:
        return json_decoder(_Numbered).decode(data[begin:end]).first if end >= 0 else None
    except DAMAGED:
        return None


def _lines(file: BinaryIO, begin: int, end: int, size: int) -> list[bytes]:
    """The whole lines after a place, to the end of the one in which ``end`` lies."""
    data = os.pread(file.fileno(), end - begin, begin)
    while begin + len(data) < size and data.find(b"\n", end - begin) < 0:
        more = os.pread(file.fileno(), RUN_READING.probe_bytes, begin + len(data))
        if not more:
            break
        data += more
    rows = data.split(b"\n")[:-1]  # after the last newline: nothing, or a line that is not whole
    return rows[1:] if begin else rows
