"""Finds NCCL RAS reports in files, in standard input and in what was just asked for."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from tempfile import SpooledTemporaryFile
from types import SimpleNamespace
from typing import IO, TextIO, cast

from diag.collectors.layout import is_regular

from ..text.gaps import Gaps as Unsaid
from ..text.inputs import STDIN
from ..text.streams import pieces_of
from .client import MOST_BYTES, Asked
from .report import MOST_REPORTS, Gaps, Report, json_reports
from .text import MARKS, text_reports

ANCHORS = (*MARKS, '"communicators_count"')  # a file with one of these is read a second time
_MOST_MEMBERS = 500_000  # ranks in all communicators of all reports
_TOO_LARGE = f"NCCL RAS reports in JSON of more than {MOST_BYTES >> 20} MiB are not read: split the file"
_PIPE = "may hold an NCCL RAS report, and a pipe cannot be read twice: give it as - (standard input)"

# What `nc` shows of the protocol may stand before it.
_JSON_HEAD = re.compile(
    rb'(?:\xef\xbb\xbf)?\s{0,99}(?:(?:SERVER PROTOCOL \d{1,9}|OK)\s{1,99}){0,8}\{[^{}]{0,4000}"communicators'
)


@dataclass(frozen=True)
class Reports:
    """In the order in which they were made, as far as that is known."""

    reports: tuple[Report, ...] = ()
    gaps: tuple[tuple[str, str], ...] = ()
    json_paths: frozenset[str] = frozenset()  # files that hold nothing but reports in JSON


def read_reports(
    paths: Iterable[str],
    asked: Sequence[Asked] = (),
    from_stdin: IO[bytes] | None = None,
    given: Collection[str] = (),
) -> Reports:
    """The reports in these files, which hold one of ``ANCHORS``, in what was fetched, and in standard input. ``given``:
    the paths that the user named."""
    gaps: Gaps = {}
    found: list[Report] = []
    json_paths = set()
    members = 0
    for one in asked:
        found += _reports_of(one.name, [one.data], gaps)
    for path in dict.fromkeys(paths):
        before = len(found)
        if members > _MOST_MEMBERS:
            gaps[path, f"NCCL RAS reports beyond the first {_MOST_MEMBERS:,} ranks are not read"] = None
            continue
        if path == STDIN:
            if from_stdin is not None:
                from_stdin.seek(0)
                with _standard_input(from_stdin):
                    found += _reports_of(path, pieces_of(path, Unsaid()), gaps)
        elif is_regular(path):
            found += _reports_of(path, pieces_of(path, Unsaid(), given=path in given), gaps)
        else:  # a pipe: what it held has been read, and a named one would wait for ever
            gaps[path, _PIPE] = None
        members += sum(len(comm.members) for report in found[before:] for comm in report.comms.values())
        if len(found) > before and all(report.json for report in found[before:]):
            json_paths.add(path)
    return Reports(_in_order(_bounded(found, gaps)), tuple(gaps), frozenset(json_paths))


@contextmanager
def overheard(wanted: bool) -> Iterator[IO[bytes] | None]:
    """What is read from standard input meanwhile, a second time: a pipe cannot be read again. None unless wanted."""
    if not wanted:
        yield None
        return
    with SpooledTemporaryFile(8 << 20) as copy:
        source = sys.stdin.buffer

        def read(size: int = -1) -> bytes:
            data = source.read(size)
            if copy.tell() < MOST_BYTES:
                copy.write(data)
            return data

        with _standard_input(SimpleNamespace(read=read)):
            yield cast(IO[bytes], copy)


@contextmanager
def _standard_input(buffer: object) -> Iterator[None]:
    before = sys.stdin
    sys.stdin = cast(TextIO, SimpleNamespace(buffer=buffer))
    try:
        yield
    finally:
        sys.stdin = before


def _reports_of(path: str, pieces: Iterable[bytes], gaps: Gaps) -> list[Report]:
    """Those of one file, JSON or text by what it begins with."""
    pieces = iter(pieces)
    head = next(pieces, b"")
    if _JSON_HEAD.match(head[: 16 << 10]):
        return json_reports(path, _joined(head, pieces, path, gaps), gaps)
    return text_reports(path, (piece for some in ([head], pieces) for piece in some), gaps)


def _in_order(found: list[Report]) -> tuple[Report, ...]:
    if all(report.time_ns is not None for report in found):
        found = sorted(found, key=lambda report: report.time_ns or 0)
    return tuple(found)


def _bounded(found: list[Report], gaps: Gaps) -> list[Report]:
    if len(found) > MOST_REPORTS:
        gaps["", f"of {len(found):,} NCCL RAS reports the last {MOST_REPORTS:,} are used"] = None
    return found[-MOST_REPORTS:]


def _joined(head: bytes, pieces: Iterator[bytes], path: str, gaps: Gaps) -> bytes:
    data = BytesIO()
    data.write(head)
    for piece in pieces:
        if data.tell() > MOST_BYTES:
            gaps[path, _TOO_LARGE] = None
            return b""
        data.write(piece)
    return data.getvalue()
