"""Tokens of a step, where it is certain what is trained with: Hugging Face's Trainer says so for every micro-batch."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ..calls import argument
from ..patches import Patches

if TYPE_CHECKING:
    from .life import Attachment


_INPUTS = argument(2, "inputs")  # of Trainer.training_step
_SHARED_BY = ("get_tp_size", "get_cp_size", "get_sp_size")  # how many ranks work on one batch


def install(trainer_module: ModuleType, patches: Patches, life: Attachment) -> None:
    original = trainer_module.Trainer.training_step

    @functools.wraps(original)
    def training_step(*args: Any, **kwargs: Any) -> Any:
        life.safely(lambda: life.tell("note", _tokens(args[0], _INPUTS(args, kwargs)), None))
        return original(*args, **kwargs)

    patches.replace(trainer_module.Trainer, "training_step", training_step)


def _tokens(trainer: Any, inputs: Any) -> int:
    """Positions, padding included, for they are computed, too; 0 where it is no text."""
    found = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    if not isinstance(found, torch.Tensor) or any(_size(trainer, name) > 1 for name in _SHARED_BY):
        return 0
    return found.numel()


def _size(trainer: Any, name: str) -> int:
    tell = getattr(trainer, name, None)
    return int(tell()) if tell is not None else 1
