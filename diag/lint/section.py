"""One table of a configuration: its values by kind, and notices about its keys."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterator
from typing import Any

from msgspec import Struct

from .document import Document, shown
from .lines import Place
from .model import Notice, Severity

_TRUE, _FALSE = ("true", "yes", "on", "1", "t", "y"), ("false", "no", "off", "0", "f", "n")
_NEAR = 0.75  # of difflib's ratio


class Section(Struct, frozen=True):
    """``values`` stand at ``place`` in the document: () for the whole of it."""

    document: Document
    place: Place
    values: dict[str, Any]

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def within(self, key: str) -> Section:
        """The table under the key; an empty one where there is none."""
        value = self.values.get(key)
        return Section(self.document, (*self.place, key), value if isinstance(value, dict) else {})

    def number(self, key: str) -> float | None:
        """None for anything that is no number, "auto" among it; numbers in quotes count, as Transformers takes them."""
        value = self.values.get(key)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return None
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300 or math.isnan(value):
            return None
        return value

    def whole(self, key: str) -> int | None:
        value = self.number(key)
        return int(value) if value is not None and value == int(value) else None

    def flag(self, key: str) -> bool | None:
        """None for anything that is neither true nor false; words count, as Accelerate takes them."""
        value = self.values.get(key)
        word = str(value).lower() if isinstance(value, bool | str) else ""
        return True if word in _TRUE else False if word in _FALSE else None

    def word(self, key: str) -> str | None:
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def shown(self, key: str) -> str:
        return shown(self.values.get(key))

    def say(self, key: str, severity: Severity, text: str, instead: str, source: str) -> Notice:
        """A notice about the key, which need not be there: its line is then that of the nearest table around it."""
        place = (*self.place, *key.split(".")) if key else self.place
        lines = self.document.lines
        line = next((lines[place[:end]] for end in range(len(place), 0, -1) if place[:end] in lines), None)
        return Notice(self.document.path, line, ".".join(place), severity, text, instead, source)

    def line(self, key: str) -> int | None:
        return self.document.lines.get((*self.place, key))

    def unknown(self, known: Collection[str]) -> Iterator[tuple[str, str | None]]:
        """Keys that are not among the known ones, each with the nearest that is."""
        for key in self.values:
            if key not in known:
                yield key, nearest(key, known)


def nearest(key: str, known: Collection[str], ratio: float = _NEAR) -> str | None:
    """The known name that is most like this one; None where none is."""
    found = difflib.get_close_matches(str(key)[:100], known, n=1, cutoff=ratio)
    return found[0] if found else None
