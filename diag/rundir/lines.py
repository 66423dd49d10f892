"""Reads each file of a run directory into its own type, tolerating what a crash leaves behind.

A missing file is None, or no records; one that cannot be read, or is damaged, is a ``Gap`` that says why.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from diag.collectors.layout import MOST_NS, MOST_RANKS, RankLayout, RunLayout, run_of
from diag.collectors.reading import (
    ANSWER_BYTES,
    DOCUMENT_BYTES,
    LINE_BYTES,
    LINES_BYTES,
    open_regular,
    read_regular,
    read_tail,
    too_large,
)
from diag.collectors.records import Asked, Heartbeat, Manifest, RankExit, RankRecord, TraceAsked
from diag.model import DAMAGED, Gap

# -- tail --------------------------------------------------------------------------------------------------------------
#
# The lines that a file has got since it was last read.

T = TypeVar("T")


class RestartedError(Exception):
    """The file is another one, or shorter than what was read of it: another process writes it anew."""


class Tail(Generic[T]):
    """Records of a .jsonl file that grows, each given once. A line is read when its end is there. ``most``: bytes from
    the end that are read of a file that is larger when it is first read; 0 reads all of it."""

    def __init__(self, path: Path, kind: type[T], most: int = 0) -> None:
        self.path = path
        self._most = most
        self.unreadable = 0
        self.refusal = ""  # why it could not be read the last time
        self._read = 0  # bytes
        self._file: int | None = None  # inode
        self._decode = msgspec.json.Decoder(kind).decode

    @property
    def exists(self) -> bool:
        """Whether there was a file when it was last read."""
        return self._file is not None

    def read(self) -> list[T]:
        """What is new. RestartedError where the file is another one by now."""
        found: list[T] = []
        try:
            about = self.path.stat()
            if about.st_size < self._read or self._file not in (None, about.st_ino):
                raise RestartedError
            self.refusal = ""
            if about.st_size == self._read and stat.S_ISREG(about.st_mode):
                self._file = about.st_ino
                return []
            with open_regular(self.path, run_of(self.path)) as file:
                if self._file is None and self._most and about.st_size > self._most:
                    file.seek(about.st_size - self._most)
                    file.readline(LINE_BYTES)  # the rest of a line
                    self._read = file.tell()
                self._file = about.st_ino
                file.seek(self._read)
                for line in iter(partial(file.readline, LINE_BYTES), b""):
                    if not line.endswith(b"\n"):  # it is being written
                        if len(line) == LINE_BYTES:
                            self.refusal = too_large(LINE_BYTES)
                        break
                    self._read += len(line)
                    if line.strip():
                        self._take(line, found)
        except FileNotFoundError:  # not there yet
            pass
        except OSError as error:  # no regular file, no permission, or a file system that fails just now
            self.refusal = str(error.strerror or error)
        return found

    def _take(self, line: bytes, found: list[T]) -> None:
        try:
            found.append(self._decode(line))
        except DAMAGED:
            self.unreadable += 1


# A number that would not fit 64 bits where a few of its kind are added up: MOST_NS or more. A text only looks like it
# where it holds such numbers between brackets or commas.
_HUGE = re.compile(rb"[\[:,]\s*-?((?:\d{20,}|[3-9]\d{18})|\d+(?:\.\d*)?[eE]\+?(?:\d{3,}|19|[2-9]\d))\s*[\],}.]")

# Digits as 0 and exponents as e: what is looked for in a text before the pattern is, which takes five times as long as
# decoding the text.
_SHAPE = bytes.maketrans(b"123456789E", b"000000000e")
_HUGE_SHAPES = (b"0" * 19, b"0e", b".e")


def _huge(text: bytes) -> re.Match[bytes] | None:
    """The first number that would not fit, if there is one."""
    shape = text.translate(_SHAPE)
    return _HUGE.search(text) if any(one in shape for one in _HUGE_SHAPES) else None


def read_lines(path: Path, kind: type[T], run: Path | None = None) -> tuple[list[T], list[Gap]]:
    """The records of a .jsonl file of the run directory ``run`` (by default the one that its path names), and what of
    it could not be read. A missing file has none of either.

    A process that was killed while it wrote leaves one cut line at the end; the rest is as good as ever.
    """
    records: list[T] = []
    return records, each_line(path, kind, records.append, run)


def each_line(path: Path, kind: type[T], take: Callable[[T], object], run: Path | None = None) -> list[Gap]:
    """As ``read_lines``, one record after the other, for files that hold more than fits the memory."""
    try:
        with open_regular(path, run or run_of(path)) as file:
            if os.fstat(file.fileno()).st_size > LINES_BYTES:
                return [Gap(str(path), f"cannot be read: {too_large(LINES_BYTES)}")]
            return _take_records(path, iter(partial(file.readline, LINE_BYTES), b""), kind, take)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [Gap(str(path), f"cannot be read: {error.strerror}")]


def _take_records(path: Path, lines: Iterator[bytes], kind: type[T], take: Callable[[T], object]) -> list[Gap]:
    decode = msgspec.json.Decoder(kind).decode
    gaps: list[Gap] = []
    bad = good = 0
    for line in lines:
        if not line.endswith(b"\n"):
            if len(line) == LINE_BYTES:
                reason = f"a line is longer than {LINE_BYTES >> 20} MiB; it and what follows were left out"
            else:
                reason = "the last line is cut off (a kill, or a full disk); left out"
            gaps.append(Gap(str(path), reason))
            break
        if not line.strip():
            continue
        try:
            record = None if _huge(line) else decode(line)
        except DAMAGED:
            record = None
        if record is None:
            bad += 1
        else:
            good += 1
            take(record)
    if bad:
        reason = f"{bad} of {bad + good} lines are not what a collector writes; left out"
        gaps.insert(0, Gap(str(path), reason))
    return gaps


def read_record(
    path: Path, kind: type[T], run: Path | None = None, most: int = DOCUMENT_BYTES
) -> tuple[T | None, Gap | None]:
    """The one record of a .json file of the run directory ``run`` (by default the one that its path names)."""
    try:
        content = read_regular(path, most, run or run_of(path))
        if huge := _huge(content):
            number = huge[1].decode()[:25]
            return None, Gap(str(path), f"is damaged (the number {number} is not below {MOST_NS:.0e}); left out")
        record = msgspec.json.decode(content, type=kind)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, Gap(str(path), f"cannot be read: {error.strerror}")
    except DAMAGED as error:
        return None, Gap(str(path), f"is damaged ({error}); left out")
    for name in ("rank", "world_size"):
        ranks = getattr(record, name, None)
        if isinstance(ranks, int) and not 0 <= ranks <= MOST_RANKS:
            why = f"{name} {ranks:,} is not within 0 and {MOST_RANKS:,}"
            return None, Gap(str(path), f"is damaged ({why}); left out")
    return record, None


# -- the files of a run ------------------------------------------------------------------------------------------------


def read_manifest(layout: RunLayout) -> tuple[Manifest | None, Gap | None]:
    return read_record(layout.manifest, Manifest, layout.root)


def read_identity(files: RankLayout) -> tuple[RankRecord | None, Gap | None]:
    return read_record(files.identity, RankRecord, files.run)


def read_heartbeat(files: RankLayout) -> tuple[Heartbeat | None, Gap | None]:
    return read_record(files.heartbeat, Heartbeat, files.run)


def read_asked(layout: RunLayout) -> tuple[Asked | None, Gap | None]:
    return read_record(layout.asked, Asked, layout.root)


def read_trace_asked(layout: RunLayout) -> tuple[TraceAsked | None, Gap | None]:
    return read_record(layout.trace_asked, TraceAsked, layout.root)


def read_exits(layout: RunLayout) -> tuple[dict[int, RankExit], Gap | None]:
    """How processes ended, by rank."""
    exits, gap = read_record(layout.exits, list[RankExit], layout.root)
    return {one.rank: one for one in exits or ()}, gap


class Culprit(msgspec.Struct):
    ranks: tuple[int, ...]
    hosts: tuple[str, ...] = ()


class Judged(msgspec.Struct):
    """The verdict as ``diag analyze`` writes it."""

    bottleneck: str
    severity: str
    cause: str
    share: float
    confidence: float
    headline: str = ""
    culprit: Culprit | None = None


class Answer(msgspec.Struct):
    """verdict.json: what the last analysis left. ``steps`` is decoded by who wants it: a row for each step and rank."""

    verdict: Judged
    steps: msgspec.Raw = msgspec.Raw(b"[]")


def read_answer(path: Path) -> tuple[Answer | None, Gap | None]:
    return read_record(path, Answer, path.parent, ANSWER_BYTES)


# A collector writes a heartbeat a second, whatever the training does.
SILENT_S = 30.0
_TAIL_BYTES = 1 << 16
_LAST_STEPS = 20


class LastStep(msgspec.Struct):
    """The part of a step record that shows how fast a run is."""

    step: int
    begin_ns: int
    end_ns: int


def last_steps(file: Path) -> list[LastStep]:
    """The last twenty of a steps.jsonl, read from its end; none where it cannot be read."""
    return read_last_lines(file, LastStep, _TAIL_BYTES)[0][-_LAST_STEPS:]


def read_last_lines(file: Path, kind: type[T], most: int) -> tuple[list[T], Gap | None]:
    """The records in the last ``most`` bytes of a .jsonl file. The first line of them is half a line, and the last one
    may be: what does not decode is left out."""
    try:
        tail = read_tail(file, most, run_of(file))[0]
    except FileNotFoundError:
        return [], None
    except OSError as error:
        return [], Gap(str(file), f"cannot be read: {error.strerror}")
    decode = msgspec.json.Decoder(kind).decode
    records = []
    for line in tail.split(b"\n"):
        try:
            records.append(decode(line))
        except DAMAGED:
            continue
    return records, None
