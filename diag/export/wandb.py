"""A run's steps as a run of Weights & Biases, where its client is installed. Offline, unless WANDB_MODE says otherwise:
`wandb sync` uploads it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from diag.errors import DiagError
from diag.export.history import StepCurves


def write_run(steps: Iterable[StepCurves], name: str, folder: Path) -> int:
    """How many steps were written into the folder. DiagError where wandb is missing."""
    try:
        import wandb
    except ImportError as error:
        raise DiagError("wandb is not installed", hint="pip install wandb") from error
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    with wandb.init(project="diag", name=name, dir=str(folder), mode=os.environ.get("WANDB_MODE", "offline")) as run:
        for step in steps:
            run.log(step.values, step=step.step)
            written += 1
    return written
