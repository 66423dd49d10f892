"""A hook on ``Module.train``, which ``Module.eval`` calls, too: after ``train(False)`` an evaluation may follow."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from ..patches import Patches

if TYPE_CHECKING:
    from .life import Attachment


def install(patches: Patches, life: Attachment) -> None:
    original = torch.nn.Module.train

    # Called once for every module within: it does nothing else on the way into the training.
    @functools.wraps(original)
    def train(module: Any, /, mode: bool = True) -> Any:
        if not mode and not torch.compiler.is_compiling():
            life.tell("eval_called")
        return original(module, mode)

    patches.replace(torch.nn.Module, "train", train)
