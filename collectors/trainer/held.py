"""What model and optimizer hold on this rank, in bytes of distinct storages: shards of DTensors, not the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..records import HeldRecord


def held(model: nn.Module, optimizer: Any, batch: Tensor | None = None) -> HeldRecord:
    """Counted now. Call it where gradients and the optimizer's states are both there: after ``step``, before
    ``zero_grad``. A storage counts once, for the first of the components that has it: gradients that are views of one
    bucket count as the bucket, a shard's padding counts with the shard."""
    seen: set[int] = set()
    parameters = list(model.parameters())
    return HeldRecord(
        parameters=_bytes(parameters, seen),
        gathered=_bytes(_gathered(model), seen),
        gradients=_bytes((p.grad for p in parameters if p.grad is not None), seen),
        optimizer=_bytes(_states(optimizer), seen),
        buffers=_bytes(model.buffers(), seen),
        batch=_bytes([] if batch is None else [batch], seen),
    )


def _bytes(tensors: Iterable[Tensor], seen: set[int]) -> int:
    total = 0
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if local.device.type == "meta":
            continue
        storage = local.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def _gathered(model: nn.Module) -> Iterator[Tensor]:
    """Whole parameters of fully_shard's units that are gathered at this moment; freed ones have an empty storage.

    torch has no public way to them; where its private one is gone, none are found.
    """
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", lambda: None)()
        for group in getattr(state, "_fsdp_param_groups", ()):
            for parameter in getattr(group, "fsdp_params", ()):
                yield from getattr(parameter, "all_gather_outputs", ())


def _states(optimizer: Any) -> Iterator[Tensor]:
    """Also of an optimizer inside (ZeroRedundancyOptimizer keeps its own part in ``optim``), and of what DeepSpeed has
    beside both."""
    for one in (optimizer, getattr(optimizer, "optim", None)):
        yield from _tensors(getattr(one, "state", None))
    yield from _tensors(getattr(optimizer, "flat", list)())


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _tensors(inner)
