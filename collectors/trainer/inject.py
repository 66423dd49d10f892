"""Plants the faults of one rank in the training process. Sleeps instead of spinning, so cores stay free for peers.

``Injector`` is called by the loop: ``install`` before the collectors, ``dataset`` before the loader's processes start,
``install_calls`` after the collectors, ``attach`` on the finished model, ``begin_step`` in every step.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.distributed_c10d as c10d
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from ..calls import Patches, storage_of
from ..collectives import reduce_bucket
from ..scheduling import computed_elsewhere
from .data import BatchRequest
from .faults import Fault
from .keys import OptionError

# -- wire --------------------------------------------------------------------------------------------------------------
#
# A wrapper around torch.distributed's collectives that injects delays, omissions, truncated tensors and hangs.
#
# Delays affect all network traffic: collectives, those that DTensors call, and receives of pipeline stages. The other
# faults affect gradient reductions, which are collectives.
#
# ``Wire.install`` replaces the functions of ``torch.distributed`` and ``torch.distributed.distributed_c10d``.
# Collectors that replace them afterwards time a slow wire. A wire installed after the collectors acts as the training
# itself: the collectors do not see a call that it omits.

# Older and newer names; those that this torch lacks are skipped. The newer `*_into_tensor` and `*_tensor` call the
# `*_single` ones, so only the outermost call counts.
COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "all_gather_single", "reduce_scatter",
    "reduce_scatter_tensor", "reduce_scatter_single", "all_to_all", "all_to_all_single", "barrier",
)  # fmt: skip
_REDUCTIONS = frozenset({"all_reduce", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"})

# The functions that DTensors call; older and newer names, as above.
FUNCTIONAL = (
    "all_reduce", "all_gather_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single",
    "all_to_all_single",
)  # fmt: skip

# Reductions of fewer elements are the loss and the norm, not gradients.
_GRADIENT_ELEMENTS = 16

Action = Callable[[], None]


def full_bytes(arguments: tuple[Any, ...]) -> int:
    """Bytes of the full tensor: the largest argument, a tensor or a list of tensors."""
    sizes = [0]
    for argument in arguments:
        tensors = argument if isinstance(argument, (list, tuple)) else (argument,)
        sizes.append(sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor)))
    return max(sizes)


class Link:
    """Models a slower link: when a transfer that the real backend has finished would finish there.

    Latencies of concurrent transfers overlap; their bytes do not, as the link carries one transfer after the other.
    """

    def __init__(self, latency_s: float, megabits_per_s: float) -> None:
        self._latency_ns = round(latency_s * 1e9)
        self._ns_per_byte = 8_000 / megabits_per_s if megabits_per_s else 0.0
        self._free_ns = 0
        self._lock = threading.Lock()

    def deadline_ns(self, done_ns: int, size: int) -> int:
        """Monotonic time at which ``size`` bytes have arrived, at least ``done_ns`` + latency + transfer time."""
        with self._lock:
            self._free_ns = max(done_ns, self._free_ns) + round(size * self._ns_per_byte)
            return self._free_ns + self._latency_ns


def sleep_until(deadline_ns: int) -> None:
    while (remaining_ns := deadline_ns - time.monotonic_ns()) > 0:
        time.sleep(remaining_ns / 1e9)


class SlowWork(dist.Work):
    """A collective on a slow link. It completes at the deadline, which counts from the real completion."""

    def __init__(self, inner: dist.Work, link: Link, size: int) -> None:
        super().__init__()
        self._inner = inner
        self._link = link
        self._size = size
        self._real: Future[Any] = inner.get_future()
        self._lock = threading.Lock()
        self._known_deadline_ns: int | None = None
        self._slow: Future[Any] | None = None
        self._real.add_done_callback(self._completed)

    def _deadline_ns(self) -> int:
        """The deadline, fixed at the first call, which the backend's thread makes on completion."""
        with self._lock:
            if self._known_deadline_ns is None:
                self._known_deadline_ns = self._link.deadline_ns(time.monotonic_ns(), self._size)
            return self._known_deadline_ns

    def _completed(self, _: Future[Any]) -> None:
        self._deadline_ns()

    def wait(self, timeout: timedelta | None = None) -> bool:
        finished = self._inner.wait() if timeout is None else self._inner.wait(timeout)
        sleep_until(self._deadline_ns())
        return bool(finished)

    def is_completed(self) -> bool:
        return self._real.done() and time.monotonic_ns() >= self._deadline_ns()

    def is_success(self) -> bool:
        return self.is_completed() and self._inner.is_success()

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Any:
        return self._inner.result()

    def get_future(self) -> Future[Any]:
        """A future that completes at the deadline. The backend's thread sleeps until then, as on a busy wire."""
        if self._slow is None:

            def arrive(real: Future[Any]) -> Any:
                sleep_until(self._deadline_ns())
                return real.value()

            self._slow = self._real.then(arrive)
        return self._slow


