"""The record of one collective, send or receive of this process, from its call until its end is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from .accelerator import DEVICE_BACKENDS, CallMarks
from .fence import Fence
from .records import CollectiveRow

# -- patches -----------------------------------------------------------------------------------------------------------
#
# Temporary replacements of functions of other modules and classes.


class Patches:
    """Replaces attributes, and restores the originals."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        # From the namespace itself: ``getattr`` of a class unwraps methods defined in C++.
        self._replaced.append((owner, name, vars(owner).get(name, getattr(owner, name)), value))
        setattr(owner, name, value)

    def __bool__(self) -> bool:
        return bool(self._replaced)

    def undo(self) -> None:
        """Restores the originals. A function that other code has replaced since stays: it calls ours, which calls the
        original."""
        while self._replaced:
            owner, name, original, value = self._replaced.pop()
            if vars(owner).get(name, value) is value:
                setattr(owner, name, original)


class _Referable:
    """What ``weakref_slot=True`` makes, which Python 3.10 does not know."""

    __slots__ = ("__weakref__",)


@dataclass(slots=True)
class RecordedCall(_Referable):
    """A collective, or a send or receive. ``start_ns`` and the rest are filled in as they become known."""

    step: int
    group: str
    seq: int
    op: str
    bytes: int
    dtype: str
    start_ns: int
    device: bool  # runs on the device, so the host cannot know when it ends
    end_ns: int | None = None
    wait_start_ns: int | None = None
    wait_end_ns: int | None = None
    marks: CallMarks | None = None
    whole: bool = True
    received: int | None = None  # bytes, of an all-to-all
    ends_when_waited: bool = False  # its backend reports no end: the end of the wait is the first sign

    def row(self) -> CollectiveRow:
        return CollectiveRow(
            self.group,
            self.seq,
            self.op,
            self.bytes,
            self.dtype,
            self.start_ns,
            self.end_ns,
            self.wait_start_ns,
            self.wait_end_ns,
            self.whole,
            self.received,
        )

    @property
    def settled(self) -> bool:
        return self.device or (self.wait_end_ns if self.ends_when_waited else self.end_ns) is not None


def describe(payload: Any) -> tuple[int, str, bool]:
    """Bytes and dtype of a tensor or a list of tensors, and whether the collective runs on the device."""
    if isinstance(payload, torch.Tensor):  # the common case, so it does not look at the device's name
        return payload.nbytes, _name(payload.dtype), not payload.is_cpu
    tensors = list(payload or ())
    if not tensors:
        return 0, "", dist.is_initialized() and dist.get_backend() in DEVICE_BACKENDS
    return sum(t.nbytes for t in tensors), _name(tensors[0].dtype), not tensors[0].is_cpu


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# What is done after a wait: a function, and its arguments.
WaitBegun = tuple[Any, ...]


def time_wait(
    work: Any,
    call: RecordedCall,
    plain: WeakKeyDictionary[Any, RecordedCall],
    begin: Callable[[RecordedCall], WaitBegun | None],
    fence: Fence,
) -> None:
    """Times the wait for ``work``. A plain ``Work`` is added to ``plain``, where the replaced ``Work.wait`` looks it
    up. A subclass has a ``wait`` of its own, which is replaced. ``begin(call)``: see ``wait_ends``."""
    if type(work) is dist.Work:
        plain[work] = call
    else:  # under its own name, which DeepSpeed asks for
        work.wait = fence.around(work.wait, lambda _args, _kwargs: begin(call), wait_ends)


def wait_ends(begun: WaitBegun, _result: Any) -> None:
    """Called when a wait has returned, with what was returned when it began."""
    begun[0](*begun[1:])


def storage_of(tensor: Any) -> int:
    """The address of a tensor's storage, which views share; also of an asynchronous result. 0 where there is none."""
    try:
        return int(getattr(tensor, "elem", tensor).untyped_storage()._cdata)
    except (AttributeError, RuntimeError, NotImplementedError):  # not a tensor, or one without memory
        return 0
