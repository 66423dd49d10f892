"""Real trainings on two gloo ranks whose "device" is the host's clock: what is recorded of a device, and what an
analysis makes of it without a profiler window."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.distributed as dist

from diag.api import open_run
from diag.collectors import collectives, identity, session
from diag.collectors.accelerator import CUDA, Peaks
from diag.collectors.layout import RunLayout
from diag.collectors.records import DeviceStepRecord
from diag.collectors.session import Collector
from diag.collectors.settings import CollectorSettings
from diag.model.steps import Bottleneck
from diag.rundir.lines import read_lines
from tests.busy import is_contended
from tests.forked import call_ranks
from tests.ports import rendezvous

STEPS, SLOWER_S, MS = 12, 0.06, 1_000_000


class Event:
    """Passed when it is recorded: what this device does is done when the host goes on."""

    def __init__(self) -> None:
        self.at = 0.0

    def record(self, _stream: Any = None) -> None:
        self.at = time.monotonic()

    def wait(self, _stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1000


class HostAsDevice:
    """What the collectors use of an ``Accelerator``."""

    kind, name, capacity, event_type = CUDA, "the host as a device", 1 << 34, Event
    uuid = pci_address = None

    def event(self, timed: bool = True) -> Event:
        assert timed
        return Event()

    def is_capturing(self) -> bool:
        return False

    def current_stream(self) -> int:
        return 0

    def peaks(self) -> Peaks:
        return Peaks(1 << 30, 1 << 31, 0, 0)

    def reset_peaks(self) -> None: ...


def train(rank: int, rendezvous: str, run_dir: str, ddp: bool) -> None:
    device, describe = HostAsDevice(), collectives.describe
    session.accelerator_of = identity.accelerator_of = lambda _device: device  # type: ignore[assignment, attr-defined]
    collectives.describe = lambda payload: (*describe(payload)[:2], True)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    model: torch.nn.Module = torch.nn.Linear(256, 256)
    with Collector(Path(run_dir), CollectorSettings(trace=False, nvml=False)) as collector:
        collector.describe(strategy="ddp" if ddp else "by hand", backend="nccl", world_size=2)
        if ddp:
            model = torch.nn.parallel.DistributedDataParallel(model)
            collector.watch_ddp(model)
        for number in range(STEPS):
            with collector.step(number):
                with collector.phase("data"):
                    batch = torch.randn(16, 256)
                with collector.phase("forward"):
                    loss = model(batch).square().mean()
                    time.sleep(SLOWER_S * rank)
                with collector.phase("backward"):
                    loss.backward()
                with collector.phase("optimizer"):
                    for at, parameter in enumerate(model.parameters()):
                        if not ddp and at:
                            dist.all_reduce(parameter.grad, async_op=True).wait()  # type: ignore[union-attr]
                        elif not ddp:
                            dist.all_reduce(parameter.grad)
                        parameter.grad = None
    dist.destroy_process_group()


@pytest.mark.parametrize("ddp", [True, False], ids=["ddp", "by-hand"])
def test_the_rank_that_a_device_waits_for_is_named_without_a_window(tmp_path: Path, ddp: bool) -> None:
    call_ranks(train, rendezvous(tmp_path), str(tmp_path), ddp)
    waited = []
    for files in RunLayout(tmp_path).ranks().values():
        records, gaps = read_lines(files.device_steps, DeviceStepRecord)
        assert gaps == []
        assert [record.step for record in records] == list(range(STEPS))
        assert all(
            [row.phase for row in record.phases] == ["data", "forward", "backward", "optimizer"] for record in records
        )
        assert all(len(record.collectives) == (1 if ddp else 2) for record in records)
        waited.append(
            [sum(call.end_ns - (call.wait_start_ns or call.start_ns) for call in r.collectives) for r in records]
        )
    assert median(more - less for more, less in zip(*waited, strict=True)) > 0.5 * SLOWER_S * 1000 * MS
    result = open_run(tmp_path)
    assert {parts.source for step in result.attribution.steps for parts in step.parts} == {"events"}
    if is_contended(result, "compute-straggler", 1):
        return
    assert (result.verdict.bottleneck, result.verdict.culprit_ranks) == (Bottleneck.COMPUTE, (1,))
    assert result.verdict.confidence <= 0.6, "nobody measured how long the device was idle"
