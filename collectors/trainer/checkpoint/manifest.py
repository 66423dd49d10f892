"""manifest.json of a checkpoint: everything a resume needs that is no tensor. Standard library only."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, fields
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, cast

from ...reading import DOCUMENT_BYTES, open_regular, read_regular

NAME = "manifest.json"
FORMAT = 1

DCP = "torch.distributed.checkpoint"
DEEPSPEED = "deepspeed"

_SHARDS = (".distcp", ".pt")  # large: their size is checked, not their content


class IncompleteError(Exception):
    """Not a checkpoint to trust. The message says why, without the folder."""


@dataclass(frozen=True)
class File:
    """A file of the checkpoint. ``sha256`` of all but the shards."""

    name: str
    bytes: int
    sha256: str | None = None

    @classmethod
    def of(cls, folder: Path, name: str) -> File:
        """OSError where it cannot be read, is no regular file, or leads out of the folder."""
        with open_regular(folder / name, folder) as file:
            digest = (
                None
                if name.endswith(_SHARDS)
                else hashlib.file_digest(cast(BufferedReader, file), "sha256").hexdigest()
            )
            return cls(name, os.fstat(file.fileno()).st_size, digest)

    def check(self, folder: Path) -> None:
        """IncompleteError where the file on the disk is another."""
        try:
            found = File.of(folder, self.name)
        except OSError as error:
            what = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
            raise IncompleteError(f"{self.name} {what} ({error.strerror})") from error
        if found.bytes != self.bytes:
            raise IncompleteError(f"{self.name} has {found.bytes} bytes instead of {self.bytes}")
        if found.sha256 != self.sha256:
            raise IncompleteError(f"{self.name} was changed after it was saved")


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
    checkpoint_format: int = FORMAT

    @property
    def size(self) -> int:
        """Bytes of all files but this one."""
        return sum(file.bytes for file in self.files)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode() + b"\n"

    @classmethod
    def read(cls, folder: Path) -> CheckpointManifest:
        """The manifest of a complete checkpoint, every file of which is there. Else IncompleteError."""
        try:
            content = json.loads(read_regular(folder / NAME, DOCUMENT_BYTES, folder))
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
            raise IncompleteError("manifest.json is not that of a checkpoint")
        if content["checkpoint_format"] > FORMAT:
            raise IncompleteError(f"its format is {content['checkpoint_format']}, and this diag reads up to {FORMAT}")
        known = {f.name for f in fields(cls)}
        try:
            files = tuple(File(str(f["name"]), int(f["bytes"]), f["sha256"]) for f in content.get("files", ()))
            manifest = cls(**{**{k: v for k, v in content.items() if k in known}, "files": files})
        except (TypeError, KeyError, ValueError) as error:
            raise IncompleteError(f"manifest.json lacks something ({error})") from error
        if any(PurePosixPath(file.name).is_absolute() or ".." in PurePosixPath(file.name).parts for file in files):
            raise IncompleteError("manifest.json names files outside of its folder")
        return manifest
