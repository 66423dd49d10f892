"""Copies of records with other values."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from msgspec import Struct, structs

T = TypeVar("T")


def replace(record: T, **changes: Any) -> T:
    """The record with these fields changed: a dataclass, or one of msgspec's Structs, as results are."""
    copied: Any = structs if isinstance(record, Struct) else dataclasses
    found: T = copied.replace(record, **changes)
    return found
