"""Hooks on backward, outermost calls only: activation checkpointing calls it again from within, and DeepSpeed's engine
calls PyTorch's, whose gradients it reduces before it returns."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ..patches import Patches
from .hooking import Hooks, Inside, around
from .importing import AfterImport

if TYPE_CHECKING:
    from .life import Attachment


def install(hooks: Hooks, imports: AfterImport, life: Attachment) -> None:
    inside = Inside()

    def put(patches: Patches, *owners: Any) -> None:
        for owner in owners:
            timed = around(
                owner.backward,
                inside,
                begin=life.events.backward_begins,
                end=life.events.backward_ends,
                interrupted=lambda: life.tell("interrupted"),
            )
            patches.replace(owner, "backward", timed)

    def on_deepspeed(engine: ModuleType) -> None:
        hooks.place("DeepSpeed's backward", lambda patches: put(patches, engine.DeepSpeedEngine))

    hooks.place("backward", lambda patches: put(patches, torch.Tensor, torch.autograd))
    imports.call("deepspeed.runtime.engine", on_deepspeed)
