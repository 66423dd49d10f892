"""The norm of gradients that are spread over ranks, and their scaling."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate


@torch.no_grad()
def clip_spread_gradients(
    parameters: Iterable[nn.Parameter], max_norm: float, device: torch.device, copies: int = 1
) -> Tensor:
    """As torch.nn.utils.clip_grad_norm_, for gradients of which each rank holds a part. ``copies``: ranks that hold the
    same plain tensor; of a DTensor its placements tell.

    One all-reduce over all ranks, whatever the axes: torch's own is one for each axis, and those of DTensors never pass
    torch.distributed's functions, where the injected faults act.
    """
    shards, weights = [], []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if isinstance(gradient, DTensor):
            if any(isinstance(place, Partial) for place in gradient.placements):
                gradient = parameter.grad = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]
            # Ranks outside the mesh, as those of other stages, hold other parameters.
            sizes = zip(gradient.placements, gradient.device_mesh.shape, strict=True)
            held = prod(size for place, size in sizes if isinstance(place, Replicate))
            shards.append(gradient.to_local())
        else:
            held = copies
            shards.append(gradient)
        weights.append(1.0 / held)
    squares = torch.stack(list(torch._foreach_norm(shards))).square()
    square = (squares * torch.tensor(weights, dtype=squares.dtype, device=squares.device)).sum().to(device)
    dist.all_reduce(square)
    norm = square.sqrt()
    torch._foreach_mul_(shards, (max_norm / (norm + 1e-6)).clamp(max=1.0).to(shards[0].device))
    return norm
