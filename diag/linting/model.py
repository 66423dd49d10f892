"""What the linter finds: notices, equivalents of FSDP1's keys, and what a configuration alone does not show."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from diag.linting.policy import LINTING
from diag.model.programs import Settings

from .document import Document, Place, shown


class Format(StrEnum):
    """The tool whose configuration a file is."""

    DEEPSPEED = "DeepSpeed"
    ACCELERATE = "Accelerate"
    TRAINING_ARGUMENTS = "TrainingArguments"
    FSDP_CONFIG = "fsdp_config"  # of TrainingArguments, in a file of its own
    TORCHTITAN = "torchtitan"
    MEGATRON = "Megatron-LM"
    NEMO = "NeMo"
    NEMO_2 = "NeMo 2"
    VERL = "verl"


class NoticeSeverity(StrEnum):
    """In the order in which they are shown."""

    ERROR = "error"  # does not work, is ignored, or contradicts another key
    WARNING = "warning"  # costs speed or memory
    NOTE = "note"  # a misunderstanding or a deprecation


class Notice(Struct, frozen=True):
    """``key``: its path in the file, joined by dots. ``line``: from 1; of the nearest enclosing key where the key
    itself is missing. ``instead``: exactly what to write. ``source``: where the claim can be checked."""

    path: str
    line: int | None
    key: str
    severity: NoticeSeverity
    text: str
    instead: str
    source: str


class Translation(Struct, frozen=True):
    """One key of FSDP1 and what FSDP2 has for it: in ``config`` (the same file's form) and in ``python``."""

    key: str
    value: str
    line: int | None
    config: str
    python: str


class Unchecked(Struct, frozen=True):
    """What the file does not show, and what to check instead."""

    what: str
    check: str


class Linted(Struct, frozen=True):
    """One file. ``notices``: errors first, then in the order of the file. ``settings``: of a program with
    options of its own, what it sets."""

    path: str
    format: Format
    notices: tuple[Notice, ...]
    translations: tuple[Translation, ...]
    could_not_look: tuple[Unchecked, ...]
    settings: Settings | None = None


class Devices(Struct, frozen=True):
    """The devices that the configuration is for. ``gpus``: None if unknown."""

    gpus: int | None
    per_host: int

    @property
    def hosts(self) -> int | None:
        return -(-self.gpus // self.per_host) if self.gpus is not None else None


# -- section -----------------------------------------------------------------------------------------------------------
#
# One table of a configuration: its values by kind, and notices about its keys.

_TRUE, _FALSE = ("true", "yes", "on", "1", "t", "y"), ("false", "no", "off", "0", "f", "n")


class Section(Struct, frozen=True):
    """``values`` are at ``place`` in the document: () for the whole document."""

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
        """None for anything that is not a number, such as "auto"; numbers in quotes count, as in Transformers."""
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
        """None for anything that is neither true nor false; words count, as in Accelerate."""
        value = self.values.get(key)
        word = str(value).lower() if isinstance(value, bool | str) else ""
        return True if word in _TRUE else False if word in _FALSE else None

    def word(self, key: str) -> str | None:
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def shown(self, key: str) -> str:
        return shown(self.values.get(key))

    def say(self, key: str, severity: NoticeSeverity, text: str, instead: str, source: str) -> Notice:
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


# -- rows --------------------------------------------------------------------------------------------------------------
#
# Rules as tables: a row for each notice.

ERROR, WARNING, NOTE = NoticeSeverity.ERROR, NoticeSeverity.WARNING, NoticeSeverity.NOTE
Words = str | Callable[[Any], str]  # or made from the configuration


class Row(Struct, frozen=True):
    """A notice that is given if ``when`` holds for a configuration: its key, the printed text, what to write instead,
    and where that can be checked."""

    key: Words
    severity: NoticeSeverity
    when: Callable[[Any], object]
    text: Words
    instead: Words
    source: Words


class Rule(Struct, frozen=True):
    """Rows that are about one thing."""

    rows: tuple[Row, ...]

    def __call__(self, seen: Any) -> Iterator[Notice]:
        for row in self.rows:
            if row.when(seen):
                key, *words = (part if isinstance(part, str) else part(seen) for part in
                               (row.key, row.text, row.instead, row.source))  # fmt: skip
                yield seen.say(key, row.severity, *words)


def rule(*rows: Row) -> Rule:
    return Rule(rows)


def keys_of(name: str) -> frozenset[str]:
    """The keys that a tool reads in one of its tables, from keys.json, which tests/lint/make_keys.py writes."""
    return frozenset(_keys()[name] or ())


def tables_of(tool: str) -> dict[str, frozenset[str] | None]:
    """All tables of a tool with their keys; None: any key, as models and experiments add their own."""
    named = {name.partition(".")[2]: keys for name, keys in _keys().items() if name.startswith(f"{tool}.")}
    return {name: frozenset(keys) if keys is not None else None for name, keys in named.items()}


@cache
def _keys() -> dict[str, list[str] | None]:
    keys: dict[str, list[str] | None] = json.loads(Path(__file__).with_name("keys.json").read_bytes())
    return keys


def nearest(key: str, known: Collection[str], ratio: float = LINTING.near_ratio) -> str | None:
    """The known name that is most similar to this one; None where none is similar."""
    matches = difflib.get_close_matches(str(key)[:100], known, n=1, cutoff=ratio)
    return matches[0] if matches else None
