"""The names by which readers know what is in a local copy: of a run at an address, or of pieces in several folders."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

_AND = " + "
_SHOWN: dict[str, str] = {}  # by the folder of the copy


def show_as(names: Mapping[Path, str]) -> None:
    """From here on ``shown`` gives these names for the folders, and for what is in them."""
    _SHOWN.update({os.path.abspath(folder): name for folder, name in names.items()})  # noqa: PTH100  (resolves no link)


def together(names: Iterable[str]) -> str:
    """The name of a copy that joins several folders."""
    return _AND.join(names)


def apart(name: str) -> list[str]:
    """The folders that a name of several joins; empty for any other name."""
    return parts if len(parts := name.split(_AND)) > 1 else []


def in_command(path: str) -> str:
    """``shown`` as a word of a command line, which readers can copy: commands take that name for the folders."""
    return shlex.quote(shown(path))


def shown(path: str) -> str:
    """The path as its reader knows it: that of the copied file if it lies in a local copy, else the path itself."""
    name, rest = _found(path)
    return name + rest


def to_give(path: str) -> list[str]:
    """The paths that a reader gives to a command to open this one: several if their copy joins several folders."""
    name, rest = _found(path)
    return [path] if name == path else [each + rest for each in name.split(_AND)]


def _found(path: str) -> tuple[str, str]:
    """The name of the copy in which a path lies, and the rest of the path; the path itself and "" where it is in
    none."""
    if not _SHOWN:
        return path, ""
    folder = os.path.abspath(path)  # noqa: PTH100
    rest = ""
    while folder not in _SHOWN:
        folder, slash, name = folder.rpartition("/")
        if not slash:
            return path, ""
        rest = f"/{name}{rest}"
    return _SHOWN[folder], rest
