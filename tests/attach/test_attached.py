"""Trainings that know nothing of ``diag``, under ``diag run``: what is found, and that they stay as they were."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diag.collectors.layout import RunLayout
from diag.collectors.manifest import read_fields
from diag.collectors.records import CHECKPOINT, EVALUATION
from diag.collectors.settings import SITE
from diag.diagnoses.policy import FINDINGS
from tests.attach.trainings import (
    TRAIN,
    collective_lines_of,
    is_slow_loader,
    is_stalled,
    phases_of,
    steps_of,
    trained,
)
from tests.command import analyze_json, diag_process
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.trainer.launching import launch


def test_slow_loader_under_ddp(tmp_path: Path) -> None:
    result = trained(tmp_path / "run", "--slow-loader", "0.2")
    is_slow_loader(result)
    assert (result["run"]["strategy"], result["run"]["backend"], result["run"]["world_size"]) == ("ddp", "gloo", 2)
    assert len(result["steps"]) == 24
    steps = steps_of(tmp_path / "run")
    assert phases_of(steps[20]) == ["data", "forward", "backward", "optimizer"]
    assert any(step["window"] == "active" for step in steps)  # a profiler window
    rows = collective_lines_of(tmp_path / "run")
    assert any(row[2] == "all_reduce" for line in rows if line["step"] == 20 for row in line["rows"])
    told = read_fields(RunLayout(tmp_path / "run"))["collector"]["attached"]
    assert {"loader", "backward", "optimizer", "DDP", "torch.save"} <= set(told["hooked"])
    assert "forward" in told["inferred"]
    assert "h2d" in told["not_hooked"]
    assert read_fields(RunLayout(tmp_path / "run"))["loader"] == {"num_workers": 0, "pin_memory": False}
    (loading,) = [finding for finding in result["findings"] if finding["id"] == "slow-data-all-ranks"]
    advised = any(advice["id"].startswith("loader-workers-") for advice in result["advice"])
    # On a host whose cores are all taken, workers would not help, even where the loader costs more than that.
    # A loader that sleeps or reads needs none of them.
    if "The cores are all taken" in loading["action"]:
        contended = [finding["share"] for finding in result["findings"] if finding["id"] == "contended-host"]
        assert max(contended, default=0) >= FINDINGS.warning_share
        assert not advised
    else:
        assert "num_workers (now 0)" in loading["action"]
        assert advised or result["verdict"]["bottleneck"] != "data"


@pytest.mark.matrix
def test_one_rank_shows_that_the_loaders_of_all_are_too_slow(tmp_path: Path) -> None:
    """The loaders are equally slow, but rank 1's was late once: rank 0's workers got a head start that they keep."""
    options = ["--slow-loader", "0.2", "--workers", "2", "--stall-rank", "1"]
    result = trained(tmp_path / "run", *options)
    is_slow_loader(result)
    assert result["verdict"]["culprit"] is None
    seen = {"num_workers": 2, "prefetch_factor": 2, "pin_memory": False}
    assert read_fields(RunLayout(tmp_path / "run"))["loader"] == seen
    if result["verdict"]["bottleneck"] == "data":
        assert "Rank 1 waits longest" in result["verdict"]["headline"]
    ready = [[step["queue"] for step in steps_of(tmp_path / "run", rank)[8:20]] for rank in range(2)]
    assert all(queue[1:] == [4, 2] for own in ready for queue in own)
    assert sum(queue[0] for queue in ready[0]) > sum(queue[0] for queue in ready[1])


@pytest.mark.matrix
def test_straggler_among_micro_batches_evaluations_and_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAVE_TO", str(tmp_path / "model.pt"))
    options = ["--slow-rank", "1", "--accumulate", "2", "--evaluate-every", "7", "--save-every", "5"]
    result = trained(tmp_path / "run", *options)
    is_stalled(result)
    steps = steps_of(tmp_path / "run")
    assert len(steps) == 24
    assert {step["micro_batches"] for step in steps} == {2}
    evaluated = [step["step"] for step in steps if EVALUATION in phases_of(step)]
    assert evaluated == [7, 14, 21]  # the evaluation after a step belongs to the one it precedes
    assert [step["step"] for step in steps if CHECKPOINT in phases_of(step)] == [5, 10, 15, 20]
    assert phases_of(steps[14]).count("data") == 2


@pytest.mark.matrix
def test_ddp_computes_the_same_to_the_last_bit(tmp_path: Path) -> None:
    """Three ranks: a third is no power of two, so that dividing and multiplying round differently."""
    bare = launch([str(TRAIN), "--steps", "6"], ranks=3)
    done = diag_process("run", "--nproc", "3", "--no-trace", "--out", tmp_path, TRAIN, "--steps", "6")
    assert (bare.returncode, done.returncode) == (0, 0), done.stderr
    losses = [sorted(re.findall(r"loss (\S+?p-?\d+)", ran.stdout)) for ran in (bare, done)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3
    assert len(steps_of(tmp_path, rank=2)) == 6


def test_without_collectors_nothing_is_recorded(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["--", sys.executable, TRAIN, "--strategy", "none", "--steps", "2"]
    done = diag_process("run", "--no-collect", "--out", run, *command)
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout
    assert not RunLayout(run).ranks()


@pytest.mark.matrix
@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
def test_straggler_of_a_sharded_loop(tmp_path: Path, strategy: str) -> None:
    result = trained(tmp_path / "run", "--strategy", strategy, "--slow-rank", "1", "--slow-seconds", "0.15")
    is_stalled(result)
    assert result["run"]["strategy"] == strategy


@pytest.mark.matrix
def test_command_without_process_group_and_with_children(tmp_path: Path) -> None:
    """A child that is forked, and a Python that the script starts, train too: neither gets into the records."""
    run = tmp_path / "run"
    command = [sys.executable, TRAIN, "--strategy", "none", "--slow-loader", "0.2", "--children"]
    done = diag_process("run", "--out", run, "--", *command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "training"
    assert done.stdout.count("loss") == 1  # and nothing of ours
    result = analyze_json(run)
    is_slow_loader(result)
    assert result["run"]["ranks"] == [0]
    assert len(result["steps"]) == 24


@pytest.mark.matrix
def test_torchrun_as_the_command(tmp_path: Path) -> None:
    run = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    done = diag_process("run", "--out", run, "--", *torchrun, str(free_port()), TRAIN, "--slow-rank", "1")
    assert done.returncode == 0, done.stderr
    result = analyze_json(run)
    is_stalled(result)


@pytest.mark.matrix
def test_crash_is_as_without_us(tmp_path: Path) -> None:
    """Exit code, output and traceback, to the letter."""
    command = [sys.executable, str(TRAIN), "--strategy", "none", "--crash-at", "5"]
    alone = subprocess.run(command, capture_output=True, text=True, check=False)
    done = diag_process("run", "--out", tmp_path / "run", "--", *command)
    assert done.returncode == alone.returncode == 1
    assert done.stdout == alone.stdout
    assert "planted in step 5" in alone.stderr
    assert done.stderr.startswith(alone.stderr)
    assert done.stderr.removeprefix(alone.stderr).startswith("diag: the training ended early")
    heartbeat = json.loads(RunLayout(tmp_path / "run").rank(0).heartbeat.read_text())
    assert heartbeat["phase"] == "failed: ValueError"
    assert len(steps_of(tmp_path / "run")) == 5


@pytest.mark.matrix
def test_crash_within_a_hook_shows_none_of_our_lines(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "class Bad(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 3\n"
        "    def __getitem__(self, i):\n"
        "        if i == 2: raise RuntimeError('planted')\n"
        "        return torch.ones(2)\n"
        "w = torch.ones(2, requires_grad=True)\n"
        "sgd = torch.optim.SGD([w])\n"
        "for x in DataLoader(Bad()):\n"
        "    (w * x).sum().backward()\n"
        "    sgd.step()\n"
    )
    alone = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    done = diag_process("run", "--out", tmp_path / "run", "--", sys.executable, script)
    assert "planted" in alone.stderr
    assert done.stderr.startswith(alone.stderr)
    assert len(steps_of(tmp_path / "run")) == 2


@pytest.mark.matrix
def test_names_of_ours_are_free_for_the_script(tmp_path: Path) -> None:
    """Packages called diag, collectors and app, and a sitecustomize: the script gets its own."""
    for name in ("diag", "collectors", "app"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.mine = True\n")
    (tmp_path / "train.py").write_text(
        "import sys, os, json, app, collectors, diag, sitecustomize, torch\n"
        "assert diag.MINE and collectors.MINE and app.MINE and sys.mine and sitecustomize.sys.mine\n"
        f"assert {str(SITE)!r} not in sys.path\n"
        "w = torch.ones(2, requires_grad=True)\n"
        "sgd = torch.optim.SGD([w])\n"
        "for _ in range(6):\n"
        "    w.sum().backward(); sgd.step()\n"
        "print('fine')\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "diag", "run", "--out", tmp_path / "run", "--", sys.executable, "train.py"]
    # Started elsewhere: `python -m diag` would take the folder of that name for the tool itself.
    script = ["sh", "-c", f"cd {tmp_path} && exec {sys.executable} train.py"]
    done = subprocess.run([*command[:-2], *script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
    assert len(steps_of(tmp_path / "run")) == 6


def test_a_recording_that_fails_costs_one_line(tmp_path: Path) -> None:
    """A run directory that cannot be written, which launchers elsewhere may well name."""
    (tmp_path / "file").write_text("")
    environment = os.environ | {"DIAG_ATTACH": "1", "DIAG_RUN_DIR": str(tmp_path / "file"), "PYTHONPATH": str(SITE)}
    command = [sys.executable, str(TRAIN), "--strategy", "none", "--steps", "4"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("training\nloss")
    assert "Traceback" not in done.stderr
    assert all(line.startswith("diag: rank 0: ") for line in done.stderr.splitlines()), done.stderr


@pytest.mark.matrix
@pytest.mark.parametrize("form", ["script", "command"])
def test_sigterm_is_passed_on(tmp_path: Path, form: str) -> None:
    arguments = [str(TRAIN), "--strategy", "none", "--slow-loader", "0.5", "--steps", "1000"]
    own = arguments if form == "script" else ["--", sys.executable, *arguments]
    command = [sys.executable, "-m", "diag", "run", "--out", tmp_path / "run", *own]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    identity = RunLayout(tmp_path / "run").rank(0).identity
    deadline = time.monotonic() + PATIENCE_S
    while not identity.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    trainer = json.loads(identity.read_text())["pid"]
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM, errors
    with pytest.raises(ProcessLookupError):
        os.kill(trainer, 0)


@pytest.mark.parametrize(("name", "asked"), [("SIGUSR1", False), ("SIGTERM", True)])
def test_a_failure_after_a_signal_is_the_signals_if_it_ends_trainings(tmp_path: Path, name: str, asked: bool) -> None:
    """Schedulers ask for a checkpoint by SIGUSR1; the training may fail on its own afterwards."""
    script = (
        "import signal, time\n"
        "def fail(*_): raise RuntimeError('planted')\n"
        f"signal.signal(signal.{name}, fail)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "diag", "run", "--out", tmp_path / "run", "--", sys.executable, "-c", script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(getattr(signal, name))
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, errors
    assert ("asked to stop (SIGTERM)" in " ".join(errors.split())) == asked, errors


@pytest.mark.matrix
def test_processes_that_another_launcher_starts(tmp_path: Path) -> None:
    """As in a Slurm job: the shell takes the environment, and something else starts the ranks."""
    run = tmp_path / "run"
    job = f"""
        eval "$({sys.executable} -m diag attach --out {run})"
        export MASTER_ADDR=127.0.0.1 MASTER_PORT={free_port()} WORLD_SIZE=2 OMP_NUM_THREADS=1
        RANK=1 LOCAL_RANK=1 {sys.executable} {TRAIN} --slow-rank 1 &
        RANK=0 LOCAL_RANK=0 {sys.executable} {TRAIN} --slow-rank 1
        wait
    """
    done = subprocess.run(["sh", "-c", job], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = analyze_json(run)
    is_stalled(result)
    assert result["run"]["world_size"] == 2


@pytest.mark.matrix
def test_the_training_profiles_itself(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = diag_process("run", "--out", run, "--", sys.executable, TRAIN, "--strategy", "none", "--profile")
    assert done.returncode == 0, done.stderr
    assert RunLayout(run).rank(0).traces() == []
    assert len(steps_of(run)) == 24
    assert "the training runs its own profiler" in RunLayout(run).rank(0).heartbeat.read_text()


@pytest.mark.matrix
def test_a_recording_that_breaks_in_the_middle(tmp_path: Path) -> None:
    """Within an optimizer's hook, where taking hooks away would raise: the training goes on, its end is told."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "w = torch.ones(2, requires_grad=True)\n"
        "sgd = torch.optim.SGD([w])\n"
        "for step in range(6):\n"
        "    if step == 3:\n"
        "        timeline = sys.modules['_diag_collectors.attach.timeline'].Timeline\n"
        "        timeline.optimizer_ends = lambda *args: 1 / 0\n"
        "    w.sum().backward(); sgd.step()\n"
        "print(w.tolist())\n"
    )
    done = diag_process("run", "--out", tmp_path / "run", "--", sys.executable, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[0.97")
    assert done.stderr.count("nothing more is recorded") == 1
    assert "division by zero" in done.stderr
    assert len(steps_of(tmp_path / "run")) == 3
    heartbeat = json.loads(RunLayout(tmp_path / "run").rank(0).heartbeat.read_text())
    assert heartbeat["done"]
    assert "division by zero" in heartbeat["errors"][0]
