"""Arrays as data that can be kept: bytes of fixed types, never code. A run directory may come from anyone."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_TYPES = ("int8", "int16", "int32", "int64", "float64", "bool")


class Array(msgspec.Struct, array_like=True):
    type: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Array:
        return cls(str(values.dtype), values.shape, np.ascontiguousarray(values).tobytes())

    def read(self, *types: str) -> npt.NDArray[Any]:
        """ValueError where the bytes are not those of an array of this type and shape, or it has none of ``types``."""
        if self.type not in (types or _TYPES):
            raise ValueError(self.type)
        return np.frombuffer(self.data, dtype=self.type).reshape(self.shape)


def edges_in(kept: Array, steps: int, entries: int) -> Ints:
    """The edges of the steps in so many entries. ValueError if they are not."""
    edges: Ints = kept.read("int64")
    if len(edges) != steps + 1 or (np.diff(edges) < 0).any() or edges[-1] != entries or edges[0] != 0:
        raise ValueError("arrays that do not fit together")
    return edges


def check_places(places: npt.NDArray[np.signedinteger], count: int) -> None:
    if len(places) and not (int(places.min()) >= 0 and int(places.max()) < count):
        raise ValueError("a place beyond the table")
