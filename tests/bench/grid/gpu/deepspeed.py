"""What DeepSpeed's ZeRO-3 does in a step with parameters and optimizer states on NVMe (its 0.19's source, nothing
recorded: runtime/zero/stage3.py, partitioned_param_coordinator.py, parameter_offload.py; runtime/swap_tensor).

A unit is gathered ahead of its use as long as its part has been read or is being read from the disk; for a part that is
still being read the host waits. The part is copied to the device, which the host waits for, too, since ``.to`` blocks.
Units that a backward needs soon again stay gathered. Gradients are reduced in buckets, and their parts go to the host,
and back, in every micro-batch; in the last one they go there a second time in fp32, and on to the disk. The optimizer
reads its states and those gradients, updates on the processor and writes everything back, all in turn:
``pipeline_read`` and ``pipeline_write`` are off, as they are by default. Nothing of the disk is in a trace: waiting for
it calls nothing that the profiler knows, and DeepSpeed's own NVTX ranges do not reach it.

Simplified: all parameters are on the disk, there are as many buffers as it takes, the optimizer has one sub-group.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tests.bench.grid.gpu.engine import (
    AUTOGRAD,
    COMPUTE_STREAM,
    GATHER_STREAM,
    GRADIENT_STREAM,
    MAIN,
    REDUCE_STREAM,
    US,
    Rank,
)
from tests.bench.grid.gpu.job import Host, Planted
from tests.bench.grid.gpu.loop import CAST, COPY_OUT, NORM, SMALL, Loop, Steps, Unit

_REUSE = 1_000_000_000  # elements: stage3_max_reuse_distance
_PREFETCH = 50_000_000  # stage3_prefetch_bucket_size
_REDUCE = 500_000_000  # reduce_bucket_size
_AHEAD = 2  # fetches, and reductions, that may be under way before the host waits for the oldest
_MOVED = 400  # elements a nanosecond that the device's memory lets through
_ADAM = (("aten::lerp_", 0.2), ("aten::mul_", 0.1), ("aten::addcmul_", 0.25), ("aten::sqrt", 0.15),
         ("aten::div", 0.1), ("aten::addcdiv_", 0.2))  # fmt: skip


@dataclass
class _Disk:
    """A rank's disk: reads and writes one after the other. ``free``: when it has done all that it was given."""

    rank: Rank
    host: Host
    free: int = 0

    def start(self, size: float) -> int:
        """Reading or writing so many bytes, which the host does not wait for; when it will be done."""
        self.free = max(self.rank.now, self.free) + self.rank.varied(size / self.host.nvme_gb_s)
        return self.free

    def wait(self) -> None:
        self.rank.away(self.free)


