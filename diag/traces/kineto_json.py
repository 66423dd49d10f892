"""Kineto's JSON: the text is cut into chunks of whole events, and chunks of any layout are decoded into typed events.

Chrome's format has two forms: an object with the list ``traceEvents``, and that list alone, whose closing bracket may
be missing. A chunk is the text of consecutive events. Where it may be cut is guessed from the last bytes and proven by
decoding (``[chunk]`` is JSON only if it was cut between two events); `exact_cut` reads every bracket, for the rare
texts that defeat guessing.

Measured on a 54 MB trace on one core: msgspec decodes the fields below in 0.13 to 0.2 s (orjson 1.3 s for everything).
Times stay text here (``msgspec.Raw``): traces without ``baseTimeNanoseconds`` carry microseconds since 1970 with three
decimals, 19 digits, and a float64 of that is wrong by up to 125 ns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NoReturn, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from diag.decoding import json_decoder
from diag.errors import DiagError
from diag.traces.policy import TRACE_LIMITS, TRACE_READING

from .foreign import no_trace
from .text_stream import damaged

_OPENING = re.compile(rb'"traceEvents"\s*:\s*')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
# Between two events as Kineto prints them. A newline cannot lie inside a JSON string.
KINETO_BETWEEN = b"\n  },\n  {\n"
_BOM = b"\xef\xbb\xbf"
_OPENED = b'{"traceEvents": ['


class Cutter:
    """Splits a stream of text blocks into header, chunks of whole events, and rest.

    ``header`` is everything before the first event, including ``"traceEvents": [`` or the bracket of a bare array, or
    the whole text if it has neither. ``rest`` is the text after the last chunk: the last events, ``]`` and what
    follows. ``beginning`` is the beginning of the events' text.

    The text stays in the blocks in which it came, and so does a chunk: its decoder joins it, once.
    """

    def __init__(self, blocks: Iterator[bytes], name: str, chunk_bytes: int | None = None) -> None:
        self._blocks = blocks
        self._name = name
        self._size = TRACE_READING.chunk_bytes if chunk_bytes is None else chunk_bytes
        self._parts: list[bytes] = []
        self.closed = False
        self.is_array = False
        self.unclosed = False  # an array without its last bracket; known from `documents`
        self.beginning = b""
        self.header = self._read_header()

    def next_chunk(self) -> list[bytes]:
        """The text of the next whole events, in pieces, without a comma around it; [] if only the rest is left."""
        if self.closed:
            return []
        if not self._fill(self._size):
            text = self._joined()
            if len(text) < TRACE_READING.worth_cutting_bytes or KINETO_BETWEEN not in text:
                return []
        *before, last = self._parts
        at = last.rfind(KINETO_BETWEEN)
        if at >= 0:
            end, begin = _around(at)
        else:
            end, begin = self._cut()
            before, last = [], self._joined()
        self._parts = [last[begin:]]
        return [*before, last[:end]]

    def again(self, chunk: bytes) -> bytes:
        """The chunk cut at a proven place, for one that was not JSON; b"" if that leaves only the rest, or if there is
        no such place (``rest`` then begins with the invalid text)."""
        text = self._joined()
        text = self._hold(chunk + b"," + text if text else chunk)
        end, begin, self.closed = exact_cut(text)
        while not end and not self.closed and self._fill(2 * len(text)):
            text = self._joined()
            if len(text) > TRACE_LIMITS.most_piece_bytes:
                self._too_long()
            end, begin, self.closed = exact_cut(text)
        text = self._joined()
        self._hold(text[begin:])
        return text[:end]

    @property
    def rest(self) -> bytes:
        if self._fill(TRACE_LIMITS.most_piece_bytes):
            self._too_long()
        return self._joined()

    def documents(self) -> tuple[bytes, bytes]:
        """When there are no more chunks: the header, and the last events with what follows them, each as a document.
        The second is b"" if the text has no list of events that begins with its key."""
        rest = self.rest
        if not self.is_array:
            return (self.header + b"]}", _OPENED + rest) if rest else (self.header, b"")
        rest = rest.rstrip()
        self.unclosed = not rest.endswith(b"]")
        if self.unclosed:
            rest = rest.removesuffix(b",") + b"]"
        return _OPENED + b"]}", _OPENED + rest + b"}"

    def _fill(self, size: int) -> bool:
        have = sum(map(len, self._parts))
        while have < size:
            block = next(self._blocks, b"")
            if not block:
                break
            self._parts.append(block)
            have += len(block)
        return have >= size

    def _joined(self) -> bytes:
        return self._hold(b"".join(self._parts))

    def _hold(self, text: bytes) -> bytes:
        self._parts = [text]
        return text

    def _read_header(self) -> bytes:
        size = 1 << 16
        while True:
            more = self._fill(size)
            text = self._hold(self._joined().removeprefix(_BOM))
            begin = self._opening(text)
            if begin is not None:
                self._hold(text[begin:])
                self.beginning = text[begin : begin + TRACE_READING.beginning_bytes]
                return text[:begin]
            if not more:
                self._hold(b"")
                return text  # no events: the decoder reports why
            if not text.lstrip().startswith(b"{") or size >= TRACE_LIMITS.most_piece_bytes:
                raise no_trace(self._name, text, whole=False)
            size *= 4

    def _opening(self, text: bytes) -> int | None:
        start = len(text) - len(text.lstrip())
        self.is_array = text[start : start + 1] == b"["
        return start + 1 if self.is_array else _first_opening(text)

    def _cut(self) -> tuple[int, int]:
        """End of the chunk and begin of the next in the joined text, guessed from its last bytes."""
        size = self._size
        while True:
            text = self._joined()
            at = text.rfind(KINETO_BETWEEN)
            if at >= 0:
                return _around(at)
            last = None
            for match in _BETWEEN.finditer(text, max(0, len(text) - (1 << 16))):
                last = match
            if last is not None:
                return last.start() + 1, last.end()
            size *= 2
            if size > TRACE_LIMITS.most_piece_bytes:
                self._too_long()
            if not self._fill(size):
                text = self._joined()
                return len(text), len(text)

    def _too_long(self) -> NoReturn:
        raise damaged(
            self._name, f"a single event is longer than {TRACE_LIMITS.most_piece_bytes >> 20} MB, the maximum"
        )


def _around(at: int) -> tuple[int, int]:
    """End of the event before, and begin of the event after, Kineto's text between two events."""
    return at + 4, at + 6


