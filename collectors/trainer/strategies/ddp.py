"""DistributedDataParallel: every rank holds the whole model, and gradients are averaged in buckets during backward."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ...accelerator import accelerator_of
from ..model import Decoder, materialize
from .base import Strategy
from .clipping import clip_spread_gradients


class DdpStrategy(Strategy):
    def wrap(self, model: Decoder) -> nn.Module:
        self.prepare(model)
        if model.shape.deferred:
            materialize(model, self.device, self.options.seed)
        else:
            model.to(self.device)
        if self.axes.data == 1 and self.axes.model > 1:
            return model  # there is nobody to average with
        knobs = self.knobs
        return DistributedDataParallel(
            model,
            device_ids=[self.device.index] if accelerator_of(self.device) is not None else None,
            process_group=self.data_group(),
            bucket_cap_mb=knobs.number("bucket_mb"),
            static_graph=knobs.on("static_graph"),
            gradient_as_bucket_view=knobs.on("gradient_as_bucket_view"),
            find_unused_parameters=knobs.on("find_unused_parameters"),
        )

    def forward_context(self) -> AbstractContextManager[Any]:
        return self.autocast()

    def micro_step(self, is_last: bool) -> AbstractContextManager[Any]:
        if is_last or self.options.grad_sync == "every" or not isinstance(self.model, DistributedDataParallel):
            return nullcontext()
        return self.model.no_sync()

    def clip(self, max_norm: float) -> Tensor:
        if self.axes.stages == 1:  # gradients are equal on all ranks
            return nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        return clip_spread_gradients(self.model.parameters(), max_norm, self.device, copies=self.axes.data)

    def ddp_hook(self) -> tuple[Any, Any] | None:
        group: dist.ProcessGroup = self.data_group()
        match self.knobs.get("comm_hook", "none"):
            case "fp16":
                return group, default_hooks.fp16_compress_hook
            case "bf16":
                return group, default_hooks.bf16_compress_hook
            case "powersgd":
                rank = self.knobs.integer("powersgd_rank")
                state = powerSGD_hook.PowerSGDState(
                    group, matrix_approximation_rank=rank, start_powerSGD_iter=2, use_error_feedback=True
                )
                return state, powerSGD_hook.powerSGD_hook
        return None

    def describe(self) -> dict[str, Any]:
        return {"name": "ddp", "grad_sync": self.options.grad_sync, **dict(self.knobs.values)}
