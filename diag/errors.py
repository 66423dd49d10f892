"""One error type for everything that a user can fix, caught once, at the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """Exit codes of ``diag``; ``diag run`` passes the training's own code through instead."""

    OK = 0
    ERROR = 1
    USAGE = 2
    GATE_EXCEEDED = 3
    DATA_INCOMPLETE = 4
    HANG = 5  # of ``diag run``: the training hung and was ended


class DiagError(Exception):
    """An error that the user can act on: what happened, in which file, and what to do next. Never a bug in diag."""

    def __init__(
        self, message: str, *, hint: str = "", path: Path | str | None = None, exit_code: ExitCode = ExitCode.ERROR
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.path = str(path) if path is not None else None
        self.exit_code = exit_code


def unreadable(error: OSError, path: Path | str) -> DiagError:
    """The error for a file or a folder that cannot be read, because of the system or of our own rules."""
    where = error.filename if isinstance(error.filename, str) else path
    hint = "ask its owner for permission to read it" if isinstance(error, PermissionError) else ""
    return DiagError(f"cannot be read: {error.strerror or error}", path=where, hint=hint)


@contextmanager
def readable(path: Path | str) -> Iterator[None]:
    """Converts an OSError from reading ``path`` into the DiagError of ``unreadable``."""
    try:
        yield
    except OSError as error:
        raise unreadable(error, path) from error
