"""A folder of checkpoints: finds complete ones and the newest, and publishes new ones. Standard library only.

A checkpoint is written into a draft, a folder with another name, and renamed when its manifest is written: a folder
with the name of a checkpoint is complete. Readers still check it, since folders are copied and disks lose files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from ...layout import MANIFEST
from ...policy import RECORDED_FILES
from ...reading import is_of_kind, open_regular, read_regular, whole
from ..keys import OptionError

# -- manifest ----------------------------------------------------------------------------------------------------------
#
# manifest.json of a checkpoint: everything that a resume needs except tensors. Standard library only.

NAME = MANIFEST
FORMAT = 1

DCP = "torch.distributed.checkpoint"
DEEPSPEED = "deepspeed"

_SHARDS = (".distcp", ".pt")  # large: their size is checked, not their content


def _sha256(file: BinaryIO) -> str:
    """``hashlib.file_digest``, which Python 3.10 has not."""
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


class IncompleteError(Exception):
    """Not a valid checkpoint. The message has the reason, without the folder."""


@dataclass(frozen=True)
class File:
    """A file of the checkpoint. ``sha256``: None for shards."""

    name: str
    bytes: int
    sha256: str | None = None

    @classmethod
    def of(cls, folder: Path, name: str) -> File:
        """OSError if the file cannot be read, is not a regular file, or a link out of the folder."""
        with open_regular(folder / name, folder) as file:
            digest = None if name.endswith(_SHARDS) else _sha256(file)
            return cls(name, os.fstat(file.fileno()).st_size, digest)

    def check(self, folder: Path) -> None:
        """IncompleteError if the file on disk differs."""
        try:
            actual = File.of(folder, self.name)
        except OSError as error:
            problem = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
            raise IncompleteError(f"{self.name} {problem} ({error.strerror})") from error
        if actual.bytes != self.bytes:
            raise IncompleteError(f"{self.name} has {actual.bytes} bytes instead of {self.bytes}")
        if actual.sha256 != self.sha256:
            raise IncompleteError(f"{self.name} was changed after it was saved")


_PLAIN = ("int", "str")


@dataclass(frozen=True)
class CheckpointManifest:
    """``steps`` are finished, so the resumed run begins with the step of that number."""

    steps: int
    kind: str  # DCP, or DEEPSPEED for its own format
    world_size: int
    strategy: str
    mesh: dict[str, int]
    options: dict[str, Any]  # the trainer's
    model: dict[str, Any]  # its shape
    data: dict[str, Any]  # see data.described
    cursor: dict[str, int]  # the sampler's
    consumed: dict[str, int]  # tokens and samples of all ranks since the training began
    optimizer: dict[str, Any]  # its class, and the settings of its groups
    scheduler: dict[str, Any] | None = None  # None: a constant learning rate
    scaler: None = None  # the trainer has no fp16, so no gradient scaler
    versions: dict[str, str] = field(default_factory=dict)
    created_unix_ns: int = 0
    saving: dict[str, Any] = field(default_factory=dict)  # how, and how long until this manifest was written
    files: tuple[File, ...] = ()
    training: str = ""  # as Manifest.training of the runs that resume from it; "": saved outside of a run
    checkpoint_format: int = FORMAT

    @property
    def size(self) -> int:
        """Bytes of all files except the manifest."""
        return sum(file.bytes for file in self.files)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode() + b"\n"

    @classmethod
    def read(cls, folder: Path) -> CheckpointManifest:
        """The manifest of a checkpoint whose files are all present and intact; otherwise IncompleteError."""
        try:
            content = json.loads(read_regular(folder / NAME, RECORDED_FILES.document_bytes, folder))
        except FileNotFoundError:
            raise IncompleteError("it has no manifest.json: saving was not finished") from None
        except OSError as error:
            raise IncompleteError(f"manifest.json cannot be read ({error.strerror})") from error
        except (ValueError, RecursionError) as error:
            raise IncompleteError(f"manifest.json is damaged ({error})") from error
        manifest = cls._of(content)
        for file in manifest.files:
            file.check(folder)
        return manifest

    @classmethod
    def _of(cls, content: Any) -> CheckpointManifest:
        if not isinstance(content, dict) or "checkpoint_format" not in content:
            raise IncompleteError("manifest.json does not describe a checkpoint")
        names = {f.name for f in fields(cls)}
        try:
            if (written := whole(content["checkpoint_format"])) > FORMAT:
                raise IncompleteError(f"its format is {written}; this version of diag reads formats up to {FORMAT}")
            files = tuple(File(str(f["name"]), whole(f["bytes"]), f["sha256"]) for f in content.get("files", ()))
            manifest = cls(**{**{k: v for k, v in content.items() if k in names}, "files": files})
            for number in (*manifest.mesh.values(), *manifest.cursor.values(), *manifest.consumed.values()):
                whole(number)
            for f in fields(cls):
                if f.type in _PLAIN and not is_of_kind(getattr(manifest, f.name), str(f.type)):
                    raise ValueError(f"a wrong value of {f.name}")
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise IncompleteError(f"manifest.json is incomplete ({error})") from error
        if any(PurePosixPath(file.name).is_absolute() or ".." in PurePosixPath(file.name).parts for file in files):
            raise IncompleteError("manifest.json names files outside of its folder")
        return manifest


LATEST = "latest"
OF_RUN = "checkpoints"  # the folder of a run directory

# ".old": a checkpoint that a new one of the same step is about to replace.
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
    """The folder in which a checkpoint is written. ``run`` separates this run's drafts from those of a killed run."""
    return folder / f".{name_of(steps)}.{run}.draft"


