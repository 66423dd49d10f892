"""Realistic configurations of each format with nothing wrong in them, and each of them with one thing broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.linting.model import Format, NoticeSeverity
from tests.lint.build import linted

ZERO_2 = """{
  "train_batch_size": 256,
  "train_micro_batch_size_per_gpu": 8,
  "gradient_accumulation_steps": 4,
  "gradient_clipping": 1.0,
  "steps_per_print": 100,
  "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 500}},
  "zero_optimization": {
    "stage": 2,
    "overlap_comm": true,
    "contiguous_gradients": true,
    "reduce_scatter": true,
    "reduce_bucket_size": 2e8,
    "allgather_partitions": true,
    "allgather_bucket_size": 2e8
  },
  "wall_clock_breakdown": false
}
"""
ZERO_3_AUTO = """{
  "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
           "min_loss_scale": 1},
  "bf16": {"enabled": "auto"},
  "zero_optimization": {
    "stage": 3,
    "overlap_comm": true,
    "contiguous_gradients": true,
    "sub_group_size": 1e9,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": true
  },
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto"
}
"""
ACCELERATE_FSDP2 = """compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_version: 2
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
ACCELERATE_FSDP1 = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: false
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_use_orig_params: true
  fsdp_version: 1
machine_rank: 0
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
ACCELERATE_DEEPSPEED = """compute_environment: LOCAL_MACHINE
deepspeed_config:
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
distributed_type: DEEPSPEED
machine_rank: 0
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
ACCELERATE_DDP = """compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
gpu_ids: all
machine_rank: 0
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
ARGUMENTS = """output_dir: out
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
learning_rate: 2.0e-5
num_train_epochs: 3
bf16: true
dataloader_num_workers: 4
fsdp: true
fsdp_config:
  version: 2
  reshard_after_forward: true
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  transformer_layer_cls_to_wrap: [LlamaDecoderLayer]
  state_dict_type: FULL_STATE_DICT
  cpu_ram_efficient_loading: true
  activation_checkpointing: true
model_name_or_path: meta-llama/Llama-3.1-8B
"""
FSDP_CONFIG = """{
  "version": 2,
  "reshard_after_forward": true,
  "cpu_offload": false,
  "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
  "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
  "state_dict_type": "FULL_STATE_DICT",
  "cpu_ram_efficient_loading": true,
  "activation_checkpointing": true
}
"""
TITAN = """# 70 billion parameters on 64 GPUs
[job]
dump_folder = "./outputs"
description = "Llama 3 70B training"

[profiling]
enable_profiling = true
profile_freq = 100

[model]
name = "llama3"
flavor = "70B"
hf_assets_path = "./assets/hf/Llama-3.1-70B"

[optimizer]
name = "AdamW"
lr = 1.5e-4

[lr_scheduler]
warmup_steps = 200

[training]
local_batch_size = 8
seq_len = 8192
max_norm = 1.0
steps = 1000
dataset = "c4"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8  # a host
pipeline_parallel_degree = 1
context_parallel_degree = 1

[checkpoint]
enable = true
interval = 500
async_mode = "async"

[activation_checkpoint]
mode = "full"

[compile]
enable = true
components = ["model", "loss"]
"""
OLDER_TITAN = """[job]
dump_folder = "./outputs"

[training]
batch_size = 8
seq_len = 2048
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
compile = false

[experimental]
pipeline_parallel_degree = 1

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""
CLEAN = {
    "ZeRO-2": (ZERO_2, Format.DEEPSPEED),
    "ZeRO-3 with auto": (ZERO_3_AUTO, Format.DEEPSPEED),
    "Accelerate, FSDP2": (ACCELERATE_FSDP2, Format.ACCELERATE),
    "Accelerate, FSDP1": (ACCELERATE_FSDP1, Format.ACCELERATE),
    "Accelerate, DeepSpeed": (ACCELERATE_DEEPSPEED, Format.ACCELERATE),
    "Accelerate, DDP": (ACCELERATE_DDP, Format.ACCELERATE),
    "TrainingArguments": (ARGUMENTS, Format.TRAINING_ARGUMENTS),
    "fsdp_config": (FSDP_CONFIG, Format.FSDP_CONFIG),
    "torchtitan": (TITAN, Format.TORCHTITAN),
    "older torchtitan": (OLDER_TITAN, Format.TORCHTITAN),
}


@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("gpus", [None, 8])
def test_nothing_wrong_is_found(tmp_path: Path, name: str, gpus: int | None) -> None:
    """Whatever the file is called."""
    text, kind = CLEAN[name]
    found = linted(tmp_path / "config", text, gpus)
    assert found.format is kind
    assert [notice for notice in found.notices if notice.severity is not NoticeSeverity.NOTE] == []


@pytest.mark.parametrize(
    ("name", "old", "new", "key", "severity", "line"),
    [
        ("ZeRO-2", '"train_batch_size": 256', '"train_batch_size": 250', "train_batch_size", "error", 2),
        ("ZeRO-2", '"overlap_comm": true', '"overlap_comm": false', "zero_optimization.overlap_comm", "warning", 12),
        ("Accelerate, FSDP2", "fsdp_version: 2", "fsdp_version: 1",
         "fsdp_config.fsdp_reshard_after_forward", "error", 11),
        ("Accelerate, DeepSpeed", "zero_stage: 3", "zero_stage: 2", "deepspeed_config.zero_stage", "warning", 9),
        ("Accelerate, DDP", "num_processes: 8", "num_processes: 1", "num_processes", "error", 7),
        ("TrainingArguments", "bf16: true", "bf16: true\nfp16: true", "fp16", "error", 7),
        ("torchtitan", "tensor_parallel_degree = 8", "tensor_parallel_degree = 3",
         "parallelism.data_parallel_shard_degree", "error", 31),
    ],
)  # fmt: skip
def test_one_thing_broken(tmp_path: Path, name: str, old: str, new: str, key: str, severity: str, line: int) -> None:
    text = CLEAN[name][0]
    assert old in text
    found = linted(tmp_path / "config", text.replace(old, new), 8 if name != "Accelerate, DDP" else None)
    assert (key, severity, line) in [(notice.key, str(notice.severity), notice.line) for notice in found.notices]


def test_errors_come_first(tmp_path: Path) -> None:
    text = ZERO_2.replace('"overlap_comm": true', '"overlap_com": true').replace("2e8", '2e8, "cpu_offload": true', 1)
    order = [notice.severity for notice in linted(tmp_path / "ds.json", text).notices]
    assert order == sorted(order, key=list(NoticeSeverity).index)
    assert set(order) == set(NoticeSeverity)
