"""``Strategy``: base class of the strategies of parallelism.

A strategy is one file: its class has its name, the settings for ``--set``, the options that it refuses and why, and how
it wraps a model, trains and saves. Methods import torch, modules do not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...records import BACKWARD, FORWARD
from ...strategies import Facts
from ..checkpoint.folder import DCP, Checkpoint, CheckpointManifest
from ..keys import CHOICE, Key, OptionError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    from ..model import Decoder
    from ..options import TrainerOptions

# -- axes --------------------------------------------------------------------------------------------------------------
#
# The axes of the ranks: pipeline stages, replicas, shards, parts of each matrix. The order is torchtitan's, outermost
# first, so that the ranks that communicate most are neighbours: rank =
# ((stage x replicas + replica) x shards + shard) x parts + part.

PP, DP, DP_REPLICATE, DP_SHARD, TP = "pp", "dp", "dp_replicate", "dp_shard", "tp"


@dataclass(frozen=True)
class Axes:
    """Sizes of the axes. ``replicas`` x ``shards`` ranks read different data."""

    stages: int = 1
    replicas: int = 1
    shards: int = 1
    parts: int = 1

    @classmethod
    def of(cls, world_size: int, *, stages: int = 1, replicas: int = 1, parts: int = 1) -> Axes:
        """The axes of a world; the remaining factor is ``shards``. ValueError if the sizes do not divide it."""
        ranks_per_shard = stages * replicas * parts
        if world_size % ranks_per_shard:
            raise ValueError(f"{world_size} ranks are no multiple of {ranks_per_shard}")
        return cls(stages, replicas, world_size // ranks_per_shard, parts)

    @property
    def data(self) -> int:
        """Ranks that read different batches."""
        return self.replicas * self.shards

    @property
    def model(self) -> int:
        """Ranks that work on one batch together."""
        return self.stages * self.parts

    def data_rank(self, rank: int) -> int:
        return rank // self.parts % self.data

    def shard(self, rank: int) -> int:
        """The number of a rank's shard, equal on ranks that hold the same parameters (replicas)."""
        return rank // self.parts % self.shards * self.parts + rank % self.parts

    def stage(self, rank: int) -> int:
        return rank // (self.parts * self.data)

    def sizes(self) -> dict[str, int]:
        """The axes of the mesh, outermost first. Axes of size 1 are left out, except the data axis."""
        sizes = {PP: self.stages} if self.stages > 1 else {}
        if self.replicas > 1:
            sizes |= {DP_REPLICATE: self.replicas, DP_SHARD: self.shards}
        else:
            sizes[DP] = self.shards
        if self.parts > 1:
            sizes[TP] = self.parts
        return sizes

    def data_axes(self) -> tuple[str, ...]:
        return (DP_REPLICATE, DP_SHARD) if self.replicas > 1 else (DP,)


Phase = Callable[[str], AbstractContextManager[None]]

YES_NO = ("no", "yes")
PLAIN_TENSORS = (
    "its buckets and flat parameters hold plain tensors, and --tp makes each parameter a DTensor. Use --strategy fsdp2"
)


def switch(name: str, default: str, about: str) -> Key:
    return Key(name, CHOICE, default, about, YES_NO)


