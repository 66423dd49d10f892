"""Trainings of several ranks that ask for their recording themselves, by whatever launcher."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.attach.trainings import collective_lines_of, is_stalled
from tests.command import analyze_json
from tests.ports import free_port

SCRIPT = """
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from diag.collectors import record
from diag.collectors.settings import CollectorSettings

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters())
with record(sys.argv[1], CollectorSettings(trace=False)) as recording:
    for batch in recording.steps([torch.ones(8, 64)] * 20):
        if dist.get_rank() == 1:
            time.sleep(0.1)
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        recording.note(tokens=batch.numel(), loss=loss.item())
print("after", flush=True)
time.sleep(0.3)
dist.destroy_process_group()
"""


@pytest.mark.matrix
def test_straggler_of_a_model_that_was_wrapped_before(tmp_path: Path) -> None:
    run, script = tmp_path / "run", tmp_path / "train.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    command = [*torchrun, str(free_port()), script, run]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("after") == 2
    assert "diag:" not in done.stderr
    result = analyze_json(run)
    is_stalled(result)
    assert (result["run"]["strategy"], result["run"]["world_size"], len(result["steps"])) == ("ddp", 2, 20)
    rows = collective_lines_of(run)
    assert [row[2] for row in rows[10]["rows"]] == ["all_reduce"]  # a bucket of gradients
