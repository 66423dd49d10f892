"""Reads every Flight Recorder dump below some paths. One bad file never stops the others."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import msgspec

from diag.collectors.bounded_pickle import RefusedError, TruncatedError
from diag.collectors.layout import RunLayout, is_folder, run_of
from diag.collectors.policy import RECORDED_FILES
from diag.collectors.reading import is_no_file, open_regular, walk
from diag.errors import DiagError
from diag.hang.flight.board import Dump, Dumps, Unreadable, with_groups_of
from diag.hang.flight.parse import DumpName, ShapeTable, is_dump, loads, parse_dump
from diag.hang.policy import HANG_DUMPS
from diag.packed import GZIP, ZSTD, PackedError, Unpacked
from diag.rundir.job_ranks import of_its_job

# -- Files that may be Flight Recorder dumps, found and opened within bounds, packed or not ----------------------------

_ENDINGS = re.compile(r"(?:\.(?:gz|zst|json|pkl|pickle|bin|txt))+$", re.IGNORECASE)
_NAMED_LIKE_DUMP = re.compile(r"nccl_trace|comm_lib_trace|flight_?rec|fr_trace|fr_dump|_dump_?\d+$", re.IGNORECASE)
_WITH_HOST = re.compile(r"(?:nccl_trace|comm_lib_trace)_rank_(?=.*[^_\d])(?P<host>.+)_(?P<rank>\d{1,6})$")
_RANK = re.compile(r"(?<!\d)(\d{1,6})$")
_FOLDER = re.compile(r"(?:rank_?)?(\d{1,6})$")
# Pickles before protocol 2 have no magic bytes; these begin with a container, or with a class by name.
_OLD_PICKLE = re.compile(rb"\(?[dl]p?\d*\n|\(dp|\(lp|c[A-Za-z_][\w.]*\n[A-Za-z_]\w*\n")
_JSON_KEYS = (b'"pg_config"', b'"pg_status"', b'"record_id"')


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that may be a dump. ``kind``: pickle, json, or empty where it has no bytes. ``run``: the run directory
    that the path must stay in, None for a path that the user named."""

    path: Path
    kind: str
    run: Path | None = None


class UnpackError(Exception):
    """A packed file that cannot be unpacked, and why."""


def find(paths: Iterable[str | Path]) -> Iterator[Candidate]:
    """Every regular file at or below the paths that begins like a dump, sorted by path. Other files are left to the
    reader of text."""
    for root in map(Path, (path for path in paths if str(path) != "-")):
        if not os.path.lexists(root):
            raise DiagError(f"There is no {root}", hint="Give a log, a dump, or a folder of them.", path=root)
        for path, run in _files(root):
            try:
                kind = _kind(path, run)
            except (OSError, UnpackError) as error:
                # Named pipes that trigger a dump lie in the folder of the dumps.
                if isinstance(error, OSError) and is_no_file(str(error.strerror)):
                    continue
                # Reading the whole file fails too and reports why; a log is left to the reader of text.
                kind = "pickle" if named_like_dump(path) else None
            if kind is not None:
                yield Candidate(path, kind, run)


def _files(root: Path) -> list[tuple[Path, Path | None]]:
    """The files, each with the run directory that it must stay in."""
    if not is_folder(root):
        return [(root, None)]
    of_job = of_its_job()  # the search for logs reports the folders that are left out
    files = walk(root, enter=lambda path: not RunLayout(Path(path)).is_restart and of_job(path))
    return [(path, run_of(path)) for path in sorted(map(Path, files))]


def _kind(path: Path, run: Path | None) -> str | None:
    with open_regular(path, run) as file:
        head = file.read(HANG_DUMPS.head_bytes)
        if head.startswith((GZIP, ZSTD)):
            head = _unpacked(file, HANG_DUMPS.head_bytes)
    if head[:1] == b"\x80" and b"segments" in head[: HANG_DUMPS.snapshot_key_bytes]:
        return None  # a snapshot of the allocator's memory
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
    """The file's bytes, unpacked. Raises ``UnpackError`` or OSError."""
    with open_regular(path, run) as file:
        data = file.read(RECORDED_FILES.most_pickle_bytes + 1)
        if data.startswith((GZIP, ZSTD)):
            data = _unpacked(file, RECORDED_FILES.most_pickle_bytes + 1)
    if len(data) > RECORDED_FILES.most_pickle_bytes:
        raise UnpackError(f"more than {RECORDED_FILES.most_pickle_bytes >> 20} MiB")
    return data


