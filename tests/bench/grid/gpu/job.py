"""What a simulated GPU job is: its recipe, its model, its machine, and the faults that are planted in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tests.bench.grid.gpu.engine import MS, US
from tests.copies import replace


class Recipe(StrEnum):
    DDP = "ddp"
    FSDP2 = "fsdp2"
    HSDP = "hsdp"
    DEEPSPEED = "deepspeed"  # ZeRO-3 with its states on NVMe


REPLICATED_OR_SHARDED = (Recipe.DDP, Recipe.FSDP2, Recipe.HSDP)


class Planted(StrEnum):
    """What can be planted. ``amount`` of the `Fault` is in nanoseconds a step unless it says otherwise."""

    DATA = "data"  # the loader takes longer
    NETWORK = "network"  # every transfer takes ``amount`` thousandths longer
    TAIL = "tail"  # the rank is done with each large collective so much later than the others
    FORWARD = "forward"  # the rank's kernels of the forward take so much longer
    BACKWARD = "backward"
    TINY = "tiny"  # the host issues many small kernels, each with a long way through Python
    ITEM = "item"  # a number is read back after every block, and the host then takes its time
    CHECKPOINT = "checkpoint"
    GC = "gc"
    COPY = "copy"  # the batch comes from pageable memory
    ALLOCATOR = "allocator"
    REDUCE = "reduce"  # every reduce-scatter takes ``amount`` thousandths longer


BETWEEN = "reduce_scatter between units"  # the last one of a backward has nothing beside it, whatever one does


@dataclass(frozen=True)
class Fault:
    """``ranks``: () for all. ``every``: only in one step of so many. ``rotate``: the one rank changes with the step."""

    kind: Planted
    amount: int
    ranks: tuple[int, ...] = ()
    every: int = 1
    rotate: bool = False

    def at(self, step: int, rank: int, world: int) -> int:
        """The amount that strikes this rank in this step."""
        if step % self.every:
            return 0
        if self.rotate:
            return self.amount if step % world == rank else 0
        return self.amount if not self.ranks or rank in self.ranks else 0


@dataclass(frozen=True)
class Recorded:
    """What the collectors write down beside the traces. ``throttled``: ranks whose device says that it is too hot.
    ``mfu``: what the model's arithmetic comes to, None where nobody counted it. ``longest``: whether the rank that is
    slow in a step has the most tokens in it."""

    throttled: tuple[int, ...] = ()
    mfu: float | None = None
    longest: bool = False
    memory_free: float = 0.6  # of the device's


@dataclass(frozen=True)
class Host:
    """Where a rank's parameters and optimizer states are kept. ``adam_ns``: of the processor for one parameter."""

    nvme_gb_s: float = 12.0
    pcie_gb_s: float = 50.0
    adam_ns: float = 0.5


@dataclass(frozen=True)
class Job:
    """Durations in nanoseconds, of one rank. ``wrap``: what is one unit of sharding. ``prefetch``: "implicit" as
    PyTorch does it; "late": a unit is gathered only when the device is done with the one before; "late-backward": so in
    the backward; "sync": the host waits for the device before it asks for the next unit. ``micro_batches`` a step;
    ``reduce_every``: gradients are reduced in each of them. ``reduce_width``: bytes of a gradient as it is reduced."""

    recipe: Recipe = Recipe.FSDP2
    world: int = 4
    per_node: int = 8
    steps: int = 5
    blocks: int = 6
    dim: int = 2048
    block_ns: int = 4 * MS  # forward of a block; its backward takes twice as long
    head_ns: int = 2 * MS
    optimizer_ns: int = 3 * MS
    reshard: bool = True
    wrap: str = "block"  # or "linear", "root"
    prefetch: str = "implicit"
    bucket_blocks: int = 2  # DDP: blocks whose gradients are reduced together
    alpha_ns: int = 40 * US
    gb_s: float = 100.0  # bus bandwidth of a ring through all ranks
    data_ns: int = 400 * US
    copy_ns: int = 60 * US
    launch_ns: int = 12 * US
    latency_ns: int = 4 * US
    queue: int = 256
    read_loss: bool = True  # the host waits for the loss in every step
    clip: bool = True  # gradients are clipped by a norm that all ranks add up
    numbered: bool = True  # whether the profiler writes the library's numbers of collectives
    own_ranges: bool = False  # diag's own ranges around steps and phases, as well as torch's
    jitter: float = 0.015
    seed: int = 0
    micro_batches: int = 1
    reduce_every: bool = True
    reduce_width: int = 2
    compressed: bool = False  # DDP: gradients are fp32, and the bf16 hook casts them for the reduction
    own_reduce_group: bool = False  # FSDP2: reduce-scatters have a communicator of their own
    host: Host | None = None  # DeepSpeed: what is offloaded to
    free_ops: frozenset[str] = frozenset()  # collectives that take no time, to measure what they cost
    recorded: Recorded | None = None  # None: traces are all there is
    faults: tuple[Fault, ...] = ()
    offset_ns: tuple[int, ...] = ()  # what each node's clock shows more than the true one
    drift_ppm: tuple[float, ...] = ()

    @property
    def nodes(self) -> int:
        return -(-self.world // self.per_node)

    @property
    def block_params(self) -> int:
        return 12 * self.dim * self.dim

    @property
    def root_params(self) -> int:
        """The two embeddings, of a vocabulary that is small beside the blocks, and the last norm."""
        return 8 * 1024 * self.dim + self.dim

    def amount(self, kind: Planted, step: int, rank: int) -> int:
        return sum(f.at(step, rank, self.world) for f in self.faults if f.kind == kind)

    def without(self, *kinds: Planted) -> Job:
        return replace(self, faults=tuple(f for f in self.faults if f.kind not in kinds))
