"""Small gzip files of long texts, made in the time that their packed size takes."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from collections.abc import Sequence

from isal import isal_zlib

_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_END = b"\x03\x00"  # an empty last block
_UNIT = 4 << 20

Piece = tuple[bytes, int]  # a text, and how often it comes


def packed(*pieces: Piece) -> bytes:
    """One gzip member of each piece so many times. A flushed block refers to nothing before it, so it can be repeated
    as it is; only the checksum has to see all of the text."""
    blocks, crc, size = [], 0, 0
    for text, times in pieces:
        for unit, count in _units(text, times):
            deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
            blocks.append((deflate.compress(unit) + deflate.flush(zlib.Z_FULL_FLUSH)) * count)
            for _ in range(count):
                crc = isal_zlib.crc32(unit, crc)
            size += len(unit) * count
    return _HEADER + b"".join(blocks) + _END + struct.pack("<II", crc, size & 0xFFFFFFFF)


def _units(text: bytes, times: int) -> list[Piece]:
    """The same text in large pieces: a small one repeated would pack badly."""
    many = max(1, min(times, _UNIT // max(1, len(text))))
    return [(text * many, times // many), (text * (times % many), 1)]


def tar_gz(*members: tuple[tarfile.TarInfo, Sequence[Piece]]) -> bytes:
    """A .tar.gz; the content of a regular file is its pieces."""
    pieces: list[Piece] = []
    for info, content in members:
        info.size = sum(len(text) * times for text, times in content)
        pieces += [(info.tobuf(tarfile.GNU_FORMAT), 1), *content, (bytes(-info.size % 512), 1)]
    return packed(*pieces, (bytes(1024), 1))


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o644
    if kind in (tarfile.CHRTYPE, tarfile.BLKTYPE):
        info.devmajor, info.devminor = 1, 5  # /dev/zero
    return info


def plain_tar(name: str, data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = member(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return out.getvalue()
