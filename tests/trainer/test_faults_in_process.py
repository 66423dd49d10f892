"""Faults as one process sees them, in a process group of one rank. Sleeps only guarantee lower bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset

from diag.collectors.scheduling import ThreadTime
from diag.collectors.trainer.data import BatchRequest
from diag.collectors.trainer.faults import parse_faults
from diag.collectors.trainer.inject import Injector
from diag.collectors.trainer.keys import OptionError
from diag.collectors.trainer.model import build
from diag.collectors.trainer.options import PRESETS

pytestmark = pytest.mark.usefixtures("group_of_one")

CPU = torch.device("cpu")
GRADIENTS = 25_000  # floats: 100,000 bytes, 8 ms at 100 Mbit/s


@pytest.fixture
def inject() -> Iterator[Callable[..., Injector]]:
    injectors: list[Injector] = []

    def install(*specs: str, rank: int = 0, world_size: int = 1) -> Injector:
        injectors.append(Injector(parse_faults(specs), rank, world_size, CPU))
        injectors[-1].install()
        injectors[-1].install_calls()
        return injectors[-1]

    yield install
    for injector in injectors:
        injector.uninstall_calls()
        injector.uninstall()


def seconds(call: Callable[[], object]) -> float:
    start = time.monotonic()
    call()
    return time.monotonic() - start


def test_a_slow_wire_delays_by_latency_and_bytes(inject: Callable[..., Injector]) -> None:
    plain = dist.all_reduce
    injector = inject("slow-wire:ms=20,mbps=100")
    tensor = torch.ones(GRADIENTS)
    assert seconds(lambda: dist.all_reduce(tensor)) >= 0.028
    assert seconds(lambda: dist.all_reduce(tensor, async_op=True).wait()) >= 0.028
    assert seconds(lambda: dist.all_reduce(tensor, async_op=True).get_future().wait()) >= 0.028
    assert seconds(lambda: dist.broadcast(torch.ones(1), src=0)) >= 0.020
    injector.uninstall()
    assert dist.all_reduce is plain


def test_an_asynchronous_collective_leaves_the_caller_free_and_tells_when_it_is_done(
    inject: Callable[..., Injector],
) -> None:
    inject("slow-wire:ms=300,mbps=0")
    tensor = torch.full((GRADIENTS,), 3.0)
    start = time.monotonic()
    work = dist.all_reduce(tensor, async_op=True)
    assert isinstance(work, dist.Work)
    assert not work.is_completed()
    assert work.wait()
    assert time.monotonic() - start >= 0.3
    assert work.is_completed()
    assert torch.equal(work.get_future().value()[0], tensor)


def test_one_wire_carries_bytes_in_turn(inject: Callable[..., Injector]) -> None:
    inject("slow-wire:ms=0,mbps=100")
    tensors = [torch.ones(GRADIENTS) for _ in range(4)]

    def all_at_once() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    assert seconds(all_at_once) >= 4 * 0.008


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_a_function_that_calls_another_counts_once(inject: Callable[..., Injector]) -> None:
    inject("slow-wire:ms=30,mbps=0")
    output, part = torch.empty(32), torch.ones(32)
    name = "all_gather_into_tensor"
    assert seconds(lambda: getattr(dist, name)(output, part)) >= 0.030
    assert torch.equal(output, part)


def test_a_wire_that_is_slow_elsewhere_is_not_there(inject: Callable[..., Injector]) -> None:
    assert inject("slow-wire:rank=1", world_size=2).wire is None


def test_a_skipped_collective_is_the_first_gradient_reduction_of_its_step(inject: Callable[..., Injector]) -> None:
    injector = inject("skip-collective:rank=0,step=2")
    calls: list[int] = []
    assert injector.calls is not None
    for step in range(4):
        injector.begin_step(step)
        injector.calls.arm_before(lambda: calls.append(1))
        loss, gradients = torch.ones(()), torch.ones(GRADIENTS)
        dist.all_reduce(loss)
        assert len(calls) == step, "the loss is no gradient"
        work = dist.all_reduce(gradients, async_op=True)
        assert work.wait()
        assert type(work).__name__ == ("OmittedWork" if step == 2 else "Work")
        assert work.get_future().value()[0].data_ptr() == gradients.data_ptr()


def test_a_mismatched_shape_reduces_half(inject: Callable[..., Injector], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = dist.all_reduce

    def recording(tensor: Tensor) -> None:
        sizes.append(tensor.numel())
        real(tensor)

    monkeypatch.setattr(dist, "all_reduce", recording)
    injector = inject("mismatched-shape:rank=0,step=1")
    for step in range(3):
        injector.begin_step(step)
        dist.all_reduce(torch.ones(64))
    assert sizes == [64, 32, 64]


class Requests(Dataset[Tensor]):
    def __getitem__(self, request: BatchRequest) -> Tensor:
        return torch.tensor(request.number)


def test_a_slow_loader_sleeps_on_every_nth_batch(inject: Callable[..., Injector]) -> None:
    dataset = inject("slow-loader:ms=40,every=3").dataset(Requests(), micro_batches=1)
    spent = [seconds(lambda number=number: dataset[BatchRequest(number, ())]) for number in range(6)]
    assert min(spent[2], spent[5]) >= 0.040
    assert sum(spent) < 0.040 * 6


def test_a_loader_hangs_at_the_first_batch_of_its_step(inject: Callable[..., Injector]) -> None:
    dataset = inject("hang:rank=0,step=2,where=loader,seconds=0.2").dataset(Requests(), micro_batches=3)
    assert seconds(lambda: dataset[BatchRequest(6, ())]) >= 0.2


def test_a_healthy_rank_keeps_its_dataset(inject: Callable[..., Injector]) -> None:
    dataset = Requests()
    assert inject("slow-loader:rank=1", world_size=2).dataset(dataset, micro_batches=1) is dataset


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_straggler_is_slow_in_its_phase_and_in_its_turn(inject: Callable[..., Injector], phase: str) -> None:
    injector = inject(f"straggler:rank=1,ms=150,phase={phase},rotate=yes", rank=0, world_size=2)
    model = build(PRESETS["tiny"], seed=0)
    injector.attach(list(model.blocks.values()))
    tokens = torch.zeros(1, 4, dtype=torch.long)
    for step in (0, 1):  # rank 1 begins, rank 0 is next
        injector.begin_step(step)
        start = time.monotonic()
        loss = model(tokens).sum()
        between = time.monotonic()
        loss.backward()
        spent = {"forward": between - start, "backward": time.monotonic() - between}
        if step == 1:
            assert spent[phase] >= 0.15


def test_a_straggler_keeps_its_gpu_busy(monkeypatch: pytest.MonkeyPatch, inject: Callable[..., Injector]) -> None:
    with pytest.raises(OptionError, match="this rank computes on the CPU"):
        inject("straggler:rank=0,on=device")
    cycles: list[int] = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(clock_rate=2_000_000))
    monkeypatch.setattr(torch.cuda, "_sleep", cycles.append)
    on_gpu = Injector(parse_faults(["straggler:rank=0,ms=50,on=device"]), 0, 1, torch.device("cuda", 0))
    on_gpu.install()
    model = build(PRESETS["tiny"], seed=0)
    on_gpu.attach(list(model.blocks.values()))
    model(torch.zeros(1, 4, dtype=torch.long))
    assert cycles == [100_000_000], "50 ms at 2 GHz"


@pytest.mark.parametrize(("name", "computes"), [("straggler", True), ("stall", False)])
def test_what_a_straggler_takes_is_computing_and_a_stall_is_not(
    inject: Callable[..., Injector], name: str, computes: bool
) -> None:
    injector, thread = inject(f"{name}:rank=0,ms=300", rank=0, world_size=2), ThreadTime()
    model = build(PRESETS["tiny"], seed=0)
    injector.attach(list(model.blocks.values()))
    injector.begin_step(0)
    before, start = thread.read().on_cpu_ns, time.monotonic()
    model(torch.zeros(1, 4, dtype=torch.long))
    after = thread.read().on_cpu_ns
    assert time.monotonic() - start >= 0.3
    assert before is not None
    assert after is not None
    assert (after - before >= 300_000_000) == computes


def test_on_a_slow_device_every_block_takes_longer_and_twice_that_in_backward(inject: Callable[..., Injector]) -> None:
    injector = inject("slow-device:ms=40")
    model = build(PRESETS["tiny"], seed=0)
    assert len(model.blocks) == 2
    injector.attach(list(model.blocks.values()))
    start = time.monotonic()
    loss = model(torch.zeros(1, 4, dtype=torch.long)).sum()
    between = time.monotonic()
    loss.backward()
    assert between - start >= 0.08
    assert time.monotonic() - between >= 0.16


def test_a_checkpoint_stalls_after_every_nth_step(inject: Callable[..., Injector]) -> None:
    injector = inject("checkpoint-stall:ms=500,every=3")
    stalls = []
    for step in range(6):
        injector.begin_step(step)
        stalls.append(injector.checkpoint_stall_s())
    assert stalls == [0, 0, 0.5, 0, 0, 0.5]
