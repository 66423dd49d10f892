"""Reads each file of a run directory into its own type, tolerating incomplete files after a crash.

A missing file is None, or no records; one that cannot be read, or is damaged, is a ``Gap`` with the reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from diag.collectors.layout import (
    MOST_NS,
    MOST_RANKS,
    RUN_SCHEMA,
    RankLayout,
    RunLayout,
    numbered_parts,
    parts_of,
    run_of,
)
from diag.collectors.masking import masked, without_secrets
from diag.collectors.policy import RECORDED_FILES
from diag.collectors.reading import open_regular, read_regular, read_tail, too_large
from diag.collectors.records import SHARED, Asked, Heartbeat, Manifest, RankExit, RankRecord, TraceAsked
from diag.decoding import json_decoder
from diag.errors import DiagError
from diag.model import DAMAGED, Doubt, Gap, HugeError
from diag.rundir.policy import RUN_READING

from .garbage import without_collections

T = TypeVar("T")

# A number for which sums of a few would not fit into 64 bits: MOST_NS or more. A string only matches if it contains
# such numbers between brackets or commas.
_HUGE = re.compile(rb"[\[:,]\s*-?((?:\d{20,}|[3-9]\d{18})|\d+(?:\.\d*)?[eE]\+?(?:\d{3,}|19|[2-9]\d))\s*[\],}.]")

# Digits as 0 and exponents as e: the text is searched for these shapes first, because the pattern takes five times as
# long as decoding the text.
_SHAPE = bytes.maketrans(b"123456789E", b"000000000e")
_EXPONENT, _LONG = b"0e", b"0" * 19


def _huge(text: bytes) -> re.Match[bytes] | None:
    """The first number that would not fit, if there is one."""
    shape = text.translate(_SHAPE)
    at = shape.find(_LONG)
    while at >= 0 and text[at] in b"12" and shape[at + 19 : at + 20] != b"0":  # a time of today
        at = shape.find(_LONG, at + 19)
    return _HUGE.search(text) if at >= 0 or _EXPONENT in shape else None


def decoder(kind: type[T]) -> Callable[[bytes], T | None]:
    """A function that decodes a line; None where it is damaged or holds a number that would not fit."""
    decode = json_decoder(kind).decode

    def decoded(line: bytes) -> T | None:
        try:
            return None if _huge(line) else decode(line)
        except DAMAGED:
            return None

    return decoded


def read_lines(path: Path, kind: type[T], run: Path | None = None) -> tuple[list[T], list[Gap]]:
    """The records of a stream of the run directory ``run`` (by default the one in its path), from all of its parts,
    and gaps for the unreadable parts. A missing file has neither.

    A process that was killed while it wrote leaves one truncated line at the end, which does not affect the rest.
    """
    records: list[T] = []
    return records, each_piece(path, kind, records.extend, run)


def each_line(path: Path, kind: type[T], take: Callable[[T], object], run: Path | None = None) -> list[Gap]:
    """As ``read_lines``, one record at a time, for files whose records do not fit into memory."""

    def take_each(records: list[T]) -> None:
        for record in records:
            take(record)

    return each_piece(path, kind, take_each, run)


def each_piece(
    path: Path,
    kind: type[T],
    take: Callable[[list[T]], object],
    run: Path | None = None,
    span: tuple[int, int] | None = None,
    checks: bool = False,
) -> list[Gap]:
    """As ``read_lines``, the records of about a megabyte at a time. ``span``: where the lines are that are read, if not
    all; then ``path`` is a part of the stream. ``checks``: ``take`` raises HugeError where a number does not fit, and
    takes none of these records. It has the numbers in columns: to look at their digits takes as long as decoding."""
    parts = parts_of(path) if span is None else [path]
    return [gap for part in parts for gap in _each_of_file(part, kind, take, run, span, checks)]


def _each_of_file(
    path: Path,
    kind: type[T],
    take: Callable[[list[T]], object],
    run: Path | None,
    span: tuple[int, int] | None,
    checks: bool,
) -> list[Gap]:
    try:
        with open_regular(path, run or run_of(path)) as file:
            begin, end = span or (0, os.fstat(file.fileno()).st_size)
            if end - begin > RECORDED_FILES.lines_bytes:
                return [Gap(str(path), f"cannot be read: {too_large(RECORDED_FILES.lines_bytes)}")]
            file.seek(begin)
            with without_collections():
                return _take_records(path, pieces(file, None if span is None else end), kind, take, checks)
    except FileNotFoundError:  # also a part that was removed meanwhile
        return []
    except OSError as error:
        return [Gap(str(path), f"cannot be read: {error.strerror}")]


def pieces(file: BinaryIO, end: int | None = None) -> Iterator[bytes]:
    """The content in pieces that end with a line. Only the last one may not, or one with a line that is too long.
    ``end``: where the last line ends, if that is not the end of the file."""
    most = RUN_READING.piece_bytes
    while piece := file.read(most if end is None else max(0, min(most, end - file.tell()))):
        yield piece if piece.endswith(b"\n") else piece + file.readline(RECORDED_FILES.line_bytes)


def _take_records(
    path: Path, pieces: Iterable[bytes], kind: type[T], take: Callable[[list[T]], object], checks: bool
) -> list[Gap]:
    decode = decoder(kind)
    decode_lines = json_decoder(kind).decode_lines
    gaps: list[Gap] = []
    bad = good = 0
    for piece in pieces:
        records = _all_records(piece, decode_lines, checks)
        if records is not None and checks:
            try:
                take(records)
            except HugeError:
                records = None
            else:
                good += len(records)
                continue
        if records is None:
            lines = list(iter(partial(BytesIO(piece).readline, RECORDED_FILES.line_bytes), b""))
            cut = next((at for at, line in enumerate(lines) if not line.endswith(b"\n")), None)
            found = [decode(line) for line in lines[:cut] if line.strip()]
            records = [record for record in found if record is not None]
            bad += len(found) - len(records)
            if cut is not None:
                if len(lines[cut]) == RECORDED_FILES.line_bytes:
                    most_mib = RECORDED_FILES.line_bytes >> 20
                    reason = f"a line is longer than {most_mib} MiB; it and what follows were left out"
                else:
                    reason = "the last line is truncated (process killed or disk full); left out"
                gaps.append(Gap(str(path), reason))
        taken = _take_each(records, take)
        good += taken
        bad += len(records) - taken
        if gaps:
            break
    if bad:
        reason = f"invalid collector records on {bad} of {bad + good} lines; left out"
        gaps.insert(0, Gap(str(path), reason))
    return gaps


def _take_each(records: list[T], take: Callable[[list[T]], object]) -> int:
    """How many of the records could be taken."""
    try:
        take(records)
    except HugeError:
        return sum(_take_each([record], take) for record in records) if len(records) > 1 else 0
    return len(records)


def _all_records(piece: bytes, decode_lines: Callable[[bytes], list[T]], checks: bool = False) -> list[T] | None:
    """The records of a piece in which every line is an object, decoded together, which takes two thirds of the time;
    None if one may be damaged. ``checks``: as in ``each_piece``."""
    if len(piece) > RECORDED_FILES.line_bytes:
        return None
    lines = piece.count(b"\n")
    # JSON has no raw line break in a string, and no "{" right after "}" in an object: each line begins with an object.
    objects = piece[:1] == b"{" and piece[-2:] == b"}\n" and piece.count(b"}\n{") == lines - 1
    if not objects or (not checks and _huge(piece)):
        return None
    try:
        records = decode_lines(piece)
    except DAMAGED:
        return None
    return records if len(records) == lines else None


def read_record(
    path: Path | str,
    kind: type[T],
    run: Path | None = None,
    most: int = RECORDED_FILES.document_bytes,
    whole: Callable[[bytes], bool] | None = None,
) -> tuple[T | None, Gap | None]:
    """The one record of a .json file of the run directory ``run`` (by default the one in its path). ``whole``: returns
    whether the bytes are those that were written."""
    try:
        content = read_regular(path, most, run or run_of(path))
        if whole is not None and not whole(content):
            return None, Gap(str(path), "is damaged (it is not as it was written); left out")
        if huge := _huge(content):
            number = huge[1].decode()[:25]
            return None, Gap(str(path), f"is damaged (the number {number} is not below {MOST_NS:.0e}); left out")
        record = json_decoder(kind).decode(content)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, Gap(str(path), f"cannot be read: {error.strerror}")
    except DAMAGED as error:
        return None, Gap(str(path), f"is damaged ({error}); left out")
    for name in ("rank", "world_size"):
        ranks = getattr(record, name, None)
        if isinstance(ranks, int) and not 0 <= ranks <= MOST_RANKS:
            reason = f"{name} {ranks:,} is not between 0 and {MOST_RANKS:,}"
            return None, Gap(str(path), f"is damaged ({reason}); left out")
    return record, None


def read_manifest(layout: RunLayout) -> tuple[Manifest | None, Gap | None]:
    """Its secrets masked: an older version may have written what this one does not. DiagError for a schema that only
    newer versions know: then any file of the run may mean something else."""
    manifest, gap = read_record(layout.manifest, Manifest, layout.root)
    if manifest is not None:
        must_be_known(manifest.schema_version, layout.manifest, manifest.versions.get("diag", ""))
    return without_secrets(manifest, kept=SHARED), gap


def read_identity(files: RankLayout) -> tuple[RankRecord | None, Gap | None]:
    """DiagError as ``read_manifest``: the schema is also that of the other files of the rank."""
    identity, gap = read_record(files.text(RankLayout.identity), RankRecord, files.run)
    if identity is not None:
        must_be_known(identity.schema_version, files.identity)
    return identity, gap


def must_be_known(schema: int, path: Path, version: str = "", known: int = RUN_SCHEMA) -> None:
    """DiagError for a file in a newer schema than ``known``. ``version``: that of diag which wrote the file, if
    known."""
    if schema > known:
        writer = f"diag {version}" if version else "a newer version of diag"
        raise DiagError(
            f"was written by {writer} in schema {schema}; this version reads schemas up to {known}",
            path=path,
            hint="install the version that wrote it, or a newer one",
        )


def read_heartbeat(files: RankLayout) -> tuple[Heartbeat | None, Gap | None]:
    beat, gap = read_record(files.text(RankLayout.heartbeat), Heartbeat, files.run)
    if beat is not None:
        beat.errors = [masked(error) for error in beat.errors]
    return beat, gap


def read_asked(layout: RunLayout) -> tuple[Asked | None, Gap | None]:
    return read_record(layout.asked, Asked, layout.root)


def read_trace_asked(layout: RunLayout) -> tuple[TraceAsked | None, Gap | None]:
    return read_record(layout.trace_asked, TraceAsked, layout.root)


def read_exits(layout: RunLayout) -> tuple[dict[int, RankExit], Gap | None]:
    """How processes ended, by rank."""
    exits, gap = read_record(layout.exits, list[RankExit], layout.root)
    return {rank_exit.rank: rank_exit for rank_exit in exits or ()}, gap


ANALYSIS_VERSION = 2  # the schema of verdict.json and of ``diag analyze --json``


class JudgedCulprit(msgspec.Struct):
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
    culprit: JudgedCulprit | None = None
    doubts: tuple[Doubt, ...] = ()


class Answer(msgspec.Struct):
    """verdict.json, written by the last analysis. Callers decode ``steps`` if needed: a row for each step and rank."""

    verdict: Judged
    schema_version: int = 0
    steps: msgspec.Raw = msgspec.Raw(b"[]")


# The last field of verdict.json: a digest of the document without it.
_DIGEST = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n}\Z')


def with_digest(document: str) -> bytes:
    """A JSON object, printed with an indent of 1, and a digest of it as its last field."""
    content = document.encode()
    return content.removesuffix(b"\n}") + b',\n "sha256": "%s"\n}' % sha256(content).hexdigest().encode()


def _has_its_digest(content: bytes) -> bool:
    """True also where there is no digest: versions before wrote none."""
    match = _DIGEST.search(content, max(0, len(content) - 100))
    return match is None or sha256(content[: match.start()] + b"\n}").hexdigest().encode() == match[1]


def read_answer(path: Path) -> tuple[Answer | None, Gap | None]:
    """The answer of the last analysis, secrets masked. None, with the reason, if the file is not as it was written, or
    in a newer schema."""
    answer, gap = read_record(path, Answer, path.parent, RECORDED_FILES.answer_bytes, _has_its_digest)
    if answer is not None and answer.schema_version > ANALYSIS_VERSION:  # no error: the run itself may be readable
        return None, Gap(str(path), f"was written by a newer version, in schema {answer.schema_version}; left out")
    if answer is not None:
        answer.verdict.headline, answer.verdict.cause = masked(answer.verdict.headline), masked(answer.verdict.cause)
    return answer, gap


class LastStep(msgspec.Struct):
    """The part of a step record that shows how fast a run is."""

    step: int
    begin_ns: int
    end_ns: int


def last_steps(file: Path) -> list[LastStep]:
    """The last twenty records of a steps.jsonl, read from its end; none if it cannot be read."""
    most = RUN_READING.last_steps
    steps, _ = read_last_lines(file, LastStep, RUN_READING.tail_bytes, most + 1)  # the last one may be incomplete
    if 0 < len(steps) < most:  # more are damaged, or there are no more
        steps, _ = read_last_lines(file, LastStep, RUN_READING.tail_bytes)
    return steps[-most:]


def has_steps(layout: RunLayout) -> bool:
    """Whether any rank recorded a step, as far as its files can be read: one that failed early recorded none."""
    try:
        return any(last_steps(files.steps) for files in layout.ranks().values())
    except OSError:
        return False


def read_last_lines(file: Path, kind: type[T], most: int, most_lines: int | None = None) -> tuple[list[T], Gap | None]:
    """The records in the last ``most`` bytes of a stream, the last ``most_lines`` of them. The first line of these
    bytes is incomplete, and the last one may be: lines that do not decode are left out."""
    try:
        tail = read_end(file, most)[0]
    except FileNotFoundError:
        return [], None
    except OSError as error:
        return [], Gap(str(file), f"cannot be read: {error.strerror}")
    if most_lines is not None:
        tail = b"\n".join(tail.rsplit(b"\n", most_lines + 1)[-most_lines - 1 :])
    decode = decoder(kind)
    begin, end = tail.find(b"\n") + 1, tail.rfind(b"\n") + 1
    between = _all_records(tail[begin:end], json_decoder(kind).decode_lines)
    if between is None:
        return [record for line in tail.split(b"\n") if (record := decode(line)) is not None], None
    first, last = decode(tail[:begin]), decode(tail[end:])
    return [record for record in (first, *between, last) if record is not None], None


def read_end(
    stream: Path | str, most: int, parts: Sequence[tuple[int, Path | str]] | None = None, run: Path | str | None = None
) -> tuple[bytes, bool]:
    """The last ``most`` bytes of a stream, and whether these are all that are there. ``parts``: its parts, if the
    caller has listed them; ``run``: its run directory (by default the one in its path). Raises OSError."""
    found = [path for _, path in (numbered_parts(Path(stream)) if parts is None else parts)] or [stream]
    data = b""
    for part in reversed(found):
        try:
            text, whole = read_tail(part, most - len(data), run or run_of(part))
        except FileNotFoundError:
            if data:  # it was removed meanwhile
                return data, True
            raise
        data = text + (b"" if text.endswith(b"\n") or not data else b"\n") + data
        if len(data) >= most:
            return data, whole and part == found[0]
    return data, True