def _first_opening(text: bytes) -> int | None:
    """Where the first event begins: after the first ``"traceEvents": [`` that is not inside something else."""
    for match in _OPENING.finditer(text):
        if text[match.end() : match.end() + 1] != b"[":
            continue
        depth, inside = depth_before(text[: match.start()])
        if depth == 1 and not inside:
            return match.end() + 1
    return None


def depth_before(text: bytes) -> tuple[int, bool]:
    """How many brackets are open at the end of a text that begins outside a string, and whether a string is."""
    structure = _Structure(text)
    return int(structure.depth[-1]) if len(structure.depth) else 0, structure.open_string


def exact_cut(text: bytes) -> tuple[int, int, bool]:
    """(end, begin, closed) for a text that begins between two elements of an array: the end of the last whole element
    and the begin of the next. ``closed``: the array ends at ``end``, and ``begin`` is its bracket. (0, 0, False) if not
    even one element is whole."""
    structure = _Structure(text)
    closing = np.flatnonzero(structure.depth < 0)
    if len(closing):
        at = int(structure.position[closing[0]])
        return at, at, True
    commas = structure.commas()
    return (int(commas[-1]), int(commas[-1]) + 1, False) if len(commas) else (0, 0, False)


class _Structure:
    """Brackets of a JSON text, without those inside strings. Arrays: ``position`` in bytes, ``depth`` after each."""

    def __init__(self, text: bytes) -> None:
        self._bytes = np.frombuffer(text, dtype=np.uint8)
        quotes = np.flatnonzero(self._bytes == ord('"'))
        self._quotes = quotes[~self._escaped(quotes)]
        self.open_string = bool(len(self._quotes) % 2)
        brackets = np.flatnonzero((self._bytes | 0x20 == ord("{")) | (self._bytes | 0x20 == ord("}")))
        self.position = brackets[~self._in_string(brackets)]
        opening = (self._bytes[self.position] & 0x06) == 0x02  # "[" and "{" against "]" and "}"
        self.depth = np.cumsum(np.where(opening, 1, -1))

    def commas(self) -> npt.NDArray[np.int64]:
        """Positions of the commas between the elements: outside strings, with no bracket open."""
        commas = np.flatnonzero(self._bytes == ord(","))
        commas = commas[~self._in_string(commas)]
        before = np.searchsorted(self.position, commas) - 1
        depth = (
            np.where(before >= 0, self.depth[np.maximum(before, 0)], 0) if len(self.depth) else np.zeros(len(commas))
        )
        between: npt.NDArray[np.int64] = commas[depth == 0]
        return between

    def _in_string(self, at: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        inside: npt.NDArray[np.bool_] = np.searchsorted(self._quotes, at) % 2 == 1
        return inside

    def _escaped(self, at: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether each position follows an odd number of backslashes."""
        backslash = self._bytes == ord("\\")
        if not backslash.any():
            return np.zeros(len(at), dtype=np.bool_)
        # For every byte, the last position up to it that is not a backslash.
        plain = np.maximum.accumulate(np.where(backslash, -1, np.arange(len(backslash))))
        before = np.where(at > 0, at - 1 - plain[np.maximum(at - 1, 0)], 0)
        odd: npt.NDArray[np.bool_] = (before % 2 == 1) & (at > 0)
        return odd


T = TypeVar("T")

_NULL = msgspec.Raw(b"null")
# Kineto prints a bandwidth over a duration of zero as a bare inf or nan, which is not JSON.
_BARE_NUMBER = re.compile(rb'(":\s*)[-+]?(?:inf|nan|infinity)(?=\s*[,}\]])', re.I)


class Args(msgspec.Struct, gc=False):
    correlation: Any = None
    stream: Any = None
    coll_name: Any = msgspec.field(default=None, name="Collective name")
    in_elems: Any = msgspec.field(default=None, name="In msg nelems")
    out_elems: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    group_size: Any = msgspec.field(default=None, name="Group size")
    seq: Any = msgspec.field(default=None, name="Seq")
    input_dims: msgspec.Raw = msgspec.field(default=_NULL, name="Input Dims")
    input_type: msgspec.Raw = msgspec.field(default=_NULL, name="Input type")
    allocated: Any = msgspec.field(default=None, name="Total Allocated")
    reserved: Any = msgspec.field(default=None, name="Total Reserved")
    memory_bytes: Any = msgspec.field(default=None, name="Bytes")
    memory_addr: Any = msgspec.field(default=None, name="Addr")
    memory_device_type: Any = msgspec.field(default=None, name="Device Type")
    memory_device: Any = msgspec.field(default=None, name="Device Id")
    # Written by tools that merge the ranks' traces into one file (AMD's TraceLens), and in a process's metadata.
    rank: Any = None
    raw_pid: Any = msgspec.field(default=None, name="pid_raw")
    name: Any = None

    @property
    def describes_work(self) -> bool:
        """Whether they describe communication, or the shapes of an operator."""
        return self.coll_name is not None or self.input_dims != _NULL


NO_ARGS = Args()


class KinetoEvent(msgspec.Struct, gc=False):
    """One event of the Chrome trace format; ``ts`` and ``dur`` in microseconds, as their text."""

    ph: str = ""
    name: str | None = None
    cat: str | None = None
    ts: msgspec.Raw = _NULL
    dur: msgspec.Raw = _NULL
    pid: str | int | float | None = None
    tid: str | int | float | None = None
    args: Args | None = None


class KinetoDocument(msgspec.Struct):
    """A trace file. Only ``traceEvents`` is required; everything else is optional and of any shape."""

    events: list[KinetoEvent] = msgspec.field(name="traceEvents")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    base_ns: Any = msgspec.field(default=None, name="baseTimeNanoseconds")
    host_name: Any = None


class Span(msgspec.Struct, gc=False):
    """The time of an event, for callers that need no other field."""

    ph: str = ""
    ts: msgspec.Raw = _NULL
    dur: msgspec.Raw = _NULL


_DOCUMENT = json_decoder(KinetoDocument)
_FIELDS = json_decoder(dict[str, msgspec.Raw])
_SPANS = json_decoder(list[Span])
_TEXTS = json_decoder(list[msgspec.Raw])
_EVENTS = json_decoder(list[KinetoEvent])
_ARGS = json_decoder(Args)


def document(text: bytes, name: str) -> KinetoDocument:
    """A whole trace, or the beginning and end of one. DiagError, with the reason, for anything else."""
    if not text.strip():
        raise damaged(name, "the file is empty")
    return _decoded(_DOCUMENT, text, name)


def events(chunk: bytes, name: str) -> list[KinetoEvent]:
    """The events of a chunk. DiagError if it is not JSON, perhaps because it was cut in the wrong place."""
    return _decoded(_EVENTS, b"[%b]" % chunk, name)


def fields(text: bytes, name: str) -> dict[str, msgspec.Raw]:
    """The texts of a document's fields, by key. DiagError if it is not a JSON object."""
    if not text.strip():
        raise damaged(name, "the file is empty")
    return _decoded(_FIELDS, text, name)


def spans(chunk: bytes, name: str) -> tuple[list[Span], list[msgspec.Raw]]:
    """The time and the text of each event of a chunk. DiagError as from `events`."""
    text = b"[%b]" % chunk
    return _decoded(_SPANS, text, name), _decoded(_TEXTS, text, name)


def valid(text: bytes) -> bytes | None:
    """The text of a value as valid JSON: bare infinities become null, bytes that are not UTF-8 are replaced; None if it
    still is not JSON."""
    if _is_json(text):
        return text
    repaired = _BARE_NUMBER.sub(rb"\1null", text.decode("utf-8", "replace").encode())
    return repaired if _is_json(repaired) else None


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def arguments(text: bytes) -> Args:
    """An event's arguments, from the text of their object; no arguments if it is not JSON."""
    try:
        return _ARGS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return _ARGS.decode(_BARE_NUMBER.sub(rb"\1null", text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return NO_ARGS


def _decoded(decoder: msgspec.json.Decoder[T], text: bytes, name: str) -> T:
    # No error is kept in a variable beyond its handler: an error in a frame of its own traceback is a reference cycle,
    # which keeps the text and all frames up to the caller alive.
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        count = 0
        if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
            repaired, count = _BARE_NUMBER.subn(rb"\1null", text)
        if not count:
            raise _error(text, name, error) from error
    try:
        return decoder.decode(repaired)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _error(text, name, error) from error


def _error(text: bytes, name: str, error: Exception) -> DiagError:
    return damaged(name, _reason(text, error))


def _reason(text: bytes, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "not a Kineto trace: its JSON is nested too deeply"
    if isinstance(error, msgspec.ValidationError):
        return f"JSON, but not a Kineto trace: {error}"
    if "truncated" in str(error):
        return "the JSON ends early, the file is truncated"
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as bad:
        return f"not UTF-8 text (byte {bad.start})"
    return f"not JSON: {error}"
