"""A run's steps as TensorBoard's event files, where TensorBoard is installed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from diag.errors import DiagError
from diag.export.history import StepCurves


def write_events(steps: Iterable[StepCurves], folder: Path) -> int:
    """How many steps were written into the folder. DiagError where TensorBoard is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise DiagError("TensorBoard is not installed", hint="pip install tensorboard") from error
    written = 0
    with SummaryWriter(str(folder)) as writer:
        for step in steps:
            for name, value in step.values.items():
                writer.add_scalar(name, value, step.step, step.end_unix_s or None)
            written += 1
    return written