class SlowReceive(dist.Work):
    """A receive on a slow link. A send completes when the host has taken it, on any link."""

    def __init__(self, inner: dist.Work, link: Link, size: int) -> None:
        super().__init__()
        self._inner, self._link, self._size = inner, link, size
        self._deadline_ns: int | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        finished = self._inner.wait() if timeout is None else self._inner.wait(timeout)
        if self._deadline_ns is None:
            self._deadline_ns = self._link.deadline_ns(time.monotonic_ns(), self._size)
        sleep_until(self._deadline_ns)
        return bool(finished)

    def is_completed(self) -> bool:
        return self._deadline_ns is not None and time.monotonic_ns() >= self._deadline_ns


class OmittedWork(dist.Work):
    """A collective that never ran and claims to be complete."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self._future: Future[Any] = Future()
        self._future.set_result(tensors)

    def wait(self, _timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def get_future(self) -> Future[Any]:
        return self._future


class Wire:
    """The collectives of this process, with their faults.

    ``link`` delays each call. ``arm_*`` plants one fault in the next gradient reduction.
    """

    def __init__(self, link: Link | None = None) -> None:
        self.link = link
        self._omit = False
        self._halve = False
        self._before: Action | None = None
        self._inside = threading.local()
        self._patches = Patches()
        self._sent: dict[int, int] = {}  # bytes, by the storage of a functional collective's result

    def arm_omission(self) -> None:
        self._omit = True

    def arm_mismatch(self) -> None:
        self._halve = True

    def arm_before(self, action: Action) -> None:
        self._before = action

    def install(self) -> None:
        for name in COLLECTIVES:
            original = getattr(dist, name, None)
            if original is None:
                continue
            replacement = self._wrap(name, original)
            for module in (dist, c10d):
                if getattr(module, name, None) is original:
                    self._patches.replace(module, name, replacement)

        if self.link is None:
            return
        self._patches.replace(dist.ProcessGroup, "recv", self._slow_receive(self.link, dist.ProcessGroup.recv))
        self._patches.replace(functional, "wait_tensor", self._slow_wait(self.link, functional.wait_tensor))
        for name in FUNCTIONAL:
            if (original := getattr(functional, name, None)) is not None:
                self._patches.replace(functional, name, self._sized(original))

    def _slow_receive(self, link: Link, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def receive(group: Any, *args: Any, **kwargs: Any) -> Any:
            work = original(group, *args, **kwargs)
            return SlowReceive(work, link, full_bytes((*args, *kwargs.values())))

        return receive

    def _sized(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a functional collective: remembers its bytes until its result is waited for."""

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            outcome = original(*args, **kwargs)
            if not torch.compiler.is_compiling() and isinstance(outcome, Tensor):
                self._sent[storage_of(outcome)] = full_bytes((*args, outcome))
            return outcome

        return call

    def _slow_wait(self, link: Link, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def wait(tensor: Any) -> Any:
            outcome = original(tensor)
            if not torch.compiler.is_compiling():
                size = self._sent.pop(storage_of(tensor), None)
                sleep_until(link.deadline_ns(time.monotonic_ns(), size or full_bytes((tensor,))))
            return outcome

        return wait

    def uninstall(self) -> None:
        self._patches.undo()

    def _wrap(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "call", False):
                return original(*args, **kwargs)
            self._inside.call = True
            try:
                return self._call(name, original, args, kwargs)
            finally:
                self._inside.call = False

        return call

    def _call(self, name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        size = full_bytes((*args, *kwargs.values()))
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if name in _REDUCTIONS and tensors and max(t.numel() for t in tensors) >= _GRADIENT_ELEMENTS:
            if self._before is not None:
                action, self._before = self._before, None
                action()
            if self._omit:
                self._omit = False
                return OmittedWork(tensors) if _is_async(name, args, kwargs) else None
            if self._halve:
                self._halve = False
                args = tuple(_half(value) for value in args)
                kwargs = {key: _half(value) for key, value in kwargs.items()}
        outcome = original(*args, **kwargs)
        if self.link is None:
            return outcome
        if isinstance(outcome, dist.Work):
            return SlowWork(outcome, self.link, size)
        sleep_until(self.link.deadline_ns(time.monotonic_ns(), size))
        return outcome


def _is_async(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    index = 3 if name == "all_reduce" else 4  # (tensor, op, group, async_op) or (output, input, op, group, async_op)
    return bool(kwargs.get("async_op", args[index] if len(args) > index else False))


def _half(value: Any) -> Any:
    """A copy of the first half of a tensor; the real tensor does not get the result."""
    if not isinstance(value, Tensor):
        return value
    return value.flatten()[: max(1, value.numel() // 2)].clone(memory_format=torch.contiguous_format)


_DEVICE = "device"  # the place where a straggler's time is spent
_USUAL_CLOCK_KHZ = 1_500_000  # clock of a GPU, if torch does not report it
_IN_A_CALL = frozenset({"skip-collective", "mismatched-shape"})


class FaultyDataset(Dataset[Tensor]):
    """A dataset that is slow or stuck on some batches, in any process that reads it."""

    def __init__(self, dataset: Dataset[Tensor], faults: tuple[Fault, ...], micro_batches: int) -> None:
        self.dataset = dataset
        self.faults = faults
        self.micro_batches = micro_batches

    def __getitem__(self, request: BatchRequest) -> Tensor:
        for fault in self.faults:
            if fault.name == "slow-loader":
                begun = request.number >= fault.integer("from") * self.micro_batches
                if begun and (request.number + 1) % fault.integer("every") == 0:
                    time.sleep(fault.number("ms") / 1e3)
            elif request.number == fault.integer("step") * self.micro_batches:
                sleep_while_parent_lives(fault.number("seconds"))
        return self.dataset[request]


def sleep_while_parent_lives(seconds: float) -> None:
    """Sleeps, but not longer than the parent process lives: a sleeping loader process would outlive a killed run."""
    parent, deadline = os.getppid(), time.monotonic() + seconds
    while (remaining_s := deadline - time.monotonic()) > 0 and os.getppid() == parent:
        time.sleep(min(remaining_s, 0.5))


class Injector:
    """Those of the requested faults that strike this rank."""

    def __init__(self, faults: Iterable[Fault], rank: int, world_size: int, device: torch.device) -> None:
        self.rank, self.world_size, self.device = rank, world_size, device
        self.faults = tuple(f for f in faults if f.strikes(rank) or _rotates(f))
        self.step = 0
        self.wire: Wire | None = None  # faults of the network
        self.calls: Wire | None = None  # faults of the training: calls that are wrong, late or missing
        self._heap: list[Any] = []

    def _of(self, *names: str) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.faults if fault.name in names)

    def install(self) -> None:
        """Installs the slow wire if this rank has one. Call it before the collectors, which time it."""
        links = self._of("slow-wire")
        if links and self.device.type != "cpu":
            raise OptionError(
                "slow-wire delays the waits of the host, not those of a GPU: inject it in a CPU run, "
                "or slow down the real network"
            )
        if self.device.type == "cpu" and any(fault.text("on") == _DEVICE for fault in self._of("straggler")):
            raise OptionError("straggler:on=device keeps a GPU busy, and this rank computes on the CPU: use on=host")
        if links:  # several in one run: the last one counts
            self.wire = Wire(Link(links[-1].number("ms") / 1e3, links[-1].number("mbps")))
            self.wire.install()

    def install_calls(self) -> None:
        """Installs faults of the training's own calls. Call it after the collectors: they do not see a call that the
        training omits, or makes late."""
        if any(f.name in _IN_A_CALL or _hangs_in(f, "collective") for f in self.faults):
            self.calls = Wire()
            self.calls.install()

    def uninstall_calls(self) -> None:
        """Call it before the collectors end."""
        if self.calls is not None:
            self.calls.uninstall()

    def uninstall(self) -> None:
        """Restores torch.distributed's own functions. Call it after the collectors have done so."""
        if self.wire is not None:
            self.wire.uninstall()

    def dataset(self, dataset: Dataset[Tensor], micro_batches: int) -> Dataset[Tensor]:
        """The dataset with the faults of this rank's loader; the same dataset if there are none."""
        faults = tuple(f for f in self.faults if f.name == "slow-loader" or _hangs_in(f, "loader"))
        return FaultyDataset(dataset, faults, micro_batches) if faults else dataset

    def attach(self, blocks: Sequence[nn.Module]) -> None:
        """Plants faults inside forward and backward of this rank's blocks, most of them in the middle block.

        The heap for the garbage collector is filled here and not earlier: the loader's processes must not inherit it.
        """
        middle = blocks[len(blocks) // 2]
        for fault in self.faults:
            if fault.name in ("straggler", "stall"):
                middle.register_forward_hook(self._straggle(fault))
            elif fault.name == "slow-device":
                for block in blocks:
                    block.register_forward_hook(_slow_down(fault.number("ms") / 1e3))
            elif fault.name == "gc-pause":
                self._heap.extend([None] for _ in range(fault.integer("objects")))
                middle.register_forward_hook(self._collect_garbage(fault))
            elif fault.name == "tiny-kernels":
                share = -(-fault.integer("count") // len(blocks))
                for block in blocks:
                    block.register_forward_hook(self._launch(share))
            elif fault.name == "item-sync":
                for block in blocks:
                    block.register_forward_hook(_read_back)

    def begin_step(self, step: int) -> None:
        """Arms the faults of this step, or ends the process."""
        self.step = step
        for fault in self.faults:
            if fault.name == "die" and fault.integer("step") == step:
                _die(fault)
            elif self.calls is not None and fault.name in ("skip-collective", "mismatched-shape", "hang"):
                if fault.integer("step") != step:
                    continue
                if fault.name == "skip-collective":
                    self.calls.arm_omission()
                elif fault.name == "mismatched-shape":
                    self.calls.arm_mismatch()
                elif _hangs_in(fault, "collective"):
                    self.calls.arm_before(partial(time.sleep, fault.number("seconds")))

    def checkpoint_stall_s(self) -> float:
        """Seconds by which a checkpoint would delay the end of this step; 0: none is due."""
        due = [f for f in self._of("checkpoint-stall") if (self.step + 1) % f.integer("every") == 0]
        return sum(fault.number("ms") for fault in due) / 1e3

    def route(self, model: DistributedDataParallel, hook: tuple[Any, Any] | None) -> None:
        """Routes DDP's reductions through the wire. Its reducer calls the backend directly unless it has a hook.

        ``hook``: the training's own, with its state, which calls torch.distributed anyway. Only for runs without
        collectors: they register a hook themselves, and DDP accepts only one.
        """
        if hook is not None:
            model.register_comm_hook(*hook)
        elif self.wire is not None or self.calls is not None:
            model.register_comm_hook(model.process_group, reduce_bucket)

    def _straggle(self, fault: Fault) -> Any:
        seconds = fault.number("ms") / 1e3
        spend: Action = partial(_compute_for if fault.name == "straggler" else time.sleep, seconds)
        if fault.name == "straggler" and fault.text("on") == _DEVICE:
            kilohertz = getattr(torch.cuda.get_device_properties(self.device), "clock_rate", _USUAL_CLOCK_KHZ)
            # torch's own kernel for tests, which spins for a number of cycles; queued like any other kernel.
            spend = partial(torch.cuda._sleep, round(seconds * kilohertz * 1e3))

        def forward(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            if self.step < fault.integer("from") or not self._its_turn(fault):
                return
            if fault.text("phase") == "forward":
                spend()
            elif output.requires_grad:
                output.register_hook(lambda _: spend())  # type: ignore[no-untyped-call]

        return forward

    def _its_turn(self, fault: Fault) -> bool:
        if not _rotates(fault):
            return True
        return (fault.integer("rank") + self.step) % self.world_size == self.rank

    def _collect_garbage(self, fault: Fault) -> Any:
        def forward(_module: nn.Module, _inputs: Any, _output: Tensor) -> None:
            if (self.step + 1) % fault.integer("every") == 0:
                gc.collect()

        return forward

    def _launch(self, count: int) -> Any:
        scratch = torch.zeros(8, device=self.device)

        def forward(_module: nn.Module, _inputs: Any, _output: Tensor) -> None:
            with torch.no_grad():
                for _ in range(count):
                    scratch.add_(1.0)

        return forward


def _rotates(fault: Fault) -> bool:
    return fault.name == "straggler" and fault.text("rotate") == "yes"


def _hangs_in(fault: Fault, where: str) -> bool:
    return fault.name == "hang" and fault.text("where") == where


def _slow_down(seconds: float) -> Any:
    """A forward hook that delays, and twice as long again when the gradient of the output arrives."""

    def forward(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        _compute_for(seconds)
        if output.requires_grad:
            output.register_hook(lambda _: _compute_for(2 * seconds))  # type: ignore[no-untyped-call]

    return forward


def _compute_for(seconds: float) -> None:
    """Takes as long as a slower device would; sleeps, so that cores stay free for peers."""
    begun = time.monotonic_ns()
    time.sleep(seconds)
    computed_elsewhere(time.monotonic_ns() - begun)


def _read_back(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
    output.detach().flatten()[0].item()


def _die(fault: Fault) -> None:
    how = fault.text("how")
    if how == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(fault.integer("code"))
    raise RuntimeError(f"injected: {fault}")
