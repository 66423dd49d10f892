"""Hooks on backward, outermost calls only: activation checkpointing calls it again from within."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..patches import Patches
from .hooking import Outermost, around

if TYPE_CHECKING:
    from .life import Attachment


def install(patches: Patches, life: Attachment) -> None:
    outermost = Outermost()
    for owner in (torch.Tensor, torch.autograd):
        timed = around(
            owner.backward,
            outermost,
            begin=lambda _args: life.tell("backward_begins"),
            end=lambda _begun: life.tell("backward_ends"),
            interrupted=lambda: life.tell("interrupted"),
        )
        patches.replace(owner, "backward", timed)
