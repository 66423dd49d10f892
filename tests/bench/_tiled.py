"""One long trace out of a short one: the events repeated, each copy later in time, as a longer recording would be."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

_EVENTS = re.compile(rb'"traceEvents":\s*\[')
_EVENT = re.compile(rb'"ph": "')
_TIME = re.compile(rb'"ts": (\d+(?:\.\d+)?)(?:, "dur": (\d+(?:\.\d+)?))?')
# What must stay unique or move with time. "id" is a flow's; flows join a launch to its kernel.
_MOVING = re.compile(
    rb'"(?P<key>ts|correlation|External id|id|Ev Idx|Record function id)": (?P<whole>\d+)(?P<part>\.\d+)?'
    rb"|ProfilerStep#(?P<step>\d+)"
)


def tiled(source: bytes, copies: int) -> Iterator[bytes]:
    """The text of the trace with its events repeated ``copies`` times, piece by piece."""
    begin = _EVENTS.search(source)
    if begin is None:
        raise ValueError("no traceEvents")
    end = source.rindex(b"]")
    head, events, tail = source[: begin.end()], source[begin.end() : end].rstrip().rstrip(b","), source[end:]
    times = [(float(m[1]), float(m[2] or 0)) for m in _TIME.finditer(events)]
    period = int(max(ts + dur for ts, dur in times) - min(ts for ts, _ in times)) + 1000
    numbers = [int(m["whole"]) for m in _MOVING.finditer(events) if m["key"] not in (None, b"ts")]
    serial = max((n for n in numbers if n < 1 << 40), default=0) + 1
    steps = {int(m["step"]) for m in _MOVING.finditer(events) if m["step"]}
    yield head
    for copy in range(copies):
        yield (b"," if copy else b"") + _moved(events, copy * period, copy * serial, copy * (len(steps) or 1))
    yield tail


def _moved(events: bytes, later: int, serial: int, steps: int) -> bytes:
    if not later:
        return events

    def move(m: re.Match[bytes]) -> bytes:
        if m["step"]:
            return b"ProfilerStep#%d" % (int(m["step"]) + steps)
        whole = int(m["whole"])
        if m["key"] == b"ts":
            whole += later
        elif 0 < whole < 1 << 40:
            whole += serial
        return b'"%b": %d%b' % (m["key"], whole, m["part"] or b"")

    return _MOVING.sub(move, events)


def write_tiled(source: Path, target: Path, events: int) -> int:
    """Writes a trace of about that many events, of any phase; how many. gzip where the target's name says so."""
    opener = gzip.open if source.name.endswith(".gz") else open
    with opener(source, "rb") as file:
        text = file.read()
    each = len(_EVENT.findall(text))
    copies = max(1, round(events / each))
    with gzip.open(target, "wb", compresslevel=6) if target.name.endswith(".gz") else target.open("wb") as out:
        for piece in tiled(text, copies):
            out.write(piece)
    return copies * each
