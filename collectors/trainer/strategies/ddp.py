"""DistributedDataParallel: every rank holds the whole model, and gradients are averaged in buckets during backward."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..model import Decoder, materialize
from ..options import TrainerOptions


class DdpStrategy:
    def __init__(self, options: TrainerOptions, device: torch.device) -> None:
        self.options = options
        self.device = device

    def wrap(self, model: Decoder) -> DistributedDataParallel:
        for block in model.blocks:
            block.recompute = self.options.activation_checkpointing  # type: ignore[assignment]
        if model.shape.deferred:
            materialize(model, self.device, self.options.seed)
        else:
            model.to(self.device)
        return DistributedDataParallel(
            model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )

    def forward_context(self) -> AbstractContextManager[Any]:
        if self.options.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def micro_step(self, model: nn.Module, is_last: bool) -> AbstractContextManager[Any]:
        assert isinstance(model, DistributedDataParallel)
        if is_last or self.options.grad_sync == "every":
            return nullcontext()
        return model.no_sync()

    def clip(self, model: nn.Module, max_norm: float) -> Tensor:
        return nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # gradients are equal on all ranks

    def describe(self) -> dict[str, Any]:
        return {"name": "ddp", "grad_sync": self.options.grad_sync, "gradient_as_bucket_view": True}
