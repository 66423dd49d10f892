"""Rules for torchtitan's degrees, micro-batches and batches: what multiplies, and what it leaves idle."""

from __future__ import annotations

from collections.abc import Iterator

from diag.model.bubble import bubble

from .model import Notice, Severity
from .torchtitan import Titan

_DIMS = "torchtitan/distributed/parallel_dims.py"
_PIPELINE = "torchtitan/distributed/pipeline_parallel.py"
_MOST_BUBBLE = 0.1
_ONE_STAGE_A_RANK = ("1f1b", "gpipe")


def degrees(seen: Titan) -> Iterator[Notice]:
    """Degrees that are none, or whose product is not the GPUs."""
    for name, degree in seen.degrees.items():
        if degree < 1 and not (name == "dp_shard" and degree == -1):
            yield seen.say(
                seen.keys[name], Severity.ERROR,
                f"{degree} is no degree: 1 switches an axis off, and only data_parallel_shard_degree may be -1 (what "
                "is left).", "1", f"{_DIMS}: _validate",
            )  # fmt: skip
            return
    gpus, shard, others = seen.devices.gpus, seen.degrees["dp_shard"], seen.others
    if gpus is None:
        return
    axes = " x ".join(f"{name} {seen.degrees[name]}" for name in ("dp_replicate", "cp", "tp", "pp"))
    if shard == -1 and (gpus % others or gpus < others):
        yield seen.say(
            seen.keys["dp_shard"], Severity.ERROR, f"{axes} = {others} does not divide {gpus} GPUs: nothing whole is "
            "left for sharding.", f"degrees whose product divides {gpus}", f"{_DIMS}: _validate",
        )  # fmt: skip
    elif shard != -1 and shard * others != gpus:
        yield seen.say(
            seen.keys["dp_shard"], Severity.ERROR, f"{axes} x dp_shard {shard} = {shard * others}, not {gpus} GPUs.",
            "data_parallel_shard_degree = -1" if gpus % others == 0 else f"degrees whose product is {gpus}",
            f"{_DIMS}: _validate",
        )  # fmt: skip


def experts(seen: Titan) -> Iterator[Notice]:
    """Tensor parallelism within experts that there is no support for."""
    if seen.degrees["ep"] > 1 and seen.degrees["etp"] not in (1, seen.degrees["tp"]):
        yield seen.say(
            seen.keys["etp"], Severity.ERROR, "It is 1 or the tensor-parallel degree; anything else is refused.",
            f"expert_tensor_parallel_degree = {seen.degrees['tp']}", f"{_DIMS}: _validate",
        )  # fmt: skip


def tensor_parallel(seen: Titan) -> Iterator[Notice]:
    """Tensor parallelism over links between hosts, or without what it asks for."""
    degree = seen.degrees["tp"]
    if degree > seen.devices.per_host:
        yield seen.say(
            seen.keys["tp"], Severity.WARNING,
            f"Over more than the {seen.devices.per_host} GPUs of a host: its collectives stand in every layer and then "
            "take the slower links.", f"tensor_parallel_degree = {seen.devices.per_host}",
            "Megatron-LM (arXiv 2104.04473), takeaway 1",
        )  # fmt: skip
    for table in ("parallelism", "experimental"):
        if seen.table(table).flag("enable_async_tensor_parallel") and not seen.compiles:
            yield seen.say(
                f"{table}.enable_async_tensor_parallel", Severity.ERROR, "It needs the model compiled, and is refused.",
                "[compile] enable = true", "torchtitan/distributed/tensor_parallel.py: maybe_enable_async_tp",
            )  # fmt: skip


