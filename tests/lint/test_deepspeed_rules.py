"""Planted mistakes in DeepSpeed's configurations, each with the notice it is to get."""

from __future__ import annotations

from typing import Any

import pytest

from diag.linting import deepspeed as batch
from diag.linting import deepspeed as names
from diag.linting import deepspeed as speed
from diag.linting import deepspeed as zero
from diag.linting.lint import DEEPSPEED_RULES
from tests.lint.build import Case, check, deepspeed_view, every_rule, fires, flat, name_of, silent


def stage(number: Any, **other: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": number, **other}}


def nvme(**other: Any) -> dict[str, Any]:
    return stage(3, offload_optimizer={"device": "nvme", **other})


Z = "zero_optimization."
CASES: dict[Any, list[Case]] = {
    zero.stage_of_zero: [
        fires(stage(4), (Z + "stage", "error", "no ZeRO stage 4")),
        fires(stage("three"), (Z + "stage", "error", "three")),
        silent(stage("auto")), silent(stage(3)), silent({}),
    ],
    zero.keys_of_stage_3: [
        fires(stage(2, stage3_prefetch_bucket_size=5e7), (Z + "stage3_prefetch_bucket_size", "error", "stage 2")),
        fires(stage(1, zero_quantized_weights=True), (Z + "zero_quantized_weights", "error", "stage 1")),
        fires(stage(1, stage3_max_live_parameters=0), (Z + "stage3_max_live_parameters", "error", "sharded")),
        silent(stage(3, stage3_prefetch_bucket_size=5e7)),
        silent(stage(2, stage3_prefetch_bucket_size="auto", zero_hpz_partition_size=1, zero_quantized_weights=False)),
    ],
    zero.offload_of_stage: [
        fires(stage(2, offload_param={"device": "cpu"}), (Z + "offload_param.device", "error", "stage 3 only")),
        fires(stage(0, offload_optimizer={"device": "cpu"}), (Z + "offload_optimizer.device", "error", "ZeRO is off")),
        fires(stage(1, offload_optimizer={"device": "nvme"}), (Z + "offload_optimizer.device", "error", "NVMe")),
        fires(stage(2, offload_optimizer={"device": "cpu", "ratio": 0.3}),
              (Z + "offload_optimizer.ratio", "error", "below stage 3")),
        silent(stage(3, offload_param={"device": "cpu"}, offload_optimizer={"device": "cpu", "ratio": 0.3})),
        silent(stage(2, offload_optimizer={"device": "cpu", "ratio": 1.0})),
        silent(stage(2, offload_param={"device": "none"}, offload_optimizer={"device": "cpu"})),
    ],
    zero.nvme: [
        fires(nvme() | {"aio": {}}, (Z + "offload_optimizer.nvme_path", "error", "without a path")),
        fires(nvme(nvme_path="/nvme"), ("aio", "warning", "one thread")),
        fires(stage(3) | {"aio": {"block_size": 1}}, ("aio", "note", "Not used")),
        silent(nvme(nvme_path="/nvme") | {"aio": {"block_size": 1048576}}),
    ],
    zero.offload_cost: [
        fires(stage(2, offload_optimizer={"device": "cpu"}), (Z + "offload_optimizer.device", "warning", "Every step")),
        fires(stage(3, offload_param={"device": "cpu"}), (Z + "offload_param.device", "warning", "PCIe")),
        silent(stage(3, offload_optimizer={"device": "none"})),
        silent(stage(2, offload_param={"device": "cpu"})),  # does nothing there, so costs nothing
    ],
    zero.pageable_offload: [
        fires(stage(2, offload_optimizer={"device": "cpu", "pin_memory": False}),
              (Z + "offload_optimizer.pin_memory", "warning", "do not overlap")),
        silent(stage(2, offload_optimizer={"device": "cpu", "pin_memory": True})),
        silent(stage(2, offload_optimizer={"device": "none", "pin_memory": False})),
    ],
    zero.hpz_partition: [
        fires(stage(3, zero_hpz_partition_size=8), (Z + "zero_hpz_partition_size", "warning", "one host"), gpus=8),
        fires(stage(3, zero_hpz_partition_size=4), (Z + "zero_hpz_partition_size", "warning", "8"), gpus=32),
        silent(stage(3, zero_hpz_partition_size=8), gpus=32), silent(stage(3, zero_hpz_partition_size=4)),
    ],
    zero.saved_weights: [
        fires(stage(3), (Z + "stage3_gather_16bit_weights_on_model_save", "note", "saves nothing")),
        silent(stage(3, stage3_gather_16bit_weights_on_model_save=False)), silent(stage(2)),
    ],
    speed.overlap: [
        fires(stage(2), (Z + "overlap_comm", "warning", "Off by default at stage 2")),
        fires(stage(1, overlap_comm=False), (Z + "overlap_comm", "warning", "Off:")),
        fires(stage(3, overlap_comm=False), (Z + "overlap_comm", "warning", "not overlapped")),
        silent(stage(3)), silent(stage(2, overlap_comm=True)), silent(stage(0)),
    ],
    speed.bucket_memory: [
        fires(stage(2, overlap_comm=True), (Z + "reduce_bucket_size", "note", "9.00 GB")),
        fires(stage(2, overlap_comm=True, reduce_bucket_size=1e9, allgather_bucket_size=1e9),
              (Z + "reduce_bucket_size", "warning", "18.0 GB")),
        silent(stage(2, overlap_comm=True, reduce_bucket_size=2e8, allgather_bucket_size=2e8)),
        silent(stage(2, overlap_comm=True, reduce_bucket_size="auto")), silent(stage(3)),
    ],
    speed.small_buckets: [
        fires(stage(2, reduce_bucket_size=1000), (Z + "reduce_bucket_size", "warning", "1000 elements")),
        fires(stage(1, allgather_bucket_size=5e5), (Z + "allgather_bucket_size", "warning", "latency")),
        silent(stage(2, reduce_bucket_size=1e6)), silent(stage(2, reduce_bucket_size=5e8)),
        silent(stage(3, allgather_bucket_size=1)),
        silent(stage(0, reduce_bucket_size=1)),
    ],
    speed.prefetch: [
        fires(stage(3, stage3_prefetch_bucket_size=0),
              (Z + "stage3_prefetch_bucket_size", "warning", "not overlapped")),
        fires(stage(3, stage3_max_live_parameters=0), (Z + "stage3_max_live_parameters", "warning", "stops there")),
        fires(stage(3, stage3_prefetch_bucket_size=2e9, stage3_max_live_parameters=4e9),
              (Z + "stage3_prefetch_bucket_size", "warning", "4.00 GB")),
        silent(stage(3, stage3_prefetch_bucket_size=5e7, stage3_max_live_parameters=1e9)),
        silent(stage(3, stage3_prefetch_bucket_size="auto")), silent(stage(2, stage3_prefetch_bucket_size=0)),
        silent(stage(3, stage3_prefetch_bucket_size=1e9)), silent(stage(3, stage3_max_live_parameters=5e7)),
    ],
    speed.persistence: [
        fires(stage(3, stage3_param_persistence_threshold=0),
              (Z + "stage3_param_persistence_threshold", "warning", "bias")),
        fires(stage(3, stage3_param_persistence_threshold=1e8),
              (Z + "stage3_param_persistence_threshold", "warning", "stay unsharded")),
        silent(stage(3, stage3_param_persistence_threshold=1e5)),
        silent(stage(3, stage3_param_persistence_threshold="auto")),
    ],
    speed.single_gpu: [
        fires(stage(3), (Z + "stage", "note", "shards nothing"), gpus=1),
        silent(stage(3, offload_optimizer={"device": "cpu"}), gpus=1), silent(stage(3), gpus=2), silent(stage(3)),
    ],
    batch.batch_sizes: [
        fires({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2},
              ("train_batch_size", "error", "2 a GPU x 2 accumulated x 8 ranks = 32"), gpus=8),
        fires({"train_batch_size": 20, "train_micro_batch_size_per_gpu": 2},
              ("train_batch_size", "error", "not a multiple"), gpus=8),
        fires({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
              ("train_batch_size", "error", "no number of GPUs fits")),
        fires({"train_batch_size": 20}, ("train_batch_size", "error", "20 is not a multiple of 8 ranks"), gpus=8),
        fires({"gradient_accumulation_steps": 0}, ("gradient_accumulation_steps", "error", "more than 0")),
        silent({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}, gpus=8),
        silent({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}),
        silent({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}, gpus=8),
        silent({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}, gpus=8),
        silent({"train_batch_size": 24}, gpus=8), silent({"train_micro_batch_size_per_gpu": 3}, gpus=8),
        silent({"train_batch_size": 32, "gradient_accumulation_steps": 4}, gpus=8),
        silent({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "sequence_parallel_size": 2}, gpus=8),
        silent({"train_batch_size": 5, "train_micro_batch_size_per_gpu": 2, "elasticity": {"enabled": True}}, gpus=8),
    ],
    batch.no_batch_size: [
        fires(stage(2), ("train_micro_batch_size_per_gpu", "error", "only Accelerate and Transformers")),
        silent(stage(2) | {"train_micro_batch_size_per_gpu": 1}), silent(stage(2), reader="Transformers"),
        silent(stage(2) | {"gradient_clipping": "auto"}), silent({"elasticity": {"enabled": True}}),
    ],
    batch.two_precisions: [
        fires({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, ("fp16.enabled", "error", "cannot both be on")),
        fires(stage(1) | {"amp": {"enabled": True}}, ("amp.enabled", "error", "Apex")),
        silent({"fp16": {"enabled": "auto"}, "bf16": {"enabled": True}}),
        silent({"fp16": {"enabled": False}, "bf16": {"enabled": True}}), silent({"amp": {"enabled": True}}),
    ],
    batch.full_precision: [
        fires(stage(2), ("bf16", "warning", "twice the bytes")),
        fires({"bf16": {"enabled": False}}, ("bf16", "warning", "32 bits")),
        silent({"bf16": {"enabled": True}}), silent(stage(2), reader="Accelerate"), silent({"data_types": {}, "x": 1}),
    ],
    batch.reduced_precision: [
        fires({"communication_data_type": "BF16"}, ("communication_data_type", "note", "in bf16")),
        silent({"communication_data_type": "fp32"}), silent({}),
    ],
    batch.optimizer: [
        fires({"optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1.0}}},
              ("optimizer.params.max_grad_norm", "error", "refuses it")),
        fires(stage(1) | {"optimizer": {"type": "OneBitAdam"}}, ("optimizer.type", "error", "does not work with ZeRO")),
        silent({"optimizer": {"type": "OneBitAdam"}}), silent(stage(2) | {"optimizer": {"type": "AdamW"}}),
    ],
    batch.activation_checkpointing: [
        fires({"activation_checkpointing": {"partition_activations": True}},
              ("activation_checkpointing", "note", "checkpoints nothing by itself")),
        silent({}),
    ],
    names.unknown_keys: [
        fires(stage(3, overlap_com=True), (Z + "overlap_com", "error", "refuses to start")),
        fires({"bf16": {"enable": True}}, ("bf16.enable", "error", "does not know")),
        fires(stage(3, offload_param={"devise": "cpu"}), (Z + "offload_param.devise", "error", "does not know")),
        fires({"gradient_accumulation_step": 4}, ("gradient_accumulation_step", "error", "ignored")),
        fires({"overlap_comm": True}, ("overlap_comm", "error", "belongs in zero_optimization")),
        fires({"my_notes": "x"}, ("my_notes", "warning", "ignored")),
        silent(stage(3, overlap_comm=True) | {"gradient_clipping": 1.0, "wall_clock_breakdown": False}),
    ],
    names.deprecated_keys: [
        fires(stage(2, cpu_offload=True), (Z + "cpu_offload", "note", "Deprecated")),
        fires({"zero_optimization": True}, ("zero_optimization", "note", "true is stage 1")),
        fires({"bfloat16": {"enabled": True}}, ("bfloat16", "note", "old name")),
        silent(stage(2, offload_optimizer={"device": "cpu"}) | {"bf16": {"enabled": True}}),
    ],
    names.auto_values: [
        fires(stage(2, reduce_bucket_size="auto"),
              (Z + "reduce_bucket_size", "note", "Accelerate and Transformers only")),
        silent(stage(2, reduce_bucket_size="auto"), reader="Transformers"), silent(stage(2)),
    ],
}  # fmt: skip
# Of the text itself, below.
OF_SYNTAX = (names.repeated_keys, names.comments, names.syntax)


def test_every_rule_is_tested() -> None:
    every_rule(set(DEEPSPEED_RULES) - set(OF_SYNTAX), CASES)


@pytest.mark.parametrize(("rule", "case"), flat(CASES), ids=name_of)
def test_rules(rule: Any, case: Case) -> None:
    check(rule, deepspeed_view(case), case)


@pytest.mark.parametrize(
    ("key", "near"),
    [("overlap_com", '"overlap_comm"'), ("reduce_bucketsize", '"reduce_bucket_size"'), ("zzz", "remove it")],
)
def test_the_nearest_key_is_offered(key: str, near: str) -> None:
    (notice,) = names.unknown_keys(deepspeed_view(Case(stage(3, **{key: 1}))))
    assert notice.instead == near
