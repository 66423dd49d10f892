"""fully_shard: parameters, gradients and optimizer states are sharded over the ranks, and gathered unit by unit.

With ``--tp`` the decoder's matrices are sharded first, as in Megatron, with sequence parallelism between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from ...strategies import FSDP2
from ..keys import INTEGER, Key, OptionError
from .base import (
    TP,
    Strategy,
    clip_spread_gradients,
    refuse_recomputed_layers,
    switch,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

    from ..model import Decoder
    from ..options import TrainerOptions


def sharding_units(model: Decoder, options: TrainerOptions) -> list[list[nn.Module]]:
    """The modules of each unit below the root, in the order of forward. The rest belongs to the root's unit."""
    from torch import nn

    if options.wrap == "root":
        return []
    if options.wrap == "linear":
        return [[module] for module in model.blocks.modules() if isinstance(module, nn.Linear)]
    size = options.blocks_per_unit()
    assert size is not None
    blocks = list(model.blocks.values())
    return [blocks[first : first + size] for first in range(0, len(blocks), size)]


def set_prefetch(root: FSDPModule, units: Sequence[FSDPModule], depth: int) -> None:
    """Makes each unit prefetch the next ``depth`` units: later ones in forward, earlier ones in backward.

    The root is the first in forward; it stays gathered, so backward does not gather it.
    """
    order = [root, *units]
    for index, unit in enumerate(order):
        unit.set_modules_to_forward_prefetch(list(order[index + 1 : index + 1 + depth]))
    for index, unit in enumerate(units):
        unit.set_modules_to_backward_prefetch(list(reversed(units[max(0, index - depth) : index])))
    root.set_modules_to_backward_prefetch(list(reversed(units))[:depth])


