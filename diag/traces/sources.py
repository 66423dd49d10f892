"""Where traces lie: files and folders here, objects in a store (anything fsspec opens), members of tar archives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, cast

from diag.collectors.layout import RunLayout, is_folder, run_of
from diag.collectors.reading import open_regular, walk
from diag.errors import DiagError
from diag.model.damaged import Gap

from .text_stream import file_name

TRACE_ENDINGS = (".json", ".json.gz")
ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz")
# A file of the store that we keep beside the traces of a run is none of them.
_OURS = (RunLayout(Path()).verdict.name, RunLayout(Path()).manifest.name)

_HINT = "Check the path and its permissions."
# What the clients of stores call the version of an object.
_VERSION_KEYS = ("size", "ETag", "etag", "mtime", "LastModified", "updated", "md5Hash")


def is_remote(path: str) -> bool:
    """Whether the path is an address like ``s3://bucket/run``."""
    return "://" in path


def is_archive(path: str) -> bool:
    return path.endswith(ARCHIVE_ENDINGS)


def exists(path: str) -> bool:
    """Whether there is a file or a folder. OSError where that may not be looked at."""
    if not is_remote(path):
        try:
            Path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True
    with _store_errors(path):
        system, inner = _store(path)
        return bool(system.exists(inner))


def trace_files(paths: Iterable[str], gaps: list[Gap]) -> list[str]:
    """Every file under the paths that may be a trace or an archive of traces, folders in order of names."""
    found: list[str] = []

    def refused(place: str, reason: str) -> None:
        gaps.append(Gap(place, reason))

    for path in paths:
        if not is_remote(path) and is_folder(path):
            found.extend(sorted(walk(path, refused, wanted=_may_be_trace)))
        elif _may_be_trace(path):
            found.append(path)
        elif is_remote(path):
            found.extend(_remote_files(path))
        else:
            gaps.append(
                Gap(path, "is not a trace: Kineto traces end in .json or .json.gz, archives in .tar or .tar.gz")
            )
    return found


def _may_be_trace(path: str) -> bool:
    return path.endswith((*TRACE_ENDINGS, *ARCHIVE_ENDINGS)) and file_name(path) not in _OURS


def _remote_files(path: str) -> list[str]:
    with _store_errors(path):
        system, inner = _store(path)
        return sorted(system.unstrip_protocol(name) for name in system.find(inner) if _may_be_trace(name))


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The file's bytes. DiagError where it cannot be read."""
    try:
        if is_remote(path):
            with _store_errors(path), _open_remote(path) as file:
                yield cast(BinaryIO, file)
        else:
            with open_regular(path, run_of(path), buffering=0) as file:  # a pipe would never end
                yield file
    except OSError as error:
        raise DiagError(
            f"{file_name(path)}: cannot be read: {error.strerror or error}",
            hint=_HINT,
            path=path,
        ) from error


def remote_key(path: str) -> str:
    """A key of a stored object's content, from what the store says of it."""
    with _store_errors(path):
        system, inner = _store(path)
        info = system.info(inner)
    told = [path, *(f"{key}={info[key]}" for key in _VERSION_KEYS if key in info)]
    return sha256("\n".join(told).encode()).hexdigest()[:32]


def size_of(path: str) -> int:
    """Bytes of the file as it lies there."""
    try:
        if is_remote(path):
            system, inner = _store(path)
            return int(system.size(inner) or 0)
        return Path(path).stat().st_size
    except (OSError, ValueError, ImportError):
        return 0


def _store(path: str) -> tuple[Any, str]:
    """The store that an address names, and the path in it."""
    from fsspec.core import url_to_fs  # takes a while to import, and most traces are files

    found: tuple[Any, str] = url_to_fs(path)
    return found


def _open_remote(path: str) -> Any:
    import fsspec

    return fsspec.open(path, "rb")


@contextmanager
def _store_errors(path: str) -> Iterator[None]:
    """What a store's client raises, as our error: a missing package, a wrong address, no permission."""
    try:
        yield
    except DiagError:
        raise
    except ImportError as error:
        raise DiagError(f"{path}: {error}", hint="Install the client of this store.", path=path) from error
    except ValueError as error:
        raise DiagError(f"{path}: {error}", hint="Check the address.", path=path) from error
