"""Trainings of Hugging Face's Trainer, Lightning, DeepSpeed and torchtitan, unmodified: what is found, and how steps
are told.

They train on two CPU ranks with gloo, each by a launcher of its own. Accelerate knows FSDP on accelerators only (on a
CPU its DistributedType is MULTI_CPU, which it never turns into FSDP), as does torchtitan: their scripts let them take
the CPU for one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from diag.collectors.layout import RunLayout
from diag.collectors.manifest import read_fields
from diag.collectors.records import CHECKPOINT, EVALUATION
from tests.attach.trainings import is_slow_loader, is_slow_loader_of_rank_1, is_stalled, phases_of, steps_of
from tests.command import analyze_json, diag_process
from tests.ports import free_port

SCRIPTS = Path(__file__).with_name("scripts")
TRANSFORMERS, LIGHTNING, DEEPSPEED, TORCHTITAN = (
    str(SCRIPTS / f"with_{name}.py") for name in ("transformers", "lightning", "deepspeed", "torchtitan")
)


def holding(steps: list[dict[str, Any]], phase: str) -> list[int]:
    """The numbers of the steps that hold it. A phase never begins before its step."""
    assert all(row[1] >= step["begin_ns"] for step in steps for row in step["phases"])
    return [step["step"] for step in steps if phase in phases_of(step)]


def told_by(run: Path, *command: str) -> dict[str, Any]:
    """What ``diag analyze`` says of the training that ``diag run`` has run."""
    done = diag_process("run", "--out", run, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing more is recorded" not in done.stdout + done.stderr
    result = analyze_json(run)
    assert (result["run"]["world_size"], result["run"]["backend"]) == (2, "gloo")
    assert len(result["steps"]) == 20
    return result


def module(name: str, *arguments: str) -> list[str]:
    return ["--", sys.executable, "-m", name, *arguments]


def told_of_transformers(
    folder: Path, *options: str, recording: tuple[str, ...] = ()
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What is said of Hugging Face's Trainer on two ranks, and the steps of rank 0."""
    run = folder / "run"
    result = told_by(run, "--nproc", "2", *recording, TRANSFORMERS, "--folder", str(folder), *options)
    return result, steps_of(run)


@pytest.mark.matrix
def test_slow_loader_under_fsdp2_of_transformers(tmp_path: Path) -> None:
    result, steps = told_of_transformers(tmp_path, "--fsdp2", "--slow-loader", "0.15")
    is_slow_loader(result)
    assert result["run"]["strategy"] == "fsdp2"
    assert phases_of(steps[0])[:3] == ["data", "data", "forward"]  # Accelerate's loader is a batch ahead
    assert phases_of(steps[10]) == ["data", "forward", "backward", "optimizer"]
    assert holding(steps, EVALUATION) == []  # though from_pretrained calls Module.eval()


@pytest.mark.matrix
def test_straggler_under_fsdp2_of_transformers(tmp_path: Path) -> None:
    options = ["--fsdp2", "--slow-rank", "1", "--evaluate-every", "9"]
    result, steps = told_of_transformers(tmp_path, *options, recording=("--no-trace",))
    is_stalled(result)
    assert result["run"]["strategy"] == "fsdp2"
    assert holding(steps, EVALUATION) == [9, 18]


@pytest.mark.matrix
def test_slow_loader_under_fsdp2_of_accelerate(tmp_path: Path) -> None:
    options = ["--accelerate-fsdp2", "--slow-loader", "0.15"]
    result, _ = told_of_transformers(tmp_path, *options, recording=("--no-trace",))
    is_slow_loader(result)
    assert result["run"]["strategy"] == "fsdp2"


@pytest.mark.matrix
def test_straggler_under_fsdp2_of_accelerate(tmp_path: Path) -> None:
    options = ["--accelerate-fsdp2", "--slow-rank", "1", "--evaluate-every", "9"]
    result, steps = told_of_transformers(tmp_path, *options)
    is_stalled(result)
    assert result["run"]["strategy"] == "fsdp2"
    assert holding(steps, EVALUATION) == [9, 18]


@pytest.mark.matrix
def test_straggler_under_zero_3_of_accelerate(tmp_path: Path) -> None:
    options = ["--accelerate-zero3", "--slow-rank", "1", "--accumulate", "2"]
    result, steps = told_of_transformers(tmp_path, *options, recording=("--no-trace",))
    is_stalled(result)
    assert result["run"]["strategy"] == "deepspeed-zero3"
    assert {step["micro_batches"] for step in steps} == {2}


@pytest.mark.matrix
def test_straggler_of_accelerate_among_micro_batches_evaluations_and_checkpoints(tmp_path: Path) -> None:
    """By Accelerate's launcher, whose --multi_gpu is what starts several processes, also where there is no GPU."""
    run = tmp_path / "run"
    launcher = ["--num_processes", "2", "--multi_gpu", "--main_process_port", str(free_port())]
    options = ["--slow-rank", "1", "--accumulate", "2", "--evaluate-every", "6", "--save-every", "8"]
    command = module("accelerate.commands.launch", *launcher, TRANSFORMERS, *options, "--folder", str(tmp_path))
    result = told_by(run, "--no-trace", *command)
    is_stalled(result)
    assert result["run"]["strategy"] == "ddp"
    steps = steps_of(run)
    assert {(step["micro_batches"], step["tokens"]) for step in steps} == {(2, 2 * 4 * 16)}
    assert phases_of(steps[3]) == ["data", "data", *["forward", "backward"] * 2, "optimizer"]
    assert holding(steps, EVALUATION) == [6, 12, 18]
    assert holding(steps, CHECKPOINT) == [8, 16]
    assert phases_of(steps[8]).count(CHECKPOINT) == 1  # files of several kinds, with and without torch.save
    told = read_fields(RunLayout(run))["collector"]["attached"]
    assert {"saving: transformers.trainer", "saving: safetensors.torch"} <= set(told["hooked"])


