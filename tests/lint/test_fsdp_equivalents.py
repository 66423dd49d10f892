"""FSDP1's keys line by line: what FSDP2 has for each."""

from __future__ import annotations

from typing import Any

import pytest

from diag.linting.fsdp import equivalents
from tests.lint.build import Case, fsdp_view


def rows(values: dict[str, Any], gpus: int | None = None) -> dict[str, tuple[str, str]]:
    found = equivalents(fsdp_view(Case(values, gpus=gpus)))
    return {row.key: (row.config, row.python) for row in found}


def accelerate(**keys: Any) -> dict[str, Any]:
    return {"distributed_type": "FSDP", "fsdp_config": {f"fsdp_{key}": value for key, value in keys.items()}}


@pytest.mark.parametrize(
    ("key", "value", "config", "python"),
    [
        ("sharding_strategy", "FULL_SHARD", '"fsdp_reshard_after_forward": true', "reshard_after_forward=True"),
        ("sharding_strategy", "SHARD_GRAD_OP", '"fsdp_reshard_after_forward": false', "reshard_after_forward=False"),
        ("sharding_strategy", 2, '"fsdp_reshard_after_forward": false', "reshard_after_forward=False"),
        ("sharding_strategy", "NO_SHARD", "distributed_type: MULTI_GPU", "DistributedDataParallel(model)"),
        ("sharding_strategy", "HYBRID_SHARD", "dp_replicate_size: 2, parallelism_config_dp_shard_size: 8", "(2, 8)"),
        ("backward_prefetch", "BACKWARD_PRE", "remove", "always prefetches as BACKWARD_PRE"),
        ("forward_prefetch", True, "remove", "set_modules_to_forward_prefetch"),
        ("use_orig_params", True, "remove", "always the case"),
        ("sync_module_states", True, "remove", "broadcast_from_rank0=True"),
        ("cpu_ram_efficient_loading", True, "unchanged", "meta device"),
        ("state_dict_type", "FULL_STATE_DICT", "unchanged", "full_state_dict=True"),
        ("state_dict_type", "LOCAL_STATE_DICT", '"fsdp_state_dict_type": "SHARDED_STATE_DICT"', "get_model_state_dict"),
        ("offload_params", True, "unchanged", "CPUOffloadPolicy()"),
        ("offload_params", False, "unchanged", "nothing"),
        ("auto_wrap_policy", "SIZE_BASED_WRAP", "unchanged", "no such policy"),
        ("auto_wrap_policy", "NO_WRAP", '"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"', "fully_shard(model)"),
        ("transformer_layer_cls_to_wrap", "A,B", "unchanged", "isinstance(module, (A, B))"),
        ("activation_checkpointing", True, "unchanged", "checkpoint_wrapper(block)"),
        ("ignored_modules", "head", "unchanged", "ignored_params"),
        ("min_num_params", 1000, "unchanged", "choose modules"),
        ("version", 1, '"fsdp_version": 2', "fully_shard"),
    ],
)
def test_each_key(key: str, value: object, config: str, python: str) -> None:
    found = rows(accelerate(**{key: value}), gpus=16)[f"fsdp_{key}"]
    assert config in found[0]
    assert python in found[1]


def test_words_of_fsdp_and_the_number_type() -> None:
    found = equivalents(fsdp_view(Case({"fsdp": "shard_grad_op auto_wrap offload", "fsdp_config": {"version": 1}})))
    assert [(row.key, row.value) for row in found] == [
        ("fsdp", "shard_grad_op"), ("fsdp", "auto_wrap"), ("fsdp", "offload"), ("version", "1"),
    ]  # fmt: skip
    assert found[0].config == '"reshard_after_forward": false'
    assert found[2].config == '"cpu_offload": true'
    values = accelerate(sharding_strategy="FULL_SHARD") | {"mixed_precision": "bf16"}
    config, python = rows(values)["mixed_precision"]
    assert config == "unchanged"
    assert "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)" in python


def test_fsdp2_needs_none() -> None:
    assert rows(accelerate(version=2, reshard_after_forward=True)) == {}
    assert rows(accelerate(use_orig_params=True))["fsdp_version"][0] == '"fsdp_version": 2'
