"""Planted mistakes in Accelerate's files, around FSDP and with DeepSpeed."""

from __future__ import annotations

from typing import Any

import pytest

from diag.linting import accelerate as inner
from diag.linting import accelerate as outer
from diag.linting.lint import ACCELERATE_RULES
from tests.lint.build import Case, accelerate_view, check, every_rule, fires, flat, name_of, silent

D = "deepspeed_config."


def ds(**keys: Any) -> dict[str, Any]:
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": keys}


def axes(version: int = 2, **sizes: int) -> dict[str, Any]:
    return {
        "distributed_type": "FSDP",
        "fsdp_config": {"fsdp_version": version},
        "parallelism_config": {f"parallelism_config_{name}_size": size for name, size in sizes.items()},
    }


CASES: dict[Any, list[Case]] = {
    outer.kind_of_run: [
        fires({"compute_environment": "LOCAL_MACHINE"}, ("distributed_type", "error", "refuses")),
        silent({"distributed_type": "NO"}),
    ],
    outer.unknown_keys: [
        fires({"distributed_type": "FSDP", "num_process": 8}, ("num_process", "error", "refuses a file")),
        fires({"distributed_type": "FSDP", "fsdp_version": 2}, ("fsdp_version", "error", "does not know")),
        silent({"distributed_type": "FSDP", "num_processes": 8, "dynamo_config": {}}),
        silent({"compute_environment": "AMAZON_SAGEMAKER", "iam_role_name": "x"}),
    ],
    outer.idle_tables: [
        fires({"distributed_type": "MULTI_GPU", "fsdp_config": {"fsdp_version": 2}},
              ("fsdp_config", "error", "Ignored")),
        fires({"distributed_type": "FSDP"}, ("fsdp_config", "warning", "one unit")),
        fires({"distributed_type": "DEEPSPEED"}, ("deepspeed_config", "warning", "ZeRO-2 without overlap")),
        silent(axes()), silent(ds(zero_stage=3)), silent({"distributed_type": "MULTI_GPU", "fsdp_config": {}}),
    ],
    outer.processes: [
        fires({"distributed_type": "FSDP", "num_processes": 8}, ("num_processes", "error", "8 processes"), gpus=16),
        fires({"distributed_type": "MULTI_GPU", "num_processes": 1}, ("num_processes", "error", "at least 2")),
        fires({"distributed_type": "FSDP", "num_processes": 9, "num_machines": 2},
              ("num_processes", "error", "starts 4 on each, 8 in all")),
        silent({"distributed_type": "FSDP", "num_processes": 16, "num_machines": 2}, gpus=16),
        silent({"distributed_type": "MULTI_GPU"}, gpus=16), silent({"distributed_type": "FSDP", "num_processes": 1}),
        silent({"distributed_type": "MULTI_GPU", "num_processes": 2}),
    ],
    outer.two_precisions: [
        fires({"fp16": True, "mixed_precision": "bf16"},
              ("fp16", "error", "Ignored when mixed_precision is set: bf16")),
        silent({"fp16": True}), silent({"mixed_precision": "bf16"}),
    ],
    outer.parallelism: [
        fires(axes(1, dp_shard=8), ("parallelism_config", "error", "without FSDP2")),
        fires(axes(dp_replicate=2, dp_shard=8), ("parallelism_config", "error", "is 16, not 32"), gpus=32),
        fires(axes(cp=2, sp=2), ("parallelism_config.parallelism_config_sp_size", "error", "exclude")),
        silent(axes(dp_replicate=2, dp_shard=8, tp=2), gpus=32), silent(axes(dp_shard=8)),
        silent(axes(cp=2, sp=1), gpus=2), silent(axes(cp=1, sp=2), gpus=8),
        silent({"distributed_type": "FSDP"}, gpus=32),
    ],
    inner.conflicts_with_file: [
        fires(ds(deepspeed_config_file="ds.json", zero_stage=3), (D + "zero_stage", "error", "Not allowed with")),
        fires(ds(deepspeed_config_file="ds.json") | {"mixed_precision": "bf16"},
              ("mixed_precision", "error", "set bf16 or fp16 in that file")),
        silent(ds(deepspeed_config_file="ds.json", zero3_init_flag=True)),
        silent(ds(zero_stage=3) | {"mixed_precision": "bf16"}),
    ],
    inner.unknown_deepspeed_keys: [
        fires(ds(zero_stge=3), (D + "zero_stge", "error", "ignored")),
        fires(ds(overlap_comm=True), (D + "overlap_comm", "error", "does not know this key")),
        silent(ds(zero_stage=3, gradient_clipping=1.0)),
    ],
    inner.stage_of_zero: [
        fires(ds(zero_stage=5), (D + "zero_stage", "error", "0 to 3")),
        fires(ds(zero_stage=2, offload_param_device="cpu"), (D + "offload_param_device", "error", "stage 3 only")),
        fires(ds(zero_stage=2, zero3_init_flag=True), (D + "zero3_init_flag", "note", "Without effect at stage 2")),
        fires(ds(zero_stage=3, offload_param_device="nvme"),
              (D + "offload_param_nvme_path", "error", "without a path")),
        fires(ds(zero_stage=2, offload_optimizer_device="cpu"),
              (D + "offload_optimizer_device", "warning", "Every step")),
        silent(ds(zero_stage=3, zero3_init_flag=True, offload_param_device="none")),
        silent(ds(zero_stage=2, zero3_init_flag=False, offload_optimizer_device="none")),
    ],
    inner.no_overlap: [
        fires(ds(zero_stage=2), (D + "zero_stage", "warning", "cannot set overlap_comm")),
        fires(ds(gradient_clipping=1.0), (D + "zero_stage", "warning", "stage 2")),
        silent(ds(zero_stage=3)), silent(ds(deepspeed_config_file="ds.json")),
    ],
}  # fmt: skip


def test_every_rule_is_tested() -> None:
    every_rule(ACCELERATE_RULES, CASES)


@pytest.mark.parametrize(("rule", "case"), flat(CASES), ids=name_of)
def test_rules(rule: Any, case: Case) -> None:
    check(rule, accelerate_view(case), case)


def test_the_size_that_would_fit_is_offered() -> None:
    (notice,) = outer.parallelism(accelerate_view(Case(axes(dp_replicate=2, dp_shard=8), gpus=32)))
    assert notice.instead == "parallelism_config_dp_shard_size: 16"
    (notice,) = outer.parallelism(accelerate_view(Case(axes(tp=3, dp_shard=8), gpus=32)))
    assert notice.instead == "parallelism_config_dp_shard_size: 32 over the other sizes"


def test_precision_that_is_off_in_any_spelling() -> None:
    for value in ("no", False, None):
        found = outer.fsdp_of(accelerate_view(Case({"distributed_type": "FSDP", "mixed_precision": value})))
        assert found is not None
        assert found.mixed_precision == "no"


def test_processes_count_as_gpus_where_nobody_says_how_many() -> None:
    assert accelerate_view(Case({"num_processes": 16})).devices.gpus == 16
    assert accelerate_view(Case({"num_processes": 16}, gpus=8)).devices.gpus == 8
    assert accelerate_view(Case({"num_processes": -1})).devices.gpus is None
