"""Only one profiler can run: where the training uses one of its own, ours stands back for good."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from ..patches import Patches

if TYPE_CHECKING:
    from .life import Attachment


def install(patches: Patches, life: Attachment) -> None:
    profile: Any = torch.autograd.profiler.profile
    original = profile._prepare_trace

    @functools.wraps(original)
    def prepare(profiler: Any) -> Any:
        life.profiler_starts(profiler)
        return original(profiler)

    patches.replace(profile, "_prepare_trace", prepare)
