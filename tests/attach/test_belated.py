"""A training in this process whose steps are told belatedly: what is recorded is what would be at once."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from diag.collectors import record
from diag.collectors.layout import RunLayout
from diag.collectors.records import CollectiveRow
from diag.collectors.session import Collector
from diag.collectors.settings import CollectorSettings
from tests.attach.trainings import collective_lines_of, phases_of, steps_of
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("group_of_one")

STEPS = 80
FIRST = 20  # steps that nothing waits in


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that ended at a boundary that was passed."""
    found: list[int] = []
    original = Collector.pass_boundary

    def pass_boundary(collector: Collector) -> Any:
        step = collector._step
        boundary = original(collector)
        if boundary is not None:
            found.append(step)
        return boundary

    monkeypatch.setattr(Collector, "pass_boundary", pass_boundary)
    return found


def train(steps: int = STEPS, calls: int = 1) -> None:
    """``calls``: all-reduces after each backward."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(4 * steps, 4)), batch_size=4)
    for (batch,) in loader:
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        for _ in range(calls):
            dist.all_reduce(loss.detach())
        optimizer.step()


def test_every_step_with_its_phases_and_calls(tmp_path: Path, passed: list[int]) -> None:
    with record(tmp_path, CollectorSettings(trace=False, nvml=False)):
        train()
    steps = steps_of(tmp_path)
    assert [step["step"] for step in steps] == list(range(STEPS))
    assert all(phases_of(step) == ["data", "forward", "backward", "optimizer"] for step in steps)
    assert all(one["end_ns"] <= other["begin_ns"] for one, other in pairwise(steps))
    for step in steps:
        assert step["begin_ns"] <= step["phases"][0][1]
        assert step["phases"][-1][2] <= step["end_ns"]
    rows = {line["step"]: [CollectiveRow(*row) for row in line["rows"]] for line in collective_lines_of(tmp_path)}
    assert [[row.seq for row in rows[step]] for step in range(STEPS)] == [[step] for step in range(STEPS)]
    assert all(steps[step]["begin_ns"] <= rows[step][0].start_ns <= steps[step]["end_ns"] for step in rows)
    assert len(passed) > STEPS / 4
    assert min(passed) >= FIRST - 1


def test_what_has_waited_is_written_while_the_training_stands_still(tmp_path: Path, passed: list[int]) -> None:
    """As before a hang that somebody ends with SIGKILL."""
    with record(tmp_path, CollectorSettings(trace=False, nvml=False, interval_s=0.05)):
        train()
        end = time.monotonic() + PATIENCE_S
        while len(steps_of(tmp_path)) < STEPS and time.monotonic() < end:
            time.sleep(0.05)
        assert [step["step"] for step in steps_of(tmp_path)] == list(range(STEPS))
        train()  # and it goes on, with another optimizer
        assert passed
    steps = [step["step"] for step in steps_of(tmp_path)]
    assert steps == list(range(len(steps)))
    assert len(steps) > 1.5 * STEPS


def test_a_profiler_window_begins_where_it_should(tmp_path: Path, passed: list[int]) -> None:
    settings = CollectorSettings(nvml=False, trace_skip=40, trace_warmup=1, trace_active=2)
    with record(tmp_path, settings):
        train()
    windows = {step["step"]: step["window"] for step in steps_of(tmp_path) if step["window"]}
    assert windows == {40: "warmup", 41: "active", 42: "active", 43: "after"}
    assert [trace.name for trace in RunLayout(tmp_path).rank(0).traces()] == ["trace-step000041.json.gz"]
    assert passed
    assert not set(passed) & set(range(39, 43))  # the step before a window ends when it begins


def test_waiting_costs_no_call_of_a_step_with_many(tmp_path: Path, passed: list[int]) -> None:
    with record(tmp_path, CollectorSettings(trace=False, nvml=False, max_collectives_per_step=16)):
        train(calls=3)
    lines = collective_lines_of(tmp_path)
    assert sum(line["dropped"] for line in lines) == 0
    assert sum(len(line["rows"]) for line in lines) == 3 * STEPS
    assert passed


def test_a_training_that_fails_leaves_the_steps_before(tmp_path: Path, passed: list[int]) -> None:
    def fail() -> None:
        with record(tmp_path, CollectorSettings(trace=False, nvml=False)):
            train()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [step["step"] for step in steps_of(tmp_path)] == list(range(STEPS))
    assert passed
