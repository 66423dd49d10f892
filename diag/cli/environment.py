"""What a command is started in: standard streams that are closed, a terminal of no width, little memory.

A command ends with one line and an exit code where such a thing stops it, never with a traceback.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from diag.errors import ExitCode

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_NARROWEST, _WIDEST = 20, 1000  # columns that anything can be printed in

# A process that may use less is watched from outside: a library that gets no memory ends it without an exception.
_LITTLE_BYTES = 8 << 30
_NOT_ENOUGH = "memory is not enough: this process may use {allowed:,.0f} MB of address space (ulimit -v)"
_OURS = ("diag: ", "      ")  # how an error and its hint begin
_KNOWN_CODES = frozenset(ExitCode)
_SHOWN_BYTES, _MOST_LINES = 1 << 16, 4


def prepare(output_is_result: bool) -> None:
    """Puts something in the place of closed standard streams, and of a width that nothing can be printed in. From here
    on, a crash of the process prints where each thread was.
    ``output_is_result``: without standard output the command is useless, so that writing there is an error; otherwise
    what it prints is dropped."""
    # In this order: a file opened later would get the number of a closed stream, and what is printed would go there.
    _reopen(_STDIN, os.O_WRONLY if output_is_result else os.O_RDWR)  # not readable: an error that a reader reports
    _reopen(_STDOUT, os.O_RDONLY if output_is_result else os.O_RDWR)
    _reopen(_STDERR, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = open(_STDIN, closefd=False)  # noqa: SIM115  (for the life of the process)
    if sys.stdout is None:
        sys.stdout = open(_STDOUT, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(_STDERR, "w", closefd=False)  # noqa: SIM115
    if not faulthandler.is_enabled():
        with suppress(OSError, ValueError):  # a stream of the caller's own, without a descriptor
            faulthandler.enable()  # a crash of a library in C says where it was, as no traceback does
    columns = os.environ.get("COLUMNS")
    if columns is not None and not (columns.isascii() and columns.isdecimal() and int(columns[:9]) > 0):
        del os.environ["COLUMNS"]
    elif columns is not None:
        os.environ["COLUMNS"] = str(min(max(int(columns[:9]), _NARROWEST), _WIDEST))


def _reopen(number: int, flags: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, flags)  # takes the lowest number that is free, which is this one


def has_standard_streams() -> bool:
    """Whether standard input can be read and standard output be written: not where `prepare` replaced them."""
    try:
        import fcntl
    except ImportError:  # not a Unix
        return False
    try:
        read, written = (fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE for number in (_STDIN, _STDOUT))
    except OSError:
        return False
    return read != os.O_WRONLY and written != os.O_RDONLY


def has_little_memory() -> bool:
    """Whether the system limits this process to less memory than libraries expect to get."""
    return _allowed_bytes() < _LITTLE_BYTES


def _allowed_bytes() -> float:
    try:
        import resource
    except ImportError:  # not a Unix
        return float("inf")
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    return float("inf") if allowed == resource.RLIM_INFINITY else allowed


def watched(command: Callable[[], NoReturn], report: Callable[[str], int]) -> NoReturn:
    """Runs the command in a child process. If that is ended because it got no memory, ``report`` is called with one
    line, and returns the exit code. What the child prints on standard error comes when it has ended."""
    with tempfile.TemporaryFile() as printed:  # OSError where it cannot be had, or no process
        child = os.fork()
        if not child:
            os.dup2(printed.fileno(), _STDERR)
            command()
        code = os.waitstatus_to_exitcode(_wait(child))
        printed.seek(0)
        if code:  # libraries complain as well, in thousands of lines
            lines = (line.decode(errors="replace") for line in printed)
            ours = [line for line in lines if line.startswith(_OURS)][:_MOST_LINES]
            if not ours and code not in _KNOWN_CODES:  # a signal, or glibc's 127 for a thread that gets no memory
                sys.exit(report(not_enough_memory()))
            sys.stderr.writelines(ours)
        else:
            sys.stderr.write(printed.read(_SHOWN_BYTES).decode(errors="replace"))
    sys.exit(code if code >= 0 else 128 - code)


def _wait(child: int) -> int:
    while True:
        try:
            return os.waitpid(child, 0)[1]
        except KeyboardInterrupt:  # the child has it as well, and ends
            os.kill(child, signal.SIGINT)


def not_enough_memory() -> str:
    """Why there is no memory, for a message."""
    return _NOT_ENOUGH.format(allowed=_allowed_bytes() / 1e6) if has_little_memory() else "memory is not enough"
