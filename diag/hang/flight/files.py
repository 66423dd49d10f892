"""Finds the files that may be Flight Recorder dumps, and opens them, packed or not, within bounds."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, BinaryIO, cast

import zstandard

from diag.collectors.bounded_pickle import MAX_BYTES
from diag.collectors.layout import RunLayout, is_folder, run_of
from diag.collectors.reading import is_no_file, open_regular, walk
from diag.errors import DiagError
from diag.hang.flight.parse import Name
from diag.hang.packing import GZIP, ZSTD

_HEAD = 1 << 16
_CHUNK = 1 << 20
_ENDINGS = re.compile(r"(?:\.(?:gz|zst|json|pkl|pickle|bin|txt))+$", re.IGNORECASE)
_NAMED_LIKE_DUMP = re.compile(r"nccl_trace|comm_lib_trace|flight_?rec|fr_trace|fr_dump|_dump_?\d+$", re.IGNORECASE)
_WITH_HOST = re.compile(r"(?:nccl_trace|comm_lib_trace)_rank_(?=.*[^_\d])(?P<host>.+)_(?P<rank>\d{1,6})$")
_RANK = re.compile(r"(?<!\d)(\d{1,6})$")
_FOLDER = re.compile(r"(?:rank_?)?(\d{1,6})$")
# Pickles before protocol 2 have no mark of their own; these begin with a container, or with a class by name.
_OLD_PICKLE = re.compile(rb"\(?[dl]p?\d*\n|\(dp|\(lp|c[A-Za-z_][\w.]*\n[A-Za-z_]\w*\n")
_JSON_KEYS = (b'"pg_config"', b'"pg_status"', b'"record_id"')


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that may be a dump. ``kind``: pickle, json, or empty where it has no bytes. ``run``: the run directory
    that it may not lead out of, None for a path that the user named."""

    path: Path
    kind: str
    run: Path | None = None


class UnpackError(Exception):
    """A packed file that cannot be unpacked, and why."""


def find(paths: Iterable[str | Path]) -> Iterator[Candidate]:
    """Every regular file at or below the paths that begins like a dump, in order of its path. What is not looked at is
    said by whoever reads the same paths for text."""
    for given in map(Path, (path for path in paths if str(path) != "-")):
        if not os.path.lexists(given):
            raise DiagError(f"There is no {given}", hint="Give a log, a dump, or a folder of them.", path=given)
        for path, run in _files(given):
            try:
                kind = _kind(path, run)
            except (OSError, UnpackError) as error:
                # Named pipes that trigger a dump lie beside the dumps.
                if isinstance(error, OSError) and is_no_file(str(error.strerror)):
                    continue
                # Reading it as a whole fails too and says why; a log is left to whoever reads text.
                kind = "pickle" if named_like_dump(path) else None
            if kind is not None:
                yield Candidate(path, kind, run)


def _files(given: Path) -> list[tuple[Path, Path | None]]:
    """The files, each with the run directory that it may not lead out of."""
    if not is_folder(given):
        return [(given, None)]
    found = walk(given, enter=lambda path: not RunLayout(Path(path)).is_restart)
    return [(path, run_of(path)) for path in sorted(map(Path, found))]


def _kind(path: Path, run: Path | None) -> str | None:
    with open_regular(path, run) as file:
        head = file.read(_HEAD)
        if head.startswith((GZIP, ZSTD)):
            head = _unpacked(file, head, _HEAD)
    if not head:
        return "" if named_like_dump(path) else None
    if (head[0] == 0x80 and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")) or _OLD_PICKLE.match(head):
        return "pickle"
    if head.lstrip()[:1] == b"{" and any(key in head for key in _JSON_KEYS):
        return "json"
    return None


def named_like_dump(path: Path) -> bool:
    return bool(_NAMED_LIKE_DUMP.search(_ENDINGS.sub("", path.name)))


def content(path: Path, run: Path | None = None) -> bytes:
    """All bytes, unpacked; ``run`` as in ``Candidate``. Raises ``UnpackError`` or OSError."""
    with open_regular(path, run) as file:
        data = file.read(MAX_BYTES + 1)
        if data.startswith((GZIP, ZSTD)):
            data = _unpacked(file, data, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UnpackError(f"more than {MAX_BYTES >> 20} MiB")
    return data


def _unpacked(file: BinaryIO, head: bytes, most: int) -> bytes:
    """The first ``most`` bytes; of a file that is cut off, those before the cut. ``head``: how the file begins."""
    out = BytesIO()
    file.seek(0)
    try:
        with _stream(file, head) as stream:
            while out.tell() < most and (chunk := stream.read(min(_CHUNK, most - out.tell()))):
                out.write(chunk)
    except (OSError, EOFError, ValueError, zlib.error, zstandard.ZstdError) as problem:
        if not out.tell():
            raise UnpackError(f"cannot be unpacked ({problem})") from None
    return out.getvalue()


def _stream(file: BinaryIO, head: bytes) -> IO[bytes]:
    if head.startswith(GZIP):
        return cast(IO[bytes], gzip.open(file, "rb"))
    return cast(IO[bytes], zstandard.open(file, "rb"))


def name_of(path: Path) -> Name:
    """Rank and host, as the name has them: ``nccl_trace_rank_<host>_<rank>``, ``comm_lib_trace_rank_3``, ``_dump_3``,
    ``<run>/ranks/00003/flight_recorder3``."""
    name = _ENDINGS.sub("", path.name)
    if found := _WITH_HOST.search(name):
        return Name(int(found["rank"]), found["host"])
    if rank := _RANK.search(name):
        return Name(int(rank[1]), "")
    if folder := _FOLDER.fullmatch(path.parent.name):
        return Name(int(folder[1]), "")
    return Name(None, "")
