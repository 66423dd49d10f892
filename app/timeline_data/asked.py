"""What the canvas asks for, read from a request: numbers, windows, tiles and search texts, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from diag.app.policy import DASHBOARD
from diag.tables.tiles import CELLS, MOST_LEVEL

_LAST_NS = 1 << 53  # JavaScript's numbers are exact up to here


class RefusedError(Exception):
    """A request that cannot be answered, with the reason as its message."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


def tile_of(asked: Mapping[str, str]) -> tuple[int, int]:
    level, tile = whole(asked.get("level", ""), "level"), whole(asked.get("tile", ""), "tile")
    if not 0 <= level <= MOST_LEVEL:
        raise RefusedError(f"level: 0 to {MOST_LEVEL}")
    if (abs(tile) + 1) * CELLS << level > _LAST_NS * 2:
        raise RefusedError("tile: outside the recorded time")
    return level, tile


def whole(text: str, name: str) -> int:
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 16):
        raise RefusedError(f"{name}: no whole number")
    return int(text)


def moment(asked: Mapping[str, str], name: str) -> int:
    return max(-_LAST_NS, min(_LAST_NS, whole(asked.get(name, ""), name)))


def window(asked: Mapping[str, str]) -> tuple[int, int]:
    begin, end = moment(asked, "from"), moment(asked, "to")
    if end <= begin:
        raise RefusedError("to: not after from")
    return begin, end


def search_text(asked: Mapping[str, str]) -> str:
    text = asked.get("find", "")
    if len(text) > DASHBOARD.most_search_chars:
        raise RefusedError(f"find: at most {DASHBOARD.most_search_chars} characters")
    return text


def wants_python(asked: Mapping[str, str]) -> bool:
    return asked.get("python") == "1"