class Fsdp2(Strategy):
    facts = FSDP2
    about = "fully_shard: parameters, gradients and optimizer states are sharded"
    settings = (
        Key("replicas", INTEGER, "1", "copies of the sharded model: hybrid sharding (HSDP)", least=1),
        switch("offload", "no", "parameters, gradients and optimizer states in the host's memory"),
        Key("reduce_scatter_buffers", INTEGER, "1", "reduce-scatters in flight before computation waits", least=1),
        switch("separate_reduce_scatter_group", "no", "a separate communicator for reduce-scatters"),
    )

    @classmethod
    def refuse(cls, options: TrainerOptions) -> None:
        layers, blocks = options.shape().layers, options.blocks_per_unit()
        if options.wrap not in ("root", "linear") and blocks is None:
            raise OptionError(f"--wrap {options.wrap} is unknown: use block, root, linear, or a number of blocks")
        if blocks is not None and not 1 <= blocks <= layers:
            raise OptionError(
                f"--wrap {options.wrap}: {options.preset} has {layers} blocks, so give 1 to {layers}, "
                "or root for the whole model as one unit"
            )
        if options.wrap == "root":
            if options.prefetch:
                raise OptionError(
                    f"--wrap root makes the whole model one unit, so --prefetch {options.prefetch} has nothing to "
                    "gather ahead. Use --wrap block"
                )
            if options.reshard_after_forward != "yes":
                raise OptionError(
                    f"--reshard-after-forward {options.reshard_after_forward} has no effect with --wrap root: its only "
                    "unit stays gathered from forward to backward. Use --wrap block"
                )
        refuse_recomputed_layers(options)
        reshard = options.reshard_after_forward
        if reshard not in ("yes", "no"):
            if not reshard.isdecimal():
                raise OptionError(f"--reshard-after-forward {reshard} is unknown: use yes, no, or a number of ranks")
            if int(reshard) <= 1:
                raise OptionError(f"--reshard-after-forward {reshard} keeps everything gathered: use no instead")
        if options.pipeline_parallel > 1 and options.wrap not in ("block", "linear", "root"):
            raise OptionError(f"--wrap {options.wrap}: with --pp a unit is a block, a linear layer, or a stage (root)")

    @classmethod
    def refuse_shards(cls, options: TrainerOptions, shards: int) -> None:
        reshard = options.reshard_after_forward
        if not reshard.isdecimal():
            return
        if int(reshard) == shards:
            raise OptionError(f"--reshard-after-forward {reshard} is all {shards} ranks: use yes instead")
        if shards % int(reshard):
            divisors = [d for d in range(2, shards) if shards % d == 0]
            choice = f"use yes, no or one of {', '.join(map(str, divisors))}" if divisors else "use yes or no"
            raise OptionError(f"--reshard-after-forward {reshard} does not divide {shards} ranks: {choice}")

    @classmethod
    def refuse_backend(cls, options: TrainerOptions, backend: str) -> None:
        if backend == "gloo" and options.knobs().on("separate_reduce_scatter_group"):
            raise OptionError("--set separate_reduce_scatter_group=yes needs NCCL, and this run uses gloo")

    def __init__(self, options: TrainerOptions, device: torch.device) -> None:
        super().__init__(options, device)
        self.units = 0
        self.overlap = "pytorch default"
        self.sharded = self.axes.data > 1 or self.axes.model == 1

    def wrap(self, model: Decoder) -> nn.Module:
        import torch.distributed as dist

        from ..model import materialize

        if self.axes.parts > 1:
            cut_matrices(model, self.mesh[TP])
        self.prepare(model)
        if self.sharded:
            self._shard(model)
        else:
            self.overlap = "nothing is sharded: one data-parallel rank"
        if model.shape.deferred:
            materialize(model, self._home(), self.options.seed, self.axes.shard(dist.get_rank()))
        elif not self.sharded:
            model.to(self.device)
        return model

    def _home(self) -> torch.device:
        """The device that keeps parameters while they are not used."""
        import torch

        return torch.device("cpu") if self.knobs.on("offload") else self.device

    def _shard(self, model: Decoder) -> None:
        import torch
        from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

        options, mesh = self.options, self.mesh[self.axes.data_axes()]
        if self.device.type == "cpu" and mesh.size() > 1 and not hasattr(torch.cpu.Stream, "record_event"):
            raise OptionError(
                f"fully_shard of torch {torch.__version__} trains on accelerators only. Use --strategy fsdp1"
            )
        reshard: bool | int = options.reshard_after_forward == "yes"
        if options.reshard_after_forward.isdecimal():
            reshard = int(options.reshard_after_forward)
        shared: dict[str, Any] = {
            "mesh": mesh,
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
            heads.append(cast("FSDPModule", unit[0]))  # the modules of a unit share one state
        # By default the root stays gathered after forward, because backward begins with it. None, which says so, is not
        # known to torch 2.6.
        fully_shard(model, **shared)
        self.units += len(heads) + 1
        root = cast("FSDPModule", model)
        if options.prefetch:
            set_prefetch(root, heads, options.prefetch)
        self._reduce_scatters(root)
        self.overlap = self._enable_overlap(root)

    def _precision(self) -> MixedPrecisionPolicy:
        import torch
        from torch.distributed.fsdp import MixedPrecisionPolicy

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
        """Enables overlap of all-gathers with computation; returns whether they overlap, in words for the manifest.

        On an accelerator, streams overlap them. On the CPU fully_shard waits inside each all-gather, so that
        prefetching changes only their order; only a private method issues them asynchronously.
        """
        if self.device.type != "cpu":
            return "streams"
        if not self.options.prefetch:
            return "none: on the CPU all-gathers are synchronous without prefetch"
        enable = getattr(root, "_set_unshard_async_op", None)
        if enable is None:
            import torch

            return f"unavailable: torch {torch.__version__} has no _set_unshard_async_op, prefetch only reorders"
        enable(True)
        return "asynchronous all-gathers"

    def forward_context(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.sharded else self.autocast()

    @contextmanager
    def micro_step(self, is_last: bool) -> Iterator[None]:
        if self.sharded:
            root = cast("FSDPModule", self.model)
            root.set_is_last_backward(is_last)
            root.set_requires_gradient_sync(is_last or self.options.grad_sync == "every")
        yield

    def clip(self, max_norm: float) -> Tensor:
        return clip_spread_gradients(self.model.parameters(), max_norm, self.device)

    def describe(self) -> dict[str, Any]:
        options = self.options
        return {
            "name": self.facts.id,
            "wrap": options.wrap,
            "units": self.units,
            "prefetch": options.prefetch,
            "reshard_after_forward": options.reshard_after_forward,
            "grad_sync": options.grad_sync,
            "all_gather_overlap": self.overlap,
            **dict(self.knobs.values),
        }


def _since_2_13(root: FSDPModule, method: str, *arguments: int) -> None:
    """Calls a setting that PyTorch has since 2.13. OptionError in older versions."""
    setting = getattr(root, method, None)
    if setting is None:
        import torch

        raise OptionError(f"torch {torch.__version__} has no {method}: it came with 2.13")
    setting(*arguments)


def cut_matrices(model: Decoder, mesh: DeviceMesh) -> None:
    """Makes the parameters of a decoder, or of a stage of one, DTensors over the ranks of ``mesh``, in place.

    Each block gathers the sequence twice and scatters it twice in forward, and as often in backward. The ranks of the
    mesh read the same data, so their losses are equal. Input and output of a middle stage are this rank's part of the
    sequence: (batch, seq / ranks, dim).
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        ParallelStyle,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    cut_sequence = Shard(1)

    def gathered(inputs: int) -> PrepareModuleInput:
        """Gathers the sequence of the first input; further ones, such as the rotary table, are unchanged."""
        rest = (None,) * (inputs - 1)
        return PrepareModuleInput(
            input_layouts=(cut_sequence, *rest), desired_input_layouts=(Replicate(), *rest), use_local_output=True
        )

    outer: dict[str, ParallelStyle] = {}
    if model.embedding is not None:
        outer["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=cut_sequence)
    if model.norm is not None:
        outer["norm"] = SequenceParallel()
    if model.head is not None:
        outer["head"] = ColwiseParallel(input_layouts=cut_sequence, output_layouts=Replicate())
    if outer:
        parallelize_module(model, mesh, outer)
    for block in model.blocks.values():
        parallelize_module(
            block,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": gathered(2),
                "attention.query": ColwiseParallel(),
                "attention.key": ColwiseParallel(),
                "attention.value": ColwiseParallel(),
                "attention.output": RowwiseParallel(output_layouts=cut_sequence),
                "feed_forward_norm": SequenceParallel(),
                "feed_forward": gathered(1),
                "feed_forward.gate": ColwiseParallel(),
                "feed_forward.up": ColwiseParallel(),
                "feed_forward.down": RowwiseParallel(output_layouts=cut_sequence),
            },
        )
