"""The names by which readers know what is in a local copy: of a run at an address, or of pieces in several folders."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from diag.collectors.layout import FIRST_ATTEMPT

_AND = " + "
_SHOWN: dict[str, str] = {}  # by the folder of the copy
_FIRST: set[str] = set()  # folders of runs with several attempts


def show_as(names: Mapping[Path, str]) -> None:
    """From here on ``shown`` gives these names for the folders, and for what is in them."""
    _SHOWN.update({os.path.abspath(folder): name for folder, name in names.items()})  # noqa: PTH100  (resolves no link)


def show_first(run: Path) -> None:
    """From here on ``shown`` names the first attempt of this run, whose folder it is, by a name of its own: commands
    take the folder for the newest attempt."""
    _FIRST.add(os.path.abspath(run))  # noqa: PTH100


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
    return [name + rest] if name == path else [each + rest for each in name.split(_AND)]


def _found(path: str) -> tuple[str, str]:
    """The name of the copy in which a path lies, and the rest of the path; the path itself where it is in none."""
    if not _SHOWN and not _FIRST:
        return path, ""
    folder = os.path.abspath(path)  # noqa: PTH100
    rest = first = f"/{FIRST_ATTEMPT}" if folder in _FIRST else ""
    while folder not in _SHOWN:
        folder, slash, name = folder.rpartition("/")
        if not slash:
            return path, first
        rest = f"/{name}{rest}"
    return _SHOWN[folder], rest
