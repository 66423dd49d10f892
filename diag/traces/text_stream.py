"""The text of trace files in blocks of bounded size, decompressed on the way; from files, folders, object stores
(anything that fsspec opens) and members of tar archives."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Self, cast

from diag.collectors.layout import RunLayout, is_folder, run_of
from diag.collectors.reading import open_regular, walk
from diag.errors import DiagError
from diag.model import Gap
from diag.packed import FREE_BYTES, PackedError, Unpacked
from diag.store.stores import is_remote as is_remote
from diag.store.stores import store_errors
from diag.traces.policy import TRACE_LIMITS, TRACE_READING

if TYPE_CHECKING:
    from typing_extensions import Buffer


_DAMAGED_HINT = "Record the trace again, or leave this file out; the other ranks can be analysed without it."


def damaged(path: str, reason: str) -> DiagError:
    """The error for a file that is not a whole trace: its name, the reason, and a hint that it can be left out."""
    return DiagError(f"{file_name(path)}: {reason}", hint=_DAMAGED_HINT, path=path)


def file_name(path: str) -> str:
    """The last part of a path, an address, or an archive's member."""
    return re.split(r"[/\\!]", path)[-1]


def blocks(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The file's bytes, inflated if it begins like gzip (tools rename .json.gz to .json and back).

    Blocks of at most BLOCK_BYTES, so a file that inflates to terabytes costs no memory; DiagError once it has inflated
    to more than MAX_INFLATION times its size, and for a stream that ends early or is damaged.
    """
    inflated = _Inflated(file, name, FREE_BYTES)
    yield from iter(lambda: inflated.read(TRACE_READING.block_bytes) or b"", b"")


def members(file: BinaryIO, name: str) -> Iterator[tuple[str, BinaryIO | None]]:
    """Name and content of everything in a .tar or .tar.gz, in one pass; None for members that are not plain files.

    Nothing is written to the disk, so the names in an archive can lead nowhere. The content of one member has to be
    read before the next one is requested. DiagError, also from reading a content, if the archive is damaged or ends
    early: after all members that are whole."""
    plain = _Inflated(file, name, TRACE_LIMITS.archive_free_bytes)
    with _archive_errors(name), tarfile.open(fileobj=cast(BinaryIO, plain), mode="r|", tarinfo=_Header) as archive:
        for number, member in enumerate(archive):
            archive.members.clear()  # type: ignore[attr-defined]  # kept for seeking; each has its headers
            if number >= TRACE_LIMITS.most_archive_members:
                raise damaged(
                    name,
                    f"the archive holds more than {TRACE_LIMITS.most_archive_members:,} files: the others are not read",
                )
            content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
            yield member.name, cast(BinaryIO, _Member(content, name)) if content is not None else None


@contextmanager
def _archive_errors(name: str) -> Iterator[None]:
    """Converts tarfile's errors for a damaged or truncated header or content to ours."""
    try:
        yield
    except (tarfile.TarError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        reason = str(error) if isinstance(error, tarfile.TarError) else f"a header is malformed ({error})"
        raise damaged(name, f"the archive is damaged or ends early: {reason or 'unexpected end'}") from error


_PAX_KEYS = ("path", "linkpath", "size")
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class _Header(tarfile.TarInfo):
    """tarfile treats a truncated or malformed header as the end of the archive; here it is an error."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the stubs lack it and the next one
            raise
        except tarfile.HeaderError as error:
            at_end = isinstance(error, tarfile.EmptyHeaderError)  # type: ignore[attr-defined]
            reason = "the end-of-archive marker is missing" if at_end else str(error)
            raise tarfile.ReadError(reason) from error

    def _proc_member(self, tarfile_: tarfile.TarFile) -> tarfile.TarInfo:
        """Limits the headers with names, which are read as a whole."""
        if self.type in _EXTENDED:
            read = getattr(tarfile_, "headers_read", 0) + self.size
            if self.size > TRACE_LIMITS.most_member_header_bytes or read > TRACE_LIMITS.most_archive_headers_bytes:
                raise tarfile.ReadError(f"extended headers of {read:,} bytes")
            tarfile_.headers_read = read  # type: ignore[attr-defined]
        member: tarfile.TarInfo = super()._proc_member(tarfile_)  # type: ignore[misc]
        return member

    def _proc_pax(self, tarfile_: tarfile.TarFile) -> tarfile.TarInfo:
        """tarfile keeps all keys, copies those of a global header into every later member, and searches a header in
        time that goes with its square. Only the next member's name, size and link matter here."""
        content = tarfile_.fileobj.read(-(-self.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)[: self.size]
        member = self.fromtarfile(tarfile_)
        if self.type == tarfile.XGLTYPE:
            return member
        keys = dict(_pax_records(content))
        if any(key.startswith("GNU.sparse.") for key in keys):
            member.sparse = []  # type: ignore[assignment]  # its content begins with a map
        keys = {key: value for key, value in keys.items() if key in _PAX_KEYS}
        member._apply_pax_info(keys, tarfile_.encoding, tarfile_.errors)  # type: ignore[attr-defined]
        member.offset = self.offset
        if "size" in keys:
            blocks_of_content = -(-member.size // tarfile.BLOCKSIZE) if member.isreg() else 0
            tarfile_.offset = member.offset_data + blocks_of_content * tarfile.BLOCKSIZE
        return member

    def _proc_sparse(self, tarfile_: tarfile.TarFile) -> tarfile.TarInfo:
        """The map of a sparse file may go on for gigabytes. The content of such a file is not read."""
        _, is_continued, size = self._sparse_structs
        self._sparse_structs: Any = ([], False, size)
        while is_continued:
            is_continued = bool(tarfile_.fileobj.read(tarfile.BLOCKSIZE)[504:505].strip(b"\0"))
        member: tarfile.TarInfo = super()._proc_sparse(tarfile_)  # type: ignore[misc]
        return member


def _pax_records(content: bytes) -> Iterator[tuple[str, str]]:
    """Key and value of each record ``length key=value``; the length is that of the whole record."""
    at = 0
    while (blank := content.find(b" ", at, at + 10)) > 0:
        end = at + int(content[at:blank])
        record = content[blank + 1 : end]
        if end <= blank or not record.endswith(b"\n"):
            raise tarfile.ReadError("an extended header is malformed")
        key, _, value = record[:-1].decode("utf-8", "surrogateescape").partition("=")
        yield key, value
        at = end


class _Member(io.RawIOBase):
    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file, self._name = file, name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        with _archive_errors(self._name):
            data = self._file.read(len(view))
        view[: len(data)] = data
        return len(data)


class _Inflated(Unpacked):
    """The content of a file, inflated if it begins like gzip. DiagError instead of PackedError."""

    def __init__(self, file: BinaryIO, name: str, free_bytes: int) -> None:
        self._name = name
        super().__init__(file, free_bytes)

    def read(self, size: int = -1) -> bytes:
        try:
            return super().read(size)
        except PackedError as error:
            raise damaged(self._name, str(error)) from error


TRACE_ENDINGS = (".json", ".json.gz")
ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz")
_PACKED_TRACE = re.compile(r"\.json\.(?:zst|zstd|xz|bz2|lz4|br|zip|7z)$", re.I)
_PACKED = "is compressed in an unsupported format: decompress it, or compress it with gzip"
# Files of the run directory that lie with its traces, but are not traces.
_OURS = (RunLayout(Path()).verdict.name, RunLayout(Path()).manifest.name)

_UNREADABLE_HINT = "Check the path and its permissions."
# Names that stores' clients use for the version of an object.
_VERSION_KEYS = ("size", "ETag", "etag", "mtime", "LastModified", "updated", "md5Hash")


def is_archive(path: str) -> bool:
    return path.endswith(ARCHIVE_ENDINGS)


def exists(path: str) -> bool:
    """Whether there is a file or a folder. OSError if that may not be checked."""
    if not is_remote(path):
        try:
            Path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True
    with store_errors(path):
        system, inner = _store(path)
        return bool(system.exists(inner))


def trace_files(paths: Iterable[str], gaps: list[Gap], enter: Callable[[str], bool] | None = None) -> list[str]:
    """Every file under the paths that may be a trace or an archive of traces, folders in order of names. ``enter``:
    whether a folder is searched."""
    files: list[str] = []

    def refused(place: str, reason: str) -> None:
        gaps.append(Gap(place, reason))

    for path in paths:
        if not is_remote(path) and is_folder(path):
            inside = sorted(
                walk(path, refused, wanted=lambda name: may_be_trace(name) or _is_packed(name), enter=enter)
            )
            gaps.extend(Gap(file, _PACKED) for file in inside if not may_be_trace(file) and _is_packed(file))
            files.extend(file for file in inside if may_be_trace(file))
        elif may_be_trace(path):
            files.append(path)
        elif is_remote(path):
            files.extend(_remote_files(path))
        else:
            gaps.append(
                Gap(path, "is not a trace: Kineto traces end in .json or .json.gz, archives in .tar or .tar.gz")
            )
    return files


def _is_packed(path: str) -> bool:
    """Whether a file's name is that of a trace in a form that is not read."""
    return _PACKED_TRACE.search(path) is not None


def may_be_trace(path: str) -> bool:
    return path.endswith((*TRACE_ENDINGS, *ARCHIVE_ENDINGS)) and file_name(path) not in _OURS


def _remote_files(path: str) -> list[str]:
    with store_errors(path):
        system, inner = _store(path)
        return sorted(system.unstrip_protocol(name) for name in system.find(inner) if may_be_trace(name))


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The file's bytes. DiagError if it cannot be read."""
    try:
        if is_remote(path):
            with store_errors(path), _open_remote(path) as file:
                yield cast(BinaryIO, file)
        else:
            with open_regular(path, run_of(path), buffering=0) as file:  # a pipe would never end
                yield file
    except OSError as error:
        raise DiagError(
            f"{file_name(path)}: cannot be read: {error.strerror or error}",
            hint=_UNREADABLE_HINT,
            path=path,
        ) from error


def remote_key(path: str) -> str:
    """A key of a stored object's content, from the store's metadata."""
    with store_errors(path):
        system, inner = _store(path)
        info = system.info(inner)
    parts = [path, *(f"{key}={info[key]}" for key in _VERSION_KEYS if key in info)]
    return sha256("\n".join(parts).encode()).hexdigest()[:32]


def size_of(path: str) -> int:
    try:
        if is_remote(path):
            system, inner = _store(path)
            return int(system.size(inner) or 0)
        return Path(path).stat().st_size
    except (OSError, ValueError, ImportError):
        return 0


def _store(path: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs  # takes a while to import, and most traces are files

    system_and_path: tuple[Any, str] = url_to_fs(path)
    return system_and_path


def _open_remote(path: str) -> Any:
    import fsspec

    return fsspec.open(path, "rb")
