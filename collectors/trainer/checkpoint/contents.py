"""The saved state of a training: what a checkpoint contains, and how it is restored.

Model and optimizer are ``Stateful``: torch.distributed.checkpoint saves them with ``async_save`` and fills them with
``load``. The rest is our own JSON, and our own unpickler reads .metadata: torch.distributed.checkpoint reads .metadata
and every value that is not a tensor with pickle, which executes code from the file. Drafts and their renaming are ours,
too (``folder``): torch.distributed.checkpoint writes into the final folder and does not mark a checkpoint as complete,
so a resume after a kill could not distinguish a whole checkpoint from half of one.
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import platform
import random
import sys
import time
import warnings
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from ... import bounded_pickle
from ...accelerator import accelerator_of
from ...layout import RUN_DIR_VARIABLE, RunLayout
from ...manifest import training_of
from ...policy import RECORDED_FILES
from ...reading import read_regular
from ...text import visible
from ..data import ShardedSampler
from ..keys import OptionError
from ..model import Schedule
from ..options import TrainerOptions
from ..refusals import differences
from ..strategies.base import Strategy
from .folder import DCP, Checkpoint, CheckpointManifest, IncompleteError, rank_file

# -- safe --------------------------------------------------------------------------------------------------------------
#
# Reads torch.distributed.checkpoint's files without executing code from them.
#
# A checkpoint may come from anywhere. torch itself reads the tensors with ``weights_only=True``. Two things are not
# safe: ``.metadata`` is a plain pickle, and the load planner unpickles values that are not tensors. So the first is
# read by an unpickler that allows only the few classes of a checkpoint of tensors, and the second is refused: such
# values are in manifest.json instead.

_TIMES = 8  # factor on the limits of a Flight Recorder's dump: enough for 1,500 tensors in 256 shards each

_CLASSES: dict[tuple[str, str], Any] = {
    (known.__module__, known.__qualname__): known
    for known in (
        metadata.Metadata,
        metadata.MetadataIndex,
        metadata.TensorStorageMetadata,
        metadata.ChunkStorageMetadata,
        metadata.TensorProperties,
        metadata.StorageMeta,
        metadata._MEM_FORMAT_ENCODING,
        filesystem._StorageInfo,
    )
}
_CLASSES["torch", "Size"] = torch.Size
_CLASSES["torch.serialization", "_get_layout"] = torch.serialization._get_layout  # "torch.strided" to the layout


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The classes that the pickle may name: those of a checkpoint, and torch's dtypes."""
        if (allowed := _class_of(module, name)) is None:
            raise IncompleteError(
                f".metadata asks for {module}.{name}, which a checkpoint of tensors does not need: not read"
            )
        return allowed


def _class_of(module: str, name: str) -> Any:
    if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
        return dtype
    return _CLASSES.get((module, name))


