"""A folder of checkpoints: which are complete, which is the newest, how a new one takes its place. Standard library.

A checkpoint is written into a draft, a folder of another name, and renamed when its manifest is there: what has the
name of a checkpoint is complete. Readers check nevertheless, since folders are copied and disks lose files.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from ...reading import DOCUMENT_BYTES, read_regular
from ..options import OptionError
from .manifest import NAME, CheckpointManifest, IncompleteError

LATEST = "latest"
OF_RUN = "checkpoints"  # the folder of a run directory

# ".old": one that a new checkpoint of the same step is about to replace.
_NAME = re.compile(r"step-(\d{8,})(?:\.old)?")
_DRAFT = re.compile(r"\.step-.*\.(draft|removed)")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    folder: Path
    manifest: CheckpointManifest


def name_of(steps: int) -> str:
    return f"step-{steps:08d}"


def draft_of(folder: Path, steps: int, run: str) -> Path:
    """Where a checkpoint is written. ``run`` keeps what a killed run left apart from what this one writes."""
    return folder / f".{name_of(steps)}.{run}.draft"


# -- reading -----------------------------------------------------------------------------------------------------------


def find(path: Path) -> Checkpoint:
    """The checkpoint itself, or the newest of a folder of them, of a run directory, or of ``latest`` in one.

    OptionError where there is none, with the reason why each that looks like one is none.
    """
    if not path.exists() and path.name != LATEST:
        raise OptionError(f"--resume {path}: no such folder. Give a checkpoint, a folder of them, or a run directory")
    if _NAME.fullmatch(path.name):
        try:
            return Checkpoint(path, CheckpointManifest.read(path))
        except IncompleteError as why:
            raise OptionError(f"--resume {path}: {why}. Give the folder above it for the last complete one") from why
    folder = path.parent if path.name == LATEST else path
    if (folder / OF_RUN).is_dir():
        folder = folder / OF_RUN
    refused: list[str] = []
    for candidate in _candidates(folder):
        try:
            return Checkpoint(candidate, CheckpointManifest.read(candidate))
        except IncompleteError as why:
            refused.append(f"{candidate.name}: {why}")
    reasons = "; ".join(refused[:3]) or "nothing of the name step-00000000"
    raise OptionError(f"--resume {path}: {folder} holds no complete checkpoint ({reasons})")


def _candidates(folder: Path) -> list[Path]:
    """Folders that could be complete: the one that ``latest`` names, then the others, newest first."""
    found = steps_in(folder)
    try:
        named = read_regular(folder / LATEST, DOCUMENT_BYTES, folder).decode().strip()
    except (OSError, ValueError):
        named = ""
    return sorted(found, key=lambda path: path.name != named)


def steps_in(folder: Path) -> list[Path]:
    """The folders with the name of a checkpoint, newest first."""
    try:
        found = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    except OSError:
        return []
    # Of two of one step the one being replaced comes second.
    return [path for _, path in sorted(found, key=lambda item: (-int(item[0][1]), item[1].name))]


# -- writing -----------------------------------------------------------------------------------------------------------


def publish(draft: Path, steps: int) -> Path:
    """Gives a finished draft its name. At every moment what was there before is there, under one name or another."""
    final = draft.parent / name_of(steps)
    old = None
    if final.exists():
        old = final.with_name(f"{final.name}.old")
        remove(old)
        final.rename(old)
    draft.rename(final)
    sync_folder(final.parent)
    if old is not None:
        remove(old)
    return final


def point_latest(final: Path) -> None:
    write_synced(final.parent / LATEST, f"{final.name}\n".encode())


def prune(newest: Path, keep: int) -> None:
    """Removes all but the last ``keep`` up to this one. Those after it are of a run that went further before this one
    resumed from an earlier step: they stay until it comes there."""
    found = steps_in(newest.parent)
    for old in found[found.index(newest) :][keep:]:
        remove(old)


def clear_drafts(folder: Path) -> None:
    """Removes what killed runs left: a folder belongs to one run at a time."""
    for path in folder.iterdir():
        if _DRAFT.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def remove(path: Path) -> None:
    """Takes a checkpoint out of sight first: a kill halfway leaves nothing that looks like one."""
    if not path.exists():
        return
    hidden = path.with_name(f".{path.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def write_synced(path: Path, data: bytes) -> None:
    """Writes a file that is on the disk, whole, when this returns; readers see the old content or the new."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """A rename is on the disk when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_manifest(draft: Path, manifest: CheckpointManifest) -> None:
    write_synced(draft / NAME, manifest.to_json())
