"""A hook on ``Module.eval``: what follows may be an evaluation. ``Module.train`` has none: it calls itself for every
module within."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from ..patches import Patches

if TYPE_CHECKING:
    from .life import Attachment


def install(patches: Patches, life: Attachment) -> None:
    original = torch.nn.Module.eval

    @functools.wraps(original)
    def to_eval(module: Any) -> Any:
        if not torch.compiler.is_compiling():
            life.tell("eval_called")
        return original(module)

    patches.replace(torch.nn.Module, "eval", to_eval)
