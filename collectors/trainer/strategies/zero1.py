"""PyTorch's ZeRO 1: DDP, with optimizer states sharded by parameter, and updated values broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...strategies import ZERO1
from ..keys import Key
from .base import switch
from .ddp import Replicated

if TYPE_CHECKING:
    from torch.optim import Optimizer


class Zero1(Replicated):
    facts = ZERO1
    about = "DDP with ZeroRedundancyOptimizer: optimizer states are sharded"
    settings: ClassVar[tuple[Key, ...]] = (
        *Replicated.settings,
        switch("parameters_as_bucket_view", "no", "parameters live in buckets: one broadcast for many"),
    )
    why_not_taken = (
        "every rank keeps the whole model, only optimizer states are sharded. Drop it, or use --strategy fsdp2"
    )

    def optimizer(self) -> Optimizer:
        if self.axes.data == 1:
            return super().optimizer()
        import torch
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer: Optimizer = ZeroRedundancyOptimizer(
            self.model.parameters(),
            optimizer_class=torch.optim.AdamW,
            process_group=self.data_group(),
            parameters_as_bucket_view=self.knobs.on("parameters_as_bucket_view"),
            lr=self.options.learning_rate,
        )
        return optimizer
