"""Keys of collectives as columns: (group, sequence number or k-th call, operation)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .parts import Ints

Key = tuple[str, int, str]
_NO_CODES: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)


def names_joined(several: Sequence[Sequence[str]]) -> tuple[list[npt.NDArray[np.int32]], tuple[str, ...]]:
    """The names of several tables, each once; and by table the places there of its own names."""
    codes: dict[str, int] = {}
    own = [np.array([codes.setdefault(name, len(codes)) for name in names], dtype=np.int32) for names in several]
    return own, tuple(codes)


class Keys(NamedTuple):
    """Keys of collectives as columns; ``group`` and ``label`` are places in ``names``."""

    group: npt.NDArray[np.signedinteger]
    seq: Ints
    label: npt.NDArray[np.signedinteger]
    names: tuple[str, ...]

    @classmethod
    def of(cls, keys: Sequence[Key]) -> Keys:
        codes: dict[str, int] = {}

        def coded(names: Sequence[str]) -> npt.NDArray[np.int32]:
            return np.array([codes.setdefault(name, len(codes)) for name in names], dtype=np.int32)

        group, label = coded([group for group, _, _ in keys]), coded([label for _, _, label in keys])
        return cls(group, np.array([seq for _, seq, _ in keys], dtype=np.int64), label, tuple(codes))

    @classmethod
    def joined(cls, several: Sequence[Keys]) -> Keys:
        own, names = names_joined([each.names for each in several])
        group, label = (
            np.concatenate([_NO_CODES, *(code[column] for code, column in zip(own, columns, strict=True) if len(code))])
            for columns in ([each.group for each in several], [each.label for each in several])
        )
        return cls(group, np.concatenate([each.seq for each in several]), label, names)

    def take(self, places: Ints | slice) -> Keys:
        return Keys(self.group[places], self.seq[places], self.label[places], self.names)

    def keys(self) -> list[Key]:
        columns = zip(self.group.tolist(), self.seq.tolist(), self.label.tolist(), strict=True)
        return [(self.names[group], seq, self.names[label]) for group, seq, label in columns]

    def last_in(self, known: Keys, wanted: Ints | None = None, where: Ints | None = None) -> Ints:
        """For each key, the place of the last equal one among those that are known; -1 without one. ``wanted``,
        ``where``: if given, a number for each key and for each known one that has to be equal as well."""
        codes = {name: at for at, name in enumerate(known.names)}
        # Of a list with a name twice: the same code for both.
        of_known = np.array([codes[name] for name in known.names], dtype=np.int64)
        own = np.array([codes.get(name, -1) for name in self.names], dtype=np.int64)
        columns = [
            (own[self.group], of_known[known.group]), (self.seq, known.seq), (own[self.label], of_known[known.label])
        ] if len(self.seq) and len(known.seq) else []  # fmt: skip
        if wanted is not None and where is not None and columns:
            columns.append((wanted, where))
        found, code, of_each = np.full(len(self.seq), bool(columns)), *(np.zeros(1, dtype=np.int64),) * 2
        for values, among in columns:
            distinct, at = np.unique(among, return_inverse=True)
            near = np.minimum(np.searchsorted(distinct, values), len(distinct) - 1)
            found &= distinct[near] == values
            code, of_each = code * len(distinct) + near, of_each * len(distinct) + at
        if not columns:
            return np.full(len(self.seq), -1)
        order = np.argsort(of_each, kind="stable")
        near = np.searchsorted(of_each, code, side="right", sorter=order) - 1
        last = order[np.maximum(near, 0)]
        return np.where(found & (of_each[last] == code), last, -1)
