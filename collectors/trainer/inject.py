"""Plants the faults of one rank in the training process. Sleeps rather than burns, so that cores stay free for peers.

``Injector`` is called by the loop: ``install`` before the collectors, ``dataset`` before the loader's processes start,
``install_calls`` after the collectors, ``attach`` on the finished model, ``begin_step`` in every step.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from ..collectives import reduce_bucket
from ..scheduling import computed_elsewhere
from .data import BatchRequest
from .faults import Fault
from .options import OptionError
from .wire import Link, Wire

_IN_A_CALL = frozenset({"skip-collective", "mismatched-shape"})


class FaultyDataset(Dataset[Tensor]):
    """A dataset that is slow or stuck on some batches, in whichever process reads it."""

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
    """Sleep, but not longer than the parent process: a loader process left asleep would outlive a killed run."""
    parent, deadline = os.getppid(), time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and os.getppid() == parent:
        time.sleep(min(left, 0.5))


class Injector:
    """The faults that strike this rank, of all that were asked for."""

    def __init__(self, faults: Iterable[Fault], rank: int, world_size: int, device: torch.device) -> None:
        self.rank, self.world_size, self.device = rank, world_size, device
        self.faults = tuple(f for f in faults if f.strikes(rank) or _rotates(f))
        self.step = 0
        self.wire: Wire | None = None  # the network's faults
        self.calls: Wire | None = None  # the training's own: what it calls wrongly, late or not at all
        self._heap: list[Any] = []

    def _of(self, *names: str) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.faults if fault.name in names)

    def install(self) -> None:
        """Put the slow wire in place where this rank has one. Before the collectors, which time it."""
        links = self._of("slow-wire")
        if links and self.device.type != "cpu":
            raise OptionError(
                "slow-wire delays what the host waits for, which is not what a GPU waits for: inject it in a CPU run, "
                "or slow down the real network"
            )
        if links:  # several in one run: the last one counts
            self.wire = Wire(Link(links[-1].number("ms") / 1e3, links[-1].number("mbps")))
            self.wire.install()

    def install_calls(self) -> None:
        """Put in place what the training shall call wrongly. After the collectors: a call that a training leaves out,
        or comes late to, is one that they do not see."""
        if any(f.name in _IN_A_CALL or _hangs_in(f, "collective") for f in self.faults):
            self.calls = Wire()
            self.calls.install()

    def uninstall_calls(self) -> None:
        """Before the collectors end."""
        if self.calls is not None:
            self.calls.uninstall()

    def uninstall(self) -> None:
        """Give torch.distributed its own functions back. After the collectors have done so."""
        if self.wire is not None:
            self.wire.uninstall()

    def dataset(self, dataset: Dataset[Tensor], micro_batches: int) -> Dataset[Tensor]:
        """The dataset with the faults of this rank's loader; a rank without any keeps its dataset."""
        faults = tuple(f for f in self.faults if f.name == "slow-loader" or _hangs_in(f, "loader"))
        return FaultyDataset(dataset, faults, micro_batches) if faults else dataset

    def attach(self, blocks: Sequence[nn.Module]) -> None:
        """Plant what happens inside forward and backward of this rank's blocks, most of it in the one in the middle.

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
        """Arm what strikes in this step, or die in it."""
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
        """Seconds for which a checkpoint would hold up the end of this step; 0: none is due."""
        due = [f for f in self._of("checkpoint-stall") if (self.step + 1) % f.integer("every") == 0]
        return sum(fault.number("ms") for fault in due) / 1e3

    def route(self, model: DistributedDataParallel, hook: tuple[Any, Any] | None) -> None:
        """Let DDP's reductions pass the wire. Its reducer calls the backend directly unless it has a hook.

        ``hook``: the training's own, with its state, which calls torch.distributed anyhow. Only for runs without
        collectors: they register a hook themselves, and DDP takes one.
        """
        if hook is not None:
            model.register_comm_hook(*hook)
        elif self.wire is not None or self.calls is not None:
            model.register_comm_hook(model.process_group, reduce_bucket)

    def _straggle(self, fault: Fault) -> Any:
        spend = partial(_compute_for if fault.name == "straggler" else time.sleep, fault.number("ms") / 1e3)

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
    """A forward hook that computes, and again for twice as long when the gradient of the output arrives."""

    def forward(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        _compute_for(seconds)
        if output.requires_grad:
            output.register_hook(lambda _: _compute_for(2 * seconds))  # type: ignore[no-untyped-call]

    return forward


def _compute_for(seconds: float) -> None:
    """As long as a slower device would; asleep, so that cores stay free for peers."""
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
