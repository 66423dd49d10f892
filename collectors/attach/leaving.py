"""How a process ends where no exception reaches the interpreter: a program that catches its exception and calls
``sys.exit``, ``exit()`` or ``os._exit``, and a training in a thread. The original functions are always called."""

from __future__ import annotations

import _thread
import functools
import os
import sys
import threading
from _sitebuiltins import Quitter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..fence import Fence, argument, unseen
from ..policy import RECORDING

# How command-line libraries pass an exit code on. By name: they are not imported here.
_LIBRARIES = ("click.", "typer.")
_status, _code = argument(0, "status"), argument(1, "code")


@dataclass(frozen=True)
class Failure:
    """The exception that a process handled when it decided to exit, or its exit code. ``text``: the traceback, ""
    without an exception. The exception itself is not kept: its frames hold tensors."""

    kind: type[BaseException]
    message: str
    text: str = ""


def failure_of(status: object, handled: BaseException | None) -> Failure | None:
    """Why a process exits with a status; None if it exits without an error."""
    if not status:
        return None
    error = handled
    while error is not None and (
        isinstance(error, SystemExit) or (type(error).__module__.startswith(_LIBRARIES) and hasattr(error, "exit_code"))
    ):
        error = error.__cause__ or error.__context__
    if error is not None:
        return failed_with(error)
    return Failure(SystemExit, f"SystemExit: {status}", f"SystemExit: {status}\n" if isinstance(status, str) else "")


def ended_by() -> BaseException | None:
    """The exception that has ended the script; None without one. The interpreter keeps it in ``sys``, whatever
    ``sys.excepthook`` does with it. Consoles, test runners and C code that prints an exception keep theirs there, too,
    and go on: only the script's has passed through a frame that nothing in Python has called."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    trace = getattr(sys, "last_traceback", None)
    if error is None or trace is None or trace.tb_frame.f_back is not None:
        return None
    outermost = trace.tb_frame
    # A thread of C++ calls functions. ``python -m`` begins in runpy.
    is_script = outermost.f_code.co_name == "<module>" or outermost.f_globals.get("__name__") == "runpy"
    return error if is_script else None


def failed_with(error: BaseException) -> Failure:
    import traceback

    try:
        message = f"{type(error).__name__}: {error}"
    except Exception:  # of the training: __str__ of its exception raises
        message = type(error).__name__
    return Failure(type(error), message, "".join(traceback.format_exception(error)))


class Leaving:
    """Notices that the process is about to end, in every way that Python code has."""

    def __init__(
        self, fence: Fence, finish: Callable[[Failure | None], object], progress: Callable[[], object]
    ) -> None:
        """``finish``: closes the records, with why the process fails; it may be called again. ``progress``: a value
        that changes while the training goes on, as a program may catch the exit; None while nothing is recorded."""
        self._fence, self._finish = fence, finish
        self._progress = progress
        self._asked: tuple[Failure | None, object] | None = None

    @property
    def failure(self) -> Failure | None:
        """Why the program asked to exit, if nothing was trained since."""
        if self._asked is None or self._asked[1] is None or self._asked[1] != self._progress():
            return None
        return self._asked[0]

    def install(self, trains_in: Callable[[], int]) -> None:
        """Stays for the rest of the process. ``trains_in``: the thread that trains."""

        def thread_fails(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
            (failed,) = args
            error = failed.exc_value
            trains = failed.thread is not None and failed.thread.ident == trains_in()
            if trains and threading.current_thread() is not threading.main_thread() and error is not None:
                # ``sys.exit`` ends the thread alone, and Python prints nothing.
                failure = failure_of(error.code if isinstance(error, SystemExit) else True, error)
                if failure is not None:
                    self._finish(failure)

        around, exit_at_once = self._fence.around, os._exit

        @functools.wraps(exit_at_once)
        def leave(*args: Any, **kwargs: Any) -> None:
            try:
                self._fence.call(self._close, _status(args, kwargs))
            finally:  # also where a signal's handler raises meanwhile, as Ctrl-C does: the process would be gone by now
                exit_at_once(*args, **kwargs)

        sys.exit = around(sys.exit, lambda args, _kwargs: self._note(args[0] if args else None))
        os._exit = unseen(leave)
        Quitter.__call__ = around(  # type: ignore[method-assign]
            Quitter.__call__, lambda args, kwargs: self._note(_code(args, kwargs))
        )
        threading.excepthook = around(threading.excepthook, thread_fails)

    def _note(self, status: object) -> None:
        """In another thread it ends that alone; see ``thread_fails``."""
        if threading.current_thread() is threading.main_thread():
            self._asked = failure_of(status, sys.exc_info()[1]), self._progress()

    def _close(self, status: object) -> None:
        """Closes the records before a process ends at once. In a thread of its own, with a limit: the caller may hold
        locks."""
        if self._progress() is None:
            return
        failure = failure_of(status, sys.exc_info()[1])
        close, closed = self._fence.hook(self._finish), _thread.allocate_lock()
        closed.acquire()

        def run() -> None:
            try:
                close(failure)
            finally:
                closed.release()

        # Not a ``Thread``, whose start takes a lock of ``threading``: a signal's handler may be what leaves, and have
        # interrupted the lock's holder.
        _thread.start_new_thread(run, ())
        closed.acquire(timeout=RECORDING.longest_leaving_s)
