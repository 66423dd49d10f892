"""Ranks that are forked from a process which has imported PyTorch and the trainer: importing takes each rank of
torchrun 2.5 s, and torchrun 2 s, more than most trainings of the tests do.

What torchrun does about its ranks is not tested with this.
"""

from __future__ import annotations

import subprocess

from tests.forked import run_forked
from tests.ports import free_port


def launch_forked(
    target: list[str], environment: dict[str, str], ranks: int, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Runs a script, or ``-m`` and a module, on so many ranks. The exit code is 0, or that of the rank that failed
    first. AssertionError when they take longer; no rank is left then."""
    port = str(free_port())
    everywhere = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    environments = [
        environment | everywhere | {"MASTER_PORT": port, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(ranks)
    ]
    ended = run_forked(target, environments, timeout)
    codes = [f"rank {rank} exitcode: {code}" for rank, code in enumerate(ended.exit_codes)]
    return subprocess.CompletedProcess(target, ended.exit_code, ended.stdout, "\n".join([ended.stderr, *codes]))
