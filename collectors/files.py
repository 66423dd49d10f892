"""Writing that survives a crash: append-only lines, atomic replacement, files that only their owner may read."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import operator
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def is_full(error: object) -> bool:
    """Whether the disk, or this user's quota, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_full(problem: str) -> OSError:
    """The error for a short write, which the system does not report as an error."""
    return OSError(errno.ENOSPC, f"{problem}, is the disk full?")


_BLOCK = 4096  # bytes, of most file systems
_PRIVATE = 0o600
# A link under one of our names was put there by someone else: its target is neither appended to nor truncated. A pipe
# without a reader does not block the training either.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | _NO_LINK


def encode(record: Any) -> bytes:
    """One JSON line of a record (a dataclass or plain containers). Independent of the locale; never contains NaN."""
    try:
        text = _ENCODER.encode(record)
    except ValueError:  # a loss of NaN is worth recording, but not JSON
        text = json.dumps(_finite(json.loads(json.dumps(record, default=_fields))), separators=(",", ":"))
    return text.encode() + b"\n"


def _fields(record: Any) -> dict[str, Any]:
    """The fields of a dataclass without copying: ``asdict`` copies deeply, which took most of a step's recording."""
    names, values_of = _getters(record.__class__)
    return dict(zip(names, values_of(record), strict=True))


@functools.cache
def _getters(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    names = tuple(kind.__dataclass_fields__)
    first_value = operator.attrgetter(names[0])
    return names, operator.attrgetter(*names) if len(names) > 1 else lambda record: (first_value(record),)


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_fields)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def open_private(path: Path) -> io.FileIO:
    """An unbuffered file, truncated for writing. If this creates it, only its owner may read it: for command lines, the
    environment and a training's output. Raises OSError."""
    return io.FileIO(path, "wb", opener=_private_descriptor)


def append_to(path: Path) -> io.FileIO:
    """An unbuffered file opened for appending, created if there is none. Raises OSError, also for a symbolic link."""
    return io.FileIO(path, "ab", opener=lambda name, _flags: os.open(name, APPEND, 0o644))


def _private_descriptor(path: str, flags: int) -> int:
    return os.open(path, flags | _NO_LINK, _PRIVATE)


def own_folder(folder: Path) -> None:
    """Makes a folder that only this user may enter. OSError where it is somebody else's, or a link."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.is_symlink() or (hasattr(os, "geteuid") and folder.lstat().st_uid != os.geteuid()):
        raise PermissionError(13, "the folder is another user's", str(folder))


def replace_file(path: Path, data: bytes, private: bool = False) -> None:
    """Replaces a file atomically: readers see the old content or the new, never a part. ``private``: only its owner may
    read it. Raises OSError."""
    with _beside(path, data, private) as temporary:
        temporary.replace(path)


def rewrite_file(path: Path, data: bytes, private: bool = False) -> None:
    """As ``replace_file``, but overwrites the file in place if the disk has no room for a second one: a concurrent
    reader may see a part. This needs content of at most one block, which fits where the old content was. Raises
    OSError."""
    try:
        replace_file(path, data, private)
    except OSError as error:
        if not is_full(error) or len(data) > _BLOCK or not path.exists():
            raise
        with path.open("r+b", buffering=0) as file:
            file.write(data)
            file.truncate()


def create_file(path: Path, data: bytes, private: bool = False) -> bool:
    """Creates a file atomically: readers see none or all of it. Returns False if it exists, and leaves it unchanged. Of
    several processes, also on hosts that share a file system, one succeeds. ``private``: see ``replace_file``. Raises
    OSError."""
    with _beside(path, data, private) as temporary:
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links: a reader may see a part
            try:
                with open(path, "xb", opener=_private_descriptor if private else None) as file:
                    file.write(data)
            except FileExistsError:
                return False
    return True


@contextlib.contextmanager
def _beside(path: Path, data: bytes, private: bool) -> Iterator[Path]:
    """A temporary file with ``data`` in the folder of ``path``; removed afterwards."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if private:
            temporary.touch(_PRIVATE, exist_ok=False)
        temporary.write_bytes(data)
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
