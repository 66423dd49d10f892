"""A file of a run directory whose lines are in the order of their steps, read a few steps at a time: reading some steps
takes the time of these steps, however long the run is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from isal import isal_zlib
from msgspec import Struct

from diag.collectors.layout import MOST_NS, parts_of
from diag.collectors.policy import RECORDED_FILES
from diag.collectors.reading import open_regular, size_of
from diag.collectors.records import CollectiveLine
from diag.collectors.step_places import UnorderedError, line_after, lines_of
from diag.decoding import json_decoder
from diag.model import DAMAGED, Gap, HugeError
from diag.rundir.policy import BLOCKS

from .columns import RowsBuilder
from .lines import each_piece, pieces
from .tables import RecordedRows


class CollectiveLines(Struct, frozen=True):
    """The collectives of a rank. ``path``: of the stream, whose parts are read one after the other; ``run``: the run
    directory, which no link may lead out of."""

    path: Path
    run: Path

    @property
    def size_bytes(self) -> int:
        return stream_bytes(self.path)

    def of_steps(self, spans: Sequence[tuple[int, int]]) -> RecordedRows:
        """The rows of the steps from the first to before the second of each of the ``spans``, which do not overlap. The
        whole stream is read if lines of other steps lie between theirs."""
        reader = RowsReader()
        gaps: list[Gap] = []
        parts_there = parts_of(self.path)
        if parts_there[0] != self.path:  # its first line names the groups of those that were removed
            with suppress(OSError):
                reader.take_groups(_first_line(parts_there[0], self.run))
        try:
            for first, last in spans:
                for part in parts_there:
                    gaps += _take(part, self.run, first, last, reader.take)
        except UnorderedError:
            reader = RowsReader()

            def inside(lines: list[CollectiveLine]) -> None:
                reader.take([line for line in lines if any(first <= line.step < last for first, last in spans)])

            gaps = each_piece(self.path, CollectiveLine, inside, self.run, checks=True)
        if parts_of(self.path)[0] != parts_there[0]:
            gaps.append(
                Gap(str(self.path), "the oldest lines were removed while they were read: analyze the run again")
            )
        return reader.read(self.path, gaps)

    def digest(self, spans: Sequence[tuple[int, int]]) -> bytes | None:
        """A check sum of the lines of these steps, which shows changes and no forgery; None if they cannot be found."""
        checksum = size = 0
        try:
            for part in parts_of(self.path):
                with open_regular(part, self.run) as file:
                    for span in spans:
                        begin, end = lines_of(file, *span)
                        file.seek(begin)
                        for piece in pieces(file, end):
                            checksum, size = isal_zlib.crc32(piece, checksum), size + len(piece)
        except (OSError, UnorderedError):
            return None
        return f"{size:x}-{checksum:08x}".encode()

    @property
    def ordered(self) -> bool:
        """Whether the lines at some places, spread over the stream, are in the order of their steps."""
        steps: list[int | None] = []
        try:
            for part in parts_of(self.path):
                with open_regular(part, self.run) as file:
                    size = os.fstat(file.fileno()).st_size
                    places = [size * at // BLOCKS.compared_lines for at in range(BLOCKS.compared_lines)]
                    steps += [line_after(file, place, size)[1] for place in places]
        except FileNotFoundError:  # a part was removed meanwhile; the others are as ordered
            pass
        except (OSError, UnorderedError):
            return False
        known = [step for step in steps if step is not None]
        return known == sorted(known)


def stream_bytes(stream: Path) -> int:
    """The size of all parts of a stream that can be read."""
    return sum(map(size_of, parts_of(stream)))


def _first_line(part: Path, run: Path) -> list[CollectiveLine]:
    """The first line of a part; none if it cannot be read. Raises OSError."""
    with open_regular(part, run) as file:
        line = file.readline(RECORDED_FILES.line_bytes)
    try:
        return [json_decoder(CollectiveLine).decode(line)]
    except DAMAGED:
        return []


class RowsReader:
    """Makes columns of the lines of a collectives.jsonl, which come in parts."""

    def __init__(self) -> None:
        self._builder = RowsBuilder()
        self._groups: dict[str, list[int]] = {}
        self._dropped = 0

    def take(self, lines: list[CollectiveLine]) -> None:
        """HugeError for a number that does not fit: then none of the lines is taken."""
        named, dropped = [line.groups for line in lines if line.groups], [line.dropped for line in lines]
        of_groups = chain.from_iterable(ranks for groups in named for ranks in groups.values())
        if max(chain(of_groups, dropped), default=0) >= MOST_NS:
            raise HugeError
        self._builder.add_lines(lines)
        for groups in named:
            self._groups.update(groups)
        self._dropped += sum(dropped)

    def take_groups(self, lines: list[CollectiveLine]) -> None:
        """Without the rows of the lines."""
        for line in lines:
            self._groups.update(line.groups)

    def read(self, path: Path, gaps: Sequence[Gap]) -> RecordedRows:
        """All rows that were taken. ``gaps``: of the parts."""
        return RecordedRows(self._builder.built(), self._groups, self._dropped, str(path), tuple(gaps))


def _take(path: Path, run: Path, first: int, last: int, take: Callable[[list[CollectiveLine]], object]) -> list[Gap]:
    def checked(lines: list[CollectiveLine]) -> None:
        steps = [line.step for line in lines] or [first]
        if min(steps) < first or max(steps) >= last:
            raise UnorderedError
        take(lines)

    try:
        with open_regular(path, run) as file:
            begin, end = lines_of(file, first, last)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [Gap(str(path), f"cannot be read: {error.strerror}")]
    return each_piece(path, CollectiveLine, checked, run, (begin, end), checks=True) if begin < end else []
