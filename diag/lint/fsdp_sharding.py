"""Rules for what FSDP shards, in which units, and what it overlaps."""

from __future__ import annotations

from collections.abc import Iterator

from .fsdp import POLICIES, STRATEGIES, Fsdp
from .model import Notice, Severity

_STRATEGY = "torch.distributed.fsdp.ShardingStrategy"
_PREFETCH = "torch.distributed.fsdp.BackwardPrefetch"
_PLUGIN = "accelerate/utils/dataclasses.py: FullyShardedDataParallelPlugin"


def unknown_strategy(seen: Fsdp) -> Iterator[Notice]:
    """A strategy that there is not; Accelerate also takes their numbers, from 1."""
    known = seen.strategy in STRATEGIES or seen.strategy in ("1", "2", "3", "4", "5")
    if seen.version == 1 and seen.strategy is not None and not known:
        yield seen.say_strategy(
            Severity.ERROR, "There is no such sharding strategy.", f"one of {', '.join(STRATEGIES)}", _STRATEGY
        )


def shard_grad_op(seen: Fsdp) -> Iterator[Notice]:
    """The strategy that is taken for ZeRO-2."""
    if seen.version == 1 and seen.strategy in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2"):
        yield seen.say_strategy(
            Severity.NOTE,
            "Not ZeRO-2: parameters are sharded too, gathered before forward, and stay whole until backward has used "
            "them. It saves backward's all-gather and costs the whole model in 16 bits at the peak.",
            "FULL_SHARD, where that does not fit", _STRATEGY,
        )  # fmt: skip


def kept_whole(seen: Fsdp) -> Iterator[Notice]:
    """The same in FSDP2's words."""
    if seen.version == 2 and seen.flag("reshard_after_forward") is False:
        yield seen.say(
            "reshard_after_forward", Severity.NOTE,
            "Every unit's parameters stay gathered from forward to backward: one all-gather less, and the whole model "
            "in 16 bits at the peak.", seen.write("reshard_after_forward", "true"),
            "torch.distributed.fsdp.fully_shard: reshard_after_forward",
        )  # fmt: skip


def no_shard(seen: Fsdp) -> Iterator[Notice]:
    """FSDP that shards nothing."""
    if seen.version == 1 and seen.strategy == "NO_SHARD":
        yield seen.say_strategy(
            Severity.NOTE, "NO_SHARD shards nothing and is deprecated in torch in favour of DistributedDataParallel.",
            "distributed_type: MULTI_GPU" if seen.tool == "Accelerate" else "remove fsdp: the Trainer then takes DDP",
            "torch/distributed/fsdp/_init_utils.py",
        )  # fmt: skip


def hybrid_on_one_host(seen: Fsdp) -> Iterator[Notice]:
    """Replicas of one."""
    gpus = seen.devices.gpus
    if seen.version == 1 and (seen.strategy or "").startswith("HYBRID") and gpus and gpus <= seen.devices.per_host:
        plain = "SHARD_GRAD_OP" if (seen.strategy or "").endswith("ZERO2") else "FULL_SHARD"
        yield seen.say_strategy(
            Severity.NOTE,
            f"On one host there is nothing to replicate over: {seen.strategy} is {plain} there, with one more group.",
            plain if seen.tool == "Accelerate" else plain.lower(), _STRATEGY,
        )  # fmt: skip


def whole_model(seen: Fsdp) -> Iterator[Notice]:
    """A model that is one unit."""
    said = seen.word("auto_wrap_policy")
    if said is not None and said not in POLICIES:
        yield seen.say(
            "auto_wrap_policy", Severity.ERROR, "There is no such policy, and the run does not start.",
            f"one of {', '.join(POLICIES)}", f"{_PLUGIN}.__post_init__",
        )  # fmt: skip
        return
    number = seen.section.number(seen.key("min_num_params"))
    nothing = seen.policy == "SIZE_BASED_WRAP" and (number == 0 or (number is None and seen.tool == "Transformers"))
    if seen.policy == "NO_WRAP" or nothing:
        why = "min_num_params of 0 switches the policy off" if nothing else "No auto-wrap policy"
        legacy = seen.tool == "Transformers" and seen.options and seen.version == 1
        yield seen.say(
            "min_num_params" if nothing else "auto_wrap_policy", Severity.WARNING,
            f"{why}: the model is one unit, gathered whole before anything is computed, so nothing overlaps and the "
            "peak holds all parameters.",
            f'"fsdp": "{" ".join((*seen.options, "auto_wrap"))}"' if legacy and not nothing
            else seen.write("auto_wrap_policy", POLICIES[0]),
            f"{_PLUGIN}.auto_wrap_policy; torch.distributed.fsdp",
        )  # fmt: skip


