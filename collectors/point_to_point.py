"""Times sends and receives: what the stages of a pipeline hand to each other.

``ProcessGroup.send`` and ``ProcessGroup.recv`` are timed, which ``send``, ``recv``, ``isend``, ``irecv`` and
``batch_isend_irecv`` all end in. The functions themselves stay as they are: ``P2POp`` checks that it is given
``isend`` or ``irecv`` itself, and ``batch_isend_irecv`` asks which of the two by identity, so that a training that
imported them before would break. torch 2.13's pipeline schedules call them by way of ``P2POp.op`` anyway, where all
operations of a batch go in one direction.

Sender and receiver count what goes from one to the other, so the sender's k-th send is the receiver's k-th receive. Not
recorded: a receive from whoever sends first, and what the same group receives after one, as the counts then differ.
"""

from __future__ import annotations

import functools
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .calls import Call, Function, argument, describe, time_wait
from .patches import Patches
from .records import P2P_PREFIX, RECV, SEND

if TYPE_CHECKING:
    from .collectives import CollectiveTimer

# A wait that returns sooner found everything done: what the call itself takes, and a thread switch.
BLOCKED_NS = 50_000

_tensors, _tag = argument(0, "tensors"), argument(2, "tag")
# pybind's own names of the second argument.
_PEERS = {SEND: argument(1, "dstRank"), RECV: argument(1, "srcRank")}


class PointToPoint:
    """Installs the timed methods; what they record goes to the timer of all collectives."""

    def __init__(self, timer: CollectiveTimer) -> None:
        self._timer = timer
        self._labels: dict[tuple[str, str, int, int], str] = {}
        self._uncounted: set[str] = set()  # groups that received from anybody
        self._by_work: weakref.WeakKeyDictionary[Any, Call] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        for op in (SEND, RECV):
            if op in vars(dist.ProcessGroup):
                patches.replace(dist.ProcessGroup, op, self._timed(vars(dist.ProcessGroup)[op], op))
        if "recv_anysource" in vars(dist.ProcessGroup):
            original = vars(dist.ProcessGroup)["recv_anysource"]
            patches.replace(dist.ProcessGroup, "recv_anysource", self._uncounting(original))

    def _timed(self, method: Any, op: str) -> Function:
        original = getattr(method, "__func__", method)

        @functools.wraps(original)
        def timed(group: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._timer.inside:
                return original(group, *args, **kwargs)
            call = self._begin(op, group, args, kwargs)
            work = original(group, *args, **kwargs)
            if call is not None and work is not None:
                self._launched(call, work)
            return work

        return timed

    def _uncounting(self, method: Any) -> Function:
        original = getattr(method, "__func__", method)

        @functools.wraps(original)
        def uncounting(group: Any, *args: Any, **kwargs: Any) -> Any:
            self._uncounted.add(str(getattr(group, "group_name", "")))
            return original(group, *args, **kwargs)

        return uncounting

    def _begin(self, op: str, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """None for arguments that we do not understand: the library shall judge them."""
        try:
            name = self._timer.group_name(group)
            if op == RECV and name in self._uncounted:
                return None
            label = self._label(name, op, int(_PEERS[op](args, kwargs)), int(_tag(args, kwargs) or 0))
            size, dtype, on_device = describe(_tensors(args, kwargs))
            call = self._timer.begin(op, label, size, dtype, on_device)
        except (TypeError, ValueError, AttributeError, RuntimeError, IndexError, KeyError):
            return None
        call.ends_when_waited = True
        return call

    def _label(self, name: str, op: str, peer: int, tag: int) -> str:
        """``p2p 2>3``, from rank 2 to rank 3; the group's name behind it where it is not the one of all ranks."""
        key = name, op, peer, tag
        if key not in self._labels:
            ranks = self._timer.ranks_of(name)
            here, there = dist.get_rank(), ranks[peer]
            source, target = (here, there) if op == SEND else (there, here)
            world = dist.group.WORLD
            of = "" if world is not None and name == world.group_name else f" of {name}"
            label = f"{P2P_PREFIX}{source}>{target}{of}{f' tag {tag}' if tag else ''}"
            self._timer.add_group(label, [source, target])
            self._labels[key] = label
        return self._labels[key]

    def _launched(self, call: Call, work: Any) -> None:
        if call.device:
            return
        if call.op == SEND:  # handed over; whether the receiver is there already is told by who waits for it
            call.end_ns = time.monotonic_ns()
        self._timer.last_finished[call.group] = call.seq  # nobody stands still for it yet
        time_wait(work, call, self._by_work, self._wait)

    def waited(self, work: Any, wait: Function, *args: Any, **kwargs: Any) -> Any:
        """Runs ``wait`` of any work, timed if it is of a send or a receive."""
        call = self._by_work.get(work)
        if call is None:
            return wait(work, *args, **kwargs)
        return self._wait(call, functools.partial(wait, work), *args, **kwargs)

    def _wait(self, call: Call, wait: Function, *args: Any, **kwargs: Any) -> Any:
        finished = self._timer.last_finished
        start = time.monotonic_ns()
        finished[call.group] = call.seq - 1
        result = wait(*args, **kwargs)
        end = time.monotonic_ns()
        finished[call.group] = self._timer.last_started.get(call.group, call.seq)
        if call.wait_end_ns is None:
            call.wait_start_ns, call.wait_end_ns = start, end
            if call.op == RECV or end - start >= BLOCKED_NS:
                call.end_ns = end
        return result
