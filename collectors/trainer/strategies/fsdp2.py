"""fully_shard: parameters, gradients and optimizer state cut over the ranks, gathered unit by unit when used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from ..axes import TP
from ..model import Decoder, materialize
from ..options import OptionError, TrainerOptions
from .base import Strategy
from .clipping import clip_spread_gradients
from .tensor_parallel import cut_matrices


def sharding_units(model: Decoder, options: TrainerOptions) -> list[list[nn.Module]]:
    """The modules of each unit below the root, in the order of forward. What they leave belongs to the root's unit."""
    if options.wrap == "root":
        return []
    if options.wrap == "linear":
        return [[module] for module in model.blocks.modules() if isinstance(module, nn.Linear)]
    size = options.blocks_per_unit()
    assert size is not None
    blocks = list(model.blocks.values())
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


class Fsdp2Strategy(Strategy):
    def __init__(self, options: TrainerOptions, device: torch.device) -> None:
        super().__init__(options, device)
        self.units = 0
        self.overlap = "pytorch default"
        self.shards = self.axes.data > 1 or self.axes.model == 1

    def wrap(self, model: Decoder) -> nn.Module:
        if self.axes.parts > 1:
            cut_matrices(model, self.mesh[TP])
        self.prepare(model)
        if self.shards:
            self._shard(model)
        else:
            self.overlap = "nothing is sharded: one data-parallel rank"
        if model.shape.deferred:
            materialize(model, self._home(), self.options.seed, self.axes.shard(dist.get_rank()))
        elif not self.shards:
            model.to(self.device)
        return model

    def _home(self) -> torch.device:
        """Where parameters are when they are not used."""
        return torch.device("cpu") if self.knobs.on("offload") else self.device

    def _shard(self, model: Decoder) -> None:
        options = self.options
        reshard: bool | int = options.reshard_after_forward == "yes"
        if options.reshard_after_forward.isdecimal():
            reshard = int(options.reshard_after_forward)
        shared: dict[str, Any] = {
            "mesh": self.mesh[self.axes.data_axes()],
            "mp_policy": self._precision(),
            # Page-locked memory is for copies to an accelerator.
            "offload_policy": CPUOffloadPolicy(pin_memory=self.device.type != "cpu")
            if self.knobs.on("offload")
            else OffloadPolicy(),
        }
        heads: list[FSDPModule] = []
        for unit in sharding_units(model, options):
            # A unit of one module is passed as itself: torch then names it by its own name in traces.
            target: Any = unit if len(unit) > 1 else unit[0]
            fully_shard(target, reshard_after_forward=reshard, **shared)
            heads.append(cast(FSDPModule, unit[0]))  # the modules of a unit share one state
        # None: the root stays gathered after forward, because backward begins with it.
        fully_shard(model, reshard_after_forward=None, **shared)
        self.units += len(heads) + 1
        root = cast(FSDPModule, model)
        if options.prefetch:
            set_prefetch(root, heads, options.prefetch)
        self._reduce_scatters(root)
        self.overlap = self._enable_overlap(root)

    def _precision(self) -> MixedPrecisionPolicy:
        if self.options.precision != "bf16":
            return MixedPrecisionPolicy()
        reduced = torch.bfloat16 if self.options.reduce_dtype == "bf16" else torch.float32
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)

    def _reduce_scatters(self, root: FSDPModule) -> None:
        if (buffers := self.knobs.integer("reduce_scatter_buffers")) > 1:
            _since_2_13(root, "set_reduce_scatter_max_input_buffers", buffers)
        if self.knobs.on("separate_reduce_scatter_group"):
            _since_2_13(root, "set_separate_reduce_scatter_group")

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
        return nullcontext() if self.shards else self.autocast()

    @contextmanager
    def micro_step(self, is_last: bool) -> Iterator[None]:
        if self.shards:
            root = cast(FSDPModule, self.model)
            root.set_is_last_backward(is_last)
            root.set_requires_gradient_sync(is_last or self.options.grad_sync == "every")
        yield

    def clip(self, max_norm: float) -> Tensor:
        return clip_spread_gradients(self.model.parameters(), max_norm, self.device)

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
            **dict(self.knobs.values),
        }


def _since_2_13(root: FSDPModule, method: str, *arguments: int) -> None:
    """Calls a setting that PyTorch has had since 2.13. OptionError where it has none."""
    setting = getattr(root, method, None)
    if setting is None:
        raise OptionError(f"torch {torch.__version__} has no {method}: it came with 2.13")
    setting(*arguments)