def read_metadata(path: Path, files: Collection[str]) -> metadata.Metadata:
    """The metadata of a checkpoint that consists of these files. IncompleteError if it refers to anything else."""
    try:
        data = read_regular(path, RECORDED_FILES.most_pickle_bytes, path.parent)
        bounded_pickle.check(data, lambda module, name: _class_of(module, name) is not None, times=_TIMES)
        content = _Unpickler(io.BytesIO(data)).load()
    except IncompleteError:
        raise
    except bounded_pickle.RefusedError as refused:
        raise IncompleteError(
            f".metadata {refused}, which a checkpoint of tensors does not need: not read"
        ) from refused
    except Exception as error:  # a damaged pickle can raise almost anything
        raise IncompleteError(f".metadata cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(content, metadata.Metadata) or not isinstance(content.storage_data, dict):
        raise IncompleteError(".metadata does not describe a checkpoint")
    for info in content.storage_data.values():
        if not isinstance(info, filesystem._StorageInfo) or info.relative_path not in files:
            raise IncompleteError(".metadata points to files outside of this checkpoint")
        info.transform_descriptors = None
    return content


class SafeReader(FileSystemReader):
    """Reads the checkpoint in a folder that consists of these files."""

    def __init__(self, folder: Path, files: Collection[str]) -> None:
        super().__init__(folder)
        self.folder, self.files = folder, files

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> metadata.Metadata:
        content = read_metadata(self.folder / ".metadata", self.files)
        content.storage_meta = metadata.StorageMeta(load_id=self.load_id)
        return content


class TensorsOnly(DefaultLoadPlanner):
    """A load planner that never unpickles."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:  # noqa: ARG002
        raise IncompleteError(f"{read_item.dest_index.fqn} is not a tensor: not read")


# -- state -------------------------------------------------------------------------------------------------------------
#
# The tensors of a training by their names in the whole model, independent of the strategy.
#
# torch's own functions return each parameter and its optimizer state under its name in the plain model, as a shard with
# its place in the whole. So a checkpoint of one strategy and number of ranks loads into another.

# FSDP1 uses deprecated functions of torch; readers of these warnings cannot do anything about it.
for _message in ("Please use DTensor instead", "`_get_pg_default_device` will be", "Multiple backends are registered"):
    warnings.filterwarnings("ignore", message=_message)


def holder(optimizer: Optimizer) -> Optimizer:
    """The optimizer that holds the states of this rank's parameters. ZeroRedundancyOptimizer has an inner optimizer for
    its part, ``optim``; its own ``state_dict`` would first gather the states of all ranks on one."""
    inner = getattr(optimizer, "optim", None)
    return inner if isinstance(inner, Optimizer) else optimizer


class ModelState(Stateful):
    """The parameters and buffers of a model, or of a rank's stages of a pipeline, by their names in the whole model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._state: dict[str, Any] = get_model_state_dict(model)

    def state_dict(self) -> dict[str, Any]:
        return _tensors({_plain(self.model, name): value for name, value in self._state.items()})

    def load_state_dict(self, _loaded: dict[str, Any]) -> None:
        """The tensors that ``state_dict`` returned have been filled in place."""
        set_model_state_dict(self.model, self._state)


class OptimizerState(Stateful):
    """The states that a rank's optimizer holds, by the names of its parameters."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, holder(optimizer)
        # Initializes the states of an optimizer that has not stepped yet.
        has_parameters = any(group["params"] for group in self.optimizer.param_groups)
        self._state: dict[str, Any] = get_optimizer_state_dict(model, self.optimizer) if has_parameters else {}

    def state_dict(self) -> dict[str, Any]:
        states = self._state.get("state", {})
        return {_plain(self.model, name): _tensors(values) for name, values in states.items()}

    def load_state_dict(self, _loaded: dict[str, Any]) -> None:
        if self._state:
            set_optimizer_state_dict(self.model, self.optimizer, self._state)


def _plain(model: nn.Module, name: str) -> str:
    """The name in the whole model: a rank's pipeline stages are in a list, whose names begin with the index in it."""
    return name.partition(".")[2] if isinstance(model, nn.ModuleList) else name


def _tensors(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values unchanged. TypeError if one is not a tensor: loading it would unpickle it."""
    non_tensors = [name for name, value in values.items() if not isinstance(value, Tensor)]
    if non_tensors:
        raise TypeError(f"only tensors can be saved; these are not tensors: {', '.join(non_tensors[:3])}")
    return values


def settings_of(optimizer: Optimizer) -> dict[str, Any]:
    """Class and settings of an optimizer, without its parameters and states."""
    groups = [
        {key: value for key, value in group.items() if isinstance(value, (bool, int, float, str, tuple, type(None)))}
        for group in optimizer.param_groups
    ]
    return {"class": type(holder(optimizer)).__name__, "groups": groups}


# -- rng ---------------------------------------------------------------------------------------------------------------
#
# The states of one rank's random number generators as plain JSON, which is never executed.


def seed(number: int) -> None:
    """Seeds every generator that ``capture`` would save: unseeded ones start at random in each process."""
    random.seed(number)
    torch.manual_seed(number)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number % 2**32)


def capture(device: torch.device) -> dict[str, Any]:
    """The state of every generator that a training may use: Python's, NumPy's if it is imported, torch's."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": _text(torch.get_rng_state())}
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = [kind, keys.tolist(), *rest]
    if (accelerator := accelerator_of(device)) is not None:
        state[device.type] = _text(accelerator.rng_state())
    return state


def restore(state: dict[str, Any], device: torch.device) -> None:
    """Restores the generators. A generator that one of the two processes lacks is left alone."""
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    torch.set_rng_state(_tensor(state["torch"]))
    if "numpy" in state and (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), *rest))
    if device.type in state and (accelerator := accelerator_of(device)) is not None:
        accelerator.set_rng_state(_tensor(state[device.type]))


