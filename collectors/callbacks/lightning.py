"""For Lightning's Trainer: ``Trainer(..., callbacks=[DiagCallback("R")])``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from ..recording import Recording, record
from ..settings import CollectorSettings


class DiagCallback(Callback):  # type: ignore[misc]
    """Records ``fit``, from before the model is wrapped. A step is one batch that increases ``global_step``, also with
    several optimizers. The arguments are those of ``record``.
    """

    def __init__(self, run_dir: Path | str | None = None, settings: CollectorSettings | None = None) -> None:
        self._arguments = run_dir, settings
        self._recording: Recording | None = None  # made in the process that trains
        self._steps = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        if stage == "fit":
            self._recording = record(*self._arguments).__enter__()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._steps = trainer.global_step
        if self._recording is not None:
            self._recording.told_steps()

    def on_train_batch_end(self, trainer: Any, *_args: Any) -> None:
        if self._recording is not None and trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self._recording.end_step()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        if self._recording is not None:
            self._recording.close(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        if self._recording is not None and stage == "fit":
            self._recording.close()