def find(path: Path) -> Checkpoint:
    """The checkpoint at this path, or the newest in a folder of checkpoints, in a run directory, or next to ``latest``.

    OptionError if there is none, with the reason for each candidate that is invalid.
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
    reasons = "; ".join(refused[:3]) or "no folder named step-00000000"
    raise OptionError(f"--resume {path}: {folder} holds no complete checkpoint ({reasons})")


def _candidates(folder: Path) -> list[Path]:
    """Folders that may be complete checkpoints: the one that ``latest`` names, then the others, newest first."""
    folders = steps_in(folder)
    try:
        latest_name = read_regular(folder / LATEST, RECORDED_FILES.document_bytes, folder).decode().strip()
    except (OSError, ValueError):
        latest_name = ""
    return sorted(folders, key=lambda path: path.name != latest_name)


def steps_in(folder: Path) -> list[Path]:
    """The folders with the name of a checkpoint, newest first."""
    try:
        matches = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    except OSError:
        return []
    # Of two folders of one step, the one being replaced comes second.
    return [path for _, path in sorted(matches, key=lambda item: (-int(item[0][1]), item[1].name))]


def rank_file(rank: int) -> str:
    """The name of the file with a rank's own state."""
    return f"rank-{rank:05d}.json"


def complete(draft: Path, names: list[str], manifest: CheckpointManifest, start_ns: int, keep: int) -> None:
    """Turns a draft into a checkpoint, after all ranks have written to it. OSError if a file is missing."""
    names = [*names, *(rank_file(rank) for rank in range(manifest.world_size))]
    try:
        files = tuple(File.of(draft, name) for name in names)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error.filename} does not exist, although its rank wrote it: all ranks must write to one folder on "
            "storage that all hosts share"
        ) from error
    timing = {"until_published_ns": time.monotonic_ns() - start_ns}
    write_manifest(draft, replace(manifest, files=files, saving={**manifest.saving, **timing}))
    final = publish(draft, manifest.steps)
    point_latest(final)
    with contextlib.suppress(OSError):  # an old checkpoint that cannot be removed does not affect the new one
        prune(final, keep)


def publish(draft: Path, steps: int) -> Path:
    """Renames a finished draft. The previous checkpoint of this step exists at every moment until then, under one name
    or another."""
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
    """Removes all but the last ``keep`` checkpoints up to this one. Later ones belong to a run that went further before
    this one resumed from an earlier step: they stay until this run reaches them."""
    folders = steps_in(newest.parent)
    if newest not in folders:  # the folder cannot be listed
        return
    for old in folders[folders.index(newest) :][keep:]:
        remove(old)


def clear_drafts(folder: Path) -> None:
    """Removes the drafts of killed runs: a folder belongs to one run at a time."""
    for path in folder.iterdir():
        if _DRAFT.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def remove(path: Path) -> None:
    """Renames a checkpoint before it is removed: a kill halfway leaves nothing with the name of a checkpoint."""
    if not path.exists():
        return
    hidden = path.with_name(f".{path.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def write_synced(path: Path, data: bytes) -> None:
    """Writes a file atomically and syncs it to disk; readers see the old content or the new."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Syncs a folder: only then a rename in it is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_manifest(draft: Path, manifest: CheckpointManifest) -> None:
    write_synced(draft / NAME, manifest.to_json())


def first_error(error: BaseException) -> BaseException:
    """The exception that was raised first. On a full disk torch.save closes its archive while the system's error
    propagates, and raises another error from it: "unexpected pos 704 vs 598" (torch 2.13)."""
    while error.__context__ is not None:
        error = error.__context__
    return error
