"""Planted mistakes in FSDP's configurations, of both tools and both versions."""

from __future__ import annotations

from typing import Any

import pytest

from diag.linting import fsdp as memory
from diag.linting import fsdp as sharding
from diag.linting import fsdp as versions
from diag.linting.lint import FSDP_RULES
from tests.lint.build import Case, check, every_rule, fires, flat, fsdp_view, name_of, silent


def acc(version: int | None = 1, precision: str = "bf16", **keys: Any) -> dict[str, Any]:
    """Accelerate's file; keys without their prefix."""
    config = {f"fsdp_{key}": value for key, value in keys.items()}
    if version is not None:
        config["fsdp_version"] = version
    return {"distributed_type": "FSDP", "mixed_precision": precision, "fsdp_config": config}


def hf(fsdp: Any = "full_shard auto_wrap", outer: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """TrainingArguments."""
    return {"fsdp": fsdp, "fsdp_config": keys, "bf16": True, **(outer or {})}


F = "fsdp_config.fsdp_"
H = "fsdp_config."
CASES: dict[Any, list[Case]] = {
    versions.fsdp1: [
        fires(acc(1), (F + "version", "note", "deprecated in favour of FSDP2")),
        fires(acc(None, x=1), (F + "version", "note", "the default here")),
        fires(hf(version=1), (H + "version", "note", "v5.20")),
        silent(acc(2)), silent(hf(version=2)),
    ],
    versions.version_not_given: [
        fires(hf(), (H + "version", "warning", "older Transformers take FSDP1")),
        fires({"transformer_layer_cls_to_wrap": ["Block"]}, ("version", "warning", "newer ones FSDP2")),
        silent(hf(version=1)), silent(acc(None)),
    ],
    versions.no_such_version: [fires(acc(3), (F + "version", "error", "1 or 2")), silent(acc(2)), silent(acc(None))],
    versions.strategy_in_fsdp2: [
        fires(acc(2, sharding_strategy="SHARD_GRAD_OP"), (F + "sharding_strategy", "error", "Ignored with FSDP2")),
        fires(hf("hybrid_shard", version=2), ("fsdp", "error", "FSDP1 only")),
        silent(acc(1, sharding_strategy="SHARD_GRAD_OP")), silent(hf("full_shard", version=2)), silent(acc(2)),
    ],
    versions.reshard_without_value: [
        fires(hf(version=2), (H + "reshard_after_forward", "warning", "older Transformers then take false")),
        silent(hf(version=2, reshard_after_forward=True)), silent(acc(2)), silent(hf(version=1)),
    ],
    versions.reshard_of_other_version: [
        fires(acc(2, reshard_after_forward="SHARD_GRAD_OP"), (F + "reshard_after_forward", "error", "true or false")),
        fires(acc(1, reshard_after_forward=True), (F + "reshard_after_forward", "error", "no effect")),
        fires(acc(1, reshard_after_forward="SHARD_GRAD_OP"),
              (F + "reshard_after_forward", "error", "The run shards as FULL_SHARD")),
        silent(acc(1, reshard_after_forward="FULL_SHARD")), silent(acc(2, reshard_after_forward=False)),
        silent(acc(1, sharding_strategy="SHARD_GRAD_OP", reshard_after_forward="SHARD_GRAD_OP")),
        silent(hf(True, version=1, reshard_after_forward="shard_grad_op")),
    ],
    versions.keys_without_use_in_fsdp2: [
        fires(acc(2, backward_prefetch="BACKWARD_PRE"), (F + "backward_prefetch", "note", "always prefetches")),
        fires(acc(2, backward_prefetch="NO_PREFETCH"), (F + "backward_prefetch", "error", "Ignored with FSDP2")),
        fires(acc(2, forward_prefetch=True), (F + "forward_prefetch", "error", "set_modules_to_forward_prefetch")),
        fires(acc(2, use_orig_params=False), (F + "use_orig_params", "error", "always keeps")),
        fires(hf(True, version=2, limit_all_gathers=True), (H + "limit_all_gathers", "note", "rate limiter")),
        silent(acc(1, backward_prefetch="NO_PREFETCH")), silent(acc(2, reshard_after_forward=True)),
    ],
    versions.local_state: [
        fires(acc(2, state_dict_type="LOCAL_STATE_DICT"), (F + "state_dict_type", "error", "refuses to start")),
        silent(acc(1, state_dict_type="LOCAL_STATE_DICT")), silent(acc(2, state_dict_type="SHARDED_STATE_DICT")),
    ],
    versions.unknown_keys: [
        fires(acc(1, shardng_strategy="FULL_SHARD"), (F + "shardng_strategy", "error", "ignored")),
        fires(acc(1, limit_all_gathers=True), (F + "limit_all_gathers", "error", "rate limiter stays on")),
        fires(hf(sharding_strategy="FULL_SHARD"),
              (H + "sharding_strategy", "error", "Transformers does not know this key")),
        silent(acc(1, offload_params=False, ignored_modules=".*head")), silent(hf(xla=False, limit_all_gathers=True)),
    ],
    sharding.unknown_strategy: [
        fires(acc(1, sharding_strategy="FULL"), (F + "sharding_strategy", "error", "no such sharding strategy")),
        silent(acc(1, sharding_strategy="FULL_SHARD")), silent(acc(1, sharding_strategy=1)),
    ],
    sharding.shard_grad_op: [
        fires(acc(1, sharding_strategy="SHARD_GRAD_OP"), (F + "sharding_strategy", "note", "Not ZeRO-2")),
        fires(hf("shard_grad_op auto_wrap"), ("fsdp", "note", "stay whole until backward")),
        silent(acc(1, sharding_strategy="FULL_SHARD")), silent(hf()),
    ],
    sharding.kept_whole: [
        fires(acc(2, reshard_after_forward=False), (F + "reshard_after_forward", "note", "one all-gather less")),
        silent(acc(2, reshard_after_forward=True)), silent(acc(1, reshard_after_forward=False)),
    ],
    sharding.no_shard: [
        fires(acc(1, sharding_strategy="NO_SHARD"), (F + "sharding_strategy", "note", "DistributedDataParallel")),
        silent(acc(1, sharding_strategy="FULL_SHARD")),
    ],
    sharding.hybrid_on_one_host: [
        fires(acc(1, sharding_strategy="HYBRID_SHARD"), (F + "sharding_strategy", "note", "FULL_SHARD"), gpus=8),
        fires(hf("hybrid_shard_zero2 auto_wrap"), ("fsdp", "note", "SHARD_GRAD_OP"), gpus=4),
        silent(acc(1, sharding_strategy="HYBRID_SHARD"), gpus=16), silent(acc(1, sharding_strategy="HYBRID_SHARD")),
    ],
    sharding.whole_model: [
        fires(acc(1), (F + "auto_wrap_policy", "warning", "the model is one unit")),
        fires(acc(2, auto_wrap_policy="NO_WRAP"), (F + "auto_wrap_policy", "warning", "nothing overlaps")),
        fires(acc(1, auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=0),
              (F + "min_num_params", "warning", "switches the policy off")),
        fires(acc(1, auto_wrap_policy="BLOCKS"), (F + "auto_wrap_policy", "error", "no such policy")),
        fires(hf("full_shard"), (H + "auto_wrap_policy", "warning", "No auto-wrap policy")),
        silent(acc(1, auto_wrap_policy="SIZE_BASED_WRAP")), silent(hf()), silent(hf(True, version=2)),
        silent(acc(2, auto_wrap_policy="TRANSFORMER_BASED_WRAP")), silent({"fsdp_backward_prefetch": "backward_pre"}),
    ],
    sharding.wrap_keys: [
        fires(hf(min_num_params=1000, transformer_layer_cls_to_wrap=["Block"]),
              (H + "min_num_params", "error", "excludes transformer_layer_cls_to_wrap")),
        fires(acc(1, auto_wrap_policy="SIZE_BASED_WRAP", transformer_layer_cls_to_wrap="Block"),
              (F + "transformer_layer_cls_to_wrap", "error", "does not look at classes")),
        fires(acc(1, auto_wrap_policy="TRANSFORMER_BASED_WRAP", min_num_params=1000),
              (F + "min_num_params", "error", "does not look at sizes")),
        silent(acc(1, auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000)), silent(hf(min_num_params=1000)),
    ],
    sharding.backward_prefetch: [
        fires(acc(1), (F + "backward_prefetch", "warning", "the default of Accelerate")),
        fires(hf(backward_prefetch="no_prefetch"), (H + "backward_prefetch", "warning", "exposed (not overlapped)")),
        fires(acc(1, backward_prefetch="BACKWARD_POST"), (F + "backward_prefetch", "note", "less overlap")),
        silent(acc(1, backward_prefetch="BACKWARD_PRE")), silent(acc(2)), silent(hf(backward_prefetch="backward_pre")),
        silent(acc(1, sharding_strategy="NO_SHARD")),
    ],
    sharding.forward_prefetch: [
        fires(acc(1, forward_prefetch=True), (F + "forward_prefetch", "note", "overlap in forward without it")),
        fires(hf(forward_prefetch="True"), (H + "forward_prefetch", "note", "CPU is late")),
        silent(acc(1, forward_prefetch=False)), silent(acc(2, forward_prefetch=True)),
    ],
    sharding.rate_limiter: [
        fires(hf(limit_all_gathers=True), (H + "limit_all_gathers", "note", "A rate limiter, not overlap")),
        fires(hf(limit_all_gathers="false"), (H + "limit_all_gathers", "warning", "any number of all-gathers")),
        silent(hf()), silent(acc(1, limit_all_gathers=True)), silent(hf(True, version=2, limit_all_gathers=True)),
    ],
    memory.offload: [
        fires(acc(2, offload_params=True), (F + "offload_params", "warning", "PCIe")),
        fires(hf("full_shard auto_wrap offload"), ("fsdp", "warning", "optimizer runs on the CPU")),
        fires(hf(True, version=2, cpu_offload=True), (H + "cpu_offload", "warning", "PCIe")),
        silent(acc(2, offload_params=False)), silent(hf()),
    ],
    memory.loading: [
        fires(acc(1, cpu_ram_efficient_loading=True, sync_module_states=False),
              (F + "sync_module_states", "error", "only rank 0 has weights")),
        fires(hf(cpu_ram_efficient_loading="true", sync_module_states="false"),
              (H + "sync_module_states", "error", "refused")),
        silent(acc(1, cpu_ram_efficient_loading=True, sync_module_states=True)),
        silent(acc(1, cpu_ram_efficient_loading=True)), silent(acc(1, sync_module_states=False)),
    ],
    memory.reduce_precision: [
        fires(acc(2), ("mixed_precision", "note", "reduces gradients in bf16")),
        fires(hf(), ("bf16", "note", "reduces gradients in bf16")),
        silent(acc(2, "no")), silent(acc(2, "fp8")),
    ],
    memory.full_precision: [
        fires(acc(2, "no"), ("mixed_precision", "warning", "twice the bytes")),
        fires({"fsdp": True, "output_dir": "o"}, ("bf16", "warning", "32 bits")),
        silent(acc(2, "fp16")), silent(hf()), silent({"fsdp_backward_prefetch": "backward_pre"}),
    ],
    memory.recomputation: [
        fires(hf(activation_checkpointing=True, outer={"gradient_checkpointing": True}),
              ("gradient_checkpointing", "error", "refuses both")),
        fires(hf(outer={"gradient_checkpointing": True}),
              ("gradient_checkpointing", "warning", "once more in backward")),
        silent(hf(activation_checkpointing=True)), silent(acc(1, activation_checkpointing=True)),
    ],
    memory.single_gpu: [
        fires(acc(2), (F + "version", "note", "shards nothing"), gpus=1),
        silent(acc(2), gpus=2), silent(acc(2)), silent(acc(2, offload_params=True), gpus=1),
    ],
}  # fmt: skip


def test_every_rule_is_tested() -> None:
    every_rule(FSDP_RULES, CASES)


@pytest.mark.parametrize(("rule", "case"), flat(CASES), ids=name_of)
def test_rules(rule: Any, case: Case) -> None:
    check(rule, fsdp_view(case), case)


@pytest.mark.parametrize(
    ("rule", "values", "instead"),
    [
        (versions.strategy_in_fsdp2, acc(2, sharding_strategy="FULL_SHARD"), "true"),
        (versions.strategy_in_fsdp2, acc(2, sharding_strategy="SHARD_GRAD_OP"), "false"),
        (versions.strategy_in_fsdp2, acc(2, sharding_strategy="HYBRID_SHARD_ZERO2"), "false"),
        (versions.reshard_of_other_version, acc(2, reshard_after_forward="FULL_SHARD"), "true"),
        (versions.reshard_of_other_version, acc(2, reshard_after_forward="SHARD_GRAD_OP"), "false"),
        (versions.reshard_of_other_version, acc(1, reshard_after_forward="HYBRID_SHARD"), "HYBRID_SHARD"),
        (memory.reduce_precision, acc(1), "MixedPrecision(param_dtype=torch.bfloat16"),
        (memory.reduce_precision, acc(2, "fp16"), "MixedPrecisionPolicy(param_dtype=torch.float16"),
        (memory.loading, acc(1, cpu_ram_efficient_loading=True, sync_module_states=False), "true"),
        (memory.loading, acc(2, cpu_ram_efficient_loading=True, sync_module_states=False), "remove it"),
        (sharding.no_shard, acc(1, sharding_strategy="NO_SHARD"), "distributed_type: MULTI_GPU"),
        (sharding.no_shard, hf("no_shard"), "remove fsdp"),
        (sharding.whole_model, hf(True, version=1, auto_wrap_policy="NO_WRAP"), '"auto_wrap_policy"'),
        (sharding.whole_model, acc(1, auto_wrap_policy="NO_WRAP"), '"fsdp_auto_wrap_policy"'),
    ],
)
def test_what_is_offered(rule: Any, values: dict[str, Any], instead: str) -> None:
    (notice,) = rule(fsdp_view(Case(values)))
    assert instead in notice.instead


def test_hybrid_names_are_written_as_the_tool_writes_them() -> None:
    (notice,) = sharding.hybrid_on_one_host(fsdp_view(Case(hf("hybrid_shard"), gpus=8)))
    assert notice.instead == "full_shard"
    (notice,) = sharding.hybrid_on_one_host(fsdp_view(Case(acc(1, sharding_strategy="HYBRID_SHARD"), gpus=8)))
    assert notice.instead == "FULL_SHARD"


def test_a_size_based_policy_without_a_size() -> None:
    """Accelerate's launcher has a default of 1e8, Transformers' fsdp_config one of 0."""
    size = {"auto_wrap_policy": "SIZE_BASED_WRAP"}
    assert list(sharding.whole_model(fsdp_view(Case(acc(1, **size))))) == []
    (notice,) = sharding.whole_model(fsdp_view(Case(hf(True, version=2, **size))))
    assert notice.key == "fsdp_config.min_num_params"


def test_keys_are_offered_as_the_file_writes_them() -> None:
    (notice,) = sharding.backward_prefetch(fsdp_view(Case(acc(1))))
    assert notice.instead == '"fsdp_backward_prefetch": "BACKWARD_PRE"'
    (notice,) = versions.unknown_keys(fsdp_view(Case(acc(1, shardng_strategy="FULL_SHARD"))))
    assert notice.instead == "fsdp_sharding_strategy"
    (notice,) = versions.version_not_given(fsdp_view(Case({"fsdp_backward_prefetch": "backward_pre"})))
    assert notice.instead == '"fsdp_version": 2'
    (notice,) = sharding.whole_model(fsdp_view(Case(hf("full_shard"))))
    assert notice.instead == '"fsdp": "full_shard auto_wrap"'
