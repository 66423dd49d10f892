"""Decoders of msgspec, each made once and one at a time: what msgspec 0.22 knows of a class is in use before it is
complete, so that two threads that decode their first record of it at once crash the process."""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any, TypeVar

from msgspec import json, msgpack

T = TypeVar("T")
_ONE_AT_A_TIME = Lock()


def json_decoder(kind: type[T]) -> json.Decoder[T]:
    made: Any = _made(json.Decoder, kind)  # type: ignore[arg-type]  # a class can be hashed
    return made  # type: ignore[no-any-return]


def msgpack_decoder(kind: type[T]) -> msgpack.Decoder[T]:
    made: Any = _made(msgpack.Decoder, kind)  # type: ignore[arg-type]
    return made  # type: ignore[no-any-return]


@cache
def _made(decoder: Any, kind: Any) -> Any:
    with _ONE_AT_A_TIME:
        return decoder(kind)
