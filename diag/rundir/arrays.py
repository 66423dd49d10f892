"""Arrays as data that can be kept: bytes of fixed types, never code. A run directory may come from anyone."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_TYPES = ("int8", "int16", "int32", "int64", "float64", "bool")
_NARROW = {name: int(np.iinfo(name).max) for name in ("uint8", "uint16", "uint32")}  # and the largest number in it
_name = cache(str)  # numpy makes it anew each time, for thousands of arrays a run


class Array(msgspec.Struct, array_like=True):
    """``data``: the values less ``least``, of type ``kept``: whole numbers are in the smallest type that holds them."""

    type: str
    shape: tuple[int, ...]
    data: memoryview  # of what is decoded: no copy is made
    kept: str
    least: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] = 0

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Array:
        kept, least = (kind := _name(values.dtype)), 0
        if kept in ("int32", "int64") and values.size:
            least, most = int(values.min()), int(values.max())
            kept = next((each for each, largest in _NARROW.items() if most - least <= largest), kept)
            least *= kept in _NARROW
        moved = np.ascontiguousarray(values - least if least else values, dtype=kept)
        return cls(kind, values.shape, memoryview(moved.tobytes()), kept, least)

    def read(self, *types: str) -> npt.NDArray[Any]:
        """ValueError where the bytes are not those of an array of this type and shape, or it has none of ``types``."""
        as_it_is = self.kept == self.type and not self.least
        if self.type not in (types or _TYPES) or not (as_it_is or self.kept in _NARROW):
            raise ValueError(self.type)
        values = np.frombuffer(self.data, dtype=self.kept)
        moved = values.astype(np.int64) + self.least if self.least else values
        return moved.astype(self.type, copy=False).reshape(self.shape)


def edges_in(kept: Array, steps: int, entries: int) -> Ints:
    """The edges of the steps in so many entries. ValueError if they are not."""
    edges: Ints = kept.read("int64")
    if len(edges) != steps + 1 or (np.diff(edges) < 0).any() or edges[-1] != entries or edges[0] != 0:
        raise ValueError("arrays that do not fit together")
    return edges


def check_places(places: npt.NDArray[np.signedinteger], count: int) -> None:
    if len(places) and not (int(places.min()) >= 0 and int(places.max()) < count):
        raise ValueError("a place beyond the table")
