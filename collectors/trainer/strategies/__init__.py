"""Ways of spreading the model over the ranks. The loop knows them only through ``base.Strategy``."""

from __future__ import annotations

from importlib import import_module

import torch

from ..options import DDP, DEEPSPEED, FSDP1, FSDP2, ZERO1, TrainerOptions
from .base import Strategy

_MODULES = {
    DDP: ("ddp", "DdpStrategy"),
    FSDP1: ("fsdp1", "Fsdp1Strategy"),
    FSDP2: ("fsdp2", "Fsdp2Strategy"),
    ZERO1: ("zero1", "Zero1Strategy"),
    DEEPSPEED: ("deepspeed", "DeepSpeedStrategy"),
}


def create(options: TrainerOptions, device: torch.device) -> Strategy:
    """The strategy of ``options``, which must have been validated. Imports no other."""
    module, name = _MODULES[options.strategy]
    strategy: Strategy = getattr(import_module(f".{module}", __name__), name)(options, device)
    if options.pipeline_parallel == 1:
        return strategy
    from .pipeline import PipelineStrategy

    return PipelineStrategy(strategy)
