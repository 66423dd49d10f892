"""Times every collective that the training calls through ``torch.distributed``, always on.

The functions of ``torch.distributed`` are replaced by timed ones while the collector runs, and ``Work.wait`` is timed
too. A row has the time of the call, the time of the result, and how long a thread of the training waited for it. Sends
and receives, and the functional collectives of DTensor, have sections of their own below. Collectives that C++ calls by
itself are not seen here. DDP's reducer is such a caller: ``watch_ddp`` registers a communication hook that does the
same in Python, and ``attach.hooks`` calls ``reduced`` with what the reducer reports.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from .accelerator import CallMarks, DeviceClock, Mark
from .calls import Patches, RecordedCall, WaitBegun, describe, storage_of, time_wait, wait_ends
from .ends import Ends
from .fence import Fence, Function, Inside, argument, ignore
from .policy import RECORDING
from .records import P2P_PREFIX, RECV, SEND, CollectiveRow
from .works import Works

_compiling = torch.compiler.is_compiling

# -- functional --------------------------------------------------------------------------------------------------------
#
# Times functional collectives: those of DTensor, and so of tensor parallelism and of ``clip_grad_norm_`` on shards.
#
# ``torch.distributed._functional_collectives`` calls the backend in C++ and returns a tensor that waits when it is
# first used. The functions are timed and so is ``wait_tensor``; the storage of the tensor identifies the collective, as
# in C++. No ``Work`` reaches Python, so a collective ends here when the wait for it does. That is exact where the rank
# was blocked by it, as in every redistribution that is not asynchronous, else an upper bound.
#
# Compiled code calls the operators without these functions; while it is traced they do nothing. Two more cases are not
# seen: the backward of a functional collective called on a tensor that needs a gradient (DTensor's own backward is
# seen, and that of an all-to-all, by its wait, from torch 2.13 on), and, on a device, DTensor's all-to-all from one
# sharded dimension to another. Both are in the profiler windows.

# Function: (operation, position of ``group``). torch 2.13 renamed ..._tensor to ..._single.
_FUNCTIONAL: dict[str, tuple[str, int]] = {
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


class Functional:
    """Installs the timed functions; their records go to the timer of all collectives."""

    def __init__(self, timer: CollectiveTimer) -> None:
        self._timer = timer
        self._open: dict[int, RecordedCall] = {}  # by the storage of the result
        self._within = threading.local()
        self._tracing: Function = torch.compiler.is_compiling
        # The backward of an all-to-all: torch has registered it, so it cannot be replaced.
        self._backward: CodeType | None = None

    def install(self, patches: Patches) -> None:
        try:
            from torch.distributed import _functional_collectives as functions
        except ImportError:  # private: it may move
            return
        self._tracing = getattr(functions, "_are_we_tracing", torch.compiler.is_compiling)
        self._backward = getattr(getattr(functions, "all_to_all_single_backward", None), "__code__", None)
        for name, (op, position) in _FUNCTIONAL.items():
            original = getattr(functions, name, None)
            if original is not None:
                patches.replace(functions, name, self._timed(original, op, argument(position, "group")))
        if hasattr(functions, "wait_tensor"):
            patches.replace(functions, "wait_tensor", self._timed_wait(functions.wait_tensor))

    def _timed(self, original: Function, op: str, group_of: Function) -> Function:
        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedCall | None:
            if self._tracing():
                return None
            call = self._begin(op, args[0] if args else None, group_of(args, kwargs))
            if call is not None and op == "all_to_all":
                call.received = _received(args[0], _output_splits(args, kwargs))
            self._within.call = call
            return call

        timer = self._timer
        return timer.fence.around(original, begin, self._launched, self._raised, timer.inside, _compiling)

    def _raised(self, _call: RecordedCall, _error: BaseException) -> None:
        self._within.call = None

    def _begin(self, op: str, payload: Any, group: Any) -> RecordedCall | None:
        """None for arguments that we do not understand, on which the library raises, and for meta tensors, which are
        not sent."""
        try:
            if (payload if isinstance(payload, torch.Tensor) else payload[0]).is_meta:
                return None
            name = self._timer.group_name(_process_group(group))
            size, dtype, on_device = describe(payload)
            if op == "all_gather":  # the full tensor is the output
                size *= len(self._timer.ranks_of(name))
            call = self._timer.begin(op, name, size, dtype, on_device, marked=True)
        except (TypeError, ValueError, AttributeError, RuntimeError, IndexError, KeyError) as error:
            if self._timer.fence.theirs(error):
                raise
            return None
        call.ends_when_waited = True
        return call

    def _launched(self, call: RecordedCall, result: Any) -> None:
        self._within.call = None
        if call.wait_end_ns is not None or (call.device and call.marks is None):
            return
        if len(self._open) >= RECORDING.most_open_collectives:
            self._open.clear()
        for tensor in result if isinstance(result, list) else [result]:
            self._open[storage_of(tensor)] = call

    def _timed_wait(self, original: Function) -> Function:
        return self._timer.fence.around(original, self._wait_begins, wait_ends, skip=_compiling)

    def _wait_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WaitBegun | None:
        tensor = _waited_for(args, kwargs)
        outer = getattr(self._within, "call", None)
        call = self._open.pop(storage_of(tensor), None) if self._open else None
        if call is None:
            call, outer = outer, None  # some functions wait for their result before they return it
        if call is None:
            call = self._of_backward(sys._getframe(2))  # the caller of the replaced function
        if call is not None and call.device:
            return self._timer.mark_begins(call)
        if call is None or call.wait_end_ns is not None:
            return None
        return self._waited, call, outer, time.monotonic_ns()

    def _waited(self, call: RecordedCall, outer: RecordedCall | None, start_ns: int) -> None:
        end = time.monotonic_ns()
        call.wait_start_ns, call.wait_end_ns, call.end_ns = start_ns, end, end
        self._timer.finished(call)
        if outer is not None:  # its input was the result of this one
            outer.start_ns = end

    def _of_backward(self, frame: FrameType) -> RecordedCall | None:
        """The all-to-all that the frame has just launched, if it is the backward of one."""
        if frame.f_code is not self._backward or self._timer.inside.now or self._tracing():
            return None
        context, payload = frame.f_locals.get("ctx"), frame.f_locals.get("grad_output")
        call = self._begin("all_to_all", payload, getattr(context, "group_name", None))
        if call is not None:
            call.received = _received(payload, getattr(context, "input_split_sizes", ()))
        return call


_output_splits, _waited_for = argument(1, "output_split_sizes"), argument(0, "tensor")


def _received(payload: Any, splits: Any) -> int | None:
    """Bytes that a functional all-to-all receives: as many as it sends without ``splits``, else these rows. None where
    the splits are not integers: reading them would wait."""
    if splits is None:
        return int(payload.nbytes)
    if not isinstance(splits, (list, tuple)) or not all(isinstance(rows, int) for rows in splits):
        return None
    return int(sum(splits) * math.prod(payload.shape[1:]) * payload.element_size())


def _process_group(group: Any) -> Any:
    """The process group, from any form in which functional collectives take one."""
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


# -- point to point ----------------------------------------------------------------------------------------------------
#
# Times sends and receives: the traffic between pipeline stages.
#
# ``ProcessGroup.send`` and ``ProcessGroup.recv`` are timed; ``send``, ``recv``, ``isend``, ``irecv`` and
# ``batch_isend_irecv`` all call them. The public functions are not replaced: ``P2POp`` checks that its op is ``isend``
# or ``irecv`` itself, and ``batch_isend_irecv`` distinguishes them by identity, so a training that imported them before
# would break. torch 2.13's pipeline schedules call them by way of ``P2POp.op`` anyway, where all operations of a batch
# go in one direction.
#
# Sender and receiver count the messages from one to the other, so the sender's k-th send is the receiver's k-th
# receive. A receive from any source is not recorded, nor what the same group receives after one, as the counts then
# differ.


_tensors, _tag = argument(0, "tensors"), argument(2, "tag")
# pybind's names of the second argument.
_PEERS = {SEND: argument(1, "dstRank"), RECV: argument(1, "srcRank")}


class PointToPoint:
    """Installs the timed methods; their records go to the timer of all collectives."""

    def __init__(self, timer: CollectiveTimer) -> None:
        self._timer = timer
        self._labels: dict[tuple[str, str, int, int], str] = {}
        self._uncounted: set[str] = set()  # groups that received from any source
        self._by_work: weakref.WeakKeyDictionary[Any, RecordedCall] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        for op in (SEND, RECV):
            if op in vars(dist.ProcessGroup):
                patches.replace(dist.ProcessGroup, op, self._timed(vars(dist.ProcessGroup)[op], op))
        if "recv_anysource" in vars(dist.ProcessGroup):
            original = vars(dist.ProcessGroup)["recv_anysource"]
            patches.replace(dist.ProcessGroup, "recv_anysource", self._uncounting(original))

    def _timed(self, method: Any, op: str) -> Function:
        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedCall | None:
            # Within a timed call there is nothing to record, but what the library calls in turn is within it as well.
            return None if self._timer.inside.now else self._begin(op, args[0], args[1:], kwargs)

        return self._timer.fence.around(_plain(method), begin, self._launched, skip=_compiling)

    def _uncounting(self, method: Any) -> Function:
        def begin(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
            self._uncounted.add(str(getattr(args[0], "group_name", "")))

        return self._timer.fence.around(_plain(method), begin)

    def _begin(self, op: str, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedCall | None:
        """None for arguments that we do not understand, on which the library raises."""
        try:
            name = self._timer.group_name(group)
            if op == RECV and str(getattr(group, "group_name", "")) in self._uncounted:
                return None
            label = self._label(name, op, int(_PEERS[op](args, kwargs)), int(_tag(args, kwargs) or 0))
            size, dtype, on_device = describe(_tensors(args, kwargs))
            call = self._timer.begin(op, label, size, dtype, on_device)
        except (TypeError, ValueError, AttributeError, RuntimeError, IndexError, KeyError) as error:
            if self._timer.fence.theirs(error):
                raise
            return None
        call.ends_when_waited = True
        return call

    def _label(self, name: str, op: str, peer: int, tag: int) -> str:
        """``p2p 2>3``, from rank 2 to rank 3; followed by the group's name unless it is the default group."""
        key = name, op, peer, tag
        if key not in self._labels:
            ranks = self._timer.ranks_of(name)
            own_rank, peer_rank = dist.get_rank(), ranks[peer]
            source, target = (own_rank, peer_rank) if op == SEND else (peer_rank, own_rank)
            world = dist.group.WORLD
            suffix = "" if world is not None and name == self._timer.group_name(world) else f" of {name}"
            label = f"{P2P_PREFIX}{source}>{target}{suffix}{f' tag {tag}' if tag else ''}"
            self._timer.add_group(label, [source, target])
            self._labels[key] = label
        return self._labels[key]

    def _launched(self, call: RecordedCall, work: Any) -> None:
        if call.device or work is None:
            return
        if call.op == SEND:  # handed over; only the wait shows whether the receiver was ready
            call.end_ns = time.monotonic_ns()
        self._timer.works.begun(work, ends_by_itself=False)
        self._timer.last_finished[call.group] = call.seq  # no thread waits for it yet
        time_wait(work, call, self._by_work, self._wait_of, self._timer.fence)

    def wait_begins(self, work: Any) -> WaitBegun | None:
        """Called before a wait for any work; times that for a send or a receive."""
        call = self._by_work.get(work)
        return self._wait_of(call) if call is not None else None

    def _wait_of(self, call: RecordedCall) -> WaitBegun:
        start = time.monotonic_ns()
        self._timer.last_finished[call.group] = call.seq - 1
        return self._waited, call, start

    def _waited(self, call: RecordedCall, start_ns: int) -> None:
        end = time.monotonic_ns()
        self._timer.last_finished[call.group] = self._timer.last_started.get(call.group, call.seq)
        if call.wait_end_ns is None:
            call.wait_start_ns, call.wait_end_ns = start_ns, end
            if call.op == RECV or end - start_ns >= RECORDING.blocked_ns:
                call.end_ns = end


