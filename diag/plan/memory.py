"""How much memory each strategy takes on a rank: states of the model, and what is alive for a while beside them.

Sources: ZeRO (arXiv 1910.02054, section 3.1) for the states; science.md 4.1 for FSDP2's units: three gathered ones at
most in forward, the gathered, the next and one of gradients in backward. A bound, not a measurement: activations come
on top (diag.plan.activations), and so do the allocator's gaps, NCCL's buffers and the CUDA context.
"""

from __future__ import annotations

from msgspec import Struct

from diag.model.states import ModelStates, Sharding, model_states
from diag.plan.recipe import Recipe
from diag.plan.shape import Size

BUCKET_BYTES = 25 << 20  # DistributedDataParallel's bucket_cap_mb
ZERO_BUCKET = 500_000_000  # elements: DeepSpeed's reduce_bucket_size
_GATHERED_AT_ONCE = 3


class Strategy(Struct, frozen=True):
    """A way of data parallelism. ``keeps``: gathered parameters stay until backward. ``within_host``: the states are
    shared by the GPUs of one host only."""

    name: str
    about: str
    sharding: Sharding
    keeps: bool = False
    within_host: bool = False


ZERO_3 = Strategy("ZeRO-3", "parameters, too: FULL_SHARD, fully_shard", Sharding.PARAMETERS)
HYBRID = Strategy("hybrid", "ZeRO-3 within a host: HYBRID_SHARD, HSDP", Sharding.PARAMETERS, within_host=True)
STRATEGIES = (
    Strategy("DDP", "FSDP's NO_SHARD", Sharding.NONE),
    Strategy("ZeRO-1", "optimizer states are sharded", Sharding.OPTIMIZER),
    Strategy("ZeRO-2", "gradients, too", Sharding.GRADIENTS),
    ZERO_3,
    Strategy("ZeRO-3, kept", "SHARD_GRAD_OP, reshard_after_forward=False", Sharding.PARAMETERS, keeps=True),
    HYBRID,
)


class Need(Struct, frozen=True):
    """Bytes on one rank. ``shards``: ranks that share one copy of the states."""

    strategy: Strategy
    shards: int
    states: ModelStates
    gathered: int  # parameters of units that are whole for a while
    buffers: int  # gradients on their way: buckets, or a unit's

    @property
    def total(self) -> int:
        return self.states.total + self.gathered + self.buffers


def unit_of(size: Size, wrap: str) -> int:
    """Parameters of the largest unit of sharding: "block", "root" (all in one), "linear" (the largest matrix), or so
    many blocks. Of a model of which only the number of parameters is known, a fiftieth stands for a block."""
    if wrap == "root":
        return size.parameters
    shape = size.shape
    if shape is None:
        return -(-size.parameters // 50) * (int(wrap) if wrap.isdecimal() else 1)
    # With the blocks in units of their own, the root's.
    rest = shape.table + shape.head + shape.norm if size.rest is None else size.rest
    if wrap == "linear":
        return max(shape.hidden * shape.ffn, shape.vocab * shape.hidden if rest else 0)
    blocks = int(wrap) if wrap.isdecimal() else 1
    return max(min(blocks, shape.layers) * shape.block, rest)


def need(
    size: Size,
    recipe: Recipe,
    strategy: Strategy,
    ranks: int,
    per_host: int,
    wrap: str = "block",
    replica: int | None = None,
) -> Need:
    """What a rank of ``ranks`` holds, ``per_host`` of which share a host. Optimizer and units as the recipe says.
    ``replica``: the ranks that hybrid sharding cuts one copy over, where that is given."""
    shards = (replica or min(ranks, per_host)) if strategy.within_host else ranks
    states = model_states(size.parameters, strategy.sharding, shards, recipe.each)
    unit = unit_of(size, wrap)
    gathered = buffers = 0
    if ranks > 1 and strategy.sharding == Sharding.NONE:
        buffers = min(BUCKET_BYTES, size.parameters * recipe.gradients)
    elif strategy.sharding == Sharding.PARAMETERS:
        whole = size.parameters * recipe.computed
        gathered = whole if strategy.keeps else min(_GATHERED_AT_ONCE * unit * recipe.computed, whole)
        buffers = unit * (recipe.computed + recipe.reduced)
    elif ranks > 1:
        buffers = ZERO_BUCKET * recipe.reduced  # DeepSpeed takes it whole, however small the model
    return Need(strategy, shards, states, gathered, buffers)


def fewest(size: Size, recipe: Recipe, memory: int, outside: int = 0) -> int | None:
    """The smallest number of GPUs among which all states, shared evenly, fit beside ``outside`` bytes of other peaks:
    a bound, below which nothing that keeps the states on GPUs can work. None where ``outside`` leaves no room."""
    room = memory - outside
    return -(-size.parameters * recipe.total // room) if room > 0 else None
