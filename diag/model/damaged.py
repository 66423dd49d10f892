"""Files that cannot be read: the error of a damaged one, and the record of what is missing."""

from __future__ import annotations

import msgspec

# What msgspec raises for what is no JSON of the expected kind, as text that is not UTF-8 or 100,000 open brackets.
DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Gap(msgspec.Struct, frozen=True):
    """Something that could not be read, and why: a stated result, never silence."""

    path: str
    reason: str
