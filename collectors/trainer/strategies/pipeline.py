"""Pipeline parallelism: the layers are split over the ranks of an axis, and micro-batches pass through them.

Another strategy parallelizes each stage over its data-parallel ranks. The schedules are PyTorch's. The forward and
backward of each chunk are recorded as phases, so that the time between them is waiting for other stages.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ...records import BACKWARD, FORWARD
from ..model import Decoder, build
from .base import PP, Phase, Strategy, clip_spread_gradients, loss_of


def cut_layers(layers: int, stages: int) -> list[range]:
    """The blocks of each stage, as even as possible; the first stages get the remainder."""
    least, over = divmod(layers, stages)
    ends = [0]
    for stage in range(stages):
        ends.append(ends[-1] + least + (stage < over))
    return [range(begin, end) for begin, end in pairwise(ends)]


class TimedStage(PipelineStage):
    """A stage whose computation is recorded in phases, so that the time between them is waiting for other stages."""

    phase: Phase = staticmethod(lambda _name: nullcontext())
    context: Any = staticmethod(nullcontext)

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        """Before its first step PyTorch runs the stage once, to infer the shapes. Without ``no_sync`` DDP's reducer
        treats that as the begin of a step, and fails in the second: "rebuilt parameter indices size is not same"
        (torch 2.13)."""
        module = self.submod
        with module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext():
            return super()._prepare_forward_infra(*args, **kwargs)

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.phase(FORWARD), self.context():
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        with self.phase(BACKWARD):
            super().backward_one_chunk(*args, **kwargs)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        with self.phase(BACKWARD):
            super().perform_reduce_grad(grad_scale_factor)


class PipelineStrategy(Strategy):
    """``inner`` parallelizes each stage over its data-parallel ranks."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
        self.options, self.device, self.knobs = inner.options, inner.device, inner.knobs
        self.axes, self.mesh = inner.axes, inner.mesh
        self.stages: list[TimedStage] = []
        self.schedule: Any = None

    def build(self) -> list[nn.Module]:
        options, axes = self.options, self.axes
        cut = cut_layers(options.shape().layers, options.stages())
        own_stage = axes.stage(dist.get_rank())
        parts: list[nn.Module] = []
        blocks: list[nn.Module] = []
        for number in range(own_stage, len(cut), axes.stages):
            decoder = build(options.shape(), options.seed, cut[number])
            blocks.extend(decoder.blocks.values())
            parts.append(self.wrap(decoder))
            stage = TimedStage(parts[-1], number, len(cut), self.device, group=self.mesh[PP].get_group())
            stage.context = self.inner.forward_context
            self.stages.append(stage)
        self.schedule = self._schedule()
        self.model = self.inner.model = nn.ModuleList(parts)
        return blocks

    def wrap(self, model: Decoder) -> nn.Module:
        return self.inner.wrap(model)

    def _schedule(self) -> Any:
        chunks = self.options.micro_batches
        if self.options.pipeline_schedule == "interleaved":
            return ScheduleInterleaved1F1B(list(self.stages), chunks, loss_fn=loss_of)
        kind = ScheduleGPipe if self.options.pipeline_schedule == "gpipe" else Schedule1F1B
        return kind(self.stages[0], chunks, loss_fn=loss_of)

    def optimizer(self) -> Optimizer:
        return self.inner.optimizer()

    def accumulate(self, batches: Iterable[Tensor], phase: Phase) -> Tensor:
        tokens = torch.cat(list(batches))
        for stage in self.stages:
            stage.phase = phase
        losses: list[Tensor] = []
        # Contiguous: torch up to 2.11 refuses an input whose strides are not those that it inferred.
        inputs = (tokens[:, :-1].contiguous(),) if any(stage.is_first for stage in self.stages) else ()
        if any(stage.is_last for stage in self.stages):
            self.schedule.step(*inputs, target=tokens[:, 1:], losses=losses, return_outputs=False)
        else:
            self.schedule.step(*inputs, return_outputs=False)
        return torch.stack(losses).mean().detach() if losses else torch.zeros((), device=self.device)

    def clip(self, max_norm: float) -> Tensor:
        plain = isinstance(next(iter(self.model.children())), DistributedDataParallel)
        return clip_spread_gradients(
            self.model.parameters(), max_norm, self.device, copies=self.axes.data if plain else 1
        )

    @property
    def name(self) -> str:
        return self.inner.name

    def ddp_hook(self) -> tuple[Any, Any] | None:
        return self.inner.ddp_hook()

    def describe(self) -> dict[str, Any]:
        return {
            **self.inner.describe(),
            "pipeline_schedule": self.options.pipeline_schedule,
            "stages": [stage.stage_index for stage in self.stages],
            "layers_of_stages": [len(part) for part in cut_layers(self.options.shape().layers, self.options.stages())],
        }

    def close(self) -> None:
        self.inner.close()
