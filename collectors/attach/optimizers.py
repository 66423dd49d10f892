"""Hooks on optimizers: PyTorch's own, gradient scalers that may skip them, and DeepSpeed's engine around them."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from ..patches import Patches

if TYPE_CHECKING:
    from .life import Attachment


def install(life: Attachment) -> list[RemovableHandle]:
    """PyTorch's own hooks, which every subclass of ``Optimizer`` calls, whoever wraps it. They must not be removed from
    within one of them."""

    events, compiling = life.events, torch.compiler.is_dynamo_compiling

    def begins(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not compiling():
            events.optimizer_begins(id(optimizer))

    def ends(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not compiling():
            if not life.described:
                life.optimizer_stepped(optimizer)
            events.optimizer_ends(id(optimizer))

    return [register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)]


def install_zeroing(patches: Patches, life: Attachment) -> None:
    """``zero_grad``: the only sign of an optimizer whose step is compiled, for compiled code runs no hooks."""
    for owner in (Optimizer, torch.nn.Module):
        patches.replace(owner, "zero_grad", _told(owner.zero_grad, life))


def _told(original: Any, life: Attachment) -> Any:
    events, compiling = life.events, torch.compiler.is_dynamo_compiling

    @functools.wraps(original)
    def zero_grad(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not compiling():
            events.gradients_cleared()
        return original(owner, *args, **kwargs)

    return zero_grad


def install_scaler(patches: Patches, life: Attachment) -> None:
    """A step that the scaler skips, because gradients overflowed, is a step of the training all the same."""
    from torch.amp.grad_scaler import GradScaler

    original = GradScaler.step

    @functools.wraps(original)
    def step(scaler: Any, /, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        around = -id(optimizer)  # another number than the optimizer's own, whose step is within
        life.events.optimizer_begins(around)
        result = original(scaler, optimizer, *args, **kwargs)
        life.events.optimizer_ends(around)
        return result

    patches.replace(GradScaler, "step", step)


def install_engine(engine_module: ModuleType, patches: Patches, life: Attachment) -> None:
    """DeepSpeed's engine, whose ZeRO optimizers call the one inside once for every group of parameters, and which is
    called after every micro-batch."""
    engine_class = engine_module.DeepSpeedEngine
    original = engine_class.step

    @functools.wraps(original)
    def step(engine: Any, /, *args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        life.events.optimizer_begins(id(engine))
        result = original(engine, *args, **kwargs)
        life.engine_stepped(engine)
        life.events.optimizer_ends(id(engine), engine.global_steps > before)
        return result

    patches.replace(engine_class, "step", step)