class Strategy(ABC):
    """One strategy. Created on every rank after the process group; ``build`` is collective.

    ``model`` is set by ``build``: the wrapped model; with a pipeline, a list of this rank's stages.
    """

    facts: ClassVar[Facts]  # what analyses and the recorder know of it too
    about: ClassVar[str]  # one line for `--set list`
    settings: ClassVar[tuple[Key, ...]] = ()  # the keys of --set

    why_not_taken: ClassVar[str] = ""  # the options that ``facts.not_taken`` names
    no_tensor_parallel: ClassVar[str] = ""  # why --tp is refused; "": it is not
    no_pipeline: ClassVar[str] = ""  # why --pp is refused; "": it is not

    @classmethod  # noqa: B027
    def refuse(cls, options: TrainerOptions) -> None:
        """OptionError if the options cannot work with this strategy, on any number of ranks."""

    @classmethod  # noqa: B027
    def refuse_shards(cls, options: TrainerOptions, shards: int) -> None:
        """OptionError if the options cannot work with a sharding group of this size."""

    @classmethod  # noqa: B027
    def refuse_backend(cls, options: TrainerOptions, backend: str) -> None:
        """OptionError if the options cannot work with this backend."""

    model: nn.Module

    def __init__(self, options: TrainerOptions, device: torch.device) -> None:
        import torch.distributed as dist

        self.options, self.device, self.knobs = options, device, options.knobs()
        self.axes = options.axes(dist.get_world_size())
        self.mesh: DeviceMesh = _mesh(self.axes.sizes(), device)

    def build(self) -> list[nn.Module]:
        """Creates the model, ready to train. Returns the blocks that this rank computes, in order."""
        from ..model import build

        decoder = build(self.options.shape(), self.options.seed)
        blocks = list(decoder.blocks.values())
        self.model = self.wrap(decoder)
        return blocks

    @abstractmethod
    def wrap(self, model: Decoder) -> nn.Module:
        """Moves a model, or a stage of one, to its device, and parallelizes it over the ranks of the data axes."""

    def prepare(self, model: Decoder) -> None:
        """Prepares the blocks before sharding: recomputation and compilation."""
        from ..model import NO_RECOMPUTATION

        options = self.options
        for block in model.blocks.values():
            block.recompute = options.checkpoint_policy if options.activation_checkpointing else NO_RECOMPUTATION  # type: ignore[assignment]
            if options.compile:
                block.compile()

    def data_group(self) -> dist.ProcessGroup:
        """The ranks that read different data and hold the same part of the model."""
        names = self.axes.data_axes()
        data = self.mesh[names]
        return (data._flatten(DP) if len(names) > 1 else data).get_group()

    def optimizer(self) -> Optimizer:
        import torch

        return torch.optim.AdamW(self.model.parameters(), lr=self.options.learning_rate)

    def accumulate(self, batches: Iterable[Tensor], phase: Phase) -> Tensor:
        """Forward and backward of a step's micro-batches, (batch, seq + 1) token ids each, recorded in phases.

        Returns their mean loss, on the device; 0 on a rank that computes no loss.
        """
        import torch

        total = torch.zeros((), device=self.device)
        count = self.options.micro_batches
        for number, batch in enumerate(batches):
            with self.micro_step(is_last=number == count - 1):
                with phase(FORWARD), self.forward_context():
                    loss = loss_of(self.model(batch[:, :-1]), batch[:, 1:]) / count
                with phase(BACKWARD):
                    self.backward(loss)
            total += loss.detach()
        return total

    def forward_context(self) -> AbstractContextManager[Any]:
        """The context of forward and loss."""
        return nullcontext()

    def autocast(self) -> AbstractContextManager[Any]:
        """Autocast for models that compute in bf16 with fp32 parameters."""
        import torch

        if self.options.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def micro_step(self, is_last: bool) -> AbstractContextManager[Any]:  # noqa: ARG002
        """The context of one micro-batch's forward and backward: decides whether its gradients are reduced."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    @abstractmethod
    def clip(self, max_norm: float) -> Tensor:
        """Scales the gradients to a norm of at most ``max_norm`` over the whole model; returns the norm before that."""

    @property
    def ranks_with_loss(self) -> int:
        """The number of ranks over which ``accumulate`` spreads the losses."""
        import torch.distributed as dist

        return dist.get_world_size() // self.axes.stages

    @property
    def name(self) -> str:
        """The name in the manifest, one of ``facts.shards``."""
        return self.options.strategy

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The actual setup, for the manifest. Call it after ``build``."""

    def ddp_hook(self) -> tuple[Any, Any] | None:
        """(state, communication hook) for DDP's gradients; None: PyTorch's default."""
        return None

    # -- checkpoints -----------------------------------------------------------------------------------------------

    # The format of its checkpoints. Those of torch.distributed.checkpoint are the same for all strategies and load into
    # any other; a strategy with its own format has the two methods below.
    checkpoint_kind: ClassVar[str] = DCP

    def save_checkpoint(
        self, draft: Path, of_this_rank: dict[str, Any], manifest: CheckpointManifest, keep: int, group: Any
    ) -> tuple[int, str]:
        """Saves and publishes. Returns the bytes that this rank wrote, and why saving failed on some rank; "" if it did
        not."""
        raise NotImplementedError(f"--strategy {self.facts.id} has no checkpoint format of its own")

    def load_checkpoint(self, optimizer: Optimizer, checkpoint: Checkpoint) -> None:
        """Fills model and optimizer. OptionError if the files are invalid."""
        raise NotImplementedError(f"--strategy {self.facts.id} has no checkpoint format of its own")

    @classmethod  # noqa: B027
    def refuse_resume(
        cls, manifest: CheckpointManifest, where: str, options: TrainerOptions, world_size: int | None
    ) -> None:
        """OptionError if a checkpoint of its own kind cannot be resumed; ``where`` begins the message."""

    @classmethod
    def not_resumed(cls, options: TrainerOptions) -> list[str]:  # noqa: ARG003
        """The parts of its state that a checkpoint does not hold, in words."""
        return []

    def close(self) -> None:  # noqa: B027  (most have nothing to end)
        """Ends what the strategy started. Call it before the process group is destroyed."""


def _mesh(sizes: dict[str, int], device: torch.device) -> DeviceMesh:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of (batch, seq, vocab) against (batch, seq), in fp32."""
    from torch.nn import functional

    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def clip_spread_gradients(
    parameters: Iterable[nn.Parameter], max_norm: float, device: torch.device, copies: int = 1
) -> Tensor:
    """As torch.nn.utils.clip_grad_norm_, for gradients that are sharded over the ranks. ``copies``: number of ranks
    that hold the same plain tensor; for a DTensor it follows from its placements.

    Uses one all-reduce over all ranks, for any axes. torch's function has one for each axis, and those of DTensors
    bypass torch.distributed's functions, where the injected faults act.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Partial, Replicate

    shards: list[Tensor] = []
    weights = []
    with torch.no_grad():
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                continue
            if isinstance(gradient, DTensor):
                if any(isinstance(place, Partial) for place in gradient.placements):
                    gradient = parameter.grad = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]
                # Ranks outside the mesh, such as those of other stages, hold other parameters.
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


def refuse_recomputed_layers(options: TrainerOptions) -> None:
    """OptionError if FSDP units lie inside recomputed blocks."""
    if options.wrap == "linear" and options.activation_checkpointing:
        raise OptionError(
            "--activation-checkpointing recomputes whole blocks, and with --wrap linear the units lie inside "
            "them and would be gathered a third time. Use --wrap block"
        )
