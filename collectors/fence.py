"""The fence between a training and its recording.

Whatever a training calls in place of a function of its own, and whatever Python or torch calls for us (hooks, import
finders, callbacks, threads), is made here. An exception of ours switches the recording off, with one line that says
why, and the training goes on. The training's own exceptions pass unchanged: those of the function that it called, those
that its signal handlers raise while our code runs, and everything that is no ``Exception`` (a KeyboardInterrupt).

Standard library only, and little of it: this is loaded before a process's first line.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

Function = Callable[..., Any]
# What is passed to a function, before it is called.
Begin = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class Inside(threading.local):
    """Whether this thread is in a call of one kind; only the outermost call counts."""

    now = False


def never() -> bool:
    return False


def ignore(*_args: object, **_named: object) -> None:
    pass


def argument(position: int, name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Picks one argument of a call, by position or by name."""

    def pick(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[position] if len(args) > position else kwargs.get(name)

    return pick


# ``warnings.warn(stacklevel=2)`` names the caller of a function. Frames of files with these two words in their name do
# not count, so that a warning of a function that we replaced still names the training's line.
UNSEEN = "<diag: as importlib and its _bootstrap, no caller>"


def unseen(function: Function) -> Function:
    """The function, which warnings do not take for a caller."""
    function.__code__ = _renamed(function.__code__)
    return function


@functools.cache
def _renamed(code: CodeType) -> CodeType:
    return code.replace(co_filename=UNSEEN)


class Fence:
    """Runs the parts of one recording. ``off``: the recording has failed, or is over, and no part of it runs.

    ``failed(error)``: switches the recording off because of an exception of ours; raises it again if it is the
    training's. For code that cannot afford a call more.

    ``theirs(error)``: whether a signal handler of the training raised it while our code ran.

    ``call(action, *values, always=False)``: the action's result; None if it fails or the recording is off. ``always``:
    runs it also where the recording is off.

    ``hook(action, always=False, skip)``: the same as a function, for others to call.

    ``around(original, begin, end, raised, inside, skip)``: the function to put in place of ``original``. It calls
    ``begin(args, kwargs)`` before; if that returns anything but None, ``end(begun, result)`` after, or ``raised(begun,
    error)`` where the original raises. ``inside``: set during the call, and within it nothing is reported. ``skip``:
    asked first; while torch compiles the code, for one, nothing of ours may run.
    """

    __slots__ = ("around", "call", "failed", "hook", "off", "say", "theirs", "undo")

    def __init__(self) -> None:
        fence = self
        self.off = False
        self.say: Callable[[str], object] = print_line  # prints why nothing more is recorded
        # The steps of switching off, which get the reason, too. Each is run, whatever the others raise.
        self.undo: list[Callable[[str], object]] = []

        # Functions within this one: nothing that could be replaced or fail lies between them and the training.
        def failed(error: Exception) -> None:
            if from_a_signal_handler(error):
                raise error
            if fence.off:
                return
            fence.off = True
            why = type(error).__name__
            try:
                why = repr(error)
                fence.say(why)
            except Exception:
                print_line(why)
            for step in fence.undo:
                try:
                    step(why)
                except Exception:
                    continue

        def call(action: Function, *values: Any, always: bool = False) -> Any:
            if fence.off and not always:
                return None
            try:
                return action(*values)
            except Exception as error:
                failed(error)
                return None

        def hook(action: Function, always: bool = False, skip: Callable[[], bool] = never) -> Function:
            def hooked(*values: Any) -> Any:
                if skip() or (fence.off and not always):
                    return None
                try:
                    return action(*values)
                except Exception as error:
                    failed(error)
                    return None

            return hooked

        def around(
            original: Function,
            begin: Begin,
            end: Callable[[Any, Any], object] = ignore,
            raised: Callable[[Any, BaseException], object] = ignore,
            inside: Inside | None = None,
            skip: Callable[[], bool] = never,
        ) -> Function:
            @functools.wraps(original)
            def fenced(*args: Any, **kwargs: Any) -> Any:
                if skip() or fence.off or (inside is not None and inside.now):
                    return original(*args, **kwargs)
                try:
                    begun = begin(args, kwargs)
                except Exception as error:
                    failed(error)
                    begun = None
                if begun is None:
                    return original(*args, **kwargs)
                if inside is not None:
                    inside.now = True
                try:
                    try:
                        result = original(*args, **kwargs)
                    except BaseException as error:
                        call(raised, begun, error)
                        raise
                    try:
                        end(begun, result)
                    except Exception as error:
                        failed(error)
                finally:
                    if inside is not None:
                        inside.now = False
                return result

            return unseen(fenced)

        # A failure of these two would reach the training, so they rest on nothing else of ours.
        def from_a_signal_handler(error: Exception) -> bool:
            """Whether a signal handler of the training raised the exception while our code ran."""
            try:
                import signal

                handlers = [signal.getsignal(number) for number in signal.valid_signals()]
                codes = [code for handler in handlers if callable(handler) for code in codes_of(handler)]
                trace = error.__traceback__
                while trace is not None:
                    if trace.tb_frame.f_code in codes:
                        return True
                    trace = trace.tb_next
            except Exception:
                return False
            return False

        def codes_of(handler: Any) -> list[Any]:
            plain = getattr(handler, "func", handler)  # of a functools.partial
            forms = (plain, getattr(plain, "__wrapped__", None), vars(type(plain)).get("__call__"))
            return [code for form in forms if (code := getattr(form, "__code__", None)) is not None]

        self.failed, self.call, self.hook, self.around = failed, call, hook, around
        self.theirs = from_a_signal_handler


def print_line(why: str) -> None:
    """One line on standard error, where there is one."""
    try:
        sys.stderr.write(f"diag: nothing is recorded: {why}; training goes on without it\n")
        sys.stderr.flush()
    except Exception:  # closed, or an object of the training
        return
