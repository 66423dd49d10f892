"""Every way of training that the bundled trainer knows, by name and ranks, with the options that ask for it.

All of them compute the same steps: four sequences of 32 tokens each, whatever the ranks; of 8 where stages interleave.
"""

from __future__ import annotations

from typing import Any

SEQUENCES = 4
COMMON: dict[str, Any] = {"num_workers": 0, "seq_len": 32}

Options = dict[str, Any]


def _data_parallel(ranks: int, ways: dict[str, Options]) -> dict[str, Options]:
    return {name: {"batch_size": SEQUENCES // ranks, **options} for name, options in ways.items()}


def _set(strategy: str, *settings: str, **options: Any) -> Options:
    return {"strategy": strategy, "settings": list(settings), **options}


ON_TWO = {
    **_data_parallel(2, {
        "ddp": _set("ddp"),
        "ddp, static graph": _set("ddp", "static_graph=yes"),
        "ddp, small buckets, copies": _set("ddp", "bucket_mb=0.05", "gradient_as_bucket_view=no"),
        "ddp, unused parameters looked for": _set("ddp", "find_unused_parameters=yes"),
        "zero1": _set("zero1"),
        "zero1, bucket views": _set("zero1", "parameters_as_bucket_view=yes"),
        "fsdp1": _set("fsdp1"),
        "fsdp1, whole model": _set("fsdp1", wrap="root"),
        "fsdp1, linear": _set("fsdp1", wrap="linear"),
        "fsdp1, shard_grad_op": _set("fsdp1", "sharding=shard_grad_op"),
        "fsdp1, no_shard": _set("fsdp1", "sharding=no_shard"),
        "fsdp1, prefetch": _set("fsdp1", "forward_prefetch=yes", "backward_prefetch=post", "limit_all_gathers=no"),
        "fsdp1, flat parameters": _set("fsdp1", "use_orig_params=no", "backward_prefetch=none"),
        "fsdp2": _set("fsdp2"),
        "fsdp2, offload": _set("fsdp2", "offload=yes"),
        "fsdp2, prefetch": _set("fsdp2", prefetch=2),
        "fsdp2, kept": _set("fsdp2", reshard_after_forward="no"),
        "fsdp2, reduce-scatter buffers": _set("fsdp2", "reduce_scatter_buffers=2"),
        "fsdp2, checkpointing": _set("fsdp2", activation_checkpointing=True),
        "fsdp2, selective checkpointing": _set(
            "fsdp2", activation_checkpointing=True, checkpoint_policy="selective"
        ),
        "deepspeed 1": _set("deepspeed", "stage=1"),
        "deepspeed 2": _set("deepspeed", "stage=2"),
        "deepspeed 2, overlap": _set("deepspeed", "stage=2", "overlap_comm=yes", "reduce_bucket_size=20000"),
        "deepspeed 2, offload": _set("deepspeed", "stage=2", "offload_optimizer=cpu"),
        "deepspeed 3": _set("deepspeed", "stage=3"),
        "deepspeed 3, zero.Init": _set("deepspeed", "stage=3", "zero_init=yes"),
        "deepspeed 3, offload": _set("deepspeed", "stage=3", "offload_optimizer=cpu", "offload_param=cpu"),
    }),
    "tp": _set("fsdp2", tensor_parallel=2, batch_size=4),
    "pp, 1f1b": _set("ddp", pipeline_parallel=2, micro_batches=4, batch_size=1),
    "pp, gpipe": _set("ddp", pipeline_parallel=2, micro_batches=4, batch_size=1, pipeline_schedule="gpipe"),
}  # fmt: skip

ON_FOUR = {
    **_data_parallel(4, {
        "hsdp": _set("fsdp2", "replicas=2"),
        "fsdp2, reshard to two": _set("fsdp2", reshard_after_forward="2"),
        "fsdp1, hybrid": _set("fsdp1", "sharding=hybrid_shard", "replicas=2"),
    }),
    "fsdp2 x tp": _set("fsdp2", tensor_parallel=2, batch_size=2),
    "pp x ddp": _set("ddp", pipeline_parallel=2, micro_batches=2, batch_size=1),
    "pp x zero1": _set("zero1", pipeline_parallel=2, micro_batches=2, batch_size=1),
    "pp x fsdp2": _set("fsdp2", pipeline_parallel=2, micro_batches=2, batch_size=1),
}  # fmt: skip

ON_EIGHT = {"pp x fsdp2 x tp": _set("fsdp2", pipeline_parallel=2, tensor_parallel=2, micro_batches=2, batch_size=1)}

# Interleaved stages need more blocks than the tiny model has, and the small one takes long for each token.
INTERLEAVED = {
    "one rank": _set("fsdp2", preset="small", batch_size=4, seq_len=8),
    "pp, interleaved": _set("ddp", preset="small", pipeline_parallel=2, micro_batches=4, batch_size=1, seq_len=8,
                            pipeline_schedule="interleaved", stages_per_rank=2),
}  # fmt: skip

# Slow to start, or rounded: not among those whose losses are compared to the last digits.
APART = {
    "fsdp2, accumulation": _set("fsdp2", batch_size=1, micro_batches=2),
    "fsdp2, compiled": _set("fsdp2", batch_size=2, compile=True),
    "fsdp2, bf16": _set("fsdp2", batch_size=2, precision="bf16"),
}

BY_RANKS = {2: ON_TWO, 4: ON_FOUR, 8: ON_EIGHT}
