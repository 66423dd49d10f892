"""fully_shard: parameters, gradients and optimizer state cut over the ranks, gathered unit by unit when used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from ..model import Decoder, materialize
from ..options import TrainerOptions


def sharding_units(model: Decoder, options: TrainerOptions) -> list[list[nn.Module]]:
    """The modules of each unit below the root, in the order of forward. What they leave belongs to the root's unit."""
    if options.wrap == "root":
        return []
    if options.wrap == "linear":
        return [[module] for module in model.blocks.modules() if isinstance(module, nn.Linear)]
    size = options.blocks_per_unit()
    assert size is not None
    blocks = list(model.blocks)
    return [blocks[first : first + size] for first in range(0, len(blocks), size)]


def set_prefetch(root: FSDPModule, units: Sequence[FSDPModule], depth: int) -> None:
    """Each unit gathers the next ``depth`` units: later ones in forward, earlier ones in backward.

    The root is the first in forward; it stays gathered, so backward has nothing to fetch for it.
    """
    order = [root, *units]
    for place, unit in enumerate(order):
        unit.set_modules_to_forward_prefetch(list(order[place + 1 : place + 1 + depth]))
    for place, unit in enumerate(units):
        unit.set_modules_to_backward_prefetch(list(reversed(units[max(0, place - depth) : place])))
    root.set_modules_to_backward_prefetch(list(reversed(units))[:depth])


class Fsdp2Strategy:
    def __init__(self, options: TrainerOptions, device: torch.device) -> None:
        self.options = options
        self.device = device
        self.mesh: DeviceMesh | None = None
        self.units = 0
        self.overlap = "pytorch default"

    def wrap(self, model: Decoder) -> nn.Module:
        options = self.options
        for block in model.blocks:
            block.recompute = options.activation_checkpointing  # type: ignore[assignment]
        self.mesh = init_device_mesh(self.device.type, (dist.get_world_size(),), mesh_dim_names=("dp",))
        policy = MixedPrecisionPolicy()
        if options.precision == "bf16":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        reshard: bool | int = options.reshard_after_forward == "yes"
        if options.reshard_after_forward.isdecimal():
            reshard = int(options.reshard_after_forward)
        heads: list[FSDPModule] = []
        for unit in sharding_units(model, options):
            # A unit of one module is passed as itself: torch then names it by its own name in traces.
            target: Any = unit if len(unit) > 1 else unit[0]
            fully_shard(target, mesh=self.mesh, mp_policy=policy, reshard_after_forward=reshard)
            heads.append(cast(FSDPModule, unit[0]))  # the modules of a unit share one state
        # None: the root stays gathered after forward, because backward begins with it.
        fully_shard(model, mesh=self.mesh, mp_policy=policy, reshard_after_forward=None)
        self.units = len(heads) + 1
        root = cast(FSDPModule, model)
        if options.prefetch:
            set_prefetch(root, heads, options.prefetch)
        self.overlap = self._enable_overlap(root)
        if model.shape.deferred:
            materialize(model, self.device, options.seed, shard=dist.get_rank())
        return model

    def _enable_overlap(self, root: FSDPModule) -> str:
        """Whether all-gathers can overlap with computation, in words for the manifest.

        On an accelerator, streams overlap them. On the CPU fully_shard waits inside each all-gather, so that
        prefetching changes only their order; the one way to issue them asynchronously is a private method.
        """
        if self.device.type != "cpu":
            return "streams"
        if not self.options.prefetch:
            return "none: on the CPU all-gathers are synchronous without prefetch"
        enable = getattr(root, "_set_unshard_async_op", None)
        if enable is None:
            return f"unavailable: torch {torch.__version__} has no _set_unshard_async_op, prefetch only reorders"
        enable(True)
        return "asynchronous all-gathers"

    def forward_context(self) -> AbstractContextManager[Any]:
        return nullcontext()

    @contextmanager
    def micro_step(self, model: nn.Module, is_last: bool) -> Iterator[None]:
        root = cast(FSDPModule, model)
        root.set_is_last_backward(is_last)
        root.set_requires_gradient_sync(is_last or self.options.grad_sync == "every")
        yield

    @torch.no_grad()
    def clip(self, model: nn.Module, max_norm: float) -> Tensor:
        """As torch.nn.utils.clip_grad_norm_, whose reduction over DTensors never passes torch.distributed's functions,
        where the collectors and the injected faults see it."""
        assert self.mesh is not None
        shards = [cast(DTensor, p.grad).to_local() for p in model.parameters() if p.grad is not None]
        square = torch.stack(list(torch._foreach_norm(shards))).square().sum()
        dist.all_reduce(square, group=self.mesh.get_group())
        norm = square.sqrt()
        torch._foreach_mul_(shards, (max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def describe(self) -> dict[str, Any]:
        options = self.options
        return {
            "name": "fsdp2",
            "wrap": options.wrap,
            "units": self.units,
            "prefetch": options.prefetch,
            "reshard_after_forward": options.reshard_after_forward,
            "grad_sync": options.grad_sync,
            "all_gather_overlap": self.overlap,
        }
