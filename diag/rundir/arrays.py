"""Arrays as data that can be kept: bytes of fixed types, never code. A run directory may come from anyone."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_TYPES = ("int8", "int16", "int32", "int64", "float64", "bool")
_WHOLE, _NARROW = ("int32", "int64"), ("uint8", "uint16", "uint32")


class Array(msgspec.Struct, array_like=True):
    """Whole numbers are kept in the smallest type that holds them: most are small, or times near each other. ``data``:
    of type ``kept``, the values less ``least``; with a ``first`` one, what each has more than the one before it."""

    type: str
    shape: tuple[int, ...]
    data: memoryview  # of what is decoded: no copy is made
    kept: str
    least: int = 0
    first: int | None = None

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Array:
        of_type = str(values.dtype)
        if of_type in _WHOLE and values.size:
            if narrow := _narrow(values):
                return cls(of_type, values.shape, *narrow)
            # A difference may overflow: then so does the sum.
            if narrow := _narrow(np.diff(values.ravel(), prepend=values.ravel()[:1])):
                return cls(of_type, values.shape, *narrow, int(values.flat[0]))
        return cls(of_type, values.shape, memoryview(np.ascontiguousarray(values).tobytes()), of_type)

    def read(self, *types: str) -> npt.NDArray[Any]:
        """ValueError where the bytes are not those of an array of this type and shape, or it has none of ``types``."""
        if self.type not in (types or _TYPES) or self.kept not in (self.type, *_NARROW):
            raise ValueError(self.type)
        values = np.frombuffer(self.data, dtype=self.kept)
        if self.kept == self.type:
            return values.reshape(self.shape)
        bounds = np.iinfo(self.type)
        if not all(bounds.min <= number <= bounds.max for number in (self.least, self.first or 0)):
            raise ValueError("a number that does not fit")
        values = values.astype(self.type)
        values += self.least
        if self.first is not None:
            values = np.cumsum(values, dtype=self.type)
            values += self.first
        return values.reshape(self.shape)


def _narrow(values: npt.NDArray[Any]) -> tuple[memoryview, str, int] | None:
    """``data``, ``kept`` and ``least`` of an ``Array``; None if no smaller type holds them."""
    least = int(values.min())
    span = int(values.max()) - least
    kept = next((each for each in _NARROW if span <= np.iinfo(each).max), None)
    return (memoryview((values - least).astype(kept).tobytes()), kept, least) if kept is not None else None


def edges_in(kept: Array, steps: int, entries: int) -> Ints:
    """The edges of the steps in so many entries. ValueError if they are not."""
    edges: Ints = kept.read("int64")
    if len(edges) != steps + 1 or (np.diff(edges) < 0).any() or edges[-1] != entries or edges[0] != 0:
        raise ValueError("arrays that do not fit together")
    return edges


def check_places(places: npt.NDArray[np.signedinteger], count: int) -> None:
    if len(places) and not (int(places.min()) >= 0 and int(places.max()) < count):
        raise ValueError("a place beyond the table")
