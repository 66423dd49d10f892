"""The training's own exception: its traceback as it would be without our hooks, and a copy in the run directory."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from ..files import encode, replace_file
from ..text import masked

_OURS = str(Path(__file__).parents[1])


def install() -> None:
    """For the rest of the process: a training may fail after the recording has ended."""
    sys.excepthook = _without_ours(sys.excepthook)


def _without_ours(print_it: Callable[..., Any]) -> Callable[..., Any]:
    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            clean(error, set())
            trace = error.__traceback__
        finally:
            print_it(kind, error, trace)

    return excepthook


def leave(path: Path, error: BaseException) -> None:
    """Writes the exception as torchrun's ``record`` does, secrets masked. Raises OSError."""
    text = masked("".join(traceback.format_exception(error)))
    message = masked(f"{type(error).__name__}: {error}")
    told = {"message": message, "extraInfo": {"py_callstack": text, "timestamp": _now()}}
    replace_file(path, encode({"message": told}), private=True)


def _now() -> str:
    return str(int(time.time()))


def clean(error: BaseException | None, seen: set[int]) -> None:
    """Takes our frames out of an exception, and out of those that it came from."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    error.__traceback__ = _cleaned(error.__traceback__)
    clean(error.__cause__, seen)
    clean(error.__context__, seen)


def _cleaned(trace: TracebackType | None) -> TracebackType | None:
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OURS):
            kept.append(trace)
        trace = trace.tb_next
    result: TracebackType | None = None
    for one in reversed(kept):
        result = TracebackType(result, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return result
