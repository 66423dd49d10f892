"""Times functional collectives: those of DTensor, so of tensor parallelism and of ``clip_grad_norm_`` on shards.

``torch.distributed._functional_collectives`` calls the backend in C++ and hands out a tensor that waits when it is
first used. The functions are timed and so is ``wait_tensor``; which collective a wait is for is told by the storage of
the tensor, as in C++. No ``Work`` reaches Python, so a collective ends here when the wait for it does: exact where the
rank stood still for it, as it does for every redistribution that is not asked to be asynchronous, else an upper bound.

Compiled code calls the operators without these functions; while it is traced they do nothing. Not seen either: the
backward of a functional collective called on a tensor that needs a gradient (DTensor's own backward is seen), and on a
device DTensor's all-to-all from one sharded dimension to another. Both are in the profiler windows.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .calls import Call, Function, argument, describe, storage_of
from .patches import Patches

if TYPE_CHECKING:
    from .collectives import CollectiveTimer

# Function: (operation, position of ``group``). torch 2.13 calls ..._single what was ..._tensor before.
_FUNCTIONS: dict[str, tuple[str, int]] = {
    "all_reduce": ("all_reduce", 2),
    "all_reduce_coalesced": ("all_reduce", 2),
    "all_gather_single": ("all_gather", 2),
    "all_gather_single_autograd": ("all_gather", 2),
    "all_gather_single_coalesced": ("all_gather", 1),
    "all_gather_tensor": ("all_gather", 2),
    "all_gather_tensor_autograd": ("all_gather", 2),
    "all_gather_into_tensor_coalesced": ("all_gather", 1),
    "reduce_scatter_single": ("reduce_scatter", 3),
    "reduce_scatter_single_autograd": ("reduce_scatter", 3),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 3),
    "reduce_scatter_tensor": ("reduce_scatter", 3),
    "reduce_scatter_tensor_autograd": ("reduce_scatter", 3),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 3),
    "all_to_all_single": ("all_to_all", 3),
    "all_to_all_single_autograd": ("all_to_all", 3),
    "broadcast": ("broadcast", 2),
}
_MOST_OPEN = 4096  # results that nobody has waited for; a training that never does keeps no more than these


class Functional:
    """Installs the timed functions; what they record goes to the timer of all collectives."""

    def __init__(self, timer: CollectiveTimer) -> None:
        self._timer = timer
        self._open: dict[int, Call] = {}  # by the storage of the result
        self._within = threading.local()
        self._tracing: Function = torch.compiler.is_compiling

    def install(self, patches: Patches) -> None:
        try:
            from torch.distributed import _functional_collectives as functions
        except ImportError:  # private: it may move
            return
        self._tracing = getattr(functions, "_are_we_tracing", torch.compiler.is_compiling)
        for name, (op, position) in _FUNCTIONS.items():
            original = getattr(functions, name, None)
            if original is not None:
                patches.replace(functions, name, self._timed(original, op, argument(position, "group")))
        if hasattr(functions, "wait_tensor"):
            patches.replace(functions, "wait_tensor", self._timed_wait(functions.wait_tensor))

    def _timed(self, original: Function, op: str, group_of: Function) -> Function:
        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._timer.inside or self._tracing():
                return original(*args, **kwargs)
            call = self._begin(op, args[0] if args else None, group_of(args, kwargs))
            if call is None:
                return original(*args, **kwargs)
            self._timer.enter()
            self._within.call = call
            try:
                result = original(*args, **kwargs)
            finally:
                self._timer.leave()
                self._within.call = None
            self._launched(call, result)
            return result

        return timed

    def _begin(self, op: str, payload: Any, group: Any) -> Call | None:
        """None for arguments that we do not understand: the library shall judge them; and for tensors without data,
        which nobody sends."""
        try:
            if (payload if isinstance(payload, torch.Tensor) else payload[0]).is_meta:
                return None
            name = self._timer.group_name(_process_group(group))
            size, dtype, on_device = describe(payload)
            if op == "all_gather":  # the full tensor is the output
                size *= len(self._timer.ranks_of(name))
            call = self._timer.begin(op, name, size, dtype, on_device)
        except (TypeError, ValueError, AttributeError, RuntimeError, IndexError, KeyError):
            return None
        call.ends_when_waited = True
        return call

    def _launched(self, call: Call, result: Any) -> None:
        if call.device or call.wait_end_ns is not None:
            return
        if len(self._open) >= _MOST_OPEN:
            self._open.clear()
        for tensor in result if isinstance(result, list) else [result]:
            self._open[storage_of(tensor)] = call

    def _timed_wait(self, original: Function) -> Function:
        @functools.wraps(original)
        def wait(tensor: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(tensor)
            outer = getattr(self._within, "call", None)
            call = self._open.pop(storage_of(tensor), None) if self._open else None
            if call is None:
                call, outer = outer, None  # some functions wait for their result before they hand it out
            if call is None or call.device or call.wait_end_ns is not None:
                return original(tensor)
            start = time.monotonic_ns()
            result = original(tensor)
            end = time.monotonic_ns()
            call.wait_start_ns, call.wait_end_ns, call.end_ns = start, end, end
            self._timer.finished(call)
            if outer is not None:  # its input was the result of this one
                outer.start_ns = end
            return result

        return wait


def _process_group(group: Any) -> Any:
    """Of all the ways in which functional collectives name a group."""
    if isinstance(group, dist.ProcessGroup):
        return group
    if isinstance(group, str):
        return getattr(c10d, "_resolve_process_group")(group)  # noqa: B009  # private, and typed by a name of its own
    if isinstance(group, tuple):
        mesh, dimension = group
        return mesh.get_group(dimension)
    if isinstance(group, list):
        return c10d._find_pg_by_ranks_and_tag("", group)
    return group.get_group()
