"""``Strategy``: what the loop knows of a way of spreading the training over the ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional
from torch.optim import Optimizer

from ...records import BACKWARD, FORWARD
from ..axes import DP
from ..model import NO_RECOMPUTATION, Decoder, build
from ..options import TrainerOptions

Phase = Callable[[str], AbstractContextManager[None]]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of (batch, seq, vocab) against (batch, seq), in fp32."""
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class Strategy(ABC):
    """One way. Created on every rank after the process group; ``build`` is collective.

    ``model`` is there after ``build``: what the loss is computed with. Of a pipeline, a list of this rank's stages.
    """

    model: nn.Module

    def __init__(self, options: TrainerOptions, device: torch.device) -> None:
        self.options, self.device, self.knobs = options, device, options.knobs()
        self.axes = options.axes(dist.get_world_size())
        self.mesh: DeviceMesh = _mesh(self.axes.sizes(), device)

    # -- the model -------------------------------------------------------------------------------------------------

    def build(self) -> list[nn.Module]:
        """Makes the model, ready to train. The blocks of it that this rank computes, in order."""
        decoder = build(self.options.shape(), self.options.seed)
        blocks = list(decoder.blocks.values())
        self.model = self.wrap(decoder)
        return blocks

    @abstractmethod
    def wrap(self, model: Decoder) -> nn.Module:
        """A model, or a stage of one, on its device, with its weights, spread over the ranks of the data axes."""

    def prepare(self, model: Decoder) -> None:
        """What comes before sharding: recomputation and compilation of the blocks."""
        options = self.options
        for block in model.blocks.values():
            block.recompute = options.checkpoint_policy if options.activation_checkpointing else NO_RECOMPUTATION  # type: ignore[assignment]
            if options.compile:
                block.compile()

    def data_group(self) -> dist.ProcessGroup:
        """The ranks that read different data and hold the same part of the model."""
        names = self.axes.data_axes()
        data = self.mesh[names]
        return (data._flatten(DP) if len(names) > 1 else data).get_group()

    # -- a step ----------------------------------------------------------------------------------------------------

    def optimizer(self) -> Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=self.options.learning_rate)

    def accumulate(self, batches: Iterable[Tensor], phase: Phase) -> Tensor:
        """Forward and backward of a step's micro-batches, (batch, seq + 1) token ids each, recorded in phases.

        Their mean loss, on the device; 0 on a rank that computes none.
        """
        total = torch.zeros((), device=self.device)
        count = self.options.micro_batches
        for number, batch in enumerate(batches):
            with self.micro_step(is_last=number == count - 1):
                with phase(FORWARD), self.forward_context():
                    loss = loss_of(self.model(batch[:, :-1]), batch[:, 1:]) / count
                with phase(BACKWARD):
                    self.backward(loss)
            total += loss.detach()
        return total

    def forward_context(self) -> AbstractContextManager[Any]:
        """Around forward and loss."""
        return nullcontext()

    def autocast(self) -> AbstractContextManager[Any]:
        """For models whose parameters stay in fp32 when they compute in bf16."""
        if self.options.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def micro_step(self, is_last: bool) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Around forward and backward of one micro-batch: decides whether its gradients are reduced."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    @abstractmethod
    def clip(self, max_norm: float) -> Tensor:
        """Scale the gradients so that their norm over the whole model is at most ``max_norm``; the norm before that."""

    @property
    def ranks_with_loss(self) -> int:
        """Over how many ranks ``accumulate`` spreads the losses."""
        return dist.get_world_size() // self.axes.stages

    # -- what it was -----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """For the manifest."""
        return self.options.strategy

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What was really set up, for the manifest. After ``build``."""

    def ddp_hook(self) -> tuple[Any, Any] | None:
        """(state, communication hook) that DDP's gradients go through; None: as PyTorch does by itself."""
        return None

    def close(self) -> None:  # noqa: B027  (most have nothing to end)
        """End what the strategy started. Before the process group ends."""


def _mesh(sizes: dict[str, int], device: torch.device) -> DeviceMesh:
    return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
