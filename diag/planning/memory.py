"""Memory of each strategy on a rank: model states and temporary buffers.

Sources: ZeRO (arXiv 1910.02054, section 3.1) for the states; torch 2.13's source for FSDP2's units: at most three
gathered in forward; in backward the current one, the next one and one of gradients. A bound, not a measurement:
activations come on top (``activations``, below), and so do fragmentation, NCCL's buffers and the CUDA context.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from diag.errors import DiagError
from diag.model.states import ModelStates, Sharding, model_states
from diag.planning.policy import PLANNING

from .cluster import Cluster, Topology
from .shape import Recipe, Shape, Size
from .step_memory import Kernels, Types, block_ops, kept_of_block

# -- activations -------------------------------------------------------------------------------------------------------
#
# Activations that forward saves for backward, by formula: bytes of one rank and one micro-batch.
#
# Counted tensor by tensor for a pre-norm decoder whose attention does not save scores (FlashAttention, SDPA), without
# dropout. Per token and block: inputs and outputs of both norms, queries, keys and values (queries and keys twice
# where they have norms), attention's output, the MLP's hidden layer before and after its activation function; with a
# gate, also its other factor and the product. Latent attention also keeps inputs and outputs of the norms of its two
# vectors, whole on each rank of tensor parallelism as in torchtitan.
# Korthikanti et al. (arXiv 2205.05198, equation 1) count the same for GPT with dropout: 34 x tokens x hidden in 16
# bits, and 5 x heads x length^2 more if scores are saved.


class Checkpointing(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"  # everything except matrix products and attention is recomputed
    FULL = "full"  # only the input of each block is saved


class Activations(Struct, frozen=True):
    """Bytes. ``blocks``: saved until backward; ``working``: live at once in the block that is recomputed; 0 without
    recomputation; ``logits``: of the last layer and its loss, in the computed type and in fp32; ``loss``: the two fp32
    gradients that the loss's backward creates before any block is recomputed."""

    blocks: int
    working: int
    logits: int
    loss: int = 0

    @property
    def total(self) -> int:
        return self.blocks + self.working + self.logits

    @property
    def peak(self) -> int:
        """The peak: the loss's backward is over when the first block is recomputed."""
        return self.blocks + self.logits + max(self.working, self.loss)


def activations(
    shape: Shape,
    tokens: int,
    width: int,
    checkpointing: Checkpointing,
    scores_of_length: int | None = None,
    *,
    tensor: int = 1,
    in_flight: float = 1.0,
    last: bool = True,
) -> Activations:
    """Activations of ``tokens`` (micro-batch x length) on a rank, with ``width`` bytes per element.
    ``scores_of_length``: the length, if attention saves its scores.

    ``shape``: of the rank's own matrices after tensor parallelism over ``tensor`` ranks; all other activations are
    sharded along the sequence (Korthikanti et al., 2205.05198, equation 4). ``in_flight``: micro-batches that a
    pipeline stage holds at once; ``last``: whether it has the logits."""
    attention = _of_attention(shape, width) * tokens
    if scores_of_length is not None:
        attention += (2 * width + 1) * shape.heads * tokens * scores_of_length
    all_saved = attention + _of_the_rest(shape, width, tensor) * tokens
    entry = shape.hidden * width * tokens // tensor
    products = attention + entry + _of_products(shape, width, tensor) * tokens
    saved, working = {
        Checkpointing.NONE: (all_saved, 0),
        Checkpointing.SELECTIVE: (products, all_saved - attention),
        Checkpointing.FULL: (entry, all_saved),
    }[checkpointing]
    logits = tokens * shape.vocab if last else 0
    return Activations(round(saved * shape.layers * in_flight), working, logits * (width + 4), logits * 8)


def kept_by_autocast(
    shape: Shape, tokens: int, width: int, checkpointing: Checkpointing, *, tensor: int = 1, in_flight: float = 1.0
) -> int:
    """Bytes that autocast keeps beyond ``activations``, with parameters in fp32: the residual and the norms' inputs in
    fp32, each product's own copy of its input, and a copy of every weight. The arguments are those of ``activations``.
    Recomputed blocks keep their inputs, and no copies while the loss's backward runs, which is the peak."""
    entry = shape.hidden * (4 - width)
    plain, cast = (kept_of_block(shape, Types(width, autocast=autocast), Kernels()) for autocast in (False, True))
    block = cast - plain if checkpointing == Checkpointing.NONE else entry
    weights = shape.vocab * shape.hidden if checkpointing == Checkpointing.FULL else shape.multiplied
    return round((block * shape.layers * in_flight + entry) * tokens / tensor) + width * weights  # and the last norm's


