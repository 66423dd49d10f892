"""The text of a trace file in pieces of bounded size, inflated on the way."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, cast

from isal import igzip, isal_zlib

from diag.errors import DiagError

if TYPE_CHECKING:
    from typing_extensions import Buffer

BLOCK_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
# Traces deflate to between a tenth and a thirtieth. gzip's own limit is a thousandth, which only zeros reach.
MAX_INFLATION = 300
_INFLATION_FREE_BYTES = 256 << 20
_DEFLATE_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # the stub types it as an instance
_HINT = "Record the trace again, or leave this file out; the other ranks can be analysed without it."


def damaged(path: str, reason: str) -> DiagError:
    """The error for a file that is no whole trace: its name, why, and that the others can do without it."""
    return DiagError(f"{file_name(path)}: {reason}", hint=_HINT, path=path)


def file_name(path: str) -> str:
    """The last part of a path, an address, or an archive's member."""
    return re.split(r"[/\\!]", path)[-1]


def blocks(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The file's bytes, inflated if its first bytes say gzip (tools rename .json.gz to .json and back).

    Blocks of at most BLOCK_BYTES, so a file that inflates to terabytes costs no memory; DiagError once it has inflated
    to more than MAX_INFLATION times its size, and for a stream that ends early or is damaged.
    """
    counted = _Counting(file)
    magic = counted.read(2) or b""
    counted.put_back(magic)
    if magic != _GZIP_MAGIC:
        yield from iter(lambda: counted.read(BLOCK_BYTES) or b"", b"")
        return
    inflated = 0
    stream = inflating(cast(BinaryIO, counted))
    while True:
        try:
            block = stream.read(BLOCK_BYTES)
        except EOFError as error:
            raise damaged(name, "the gzip stream ends early, the file is truncated") from error
        except (igzip.BadGzipFile, _DEFLATE_ERROR) as error:
            raise damaged(name, f"the gzip stream is damaged: {error}") from error
        if not block:
            return
        inflated += len(block)
        if inflated > _INFLATION_FREE_BYTES and inflated > MAX_INFLATION * counted.taken:
            raise damaged(name, f"it inflates to more than {MAX_INFLATION} times its size, which no trace does")
        yield block


def inflating(file: BinaryIO) -> BinaryIO:
    """The file as its inflated content."""
    return cast(BinaryIO, igzip.IGzipFile(fileobj=file, mode="rb"))  # type: ignore[no-untyped-call]


def members(file: BinaryIO, name: str) -> Iterator[tuple[str, BinaryIO | None]]:
    """Name and content of everything in a .tar or .tar.gz, in one pass; None for what is no plain file.

    Nothing is written to the disk, so the names in an archive can lead nowhere. The content of one member has to be
    read before the next one is asked for.
    """
    counted = _Counting(file)
    magic = counted.read(2) or b""
    counted.put_back(magic)
    plain = inflating(cast(BinaryIO, counted)) if magic == _GZIP_MAGIC else counted
    try:
        with tarfile.open(fileobj=cast(BinaryIO, plain), mode="r|") as archive:
            for member in archive:
                yield member.name, cast("BinaryIO | None", archive.extractfile(member) if member.isreg() else None)
    except (tarfile.TarError, EOFError, igzip.BadGzipFile, _DEFLATE_ERROR) as error:
        raise damaged(name, f"the archive is damaged or ends early: {error or 'unexpected end'}") from error


class _Counting(io.RawIOBase):
    """A file that counts what was taken from it and takes one reading back."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._back = b""
        self.taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        found = self._back[: len(view)] or self._file.read(len(view))
        self._back = self._back[len(found) :]
        view[: len(found)] = found
        self.taken += len(found)
        return len(found)

    def put_back(self, data: bytes) -> None:
        self._back = data + self._back
        self.taken -= len(data)
