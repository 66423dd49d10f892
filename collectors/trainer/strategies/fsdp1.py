"""FullyShardedDataParallel: the first FSDP, deprecated, and still in many scripts. Units are flat parameters."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from ..model import Block, Decoder, materialize
from .base import Strategy

_PREFETCH = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, "none": None}
_UNITS: dict[str, set[type[nn.Module]]] = {"block": {Block}, "linear": {nn.Linear}}


class Fsdp1Strategy(Strategy):
    def wrap(self, model: Decoder) -> nn.Module:
        options, knobs = self.options, self.knobs
        self.prepare(model)
        if model.shape.deferred:
            materialize(model, self.device, options.seed)
        precision = None
        if options.precision == "bf16":
            reduced = torch.bfloat16 if options.reduce_dtype == "bf16" else torch.float32
            precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=reduced, cast_forward_inputs=False)
        hybrid = knobs.text("sharding") == "hybrid_shard"
        units = _UNITS.get(options.wrap)
        return FullyShardedDataParallel(
            model,
            process_group=None if hybrid else self.data_group(),
            # A mesh says which ranks make up a replica. Without one FSDP1 asks the host, and falls silent when it errs.
            device_mesh=self.mesh if hybrid else None,
            sharding_strategy=ShardingStrategy[knobs.text("sharding").upper()],
            auto_wrap_policy=ModuleWrapPolicy(units) if units is not None else None,
            backward_prefetch=_PREFETCH[knobs.text("backward_prefetch")],
            forward_prefetch=knobs.on("forward_prefetch"),
            limit_all_gathers=knobs.on("limit_all_gathers"),
            use_orig_params=knobs.on("use_orig_params"),
            mixed_precision=precision,
            device_id=self.device,  # without it FSDP1 asks for an accelerator
        )

    @property
    def name(self) -> str:
        return "fsdp1-no_shard" if self.knobs.text("sharding") == "no_shard" else "fsdp1"

    def micro_step(self, is_last: bool) -> AbstractContextManager[Any]:
        assert isinstance(self.model, FullyShardedDataParallel)
        if is_last or self.options.grad_sync == "every":
            return nullcontext()
        return self.model.no_sync()

    def clip(self, max_norm: float) -> Tensor:
        assert isinstance(self.model, FullyShardedDataParallel)
        return self.model.clip_grad_norm_(max_norm)

    def describe(self) -> dict[str, Any]:
        options = self.options
        return {"name": "fsdp1", "wrap": options.wrap, "grad_sync": options.grad_sync, **dict(self.knobs.values)}
