"""Options of the commands that write a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeVar

import typer

from diag.errors import DiagError, ExitCode

STDOUT = Path("-")


PathOrAddress = TypeVar("PathOrAddress", Path, str)


def no_dash(path: PathOrAddress | None) -> PathOrAddress | None:
    """The path, for the callback of an option: ``-``, which is standard output elsewhere, is refused."""
    if path is not None and Path(path) == STDOUT:
        raise typer.BadParameter("standard output cannot take this; ./- is a file or folder of this name")
    return path


def is_stdout(path: Path | None) -> bool:
    """Whether ``-`` was given, for standard output. DiagError where that is a terminal."""
    if path != STDOUT:
        return False
    if sys.stdout.isatty():
        hint = "give a file, or send it to another program"
        raise DiagError("a terminal cannot show this", hint=hint, exit_code=ExitCode.USAGE)
    return True
