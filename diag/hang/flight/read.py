"""Reads every Flight Recorder dump below some paths. One bad file never stops the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from diag.collectors.bounded_pickle import MAX_CONTAINERS
from diag.hang.flight import pickles
from diag.hang.flight.entries import Signatures
from diag.hang.flight.files import Candidate, UnpackError, content, find, name_of, named_like_dump
from diag.hang.flight.parse import is_dump, parse
from diag.hang.flight.record import Dump, Dumps, Unreadable

_MOST_JSON_ITEMS = 4_000_000  # 50 MB of a recorder's frames have 2 million


@dataclass(slots=True)
class _Reading:
    signatures: Signatures = field(default_factory=Signatures)
    found: list[Dump] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    gaps: list[tuple[str, str]] = field(default_factory=list)

    def lost(self, path: Path, why: str) -> None:
        self.paths.append(str(path))
        self.gaps.append((str(path), why))
        self.unreadable.append(Unreadable(str(path), name_of(path).rank, why))


def read_dumps(paths: Iterable[str | Path]) -> Dumps:
    """The dumps at or below the paths, found by what they contain. "-" is for text and is passed over."""
    reading = _Reading()
    for candidate in find(paths):
        _read(candidate, reading)
    chosen = _one_a_rank(reading)
    known = {dump.rank for dump in chosen}
    return Dumps(
        dumps={dump.rank: dump for dump in sorted(chosen, key=lambda dump: dump.rank)},
        unreadable=tuple(lost for lost in reading.unreadable if lost.rank not in known),
        signatures=tuple(reading.signatures.all),
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
        held = pickles.loads(data) if candidate.kind == "pickle" else _json(data)
    except pickles.RefusedError as refused:
        reading.lost(path, f"refused: {refused}")
    except pickles.TruncatedError as cut:
        reading.lost(path, f"truncated: {cut}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        reading.lost(path, f"not valid JSON: {str(problem)[:120]}")
    except (OSError, UnpackError) as problem:
        reading.lost(path, f"not read: {str(problem)[:200]}")
    else:
        if not is_dump(held):
            if named_like_dump(path):
                reading.lost(path, "not a Flight Recorder dump, though it is named like one")
            return
        dump, problems = parse(held, str(path), name_of(path), reading.signatures)
        reading.paths.append(str(path))
        reading.gaps += [(str(path), problem) for problem in problems]
        if dump is not None:
            reading.found.append(dump)


def _json(data: bytes) -> object:
    """Raises ``RefusedError`` where the values would take a multiple of the text's memory."""
    if data.count(b"[") + data.count(b"{") > MAX_CONTAINERS or data.count(b",") > _MOST_JSON_ITEMS:
        raise pickles.RefusedError(f"more than {MAX_CONTAINERS:,} containers or {_MOST_JSON_ITEMS:,} values")
    return msgspec.json.decode(data)


def _one_a_rank(reading: _Reading) -> list[Dump]:
    """The newest dump of each rank. Where ranks have several in different folders, the folder of the newest counts:
    ranks of two hangs must not be compared."""
    by_rank: dict[int, list[Dump]] = {}
    for dump in reading.found:
        by_rank.setdefault(dump.rank, []).append(dump)
    several = {folder for found in by_rank.values() for folder in _folders(found) if len(_folders(found)) > 1}
    newest = {folder: max(d.newest_ns for d in reading.found if _folder(d) == folder) for folder in several}
    used = max(newest, key=lambda folder: (newest[folder], folder), default=None)
    chosen: list[Dump] = []
    for rank, found in by_rank.items():
        current = [dump for dump in found if _folder(dump) not in several or _folder(dump) == used]
        best = max(current, key=_value, default=None)
        chosen += [best] if best else []
        for dump in found:
            if dump is not best:
                why = (
                    f"{best.path} is of the same rank {rank}"
                    if best and dump in current
                    else f"{used} is a newer set of dumps"
                )
                reading.gaps.append((dump.path, f"not used: {why}"))
    return chosen


def _value(dump: Dump) -> tuple[int, int, bool]:
    """The newest; of two of the same moment the one with stacks (pickle, not JSON)."""
    return dump.newest_ns, dump.entries, bool(dump.last and dump.last.frames)


def _folder(dump: Dump) -> str:
    return str(Path(dump.path).parent)


def _folders(found: list[Dump]) -> set[str]:
    return {_folder(dump) for dump in found}