def _plain(method: Any) -> Function:
    plain: Function = getattr(method, "__func__", method)
    return plain


def _bytes_of(payload: Any) -> int | None:
    """Bytes of a tensor or a list of tensors; None for anything else, on which the library raises."""
    try:
        return describe(payload)[0]
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return None


# -- calls ------------------------------------------------------------------------------------------------------------

# ``group_desc`` of groups whose calls are not part of a step: background threads use them.
APART = "diag.apart"


def _nothing(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    return None


_BUFFERS = "_distributed_broadcast_coalesced"

# Function: (operation, argument with the full tensor or list of tensors, position of ``group``).
# The full tensor has what nccl-tests call the size: output of an all-gather, input of a reduce-scatter.
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
# Functions whose ranks may receive unequal parts: the argument with the tensor or list of tensors that is received.
_RECEIVED: dict[str, Function] = {
    "all_to_all_single": argument(0, "output"),
    "all_to_all": argument(0, "output_tensor_list"),
}


class CollectiveTimer:
    """Installs the timed functions and returns their records.

    Thread-safe under the GIL: the training's threads append, backend threads fill in ends, and one thread at a time
    takes the finished calls of the steps that are over.
    """

    def __init__(
        self, max_calls_per_step: int, device_clock: DeviceClock | None = None, fence: Fence | None = None
    ) -> None:
        self.fence = fence or Fence()
        self._ends = Ends(self._ended_by_backend, self.fence)
        self.works = Works()
        self.inside = Inside()  # a timed call: some public functions call others
        self.step = -1
        self._limit = max_calls_per_step
        self.device_clock = device_clock
        self.last_on: dict[int, RecordedCall] = {}  # the last call on each stream of the device
        self._backward_computed: Mark | None = None
        self._calls: deque[RecordedCall] = deque()
        self._dropped = 0
        self._sequence: dict[str, int] = {}
        self._names: dict[str, str] = {}  # of the groups that exist now: torch's name, and the name in the records
        self._lives = 0  # how often all groups were destroyed
        self._group_ranks: dict[str, list[int]] = {}
        self._new_groups: dict[str, list[int]] = {}
        self._by_work: weakref.WeakKeyDictionary[Any, RecordedCall] = weakref.WeakKeyDictionary()
        self._patches = Patches()
        self._complete = self._streams = False
        self._point_to_point = PointToPoint(self)
        self._functional = Functional(self)
        self.last_started: dict[str, int] = {}
        self.last_finished: dict[str, int] = {}
        self.last_op = ""
        self.ddp_buckets: list[RecordedCall] = []  # of a backward that has not ended
        self._in_bucket = False  # DDP's communication hook is being called
        # The groups in which C++ reduces gradients, one for each module: what looks at DDP's reducers sets it.
        self.reducing_groups: Callable[[], list[str] | None] = list

    def install(self) -> None:
        """Installs all timed functions; those in place already stay."""
        self.install_calls()
        if not self._complete:
            self._complete = True
            self._functional.install(self._patches)

    def install_calls(self) -> None:
        """Times the functions that ``import torch`` brings, before the training imports them under names of its own."""
        if self._patches:
            return
        for name, (op, payload, group_position) in _FUNCTIONS.items():
            original = getattr(c10d, name, None)
            if original is None:
                continue
            timed = self._timed(original, op, payload, argument(group_position, "group"), _RECEIVED.get(name))
            for module in (c10d, dist):
                if getattr(module, name, None) is original:
                    self._patches.replace(module, name, timed)
        # Before each forward DDP broadcasts the buffers of rank 0, in C++.
        if (send := getattr(DistributedDataParallel, _BUFFERS, None)) is not None:
            timed = self._timed(send, "broadcast", argument(1, "tensors"), lambda args, _kwargs: args[0].process_group)
            self._patches.replace(DistributedDataParallel, _BUFFERS, timed)
        self._patches.replace(dist.Work, "wait", self.fence.around(dist.Work.wait, self._wait_begins, wait_ends))
        self._point_to_point.install(self._patches)

    def install_streams(self, event_type: Any) -> None:
        """Times waits for events. ``event_type``: the accelerator's ``Event``; one without ``__dict__`` is left as it
        is."""
        clock = self.device_clock
        if clock is not None and not self._streams and bool(getattr(event_type, "__dictoffset__", 0)):
            self._streams = True
            watch_streams(self, event_type, clock, self._patches)

    def uninstall(self) -> None:
        self._patches.undo()
        self._streams = False
        self._complete = False

    def _timed(
        self, original: Function, op: str, payload: Function, group_of: Function, received: Function | None = None
    ) -> Function:
        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedCall | None:
            call = self._begin(op, payload(args, kwargs), group_of(args, kwargs))
            if received is not None and call is not None:
                call.received = _bytes_of(received(args, kwargs))
            return call

        return self.fence.around(original, begin, self._launched, ignore, self.inside, _compiling)

    def _begin(self, op: str, payload: Any, group: Any) -> RecordedCall | None:
        """None for calls that are not part of the training's steps, and for arguments that we do not understand, on
        which the library raises."""
        if getattr(group, "group_desc", "") == APART:
            return None
        try:
            return self.begin(op, self.group_name(group), *describe(payload), marked=True)
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            if self.fence.theirs(error):
                raise
            return None

    def begin(self, op: str, group: str, size: int, dtype: str, on_device: bool, marked: bool = False) -> RecordedCall:
        """Records a call that starts now, with the next number in its group. ``marked``: on a device, put marks around
        it."""
        seq = self._sequence.get(group, 0)
        self._sequence[group] = seq + 1
        call = RecordedCall(self.step, group, seq, op, size, dtype, 0, on_device)
        if len(self._calls) < self._limit:
            self._calls.append(call)
        else:
            self._dropped += 1
        if self._in_bucket:
            self.ddp_buckets.append(call)
        self.last_started[group] = seq
        self.last_op = op
        clock = self.device_clock
        if marked and on_device and clock is not None and not clock.capturing():
            call.marks = CallMarks(clock.mark(), clock.mark(later=True))
            self.last_on[clock.current_stream()] = call
        call.start_ns = time.monotonic_ns()
        return call

    def _launched(self, call: RecordedCall, work: Any) -> None:
        now = time.monotonic_ns()
        if work is None:  # synchronous: the caller was blocked for the whole call, unless the device does the work
            if call.marks is not None:
                self._ended(call.marks)
            if not call.device:
                call.end_ns = call.wait_end_ns = now
                call.wait_start_ns = call.start_ns
                self.finished(call)
            return
        if not call.device or call.marks is not None:
            time_wait(work, call, self._by_work, self._wait_of, self.fence)
        if not call.device:
            self.works.begun(work, ends_by_itself=True)
            call.ends_when_waited = not self._ends.follow(work, call)

    def _wait_begins(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> WaitBegun | None:
        if self.inside.now:  # in a synchronous call, which is timed as a whole
            return None
        call = self._by_work.get(args[0])
        return self._wait_of(call) if call is not None else self._point_to_point.wait_begins(args[0])

    def _wait_of(self, call: RecordedCall) -> WaitBegun | None:
        return self.mark_begins(call) if call.device else (self._waited, call, time.monotonic_ns())

    def _waited(self, call: RecordedCall, start_ns: int) -> None:
        if call.wait_start_ns is None:
            call.wait_start_ns, call.wait_end_ns = start_ns, time.monotonic_ns()
            if call.ends_when_waited:
                call.end_ns = call.wait_end_ns
                self.finished(call)

    def mark_begins(self, call: RecordedCall) -> WaitBegun | None:
        """Called before the current stream is made to wait for a call on the device. Puts marks around that if it is
        the first wait for the call and on the training's stream."""
        marks, clock = call.marks, self.device_clock
        if marks is None or marks.wait is not None or clock is None or call.step != self.step:
            return None
        if clock.capturing():
            return None
        if (stream := clock.current_stream()) != clock.training_stream:
            return self.waited_beside, call, stream
        return self._mark_ends, marks, clock, clock.mark()

    def _mark_ends(self, marks: CallMarks, clock: DeviceClock, begin: Mark) -> None:
        marks.wait = begin, clock.mark()
        if not marks.end.recorded:  # an asynchronous call, on a stream of the library
            marks.end = marks.wait[1]

    def waited_beside(self, call: RecordedCall, stream: int) -> None:
        """Called when a stream other than the training's has waited for the call: waiting for that stream is then
        waiting for the call. Ignored for a call that blocked the training's stream itself."""
        marks, clock = call.marks, self.device_clock
        if marks is None or clock is None or call.step != self.step:
            return
        if not marks.end.recorded and stream == clock.current_stream():
            self._ended(marks)
        if marks.end.recorded and marks.own_stream:
            self.last_on[stream] = call

    def _ended(self, marks: CallMarks) -> None:
        """Records the end: the calling stream has waited for the call. It is the training's stream, or one that this
        waits for later."""
        clock = self.device_clock
        if clock is not None and not clock.capturing():
            marks.own_stream = clock.current_stream() != clock.training_stream
            marks.end.record()

    def _ended_by_backend(self, call: RecordedCall) -> None:
        call.end_ns = time.monotonic_ns()
        self.finished(call)

    def let_go(self) -> None:
        """The process ends, or the recording: no thread of a backend calls Python for us from here on."""
        self._ends.let_go()

    def finished(self, call: RecordedCall) -> None:
        if call.seq > self.last_finished.get(call.group, -1):
            self.last_finished[call.group] = call.seq

    def group_name(self, group: Any) -> str:
        group = group if group is not None else dist.group.WORLD
        if group is None:
            return "default"
        name = str(getattr(group, "group_name", "") or "default")
        recorded = self._names.get(name)
        if recorded is None:
            recorded = f"{name} ({self._lives + 1})" if self._lives else name
            self.add_group(recorded, list(dist.get_process_group_ranks(group)))
            self._names[name] = recorded
        return recorded

    def leave_groups(self) -> None:
        """All groups are about to be destroyed. torch counts the names of later ones from the start again: their
        records get other names, as their calls are counted anew, and their ranks may be others."""
        self._names.clear()
        self._lives += 1
        self.last_started.clear()
        self.last_finished.clear()

    def add_group(self, name: str, ranks: list[int]) -> None:
        self._group_ranks[name] = self._new_groups[name] = ranks

    def ranks_of(self, name: str) -> list[int]:
        return self._group_ranks[name]

    def watch_ddp(self, module: Any, hook: tuple[Any, Function] | None = None) -> None:
        """Makes DDP's reducer call the collective through Python, so that it is timed like the others. ``hook``: a
        communication hook to call, with its state, instead of DDP's default all-reduce."""
        state, reduce = hook if hook is not None else (module.process_group, reduce_bucket)
        module.register_comm_hook(state, self.timed_bucket(reduce))

    def timed_bucket(self, reduce: Function) -> Function:
        """Wraps a communication hook: the collectives that it calls count as DDP's buckets."""

        def timed_bucket(state, bucket):  # type: ignore[no-untyped-def]  # see reduce_bucket
            self._in_bucket = True
            try:
                return reduce(state, bucket)
            finally:
                self._in_bucket = False

        return timed_bucket

    def reduced(self, group: str, size: int, dtype: str, on_device: bool, start_ns: int, end_ns: int) -> None:
        """Records the buckets that C++ has reduced as one call: from the launch of the last one to the end of backward,
        which waited for all of them."""
        call = self.begin("all_reduce", group, size, dtype, on_device)
        call.start_ns, call.whole = start_ns, False
        if not on_device:
            call.wait_start_ns, call.wait_end_ns = start_ns, end_ns
            call.end_ns = end_ns
            self.finished(call)
        elif self._backward_computed is not None and self.device_clock is not None:
            call.marks = CallMarks(self._backward_computed, self.device_clock.mark())
            self._backward_computed = None

    def reducing(self) -> dict[str, int]:
        """The reductions of C++ that are under way: the group, and the number that ``reduced`` will give the last
        one."""
        numbers: dict[str, int] = {}
        for group in self.reducing_groups() or ():
            numbers[group] = numbers[group] + 1 if group in numbers else self._sequence.get(group, 0)
        return numbers

    def backward_computed(self) -> None:
        """Marks the point at which the device has computed all gradients; the reducer then waits until they are
        reduced. Called when a backward is about to return, before the reducer ends."""
        if self.device_clock is not None and not self.device_clock.capturing():
            self._backward_computed = self.device_clock.mark()

    def end_backward(self, end_ns: int) -> None:
        """Fills in the waits: the reducer waited for all buckets from the launch of the last one to the end of
        backward."""
        buckets, self.ddp_buckets = self.ddp_buckets, []
        if not buckets:
            return
        last_launch = buckets[-1].start_ns
        if (marks := buckets[-1].marks) is not None:
            if not marks.end.recorded:
                self._ended(marks)
            for call in buckets[:-1]:  # the wait for the last one is the wait for all of them
                if call.marks is not None and not call.marks.end.recorded:
                    call.marks.end, call.marks.wait = marks.end, (marks.end, marks.end)
        for call in buckets:
            if not call.device and call.wait_start_ns is None:
                call.wait_start_ns = last_launch
                call.wait_end_ns = min(max(call.end_ns or end_ns, last_launch), end_ns)

    def take(self, step: int, everything: bool = False) -> list[tuple[int, list[RecordedCall]]]:
        """Removes and returns (step, calls) of the calls that have ended in this step or before it, oldest step first.
        A call that is still under way stays for two more steps. ``everything``: the run is over, or fails; no call
        stays."""
        calls, waiting = self._calls, []
        calls_by_step: dict[int, list[RecordedCall]] = {}
        while calls and (everything or calls[0].step <= step):  # they are in order of steps
            call = calls.popleft()
            if everything or call.step < step - 1 or call.settled:
                if call.step in calls_by_step:
                    calls_by_step[call.step].append(call)
                else:
                    calls_by_step[call.step] = [call]
            else:
                waiting.append(call)
        calls.extendleft(reversed(waiting))
        return sorted(calls_by_step.items())

    def take_marks(self, step: int) -> list[tuple[str, int, CallMarks]]:
        """Removes and returns the marks of a step's calls on the device: (group, seq, marks). The step gets no more."""
        marks_of_calls = []
        for call in list(self._calls):
            if call.step == step and call.marks is not None:
                marks_of_calls.append((call.group, call.seq, call.marks))
                call.marks = None
        self.last_on.clear()
        return marks_of_calls

    def under_way(self, step: int) -> list[CollectiveRow]:
        """The calls of this rank in a step so far, in order; the training's thread may be anywhere."""
        return [call.row() for call in list(self._calls) if call.step == step]

    def groups(self) -> dict[str, list[int]]:
        """The global ranks of every group used so far."""
        return dict(self._group_ranks)

    @property
    def crowded(self) -> bool:
        """Whether the calls of several steps together may soon reach the limit of one step."""
        return 2 * len(self._calls) >= self._limit

    def take_groups(self) -> dict[str, list[int]]:
        groups, self._new_groups = self._new_groups, {}
        return groups

    def take_dropped(self) -> int:
        dropped, self._dropped = self._dropped, 0
        return dropped


# -- streams -----------------------------------------------------------------------------------------------------------
#
# FSDP makes the training's stream wait for an event recorded after a collective, not for the collective's ``Work``. The
# collective is the last one that was called on the event's stream, or that this stream has waited for. An event is
# after an asynchronous call only where its stream has waited for the call.


def watch_streams(timer: CollectiveTimer, event_type: Any, clock: DeviceClock, patches: Patches) -> None:
    """Marks the waits of the training's stream for such events. ``event_type``: the accelerator's ``Event``."""

    def records(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        event, stream = args[0], _stream(args, kwargs)
        call = timer.last_on.get(_number_of(stream, clock)) if timer.last_on else None
        is_after_call = call is not None and call.marks is not None and call.marks.end.recorded
        event.diag_call = call if is_after_call else None

    def waits(args: tuple[Any, ...], kwargs: dict[str, Any]) -> WaitBegun | None:
        call = getattr(args[0], "diag_call", None)
        if call is None or clock.capturing():
            return None
        if (number := _number_of(_stream(args, kwargs), clock)) != clock.training_stream:
            return timer.waited_beside, call, number
        return timer.mark_begins(call)

    recorded = timer.fence.around(event_type.record, records)
    waited = timer.fence.around(event_type.wait, waits, wait_ends)
    patches.replace(event_type, "record", recorded)
    patches.replace(event_type, "wait", waited)


_stream = argument(1, "stream")


def _number_of(stream: Any, clock: DeviceClock) -> int:
    return clock.current_stream() if stream is None else int(getattr(stream, "stream_id", -1))


# Without annotations: DDP compares a hook's annotations with its own classes, and here they would be strings.
def reduce_bucket(group, bucket):  # type: ignore[no-untyped-def]
    """A communication hook equal to DDP's default, through ``torch.distributed.all_reduce``: divides the gradients by
    the size of the group and sums them. Register it with the process group as its state."""
    gradients = bucket.buffer().div_(group.size())
    work = dist.all_reduce(gradients, group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])
