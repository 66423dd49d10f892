"""Diagnostics that a process writes when the training hangs or dies: stacks, the Flight Recorder's dump, its exception.

Nothing here waits for the training's thread, which may never come back. Stacks are written by ``faulthandler`` inside a
signal handler in C, also while another thread holds the GIL. The background thread dumps the Flight Recorder.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from . import flight_recorder
from .budget import Complaints
from .fence import UNSEEN
from .files import append_to, encode, replace_file
from .policy import RECORDING


class Stacks:
    """Writes the stacks of all threads to a file when SIGUSR2 comes, and when the process crashes in C or C++."""

    # Descriptors: nothing closes the last one before the process ends, and Python warns of a file object left open.
    _left: ClassVar[int | None] = None  # the file of a recording that has ended, whose handler stays

    def __init__(self) -> None:
        self._file: int | None = None
        self._signal = getattr(signal, "SIGUSR2", None)
        self._crashes = False

    def install(self, path: Path, complaints: Complaints) -> int | None:
        """The signal to send. None where the system has none, the training uses it, or the file cannot be created."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with append_to(path) as file:
                self._file = os.dup(file.fileno())
        except OSError as error:
            complaints.add("no stacks will be written", error)
            return None
        if not faulthandler.is_enabled():
            faulthandler.enable(self._file)
            self._crashes = True
        # SIG_IGN may come from the parent process, or from an earlier recording in this one.
        if self._signal is None or signal.getsignal(self._signal) not in (signal.SIG_DFL, signal.SIG_IGN):
            self._signal = None
        else:
            # Of an earlier recording: else ``register`` takes the handler for installed.
            faulthandler.unregister(self._signal)
            if Stacks._left is not None:
                _close(Stacks._left)
                Stacks._left = None
            # faulthandler restores this when the interpreter ends: a signal that comes then must not end the process.
            with contextlib.suppress(ValueError):  # only the main thread may set it
                signal.signal(self._signal, signal.SIG_IGN)
            faulthandler.register(self._signal, self._file, all_threads=True, chain=False)
        return int(self._signal) if self._signal is not None else None

    def write(self, path: Path) -> None:
        """Writes the stacks of all threads, for a request that sends no signal: from another host. Not where the signal
        has just written them. A thread that keeps the GIL keeps this one from running."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            about = path.stat()
            if about.st_size and time.time() - about.st_mtime < RECORDING.patience_s:
                return
            faulthandler.dump_traceback(self._file, all_threads=True)

    def uninstall(self, path: Path, keep: bool) -> None:
        """Removes the file if it is empty or not to be kept. The handler stays, with the file open, until the next
        recording: a signal already on its way must not end a process that has just finished."""
        if self._crashes:
            faulthandler.disable()
            self._crashes = False
        if self._file is not None and self._signal is not None:
            Stacks._left = self._file
        elif self._file is not None:
            _close(self._file)
        self._file = None
        with contextlib.suppress(OSError):
            if not keep or path.stat().st_size == 0:
                path.unlink()


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # the training may have closed all files
        os.close(descriptor)


def write_flight_recorders(path_of: Callable[[str], Path]) -> str:
    """Writes the dumps of all Flight Recorders as PyTorch's own pickles. Returns "" or the reason why there is none.
    ``path_of``: the file for a recorder's name, "" for the first recorder; those of accelerators come first.

    The first pass has no stacks and takes 20 ms for 2,000 collectives. With stacks the first dump of a process took
    more than a second, up to six on a busy host, and a dying process may not have that long.
    """
    try:
        for stacks in (False, True):
            dumps, problems = flight_recorder.dumps(stacks)
            if not dumps:
                return "; ".join(problems) or "the Flight Recorder holds nothing"
            for index, (name, content) in enumerate(dumps.items()):
                replace_file(path_of((name or "generic") if index else ""), content)
    except OSError as error:  # a full disk
        return repr(error)
    return ""


_COMPILER = ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py")  # not while they are imported


def main_thread_compiles() -> bool:
    """Whether the main thread is in torch.compile. Walks its frames, which takes microseconds."""
    ident = threading.main_thread().ident
    frame = sys._current_frames().get(ident) if ident is not None else None
    while frame is not None:
        if frame.f_code.co_filename.endswith(_COMPILER) and frame.f_code.co_name != "<module>":
            return True
        frame = frame.f_back
    return False


# -- exceptions --------------------------------------------------------------------------------------------------------
#
# The training's own exception: its traceback without our frames, and a copy in the run directory.

_OURS = str(Path(__file__).parent)


def install_excepthook() -> None:
    """Stays for the rest of the process: a training may fail after the recording has ended."""
    sys.excepthook = _without_ours(sys.excepthook)


def _without_ours(print_it: Callable[..., Any]) -> Callable[..., Any]:
    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with contextlib.suppress(Exception):
            clean(error, set())
            trace = error.__traceback__
        print_it(kind, error, trace)

    return excepthook


def write_exception(path: Path, message: str, text: str) -> None:
    """Writes an exception and its traceback as torchrun's ``record`` does, with secrets masked and without the middle
    of long texts, unless that has written it already. Raises OSError."""
    if path.exists():
        return
    from .masking import masked_ends  # not in each process that imports torch

    details = {"message": masked_ends(message), "extraInfo": {"py_callstack": masked_ends(text), "timestamp": _now()}}
    replace_file(path, encode({"message": details}), private=True)


def _now() -> str:
    return str(int(time.time()))


def clean(error: BaseException | None, seen: set[int]) -> None:
    """Removes our frames from an exception, and from its causes and contexts."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    error.__traceback__ = _cleaned(error.__traceback__)
    clean(error.__cause__, seen)
    clean(error.__context__, seen)


def _cleaned(trace: TracebackType | None) -> TracebackType | None:
    entries = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith((_OURS, UNSEEN)):
            entries.append(trace)
        trace = trace.tb_next
    result: TracebackType | None = None
    for entry in reversed(entries):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result
