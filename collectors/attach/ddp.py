"""DistributedDataParallel's gradients, which C++ reduces while nobody in Python looks.

The reducer stays as it is: with a communication hook of ours it would divide each bucket in a kernel of its own and
make its views anew. It reports how long after the end of forward each gradient was ready, and backward returns when the
last bucket is reduced. The rank waited in between, which is the only part of the reduction that is
seen: a row a backward, not one a bucket. A communication hook of the training's own is called through one of ours,
which times what it calls.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from types import ModuleType
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ..calls import Patches, describe
from ..collectives import CollectiveTimer


@dataclass(slots=True, eq=False)
class _Reduced:
    """What one reducer reduces."""

    reducer: weakref.ref[Any]
    module: weakref.ref[Any]
    bytes: int
    dtype: str
    on_device: bool
    ready_ns: int  # the sum of what it last reported of its gradients: changes with every backward of its own
    group: str = ""  # asked for when it is needed: it may be gone, and the module not yet
    hooked: bool = False  # a hook of the training's own reduces, and is timed
    prepared_ns: int = 0  # when it was last prepared for a backward


class Reducers:
    """Knows the DDP modules of the process."""

    def __init__(self, timer: CollectiveTimer) -> None:
        self._timer = timer
        self._reduced: dict[int, _Reduced] = {}  # by the reducer's id
        self._prepared: list[_Reduced] = []  # those whose backward is to come
        self.seen = False  # whether there was a DDP module
        self.not_timed: list[str] = []
        self._noting: Callable[..., None] | None = None  # in place of the reducer's function

    def install(self, patches: Patches) -> None:
        from torch._C._distributed_c10d import Reducer  # not in every build of torch

        make, register = DistributedDataParallel.__init__, DistributedDataParallel.register_comm_hook
        prepare, known, prepared = Reducer.prepare_for_backward, self._reduced.get, self._prepared

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

        def prepare_for_backward(reducer: Any, /, *args: Any, **kwargs: Any) -> None:
            reduced = known(id(reducer))
            if reduced is not None:
                reduced.prepared_ns = monotonic_ns()  # it counts from here
                if reduced not in prepared:
                    prepared.append(reduced)
            prepare(reducer, *args, **kwargs)

        patches.replace(DistributedDataParallel, "__init__", init)
        patches.replace(DistributedDataParallel, "register_comm_hook", register_comm_hook)
        patches.replace(Reducer, "prepare_for_backward", prepare_for_backward)
        self._noting = prepare_for_backward

    def keep_from(self, dynamo: ModuleType) -> None:
        """Not to be compiled, as the forward that calls it is not. torch's own decorator for that would wrap it in what
        takes three times as long as all of it."""
        dynamo.skip(self._noting)

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
        number, ready_ns = id(reducer), sum(reducer.get_backward_stats())
        own = weakref.ref(reducer, lambda _gone: self._reduced.pop(number, None))  # another may get its number
        self._reduced[number] = _Reduced(own, weakref.ref(module), size, dtype, on_device, ready_ns)

    def backward_ends(self) -> None:
        """A backward has returned, of whichever modules."""
        now, timer = monotonic_ns(), self._timer
        if timer.ddp_buckets:
            timer.end_backward(now)
        for reduced in self._prepared[:]:
            reducer = reduced.reducer()
            if reducer is None:
                self._prepared.remove(reduced)
                continue
            ready = reducer.get_backward_stats()
            ready_ns = sum(ready)
            if ready_ns == reduced.ready_ns:  # its own backward is still to come
                continue
            reduced.ready_ns = ready_ns
            self._prepared.remove(reduced)
            if not reduced.hooked and (group := reduced.group or self._group_of(reduced)):
                last = min(reduced.prepared_ns + max(ready), now)
                timer.reduced(group, reduced.bytes, reduced.dtype, reduced.on_device, last, now)

    def _group_of(self, reduced: _Reduced) -> str:
        """Empty where the module is gone."""
        module = reduced.module()
        if module is not None:
            reduced.group = self._timer.group_name(module.process_group)
        return reduced.group
