"""The ends of asynchronous collectives that the host computes. The backend's thread calls Python when one has ended.

It must not do so while the interpreter ends: Python 3.11 to 3.13 end a thread that asks for the GIL then, which ends
the process with SIGABRT, whatever its exit code should be. A training leaves a collective under way where it raises
between the call and the wait. So the backend completes a future of ours, and our exit completes those that are left.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from .calls import RecordedCall
from .fence import Fence
from .policy import RECORDING


class Ends:
    """Calls ``ended`` with each call that has ended."""

    def __init__(self, ended: Callable[[RecordedCall], object], fence: Fence) -> None:
        self._ended = ended
        self._done = fence.hook(self._completed)
        self._process = os.getpid()
        # The futures that are under way, and the functions that they call, by the future's number.
        self._followed: dict[int, tuple[Any, weakref.ref[Any]]] = {}
        self._leaving = False

    def follow(self, work: Any, call: RecordedCall) -> bool:
        """Returns whether the backend reports the end."""
        try:
            future = torch.futures.collect_all([work.get_future()])
        except (RuntimeError, NotImplementedError, TypeError, AttributeError):  # of a backend without futures
            return False
        number, followed, done = id(future), self._followed, functools.partial(self._done, call)
        # Until the backend's thread is through with the function, not only with calling it.
        followed[number] = future, weakref.ref(done, lambda _gone: followed.pop(number, None))
        future.add_done_callback(done)
        return True

    def _completed(self, call: RecordedCall, _future: Any) -> None:
        if not self._leaving:
            self._ended(call)

    def let_go(self) -> None:
        """No thread of the backend calls Python for us from here on. Waits for those that do, as long as
        ``RECORDING.longest_leaving_s``."""
        if not self._followed or os.getpid() != self._process:
            return
        import ctypes  # not in each process that imports torch

        under_way, self._leaving = list(self._followed.values()), True
        for future, _ in under_way:
            with contextlib.suppress(RuntimeError):  # it is complete
                future.set_result(None)
                # For ever: the backend's thread has it as well, and deleting its value would take the GIL.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(future))
        self._leaving = False
        until = time.monotonic() + RECORDING.longest_leaving_s
        while any(done() is not None for _, done in under_way) and time.monotonic() < until:
            time.sleep(0.001)