def _of_attention(shape: Shape, width: int) -> int:
    """Bytes per token: queries, keys, values, the output, and one number per head for the softmax."""
    return width * sum(shape.attended) + 4 * shape.heads


def _of_products(shape: Shape, width: int, tensor: int) -> int:
    """Bytes per token: results of the matrix products other than queries, keys and values, each saved once: attention's
    output projection and latent vectors, the MLP's hidden layer (with a gate also the other factor), and its result."""
    hidden = round(shape.used_ffn * (2 if shape.gated else 1))
    vectors = shape.latent.norms + shape.latent.rotated if shape.latent is not None else 0
    return width * (2 * shape.hidden // tensor + vectors + hidden)


def _of_the_rest(shape: Shape, width: int, tensor: int) -> int:
    """Bytes per token: input and output of both norms, what norms within attention keep, and the MLP's hidden layer
    before and after its activation function; with a gate, also the other factor and the product: eager PyTorch saves
    all four."""
    hidden = round(shape.used_ffn * (4 if shape.gated else 2))
    within = shape.normed + (shape.latent.kept if shape.latent is not None else 0)
    return width * (2 * 2 * shape.hidden // tensor + hidden + within)


# -- share -------------------------------------------------------------------------------------------------------------
#
# The part of the model that one rank works on: matrices are split by tp, layers by pp, the sequence by cp.
#
# Tensor parallelism as in Megatron-LM (arXiv 1909.08053, section 3) and torchtitan: attention by heads, the MLP by its
# hidden layer, table and head by vocabulary; norms are whole on every rank. Pipeline stages get equal numbers of
# layers, the earlier ones one more where they do not divide; the first has the table, the last norm and head.


class Share(Struct, frozen=True):
    """One stage's part of the model on one rank. ``size``: the parameters that it holds, with the shape of its sharded
    matrices and its own number of layers; ``first``: it has the table; ``last``: it has the norm and the head."""

    size: Size
    stage: int
    first: bool = True
    last: bool = True


def shares(size: Size, topology: Topology | None) -> list[Share]:
    """One share per stage. DiagError if the axes do not divide the model."""
    tensor = topology.size("tp") if topology else 1
    stages = topology.size("pp") if topology else 1
    expert = topology.size("ep") if topology else 1
    if expert > 1 and (size.shape is None or size.shape.experts == 1):
        raise DiagError(
            f"--topology: ep={expert} divides experts, and {size.name} has none that are known",
            hint="give a preset with experts, or the model's config.json",
        )
    if tensor == stages == expert == 1:
        return [Share(size, 0)]
    if size.shape is None:
        # With only a number of parameters, everything is split evenly.
        part = Size(size.name, -(-size.parameters // (tensor * stages)))
        return [Share(part, stage, stage == 0, stage == stages - 1) for stage in range(stages)]
    return list(_stages(_with_part_of_experts(cut(size.shape, tensor), expert), stages))


def _with_part_of_experts(shape: Shape, expert: int) -> Shape:
    """The shape with a rank's part of the experts. Their matrices are divided by tensor parallelism as well."""
    if shape.experts % expert:
        raise DiagError(f"--topology: ep={expert} does not divide the {shape.experts} experts")
    return replace(shape, held=shape.experts // expert) if expert > 1 else shape


def check_chunks(parts: list[Share], chunks: int) -> None:
    """DiagError if a stage has fewer layers than virtual stages."""
    layers = [part.size.shape.layers for part in parts if part.size.shape is not None]
    if len(parts) > 1 and layers and min(layers) < chunks:
        raise DiagError(f"--virtual-stages {chunks}: a stage of pp={len(parts)} has {min(layers)} layers")


def cut(shape: Shape, tensor: int) -> Shape:
    """The shape of the matrices on one of ``tensor`` ranks. If there are fewer key-value heads than ranks, they are
    repeated, as in Megatron-LM."""
    mlps = {"hidden layer of the MLP": shape.ffn, "shared expert": shape.shared_ffn, "dense MLP": shape.dense_ffn}
    for name, count in ({"query heads": shape.heads} | mlps).items():
        if count % tensor:
            raise DiagError(f"--topology: tp={tensor} does not divide the {count} of the {name}")
    return replace(
        shape,
        heads=shape.heads // tensor,
        kv_heads=max(1, -(-shape.kv_heads // tensor)),
        ffn=shape.ffn // tensor,
        shared_ffn=shape.shared_ffn // tensor,
        dense_ffn=shape.dense_ffn // tensor,
        vocab=-(-shape.vocab // tensor),
    )


def _stages(shape: Shape, stages: int) -> Iterator[Share]:
    if stages > shape.layers:
        raise DiagError(f"--topology: pp={stages} is more than the {shape.layers} layers")
    begin = 0
    for stage in range(stages):
        first, last = stage == 0, stage == stages - 1
        layers = shape.layers // stages + (stage < shape.layers % stages)
        # With the table on another stage, a tied head is a copy of it.
        head = (shape.head if first or not shape.tied else shape.vocab * shape.hidden) + shape.norm if last else 0
        rest = (shape.table if first else 0) + head
        stage_shape = shape.part(begin, layers)
        begin += layers
        yield Share(Size(shape.name, sum(stage_shape.blocks) + rest, stage_shape, rest), stage, first, last)


# -- units -------------------------------------------------------------------------------------------------------------
#
# A stage's FSDP units with the FLOPs of each, for the program that is replayed.


class ShardingUnit(Struct, frozen=True):
    """An FSDP unit. ``blocks``: number of the model's blocks in it (a fraction if a matrix is a unit). FLOPs of one
    micro-batch."""

    parameters: int
    blocks: float
    forward: float
    backward: float


def units(
    share: Share, wrap: str, tokens: int, length: int, checkpointing: Checkpointing
) -> tuple[ShardingUnit, list[ShardingUnit]]:
    """The root's unit, whose computation (the head) comes last, and the others in order of forward. ``tokens``: of the
    rank and micro-batch; ``length``: of the whole sequence, to which each token attends."""
    shape = share.size.shape
    if shape is None:
        forward = 2.0 * share.size.parameters * tokens / PLANNING.units_of_a_number
        recompute_flops = forward if checkpointing == Checkpointing.FULL else 0.0
        fractions = [
            ShardingUnit(share.size.parameters // PLANNING.units_of_a_number, 1, forward, 2 * forward + recompute_flops)
            for _ in range(PLANNING.units_of_a_number)
        ]
        return ShardingUnit(0, 0, 0, 0), _merged(fractions, wrap)
    products = 2.0 * (shape.multiplied - shape.vocab * shape.hidden) / shape.layers * tokens
    scores = 4.0 * shape.scored * length * tokens
    recomputed = {Checkpointing.NONE: 0.0, Checkpointing.SELECTIVE: 0.0, Checkpointing.FULL: products + scores}
    backward = 2 * (products + scores) + recomputed[checkpointing]
    blocks = [ShardingUnit(count, 1, products + scores, backward) for count in shape.blocks]
    head = 2.0 * shape.vocab * shape.hidden * tokens if share.last else 0.0
    rest = shape.table + shape.head + shape.norm if share.size.rest is None else share.size.rest
    if wrap == "linear":
        matrices = [op.weight for op in block_ops(shape, 0, Types(2), Kernels()) if op.weight and "norm" not in op.name]
        total = sum(matrices)
        # Of blocks that are not all alike, the same parts of each.
        parts = [
            _part(block, weight / total, round(weight * min(1.0, block.parameters / total)))
            for block in blocks
            for weight in matrices
        ]
        left = sum(shape.blocks) - sum(part.parameters for part in parts)
        return ShardingUnit(rest + left, 0, head, 2 * head), parts
    return ShardingUnit(rest, 0, head, 2 * head), _merged(blocks, wrap)


def _part(unit: ShardingUnit, part: float, parameters: int) -> ShardingUnit:
    return ShardingUnit(parameters, unit.blocks * part, unit.forward * part, unit.backward * part)


def _merged(single_units: list[ShardingUnit], wrap: str) -> list[ShardingUnit]:
    size = len(single_units) if wrap == "root" else int(wrap) if wrap.isdecimal() else 1
    return list(_groups(single_units, size))


def _groups(single_units: list[ShardingUnit], size: int) -> Iterator[ShardingUnit]:
    for first in range(0, len(single_units), size):
        group = single_units[first : first + size]
        yield ShardingUnit(
            sum(unit.parameters for unit in group),
            sum(unit.blocks for unit in group),
            sum(unit.forward for unit in group),
            sum(unit.backward for unit in group),
        )


BUCKET_BYTES = 25 << 20  # DistributedDataParallel's bucket_cap_mb
ZERO_BUCKET = 500_000_000  # elements: DeepSpeed's reduce_bucket_size


class Strategy(Struct, frozen=True):
    """A strategy of data parallelism. ``keeps``: gathered parameters stay until backward. ``within_host``: the states
    are sharded over the GPUs of one host only."""

    name: str
    about: str
    sharding: Sharding
    keeps: bool = False
    within_host: bool = False


ZERO_3 = Strategy("ZeRO-3", "parameters are sharded as well: FULL_SHARD, fully_shard", Sharding.PARAMETERS)
HYBRID = Strategy("hybrid", "ZeRO-3 within a host: HYBRID_SHARD, HSDP", Sharding.PARAMETERS, within_host=True)
STRATEGIES = (
    Strategy("DDP", "FSDP's NO_SHARD", Sharding.NONE),
    Strategy("ZeRO-1", "optimizer states are sharded", Sharding.OPTIMIZER),
    Strategy("ZeRO-2", "optimizer states and gradients are sharded", Sharding.GRADIENTS),
    ZERO_3,
    Strategy("ZeRO-3, kept", "SHARD_GRAD_OP, reshard_after_forward=False", Sharding.PARAMETERS, keeps=True),
    HYBRID,
)


class Need(Struct, frozen=True):
    """Bytes on one rank. ``shards``: ranks that share one copy of the states."""

    strategy: Strategy
    shards: int
    states: ModelStates
    gathered: int  # parameters of units that are temporarily unsharded
    buffers: int  # gradients during their reduction: buckets, or those of a unit

    @property
    def total(self) -> int:
        return self.states.total + self.gathered + self.buffers


def unit_of(size: Size, wrap: str) -> int:
    """Parameters of the largest FSDP unit: "block", "root" (all in one), "linear" (the largest matrix), or a number of
    blocks. If only the number of parameters is known, a fiftieth of it stands for a block."""
    if wrap == "root":
        return size.parameters
    shape = size.shape
    if shape is None:
        return -(-size.parameters // 50) * (int(wrap) if wrap.isdecimal() else 1)
    # The root's unit, as the blocks have units of their own.
    rest = shape.table + shape.head + shape.norm if size.rest is None else size.rest
    if wrap == "linear":
        return max(shape.hidden * shape.largest_ffn, shape.vocab * shape.hidden if rest else 0)
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
    expert: int = 1,
) -> Need:
    """The memory of one of ``ranks`` ranks, ``per_host`` of which share a host. Bytes per parameter are the recipe's.
    ``replica``: the ranks over which hybrid sharding shards one copy, if given. ``expert``: over how many ranks the
    experts are divided. ``size`` has a rank's own part of them, of which there are as many fewer copies to shard."""
    shards = (replica or min(ranks, per_host)) if strategy.within_host else ranks
    experts = divided_experts(size, expert)
    states = model_states(size.parameters - experts, strategy.sharding, shards, recipe.each)
    if experts:
        states = states + model_states(experts, strategy.sharding, copies_of(shards, expert), recipe.each)
    unit = unit_of(size, wrap)
    gathered = buffers = 0
    if recipe.in_one_buffer and strategy.sharding != Sharding.PARAMETERS:
        buffers = 0  # the gradients lie in one buffer, which is reduced in place
    elif ranks > 1 and strategy.sharding == Sharding.NONE:
        buffers = min(BUCKET_BYTES, size.parameters * recipe.gradients)
    elif strategy.sharding == Sharding.PARAMETERS:
        all_bytes = size.parameters * recipe.computed
        gathered = (
            all_bytes if strategy.keeps else min(PLANNING.units_gathered_at_once * unit * recipe.computed, all_bytes)
        )
        buffers = unit * (recipe.computed + recipe.reduced)
    elif ranks > 1:
        buffers = ZERO_BUCKET * recipe.reduced  # DeepSpeed allocates it whole, also for a small model
    return Need(strategy, shards, states, gathered, buffers)


def divided_experts(size: Size, expert: int) -> int:
    """Parameters of a rank's experts where these are divided over so many ranks; 0 where they are not."""
    return size.shape.of_experts if size.shape is not None and expert > 1 else 0


def copies_of(ranks: int, expert: int) -> int:
    """The ranks that hold the same experts."""
    return max(1, ranks // expert)


def fewest(size: Size, recipe: Recipe, memory: int, outside: int = 0) -> int | None:
    """The smallest number of GPUs on which all states, sharded evenly, fit together with ``outside`` bytes per GPU. A
    lower bound: with fewer GPUs no strategy that keeps the states on GPUs fits. None if ``outside`` leaves no room."""
    room = memory - outside
    return -(-size.parameters * recipe.total // room) if room > 0 else None


# -- communication -----------------------------------------------------------------------------------------------------
#
# Communication of data parallelism in a step, and its minimum time.
#
# Volumes are those of ring algorithms; each rank sends and receives them. Times are volume over bandwidth, without
# latency and without overlap: the time that must be overlapped so that communication costs no step time.


class Traffic(Struct, frozen=True):
    """Bytes that a rank sends in a step: among the ranks that share states, and among replicas."""

    shards: int
    replicas: int
    seconds: float

    @property
    def total(self) -> int:
        return self.shards + self.replicas


def traffic(
    parameters: int,
    recipe: Recipe,
    need: Need,
    cluster: Cluster,
    micro_batches: int = 1,
    *,
    ranks: int | None = None,
    apart: int = 1,
    experts: int = 0,
    expert: int = 1,
) -> Traffic:
    """Gradients are reduced in the last of the ``micro_batches``, sharded parameters gathered in each. ``ranks``: the
    data-parallel ranks, by default all GPUs; ``apart``: the difference in rank between neighbours. ``experts``: those
    of the parameters that are divided over ``expert`` ranks, and shared with every ``expert``-th rank alone."""
    ranks = ranks or cluster.gpus
    rest = _sent(parameters - experts, recipe, need, cluster, micro_batches, need.shards, ranks, apart)
    if not experts:
        return rest
    shards = copies_of(need.shards, expert)
    copies = copies_of(ranks, expert)
    own = _sent(experts, recipe, need, cluster, micro_batches, shards, copies, apart * expert)
    return Traffic(rest.shards + own.shards, rest.replicas + own.replicas, rest.seconds + own.seconds)


def _sent(
    parameters: int,
    recipe: Recipe,
    need: Need,
    cluster: Cluster,
    micro_batches: int,
    shards: int,
    ranks: int,
    apart: int,
) -> Traffic:
    gathered, reduced = parameters * recipe.computed, parameters * recipe.reduced
    replicas = ranks // shards
    if need.strategy.sharding == Sharding.PARAMETERS:
        within = (_gathers(need.strategy) * gathered * micro_batches + reduced) * _ring(shards)
        across = 2 * reduced / shards * _ring(replicas)
    else:  # an all-reduce is a reduce-scatter and an all-gather; ZeRO gathers the updated parameters
        second = reduced if need.strategy.sharding == Sharding.NONE else gathered
        within, across = (reduced + second) * _ring(shards), 0.0
    seconds = within / cluster.bandwidth(shards * apart) + across / cluster.bandwidth(ranks * apart)
    return Traffic(round(within), round(across), seconds)


def _gathers(strategy: Strategy) -> int:
    """All-gathers per micro-batch: in forward, and once more in backward unless the parameters stay gathered."""
    return 1 if strategy.keeps else 2


def _ring(ranks: int) -> float:
    return (ranks - 1) / ranks
