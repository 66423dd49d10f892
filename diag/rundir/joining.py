"""Makes one run directory of the pieces of a job, in the user's cache, which everything else opens like any other.

A file is linked there, or copied where a link is not possible. So a piece that grows shows it at once, and a file that
was replaced is found by its inode.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from diag.collectors.files import encode, replace_file
from diag.collectors.layout import DERIVED, RankLayout, RunLayout, is_folder
from diag.collectors.reading import folder_refusal, read_object, read_regular, size_of
from diag.collectors.records import RankRecord
from diag.errors import DiagError
from diag.model import Gap
from diag.rundir.policy import RUN_READING
from diag.words.formatting import counted
from diag.words.places import show_as, shown, together

from .lines import read_identity
from .pieces import LEFT_OUT, differ, grouped, piece_of


def copy_folder(names: Sequence[str], base: Path) -> Path:
    """The folder of the local copy of what has these names."""
    return base / "runs" / sha256("\n".join(names).encode()).hexdigest()[:24]


def joined(folders: Sequence[str], base: Path) -> Path:
    """The run directory of these pieces, joined under ``base``. DiagError where it cannot be written."""
    absolute = [os.path.abspath(folder) for folder in folders]  # noqa: PTH100  (resolves no link)
    name = Path(os.path.commonpath(absolute)).name or "run"
    target = copy_folder(sorted(absolute), base) / name
    try:
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        join(folders, target)
    except OSError as error:
        raise DiagError(
            f"the {counted(len(folders), 'piece')} of the run cannot be joined: {error.strerror or error}",
            path=target,
            hint="DIAG_CACHE names a folder with room for it",
        ) from error
    return target


def trainings_in(nodes: Sequence[str]) -> list[list[list[str]]]:
    """The trainings that nodes recorded, each as its attempts in the order of time, and those as the folders of their
    pieces. Nodes count their restarts each for itself, and a node that is started again begins to count: which pieces
    are of one attempt follows from their ranks and times. Attempts are of one training if they name one job of the
    scheduler or the launcher, or if one node recorded both. Nodes without a rank are in none. DiagError for a newer
    schema."""
    node_of: dict[str, str] = {}
    for node in nodes:
        for attempt in RunLayout(Path(node)).attempts():
            if attempt.ranks():
                node_of[str(attempt.root)] = node
    jobs = grouped(list(node_of)).jobs
    if len(jobs) < 2:
        return [jobs] if jobs else []
    pieces = {folder: piece_of(Path(folder)) for folder in node_of}
    trainings: list[tuple[set[str], list[list[str]]]] = []
    for job in sorted(jobs, key=lambda job: (min(pieces[folder].began_ns for folder in job), job)):
        names = {node_of[folder] for folder in job}
        for folder in job:
            if (manifest := pieces[folder].manifest) is not None:
                names |= {manifest.job, manifest.scheduled, manifest.training}
        names = names - {""} | pieces[job[0]].jobs
        known, attempts = next((of for of in trainings if of[0] & names), (set(), []))
        if not attempts:
            trainings.append((known, attempts))
        known |= names
        attempts.append(job)
    return [attempts for _, attempts in trainings]


def join_attempts(attempts: Sequence[Sequence[str]], target: Path, gaps: Sequence[Gap] = ()) -> None:
    """Makes ``target`` the run directory of these attempts, or brings it up to date: the first in it, the others in its
    ``restart-N``. ``gaps``: what is known to be lost. OSError where it cannot be written."""
    run = RunLayout(target)
    for number, folders in enumerate(attempts):
        _join_attempt([RunLayout(Path(folder)) for folder in folders], run.restart(number), gaps)
    for stale in run.restarts()[max(len(attempts) - 1, 0) :]:
        shutil.rmtree(stale.root, ignore_errors=True)


def join(folders: Sequence[str], target: Path, gaps: Sequence[Gap] = ()) -> None:
    """Makes ``target`` the run directory of these pieces, or brings it up to date. Every attempt is joined: the
    training after a restart is in a folder of its own. ``gaps``: what of the pieces is known to be lost. OSError where
    it cannot be written."""
    pieces = [RunLayout(Path(folder)) for folder in folders]
    attempts = sorted({number for piece in pieces for number in (0, *piece.restart_numbers())})
    for number in attempts:
        at = RunLayout(target).restart(number)
        of_attempt = [of_piece for piece in pieces if is_folder((of_piece := piece.restart(number)).root)]
        _join_attempt(of_attempt, at, gaps)
    name = together(map(shown, folders))
    show_as({target: name, RunLayout(target).ranks_folder: name})


def _join_attempt(pieces: Sequence[RunLayout], target: RunLayout, lost: Sequence[Gap]) -> None:
    target.ranks_folder.mkdir(parents=True, exist_ok=True)
    taken, gaps = _ranks_of(pieces)
    gaps += lost
    names = {}
    for rank, files in taken.items():
        _follow(files.folder, target.rank(rank).folder)
        names[target.rank(rank).folder] = shown(str(files.folder))
    with os.scandir(target.ranks_folder) as entries:
        stale = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for folder in stale:
        if Path(folder) not in names:
            shutil.rmtree(folder, ignore_errors=True)
    names |= _join_others(pieces, taken, target)
    show_as(names)
    document = [{"path": gap.path, "reason": gap.reason} for gap in gaps]
    if document != read_object(target.at(LEFT_OUT), target.root).get("gaps"):
        replace_file(target.at(LEFT_OUT), encode({"gaps": document}))


def _ranks_of(pieces: Sequence[RunLayout]) -> tuple[dict[int, RankLayout], list[Gap]]:
    """The folder of each rank. Of a rank that several pieces hold, the one that is of the job of most ranks counts, and
    then the first; the same process twice is a copy, of which the longer one counts."""
    found: dict[int, list[tuple[RankLayout, RankRecord | None]]] = {}
    gaps: list[Gap] = []
    for piece in pieces:
        for rank, files in piece.ranks().items():
            if refusal := folder_refusal(files.folder, piece.root):
                gaps.append(Gap(shown(str(files.folder)), f"rank {rank}: {refusal}"))
            else:
                found.setdefault(rank, []).append((files, read_identity(files)[0]))
    jobs = Counter(identity.job for several in found.values() for _, identity in several if identity is not None)
    usual = jobs.most_common(1)[0][0] if jobs else ""
    taken = {}
    for rank, several in sorted(found.items()):
        several.sort(key=lambda item: item[1] is None or item[1].job != usual)  # else in the order of the pieces
        chosen, identity = several[0]
        for files, other in several[1:]:
            if not differ(identity, other):
                chosen = max(chosen, files, key=lambda copy: size_of(copy.steps))
                continue
            reason = f"rank {rank} is also in {shown(str(chosen.folder))}, recorded by another process; left out"
            gaps.append(Gap(shown(str(files.folder)), reason))
        taken[rank] = chosen
    return taken, gaps


def _join_others(pieces: Sequence[RunLayout], taken: Mapping[int, RankLayout], target: RunLayout) -> dict[Path, str]:
    """The files next to the ranks: the manifest of the piece with the lowest rank, completed by the ends that the
    others recorded; the lines of unrecorded processes and the exits of all pieces; of any other file the first."""
    lowest = taken[min(taken)].run if taken else pieces[0].root
    ordered = sorted(pieces, key=lambda piece: piece.root != lowest)
    names: dict[Path, str] = {}
    wanted: dict[str, Path] = {}
    for piece in ordered:
        for entry in _entries(piece.root):
            wanted.setdefault(entry.name, Path(entry.path))
    merged = {target.manifest.name, target.unrecorded.name, target.exits.name, LEFT_OUT, *DERIVED}
    for name, source in wanted.items():
        if name not in merged:
            _same(source, target.at(name))
            names[target.at(name)] = shown(str(source))
    _write(target.manifest, _manifest_of(ordered), private=True)
    lines = b"".join(_content(piece.unrecorded, piece) for piece in ordered)
    _write(target.unrecorded, lines)
    exits: list[Any] = []
    for piece in ordered:
        with contextlib.suppress(ValueError, RecursionError):
            of_piece = json.loads(_content(piece.exits, piece) or b"[]")
            exits += of_piece if isinstance(of_piece, list) else []
    _write(target.exits, encode(exits) if exits else b"")
    return names


def _manifest_of(ordered: Sequence[RunLayout]) -> bytes:
    """One manifest of several: of how the training ended, a failure on any node counts, and an end only if all nodes
    recorded one."""
    manifests = [fields for piece in ordered if (fields := read_object(piece.manifest, piece.root))]
    if not manifests:
        return b""
    merged = dict(manifests[0])
    for other in manifests[1:]:
        merged |= {name: value for name, value in other.items() if merged.get(name) in (None, "", 0, {}, [])}
    codes = [fields.get("exit_code") for fields in manifests]
    failed = next((code for code in codes if code), None)
    merged["exit_code"] = failed if failed or None in codes else 0
    return encode(merged)


def _content(path: Path, piece: RunLayout) -> bytes:
    try:
        return read_regular(path, RUN_READING.most_piece_bytes, piece.root)
    except OSError:
        return b""


def _write(path: Path, content: bytes, private: bool = False) -> None:
    """Writes a file if its content is another one: what reads the run sees by its time that it has changed."""
    try:
        before = read_regular(path, max(len(content), 1))
    except OSError:
        before = None
    if content and content != before:
        replace_file(path, content, private)
    elif not content:
        path.unlink(missing_ok=True)


def _follow(source: Path, target: Path) -> None:
    """Makes a folder hold the files of another one: links to them, and no other files."""
    target.mkdir(parents=True, exist_ok=True)
    there = set()
    for entry in _entries(source, folders=True):
        there.add(entry.name)
        if entry.is_dir(follow_symlinks=False):
            _follow(Path(entry.path), target / entry.name)
        else:
            _same(Path(entry.path), target / entry.name)
    for entry in _entries(target, folders=True):
        if entry.name in there:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            Path(entry.path).unlink(missing_ok=True)


def _entries(folder: Path, folders: bool = False) -> Iterable[os.DirEntry[str]]:
    """The regular files of a folder, no links: none may lead out of a run."""
    try:
        with os.scandir(folder) as listing:
            entries = list(listing)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_file(follow_symlinks=False) or (folders and entry.is_dir(follow_symlinks=False)):
            yield entry


def _same(source: Path, target: Path) -> None:
    """Makes one file the other: a link, else a copy. A file that is gone meanwhile is left as it was."""
    with contextlib.suppress(FileNotFoundError):
        about = source.stat()
        if not stat.S_ISREG(about.st_mode):
            return
        try:
            known = target.stat()
        except OSError:
            known = None
        if known is not None and os.path.samestat(about, known):
            return
        if known is not None and (known.st_size, known.st_mtime_ns) == (about.st_size, about.st_mtime_ns):
            return
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}.tmp")
        try:
            try:
                draft.hardlink_to(source)
            except OSError:  # on another file system, or another user's
                shutil.copy2(source, draft)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
