"""Planted mistakes in torchtitan's configurations, by newer and older names."""

from __future__ import annotations

from typing import Any

import pytest

from diag.linting import torchtitan as degrees
from diag.linting import torchtitan as training
from diag.linting.lint import TORCHTITAN_RULES, unchecked_torchtitan
from tests.lint.build import Case, check, every_rule, fires, flat, name_of, silent, titan_view

P = "parallelism."


def par(local_batch_size: int = 8, **keys: Any) -> dict[str, Any]:
    return {"parallelism": keys, "training": {"local_batch_size": local_batch_size}}


def pipe(stages: int, batch: int, **keys: Any) -> dict[str, Any]:
    return par(batch, pipeline_parallel_degree=stages, **keys)


CASES: dict[Any, list[Case]] = {
    degrees.degrees: [
        fires(par(tensor_parallel_degree=4, data_parallel_shard_degree=4),
              (P + "data_parallel_shard_degree", "error", "tp 4 x pp 1 x dp_shard 4 = 16, not 32"), gpus=32),
        fires(par(tensor_parallel_degree=3), (P + "data_parallel_shard_degree", "error", "does not divide 8"), gpus=8),
        fires(par(tensor_parallel_degree=0), (P + "tensor_parallel_degree", "error", "0 is not a valid degree")),
        fires({"training": {"tensor_parallel_degree": 3}, "experimental": {}},
              (P + "data_parallel_shard_degree", "error", "does not divide"), gpus=8),
        silent(par(tensor_parallel_degree=4, data_parallel_shard_degree=-1), gpus=32),
        silent(par(tensor_parallel_degree=4, data_parallel_shard_degree=8), gpus=32),
        silent(par(tensor_parallel_degree=3)), silent(par(tensor_parallel_degree=8), gpus=8),
        fires(par(tensor_parallel_degree=-1), (P + "tensor_parallel_degree", "error", "-1 is not a valid degree")),
    ],
    degrees.experts: [
        fires(par(expert_parallel_degree=8, tensor_parallel_degree=4, expert_tensor_parallel_degree=2),
              (P + "expert_tensor_parallel_degree", "error", "refused")),
        silent(par(expert_parallel_degree=8, tensor_parallel_degree=4, expert_tensor_parallel_degree=4)),
        silent(par(tensor_parallel_degree=4, expert_tensor_parallel_degree=2)),
    ],
    degrees.tensor_parallel: [
        fires(par(tensor_parallel_degree=16), (P + "tensor_parallel_degree", "warning", "8 GPUs of a host")),
        fires(par(enable_async_tensor_parallel=True), (P + "enable_async_tensor_parallel", "error", "compiled")),
        silent(par(tensor_parallel_degree=8)),
        silent(par(enable_async_tensor_parallel=True) | {"compile": {"enable": True}}),
    ],
    degrees.sequence: [
        fires({"parallelism": {"context_parallel_degree": 3}, "training": {"seq_len": 2048}},
              ("training.seq_len", "error", "6")),
        silent({"parallelism": {"context_parallel_degree": 4}, "training": {"seq_len": 2048}}),
        silent({"training": {"seq_len": 2047}}),
    ],
    degrees.hybrid_on_one_host: [
        fires(par(data_parallel_replicate_degree=2),
              (P + "data_parallel_replicate_degree", "note", "2 copies"), gpus=8),
        silent(par(data_parallel_replicate_degree=2), gpus=16), silent(par(), gpus=8),
        silent(par(data_parallel_replicate_degree=8, data_parallel_shard_degree=1), gpus=8),
    ],
    degrees.pipeline: [
        fires(pipe(4, 8), ("training.local_batch_size", "warning", "leave 27% of the time idle")),
        fires(pipe(8, 4), ("training.local_batch_size", "error", "at least as many as stages")),
        fires(pipe(4, 8, pipeline_parallel_microbatch_size=3),
              (P + "pipeline_parallel_microbatch_size", "error", "does not divide")),
        fires({"experimental": {"pipeline_parallel_degree": 2, "pipeline_parallel_microbatches": 2},
               "training": {"batch_size": 8}}, ("training.batch_size", "warning", "33%")),
        silent(pipe(4, 32)), silent(pipe(4, 8, pipeline_parallel_schedule="Interleaved1F1B")), silent(pipe(1, 1)),
    ],
    degrees.global_batch: [
        fires({"training": {"local_batch_size": 8, "global_batch_size": 100}},
              ("training.global_batch_size", "error", "8 data-parallel ranks = 64"), gpus=8),
        silent({"training": {"local_batch_size": 8, "global_batch_size": 128}}, gpus=8),
        silent({"training": {"local_batch_size": 8, "global_batch_size": 100}}),
        silent({"training": {"global_batch_size": -1}}, gpus=8),
        fires({"training": {"global_batch_size": 0}},
              ("training.global_batch_size", "error", "0 is not a multiple"), gpus=8),
        silent({"training": {"local_batch_size": 1, "global_batch_size": 3}}, gpus=1),
    ],
    training.moved_keys: [
        fires({"training": {"batch_size": 8}}, ("training.batch_size", "note", "older name")),
        fires({"float8": {"enable_fsdp_float8_all_gather": True}}, ("float8", "note", "older name")),
        silent(par()),
    ],
    training.unknown_keys: [
        fires({"parallelism": {"tensor_parallel_degre": 2}}, (P + "tensor_parallel_degre", "error", "no such key")),
        fires({"paralelism": {"tensor_parallel_degree": 2}}, ("paralelism", "error", "no such table")),
        silent({"training": {"batch_size": 8}, "float8": {}, "experimental": {"x": 1}, "model": {"y": 2}}),
        silent({"job": {"custom_config_module": "flux.job_config"}, "encoder": {"t5": 1}}),
    ],
    training.resharding: [
        fires(par(fsdp_reshard_after_forward="never"),
              (P + "fsdp_reshard_after_forward", "warning", "whole model in 16 bits")),
        fires(par(fsdp_reshard_after_forward="always", pipeline_parallel_degree=4),
              (P + "fsdp_reshard_after_forward", "warning", "each micro-batch")),
        fires(par(fsdp_reshard_after_forward=True), (P + "fsdp_reshard_after_forward", "error", "no policy true")),
        silent(par(fsdp_reshard_after_forward="default")), silent(par(fsdp_reshard_after_forward="always")),
        silent(par(fsdp_reshard_after_forward="never", pipeline_parallel_degree=4)),
    ],
    training.recomputation: [
        fires({"activation_checkpoint": {"mode": "partial"}}, ("activation_checkpoint.mode", "error", "partial")),
        fires({"activation_checkpoint": {"mode": "memory_budget"}},
              ("activation_checkpoint.mode", "error", "option of the compiler")),
        fires({"activation_checkpoint": {"selective_ac_option": "layer"}},
              ("activation_checkpoint.selective_ac_option", "error", "every nth layer")),
        silent({"activation_checkpoint": {"mode": "selective", "selective_ac_option": "op"}}),
        silent({"activation_checkpoint": {"mode": "memory_budget"}, "compile": {"enable": True}}),
        silent({"activation_checkpoint": {"mode": "full", "selective_ac_option": "layer"}}),
    ],
    training.number_types: [
        fires({"training": {"mixed_precision_param": "float32"}},
              ("training.mixed_precision_param", "warning", "32 bits")),
        fires({"training": {"dtype": "bfloat16"}}, ("training.dtype", "note", "without an fp32 copy")),
        fires({"training": {"mixed_precision_reduce": "bfloat16"}},
              ("training.mixed_precision_reduce", "error", "float32 only")),
        silent({"training": {"mixed_precision_param": "bfloat16", "mixed_precision_reduce": "float32"}}),
    ],
    training.offload: [
        fires({"training": {"enable_cpu_offload": True}}, ("training.enable_cpu_offload", "warning", "PCIe")),
        silent({"training": {"enable_cpu_offload": False}}),
    ],
    training.checkpoints: [
        fires({"checkpoint": {"enable": True}}, ("checkpoint.async_mode", "warning", "Training stops")),
        fires({"checkpoint": {"enable_checkpoint": True, "async_mode": "disabled"}},
              ("checkpoint.async_mode", "warning", "Training stops")),
        fires({"checkpoint": {"keep_latest_k": 1}}, ("checkpoint.keep_latest_k", "error", "half-written")),
        silent({"checkpoint": {"enable": True, "async_mode": "async", "keep_latest_k": 2}}), silent({"checkpoint": {}}),
    ],
}  # fmt: skip


