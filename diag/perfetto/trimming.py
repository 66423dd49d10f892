"""The text of a trace with only the events of a window, written while it is read.

What is kept keeps its text. Only a chunk of the file is in memory at a time, whatever the file holds.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from diag.errors import DiagError
from diag.traces import kineto_json
from diag.traces.event_chunks import Cutter
from diag.traces.kineto_events import exact_ns

METADATA = "M"  # names of processes and threads
_EVENTS = "traceEvents"
_NEVER = -(1 << 62)
_Texts = list[msgspec.Raw]


class Trimming(Struct):
    """Of the trace ``name``, the window ``[begin_ns, end_ns)`` on the file's own clock (without its base time).
    ``events`` counts what was kept of it, without metadata; it is complete when `text` is exhausted."""

    name: str
    begin_ns: int
    end_ns: int
    events: int = 0
    _told: set[str] = field(default_factory=set)
    _empty: bool = True

    def text(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """The trace as pieces of valid JSON: metadata and whatever overlaps the window. DiagError for what is no whole
        trace; what came before it is of no use then."""
        cutter = Cutter(blocks, self.name)
        chunk = cutter.next_chunk()
        if not chunk and not cutter.documents()[1]:  # the key may be written with escapes
            yield from self._whole(kineto_json.fields(cutter.header, self.name))
            return
        yield from self._before({} if cutter.is_array else kineto_json.fields(cutter.header + b"]}", self.name))
        while chunk:
            yield self._chosen(*_spans(cutter, b"".join(chunk), self.name))
            chunk = cutter.next_chunk()
        tail = kineto_json.fields(cutter.documents()[1], self.name)
        yield self._chosen(*kineto_json.spans(_inside(tail), self.name))
        yield from self._after(tail)

    def _whole(self, document: dict[str, msgspec.Raw]) -> Iterator[bytes]:
        if _EVENTS not in document:
            kineto_json.document(b"{}", self.name)  # says what is missing, as for every reader
        yield from self._before({})
        yield self._chosen(*kineto_json.spans(_inside(document), self.name))
        yield from self._after(document)

    def _before(self, fields: dict[str, msgspec.Raw]) -> Iterator[bytes]:
        yield b"{\n"
        for key, text in self._fields(fields):
            yield b"%b: %b,\n" % (key, text)
        yield b'"traceEvents": [\n'

    def _after(self, fields: dict[str, msgspec.Raw]) -> Iterator[bytes]:
        yield b"\n]"
        for key, text in self._fields(fields):
            yield b",\n%b: %b" % (key, text)
        yield b"\n}\n"

    def _fields(self, fields: dict[str, msgspec.Raw]) -> Iterator[tuple[bytes, bytes]]:
        """What else than events the document holds, each key once."""
        for key, value in fields.items():
            text = kineto_json.valid(bytes(value))
            if key != _EVENTS and key not in self._told and text is not None:
                self._told.add(key)
                yield msgspec.json.encode(key), text

    def _chosen(self, spans: list[kineto_json.Span], texts: _Texts) -> bytes:
        """The texts of the events to keep, with a comma before them where some came before."""
        metadata = np.array([span.ph == METADATA for span in spans], dtype=np.bool_)
        inside = self._inside_window(spans) & ~metadata
        found = []
        for i in np.flatnonzero(inside | metadata).tolist():
            text = kineto_json.valid(bytes(texts[i]))
            if text is not None:
                found.append(text)
                self.events += int(inside[i])
        if not found:
            return b""
        before = b"" if self._empty else b",\n"
        self._empty = False
        return before + b",\n".join(found)

    def _inside_window(self, spans: list[kineto_json.Span]) -> npt.NDArray[np.bool_]:
        start = exact_ns(span.ts for span in spans).fill_null(_NEVER).to_numpy()
        dur = exact_ns(span.dur for span in spans).fill_null(0).clip(0, -_NEVER).to_numpy()
        # What has no duration (marks, arrows, counters) is inside where it is not before the window.
        ends = (start + dur > self.begin_ns) | ((dur == 0) & (start == self.begin_ns))
        found: npt.NDArray[np.bool_] = (start < self.end_ns) & ends & (start != _NEVER)
        return found


def _spans(cutter: Cutter, chunk: bytes, name: str) -> tuple[list[kineto_json.Span], _Texts]:
    """Of a chunk; cut again where the guess of a boundary was wrong."""
    try:
        return kineto_json.spans(chunk, name)
    except DiagError as error:
        chunk = cutter.again(chunk)
        if not chunk.strip() and not cutter.closed:
            raise error
        return kineto_json.spans(chunk, name)


def _inside(document: dict[str, msgspec.Raw]) -> bytes:
    """The text between the brackets of the events."""
    text = bytes(document[_EVENTS]).strip()
    return text[1:-1] if text[:1] == b"[" else text
