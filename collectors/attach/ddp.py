"""DistributedDataParallel's gradients, which C++ reduces while nobody in Python looks.

The reducer stays as it is: with a communication hook of ours it would divide each bucket in a kernel of its own and
make its views anew. It tells how long after the end of forward each gradient was ready, and backward returns when the
last bucket is reduced. What lies between is what the rank stood still for, and the only part of the reduction that is
seen: a row a backward, not one a bucket. A communication hook of the training's own is called through one of ours,
which times what it calls.
"""

from __future__ import annotations

import functools
import gc
import time
import weakref
from dataclasses import dataclass
from typing import Any

from torch._compile import _disable_dynamo
from torch.nn.parallel import DistributedDataParallel

from ..calls import describe
from ..collectives import CollectiveTimer
from ..patches import Patches


@dataclass(slots=True)
class _Reduced:
    """What one reducer reduces, and what it last said of when gradients were ready."""

    module: weakref.ref[Any]
    bytes: int
    dtype: str
    on_device: bool
    ready: list[int]
    group: str = ""  # asked for when it is needed: it may be gone, and the module not yet
    hooked: bool = False  # a hook of the training's own reduces, and is timed


class Reducers:
    """Knows the DDP modules of the process."""

    def __init__(self, timer: CollectiveTimer) -> None:
        self._timer = timer
        self._reduced: dict[int, _Reduced] = {}  # by the reducer's id
        self._prepared: dict[int, int] = {}  # those whose backward is to come, and since when
        self.seen = False  # whether there was a DDP module
        self.not_timed: list[str] = []

    def install(self, patches: Patches) -> None:
        from torch._C._distributed_c10d import Reducer  # not in every build of torch

        make, register = DistributedDataParallel.__init__, DistributedDataParallel.register_comm_hook
        prepare = Reducer.prepare_for_backward

        @functools.wraps(make)
        def init(module: Any, /, *args: Any, **kwargs: Any) -> None:
            make(module, *args, **kwargs)
            self._add(module)

        @functools.wraps(register)
        def register_comm_hook(module: Any, /, state: Any, hook: Any) -> None:
            module._check_comm_hook(hook)
            register(module, state, self._timer.timed_bucket(hook))
            reduced = self._reduced.get(id(module.reducer))
            if reduced is not None:
                reduced.hooked = True

        @_disable_dynamo  # as the forward that calls it
        def prepare_for_backward(reducer: Any, /, *args: Any, **kwargs: Any) -> None:
            self._prepared[id(reducer)] = time.monotonic_ns()  # it counts from here
            prepare(reducer, *args, **kwargs)

        patches.replace(DistributedDataParallel, "__init__", init)
        patches.replace(DistributedDataParallel, "register_comm_hook", register_comm_hook)
        patches.replace(Reducer, "prepare_for_backward", prepare_for_backward)

    def find(self) -> None:
        """The modules that were there before ``install``."""
        for found in gc.get_objects():
            if issubclass(type(found), DistributedDataParallel):
                self._add(found)

    def _add(self, module: Any) -> None:
        self.seen = True
        if getattr(module, "_use_python_reducer", False):
            self.not_timed.append("torch.compile reduces DDP's gradients itself")
            return
        ignored = getattr(module, "parameters_to_ignore", ())
        owned = [p for name, p in module.named_parameters() if p.requires_grad and name not in ignored]
        size, dtype, on_device = describe(owned)
        if getattr(module, "_comm_hooks", ()):
            size = 0  # what its hook calls has rows of its own
        reducer = module.reducer
        self._reduced[id(reducer)] = _Reduced(weakref.ref(module), size, dtype, on_device, reducer.get_backward_stats())

    def backward_ends(self) -> None:
        """A backward has returned, of whichever modules."""
        now = time.monotonic_ns()
        self._timer.end_backward(now)
        for number in list(self._prepared):
            reduced = self._reduced.get(number)
            module = reduced.module() if reduced is not None else None
            if reduced is None or module is None or id(module.reducer) != number:
                del self._prepared[number]
                self._reduced.pop(number, None)
                continue
            ready = module.reducer.get_backward_stats()
            if ready == reduced.ready:  # its own backward is still to come
                continue
            reduced.ready = ready
            last = self._prepared.pop(number) + max(ready)
            if not reduced.hooked:
                reduced.group = reduced.group or self._timer.group_name(module.process_group)
                self._timer.reduced(reduced.group, reduced.bytes, reduced.dtype, reduced.on_device, min(last, now), now)
