"""DDP's buckets, timed by a hook that does what C++ does, and no longer when the recording is over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diag.collectors import record
from diag.collectors.attach.ddp import averaging
from diag.collectors.collectives import CollectiveTimer
from diag.collectors.layout import RunLayout
from diag.collectors.settings import CollectorSettings

PLAIN = CollectorSettings(trace=False, nvml=False)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(module: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.ones(4)).sum().backward()
        optimizer.step()


def test_buckets_have_rows_with_their_ends_and_waits(tmp_path: Path) -> None:
    with record(tmp_path, PLAIN):
        train(DistributedDataParallel(nn.Linear(4, 4)), 3)
    lines = [json.loads(line) for line in RunLayout(tmp_path).rank(0).collectives.read_text().splitlines()]
    rows = [row for line in lines for row in line["rows"] if row[2] == "all_reduce"]
    assert len(rows) == 3
    for _, _, _, size, dtype, start, end, wait_start, wait_end in rows:
        assert (size, dtype) == (80, "float32")
        assert start < end
        assert start <= wait_start <= wait_end


def test_the_hook_of_a_recording_that_is_over_records_nothing() -> None:
    timer = CollectiveTimer(100)
    timer.install_calls()
    module = DistributedDataParallel(nn.Linear(4, 4))
    module.register_comm_hook(module.process_group, averaging(timer))
    train(module, 2)
    recorded = sum(len(calls) for _, calls in timer.take(0, everything=True))
    assert recorded == 2
    timer.uninstall()
    train(module, 2)
    assert not list(timer.take(0, everything=True))


def test_an_average_is_what_ddp_computes() -> None:
    gradients = []
    for hooked in (False, True):
        torch.manual_seed(0)
        module = DistributedDataParallel(nn.Linear(4, 4))
        if hooked:
            module.register_comm_hook(module.process_group, averaging(CollectiveTimer(100)))
        module(torch.ones(4)).square().sum().backward()
        gradients.append([parameter.grad for parameter in module.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)
