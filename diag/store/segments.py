"""Segments: what changed in a node's folder in one interval, as one immutable file in a store.

    <run>/segments/<node>/0000000017-0000000017.seg    the 17th of this node
    <run>/segments/<node>/0000000001-0000000016.seg    the first sixteen, merged

A segment holds new ends of files that grow, whole files that were replaced, and names of files that were removed. Each
content of a file has a number, its generation, and each part its offset. So a reader may apply a segment twice, or a
merged one after some of its parts, and gets the same files. A segment begins with a digest: one that is written half is
known as such.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec
import zstandard
from msgspec import Struct

from diag.decoding import msgpack_decoder
from diag.store.policy import SEGMENTS
from diag.store.stores import is_plain_name

MAGIC = b"DIAGSEG1"
_HEAD_BYTES = len(MAGIC) + hashlib.sha256().digest_size


class DamagedSegmentError(ValueError):
    """The reason why a segment cannot be used."""


class Entry(Struct, array_like=True):
    """``data`` of a file from ``offset`` on. ``removed``: the file is gone, and so is every earlier generation."""

    name: str
    generation: int
    offset: int
    data: bytes
    mtime_ns: int
    removed: bool = False


class Segment(Struct):
    """``first`` and ``last``: numbers of the segments that it stands for."""

    node: str
    first: int
    last: int
    entries: list[Entry]


def encode(segment: Segment) -> bytes:
    packed = zstandard.ZstdCompressor(level=SEGMENTS.compression).compress(msgspec.msgpack.encode(segment))
    return MAGIC + hashlib.sha256(packed).digest() + packed


def decode(data: bytes) -> Segment:
    """DamagedSegmentError for anything that ``encode`` did not write."""
    packed = data[_HEAD_BYTES:]
    if data[: len(MAGIC)] != MAGIC:
        raise DamagedSegmentError("is not a segment, or one of a newer version")
    if data[len(MAGIC) : _HEAD_BYTES] != hashlib.sha256(packed).digest():
        raise DamagedSegmentError("is damaged, or was not written to its end")
    try:
        size = zstandard.frame_content_size(packed)
        if not 0 <= size <= SEGMENTS.most_bytes:
            raise DamagedSegmentError(f"unpacks to more than {SEGMENTS.most_bytes >> 20} MiB")
        content = zstandard.ZstdDecompressor().decompress(packed, max_output_size=SEGMENTS.most_bytes)
        segment = msgpack_decoder(Segment).decode(content)
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise DamagedSegmentError(f"is damaged: {error}") from error
    if not all(is_plain_name(entry.name) and entry.offset >= 0 for entry in segment.entries):
        raise DamagedSegmentError("names a file outside of the run")
    return segment


def merged(segments: Iterable[Segment]) -> Segment:
    """One segment for several of a node, in order. What a later one replaced or removed is left out."""
    parts = list(segments)
    kept: dict[str, list[Entry]] = {}
    for segment in parts:
        for entry in segment.entries:
            of_file = kept.setdefault(entry.name, [])
            before = of_file[-1] if of_file else None
            if before is None or entry.generation > before.generation or entry.removed:
                kept[entry.name] = [entry]
            elif entry.generation == before.generation and not before.removed:
                end = before.offset + len(before.data)
                if entry.offset <= end:
                    new = entry.data[end - entry.offset :]
                    of_file[-1] = msgspec.structs.replace(before, data=before.data + new, mtime_ns=entry.mtime_ns)
                else:
                    of_file.append(entry)
    entries = [entry for of_file in kept.values() for entry in of_file]
    return Segment(parts[0].node, parts[0].first, parts[-1].last, entries)


def raw_bytes(entries: Iterable[Entry]) -> int:
    return sum(len(entry.data) + len(entry.name) for entry in entries)
