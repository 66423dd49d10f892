"""Keeps asynchronous calls of backends that compute on the host out of our profiler windows: torch corrupts memory.

A backend writes the time at which an operation ended into the profiler's record of it. torch frees these records when a
profiler stops, without asking whether all operations have ended. An operation that begins in a window and ends after it
then writes to freed memory: SIGSEGV or SIGABRT, or a training that hangs. The rows that we record of these calls do not
rest on the profiler. Calls that C++ makes by itself are seen further: DDP waits for its own before a step ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist

from .fence import Fence, Function, ignore

# torch 2.13 renamed some of them, and has both names.
_METHODS = (
    "send", "recv", "recv_anysource", "allreduce", "allreduce_coalesced", "allgather", "allgather_coalesced",
    "all_gather_single", "_allgather_base", "all_gather_single_coalesced", "allgather_into_tensor_coalesced",
    "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced", "broadcast", "reduce", "all_to_all_single", "alltoall_base", "alltoall",
    "gather", "scatter",
)  # fmt: skip


class OwnWindow:
    """Whether a profiler window of the recording is open."""

    open = False


_fence = Fence()
_fence.say = ignore  # where this fails nothing else does


def hide_calls() -> None:
    """Replaces the methods of ``ProcessGroup``, once, and for the rest of the process: whoever replaces them later may
    restore what was there before."""
    if not dist.is_available():
        return
    for name in _METHODS:
        method = vars(dist.ProcessGroup).get(name)
        if method is not None and not hasattr(method, "diag_hidden"):
            setattr(dist.ProcessGroup, name, hidden(getattr(method, "__func__", method)))


def hidden(original: Function) -> Function:
    """The function, whose operation no profiler of this thread sees where a window is open, the tensors are the host's,
    and the operation may end after the call."""
    record: Any = torch._C._autograd._enable_record_function

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
        if not OwnWindow.open:
            return None
        values = (*args[:4], *kwargs.values())
        if not _on_host(values) or not all(getattr(value, "asyncOp", True) for value in values):
            return None
        record(False)
        return True

    def end(_begun: bool, _result: object) -> None:
        record(True)

    function: Any = _fence.around(original, begin, end, end)
    function.diag_hidden = True
    return cast(Function, function)


def _on_host(values: Sequence[Any]) -> bool:
    """Whether the first tensor among the values, or in a list of them, is the host's."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return value.is_cpu
        if isinstance(value, (list, tuple)) and value:
            return _on_host(value[:1])
    return False