@dataclass
class _Parameters:
    """The parameters of one rank in one forward and backward. ``uses``: the units in the order in which they will be
    fetched; ``read``: parts on the host, or on their way there, and when they have arrived; ``gathered``: units on the
    device, or on their way, and when; ``ahead``: of these the elements of those that nobody has used yet."""

    loop: Loop
    disk: _Disk
    uses: deque[Unit]
    read: dict[str, int] = field(default_factory=dict)
    gathered: dict[str, int] = field(default_factory=dict)
    ahead: dict[str, int] = field(default_factory=dict)
    fetches: deque[int] = field(default_factory=deque)

    def fetch(self, unit: Unit) -> Steps:
        """What the hook before the unit's forward or backward does (fetch_sub_module)."""
        r = self.loop.r
        self.uses.popleft()
        if unit.name not in self.gathered:
            yield from self._gather([unit])
        if self.ahead.pop(unit.name, 0):
            while self.fetches and self.fetches[0] <= r.now:
                self.fetches.popleft()
            if len(self.fetches) > _AHEAD:
                r.synchronise(self.fetches.popleft(), "cudaEventSynchronize")
            ns, gathered = 5 * US + unit.params // _MOVED, self.gathered[unit.name]
            self.fetches.append(r.launch(COPY_OUT, ns, GATHER_STREAM, gathered, op="aten::cat"))
            r.free[COMPUTE_STREAM] = max(r.free[COMPUTE_STREAM], self.fetches[-1])
        yield from self._gather(self._next())
        self._read_ahead()

    def release(self, unit: Unit) -> None:
        """After the unit's forward or backward: its memory is freed unless it is used again soon."""
        ahead = 0
        for later in self.uses:
            if later is unit and ahead < _REUSE:
                return
            ahead += later.params
        del self.gathered[unit.name], self.read[unit.name]

    def _next(self) -> list[Unit]:
        """What is gathered ahead: nothing beyond a part that is still on the disk."""
        found: list[Unit] = []
        for unit in self.uses:
            if sum(u.params for u in found) >= _PREFETCH or unit.name not in self.read:
                break
            if unit.name not in self.gathered and unit not in found:
                found.append(unit)
        return found

    def _gather(self, units: list[Unit]) -> Steps:
        if not units:
            return
        loop, r = self.loop, self.loop.r
        for unit in units:
            if unit.name not in self.read:
                self.read[unit.name] = self.disk.start(_part(loop, unit) * 2)
        r.away(max(self.read[unit.name] for unit in units))
        for unit in units:
            _copy(loop, self.disk.host, "HtoD (Pinned -> Device)", _part(loop, unit) * 2, GATHER_STREAM, blocking=True)
        params = sum(unit.params for unit in units)
        ready = r.launch(SMALL, 5 * US + params // len(loop.everyone.ranks) // _MOVED, GATHER_STREAM, op="aten::cat")
        end = yield from loop.meet("all_gather", params, loop.everyone, GRADIENT_STREAM, ready)
        self.gathered.update((unit.name, end) for unit in units)
        self.ahead.update((unit.name, unit.params) for unit in units)

    def _read_ahead(self) -> None:
        """Starts to read what is used after all that is being gathered (__prefetch_nvme_param_partitions)."""
        underway, considered = sum(self.ahead.values()), 0
        for unit in self.uses:
            if considered > 2 * underway:
                return
            if unit.name not in self.read:
                self.read[unit.name] = self.disk.start(_part(self.loop, unit) * 2)
            considered += unit.params


@dataclass
class _Gradients:
    """The bucket of gradients that are reduced together, and what becomes of a rank's part of them."""

    loop: Loop
    disk: _Disk
    filled: int = 0
    reductions: deque[int] = field(default_factory=deque)

    def add(self, params: int) -> Steps:
        if self.filled and self.filled + params > _REDUCE:
            yield from self.reduce()
        r = self.loop.r
        r.launch(SMALL, 5 * US + params // _MOVED, REDUCE_STREAM, r.free[COMPUTE_STREAM], op="aten::copy_")
        self.filled += params

    def reduce(self) -> Steps:
        loop, r, elements = self.loop, self.loop.r, self.filled
        while self.reductions and self.reductions[0] <= r.now:
            self.reductions.popleft()
        if len(self.reductions) > _AHEAD:
            r.synchronise(self.reductions.popleft(), "cudaEventSynchronize")
        r.launch(SMALL, 5 * US + elements // _MOVED, REDUCE_STREAM, op="aten::cat")
        ready = r.launch(SMALL, 5 * US + elements // _MOVED, REDUCE_STREAM, op="aten::div_")
        yield from loop.meet("reduce_scatter", elements, loop.everyone, REDUCE_STREAM, ready)
        part, host = elements // len(loop.everyone.ranks), self.disk.host
        _copy(loop, host, "DtoH (Device -> Pinned)", part * 2, REDUCE_STREAM)
        _copy(loop, host, "HtoD (Pinned -> Device)", part * 2, REDUCE_STREAM)
        if loop.reduces:
            r.launch(NORM, 5 * US + part // _MOVED, REDUCE_STREAM, op="aten::linalg_vector_norm")
            r.launch(CAST, 5 * US + part // _MOVED, REDUCE_STREAM, op="aten::_to_copy")
            _copy(loop, host, "DtoH (Device -> Pinned)", part * 4, REDUCE_STREAM, blocking=True)
            self.disk.start(part * 4)
        self.reductions.append(r.free[REDUCE_STREAM])
        self.filled = 0


class Engine:
    """One rank's forward and backward, and its optimizer."""

    def __init__(self, rank: Rank, host: Host) -> None:
        self.disk = _Disk(rank, host)

    def passes(self, loop: Loop) -> Steps:
        """Forward and backward."""
        job, r = loop.job, loop.r
        table = Unit("embed_tokens", job.root_params // 2, 50 * US)
        units = [table, *loop.units, Unit("lm_head", job.root_params // 2, job.head_ns)]
        held, gradients = _Parameters(loop, self.disk, deque((*units, *reversed(units)))), _Gradients(loop, self.disk)
        slower = loop.planted(Planted.FORWARD) // len(loop.units)
        with loop.own("forward"):
            for unit in units:
                yield from held.fetch(unit)
                loop.kernels(unit.forward_ns, False, slower if unit in loop.units else 0)
                held.release(unit)
                if unit in loop.units:
                    loop.disturb(len(loop.units))
        r.thread = AUTOGRAD
        slower = loop.planted(Planted.BACKWARD) // len(loop.units)
        with loop.own("backward"), r.span("autograd::engine::evaluate_function: PreBackwardFunction", "cpu_op"):
            for unit in reversed(units):
                yield from held.fetch(unit)
                loop.kernels(2 * unit.forward_ns, True, slower if unit in loop.units else 0)
                yield from gradients.add(unit.params)
                held.release(unit)
            yield from gradients.reduce()
            r.synchronise(r.free[REDUCE_STREAM])
        r.thread = MAIN

    def update(self, loop: Loop) -> Steps:
        """The engine's step: PyTorch's AdamW on the processor, between reading the states and writing them."""
        r, disk = loop.r, self.disk
        part = (loop.job.root_params + sum(unit.params for unit in loop.units)) // len(loop.everyone.ranks)
        with r.span("Optimizer.step#EngineOptimizer.step"), loop.own("optimizer"):
            r.copy("Memcpy HtoD (Pageable -> Device)", 2 * US, blocking=True)
            yield from loop.meet("all_reduce", 1, loop.everyone, GRADIENT_STREAM, dtype="Float")
            r.free[COMPUTE_STREAM] = max(r.free[COMPUTE_STREAM], r.free[GRADIENT_STREAM])
            r.copy("Memcpy DtoH (Device -> Pageable)", 2 * US, blocking=True)
            disk.wait()  # until all gradients are written
            disk.start(part * (12 + 4))  # the parameters in fp32, two moments; the gradients
            disk.wait()
            took = r.varied(part * disk.host.adam_ns)
            r.work("aten::mul_", took // 8)  # clips
            with r.span("Optimizer.step#AdamW.step"):
                for name, share in _ADAM:
                    r.work(name, round(took * share))
            r.work("aten::copy_", took // 8)  # to bf16
            disk.start(part * 2)
            disk.wait()
            disk.start(part * 12)
            disk.wait()


def _part(loop: Loop, unit: Unit) -> int:
    return -(-unit.params // len(loop.everyone.ranks))


def _copy(loop: Loop, host: Host, kind: str, size: int, stream: int, *, blocking: bool = False) -> None:
    loop.r.copy(f"Memcpy {kind}", loop.r.varied(10 * US + size / host.pcie_gb_s), stream, blocking=blocking)
