"""``record``: what a training that asks for its recording gets, and that it costs the training nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from diag.collectors import record
from diag.collectors.attach.timeline import Timeline
from diag.collectors.layout import RUN_DIR_VARIABLE, RunLayout
from diag.collectors.manifest import read_fields
from diag.collectors.recording import Recording
from diag.collectors.records import EVALUATION
from diag.collectors.settings import COLLECT_VARIABLE, CollectorSettings

PLAIN = CollectorSettings(trace=False, nvml=False)


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in RunLayout(run).rank(0).steps.read_text().splitlines()]


def phases_of(step: dict[str, Any]) -> list[str]:
    return [name for name, _, _ in step["phases"]]


def longest(step: dict[str, Any]) -> str:
    return str(max(step["phases"], key=lambda row: row[2] - row[1])[0])


class Training:
    """A model of one weight."""

    def __init__(self) -> None:
        self.weight = torch.ones(2, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)
        self.turns = 0

    def backward(self, batch: Tensor) -> None:
        (self.weight * batch).sum().backward()
        self.turns += 1

    def step(self, batch: Tensor) -> None:
        self.optimizer.zero_grad()
        self.backward(batch)
        self.optimizer.step()


def slow_batches(count: int, seconds: float) -> Iterator[Tensor]:
    for _ in range(count):
        time.sleep(seconds)
        yield torch.ones(2)


def loader(batches: int) -> DataLoader[Tensor]:
    return DataLoader(torch.ones(batches, 2))  # type: ignore[arg-type]


def test_steps_of_any_iterable(tmp_path: Path) -> None:
    """A generator, which no hook of ours sees."""
    training = Training()
    with record(tmp_path, PLAIN) as recording:
        for batch in recording.steps(slow_batches(4, 0.1)):
            training.step(batch)
            recording.note(tokens=7, loss=0.5)
    steps = steps_of(tmp_path)
    assert [step["step"] for step in steps] == [0, 1, 2, 3]
    assert [phases_of(step) for step in steps] == [["data", "forward", "backward", "optimizer"]] * 4
    assert {longest(step) for step in steps} == {"data"}
    assert {(step["tokens"], step["loss"]) for step in steps} == {(7, 0.5)}
    assert "backward" in read_fields(RunLayout(tmp_path))["collector"]["attached"]["hooked"]


def test_a_batch_of_a_loader_is_one_batch(tmp_path: Path) -> None:
    training = Training()
    with record(tmp_path, PLAIN) as recording:
        for _ in range(2):  # epochs
            for batch in recording.steps(loader(3)):
                training.step(batch)
    steps = steps_of(tmp_path)
    assert len(steps) == 6
    # The second epoch's first step holds the first one's end, where the loader was asked once more.
    assert [phases_of(step).count("data") for step in steps] == [1, 1, 1, 2, 1, 1]


@pytest.mark.parametrize("wrapped", [False, True])
def test_batches_ready_in_the_queue_of_a_loader(tmp_path: Path, wrapped: bool) -> None:
    """Not in the steps in which it fills up, and not in those for which nothing is left to load."""
    own = DataLoader(torch.ones(9, 2), num_workers=1)  # type: ignore[arg-type]
    training = Training()
    with record(tmp_path, PLAIN) as recording:
        for batch in recording.steps((batch for batch in own) if wrapped else own):
            training.step(batch)
            time.sleep(0.1)
    queues = [step["queue"] for step in steps_of(tmp_path)]
    assert [queue and queue[1:] for queue in queues] == [None] * 2 + [[2, 1]] * 6 + [None]
    assert queues[5][0] > 0


@pytest.mark.parametrize(
    ("second", "agreed"), [(0, {"num_workers": 0, "pin_memory": False}), (1, {"pin_memory": False})]
)
def test_settings_in_which_the_loaders_of_a_step_agree(tmp_path: Path, second: int, agreed: dict[str, Any]) -> None:
    """What loads for an evaluation is none of them."""
    training = Training()
    images, texts = (DataLoader(torch.ones(2, 2), num_workers=workers) for workers in (0, second))  # type: ignore[arg-type]
    with record(tmp_path, PLAIN):
        for image, text in zip(images, texts, strict=True):
            training.step(image + text)
        with torch.no_grad():
            for _ in DataLoader(torch.ones(2, 2), num_workers=2):  # type: ignore[arg-type]
                pass
    assert read_fields(RunLayout(tmp_path))["loader"] == agreed


def test_what_follows_the_optimizer_belongs_to_its_step(tmp_path: Path) -> None:
    training, model = Training(), torch.nn.Linear(2, 2)
    with record(tmp_path, PLAIN) as recording:
        for number, batch in enumerate(recording.steps(loader(4))):
            training.step(batch)
            if number == 2:
                model.eval()
                with torch.no_grad():
                    for _ in loader(2):
                        time.sleep(0.01)
    assert [EVALUATION in phases_of(step) for step in steps_of(tmp_path)] == [False, False, True, False]


def test_micro_batches_and_two_optimizers(tmp_path: Path) -> None:
    training = Training()
    other = torch.optim.SGD([torch.ones(1, requires_grad=True)])
    with record(tmp_path, PLAIN) as recording:
        for number, batch in enumerate(recording.steps(loader(7), micro_batches=3), 1):
            training.backward(batch)
            if number % 3 == 0:
                training.optimizer.step()
                other.step()
    steps = steps_of(tmp_path)
    assert [step["micro_batches"] for step in steps] == [3, 3]  # the seventh is no step
    assert phases_of(steps[0]) == [*["data", "forward", "backward"] * 3, "optimizer", "optimizer"]


@pytest.mark.parametrize(("after_the_optimizer", "expected"), [(True, 3), (False, 2)])
def test_a_loop_that_is_left(tmp_path: Path, after_the_optimizer: bool, expected: int) -> None:
    training = Training()
    with record(tmp_path, PLAIN) as recording:
        for number, batch in enumerate(recording.steps(loader(6))):
            if number == 2 and not after_the_optimizer:
                break
            training.step(batch)
            if number == 2:
                break
    assert len(steps_of(tmp_path)) == expected


def test_steps_that_the_loop_ends_itself_and_those_of_the_optimizer(tmp_path: Path) -> None:
    training = Training()
    with record(tmp_path / "told", PLAIN) as recording:
        recording.told_steps()
        for _ in range(3):
            training.step(torch.ones(2))
            training.step(torch.ones(2))
            recording.end_step()
    assert [step["micro_batches"] for step in steps_of(tmp_path / "told")] == [2, 2, 2]
    with record(tmp_path / "inferred", PLAIN):
        for _ in range(6):
            training.step(torch.ones(2))
    assert len(steps_of(tmp_path / "inferred")) == 6


def test_exceptions_go_through_and_are_told(tmp_path: Path) -> None:
    training, error = Training(), ValueError("planted")

    def failing() -> Iterator[Tensor]:
        yield torch.ones(2)
        raise error

    with pytest.raises(ValueError, match="planted") as raised, record(tmp_path, PLAIN) as recording:  # noqa: PT012
        for batch in recording.steps(failing()):
            training.step(batch)
    assert raised.value is error
    heartbeat = json.loads(RunLayout(tmp_path).rank(0).heartbeat.read_text())
    assert heartbeat["phase"] == "failed: ValueError"
    assert len(steps_of(tmp_path)) == 1


def test_everything_is_as_it_was_afterwards(tmp_path: Path) -> None:
    from torch.optim import optimizer
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    def hooked() -> list[object]:
        owners = [torch.Tensor.backward, torch.autograd.backward, torch.save, torch.nn.Module.train]
        lists = [optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks]
        return [*owners, _BaseDataLoaderIter.__next__, *map(len, lists), dict(os.environ), list(sys.meta_path)]

    before = hooked()
    with record(tmp_path, PLAIN):
        Training().step(torch.ones(2))
        assert hooked() != before
    assert hooked() == before


def test_nothing_is_recorded_without_a_folder_or_where_it_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(recording: Recording) -> int:
        training = Training()
        with recording:
            for batch in recording.steps(loader(3)):
                training.step(batch)
                recording.note(loss=1.0)
        return training.turns

    monkeypatch.delenv(RUN_DIR_VARIABLE, raising=False)
    assert train(record()) == 3
    monkeypatch.setenv(COLLECT_VARIABLE, "off")
    assert train(record(tmp_path / "run")) == 3
    assert not (tmp_path / "run").exists()
    monkeypatch.delenv(COLLECT_VARIABLE)
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(tmp_path / "launched"))
    assert train(record(tmp_path / "run")) == 3
    assert not (tmp_path / "run").exists()
    assert len(steps_of(tmp_path / "launched")) == 3
    assert capfd.readouterr().err == ""


def breaks_at_once(folder: Path, _patch: pytest.MonkeyPatch) -> Path:
    (folder / "file").write_text("")
    return folder / "file"


def breaks_in_the_middle(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    patch.setattr(Timeline, "optimizer_ends", fail)
    return folder / "run"


def was_recorded_before(folder: Path, _patch: pytest.MonkeyPatch) -> Path:
    with record(folder / "run", PLAIN):
        Training().step(torch.ones(2))
    return folder / "run"


@pytest.mark.parametrize("breaks", [breaks_at_once, breaks_in_the_middle, was_recorded_before])
def test_a_recording_that_fails_costs_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    breaks: Callable[[Path, pytest.MonkeyPatch], Path],
) -> None:
    run, training = breaks(tmp_path, monkeypatch), Training()
    capfd.readouterr()
    with record(run, PLAIN) as recording:
        for batch in recording.steps(loader(3)):
            training.step(batch)
            recording.note(loss=1.0)
    assert training.turns == 3
    assert torch.allclose(training.weight, torch.full((2,), 0.7))
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("diag: rank 0: nothing more is recorded")


def test_a_loss_that_is_no_number_costs_the_recording_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    training = Training()
    with record(tmp_path, PLAIN) as recording:
        for batch in recording.steps(loader(3)):
            training.step(batch)
            recording.note(loss="low")  # type: ignore[arg-type]
    assert training.turns == 3
    assert "could not convert" in capfd.readouterr().err


@pytest.mark.matrix
def test_under_diag_run_it_is_its_recording(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from diag.collectors import record\n"
        "w = torch.ones(2, requires_grad=True)\n"
        "sgd = torch.optim.SGD([w])\n"
        "with record('elsewhere') as recording:\n"
        "    for x in recording.steps([torch.ones(2)] * 8, micro_batches=2):\n"
        "        (w * x).sum().backward(); sgd.step()\n"
        "for _ in range(3):\n"
        "    w.sum().backward(); sgd.step()\n"
    )
    command = [sys.executable, "-m", "diag", "run", "--out", tmp_path / "run", "--", sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "diag: rank" not in done.stderr
    assert [step["micro_batches"] for step in steps_of(tmp_path / "run")] == [2, 2, 2, 2, 1, 1, 1]
    assert json.loads(RunLayout(tmp_path / "run").rank(0).heartbeat.read_text())["done"]