def test_every_rule_is_tested() -> None:
    every_rule(set(TORCHTITAN_RULES) - {training.no_more_toml}, CASES)  # which is said of every file


@pytest.mark.parametrize(("rule", "case"), flat(CASES), ids=name_of)
def test_rules(rule: Any, case: Case) -> None:
    check(rule, titan_view(case), case)


def test_what_the_file_cannot_tell() -> None:
    def whats(case: Case) -> list[str]:
        return [unchecked.what for unchecked in unchecked_torchtitan(titan_view(case))]

    own = {"experimental": {"custom_args_module": "flux"}, "training": {}}
    assert whats(Case(par())) == ["whether the product of the degrees is the number of GPUs"]
    assert whats(Case(own, gpus=8)) == ["whether tables and keys are spelled right"]
    assert whats(Case(par(), gpus=8)) == []


def test_the_format_itself_is_said_to_be_gone() -> None:
    (notice,) = training.no_more_toml(titan_view(Case(par())))
    assert notice.severity == "note"


@pytest.mark.parametrize(("stages", "batch"), [(2, 9), (4, 27), (8, 63)])
def test_the_batch_that_is_offered_has_the_bubble_that_is_promised(stages: int, batch: int) -> None:
    """(p - 1) / (m + p - 1) is a tenth at m = 9 (p - 1)."""
    assert (stages - 1) / (batch + stages - 1) == pytest.approx(0.1)
    assert list(degrees.pipeline(titan_view(Case(pipe(stages, batch))))) == []
    (notice,) = degrees.pipeline(titan_view(Case(pipe(stages, batch - 1))))
    assert f"local_batch_size = {batch} " in notice.instead
