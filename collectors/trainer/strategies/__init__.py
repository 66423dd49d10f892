"""Ways of spreading the model over the ranks. The loop knows them only through ``Strategy``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..model import Decoder
from ..options import DDP, FSDP2, TrainerOptions


class Strategy(Protocol):
    """One way of data-parallel training."""

    def wrap(self, model: Decoder) -> nn.Module:
        """The model on its device, with its weights, ready to train. Collective: every rank calls it."""

    def forward_context(self) -> AbstractContextManager[Any]:
        """Around forward and loss."""

    def micro_step(self, model: nn.Module, is_last: bool) -> AbstractContextManager[Any]:
        """Around forward and backward of one micro-batch: decides whether its gradients are reduced."""

    def clip(self, model: nn.Module, max_norm: float) -> Tensor:
        """Scale the gradients so that their norm over the whole model is at most ``max_norm``; the norm before that."""

    def describe(self) -> dict[str, Any]:
        """What was really set up, for the manifest. After ``wrap``."""


def _ddp(options: TrainerOptions, device: torch.device) -> Strategy:
    from .ddp import DdpStrategy

    return DdpStrategy(options, device)


def _fsdp2(options: TrainerOptions, device: torch.device) -> Strategy:
    from .fsdp2 import Fsdp2Strategy

    return Fsdp2Strategy(options, device)


REGISTRY: Mapping[str, Callable[[TrainerOptions, torch.device], Strategy]] = {DDP: _ddp, FSDP2: _fsdp2}


def create(options: TrainerOptions, device: torch.device) -> Strategy:
    """The strategy of ``options``, which must have been validated."""
    return REGISTRY[options.strategy](options, device)
