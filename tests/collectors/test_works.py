"""Operations that are under way when a profiler window ends. torch frees its records of them, and a backend that still
writes into these ended the training by SIGSEGV, or let it hang."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

from diag.collectors.settings import SITE, CollectorSettings, attached

SCRIPT = """
import ctypes, os, sys, time, torch
import torch.distributed as dist

child = os.fork()
rank = 1 if child == 0 else 0
os.environ.update(RANK=str(rank), WORLD_SIZE="2")
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=rank, world_size=2)
model = torch.nn.Linear(4, 2)
sgd = torch.optim.SGD(model.parameters(), lr=0.01)

def begin():
    return [
        dist.isend(torch.ones(4), 1 - rank),
        dist.irecv(torch.ones(4), 1 - rank),
        dist.all_reduce(torch.ones(4), async_op=True),
    ]

def wait(begun):
    for work in begun:
        work.wait()

# glibc gives freed memory back to the system from here on: a write to it is always SIGSEGV.
ctypes.CDLL(None).mallopt(-3, 4096)  # M_MMAP_THRESHOLD
begun = None
for step in range(9):
    if rank == 0:  # it is ahead: each operation ends in a later step than that in which it begins
        model(torch.ones(2, 4)).sum().backward()
        sgd.step()
        before, begun = begun, begin()
        if before is not None:
            wait(before)
    else:
        time.sleep(0.2)
        wait(begin())
if rank == 0:
    wait(begun)
    os.waitpid(child, 0)
print("ended", rank)
"""


def test_windows_end_while_operations_are_under_way(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    windows = CollectorSettings(trace_skip=1, trace_warmup=1, trace_active=1, trace_every=3, nvml=False)
    environ = os.environ | attached(tmp_path / "run", windows) | {"PYTHONPATH": str(SITE)}
    command = [sys.executable, tmp_path / "train.py", tmp_path / "store"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "ended 0" in done.stdout
    traces = list((tmp_path / "run").glob("ranks/*/trace*.json.gz"))
    assert traces
    seen = gzip.decompress(traces[0].read_bytes())
    assert all(name in seen for name in (b"gloo:send", b"gloo:recv", b"gloo:all_reduce"))
