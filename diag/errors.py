"""One error type for everything that a user can fix, caught once, at the command line."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path

from diag import processes
from diag.collectors.masking import masked


class ExitCode(IntEnum):
    """Exit codes of ``diag``; ``diag run`` passes the training's own code through instead."""

    OK = 0
    ERROR = 1
    USAGE = 2
    GATE_EXCEEDED = 3
    DATA_INCOMPLETE = 4
    HANG = 5
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.OK: "The command did what it was asked to.",
    ExitCode.ERROR: "There is nothing to analyse, or a mistake was reported.",
    ExitCode.USAGE: "The command line is wrong.",
    ExitCode.GATE_EXCEEDED: "`diag check`: a budget is exceeded. `diag plan FILE`: a configuration has errors.",
    ExitCode.DATA_INCOMPLETE: "The answer is there, but data is missing; the report says which.",
    ExitCode.HANG: "`diag run`: the training hung and was ended.",
    ExitCode.INTERRUPTED: "The command was interrupted (Ctrl-C).",
}


class DiagError(Exception):
    """An error that the user can act on: what happened, in which file, and what to do next. Never a bug in diag."""

    def __init__(
        self, message: str, *, hint: str = "", path: Path | str | None = None, exit_code: ExitCode = ExitCode.ERROR
    ) -> None:
        self.message = masked(message)  # it may quote a command line, or an address with a password
        super().__init__(self.message)
        self.hint = masked(hint)
        self.path = masked(str(path)) if path is not None else None
        self.exit_code = exit_code
        self.__notes__ = [note for note in (self.path, self.hint) if note]  # a traceback ends with them


class NoStepError(DiagError):
    """Something of the run was recorded, but no step of it could be read."""


def not_installed(what: str, extra: str) -> DiagError:
    """The error for a package that an extra of diag installs."""
    needed = _requirements(extra)
    hint = install_command(*needed) if needed else f"install the packages of the extra {extra} in pyproject.toml"
    return DiagError(f"{what} is not installed", hint=hint)


def install_command(*requirements: str) -> str:
    """What installs these packages next to diag. It names no diag, which is on no index: it works whether diag was
    installed from a checkout or from a wheel."""
    pip, python = "pip", processes.users_python()[0]
    if processes.find_program(pip) != str(Path(python).parent / pip):  # of another environment
        pip = f"{shlex.quote(python)} -m pip"
    return f"{pip} install {shlex.join(requirements)}"


def _requirements(extra: str) -> list[str]:
    """The packages of an extra. Empty where the installed diag knows no such extra, as a checkout that was pulled after
    it had been installed: a package of the extra's name would be somebody else's."""
    from importlib.metadata import PackageNotFoundError, requires  # takes 20 ms

    try:
        lines = requires("diag") or []
    except PackageNotFoundError:  # a source tree that was never installed
        lines = []
    marked = (line.partition(";") for line in lines)
    return [name.strip() for name, _, marker in marked if re.search(rf"""extra == ["']{extra}["']""", marker)]


def require(module: str, what: str, extra: str) -> None:
    """DiagError where the module of an extra is not installed. Imports nothing."""
    if not is_installed(module):
        raise not_installed(what, extra)


def is_installed(module: str) -> bool:
    """Whether there is such a module. Imports nothing, but the packages that it is in."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # refused by an import hook, or blocked in sys.modules
        return False


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


def require_listable(path: Path) -> None:
    """DiagError where there is nothing, or a folder that may not be listed: an error now, not in the middle of work."""
    with readable(path):
        if stat.S_ISDIR(path.stat().st_mode):
            os.scandir(path).close()
