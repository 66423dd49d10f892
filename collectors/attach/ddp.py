"""DistributedDataParallel's gradient buckets, which C++ reduces unless a communication hook does.

Before the first backward a module without a hook is given one that does the same as C++, in Python, where it is timed.
A hook of the training's own is timed as well, also one that it registers later: ours then calls it.
"""

from __future__ import annotations

import functools
import gc
import weakref
from dataclasses import dataclass
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ..collectives import CollectiveTimer
from ..patches import Patches


@dataclass
class _Inner:
    """What our hook calls."""

    state: Any
    hook: Any


class Buckets:
    """Knows the DDP modules of the process."""

    def __init__(self, timer: CollectiveTimer) -> None:
        self._timer = timer
        self._inner: weakref.WeakKeyDictionary[Any, _Inner | None] = weakref.WeakKeyDictionary()
        self._waiting: list[weakref.ref[Any]] = []
        self._register: Any = DistributedDataParallel.register_comm_hook
        self.seen = False  # whether there was a DDP module
        self.not_timed: list[str] = []

    def install(self, patches: Patches) -> None:
        make, register = DistributedDataParallel.__init__, self._register
        builtin = getattr(DistributedDataParallel, "_register_builtin_comm_hook", None)

        @functools.wraps(make)
        def init(module: Any, /, *args: Any, **kwargs: Any) -> None:
            make(module, *args, **kwargs)
            self.seen = True
            if module not in self._inner:
                self._waiting.append(weakref.ref(module))

        @functools.wraps(register)
        def register_comm_hook(module: Any, /, state: Any, hook: Any) -> None:
            module._check_comm_hook(hook)
            inner = self._inner.get(module)
            if inner is not None:
                inner.state, inner.hook = state, hook
            else:
                self._put(module, _Inner(state, hook))

        patches.replace(DistributedDataParallel, "__init__", init)
        patches.replace(DistributedDataParallel, "register_comm_hook", register_comm_hook)
        if builtin is not None:

            @functools.wraps(builtin)
            def register_builtin(module: Any, /, *args: Any, **kwargs: Any) -> Any:
                self._inner[module] = None
                self.not_timed.append("one of DDP's built-in communication hooks is used")
                return builtin(module, *args, **kwargs)

            patches.replace(DistributedDataParallel, "_register_builtin_comm_hook", register_builtin)

    def find(self) -> None:
        """The modules that were there before ``install``."""
        for found in gc.get_objects():
            if issubclass(type(found), DistributedDataParallel) and found not in self._inner:
                self.seen = True
                self._waiting.append(weakref.ref(found))

    def watch_waiting(self) -> None:
        """Registers our hook where the training has had the chance to register its own."""
        waiting, self._waiting = self._waiting, []
        for reference in waiting:
            module = reference()
            if module is None or module in self._inner:
                continue
            if why := _why_not(module):
                self.not_timed.append(why)
                continue
            self._put(module, _Inner(module.process_group, averaging(self._timer)))

    def _put(self, module: Any, inner: _Inner) -> None:
        timed = self._timer.timed_bucket(lambda _state, bucket: inner.hook(inner.state, bucket))
        self._register(module, None, timed)
        self._inner[module] = inner


def _why_not(module: Any) -> str:
    """Why C++ does what our hook would not; "" where it would."""
    if getattr(getattr(module, "_join_config", None), "enable", False):
        return "the inputs of DDP's ranks are uneven (join), which no communication hook knows"
    if getattr(module, "_use_python_reducer", False):
        return "torch.compile reduces DDP's gradients itself"
    if getattr(module, "_comm_hooks", None):
        return "DDP had a communication hook before the recording began"
    return ""


def averaging(timer: CollectiveTimer) -> Any:
    """A communication hook that does what C++ does, bit by bit: multiplies by one over the number of ranks, sums."""

    # Without annotations, as in ``collectives``.
    def average(group, bucket):  # type: ignore[no-untyped-def]
        return timer.all_reduce_bucket(group, bucket.buffer().mul_(1.0 / group.size()))

    return average