def sequence(seen: Titan) -> Iterator[Notice]:
    """A length of sequences that the axes cannot cut."""
    length = seen.table("training").whole("seq_len") or 2048
    divisor = seen.degrees["tp"] * 2 * seen.degrees["cp"]
    if (seen.degrees["tp"] > 1 or seen.degrees["cp"] > 1) and divisor > 0 and length % divisor:
        yield seen.say(
            "training.seq_len", Severity.ERROR, f"{length} is no multiple of tp x 2 cp = {divisor}: models refuse it.",
            f"seq_len = {max(1, length // divisor) * divisor}", f"{_DIMS}: seq_len_divisor",
        )  # fmt: skip


def hybrid_on_one_host(seen: Titan) -> Iterator[Notice]:
    """Replicas within a host, where sharding is as fast."""
    gpus, replicas = seen.devices.gpus, seen.degrees["dp_replicate"]
    if gpus and gpus <= seen.devices.per_host and replicas > 1 and (seen.sharded or 0) > 1:
        yield seen.say(
            seen.keys["dp_replicate"], Severity.NOTE,
            f"HSDP replicates over hosts; on one it only holds {replicas} copies of every state.",
            "data_parallel_replicate_degree = 1", "torch.distributed.fsdp.ShardingStrategy: HYBRID_SHARD",
        )  # fmt: skip


def pipeline(seen: Titan) -> Iterator[Notice]:
    """Too few micro-batches for the stages of a pipeline."""
    stages = seen.degrees["pp"]
    table = seen.table("parallelism")
    size = table.whole("pipeline_parallel_microbatch_size") or 1
    if stages <= 1 or size < 1 or seen.local_batch < 1:
        return
    if seen.local_batch % size:
        yield seen.say(
            "parallelism.pipeline_parallel_microbatch_size", Severity.ERROR,
            f"{size} does not divide the local batch of {seen.local_batch}: refused.",
            "pipeline_parallel_microbatch_size = 1", _PIPELINE,
        )  # fmt: skip
        return
    old = seen.table("experimental").whole("pipeline_parallel_microbatches")
    count = old or seen.local_batch // size
    kind = table.word("pipeline_parallel_schedule") or "1F1B"
    idle = bubble(stages, count)
    enough = round((stages - 1) * (1 - _MOST_BUBBLE) / _MOST_BUBBLE)
    said = f"{count} micro-batch{'es' * (count != 1)} for {stages} stages"
    if count < stages and kind.lower() in ("1f1b", "dualpipev"):
        yield seen.say(
            seen.local_batch_key, Severity.ERROR, f"{said}: {kind} needs at least as many as stages and is refused.",
            f"local_batch_size = {stages * size}, better {enough * size}", "torch/distributed/pipelining/schedules.py",
        )  # fmt: skip
    elif kind.lower() in _ONE_STAGE_A_RANK and idle > _MOST_BUBBLE:
        yield seen.say(
            seen.local_batch_key, Severity.WARNING,
            f"{said} leave {idle:.0%} of the time idle: (p-1)/(m+p-1).",
            f"local_batch_size = {enough * size} for {_MOST_BUBBLE:.0%}, or an interleaved schedule",
            "GPipe (arXiv 1811.06965), Megatron-LM (arXiv 2104.04473) section 2.2",
        )  # fmt: skip


def global_batch(seen: Titan) -> Iterator[Notice]:
    """A global batch that micro-steps do not make up."""
    whole, shard = seen.table("training").whole("global_batch_size"), seen.sharded
    if whole is None or whole < 0 or shard is None or seen.local_batch < 1 or shard < 1:
        return
    each = seen.local_batch * seen.degrees["dp_replicate"] * shard
    if each > 0 and (whole == 0 or whole % each):
        yield seen.say(
            "training.global_batch_size", Severity.ERROR,
            f"{whole} is no multiple of {seen.local_batch} a rank x {each // seen.local_batch} data-parallel ranks = "
            f"{each}.", f"global_batch_size = {max(1, whole // each) * each}", "torchtitan/train.py",
        )  # fmt: skip


RULES = (degrees, experts, tensor_parallel, sequence, hybrid_on_one_host, pipeline, global_batch)
