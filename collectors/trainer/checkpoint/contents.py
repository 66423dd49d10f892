"""What is saved of a training beside its tensors, and how all of it is put back."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.optim import Optimizer

from ...reading import DOCUMENT_BYTES, read_regular
from ...text import visible
from ..data import ShardedSampler
from ..knobs import DEEPSPEED
from ..options import OptionError, TrainerOptions
from ..strategies.base import Strategy
from ..warmup import Schedule
from . import engine, manifest, rng
from .folder import Checkpoint
from .manifest import CheckpointManifest, IncompleteError
from .resume import differences
from .state import State, settings_of
from .writer import rank_file

_NOT_KEPT = ("inject", "resume", "checkpoint_dir")  # of the options: they belong to the run, not to the training


class Contents:
    """A training, seen by those who save and restore it."""

    def __init__(
        self,
        options: TrainerOptions,
        strategy: Strategy,
        optimizer: Optimizer,
        schedule: Schedule | None,
        sampler: ShardedSampler,
        data: dict[str, Any],
    ) -> None:
        self.options, self.strategy, self.optimizer = options, strategy, optimizer
        self.schedule, self.sampler, self.data = schedule, sampler, data
        self._before: dict[str, int] = {"steps": 0, "samples": 0, "tokens": 0}

    @property
    def kind(self) -> str:
        return manifest.DEEPSPEED if self.options.strategy == DEEPSPEED else manifest.DCP

    def state(self) -> State:
        return State(self.strategy.model, self.optimizer)

    def manifest(self, steps: int, **saving: Any) -> CheckpointManifest:
        """Of a checkpoint after so many steps; without its files."""
        options = {name: value for name, value in asdict(self.options).items() if name not in _NOT_KEPT}
        return CheckpointManifest(
            steps=steps,
            kind=self.kind,
            world_size=dist.get_world_size(),
            strategy=self.strategy.name,
            mesh=self.strategy.axes.sizes(),
            options=options,
            model=asdict(self.options.shape()),
            data=self.data,
            cursor=self.sampler.state_dict(),
            consumed=self._consumed(steps),
            optimizer=settings_of(self.optimizer),
            scheduler=None if self.schedule is None else self.schedule.state(),
            versions=_versions(),
            created_unix_ns=time.time_ns(),
            saving=saving,
        )

    def of_this_rank(self) -> dict[str, Any]:
        return {"rank": dist.get_rank(), "rng": rng.capture(self.strategy.device)}

    def _consumed(self, steps: int) -> dict[str, int]:
        """Samples and tokens of all ranks since the training began, in this run and those that it resumes."""
        shape = self.options.shape()
        samples = (
            (steps - self._before["steps"]) * shape.batch_size * self.strategy.axes.data * self.options.micro_batches
        )
        return {
            "samples": self._before["samples"] + samples,
            "tokens": self._before["tokens"] + samples * shape.seq_len,
        }

    def differences(self, checkpoint: Checkpoint) -> list[str]:
        """What is not as it was when the checkpoint was saved; see ``resume.differences``."""
        strategy = self.strategy
        return differences(
            checkpoint, self.options, dist.get_world_size(), strategy.name, strategy.axes.sizes(), _versions()
        )

    def restore(self, checkpoint: Checkpoint, group: dist.ProcessGroup) -> None:
        """Model, optimizer, schedule and random numbers as they were; the sampler was set before its loader began.
        OptionError, on every rank, where a file is not what it should be."""
        found = checkpoint.manifest
        if found.kind == manifest.DEEPSPEED:
            engine.load(self.strategy, self.optimizer, checkpoint)
        else:
            try:
                self.state().load(checkpoint, group)
            except CheckpointException as error:
                raise OptionError(f"--resume {checkpoint.folder}: {said(error)}") from None
        if self.schedule is not None and found.scheduler is not None:
            self.schedule.restore(found.scheduler)
        self._before = {"steps": found.steps, **found.consumed}
        rank = dist.get_rank()
        if rank < found.world_size:  # a rank that was not there keeps the numbers of its seed
            own = json.loads(read_regular(checkpoint.folder / rank_file(rank), DOCUMENT_BYTES, checkpoint.folder))
            rng.restore(own["rng"], self.strategy.device)


def _versions() -> dict[str, str]:
    return {"torch": torch.__version__, "python": platform.python_version()}


def said(error: CheckpointException) -> str:
    """One line of what went wrong on the first rank where something did."""
    rank, (cause, _) = min(error.failures.items(), key=lambda item: item[0])
    kind = "" if isinstance(cause, IncompleteError) else f"{type(cause).__name__}: "
    return f"rank {rank}: {kind}{str(cause).splitlines()[0] if str(cause) else ''}"


def say(text: str) -> None:
    """Among the lines of the steps, of the first rank: its standard output is what `diag run` shows."""
    if dist.get_rank() == 0:
        print(visible(f"diag: {text}"), flush=True)
