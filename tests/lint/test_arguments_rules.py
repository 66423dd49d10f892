"""Planted mistakes in TrainingArguments, and in the DeepSpeed configurations that they name."""

from __future__ import annotations

from typing import Any

import pytest

from diag.linting import arguments as hf
from diag.linting.arguments import DEEPSPEED_RULES, mismatches, precision_mismatch
from diag.linting.deepspeed import deepspeed_of
from diag.linting.model import Devices
from tests.lint.build import Case, arguments_view, check, every_rule, fires, flat, name_of, said, silent

CASES: dict[Any, list[Case]] = {
    hf.fsdp_words: [
        fires({"fsdp": "full_shrd"}, ("fsdp", "error", "'full_shrd'"), ("fsdp", "note", "v5.20")),
        fires({"fsdp": ["offload"]}, ("fsdp", "error", "needs a sharding strategy"), ("fsdp", "note", "deprecated")),
        fires({"fsdp": "full_shard shard_grad_op"}, ("fsdp", "error", "exclude"), ("fsdp", "note", "deprecated")),
        fires({"fsdp": "full_shard auto_wrap"}, ("fsdp", "note", "deprecated")),
        silent({"fsdp": True}), silent({"fsdp": ""}), silent({}),
    ],
    hf.idle_fsdp_config: [
        fires({"fsdp_config": {"version": 2}}, ("fsdp_config", "error", "fsdp is not enabled")),
        silent({"fsdp_config": {"version": 2}, "fsdp": True}), silent({"fsdp_config": {}}),
    ],
    hf.two_engines: [
        fires({"fsdp": True, "deepspeed": "ds.json"}, ("fsdp", "error", "the Trainer refuses")),
        silent({"fsdp": "", "deepspeed": "ds.json"}), silent({"fsdp": True}),
    ],
    hf.two_precisions: [
        fires({"fp16": True, "bf16": True}, ("fp16", "error", "cannot both be true")),
        silent({"fp16": False, "bf16": True}),
    ],
    hf.data_loading: [
        fires({"dataloader_num_workers": 0}, ("dataloader_num_workers", "warning", "training process itself")),
        fires({"dataloader_prefetch_factor": 2}, ("dataloader_prefetch_factor", "error", "without workers")),
        silent({"dataloader_num_workers": 4, "dataloader_prefetch_factor": 2}), silent({}),
    ],
    hf.slow_switches: [
        fires({"torch_empty_cache_steps": 4}, ("torch_empty_cache_steps", "warning", "10 %")),
        fires({"ddp_find_unused_parameters": True}, ("ddp_find_unused_parameters", "warning", "autograd graph")),
        fires({"full_determinism": True}, ("full_determinism", "warning", "debugging")),
        silent({"ddp_find_unused_parameters": False, "torch_empty_cache_steps": None}),
    ],
    hf.misspelled: [
        fires({"per_device_train_batchsize": 4}, ("per_device_train_batchsize", "error", "no such field")),
        fires({"gradient_acumulation_steps": 4}, ("gradient_acumulation_steps", "error", "no such field")),
        silent({"model_name_or_path": "gpt2", "dataset_name": "x", "max_seq_length": 128, "bf16": True}),
    ],
}  # fmt: skip
# A DeepSpeed configuration beside arguments: (arguments, configuration, what is expected).
BESIDE: dict[Any, list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, str]]]]] = {
    mismatches: [
        ({"gradient_accumulation_steps": 4}, {"gradient_accumulation_steps": 8},
         [("deepspeed.gradient_accumulation_steps", "error")]),
        ({}, {"train_micro_batch_size_per_gpu": 4}, [("deepspeed.train_micro_batch_size_per_gpu", "error")]),
        ({"learning_rate": "2e-5"}, {"optimizer": {"params": {"lr": 1e-5}}},
         [("deepspeed.optimizer.params.lr", "error")]),
        ({"per_device_train_batch_size": 4}, {"train_micro_batch_size_per_gpu": "auto"}, []),
        ({"learning_rate": "2e-5"}, {"optimizer": {"params": {"lr": 2e-5}}}, []),
        ({}, {"gradient_clipping": 1.0}, []),
    ],
    precision_mismatch: [
        ({"bf16": True}, {"bf16": {"enabled": False}}, [("deepspeed.bf16.enabled", "error")]),
        ({}, {"fp16": {"enabled": True}}, [("deepspeed.fp16.enabled", "error")]),
        ({"bf16": True}, {"bf16": {"enabled": "auto"}, "fp16": {"enabled": False}}, []),
        ({"bf16": True}, {"bf16": {"enabled": True}}, []),
    ],
}  # fmt: skip


def test_every_rule_is_tested() -> None:
    every_rule(hf.RULES, CASES)
    assert set(BESIDE) == set(DEEPSPEED_RULES)


@pytest.mark.parametrize(("rule", "case"), flat(CASES), ids=name_of)
def test_rules(rule: Any, case: Case) -> None:
    check(rule, arguments_view(case), case)


@pytest.mark.parametrize(
    ("rule", "arguments", "config", "expected"), [(rule, *row) for rule, rows in BESIDE.items() for row in rows]
)
def test_arguments_and_deepspeed_agree(
    rule: Any, arguments: dict[str, Any], config: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    view = arguments_view(Case({**arguments, "deepspeed": config}))
    inner = deepspeed_of(view.document, Devices(None, 8), "Transformers", ("deepspeed",), config)
    assert said(rule(view, inner)) == expected
