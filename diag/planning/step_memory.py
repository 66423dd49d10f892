"""Simulates the memory of a training step, operation by operation: what is live at each moment, and the peak.

The table of strategies (diag.planning.memory) adds up the maxima of all components; here each tensor is counted only
while it is live. Read from torch 2.13's own source: DistributedDataParallel's buckets (gradient_as_bucket_view),
fully_shard's all-gathers and reduce-scatters (_fsdp_collectives.py, _fsdp_param_group.py) and the unit that it keeps
until the next one frees it, FSDP1's flat parameters, ZeroRedundancyOptimizer's partition, torch's loss, gloo's copies,
and AdamW's temporaries. Nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from msgspec import Struct

from diag.model.states import ModelStates, Sharding, model_states

from .gathering import Account, Flat, FlatUnits, Gathering, MemoryUse, Peak, Sharded, Whole
from .shape import RECIPES, Latent, Recipe, Shape

# -- decoder ops -------------------------------------------------------------------------------------------------------
#
# A decoder's operations in autograd: the tensors that each saves for backward, and the gradients that it creates there.
#
# Counted in torch 2.13's eager mode for a pre-norm decoder with flash attention (SDPA) and without dropout. The sum of
# the saved tensors equals, to the byte, what torch.autograd.graph.saved_tensors_hooks reports for the bundled trainer's
# model on a CPU (tests/plan/test_saved_tensors.py). Korthikanti et al. (arXiv 2205.05198, section 4.1) count the same
# way for GPT.


class Kernels(Struct, frozen=True):
    """torch's implementations on a device. ``fused_norms``: RMSNorm and LayerNorm are one kernel that saves its input
    and a statistic; torch's RMSNorm on a CPU is a composition that saves the input and the normalized one in fp32.
    ``foreach``: the optimizer updates all parameters at once. ``sums_queries``: the backward of attention in 16 bits
    sums the queries' gradient in fp32, as the kernels of cuDNN and of flash attention do. ``workspaces``: bytes that
    stay allocated outside of tensors."""

    fused_norms: bool = True
    foreach: bool = True
    sums_queries: bool = True
    workspaces: int = 0


class Op(Struct, frozen=True):
    """An operation. ``weight``: parameters; ``block``: -1 outside of blocks. Bytes per token: ``kept``: saved from
    forward until its backward is over; ``makes`` and ``spends``: gradients that its backward creates and frees;
    ``beside``: temporaries of its backward. ``cast``: bytes per parameter of the copy that autocast makes of the
    weight, and of its gradient before that is cast back."""

    name: str
    block: int
    weight: int = 0
    kept: int = 0
    makes: int = 0
    spends: int = 0
    beside: int = 0
    cast: int = 0


class Types(Struct, frozen=True):
    """Bytes of an element: ``width`` in matrix products and attention, ``stream`` in norms and the residual. They
    differ under autocast: there each product saves a copy of its own of the input and of the weight, and adding a
    branch to the residual casts the branch's gradient."""

    width: int
    autocast: bool = False

    @property
    def stream(self) -> int:
        return 4 if self.autocast else self.width

    @property
    def copied(self) -> int:
        """Bytes of an element in the copies that autocast makes."""
        return self.width if self.autocast else 0


def block_ops(shape: Shape, block: int, types: Types, kernels: Kernels) -> Iterator[Op]:
    """The operations of one block, in order of forward. Backward enters the last with the gradient of the block's
    output (``hidden`` elements), which stays for the residual, and leaves the first with that of its input."""
    width, copy = types.width, shape.hidden * types.copied
    queries, keys, values, output = (count * width for count in shape.attended)
    ffn = shape.experts_used * shape.ffn * width
    yield _norm("attention norm", block, shape, types, kernels)
    if shape.latent is None:
        yield from _projections(shape, block, types)
    else:
        yield from _of_latents(shape, shape.latent, block, types, kernels)
    if shape.qk_norms:
        yield _norm_of_heads(block, shape, types, kernels)
    statistic = 4 * shape.heads  # of the softmax, in fp32
    summed = 4 * queries // width if kernels.sums_queries and width < 4 else 0
    gradients = queries + keys + (values if shape.latent is None else output)
    yield Op("attention", block, 0, queries + keys + values + statistic, gradients, output, beside=summed)
    weight = shape.hidden * output // width + (shape.hidden if shape.biases else 0)
    yield Op("output", block, weight, output, output + copy, copy, cast=types.copied)
    yield _norm("feed-forward norm", block, shape, types, kernels)
    yield from _feed_forward(shape, block, ffn, types)


