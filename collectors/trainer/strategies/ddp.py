"""DistributedDataParallel: every rank holds the whole model, and gradients are averaged in buckets during backward."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from ...strategies import DDP
from ..keys import CHOICE, INTEGER, NUMBER, Key, OptionError
from .base import PLAIN_TENSORS, Strategy, clip_spread_gradients, switch

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor, nn

    from ..model import Decoder
    from ..options import TrainerOptions


class Replicated(Strategy):
    """The common part of DDP and the strategies that build on it."""

    settings: ClassVar[tuple[Key, ...]] = (
        Key("bucket_mb", NUMBER, "25", "gradients reduced together, in MiB", least=0.001),
        switch("static_graph", "no", "the same parameters are used in every step (DDP's static_graph)"),
        switch("gradient_as_bucket_view", "yes", "gradients are views of the buckets, which saves a copy"),
        switch("find_unused_parameters", "no", "search for unused parameters in every forward"),
    )
    no_tensor_parallel = PLAIN_TENSORS

    @classmethod
    def refuse(cls, options: TrainerOptions) -> None:
        knobs = options.knobs()
        if knobs.on("static_graph") and knobs.on("find_unused_parameters"):
            raise OptionError(
                "--set static_graph=yes means that every step uses the same parameters, and "
                "find_unused_parameters=yes searches for unused ones in every step: use one of the two"
            )
        if knobs.on("static_graph") and options.micro_batches > 1 and options.grad_sync == "last":
            raise OptionError(
                "--set static_graph=yes expects every backward to reduce gradients, and with --micro-batches "
                f"{options.micro_batches} only the last does: use --grad-sync every, or drop static_graph"
            )
        if options.precision == options.reduce_dtype == "bf16":
            raise OptionError(
                f"--reduce-dtype bf16: under --strategy {cls.facts.id} gradients are fp32; compress them with "
                "--strategy ddp --set comm_hook=bf16"
            )

    def wrap(self, model: Decoder) -> nn.Module:
        from torch.nn.parallel import DistributedDataParallel

        from ...accelerator import accelerator_of
        from ..model import materialize

        self.prepare(model)
        if model.shape.deferred:
            materialize(model, self.device, self.options.seed)
        else:
            model.to(self.device)
        if self.axes.data == 1 and self.axes.model > 1:
            return model  # there is no other rank to average with
        knobs = self.knobs
        return DistributedDataParallel(
            model,
            device_ids=[self.device.index] if accelerator_of(self.device) is not None else None,
            process_group=self.data_group(),
            bucket_cap_mb=knobs.number("bucket_mb"),
            static_graph=knobs.on("static_graph"),
            gradient_as_bucket_view=knobs.on("gradient_as_bucket_view"),
            find_unused_parameters=knobs.on("find_unused_parameters"),
        )

    def forward_context(self) -> AbstractContextManager[Any]:
        return self.autocast()

    def micro_step(self, is_last: bool) -> AbstractContextManager[Any]:
        from torch.nn.parallel import DistributedDataParallel

        if is_last or self.options.grad_sync == "every" or not isinstance(self.model, DistributedDataParallel):
            return nullcontext()
        return self.model.no_sync()

    def clip(self, max_norm: float) -> Tensor:
        from torch.nn.utils import clip_grad_norm_

        if self.axes.stages == 1:  # gradients are equal on all ranks
            return clip_grad_norm_(self.model.parameters(), max_norm)
        return clip_spread_gradients(self.model.parameters(), max_norm, self.device, copies=self.axes.data)

    def describe(self) -> dict[str, Any]:
        return {"name": self.facts.id, "grad_sync": self.options.grad_sync, **dict(self.knobs.values)}


class Ddp(Replicated):
    facts = DDP
    about = "DistributedDataParallel: every rank holds the whole model"
    settings: ClassVar[tuple[Key, ...]] = (
        *Replicated.settings,
        Key(
            "comm_hook",
            CHOICE,
            "none",
            "communication hook that compresses gradients",
            ("none", "fp16", "bf16", "powersgd"),
        ),
        Key("powersgd_rank", INTEGER, "2", "rank of PowerSGD's approximation", least=1),
    )
    why_not_taken = (
        "every rank keeps the whole model, so nothing is sharded or gathered. Drop it, or use --strategy fsdp2"
    )

    @classmethod
    def refuse(cls, options: TrainerOptions) -> None:
        super().refuse(options)
        if options.pipeline_parallel > 1 and options.knobs().on("static_graph"):
            raise OptionError(
                "--set static_graph=yes cannot use --pp: the schedule runs backward without DDP's forward"
            )

    @classmethod
    def refuse_backend(cls, options: TrainerOptions, backend: str) -> None:
        if backend == "gloo" and options.knobs().text("comm_hook") == "bf16":
            raise OptionError(
                "--set comm_hook=bf16 needs NCCL: PyTorch's bf16 hook does not support gloo. Use fp16 or powersgd, or "
                "run on "
                "GPUs"
            )

    def ddp_hook(self) -> tuple[Any, Any] | None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        group: dist.ProcessGroup = self.data_group()
        match self.knobs.text("comm_hook"):
            case "fp16":
                return group, default_hooks.fp16_compress_hook
            case "bf16":
                return group, default_hooks.bf16_compress_hook
            case "powersgd":
                rank = self.knobs.integer("powersgd_rank")
                state = powerSGD_hook.PowerSGDState(
                    group, matrix_approximation_rank=rank, start_powerSGD_iter=2, use_error_feedback=True
                )
                return state, powerSGD_hook.powerSGD_hook
        return None

    @classmethod
    def not_resumed(cls, options: TrainerOptions) -> list[str]:
        if options.knobs().text("comm_hook") != "powersgd":
            return []
        return ["PowerSGD restarts with empty error feedback"]
