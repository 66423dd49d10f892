"""One long trace out of a short one: the events repeated, each copy later in time, as a longer recording would be.

Moved with each copy: times in both forms (whole microseconds, or with decimals), step numbers, and every number that
joins events and must therefore differ between copies (correlation, flow, external and operator ids, sequence numbers of
collectives). The source is in memory once, as pieces of text and the numbers between them; the copies are streamed.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from isal import igzip

_EVENTS = re.compile(rb'"traceEvents":\s*\[')
_EVENT = re.compile(rb'"ph":\s*"')
# Only keys and step names: a key's opening quote is never escaped, so text inside a name does not match. "name" ends
# the search for a time's duration at the event, whatever stands between them.
_TIME = re.compile(rb'"ts":\s*(-?\d+(?:\.\d+)?)(?:,\s*"dur":\s*(\d+(?:\.\d+)?))?')
_MOVING = re.compile(
    rb'(?<!\\)"(?P<key>ts|correlation|External id|id|Ev Idx|Record function id|Python id|Python parent id|Seq)":\s*'
    rb"(?P<whole>\d+)|(?P<step>ProfilerStep#|diag\.step#)(?P<number>\d+)"
)
_BIGGEST_ID = 1 << 40  # what is larger stands for "none": Kineto writes 2**64 - 1
_PER_PIECE = 100_000  # numbers in one piece of output: some five megabytes


class Tiles:
    """A trace cut into the text that stays and the numbers that move."""

    def __init__(self, source: bytes) -> None:
        opening = _EVENTS.search(source)
        if opening is None:
            raise ValueError("no traceEvents")
        end = _end_of_list(source, opening.end())
        self.head, self.tail = source[: opening.end()], source[end:]
        body = source[opening.end() : end].rstrip()
        self.events = len(_EVENT.findall(body))
        times = [(float(m[1]), float(m[2] or 0)) for m in _TIME.finditer(body)]
        # Whole milliseconds, so that the decimals stay, and with room, so that no copy touches the next.
        span = max(ts + dur for ts, dur in times) - min(ts for ts, _ in times)
        self.period_us = (int(span) // 1000 + 2) * 1000
        self._texts: list[bytes] = []
        self._numbers: list[int] = []
        self._kinds: list[int] = []
        at, ids, steps = 0, [0], {0}
        for m in _MOVING.finditer(body):
            group = "number" if m["step"] else "whole"
            value = int(m[group])
            is_time = m["key"] == b"ts"
            if not m["step"] and not is_time:
                if not 0 < value < _BIGGEST_ID and m["key"] != b"Seq":
                    continue
                ids.append(value)
            if m["step"]:
                steps.add(value)
            self._texts.append(body[at : m.start(group)])
            self._numbers.append(value)
            self._kinds.append(2 if m["step"] else 0 if is_time else 1)
            at = m.end(group)
        self._last = body[at:]
        steps.discard(0)
        self._shifts = (self.period_us, max(ids) + 1, max(steps) - min(steps) + 1 if steps else 1)

    def text(self, copies: int) -> Iterator[bytes]:
        """The trace with its events that many times, piece by piece."""
        yield self.head
        for copy in range(copies):
            if copy:
                yield b","
            shifts = [copy * shift for shift in self._shifts]
            for at in range(0, len(self._texts), _PER_PIECE):
                window = slice(at, at + _PER_PIECE)
                pairs = zip(self._numbers[window], self._kinds[window], strict=True)
                moved = (b"%d" % (number + shifts[kind]) for number, kind in pairs)
                yield b"".join(chain.from_iterable(zip(self._texts[window], moved, strict=True)))
            yield self._last
        yield b"\n  " + self.tail


def read_bytes(path: Path) -> bytes:
    """The text of a trace, unpacked."""
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def write(pieces: Iterable[bytes], *targets: Path) -> None:
    """The same text into each target; gzip where its name says so."""
    files = [_open(target) for target in targets]
    try:
        for piece in pieces:
            for file in files:
                file.write(piece)
    finally:
        for file in files:
            file.close()


def write_tiled(source: Path, events: int, *targets: Path) -> int:
    """Writes a trace of about that many events, of any phase, to each target; how many events it has."""
    tiles = Tiles(read_bytes(source))
    copies = max(1, round(events / tiles.events))
    write(tiles.text(copies), *targets)
    return copies * tiles.events


def write_ranks(sources: list[Path], folder: Path, ranks: int, copies: int = 1) -> int:
    """A folder of one gzip trace a rank, made of the sources in turn; how many events they have together."""
    events = 0
    tiles = [Tiles(read_bytes(source)) for source in sources]
    for rank in range(ranks):
        one = tiles[rank % len(tiles)]
        original, one.head = one.head, relabelled(one.head, rank, ranks)
        write(one.text(copies), folder / f"rank{rank}.json.gz")
        one.head = original
        events += copies * one.events
    return events


def relabelled(header: bytes, rank: int, ranks: int) -> bytes:
    """The header of a trace with another rank and world size."""
    for key, value in (("rank", rank), ("world_size", ranks)):
        header, count = re.subn(rb'("%b":\s*)\d+' % key.encode(), rb"\g<1>%d" % value, header, count=1)
        if not count:
            raise ValueError(f"the header says no {key}")
    return header


def _end_of_list(source: bytes, begin: int) -> int:
    """Where the list of events that opens at ``begin`` closes; lists may follow it, and lie in it, also as text."""
    depth = 1
    for m in re.finditer(rb'"(?:[^"\\]|\\.)*+"|[\[\]]', source[begin:]):
        depth += {b"[": 1, b"]": -1}.get(m[0], 0)
        if not depth:
            return begin + m.start()
    raise ValueError("traceEvents does not end")


def _open(target: Path) -> BinaryIO:
    if target.name.endswith(".gz"):
        return cast(BinaryIO, igzip.open(target, "wb", compresslevel=2))
    return target.open("wb")
