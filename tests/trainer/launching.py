"""Starts the ranks of a training."""

from __future__ import annotations

import os
import subprocess
import sys

from diag.collectors.settings import COLLECT_VARIABLE
from diag.collectors.trainer.options import OPTIONS_ENV, TrainerOptions
from tests.trainer.forked import launch_forked


def launch(
    target: list[str],
    options: TrainerOptions | None = None,
    ranks: int = 2,
    *,
    collect: bool = False,
    torchrun: bool = False,
    timeout: float = 400,
) -> subprocess.CompletedProcess[str]:
    """Runs a script, or ``-m`` and a module, on so many ranks; output as text, exit code not checked."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if not collect:
        environment[COLLECT_VARIABLE] = "off"
    if options is not None:
        environment[OPTIONS_ENV] = options.to_json()
    if not torchrun:
        return launch_forked(target, environment, ranks, timeout)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run(
        [*command, *target], env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
