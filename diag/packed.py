"""The content of packed files of any origin, in memory that does not depend on what they hold.

Every reader of packed input but that of logs (``diag.hang.text.streams``, which reads on after damage) reads through
``Unpacked``: a few hundred kilobytes can inflate to gigabytes, and a header of gzip may hold a name without end.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from isal import igzip, isal_zlib

if TYPE_CHECKING:
    from typing_extensions import Buffer

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # how packed files begin
# Traces deflate to between a tenth and a thirtieth. gzip's own limit is a thousandth, which only zeros reach.
MAX_INFLATION = 300
FREE_BYTES = 256 << 20  # any file may unpack to so much
_MOST_READS_AT_END = 100  # tarfile skips content block by block, even far beyond the end of the file
_ZSTD_WINDOW = 128 << 20  # zstd's own limit without --long
DEFLATE_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # the stub types it as an instance


class PackedError(Exception):
    """A packed file that is damaged, ends early or unpacks to too much; its text is the reason."""


class Unpacked(io.RawIOBase):
    """The content of a file: inflated if it begins like gzip, unpacked if it begins like zstd and ``zstd`` is set, else
    as it is. ``read`` raises PackedError if the stream ends early or is damaged (after what is whole), and if it holds
    more than ``free_bytes`` and more than so many ``times`` the file."""

    def __init__(
        self, file: BinaryIO, free_bytes: int = FREE_BYTES, times: int = MAX_INFLATION, *, zstd: bool = False
    ) -> None:
        self._free_bytes, self._times, self._given, self._reads_at_end = free_bytes, times, 0, 0
        self._counted = _Counting(file)
        magic = self._counted.read(len(ZSTD)) or b""
        self._counted.put_back(magic)
        self._packed: Any = None
        self._form = ""
        self._errors: tuple[type[Exception], ...] = ()
        if magic.startswith(GZIP):
            self._packed = igzip.IGzipFile(fileobj=cast(BinaryIO, self._counted), mode="rb")  # type: ignore[no-untyped-call]
            # OverflowError: the name or the comment in a header does not fit igzip's buffer.
            self._errors = (igzip.BadGzipFile, DEFLATE_ERROR, OverflowError)
            self._form = "gzip"
        elif zstd and magic == ZSTD:
            import zstandard  # rarely needed

            unpack = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
            source = unpack.stream_reader(cast(BinaryIO, self._counted), read_across_frames=True)
            self._packed = io.BufferedReader(cast(io.RawIOBase, source))
            self._errors = (zstandard.ZstdError,)
            self._form = "zstd"

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            # read1 returns the data before a truncation, which read drops.
            block: bytes = self._packed.read1(size) if self._packed is not None else self._counted.read(size) or b""
        except EOFError as error:
            raise PackedError("the gzip stream ends early, the file is truncated") from error
        except self._errors as error:
            raise PackedError(f"the {self._form} stream is damaged: {error}") from error
        self._given += len(block)
        self._reads_at_end += not block
        if self._reads_at_end > _MOST_READS_AT_END:
            raise PackedError("the file ends early")
        if self._packed is not None and self._given > max(self._free_bytes, self._times * self._counted.taken):
            raise PackedError(f"it decompresses to more than {self._times} times its size, the maximum")
        return block

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        block = self.read(len(view))
        view[: len(block)] = block
        return len(block)


class _Counting(io.RawIOBase):
    """Counts the bytes read from a file, and takes one read back."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._back = b""
        self.taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        data, self._back = self._back[: len(view)], self._back[len(view) :]
        data += self._file.read(len(view) - len(data)) if len(data) < len(view) else b""
        view[: len(data)] = data
        self.taken += len(data)
        return len(data)

    def put_back(self, data: bytes) -> None:
        self._back = data + self._back
        self.taken -= len(data)
