"""The collector around real training on two gloo ranks, in a loop that is not the bundled trainer's."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from diag.account import records as from_records
from diag.account.intervals import clip, total
from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.policy import RECORDING
from diag.collectors.records import (
    PHASES,
    PHASES_AND_REST,
    STEP,
    STILL,
    STUCK,
    CollectiveLine,
    Heartbeat,
    KeptLine,
    RankRecord,
    StepRecord,
)
from diag.collectors.session import Collector
from diag.collectors.settings import CollectorSettings
from diag.rundir.lines import read_lines, read_record
from diag.rundir.summaries import read_summaries
from diag.traces.kineto import read_trace
from diag.watch.keeping import ask_to_keep
from tests.forked import call_ranks
from tests.patience import PATIENCE_S
from tests.ports import rendezvous

STEPS = 6


def train(rank: int, rendezvous: str, run_dir: str, ddp: bool) -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    settings = CollectorSettings(trace_skip=3, trace_warmup=1, trace_active=1, interval_s=0.2)
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    with Collector(Path(run_dir), settings) as collector:
        collector.describe(strategy="ddp" if ddp else "by hand", backend="gloo", world_size=2)
        if ddp:
            model = torch.nn.parallel.DistributedDataParallel(model)
            collector.watch_ddp(model)
        for number in range(STEPS):
            with collector.step(number) as step:
                with collector.phase("data"):
                    batch = torch.randn(16, 64)
                with collector.phase("forward"):
                    loss = model(batch).square().mean()
                with collector.phase("backward"):
                    loss.backward()
                with collector.phase("optimizer"):
                    for parameter in model.parameters():
                        if not ddp:
                            work = dist.all_reduce(parameter.grad, async_op=True)
                            work.wait()
                        parameter.grad = None
                step.tokens = batch.numel()
    assert dist.all_reduce.__module__.startswith("torch"), "the wrapped functions are put back"
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=[True, False], ids=["ddp", "by-hand"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunLayout, bool]:
    folder = tmp_path_factory.mktemp("run")
    call_ranks(train, rendezvous(folder), str(folder), request.param)
    return RunLayout(folder), request.param


def test_every_step_of_every_rank_is_recorded(run: tuple[RunLayout, bool]) -> None:
    layout, _ = run
    assert list(layout.ranks()) == [0, 1]
    for rank, files in layout.ranks().items():
        identity, gap = read_record(files.identity, RankRecord)
        assert gap is None
        assert identity is not None
        assert (identity.rank, identity.world_size, identity.device) == (rank, 2, "cpu")
        steps, gaps = read_lines(files.steps, StepRecord)
        assert gaps == []
        assert [s.step for s in steps] == list(range(STEPS))
        assert [s.window for s in steps] == ["", "", "", "warmup", "active", "after"]
        for step in steps:
            assert {p.phase for p in step.phases} <= set(PHASES)
            assert all(step.begin_ns <= p.start_ns <= p.end_ns <= step.end_ns for p in step.phases)
            assert step.tokens == 16 * 64
            assert step.memory is not None
            assert step.memory.rss > 10_000_000
        beat, _ = read_record(files.heartbeat, Heartbeat)
        assert beat is not None
        assert beat.done
        assert json.loads(files.device.read_text().splitlines()[0])["unavailable"]


def test_collectives_agree_across_ranks(run: tuple[RunLayout, bool]) -> None:
    layout, ddp = run
    seen = []
    for files in layout.ranks().values():
        lines, gaps = read_lines(files.collectives, CollectiveLine)
        assert gaps == []
        rows = [row for line in lines for row in line.rows]
        assert [row.seq for row in rows] == list(range(len(rows)))
        assert all(row.end_ns is not None and row.end_ns >= row.start_ns for row in rows)
        assert lines[0].groups == {"0": [0, 1]} or ddp
        assert any(line.groups.get("0") == [0, 1] for line in lines)
        seen.append([(row.op, row.bytes, row.dtype) for row in rows])
        assert len(from_records.blocked(rows)) > 0, "somebody waited for the gradients"
    assert seen[0] == seen[1]
    gradients = (64 * 64 + 64 + 64 * 8 + 8) * 4
    if ddp:  # one bucket a step; the constructor's own broadcasts run in C++
        assert [b for op, b, _ in seen[0] if b == gradients] == [gradients] * STEPS
    else:
        assert sum(b for _, b, _ in seen[0]) == gradients * STEPS


def test_the_summary_is_what_the_records_say(run: tuple[RunLayout, bool]) -> None:
    """Microsecond by microsecond, also of the waits that became known after their step."""
    layout, _ = run
    found = read_summaries(layout)
    assert (found.ranks, found.numbers) == ((0, 1), tuple(range(STEPS)))
    assert found.waits_known
    assert found.marked == {"warmup": {3}, "active": {4}, "after": {5}}
    for at, files in enumerate(layout.ranks().values()):
        steps, _ = read_lines(files.steps, StepRecord)
        lines, _ = read_lines(files.collectives, CollectiveLine)
        waits = from_records.blocked([row for line in lines for row in line.rows])
        still = [total(clip(waits, step.begin_ns, step.end_ns)) / 1e3 for step in steps]
        whole = [(step.end_ns - step.begin_ns) / 1e3 for step in steps]
        assert found.column(STEP)[at] == pytest.approx(whole, abs=1)
        worked = sum(found.column(phase)[at].astype(int) for phase in PHASES_AND_REST)
        told = sum(found.column(phase + STILL)[at].astype(int) for phase in PHASES_AND_REST)
        assert told == pytest.approx(still, abs=8)
        assert worked + told == pytest.approx(whole, abs=16)


def test_the_window_is_a_trace_with_our_ranges(run: tuple[RunLayout, bool]) -> None:
    layout, _ = run
    for rank, files in layout.ranks().items():
        (path,) = files.traces()
        assert path == files.trace(4)
        trace = read_trace(path)
        assert (trace.rank, trace.world_size, trace.backend) == (rank, 2, "gloo")
        names = set(trace.events["name"])
        assert {"diag.step#4", "diag.data", "diag.forward", "diag.backward", "diag.optimizer"} <= names
        assert not [p for p in files.folder.iterdir() if p.name.endswith(".tmp")]


def test_a_bug_of_ours_ends_the_recording_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object) -> None:
        raise ZeroDivisionError("planted")

    trained = []
    with Collector(tmp_path, CollectorSettings(trace=False, nvml=False)) as collector:
        for number in range(4):
            if number == 2:
                monkeypatch.setattr("diag.collectors.session.MemoryReader.read", fail)
            with collector.step(number), collector.phase("forward"):
                trained.append(number)
    assert trained == [0, 1, 2, 3]
    steps, _ = read_lines(RunLayout(tmp_path).rank(0).steps, StepRecord)
    assert [s.step for s in steps] == [0, 1]
    assert capsys.readouterr().err.count("nothing more is recorded") == 1
    beat, _ = read_record(RunLayout(tmp_path).rank(0).heartbeat, Heartbeat)
    assert beat is not None
    assert "planted" in beat.errors[0]


def test_a_run_directory_that_is_removed_is_made_again_and_that_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = RunLayout(tmp_path / "run")
    files, number = layout.rank(0), 0
    parameter = torch.nn.Parameter(torch.zeros(4))
    with Collector(layout.root, CollectorSettings(trace_active=0, interval_s=0.05)) as collector:

        def train_until(seen: Callable[[], bool]) -> None:
            nonlocal number
            deadline = time.monotonic() + PATIENCE_S
            while not seen():
                assert time.monotonic() < deadline
                with collector.step(number), collector.phase("forward"):
                    parameter.sum().backward()
                number += 1
                time.sleep(0.005)

        for _ in range(2):
            train_until(lambda: files.identity.exists() and bool(steps_in(files)))
            begun = number
            shutil.rmtree(layout.root, ignore_errors=True)  # a heartbeat may come in between
            train_until(lambda: files.identity.exists() and bool(steps_in(files)))
    identity, gap = read_record(files.identity, RankRecord)
    assert gap is None
    assert identity is not None
    steps = steps_in(files)
    assert steps == list(range(steps[0], number))  # none is missing after the first that was written again
    assert begun <= steps[0]
    beat, _ = read_record(files.heartbeat, Heartbeat)
    assert beat is not None
    assert beat.done
    said = capsys.readouterr().err
    assert said.count("the run directory was removed") == 1
    assert said.count("diag:") == 1


def steps_in(files: RankLayout) -> list[int]:
    return [record.step for record in read_lines(files.steps, StepRecord)[0]]


def test_steps_that_are_asked_for_are_kept_while_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(RECORDING), "kept_looks_s", 0.0)
    kept = RunLayout(tmp_path).rank(0).kept
    deadline = time.monotonic() + PATIENCE_S
    with Collector(tmp_path, CollectorSettings(trace=False, interval_s=0.02, nvml=False)) as collector:
        number = 0
        while not kept.exists() and time.monotonic() < deadline:
            if number == 10:
                ask_to_keep(RunLayout(tmp_path), 5, 15, STUCK)
            with collector.step(number):
                time.sleep(0.001)
            number += 1
    (line,), _ = read_lines(kept, KeptLine)
    assert (line.first, line.last, line.why) == (5, 15, STUCK)
    assert [record.step for record in line.steps] == list(range(5, 16))