def _text(state: Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode()


def _tensor(text: str) -> Tensor:
    return torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8)


_NOT_KEPT = ("inject", "resume", "checkpoint_dir")  # options that belong to the run, not to the training


class Contents:
    """The parts of a training that are saved and restored."""

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
        return self.strategy.checkpoint_kind

    def state(self) -> dict[str, Any]:
        """The state that torch.distributed.checkpoint saves and fills; a checkpoint has the tensors under these two
        names."""
        model = self.strategy.model
        return {"model": ModelState(model), "optimizer": OptimizerState(model, self.optimizer)}

    def manifest(self, steps: int, **saving: Any) -> CheckpointManifest:
        """The manifest of a checkpoint after this number of steps, without its files."""
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
            training=training_of(RunLayout(Path(run))) if (run := os.environ.get(RUN_DIR_VARIABLE)) else "",
        )

    def of_this_rank(self) -> dict[str, Any]:
        return {"rank": dist.get_rank(), "rng": capture(self.strategy.device)}

    def _consumed(self, steps: int) -> dict[str, int]:
        """Samples and tokens of all ranks since the training began, in this run and those that it resumed."""
        shape = self.options.shape()
        samples = (
            (steps - self._before["steps"]) * shape.batch_size * self.strategy.axes.data * self.options.micro_batches
        )
        return {
            "samples": self._before["samples"] + samples,
            "tokens": self._before["tokens"] + samples * shape.seq_len,
        }

    def differences(self, checkpoint: Checkpoint) -> list[str]:
        """What differs from the run that saved the checkpoint; see ``refusals.differences``."""
        strategy = self.strategy
        return differences(
            checkpoint, self.options, dist.get_world_size(), strategy.name, strategy.axes.sizes(), _versions()
        )

    def restore(self, checkpoint: Checkpoint, group: dist.ProcessGroup) -> None:
        """Restores model, optimizer, schedule and random numbers; the sampler was set before its loader started.
        OptionError, on every rank, if a file is invalid."""
        saved = checkpoint.manifest
        if saved.kind != DCP:
            self.strategy.load_checkpoint(self.optimizer, checkpoint)
        else:
            try:
                names = {file.name for file in saved.files}
                load(
                    self.state(),
                    storage_reader=SafeReader(checkpoint.folder, names),
                    planner=TensorsOnly(),
                    process_group=group,  # one that can send CPU objects
                )
            except CheckpointException as error:
                raise OptionError(f"--resume {checkpoint.folder}: {first_failure(error)}") from None
        if self.schedule is not None and saved.scheduler is not None:
            self.schedule.restore(saved.scheduler)
        self._before = {"steps": saved.steps, **saved.consumed}
        rank = dist.get_rank()
        if rank < saved.world_size:  # a rank that was not saved keeps the random numbers of its seed
            rank_state = json.loads(
                read_regular(checkpoint.folder / rank_file(rank), RECORDED_FILES.document_bytes, checkpoint.folder)
            )
            restore(rank_state["rng"], self.strategy.device)


def _versions() -> dict[str, str]:
    return {"torch": torch.__version__, "python": platform.python_version()}


def first_failure(error: CheckpointException) -> str:
    """One line with the error of the first rank that failed."""
    rank, (cause, _) = min(error.failures.items(), key=lambda item: item[0])
    kind = "" if isinstance(cause, IncompleteError) else f"{type(cause).__name__}: "
    return f"rank {rank}: {kind}{str(cause).splitlines()[0] if str(cause) else ''}"


def say(text: str) -> None:
    """Prints a line on the first rank, whose standard output `diag run` shows, among the lines of the steps."""
    if dist.get_rank() == 0:
        print(visible(f"diag: {text}"), flush=True)