def _unpacked(file: BinaryIO, most: int) -> bytes:
    """The first ``most`` bytes; for a truncated file, those before the cut."""
    out = BytesIO()
    file.seek(0)
    try:
        stream = Unpacked(file, most, zstd=True)
        while out.tell() < most and (chunk := stream.read(min(HANG_DUMPS.chunk_bytes, most - out.tell()))):
            out.write(chunk)
    except (OSError, ValueError, PackedError) as problem:
        if not out.tell():
            raise UnpackError(f"cannot be unpacked ({problem})") from None
    return out.getvalue()


def name_of(path: Path) -> DumpName:
    """Rank and host from a name like ``nccl_trace_rank_<host>_<rank>``, ``comm_lib_trace_rank_3``, ``_dump_3`` or
    ``<run>/ranks/00003/flight_recorder3``."""
    name = _ENDINGS.sub("", path.name)
    if match := _WITH_HOST.search(name):
        return DumpName(int(match["rank"]), match["host"])
    if rank := _RANK.search(name):
        return DumpName(int(rank[1]), "")
    if folder := _FOLDER.fullmatch(path.parent.name):
        return DumpName(int(folder[1]), "")
    return DumpName(None, "")


_DEFAULT_GROUP = "0"


@dataclass(slots=True)
class _Reading:
    shapes: ShapeTable = field(default_factory=ShapeTable)
    dumps: list[Dump] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    gaps: list[tuple[str, str]] = field(default_factory=list)
    seen: dict[bytes, str] = field(default_factory=dict)  # the first file with each content

    def lost(self, path: Path, why: str) -> None:
        self.paths.append(str(path))
        self.gaps.append((str(path), why))
        self.unreadable.append(Unreadable(str(path), name_of(path).rank, why))


def read_dumps(paths: Iterable[str | Path]) -> Dumps:
    """The dumps at or below the paths, recognised by content. "-" is text and is skipped."""
    reading = _Reading()
    for candidate in find(paths):
        _read(candidate, reading)
    reading.dumps = _of_one_job(reading)
    chosen = _one_a_rank(reading)
    known = {dump.rank for dump in chosen}
    return Dumps(
        dumps={dump.rank: dump for dump in sorted(chosen, key=lambda dump: dump.rank)},
        unreadable=tuple(lost for lost in reading.unreadable if lost.rank not in known),
        shapes=tuple(reading.shapes.all),
        paths=tuple(reading.paths),
        gaps=tuple(reading.gaps),
    )


