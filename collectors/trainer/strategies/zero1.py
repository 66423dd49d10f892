"""ZeRO 1 as PyTorch has it: DDP, with the optimizer's states sharded by parameter and the new values broadcast."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from .ddp import DdpStrategy


class Zero1Strategy(DdpStrategy):
    def optimizer(self) -> Optimizer:
        if self.axes.data == 1:
            return super().optimizer()
        optimizer: Optimizer = ZeroRedundancyOptimizer(
            self.model.parameters(),
            optimizer_class=torch.optim.AdamW,
            process_group=self.data_group(),
            parameters_as_bucket_view=self.knobs.on("parameters_as_bucket_view"),
            lr=self.options.learning_rate,
        )
        return optimizer

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "name": "zero1"}
