"""What the first lines of events come to.

A trace of a million events has thousands of different first lines, so each is decoded once, as JSON, and known by its
fingerprint from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from .. import kineto_json
from ..event_table import MAX_NAMES, EventTable, Head
from .byte_columns import Positions, Text, Words

_EVENT = msgspec.json.Decoder(kineto_json.Event)
_SLOT_BITS = 16
_HEAD = np.dtype(
    [
        ("kept", np.bool_),
        ("name", np.uint32),
        ("cat", np.uint8),
        ("thread", np.uint32),
        ("launches", np.bool_),
        ("arguments", np.bool_),
        ("tells_stream", np.bool_),
    ]
)
_fields = attrgetter(*_HEAD.names or ())


class Heads(Struct):
    """Those of one file."""

    table: EventTable
    _known: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, _HEAD))  # columns of Head
    _index: dict[int, int] = field(default_factory=dict)  # fingerprint: its place in _known
    # The same as arrays, with one place for each beginning of a fingerprint: a look instead of a sort of all lines.
    _slots: Words = field(default_factory=lambda: np.zeros(1 << _SLOT_BITS, np.uint64))
    _slot_index: Positions = field(default_factory=lambda: np.full(1 << _SLOT_BITS, -1))

    def of(self, text: Text, begin: Positions, end: Positions) -> npt.NDArray[np.void] | None:
        """The columns of Head for the lines ``[begin, end)``; None where one of them is no such line."""
        if len(self._index) > MAX_NAMES:
            self._forget()
        prints = text.fingerprints(begin, end)
        slots = (prints >> np.uint64(64 - _SLOT_BITS)).view(np.int64)
        index = self._slot_index.take(slots)
        others = np.flatnonzero((self._slots.take(slots) != prints) | (index < 0))
        if len(others):
            distinct, example, code = np.unique(prints[others], return_index=True, return_inverse=True)
            example = others[example]
            if not self._learn(distinct.tolist(), text.slices(begin[example], end[example])):
                return None
            found = np.array([self._index[fingerprint] for fingerprint in distinct.tolist()])
            index[others] = found[code]
            self._slots[slots[example]], self._slot_index[slots[example]] = distinct, found
        return self._known.take(index)

    def _learn(self, prints: Sequence[int], lines: Sequence[bytes]) -> bool:
        """Decodes the lines that are new; False where one is no line of Kineto's."""
        new: list[Head] = []
        whole = True
        for fingerprint, line in zip(prints, lines, strict=True):
            if fingerprint in self._index:
                continue
            head = self._head(line)
            if head is None:
                whole = False
                break
            self._index[fingerprint] = len(self._known) + len(new)
            new.append(head)
        self._known = np.concatenate((self._known, np.array([_fields(head) for head in new], dtype=_HEAD)))
        return whole

    def _head(self, line: bytes) -> Head | None:
        try:
            event = _EVENT.decode(b"{%b}" % line.rstrip(b", "))
        except (msgspec.DecodeError, UnicodeError):
            return None
        if event.pid is None or event.tid is None or event.name is None:
            return None  # printed in another order: its parts are on other lines
        return self.table.head_of(event)

    def _forget(self) -> None:
        self._known = self._known[:0]
        self._index.clear()
        self._slot_index[:] = -1
