"""Real gloo ranks in pipelines, with replicas, and in tensor parallelism: what is planted is found.

Layers sleep as long as they are meant to compute, so that the ranks need no cores of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from diag.api import Result, open_run
from diag.collectors.records import BACKWARD, DATA, FORWARD, OPTIMIZER
from diag.collectors.session import Collector
from diag.collectors.settings import CollectorSettings
from diag.model.steps import Bottleneck
from tests.busy import is_contended
from tests.forked import call_ranks
from tests.ports import rendezvous

pytestmark = pytest.mark.multiproc

STEPS, BATCHES, WIDTH = 10, 4, 32
FORWARD_S, DELAY_S = 0.020, 0.200
SETTINGS = CollectorSettings(trace=False, nvml=False)
Planted = dict[str, dict[int, float]]  # phase: rank: seconds


class Slow(torch.autograd.Function):
    """Takes a while in the forward, and twice as long in the backward."""

    @staticmethod
    def forward(_context: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        _context.seconds = seconds
        time.sleep(seconds)
        return x * 1.0

    @staticmethod
    def backward(_context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(2 * _context.seconds)
        return gradients[0] * 1.0, None


class Layer(torch.nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Slow.apply(self.linear(x), self.seconds)  # type: ignore[no-untyped-call]
        return found


def run(folder: Path, work: Callable[..., None], ranks: int, planted: Planted, *args: object) -> Result:
    call_ranks(_start, work, ranks, rendezvous(folder), str(folder), planted, *args, ranks=ranks)
    return open_run(folder)


def _start(
    rank: int, work: Callable[..., None], ranks: int, rendezvous: str, folder: str, planted: Planted, *args: object
) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    work(rank, Path(folder), {phase: by_rank.get(rank, 0.0) for phase, by_rank in planted.items()}, *args)
    dist.barrier()
    dist.destroy_process_group()


@contextmanager
def in_phase(collector: Collector, owner: Any, method: str, phase: str) -> Iterator[None]:
    """Every call of the method is one phase, as the bundled trainer records the chunks of a schedule."""
    original = getattr(owner, method)

    def timed(*args: Any, **kwargs: Any) -> Any:
        with collector.phase(phase):
            return original(*args, **kwargs)

    setattr(owner, method, timed)
    yield
    setattr(owner, method, original)


def pipeline(rank: int, folder: Path, planted: dict[str, float], replicas: int, forward_s: tuple[float, float]) -> None:
    from torch.distributed import pipelining
    from torch.distributed.pipelining.schedules import Schedule1F1B

    mesh = init_device_mesh("cpu", (2, replicas), mesh_dim_names=("pp", "dp"))
    number = mesh.get_local_rank("pp")
    layer = Layer(forward_s[number])
    stage = pipelining.PipelineStage(layer, number, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, BATCHES, loss_fn=lambda output, target: (output - target).square().mean())
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    with (
        Collector(folder, SETTINGS) as collector,
        in_phase(collector, stage, "forward_one_chunk", FORWARD),
        in_phase(collector, stage, "backward_one_chunk", BACKWARD),
    ):
        world = 2 * replicas
        trainer = {"pipeline_parallel": 2, "micro_batches": BATCHES, "pipeline_schedule": "1f1b", "stages_per_rank": 1}
        sizes = {"pp": 2, "dp": replicas}
        collector.describe(strategy="ddp", backend="gloo", world_size=world, mesh=sizes, trainer=trainer)
        for step in range(STEPS):
            with collector.step(step):
                with collector.phase(DATA):
                    time.sleep(0.001 + planted.get(DATA, 0.0))
                    batch = torch.ones(2 * BATCHES, WIDTH)
                layer.seconds = forward_s[number] + planted.get(FORWARD, 0.0) / BATCHES
                schedule.step(batch) if number == 0 else schedule.step(target=batch)
                if replicas > 1:
                    for parameter in layer.parameters():
                        dist.all_reduce(parameter.grad, group=mesh.get_group("dp"))
                with collector.phase(OPTIMIZER):
                    optimizer.step()
                    optimizer.zero_grad()


def tensor_parallel(rank: int, folder: Path, planted: dict[str, float]) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    blocks = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)) for _ in range(3)]
    for block in blocks:
        parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    parameters = [parameter for block in blocks for parameter in block.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    with Collector(folder, SETTINGS) as collector:
        collector.describe(strategy="ddp", backend="gloo", world_size=2, mesh={"dp": 1, "tp": 2})
        for step in range(STEPS):
            with collector.step(step):
                with collector.phase(DATA):
                    time.sleep(0.001 + planted.get(DATA, 0.0))
                    x = torch.ones(2, WIDTH, requires_grad=True)
                with collector.phase(FORWARD):
                    for block in blocks:
                        x = block(Slow.apply(x, FORWARD_S + planted.get(FORWARD, 0.0) / 3))  # type: ignore[no-untyped-call]
                    loss = x.square().mean()
                with collector.phase(BACKWARD):
                    loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                with collector.phase(OPTIMIZER):
                    optimizer.step()
                    optimizer.zero_grad()


def ids(result: Result) -> list[str]:
    return [finding.id for finding in result.examination.findings]


def test_a_pipeline_that_is_well_has_its_bubble(tmp_path: Path) -> None:
    result = run(tmp_path, pipeline, 2, {}, 1, (FORWARD_S, FORWARD_S))
    (bubble,) = [finding for finding in result.examination.findings if finding.id == "pipeline-bubble"]
    assert bubble.share == pytest.approx(1 / 5, abs=0.08)
    assert "unbalanced-stages" not in ids(result)
    assert "compute-straggler" not in ids(result)
    assert not result.verdict.culprit_ranks


def test_a_stage_with_more_work(tmp_path: Path) -> None:
    result = run(tmp_path, pipeline, 2, {}, 1, (2 * FORWARD_S, FORWARD_S))
    if is_contended(result, "unbalanced-stages", 0):
        return
    assert result.verdict.cause == "unbalanced-stages", result.verdict.headline
    assert result.verdict.culprit_ranks == (0,)


@pytest.mark.matrix
@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_loader_of_a_stage(tmp_path: Path, slow: int) -> None:
    result = run(tmp_path, pipeline, 2, {DATA: {slow: DELAY_S}}, 1, (FORWARD_S, FORWARD_S))
    if is_contended(result, "slow-data-one-rank", slow):
        return
    assert result.verdict.bottleneck == Bottleneck.DATA, result.verdict.headline
    assert result.verdict.culprit_ranks == (slow,), result.verdict.headline


@pytest.mark.matrix
def test_a_straggler_among_replicas_of_a_stage(tmp_path: Path) -> None:
    result = run(tmp_path, pipeline, 4, {FORWARD: {2: DELAY_S}}, 2, (FORWARD_S, FORWARD_S))
    if is_contended(result, "compute-straggler", 2):
        return
    assert result.verdict.cause == "compute-straggler", result.verdict.headline
    assert result.verdict.culprit_ranks == (2,), result.verdict.headline
    assert "unbalanced-stages" not in ids(result)


@pytest.mark.parametrize(
    ("phase", "bottleneck"),
    [
        pytest.param(DATA, Bottleneck.DATA, id="loader", marks=pytest.mark.matrix),
        pytest.param(FORWARD, Bottleneck.COMPUTE, id="straggler"),
    ],
)
def test_a_rank_that_its_tensor_parallel_peer_waits_for(tmp_path: Path, phase: str, bottleneck: Bottleneck) -> None:
    result = run(tmp_path, tensor_parallel, 2, {phase: {1: DELAY_S}})
    if is_contended(result, "slow-data-one-rank" if phase == DATA else "compute-straggler", 1):
        return
    assert result.verdict.bottleneck == bottleneck, result.verdict.headline
    assert result.verdict.culprit_ranks == (1,), result.verdict.headline
    assert any(row.axis == "tp" and row.op == "all_reduce" for row in result.breakdowns.collectives.rows)
