"""What the linter finds: notices, equivalents of FSDP1's keys, and what a configuration alone cannot tell."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Format(StrEnum):
    """Whose configuration a file is."""

    DEEPSPEED = "DeepSpeed"
    ACCELERATE = "Accelerate"
    TRAINING_ARGUMENTS = "TrainingArguments"
    FSDP_CONFIG = "fsdp_config"  # of TrainingArguments, in a file of its own
    TORCHTITAN = "torchtitan"


class Severity(StrEnum):
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
    severity: Severity
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


class Unseen(Struct, frozen=True):
    """What the file does not tell, and what to check instead."""

    what: str
    check: str


class Linted(Struct, frozen=True):
    """One file. ``notices``: errors first, then as they stand in the file."""

    path: str
    format: Format
    notices: tuple[Notice, ...]
    translations: tuple[Translation, ...]
    could_not_look: tuple[Unseen, ...]


class Devices(Struct, frozen=True):
    """What the configuration is to run on. ``gpus`` None: not told."""

    gpus: int | None
    per_host: int

    @property
    def hosts(self) -> int | None:
        return -(-self.gpus // self.per_host) if self.gpus is not None else None
