"""What of a block is kept as a line, and whether a file is a log at all."""

from __future__ import annotations

import re

from .blocks import Block
from .keep import Found

LONG = 8 << 10  # of a longer line, what stands around the anchor is kept


def raw_of(block: Block, line: int, at: int) -> bytes:
    """A line as found; of a long one its beginning and what stands around the hit, of a progress bar that was drawn
    over and over its first piece and the one with the hit."""
    start, end = int(block.starts[line]), int(block.starts[line + 1])
    data = block.data
    if end - start <= LONG and data.find(b"\r", start, end - 2) < 0:
        return data[start:end].rstrip(b"\r\n")
    begin = data.rfind(b"\r", start, at) + 1 or start
    stop = data.find(b"\r", at, end)
    stop = end if stop < 0 else stop
    if stop - begin > LONG:
        begin, stop = max(begin, at - LONG // 4), min(stop, at + LONG // 2)
    piece = data[begin:stop].rstrip(b"\r\n")
    if begin == start:
        return piece
    head = data[start : min(begin, start + 200)].partition(b"\r")[0]
    return head + (b"\r" if data[begin - 1 : begin] == b"\r" else b" [...] ") + piece


# What a training prints of a step: the last of a file tells that it went on until then.
_PROGRESS = re.compile(
    rb"%\||\d +(?:float|half|double|bfloat16) +\w+ +-?\d|\d \[=[=>.]*\][^\n]*loss|"
    rb"(?i:\b(?:step|iter(?:ation)?|epoch)s?\b[\s:=\[]*\d)[^\n]*\bloss\b|'loss':"
)
_PROGRESS_REACH = 256 << 10  # of a block's end: looking through all of it would take longer than all else


def last_progress(block: Block, file: int) -> Found | None:
    at = -1
    for match in _PROGRESS.finditer(block.data, max(0, len(block.data) - _PROGRESS_REACH)):
        at = match.start()
    if at < 0:
        return None
    line = int(block.starts.searchsorted(at, side="right")) - 1
    return file, block.first + line, raw_of(block, line, at)


HEAD = 64 << 10
_TEXT_CONTROLS = bytes(range(7, 14)) + b"\x1b\x00"
_NOT_TEXT = bytes(set(range(32)) - set(_TEXT_CONTROLS))
_TRACE = re.compile(rb'\A\s*[{\[].{0,4000}"(?:traceEvents|schemaVersion|schema_version|pg_config|entries)"', re.DOTALL)


def no_log(data: bytes) -> str:
    """Why a file is not read, or "". NULs alone are no reason: a crash leaves them in logs."""
    head = data[:HEAD]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16, which is not read: convert it to UTF-8"
    if _TRACE.match(head):
        return "a trace"
    text = head.replace(b"\0", b"")
    strange = len(text) - len(text.translate(None, _NOT_TEXT))
    if head.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"\x7fELF")) or strange > len(text) // 50:
        return "is not text and was skipped"
    return ""
