"""What became of one trace file."""

from __future__ import annotations

from typing import Any

import msgspec


class Found(msgspec.Struct):
    """For one trace: its key in the cache, or its contents, or what is wrong with it; nothing where it is to be read
    again."""

    path: str
    key: str = ""
    contents: Any = None
    reason: str = ""