@pytest.mark.matrix
def test_slow_loader_of_lightning_by_its_own_launcher(tmp_path: Path) -> None:
    result = told_by(tmp_path / "run", "--", sys.executable, LIGHTNING, "--slow-loader", "0.2")
    is_slow_loader(result)
    assert result["run"]["strategy"] == "ddp"
    # Forward and backward run within the optimizer's step, as its closure.
    assert phases_of(steps_of(tmp_path / "run", rank=1)[10]) == ["data", "forward", "backward", "optimizer"]


@pytest.mark.matrix
def test_straggler_of_lightning_among_micro_batches_evaluations_and_checkpoints(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--slow-rank", "1", "--accumulate", "2", "--evaluate-every", "6", "--save-every", "8"]
    result = told_by(run, "--nproc", "2", "--no-trace", LIGHTNING, *options, "--folder", str(tmp_path))
    is_stalled(result)
    assert result["run"]["strategy"] == "ddp"
    steps = steps_of(run)
    assert {step["micro_batches"] for step in steps} == {2}
    assert phases_of(steps[3]) == [*["data", "forward", "backward"] * 2, "optimizer"]
    assert holding(steps, EVALUATION) == [0, 6, 12, 18]  # the sanity check first
    assert holding(steps, CHECKPOINT) == [8, 16]


@pytest.mark.matrix
def test_slow_loader_of_one_rank_of_deepspeed(tmp_path: Path) -> None:
    """DeepSpeed's own loader, with the two worker processes that it starts unasked."""
    run = tmp_path / "run"
    options = ["--slow-loader", "0.2", "--slow-loader-rank", "1"]
    result = told_by(run, "--nproc", "2", "--no-trace", DEEPSPEED, *options)
    is_slow_loader_of_rank_1(result)
    assert result["run"]["strategy"] == "deepspeed-zero2"
    # Gradients are reduced in the engine's backward, after PyTorch's: that is where rank 0 waits.
    rows = [row for step in steps_of(run)[5:] for row in step["phases"]]
    spent = {
        name: sum(end - begin for phase, begin, end in rows if phase == name) for name in ("backward", "optimizer")
    }
    assert spent["backward"] > spent["optimizer"]


@pytest.mark.matrix
def test_straggler_of_deepspeed_among_micro_batches_and_checkpoints(tmp_path: Path) -> None:
    run = tmp_path / "run"
    launcher = ["--num_accelerators", "2", "--master_port", str(free_port())]
    options = ["--slow-rank", "1", "--accumulate", "2", "--save-every", "8", "--folder", str(tmp_path)]
    result = told_by(run, *module("deepspeed.launcher.runner", *launcher, DEEPSPEED, *options))
    is_stalled(result)
    assert result["run"]["strategy"] == "deepspeed-zero2"
    steps = steps_of(run)
    assert {step["micro_batches"] for step in steps} == {2}
    assert phases_of(steps[3]) == [*["data", "forward", "backward"] * 2, "optimizer"]
    assert holding(steps, CHECKPOINT) == [8, 16]


@pytest.mark.matrix
@pytest.mark.multiproc  # its worker loads while the step trains: beside other tests, a step takes as long as a load
def test_slow_loader_of_one_rank_of_torchtitan(tmp_path: Path) -> None:
    """Its loader is torchdata's, whose iterators are its own, with a worker process."""
    run = tmp_path / "run"
    options = ["--slow-loader", "0.8", "--slow-loader-rank", "1", "--workers", "1"]
    result = told_by(run, "--nproc", "2", "--no-trace", TORCHTITAN, *options)
    is_slow_loader_of_rank_1(result)
    assert result["run"]["strategy"] == "fsdp2"
    assert phases_of(steps_of(run)[10]) == ["data", "forward", "backward", "optimizer"]


@pytest.mark.matrix
def test_straggler_of_torchtitan_among_micro_batches_and_checkpoints(tmp_path: Path) -> None:
    """By torchrun, as torchtitan's own launcher does."""
    run = tmp_path / "run"
    launcher = ["--nproc-per-node", "2", "--master-port", str(free_port())]
    options = ["--slow-rank", "1", "--accumulate", "2", "--save-every", "8", "--folder", str(tmp_path)]
    result = told_by(run, *module("torch.distributed.run", *launcher, TORCHTITAN, *options))
    is_stalled(result)
    assert result["run"]["strategy"] == "fsdp2"
    steps = steps_of(run)
    assert {step["micro_batches"] for step in steps} == {2}
    assert phases_of(steps[3]) == ["data", "data", *["forward", "backward"] * 2, "optimizer"]  # all batches first
    assert holding(steps, CHECKPOINT) == [8, 16]
