"""Messages of many lines, kept whole: tracebacks, stack dumps, torchrun's summary, PyTorch's desync report.

Lines of other processes may stand between: a line belongs to the block that the same process opened."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from .keep import Found
from .prefixes import Said

MOST_OWN = 1000
MOST_FOREIGN = 500

# What opens a block (a substring of the line), and which kind it is.
OPENERS = {
    "Traceback (most recent call last)": "traceback",
    "Fatal Python error:": "faulthandler",
    "(most recent call first)": "faulthandler",
    '(active): "': "py-spy",
    '(idle): "': "py-spy",
    '(active+gil): "': "py-spy",
    '(idle+gil): "': "py-spy",
    "Process ": "py-spy",
    "Failures:": "elastic",
    "Root Cause (first observed failure)": "elastic",
    "To our best knowledge": "desync",
    "Snapshot of ranks' latest states": "desync",
    "==== backtrace": "backtrace",
    "(LWP ": "gdb",
    "Missing ranks:": "horovod",
    "Stalled ranks:": "horovod",
}
SOURCES = {"traceback": "python", "elastic": "launcher", "desync": "torch", "horovod": "horovod"}  # the others: "stack"

_PY_SPY = re.compile(r"Process \d+: |Thread (?:\d+|0x[0-9a-fA-F]+) \((?:active|idle)")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_LISTED = re.compile(r"(?:\[\d+\] )?\d+: \[")
_FAULT = ("  File ", "  <", "  ...", "Thread 0x", "Current thread 0x", "Python runtime state", "Stack (most")
_TAIL = 4  # lines of a message after the exception's first: "ncclInternalError: ..", "Last error:", ..


class Part(Enum):
    MORE = "belongs"
    LAST = "belongs and ends it"
    NO = "ends it"


@dataclass(slots=True)
class Open:
    kind: str
    who: tuple[object, ...]
    lines: list[Found] = field(default_factory=list)
    prefix: bytes = b""  # of the line that opened it
    foreign: int = 0
    state: str = "frames"
    tail: int = 0

    def takes(self, said: Said) -> bool:
        """Whether a line can belong to it, by who says it. Of a report the first line alone may have prefixes."""
        if self.kind == "horovod":  # "1: [tensor, ..]" looks like the prefix of srun
            return not said.any or said.rank_from == "srun"
        who = said.who()
        return who == self.who or (self.kind in ("desync", "elastic") and not said.any)

    def is_frame(self, raw: bytes) -> bool:
        """Whether a line is a frame of this traceback for sure: the same prefix and indented. Saves parsing it."""
        return self.kind == "traceback" and self.state == "frames" and raw.startswith(self.prefix + b"  ")

    def feed(self, said: Said) -> Part:
        if len(self.lines) >= MOST_OWN or said.source == "nccl":
            return Part.NO
        text = said.text
        match self.kind:
            case "traceback":
                return self._traceback(said)
            case "faulthandler":
                if text.startswith("Extension modules"):
                    return Part.LAST
                return Part.MORE if not text or text.startswith(_FAULT) else Part.NO
            case "py-spy":
                if not text or text.startswith(("    ", "Python v")):
                    return Part.MORE
                return Part.MORE if text.startswith("Thread ") and _PY_SPY.match(text) else Part.NO
            case "elastic":
                return Part.LAST if text.startswith("=====") else Part.MORE
            case "horovod":
                return Part.MORE if text.startswith("[") or _LISTED.match(text) else Part.NO
            case "desync":
                return Part.MORE if text.startswith(("\t", " ", "-")) else Part.NO
            case "backtrace":
                return Part.LAST if text.startswith("=====") or len(self.lines) > 80 else Part.MORE
            case _:
                return Part.MORE if text.startswith(("#", " ")) else Part.NO

    def _traceback(self, said: Said) -> Part:
        text = said.text
        if self.state == "frames":
            if text[:1] in (" ", "\t") or not text or text.startswith("Traceback ("):
                return Part.MORE
            self.state = "message"
            return Part.MORE
        if self.state == "message":
            if not text:
                self.state = "after"
                return Part.MORE
            self.tail += 1
            if said.source or self.tail > _TAIL or text.startswith("Traceback ("):
                return Part.NO
            return Part.MORE
        if text.startswith(_CHAINED):
            self.state, self.tail = "frames", 0
            return Part.MORE
        return Part.NO


def opened(said: Said, word: str) -> Open | None:
    """The block that a line with this substring opens, if it really does."""
    kind, text = OPENERS[word], said.text
    if kind == "py-spy" and not _PY_SPY.match(text):
        return None
    if kind == "horovod" and not text.strip().endswith(word):
        return None
    if word == "Failures:" and text.strip() != "Failures:":
        return None
    if said.source == "nccl":
        return None
    return Open(kind, said.who())
