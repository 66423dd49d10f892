"""The tensors of a training by the names of the whole model, whatever spreads it over the ranks.

torch's own functions give each parameter and its optimizer state under the name it has in the plain model, as a shard
that says where it belongs. So a checkpoint of one strategy and number of ranks loads into another.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.optim import Optimizer

from .folder import Checkpoint
from .safe import SafeReader, TensorsOnly

# FSDP1 answers with what torch has deprecated: nobody who reads these can do anything about it.
for _message in ("Please use DTensor instead", "`_get_pg_default_device` will be", "Multiple backends are registered"):
    warnings.filterwarnings("ignore", message=_message)


def holder(optimizer: Optimizer) -> Optimizer:
    """Who holds the states of this rank's parameters. ZeroRedundancyOptimizer has an optimizer for its own part of
    them, ``optim``; its own ``state_dict`` would first gather everybody's on one rank."""
    inner = getattr(optimizer, "optim", None)
    return inner if isinstance(inner, Optimizer) else optimizer


class State:
    """What a rank holds: a view of model and optimizer for saving, or to be filled by loading."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, holder(optimizer)
        self._model: dict[str, Any] = get_model_state_dict(model)
        # Of an optimizer that has made no step this makes its states first.
        self._optimizer: dict[str, Any] = {"state": {}, "param_groups": []}
        if any(group["params"] for group in self.optimizer.param_groups):
            self._optimizer = get_optimizer_state_dict(model, self.optimizer)

    def tensors(self) -> dict[str, Tensor]:
        """``model.<name>`` and ``optimizer.<name>.<state>``. Ranks that hold different parameters have different names.

        TypeError for an optimizer whose states are not all tensors.
        """
        found = {f"model.{self._plain(name)}": value for name, value in self._model.items()}
        for name, states in self._optimizer["state"].items():
            for key, value in states.items():
                found[f"optimizer.{self._plain(name)}.{key}"] = value
        strange = [name for name, value in found.items() if not isinstance(value, Tensor)]
        if strange:
            raise TypeError(f"only tensors can be saved, and these are none: {', '.join(strange[:3])}")
        return found

    def load(self, checkpoint: Checkpoint, group: dist.ProcessGroup) -> None:
        """Fills model and optimizer. Collective over the group, which must be able to pass objects of the CPU."""
        names = {file.name for file in checkpoint.manifest.files}
        load(
            self.tensors(),
            storage_reader=SafeReader(checkpoint.folder, names),
            planner=TensorsOnly(),
            process_group=group,
        )
        set_model_state_dict(self.model, self._model)
        if self._optimizer["param_groups"]:
            set_optimizer_state_dict(self.model, self.optimizer, self._optimizer)

    def _plain(self, name: str) -> str:
        """A rank's stages of a pipeline are in a list, and its names begin with the place in it; those of the stages
        are the whole model's."""
        return name.partition(".")[2] if isinstance(self.model, nn.ModuleList) else name


def settings_of(optimizer: Optimizer) -> dict[str, Any]:
    """Class and settings of an optimizer, without its parameters and states."""
    groups = [
        {key: value for key, value in group.items() if isinstance(value, (bool, int, float, str, tuple, type(None)))}
        for group in optimizer.param_groups
    ]
    return {"class": type(holder(optimizer)).__name__, "groups": groups}
