"""Starts processes under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys

from diag.collectors.settings import COLLECT_VARIABLE
from diag.collectors.trainer.options import OPTIONS_ENV, TrainerOptions


def launch(
    target: list[str],
    options: TrainerOptions | None = None,
    ranks: int = 2,
    *,
    collect: bool = False,
    timeout: float = 400,
) -> subprocess.CompletedProcess[str]:
    """Runs a script, or ``-m`` and a module, on so many ranks; output as text, exit code not checked."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if not collect:
        environment[COLLECT_VARIABLE] = "off"
    if options is not None:
        environment[OPTIONS_ENV] = options.to_json()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run(
        [*torchrun, *target], env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
