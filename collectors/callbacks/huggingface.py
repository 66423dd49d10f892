"""For Hugging Face's Trainer: ``Trainer(..., callbacks=[DiagCallback("R")])``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ..recording import record
from ..settings import CollectorSettings


class DiagCallback(TrainerCallback):  # type: ignore[misc]
    """Records from the Trainer's creation, before the model is wrapped, to the end of its first training.

    A step is one of the Trainer's steps. The arguments are those of ``record``.
    """

    def __init__(self, run_dir: Path | str | None = None, settings: CollectorSettings | None = None) -> None:
        self._recording = record(run_dir, settings)
        self._entered = False

    def on_init_end(self, *_args: Any, **_state: Any) -> None:
        self._enter()

    def on_train_begin(self, *_args: Any, **_state: Any) -> None:
        self._enter()  # for a callback that was added later
        self._recording.told_steps()

    def on_step_end(self, *_args: Any, **_state: Any) -> None:
        self._recording.end_step()

    def on_train_end(self, *_args: Any, **_state: Any) -> None:
        self._recording.close()

    def _enter(self) -> None:
        if not self._entered:
            self._entered = True
            self._recording.__enter__()
