"""Processes of a run that train and are not recorded: the analysis says so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from diag.collectors.files import encode
from diag.collectors.layout import RunLayout
from diag.collectors.records import Unrecorded
from diag.rundir.run import open_paths
from tests.attach.trainings import collective_lines_of, steps_of
from tests.command import diag, diag_process
from tests.simulate import Plan, simulate, write_run

HOGWILD = """
import sys
import torch
import torch.multiprocessing as mp

def train(index, model, barrier):
    torch.set_num_threads(1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    barrier.wait()  # they begin together: one of them has the rank
    for _ in range(12):
        sgd.zero_grad()
        model(torch.ones(4, 4)).sum().backward()
        sgd.step()
    barrier.wait()

if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    model.share_memory()
    context = mp.get_context(sys.argv[1])
    mp.start_processes(train, (model, context.Barrier(3)), nprocs=3, start_method=sys.argv[1])
"""

FORKED = """
import os
import torch
w = torch.ones(2, requires_grad=True)
sgd = torch.optim.SGD([w], lr=0.01)
def steps(number):
    for _ in range(number):
        w.sum().backward()
        sgd.step()
steps(6)
for number in (2, 5):  # of which the first trains hardly at all
    if (child := os.fork()) == 0:
        steps(number)
        os._exit(0)
    os.waitpid(child, 0)
steps(6)
"""


def gaps_of(run: Path) -> list[str]:
    return [gap.reason for gap in open_paths([run]).gaps]


@pytest.mark.matrix
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_hogwild(tmp_path: Path, method: str) -> None:
    """Three processes without a process group, all of them rank 0."""
    script, run = tmp_path / "hogwild.py", tmp_path / "run"
    script.write_text(HOGWILD)
    done = diag_process("run", "--no-trace", "--out", run, "--", sys.executable, script, method)
    assert done.returncode == 0, done.stderr
    assert len(steps_of(run)) == 12
    analysis = diag("analyze", run)
    assert analysis.returncode == 4
    printed = " ".join(analysis.stdout.split())
    assert f"2 trainer processes were not recorded: {run} already has a rank 0" in printed


@pytest.mark.matrix
def test_a_fork_that_trains(tmp_path: Path) -> None:
    script, run = tmp_path / "forked.py", tmp_path / "run"
    script.write_text(FORKED)
    done = diag_process("run", "--no-trace", "--out", run, "--", sys.executable, script)
    assert done.returncode == 0, done.stderr
    assert len(steps_of(run)) == 12
    expected = "1 trainer process was not recorded: it was forked from a recorded process (1)"
    assert gaps_of(run) == [expected]


def test_what_is_said_of_them(tmp_path: Path) -> None:
    write_run(simulate(Plan()), tmp_path)
    lines = [
        Unrecorded(0, "node1", pid, 1, why) for pid, why in [(1, "taken"), (2, "taken"), (3, "no room"), (1, "taken")]
    ]
    RunLayout(tmp_path).unrecorded.write_bytes(b"".join(map(encode, lines)) + b"nonsense\n")
    damaged, said = gaps_of(tmp_path)[-2:]
    assert "1 of 5 lines" in damaged
    assert said == "3 trainer processes were not recorded: taken (2); no room (1)"


NO_OPTIMIZER = """
import torch
w = torch.ones(4, requires_grad=True)
for _ in range(8):
    (w * torch.ones(4)).sum().backward()
    with torch.no_grad():
        w -= 0.01 * w.grad
        w.grad = None
"""

REMADE = """
import torch
import torch.distributed as dist
w = torch.ones(2, requires_grad=True)
sgd = torch.optim.SGD([w], lr=0.01)
for world_size in {sizes}:
    dist.get_world_size = lambda size=world_size: size
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for _ in range(5):
        w.sum().backward()
        dist.all_reduce(w.grad)
        sgd.step()
        w.grad = None
    dist.destroy_process_group()
"""


def recorded(folder: Path, script: str) -> Path:
    (folder / "train.py").write_text(script)
    run = folder / "run"
    done = diag_process("run", "--no-trace", "--out", run, "--", sys.executable, folder / "train.py")
    assert done.returncode == 0, done.stderr
    return run


def test_without_an_optimizer_the_answer_says_so(tmp_path: Path) -> None:
    analysis = diag("analyze", recorded(tmp_path, NO_OPTIMIZER))
    printed = " ".join(analysis.stderr.split())
    assert "backward was called 8 times, but no torch.optim optimizer stepped" in printed
    assert "recording.end_step()" in printed
    assert "log.txt" not in printed


def test_a_process_group_that_is_made_again_is_recorded_further(tmp_path: Path) -> None:
    run = recorded(tmp_path, REMADE.format(sizes=[1, 1, 1]))
    assert [step["step"] for step in steps_of(run)] == list(range(15))
    rows = [row for line in collective_lines_of(run) for row in line["rows"]]
    assert [(row[0], row[1]) for row in rows] == [(group, seq) for group in ("0", "0 (2)", "0 (3)") for seq in range(5)]
    assert gaps_of(run) == []


def test_a_group_of_another_size_is_not_recorded_further_and_the_answer_says_so(tmp_path: Path) -> None:
    run = recorded(tmp_path, REMADE.format(sizes=[1, 2]))
    assert len(steps_of(run)) == 5
    (gap,) = [gap for gap in gaps_of(run) if "process group" in gap]
    assert "destroyed after 5 steps, and rank 0 of 1 goes on as rank 0 of 2" in gap
