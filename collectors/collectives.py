"""Times every collective that the training calls through ``torch.distributed``, always on.

The functions of ``torch.distributed`` are replaced by timed ones while the collector runs, and ``Work.wait`` is timed
too. A row says when this rank called the collective, when its result was there, and how long a thread of the training
stood still for it. Sends and receives are in ``point_to_point``, the functional collectives of DTensor in
``functional``. Not seen here: what C++ calls by itself. DDP's reducer does; ``watch_ddp`` registers a communication
hook that does what the reducer would do, in Python, and ``attach.ddp`` tells ``reduced`` what the reducer says.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from .calls import Call, Function, argument, describe, time_wait
from .device_clock import DeviceClock, Mark
from .functional import Functional
from .patches import Patches
from .point_to_point import PointToPoint
from .records import CollectiveRow

# ``group_desc`` of groups whose calls are no part of a step: background threads talk on them.
APART = "diag.apart"


def _nothing(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    return None


_BUFFERS = "_distributed_broadcast_coalesced"

# Function: (operation, where the full tensor or list of tensors is, position of ``group``).
# The full tensor is what nccl-tests call the size: output of an all-gather, input of a reduce-scatter.
_FUNCTIONS: dict[str, tuple[str, Callable[[tuple[Any, ...], dict[str, Any]], Any], int]] = {
    "all_reduce": ("all_reduce", argument(0, "tensor"), 2),
    "all_gather_single": ("all_gather", argument(0, "output_tensor"), 2),
    "all_gather_into_tensor": ("all_gather", argument(0, "output_tensor"), 2),
    "all_gather": ("all_gather", argument(0, "tensor_list"), 2),
    "reduce_scatter_single": ("reduce_scatter", argument(1, "input"), 3),
    "reduce_scatter_tensor": ("reduce_scatter", argument(1, "input"), 3),
    "reduce_scatter": ("reduce_scatter", argument(1, "input_list"), 3),
    "broadcast": ("broadcast", argument(0, "tensor"), 2),
    "reduce": ("reduce", argument(0, "tensor"), 3),
    "all_to_all_single": ("all_to_all", argument(1, "input"), 4),
    "all_to_all": ("all_to_all", argument(1, "input_tensor_list"), 2),
    "gather": ("gather", argument(1, "gather_list"), 3),
    "scatter": ("scatter", argument(1, "scatter_list"), 3),
    "barrier": ("barrier", _nothing, 0),
}


class CollectiveTimer:
    """Installs the timed functions and hands out what they recorded.

    Thread-safe under the interpreter's lock: the training's threads append, backend threads fill in ends, and one
    thread at a time takes the finished calls of the steps that are over.
    """

    def __init__(self, max_calls_per_step: int, device_clock: DeviceClock | None = None) -> None:
        self.step = -1
        self._limit = max_calls_per_step
        self.device_clock = device_clock
        self._calls: deque[Call] = deque()
        self._dropped = 0
        self._sequence: dict[str, int] = {}
        self._group_ranks: dict[str, list[int]] = {}
        self._new_groups: dict[str, list[int]] = {}
        self._by_work: weakref.WeakKeyDictionary[Any, Call] = weakref.WeakKeyDictionary()
        self._inside = threading.local()
        self._patches = Patches()
        self._complete = False
        self._point_to_point = PointToPoint(self)
        self._functional = Functional(self)
        self.last_started: dict[str, int] = {}
        self.last_finished: dict[str, int] = {}
        self.last_op = ""
        self.ddp_buckets: list[Call] = []  # of a backward that has not ended
        self._in_bucket = False  # DDP's communication hook is being called

    # -- installing ------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Everything; what is in place already stays."""
        self.install_calls()
        if not self._complete:
            self._complete = True
            self._functional.install(self._patches)

    def install_calls(self) -> None:
        """The functions that ``import torch`` brings: before the training imports them under names of its own."""
        if self._patches:
            return
        for name, (op, payload, group_position) in _FUNCTIONS.items():
            original = getattr(c10d, name, None)
            if original is None:
                continue
            timed = self._timed(original, op, payload, argument(group_position, "group"))
            for module in (c10d, dist):
                if getattr(module, name, None) is original:
                    self._patches.replace(module, name, timed)
        # Before each forward DDP sends the buffers of rank 0 to the others, in C++.
        if (send := getattr(DistributedDataParallel, _BUFFERS, None)) is not None:
            timed = self._timed(send, "broadcast", argument(1, "tensors"), lambda args, _kwargs: args[0].process_group)
            self._patches.replace(DistributedDataParallel, _BUFFERS, timed)
        self._patches.replace(dist.Work, "wait", self._timed_wait(dist.Work.wait))
        self._point_to_point.install(self._patches)

    def uninstall(self) -> None:
        self._patches.undo()
        self._complete = False

    # -- recording -------------------------------------------------------------------------------------------------

    @property
    def inside(self) -> bool:
        """Whether this thread is inside a timed call: one public function built on another."""
        return getattr(self._inside, "now", False)

    def enter(self) -> None:
        self._inside.now = True

    def leave(self) -> None:
        self._inside.now = False

    def _timed(self, original: Function, op: str, payload: Function, group_of: Function) -> Function:
        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self.inside:
                return original(*args, **kwargs)
            call = self._begin(op, payload(args, kwargs), group_of(args, kwargs))
            self.enter()
            try:
                work = original(*args, **kwargs)
            finally:
                self.leave()
            if call is not None:
                self._launched(call, work)
            return work

        return timed

    def _begin(self, op: str, payload: Any, group: Any) -> Call | None:
        """None for what is not of the training's steps, and for arguments that we do not understand: the library shall
        judge them."""
        if getattr(group, "group_desc", "") == APART:
            return None
        try:
            return self.begin(op, self.group_name(group), *describe(payload), marked=True)
        except (TypeError, ValueError, AttributeError, RuntimeError):
            return None

    def begin(self, op: str, group: str, size: int, dtype: str, on_device: bool, marked: bool = False) -> Call:
        """A call that starts now, counted among those of its group. ``marked``: on a device with marks around it."""
        seq = self._sequence.get(group, 0)
        self._sequence[group] = seq + 1
        call = Call(self.step, group, seq, op, size, dtype, 0, on_device)
        if len(self._calls) < self._limit:
            self._calls.append(call)
        else:
            self._dropped += 1
        if self._in_bucket:
            self.ddp_buckets.append(call)
        self.last_started[group] = seq
        self.last_op = op
        if marked and on_device and self.device_clock is not None:
            call.marks = (self.device_clock.mark(), self.device_clock.mark(later=True))
        call.start_ns = time.monotonic_ns()
        return call

    def _launched(self, call: Call, work: Any) -> None:
        now = time.monotonic_ns()
        if work is None:  # synchronous: the caller stood still for all of it, unless the device does the work
            if call.marks is not None:
                call.marks[1].record()
            if not call.device:
                call.end_ns = call.wait_end_ns = now
                call.wait_start_ns = call.start_ns
                self.finished(call)
            return
        call.marks = None  # its end is wherever somebody waits for it; only the profiler knows
        if call.device:
            return
        time_wait(work, call, self._by_work, self._wait_for)
        work.get_future().add_done_callback(functools.partial(self._on_done, call))

    def _timed_wait(self, original: Function) -> Function:
        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            if self.inside:  # of a synchronous call, which is timed as a whole
                return original(work, *args, **kwargs)
            call = self._by_work.get(work)
            if call is None:
                return self._point_to_point.waited(work, original, *args, **kwargs)
            return self._wait_for(call, functools.partial(original, work), *args, **kwargs)

        return wait

    def _wait_for(self, call: Call, wait: Function, *args: Any, **kwargs: Any) -> Any:
        start = time.monotonic_ns()
        result = wait(*args, **kwargs)
        if call.wait_start_ns is None:
            call.wait_start_ns, call.wait_end_ns = start, time.monotonic_ns()
        return result

    def _on_done(self, call: Call, _future: Any) -> None:
        call.end_ns = time.monotonic_ns()
        self.finished(call)

    def finished(self, call: Call) -> None:
        if call.seq > self.last_finished.get(call.group, -1):
            self.last_finished[call.group] = call.seq

    def group_name(self, group: Any) -> str:
        group = group if group is not None else dist.group.WORLD
        if group is None:
            return "default"
        name = str(getattr(group, "group_name", "") or "default")
        if name not in self._group_ranks:
            self.add_group(name, list(dist.get_process_group_ranks(group)))
        return name

    def add_group(self, name: str, ranks: list[int]) -> None:
        self._group_ranks[name] = self._new_groups[name] = ranks

    def ranks_of(self, name: str) -> list[int]:
        return self._group_ranks[name]

    # -- DDP -------------------------------------------------------------------------------------------------------

    def watch_ddp(self, module: Any, hook: tuple[Any, Function] | None = None) -> None:
        """Lets DDP's reducer call the collective through Python, so that it is timed like the others. ``hook``: what it
        shall call, with its state, if not what DDP does by itself."""
        state, reduce = hook if hook is not None else (module.process_group, reduce_bucket)
        module.register_comm_hook(state, self.timed_bucket(reduce))

    def timed_bucket(self, reduce: Function) -> Function:
        """The communication hook, with what it calls counted among DDP's buckets."""

        def timed_bucket(state, bucket):  # type: ignore[no-untyped-def]  # see reduce_bucket
            self._in_bucket = True
            try:
                return reduce(state, bucket)
            finally:
                self._in_bucket = False

        return timed_bucket

    def reduced(self, group: str, size: int, dtype: str, on_device: bool, start_ns: int, end_ns: int) -> None:
        """Gradients that C++ has reduced, bucket by bucket: from the launch of the last one to the end of backward,
        which waited for all of them."""
        call = self.begin("all_reduce", group, size, dtype, on_device)
        call.start_ns, call.whole = start_ns, False
        if not on_device:
            call.wait_start_ns, call.wait_end_ns = start_ns, end_ns
            call.end_ns = end_ns
            self.finished(call)

    def end_backward(self, end_ns: int) -> None:
        """The reducer waits for all buckets once the last is launched: from there to the end of backward it waited."""
        buckets, self.ddp_buckets = self.ddp_buckets, []
        if not buckets:
            return
        last_launch = buckets[-1].start_ns
        for call in buckets:
            if not call.device and call.wait_start_ns is None:
                call.wait_start_ns = last_launch
                call.wait_end_ns = min(max(call.end_ns or end_ns, last_launch), end_ns)

    # -- handing out -----------------------------------------------------------------------------------------------

    def take(self, step: int, everything: bool = False) -> list[tuple[int, list[Call]]]:
        """(step, calls) of what has ended in a step or before it, oldest step first; what is still under way
        stays for two more steps. ``everything``: the run is over, or fails; nothing stays."""
        calls, waiting = self._calls, []
        ready: dict[int, list[Call]] = {}
        while calls and (everything or calls[0].step <= step):  # they lie there by step
            call = calls.popleft()
            if everything or call.step < step - 1 or call.settled:
                if call.step in ready:
                    ready[call.step].append(call)
                else:
                    ready[call.step] = [call]
            else:
                waiting.append(call)
        calls.extendleft(reversed(waiting))
        return sorted(ready.items())

    def take_marks(self, step: int) -> list[tuple[str, int, Mark, Mark]]:
        """The device marks of a step's synchronous calls: (group, seq, before, after)."""
        return [(c.group, c.seq, *c.marks) for c in list(self._calls) if c.step == step and c.marks is not None]

    def under_way(self, step: int) -> list[CollectiveRow]:
        """What this rank has called in a step so far, in order; the training's thread may be anywhere."""
        return [call.row() for call in list(self._calls) if call.step == step]

    def groups(self) -> dict[str, list[int]]:
        """The global ranks of every group used so far."""
        return dict(self._group_ranks)

    @property
    def crowded(self) -> bool:
        """Whether calls of several steps together may be more than one step is allowed."""
        return 2 * len(self._calls) >= self._limit

    def take_groups(self) -> dict[str, list[int]]:
        groups, self._new_groups = self._new_groups, {}
        return groups

    def take_dropped(self) -> int:
        dropped, self._dropped = self._dropped, 0
        return dropped


# Without annotations: DDP compares those of a hook with its own classes, and here they would be strings.
def reduce_bucket(group, bucket):  # type: ignore[no-untyped-def]
    """A communication hook that does what DDP does without one, through ``torch.distributed.all_reduce``: divides the
    gradients by the size of the group and sums them. Register it with the process group as its state."""
    gradients = bucket.buffer().div_(group.size())
    work = dist.all_reduce(gradients, group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])
