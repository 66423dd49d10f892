"""Hooks on saving: on what PyTorch and safetensors write files with, and on what frameworks call around it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ..patches import Patches
from .hooking import Hooks, Inside, around
from .importing import AfterImport

if TYPE_CHECKING:
    from .life import Attachment

_DISTRIBUTED = "torch.distributed.checkpoint"
# By the module that defines it: the class whose methods save, or "" for functions of the module, and their names.
_SAVERS = {
    "safetensors.torch": ("", ("save_file",)),
    "accelerate.accelerator": ("Accelerator", ("save_state",)),
    "transformers.trainer": ("Trainer", ("_save_checkpoint",)),
    "lightning.pytorch.trainer.trainer": ("Trainer", ("save_checkpoint",)),
    "deepspeed.runtime.engine": ("DeepSpeedEngine", ("save_checkpoint",)),
    _DISTRIBUTED: ("", ("save", "async_save", "save_state_dict")),
}


class Saving:
    """One of these for all: whoever saves calls others who do, and only the outermost counts."""

    def __init__(self, life: Attachment) -> None:
        self._life = life
        self._inside = Inside()

    def install(self, hooks: Hooks, imports: AfterImport) -> None:
        """On ``torch.save`` at once, on the others when the training imports them."""
        hooks.place("torch.save", lambda patches: self._put(patches, (torch, torch.serialization), ("save",)))

        def on_import(module: ModuleType) -> None:
            hooks.place(f"saving: {module.__name__}", lambda patches: self._put_into(patches, module))

        for name in _SAVERS:
            imports.call(name, on_import)

    def _put_into(self, patches: Patches, module: ModuleType) -> None:
        class_name, names = _SAVERS[module.__name__]
        if class_name:
            self._put(patches, (getattr(module, class_name),), names)
        elif module.__name__ == _DISTRIBUTED:
            self._put(patches, (sys.modules[f"{_DISTRIBUTED}.state_dict_saver"], module), names)
        else:
            self._put(patches, (module,), names)

    def _put(self, patches: Patches, owners: Sequence[Any], names: Sequence[str]) -> None:
        """``owners``: modules that hand out the same functions, or a class."""
        for name in names:
            original = getattr(owners[0], name, None)
            if original is None:
                continue
            timed = around(
                original,
                self._inside,
                begin=lambda: self._life.tell("checkpoint_begins"),
                end=lambda start: start is not None and self._life.tell("checkpoint_ends", start),
                interrupted=lambda: self._life.tell("interrupted"),
            )
            for owner in owners:
                if getattr(owner, name, None) is original:
                    patches.replace(owner, name, timed)
