"""FullyShardedDataParallel: the first FSDP, deprecated, and still in many scripts. Units are flat parameters."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ...strategies import FSDP1
from ..keys import CHOICE, INTEGER, Key, OptionError
from .base import PLAIN_TENSORS, Strategy, refuse_recomputed_layers, switch

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..model import Decoder
    from ..options import TrainerOptions


class Fsdp1(Strategy):
    facts = FSDP1
    about = "FullyShardedDataParallel, the deprecated first FSDP"
    settings = (
        Key(
            "sharding", CHOICE, "full_shard", "ShardingStrategy",
            ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard"),
        ),
        Key("replicas", INTEGER, "1", "copies of the sharded model, for hybrid_shard", least=1),
        Key("backward_prefetch", CHOICE, "pre", "gather the next unit before or after this one's gradients",
            ("pre", "post", "none")),
        switch("forward_prefetch", "no", "gather the next unit before this one computes"),
        switch("limit_all_gathers", "yes", "block the CPU thread while two all-gathers are in flight; saves memory"),
        switch("use_orig_params", "yes", "use the module's original parameters, not only the flat ones"),
    )  # fmt: skip
    why_not_taken = (
        "they are options of fully_shard. For FSDP1, use --set sharding=shard_grad_op (not resharded after forward), "
        "--set forward_prefetch=yes, --set backward_prefetch=pre"
    )
    no_tensor_parallel = PLAIN_TENSORS
    no_pipeline = (
        "PyTorch's pipeline schedules can delay the gradient reductions of DDP and fully_shard only. Use --strategy "
        "fsdp2"
    )

    @classmethod
    def refuse(cls, options: TrainerOptions) -> None:
        knobs = options.knobs()
        hybrid = knobs.text("sharding") == "hybrid_shard"
        if hybrid and knobs.integer("replicas") < 2:
            raise OptionError(
                "--set sharding=hybrid_shard needs --set replicas=N, 2 or more: without it FSDP1 makes each host a "
                "replica, and on one host that is full_shard, or each rank trains alone"
            )
        if not hybrid and knobs.integer("replicas") > 1:
            raise OptionError("--set replicas is for --set sharding=hybrid_shard: other modes shard over all ranks")
        if options.wrap not in ("block", "root", "linear"):
            raise OptionError(f"--wrap {options.wrap}: a unit of FSDP1 is one module. Use block, root or linear")
        if not knobs.on("use_orig_params") and options.compile:
            raise OptionError("--compile needs --set use_orig_params=yes: flat parameters break the compiled graph")
        refuse_recomputed_layers(options)

    def wrap(self, model: Decoder) -> nn.Module:
        import torch
        from torch import nn
        from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        from ..model import Block, materialize

        options, knobs = self.options, self.knobs
        self.prepare(model)
        if model.shape.deferred:
            materialize(model, self.device, options.seed)
        precision = None
        if options.precision == "bf16":
            reduced = torch.bfloat16 if options.reduce_dtype == "bf16" else torch.float32
            precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=reduced, cast_forward_inputs=False)
        hybrid = knobs.text("sharding") == "hybrid_shard"
        prefetch = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, "none": None}
        units: dict[str, set[type[nn.Module]]] = {"block": {Block}, "linear": {nn.Linear}}
        return FullyShardedDataParallel(
            model,
            process_group=None if hybrid else self.data_group(),
            # The mesh defines the ranks of a replica. Without one FSDP1 takes those of a host, and reports no error if
            # that is wrong.
            device_mesh=self.mesh if hybrid else None,
            sharding_strategy=ShardingStrategy[knobs.text("sharding").upper()],
            auto_wrap_policy=ModuleWrapPolicy(units[options.wrap]) if options.wrap in units else None,
            backward_prefetch=prefetch[knobs.text("backward_prefetch")],
            forward_prefetch=knobs.on("forward_prefetch"),
            limit_all_gathers=knobs.on("limit_all_gathers"),
            use_orig_params=knobs.on("use_orig_params"),
            mixed_precision=precision,
            device_id=self.device,  # without it FSDP1 asks for an accelerator
        )

    @property
    def name(self) -> str:
        return "fsdp1-no_shard" if self.knobs.text("sharding") == "no_shard" else self.facts.id

    def micro_step(self, is_last: bool) -> AbstractContextManager[Any]:
        model: Any = self.model
        return nullcontext() if is_last or self.options.grad_sync == "every" else model.no_sync()

    def clip(self, max_norm: float) -> Tensor:
        model: Any = self.model
        norm: Tensor = model.clip_grad_norm_(max_norm)
        return norm

    def describe(self) -> dict[str, Any]:
        options = self.options
        return {"name": self.facts.id, "wrap": options.wrap, "grad_sync": options.grad_sync, **dict(self.knobs.values)}
