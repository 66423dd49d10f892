"""What is loaded at its first use: polars, and functions that a registry names.

Loading polars is a third of the CPU time of analysing a short run without traces.

Modules take ``pl`` from here; Ruff refuses an import of polars at the top of any other module (TID253). What runs
while a module is loaded must not use ``pl``: columns are declared as ``Schema``, expressions lie in functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["Schema", "by_name", "loaded", "pl"]


class _AtFirstUse(ModuleType):
    """Stands for a module until one of its names is asked for. Threads may ask at once: each waits for the lock that
    Python keeps for the import of a module."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)  # the next time, this function is not called
        return value


if TYPE_CHECKING:
    import polars as pl
else:
    pl = _AtFirstUse("polars")


class Schema(Mapping[str, "type[pl.DataType]"]):
    """The columns of a data frame, each with the name of its type in polars: ``Schema(step="Int64")``."""

    def __init__(self, **types: str) -> None:
        self._types = types

    def __getitem__(self, column: str) -> type[pl.DataType]:
        kind: type[pl.DataType] = getattr(pl, self._types[column])
        return kind

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)


class ByName:
    """The function at ``where`` ("module:name"), whose module is loaded at the first call. Registries name what they
    list this way: neither Python nor a reader has to follow them to what a run does not need. The annotation beside
    each says what it takes and returns; ``tests/test_by_name.py`` looks up every name."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return loaded(self.where)(*arguments, **named)

    def __repr__(self) -> str:
        return f"by_name({self.where!r})"


def by_name(where: str) -> Any:
    """``ByName``, for mypy of the type that it is assigned to."""
    return ByName(where)


def loaded(where: str) -> Any:
    """What is called ``name`` in a module, given as "module:name"."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)
