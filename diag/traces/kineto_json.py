"""JSON of any layout into typed events: the one place that knows JSON.

Measured on a 54 MB trace on one core: msgspec decodes the fields below in 0.13 to 0.2 s (orjson 1.3 s for everything).
Times stay text here (``msgspec.Raw``): traces without ``baseTimeNanoseconds`` carry microseconds since 1970 with three
decimals, 19 digits, and a float64 of that is wrong by up to 125 ns.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from diag.errors import DiagError

from .text_stream import damaged

T = TypeVar("T")

_NULL = msgspec.Raw(b"null")
# Kineto prints a bandwidth over a duration of zero as a bare inf or nan, which is not JSON.
_BARE_NUMBER = re.compile(rb'(":\s*)[-+]?(?:inf|nan|infinity)(?=\s*[,}\]])', re.I)


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that the analysis reads."""

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
    memory_device_type: Any = msgspec.field(default=None, name="Device Type")
    memory_device: Any = msgspec.field(default=None, name="Device Id")
    # What tools write that merge the ranks' traces into one file (AMD's TraceLens), and of a process's metadata.
    rank: Any = None
    raw_pid: Any = msgspec.field(default=None, name="pid_raw")
    name: Any = None

    @property
    def told(self) -> bool:
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
    """A trace file. Only ``traceEvents`` makes it one; everything else is optional and of any shape."""

    events: list[KinetoEvent] = msgspec.field(name="traceEvents")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    base_ns: Any = msgspec.field(default=None, name="baseTimeNanoseconds")
    host_name: Any = None


class Span(msgspec.Struct, gc=False):
    """When an event is, for whoever needs nothing else of it."""

    ph: str = ""
    ts: msgspec.Raw = _NULL
    dur: msgspec.Raw = _NULL


_DOCUMENT = msgspec.json.Decoder(KinetoDocument)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SPANS = msgspec.json.Decoder(list[Span])
_TEXTS = msgspec.json.Decoder(list[msgspec.Raw])
_EVENTS = msgspec.json.Decoder(list[KinetoEvent])
_ARGS = msgspec.json.Decoder(Args)


def document(text: bytes, name: str) -> KinetoDocument:
    """A whole trace, or the beginning and end of one. DiagError, with the reason, for everything that is none."""
    if not text.strip():
        raise damaged(name, "the file is empty")
    return _decoded(_DOCUMENT, text, name)


def events(chunk: bytes, name: str) -> list[KinetoEvent]:
    """The events of a chunk. DiagError where it is not JSON, which may be because it was cut in the wrong place."""
    return _decoded(_EVENTS, b"[%b]" % chunk, name)


def fields(text: bytes, name: str) -> dict[str, msgspec.Raw]:
    """The texts of a document's fields, by key. DiagError where it is no JSON object."""
    if not text.strip():
        raise damaged(name, "the file is empty")
    return _decoded(_FIELDS, text, name)


def spans(chunk: bytes, name: str) -> tuple[list[Span], list[msgspec.Raw]]:
    """When each event of a chunk is, and its text. DiagError as from `events`."""
    text = b"[%b]" % chunk
    return _decoded(_SPANS, text, name), _decoded(_TEXTS, text, name)


def valid(text: bytes) -> bytes | None:
    """The text of a value as JSON that anybody reads: bare infinities are null, bytes that are no UTF-8 are replaced;
    None where it still is not JSON."""
    if _is_json(text):
        return text
    mended = _BARE_NUMBER.sub(rb"\1null", text.decode("utf-8", "replace").encode())
    return mended if _is_json(mended) else None


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def arguments(text: bytes) -> Args:
    """An event's arguments, from the text of their object; no arguments where it is not JSON."""
    try:
        return _ARGS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return _ARGS.decode(_BARE_NUMBER.sub(rb"\1null", text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return NO_ARGS


def _decoded(decoder: msgspec.json.Decoder[T], text: bytes, name: str) -> T:
    # No error goes into a variable that outlives its handler: an error in a frame of its own traceback is a cycle,
    # which keeps the text and all frames up to the caller.
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        count = 0
        if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
            mended, count = _BARE_NUMBER.subn(rb"\1null", text)
        if not count:
            raise _error(text, name, error) from error
    try:
        return decoder.decode(mended)
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