def _projections(shape: Shape, block: int, types: Types) -> Iterator[Op]:
    """Operations: queries, keys, values."""
    width = types.width
    hidden, stream, copy = shape.hidden * width, shape.hidden * types.stream, shape.hidden * types.copied
    queries, keys, *_ = (count * width for count in shape.attended)
    biases = [size // width if shape.biases or shape.qkv_biases else 0 for size in (queries, keys)]
    # The first projection is the last in backward: the normalized input is freed with it.
    weight = shape.hidden * queries // width + biases[0]
    # The rotary embedding saves only its angles. It turns in fp32, and creates a second gradient of its input.
    turns = 4 // width * 2 - 1
    yield Op(
        "queries", block, weight, hidden, stream, queries + stream, beside=max(copy, turns * queries), cast=types.copied
    )
    weight = shape.hidden * keys // width + biases[1]
    yield Op("keys", block, weight, copy, stream, keys + stream, beside=max(copy, turns * keys), cast=types.copied)
    yield Op("values", block, weight, copy, stream, keys, beside=copy, cast=types.copied)


def _of_latents(shape: Shape, latent: Latent, block: int, types: Types, kernels: Kernels) -> Iterator[Op]:
    """Of the queries, then of keys with values: a product makes a vector, which has a norm, and another makes all heads
    of it. The rotated part of the key belongs to the first product of the keys."""
    width = types.width
    stream, copy = shape.hidden * types.stream, shape.hidden * types.copied
    queries, keys, both, values = shape.attended
    for name, vector, rotated, heads, gradients in (
        ("queries", latent.queries, 0, queries, queries),
        ("keys and values", latent.keys, latent.rotated, both, keys + values),
    ):
        made, normed = (vector + rotated) * width, vector * width
        # The normalized input is kept once; autocast copies it for each product.
        first = name == "queries"
        yield Op(
            f"vector of {name}", block, shape.hidden * (vector + rotated), shape.hidden * width if first else copy,
            stream, made + (stream if first else 0), beside=max(copy, made), cast=types.copied,
        )  # fmt: skip
        # A norm keeps its input, with what shares its storage, or a copy in fp32: of autocast, or of the composition.
        copied = types.autocast or (width < 4 and not kernels.fused_norms)
        kept = (4 * vector if copied else made) + (0 if kernels.fused_norms else 4 * vector)
        yield Op(f"norm of {name}", block, vector, kept + 4, makes=normed, spends=normed, beside=kept)
        # Backward puts the gradients of the parts together, and turns the rotated ones in fp32.
        turned = 4 * (shape.heads if first else 1) * latent.rotated
        yield Op(
            name, block, vector * heads, normed, made, gradients * width, beside=heads * width + turned,
            cast=types.copied,
        )  # fmt: skip


def _feed_forward(shape: Shape, block: int, ffn: int, types: Types) -> Iterator[Op]:
    """Operations: gate, its activation function, up, their product, down; without a gate: up, the function, down."""
    hidden, stream = shape.hidden * types.width, shape.hidden * types.stream
    copy, cast = shape.hidden * types.copied, types.copied
    weight = shape.experts * shape.hidden * shape.ffn
    down = weight + (shape.hidden if shape.biases else 0)
    up = weight + (shape.ffn if shape.biases else 0)
    if not shape.gated:
        yield Op("up", block, up, hidden, stream, ffn, beside=copy, cast=cast)
        yield Op("function", block, kept=ffn, makes=ffn, spends=ffn)
    else:
        yield Op("gate", block, up, hidden, stream, ffn + stream, beside=copy, cast=cast)
        yield Op("function", block, kept=ffn, makes=ffn, spends=ffn)
        yield Op("up", block, up, copy, stream, ffn, beside=copy, cast=cast)
        yield Op("product", block, kept=2 * ffn, makes=2 * ffn, spends=ffn)
    yield Op("down", block, down, ffn, ffn + copy, copy, cast=cast)


def _norm(name: str, block: int, shape: Shape, types: Types, kernels: Kernels) -> Op:
    """A norm of a block: its gradient is added to the residual's. The composition works in fp32."""
    hidden, composed = shape.hidden * types.stream, 2 * 4 * shape.hidden
    return Op(
        name,
        block,
        shape.norm,
        (hidden if kernels.fused_norms else composed) + 4,
        makes=hidden,
        spends=2 * hidden,
        beside=hidden if kernels.fused_norms else composed,
    )


def _norm_of_heads(block: int, shape: Shape, types: Types, kernels: Kernels) -> Op:
    """The norms of each head's queries and keys, in backward before the rotation: one gradient replaces another."""
    size, composed = shape.normed * types.width, 2 * 4 * shape.normed
    kept = (size if kernels.fused_norms else composed) + 4 * (shape.heads + shape.kv_heads)
    beside = size if kernels.fused_norms else composed
    return Op("norms of heads", block, 2 * shape.head_size, kept, makes=size, spends=size, beside=beside)


def final_norm(shape: Shape, block: int, types: Types, kernels: Kernels) -> Op:
    """The final norm: without a residual around it, its backward replaces one gradient by another."""
    norm = _norm("final norm", block, shape, types, kernels)
    return Op(norm.name, block, norm.weight, norm.kept, makes=norm.makes, spends=norm.makes, beside=norm.beside)


def kept_of_block(shape: Shape, types: Types, kernels: Kernels) -> int:
    """Bytes per token that one block saves for backward, without the copies of weights."""
    return sum(op.kept for op in block_ops(shape, 0, types, kernels))


LINEAR_AND_HEAD = "linear and head"  # FSDP1: each matrix is a unit; with fully_shard's "linear", only those in blocks


class Step(Struct, frozen=True):
    """A step of one rank. ``shards``: ranks that share one copy of the states. ``wrap``: as in ``unit_of``, or
    ``LINEAR_AND_HEAD``. ``kept``: fraction of a unit's parameters that stays gathered from forward to backward (1: all,
    0: none, 1/k: resharded to k ranks). ``ahead``: units that are prefetched explicitly; 0 leaves it to PyTorch.
    ``gloo``: collectives run on the host. ``flat``: the units are FSDP1's."""

    shape: Shape
    recipe: Recipe
    sharding: Sharding
    shards: int
    sequences: int
    length: int
    micro_batches: int = 1
    wrap: str = "block"
    kept: float = 0.0
    ahead: int = 0
    recompute: bool = False
    gloo: bool = False
    kernels: Kernels = Kernels()
    reduce_each: bool = False  # gradients are reduced in every micro-batch
    bucket_views: bool = True  # DDP: gradients are views of its buckets, not separate copies
    keeps_logits: bool = True  # a variable of the training keeps them until the next micro-batch's logits exist
    flat: FlatUnits | None = None

    @property
    def in_buckets(self) -> bool:
        """Whether gradients have buckets that stay allocated between steps."""
        return self.flat is None and self.sharding != Sharding.PARAMETERS

    @property
    def tokens(self) -> int:
        return self.sequences * self.length

    @property
    def types(self) -> Types:
        """fully_shard and FSDP1 gather parameters in the computed type; without them autocast casts those of fp32."""
        casts = self.flat is None and self.sharding != Sharding.PARAMETERS
        return Types(self.recipe.computed, casts and self.recipe.parameters > self.recipe.computed)

    @property
    def width(self) -> int:
        return self.recipe.computed

    @property
    def stream(self) -> int:
        """Bytes of the residual per token, and of its gradient."""
        return self.shape.hidden * self.types.stream


def step_peak(step: Step) -> Peak:
    """The peak of a step in which the optimizer's states exist already."""
    account = Account()
    walk(step, account)
    return account.peak


def walk(step: Step, account: Account) -> None:
    """Simulates one step; the bytes live in ``account`` afterwards stay between steps."""
    states = states_of(step)
    account.take(MemoryUse.PARAMETERS, states.parameters)
    account.take(MemoryUse.OPTIMIZER, states.optimizer)
    account.take(MemoryUse.WORKSPACES, step.kernels.workspaces)
    ops = operations(step)
    units: Gathering
    if step.flat is not None:
        sizes = unit_sizes(ops, step.wrap)
        units = Flat(account, step.recipe, step.shards, sizes, step.flat, gloo=step.gloo)
    elif step.sharding == Sharding.PARAMETERS:
        sizes = unit_sizes(ops, step.wrap)
        units = Sharded(account, step.recipe, step.shards, sizes, kept=step.kept, ahead=step.ahead, gloo=step.gloo)
    else:
        units = Whole(account, step.recipe, states.gradients, views=step.bucket_views)
    micro_batches = min(step.micro_batches, 2)  # from the second on they are equal
    kept_logits = 0
    for number in range(micro_batches):
        account.moment = "forward"
        _forward(step, ops, units, account)
        account.give(MemoryUse.LOGITS, kept_logits)
        last = number == micro_batches - 1
        kept_logits = _loss(step, ops, account)
        _backward(step, ops, units, account, last or step.reduce_each)
    account.give(MemoryUse.LOGITS, kept_logits)
    account.moment = "optimizer"
    _optimizer(step, ops, account, units)


def states_of(step: Step) -> ModelStates:
    """Bytes of the states on the fullest rank. ZeroRedundancyOptimizer assigns whole parameters, the largest first,
    each to the rank with the least."""
    states = model_states(step.shape.parameters, step.sharding, step.shards, step.recipe.each)
    if step.sharding != Sharding.OPTIMIZER:
        return states
    elements_by_rank = [0] * step.shards
    for size in sorted((op.weight for op in operations(step)), reverse=True):
        elements_by_rank[elements_by_rank.index(min(elements_by_rank))] += size
    return replace(states, optimizer=max(elements_by_rank) * step.recipe.each.optimizer)


def operations(step: Step) -> list[Op]:
    """The operations of the whole model, in order of forward; the table's and the head's belong to no block."""
    shape, types = step.shape, step.types
    ops = [Op("table", -1, shape.table)]
    for block in range(shape.layers):
        ops += block_ops(shape, block, types, step.kernels)
    ops.append(final_norm(shape, -1, types, step.kernels))
    hidden, copy = shape.hidden * types.width, shape.hidden * types.copied
    # A tied head's gradient is one of the table's.
    ops.append(
        Op("head", -1, shape.head, hidden, step.stream, shape.vocab * types.width, beside=copy, cast=types.copied)
    )
    return ops


def modelled(shape: Shape) -> bool:
    """Whether these operations cover the whole model: not with experts, nor the backward of latent attention, whose
    temporaries nobody measured."""
    step = Step(shape, RECIPES["fp32"], Sharding.NONE, 1, 1, 1)
    return shape.latent is None and sum(op.weight for op in operations(step)) == shape.parameters


def unit_of_op(op: Op, wrap: str, place: int) -> int:
    """The sharding unit of an operation: 0 is the root's, the others are numbered in order of forward."""
    if wrap == LINEAR_AND_HEAD and op.name == "head" and op.weight:
        return place
    if op.block < 0 or wrap == "root":
        return 0
    if wrap in ("linear", LINEAR_AND_HEAD):
        return place if op.weight and "norm" not in op.name else 0
    return 1 + op.block // (int(wrap) if wrap.isdecimal() else 1)


def unit_sizes(ops: Sequence[Op], wrap: str) -> dict[int, int]:
    """Parameters of each unit."""
    sizes: dict[int, int] = {0: 0}
    for index, op in enumerate(ops):
        if op.weight:
            unit = unit_of_op(op, wrap, index)
            sizes[unit] = sizes.get(unit, 0) + op.weight
    return sizes


def _runs(step: Step, ops: Sequence[Op]) -> list[tuple[int, list[Op]]]:
    """Consecutive operations of one unit. An operation without parameters runs in its block's unit, or outside of any
    unit if each matrix is a unit."""
    placed = [(unit_of_op(op, step.wrap, index), op) for index, op in enumerate(ops)]
    return [(unit, [op for _, op in run]) for unit, run in groupby(placed, key=lambda pair: pair[0])]


def _forward(step: Step, ops: Sequence[Op], units: Gathering, account: Account) -> None:
    units.begin_forward()
    for unit, run in _runs(step, ops):
        units.enter(unit)
        for op in run:
            saved = op.kept
            if step.recompute and op.block >= 0:
                # A recomputed block keeps only its input; the rest is live while the block runs, below the peak.
                saved = step.stream if op.name == "attention norm" else 0
            account.take(MemoryUse.ACTIVATIONS, saved * step.tokens + _copied(step, op))
            if op.name == "head":
                account.take(MemoryUse.LOGITS, step.shape.vocab * step.width * step.tokens)
        units.leave(unit)
    units.end_forward()


def _loss(step: Step, ops: Sequence[Op], account: Account) -> int:
    """Cross-entropy, forward and backward. Returns the bytes of logits that the training's variable keeps, or 0.

    The log-softmax is kept in fp32; backward creates its gradient, then that of the logits (in fp32 first). Autocast
    forgets its copies when forward is over: of the weights of a recomputed block nothing else keeps them.
    """
    logits = step.shape.vocab * step.tokens
    account.moment = "the loss's backward"
    if step.width < 4:
        account.take(MemoryUse.LOGITS, 4 * logits)  # the copy in fp32, until the softmax exists
    account.take(MemoryUse.LOGITS, 4 * logits)
    if step.width < 4:
        account.give(MemoryUse.LOGITS, 4 * logits)
    kept_logits = step.width * logits if step.keeps_logits else 0
    account.give(MemoryUse.LOGITS, step.width * logits - kept_logits)
    if step.recompute:
        account.give(MemoryUse.ACTIVATIONS, sum(_copied(step, op) for op in ops if op.block >= 0))
    account.take(MemoryUse.PASSING, 4 * logits)
    account.take(MemoryUse.PASSING, 4 * logits)
    account.give(MemoryUse.PASSING, 4 * logits)
    account.give(MemoryUse.LOGITS, 4 * logits)
    if step.width < 4:
        account.take(MemoryUse.PASSING, step.width * logits)
        account.give(MemoryUse.PASSING, 4 * logits)
    return kept_logits


def _backward(step: Step, ops: Sequence[Op], units: Gathering, account: Account, reduce: bool) -> None:
    tokens = step.tokens
    units.begin_backward()
    for unit, run in reversed(_runs(step, ops)):
        units.enter_backward(unit)
        for op in reversed(run):
            account.moment = f"backward of block {op.block}" if op.block >= 0 else f"backward of the {op.name}"
            recomputes = step.recompute and op.block >= 0
            if recomputes and op.name == "down":
                _recompute(step, ops, op.block, account)
            account.take(MemoryUse.PASSING, op.makes * tokens)
            account.take(MemoryUse.PASSING, _copied(step, op))  # the gradient, until it is cast to the weight's type
            units.gradient(unit, _gradient(step, op), reduce)
            account.passing(MemoryUse.PASSING, op.beside * tokens)
            account.give(MemoryUse.PASSING, op.spends * tokens + _copied(step, op))
            account.give(MemoryUse.ACTIVATIONS, op.kept * tokens + _copied(step, op))
        account.moment = f"the reduction after block {run[0].block}" if run[0].block >= 0 else "the last reduction"
        units.leave_backward(unit, reduce)
    account.give(MemoryUse.PASSING, step.stream * tokens)
    units.end_backward(reduce)


def _gradient(step: Step, op: Op) -> int:
    """Number of parameters whose gradient the operation creates; for a tied head, the table's once more."""
    return step.shape.vocab * step.shape.hidden if op.name == "head" else op.weight


def _copied(step: Step, op: Op) -> int:
    """Bytes of the copy that autocast makes of the operation's weight."""
    return op.cast * _gradient(step, op)


def _recompute(step: Step, ops: Sequence[Op], block: int, account: Account) -> None:
    """Takes all that the block would have saved, at once; its input exists already."""
    own = [op for op in ops if op.block == block]
    saved = sum(op.kept for op in own) - step.stream
    account.take(MemoryUse.ACTIVATIONS, saved * step.tokens + sum(_copied(step, op) for op in own))


def _optimizer(step: Step, ops: Sequence[Op], account: Account, units: Gathering) -> None:
    """AdamW in torch 2.13: with ``foreach`` the square roots of all second moments at once; without, two temporaries
    of one parameter (the root, and the root over its correction)."""
    if step.kernels.foreach:
        local = step.shape.parameters // (step.shards if step.sharding != Sharding.NONE else 1)
        account.passing(MemoryUse.PASSING, 4 * local)
    else:
        account.passing(MemoryUse.PASSING, 2 * 4 * _largest(step, ops))
    units.clear()


def _largest(step: Step, ops: Sequence[Op]) -> int:
    """Elements of the largest parameter that the optimizer updates on a rank; for FSDP1, the part of a parameter in the
    rank's shard of a unit, or the shard itself."""
    if step.flat is None:
        return max(_gradient(step, op) for op in ops) // (step.shards if step.sharding == Sharding.PARAMETERS else 1)
    shard = max(unit_sizes(ops, step.wrap).values()) // step.shards
    return min(shard, max(op.weight for op in ops)) if step.flat.padded else shard