def wrap_keys(seen: Fsdp) -> Iterator[Notice]:
    """Keys of one wrap policy given to another."""
    classes, number = seen.has("transformer_layer_cls_to_wrap"), seen.section.number(seen.key("min_num_params"))
    if classes and number and seen.tool == "Transformers" and seen.word("auto_wrap_policy") is None:
        yield seen.say(
            "min_num_params", Severity.ERROR,
            "It excludes transformer_layer_cls_to_wrap: Transformers refuses both or ignores one.", "remove it",
            "transformers/training_args.py: _process_fsdp_args",
        )  # fmt: skip
    elif classes and seen.policy in ("SIZE_BASED_WRAP", "NO_WRAP") and seen.tool == "Accelerate":
        yield seen.say(
            "transformer_layer_cls_to_wrap", Severity.ERROR, f"Ignored: {seen.policy} does not look at classes.",
            seen.write("auto_wrap_policy", POLICIES[0]), f"{_PLUGIN}.__post_init__",
        )  # fmt: skip
    elif number and seen.policy in ("TRANSFORMER_BASED_WRAP", "NO_WRAP") and seen.tool == "Accelerate":
        yield seen.say(
            "min_num_params", Severity.ERROR, f"Ignored: {seen.policy} does not look at sizes.", "remove it",
            f"{_PLUGIN}.__post_init__",
        )  # fmt: skip


def backward_prefetch(seen: Fsdp) -> Iterator[Notice]:
    """Backward without prefetch, which is the tools' default, or with the weaker one."""
    value = seen.word("backward_prefetch")
    if seen.version != 1 or seen.strategy == "NO_SHARD":
        return
    if value in (None, "NO_PREFETCH"):
        default = f" (the default of {seen.tool})" if value is None else ""
        yield seen.say(
            "backward_prefetch", Severity.WARNING,
            f"No prefetch in backward{default}: each all-gather starts when its unit is reached and is waited for.",
            seen.write("backward_prefetch", "BACKWARD_PRE"), _PREFETCH,
        )  # fmt: skip
    elif value == "BACKWARD_POST":
        yield seen.say(
            "backward_prefetch", Severity.NOTE,
            "Starts the next all-gather after the gradients of a unit: less overlap than BACKWARD_PRE, for the memory "
            "of one unit's parameters.", seen.write("backward_prefetch", "BACKWARD_PRE"), _PREFETCH,
        )  # fmt: skip


def forward_prefetch(seen: Fsdp) -> Iterator[Notice]:
    """The prefetch that is taken for overlap."""
    if seen.version == 1 and seen.flag("forward_prefetch") is True:
        yield seen.say(
            "forward_prefetch", Severity.NOTE,
            "All-gathers overlap in forward without it. It only issues them earlier, which helps where the CPU is "
            "late, and needs the same order of modules in every step.", seen.write("forward_prefetch", "false"),
            "torch.distributed.fsdp.FullyShardedDataParallel: forward_prefetch",
        )  # fmt: skip


def rate_limiter(seen: Fsdp) -> Iterator[Notice]:
    """limit_all_gathers, which is taken for overlap."""
    flag = seen.flag("limit_all_gathers")
    if seen.version != 1 or seen.tool == "Accelerate" or flag is None:
        return
    source = "torch.distributed.fsdp.FullyShardedDataParallel: limit_all_gathers"
    if flag:
        yield seen.say(
            "limit_all_gathers", Severity.NOTE,
            "A rate limiter, not overlap: the CPU waits so that no more than two units are gathered at once. It is on "
            "by default.", "remove it", source,
        )  # fmt: skip
    else:
        yield seen.say(
            "limit_all_gathers", Severity.WARNING,
            "Off, the CPU may issue all-gathers without bound, each with memory of its own; it only helps where the "
            "CPU is the limit and memory is free.", seen.write("limit_all_gathers", "true"), source,
        )  # fmt: skip


RULES = (
    unknown_strategy, shard_grad_op, kept_whole, no_shard, hybrid_on_one_host, whole_model, wrap_keys,
    backward_prefetch, forward_prefetch, rate_limiter,
)  # fmt: skip
