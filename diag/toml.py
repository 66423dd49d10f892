"""TOML of any origin as values, or one error that says why not."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

SETTINGS: Final = "diag.toml"  # of an analysis: see diag.rundir.settings
_LARGEST = 1 << 63
_MOST_DOTS = 500
_KEY = re.compile(r"[\w\"'.\t -]+")  # what a key with dots consists of, and many other texts


class NotTomlError(ValueError):
    """A text that is not TOML; its text is the reason."""


def toml_values(text: str) -> dict[str, Any]:
    """The values of a text. NotTomlError where it is broken, nested too deep, or holds an integer beyond the 64 bits
    that TOML gives them: Python reads thousands of digits and then cannot print them."""
    if any(run[0].count(".") > _MOST_DOTS for run in _KEY.finditer(text)):
        raise NotTomlError("a key of too many parts")  # tomllib takes time that goes with their square
    try:
        values = tomllib.loads(text)
    except RecursionError as error:
        raise NotTomlError("nested too deep") from error
    except ValueError as error:  # also a number of too many digits
        raise NotTomlError(str(error)) from error
    waiting: list[Any] = [values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise NotTomlError("a number beyond 64 bits")
    return values


def settings_files(paths: Iterable[Path]) -> list[Path]:
    """The settings files of these folders, or of the folders of these files, and of the current directory, which comes
    last; each once."""
    folders = [path if path.is_dir() else path.parent for path in paths]
    with suppress(OSError):  # the current directory was removed
        folders.append(Path.cwd())
    files: dict[str, Path] = {}
    for folder in folders:
        if os.path.lexists(folder / SETTINGS):
            files.setdefault(os.path.realpath(folder), folder / SETTINGS)
    return list(files.values())