def _read(candidate: Candidate, reading: _Reading) -> None:
    path = candidate.path
    if not candidate.kind:
        reading.lost(path, "an empty dump: the process ended before it wrote any")
        return
    try:
        data = content(path, candidate.run)
        loaded = loads(data) if candidate.kind == "pickle" else _json(data)
    except RefusedError as refused:
        reading.lost(path, f"refused: {refused}")
    except TruncatedError as cut:
        reading.lost(path, f"truncated: {cut}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        reading.lost(path, f"not valid JSON: {str(problem)[:120]}")
    except (OSError, UnpackError) as problem:
        reading.lost(path, f"not read: {str(problem)[:200]}")
    else:
        if not is_dump(loaded):
            if named_like_dump(path):
                reading.lost(path, "not a Flight Recorder dump, though it is named like one")
            return
        dump, problems = parse_dump(loaded, str(path), name_of(path), reading.shapes)
        reading.paths.append(str(path))
        reading.gaps += [(str(path), problem) for problem in problems]
        if dump is not None:
            # Entries have times in nanoseconds: two processes never write the same bytes.
            first = reading.seen.setdefault(hashlib.blake2b(data, digest_size=16).digest(), str(path))
            if first != str(path) and dump.entries:
                reading.gaps.append((str(path), f"not used: the same file as {first}"))
            else:
                reading.dumps.append(dump)


def _json(data: bytes) -> object:
    """Raises ``RefusedError`` where the values would take a multiple of the text's memory."""
    if (
        data.count(b"[") + data.count(b"{") > RECORDED_FILES.most_pickle_containers
        or data.count(b",") > HANG_DUMPS.most_json_items
    ):
        raise RefusedError(
            f"more than {RECORDED_FILES.most_pickle_containers:,} containers or {HANG_DUMPS.most_json_items:,} values"
        )
    return msgspec.json.decode(data)


def _of_one_job(reading: _Reading) -> list[Dump]:
    """The dumps whose default group is as large as in most of them."""
    sizes = Counter(size for dump in reading.dumps if (size := _default_size(dump)))
    usual = [size for size, count in sizes.items() if count == max(sizes.values())]
    chosen = []
    for dump in reading.dumps:
        size = _default_size(dump)
        if size and len(usual) == 1 and size != usual[0]:
            why = f"of a job of {size:,} ranks, most others are of {usual[0]:,}"
            reading.gaps.append((dump.path, f"not used: {why}"))
        else:
            chosen.append(dump)
    return chosen


def _default_size(dump: Dump) -> int:
    """The number of ranks in the default group; 0 where it is not listed."""
    group = dump.groups.get(_DEFAULT_GROUP)
    return len(group.ranks) if group is not None else 0


def _one_a_rank(reading: _Reading) -> list[Dump]:
    """The newest dump of each rank. Where ranks have several in different folders, all come from the folder of the
    newest: dumps of two hangs must not be compared."""
    by_rank: dict[int, list[Dump]] = {}
    for dump in reading.dumps:
        by_rank.setdefault(dump.rank, []).append(dump)
    folders = (_folders(dumps) for dumps in by_rank.values())
    several = {folder for of_rank in folders if len(of_rank) > 1 for folder in of_rank}
    newest: dict[str, int] = {}
    for dump in reading.dumps:
        if (folder := _folder(dump)) in several:
            newest[folder] = max(newest.get(folder, 0), dump.newest_ns)
    used = max(newest, key=lambda folder: (newest[folder], folder), default=None)
    chosen: list[Dump] = []
    for rank, dumps in by_rank.items():
        current = [dump for dump in dumps if _folder(dump) not in several or _folder(dump) == used]
        used_dumps = _one_a_recorder(current)
        best = used_dumps[0] if used_dumps else None
        chosen += [with_groups_of(best, used_dumps[1:])] if best else []
        used_ids, current_ids = {id(dump) for dump in used_dumps}, {id(dump) for dump in current}
        for dump in dumps:
            if id(dump) not in used_ids:
                why = (
                    f"{best.path} is of the same rank {rank}"
                    if best and id(dump) in current_ids
                    else f"{used} is a newer set of dumps"
                )
                reading.gaps.append((dump.path, f"not used: {why}"))
    return chosen


def _one_a_recorder(dumps: Sequence[Dump]) -> list[Dump]:
    """The newest dump, and those of the process's other recorders: of other backends, in the same folder. A process
    with groups of NCCL and of gloo has two recorders. gloo's comes last."""
    newest = sorted(dumps, key=_value)
    if not newest:
        return []
    folder, backend = _folder(newest[-1]), newest[-1].backend
    by_backend = {d.backend: d for d in newest if backend and d.backend and _folder(d) == folder}
    return sorted(by_backend.values(), key=lambda dump: dump.backend == "gloo") or newest[-1:]


def _value(dump: Dump) -> tuple[int, int, bool]:
    """Sort key: time, then number of entries, then whether it has stacks (pickle, not JSON)."""
    return dump.newest_ns, dump.entries, bool(dump.last and dump.last.frames)


def _folder(dump: Dump) -> str:
    return str(Path(dump.path).parent)


def _folders(dumps: list[Dump]) -> set[str]:
    return {_folder(dump) for dump in dumps}
