"""Scripts with Megatron-LM's arguments and configurations of NeMo and verl: what is read, and planted mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diag.errors import DiagError
from diag.linting.lint import lint
from diag.linting.model import Linted
from diag.model.programs import Concept, Program, settings_of_command, written
from diag.planning.programs import plan_command
from tests.command import diag

SCRIPT = """#!/bin/bash
# --micro-batch-size 64 is too much for us
GPUS_PER_NODE=8
TP=4
PP="2"
DISTRIBUTED=(--nproc_per_node $GPUS_PER_NODE --nnodes ${NNODES})
MODEL="
    --num-layers 32 --hidden-size 4096   --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --ffn-hidden-size 14336
    --vocab-size 128256 --swiglu --disable-bias-linear
    --untie-embeddings-and-output-weights
"
PARALLEL=(
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size $PP
    --sequence-parallel --use-distributed-optimizer
    --overlap-grad-reduce --overlap-param-gather
    --micro-batch-size ${MBS:-2}
    --global-batch-size 512 --seq-length 8192
    --lr $LR
)
torchrun ${DISTRIBUTED[@]} pretrain_gpt.py $MODEL ${PARALLEL[@]} --recompute-activations
"""


def linted(folder: Path, content: str | dict[str, Any], gpus: int | None = None) -> Linted:
    path = folder / ("train.sh" if isinstance(content, str) else "train.yaml")
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    return lint([path], gpus)[0]


def said(found: Linted) -> dict[str, str]:
    return {notice.key: f"{notice.severity}: {notice.text} -> {notice.instead}" for notice in found.notices}


def test_a_script_is_read_and_not_run(tmp_path: Path) -> None:
    found = linted(tmp_path, SCRIPT + "touch ran\n", 64)
    assert found.format == "Megatron-LM"
    assert found.settings is not None
    read = found.settings.told()
    assert "tensor parallelism: 4 (--tensor-model-parallel-size)" in read
    assert "micro-batch: 2 (--micro-batch-size)" in read, "a variable's default, and no comment"
    assert not any("$" in line for line in read)
    assert not found.notices
    assert not (tmp_path / "ran").exists()


def test_overrides_of_hydra_in_a_script(tmp_path: Path) -> None:
    """As verl is started: no YAML, but overrides of its defaults."""
    script = (
        "ACTOR=actor_rollout_ref.actor\n"
        "python3 -m verl.trainer.main_ppo \\\n"
        "    $ACTOR.ppo_mini_batch_size=256 \\\n"
        "    +actor_rollout_ref.actor.fsdp_config.param_offload=True \\\n"
        "    trainer.n_gpus_per_node=8 trainer.nnodes=${NODES}\n"
    )
    found = linted(tmp_path, script)
    assert found.format == "verl"
    assert found.settings is not None
    assert "global batch: 256 (actor_rollout_ref.actor.ppo_mini_batch_size)" in found.settings.told()
    (notice,) = found.notices
    assert (notice.key, notice.line) == ("actor_rollout_ref.actor.fsdp_config.param_offload", 4)
    assert not any("nodes: " in line for line in found.settings.told()), "a variable that nobody sets"


def test_the_plan_of_the_same_training(tmp_path: Path) -> None:
    """Llama 3 8B on 64 GPUs: 512 sequences over 8 data-parallel ranks, 2 at a time."""
    settings = linted(tmp_path, SCRIPT, 64).settings
    assert settings is not None
    plan = plan_command(settings, 64, 8)
    assert plan_command(settings, None, 8) == ""
    assert plan == (
        "diag plan 8030261248 --gpus 64 --topology pp=2,dp=8,tp=4 --batch-size 2 --seq-len 8192 --micro-batches 32 "
        "--checkpointing selective --recipe mixed-fp32-gradients"
    )
    planned = diag(*plan.split()[1:])
    assert planned.returncode == 0, planned.stderr


@pytest.mark.parametrize(
    ("before", "after", "gpus", "key", "words"),
    [
        ("TP=4", "TP=3", 64, "--tensor-model-parallel-size", "error: 3 does not divide the 32 attention heads"),
        ("TP=4", "TP=16", 64, "--tensor-model-parallel-size", "warning: Over more than the 8 GPUs"),
        ('PP="2"', 'PP="5"', 40, "--pipeline-model-parallel-size", "error: 5 does not divide the 32 layers"),
        ("TP=4", "TP=4", 60, "--tensor-model-parallel-size", "error: tp 4 x pp 2 x cp 1 = 8 does not divide 60"),
        ("--sequence-parallel ", "", 64, "--sequence-parallel", "-> --sequence-parallel"),
        ("--use-distributed-optimizer", "", 64, "--overlap-param-gather", "error: Refused without --use-distributed"),
        ("--overlap-grad-reduce --overlap-param-gather", "", 64, "--overlap-grad-reduce", "-> --overlap-grad-reduce"),
        ("--overlap-param-gather", "", 64, "--overlap-param-gather", "note: Off"),
        ("512", "500", 64, "--global-batch-size", "error: 500 is no multiple of 2 x 8"),
        ("512", "64", 64, "--global-batch-size", "warning: 4 micro-batches a step leave 2 stages idle"),
        ("--recompute-activations", "--recompute-granularity full", 64, "--recompute-granularity", "note: Every"),
    ],
)
def test_mistakes_in_a_script(tmp_path: Path, before: str, after: str, gpus: int, key: str, words: str) -> None:
    notices = said(linted(tmp_path, SCRIPT.replace(before, after), gpus))
    assert words in notices[key], notices


def test_the_line_of_an_option(tmp_path: Path) -> None:
    found = linted(tmp_path, SCRIPT.replace("TP=4", "TP=16"), 64)
    line = next(notice.line for notice in found.notices if notice.key == "--tensor-model-parallel-size")
    assert line is not None
    assert "--tensor-model-parallel-size" in SCRIPT.splitlines()[line - 1]


NEMO: dict[str, Any] = {
    "trainer": {"devices": 8, "num_nodes": 4},
    "model": {
        "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2, "micro_batch_size": 1,
        "global_batch_size": 128, "num_layers": 32, "num_attention_heads": 32, "sequence_parallel": True,
        "optim": {"name": "fused_adam", "overlap_grad_sync": False},
    },
}  # fmt: skip


def test_nemo_in_its_own_names(tmp_path: Path) -> None:
    found = linted(tmp_path, NEMO)
    notices = said(found)
    assert found.format == "NeMo"
    assert "-> model.optim.name=distributed_fused_adam" in notices["model.optim.name"]
    assert "the 4 data-parallel ranks" in notices["model.optim.name"], "of 4 nodes with 8 GPUs"
    assert "-> model.optim.overlap_grad_sync=True" in notices["model.optim.overlap_grad_sync"]
    assert all(notice.line for notice in found.notices)


def recipe(**ddp: Any) -> dict[str, Any]:
    """A recipe of NeMo 2 as NeMo-Run writes it, with a class behind each table."""
    strategy = {
        "_target_": "nemo.lightning.pytorch.strategies.megatron_strategy.MegatronStrategy",
        "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2, "expert_model_parallel_size": 1,
        "sequence_parallel": True, "ddp": {"_target_": "DistributedDataParallelConfig", **ddp},
    }  # fmt: skip
    return {
        "_target_": "nemo.collections.llm.api.pretrain",
        "trainer": {"devices": 8, "num_nodes": 4, "strategy": strategy},
        "data": {"global_batch_size": 128, "micro_batch_size": 1, "seq_length": 8192},
        "model": {"config": {"num_layers": 32, "num_attention_heads": 32}},
        "optim": {"config": {"use_distributed_optimizer": True}},
    }


def test_a_recipe_of_nemo_2_in_its_own_names(tmp_path: Path) -> None:
    given = recipe(overlap_grad_reduce=False)
    given["data"]["global_batch_size"] = 130
    given["optim"]["config"]["use_distributed_optimizer"] = False
    found = linted(tmp_path, given)
    notices = said(found)
    assert found.format == "NeMo 2"
    assert "130 is no multiple of 1 x 4 data-parallel" in notices["data.global_batch_size"], "of 4 nodes with 8 GPUs"
    assert "-> optim.config.use_distributed_optimizer=True" in notices["optim.config.use_distributed_optimizer"]
    reduced = notices["trainer.strategy.ddp.overlap_grad_reduce"]
    assert reduced.endswith("-> trainer.strategy.ddp.overlap_grad_reduce=True")
    assert all(notice.line for notice in found.notices)


def test_what_a_recipe_of_nemo_2_does_not_repeat_is_not_called_off(tmp_path: Path) -> None:
    """Overrides of a recipe: what they leave out, the recipe sets."""
    found = linted(tmp_path, {"trainer": {"strategy": {"tensor_model_parallel_size": 4, "context_parallel_size": 2}}})
    assert found.format == "NeMo 2"
    assert said(found) == {}
    assert said(linted(tmp_path, recipe())) == {}


def test_a_command_of_nemo_2_is_read() -> None:
    words = (
        "nemo llm pretrain --factory llama3_8b trainer.strategy.tensor_model_parallel_size=2 data.micro_batch_size=4"
    )
    found = settings_of_command(words.split())
    assert found is not None
    assert (found.program, found.size("tp"), found.whole(Concept.MICRO_BATCH)) == (Program.NEMO_2, 2, 4)


@pytest.mark.parametrize(
    ("gpus", "kept"), [(64, "Sharded, 7.5 bytes stay"), (None, "Sharded, 6 + 12 / ranks bytes stay")]
)
def test_what_sharded_optimizer_states_save(tmp_path: Path, gpus: int | None, kept: str) -> None:
    """6 + 12/d bytes for d ranks, by Megatron Core's own table: here 64 GPUs in parts of 8."""
    without = SCRIPT.replace("--use-distributed-optimizer", "").replace("--overlap-param-gather", "")
    assert kept in said(linted(tmp_path, without, gpus))["--use-distributed-optimizer"]


def verl(**actor: Any) -> dict[str, Any]:
    return {"actor_rollout_ref": {"actor": actor}, "trainer": {"n_gpus_per_node": 8, "nnodes": 1}}


def test_verl_with_either_engine(tmp_path: Path) -> None:
    sharded = {"param_offload": True, "fsdp_size": -1}
    by_fsdp = verl(strategy="fsdp", ulysses_sequence_parallel_size=3, fsdp_config=sharded)
    notices = said(linted(tmp_path, by_fsdp))
    assert "error: 3 does not divide 8 GPUs" in notices["actor_rollout_ref.actor.ulysses_sequence_parallel_size"]
    assert "note" in notices["actor_rollout_ref.actor.fsdp_config.param_offload"]
    axes = {"tensor_model_parallel_size": 3, "pipeline_model_parallel_size": 1}
    by_megatron = verl(strategy="megatron", megatron=axes)
    found = linted(tmp_path, by_megatron)
    assert found.format == "verl"
    assert "error: tp 3" in said(found)["actor_rollout_ref.actor.megatron.tensor_model_parallel_size"]


def test_what_hydra_has_to_add_is_written_so(tmp_path: Path) -> None:
    """Hydra refuses keys that the configuration lacks: verl's ``override_ddp_config`` is empty."""
    actor = "actor_rollout_ref.actor"
    engine = f"{actor}.strategy=megatron {actor}.megatron.use_distributed_optimizer=True trainer.n_gpus_per_node=8"
    key = f"{actor}.megatron.override_ddp_config.overlap_grad_reduce"
    script = said(linted(tmp_path, f"python -m verl.trainer.main_ppo trainer.nnodes=2 {engine}\n"))
    assert f"-> ++{key}=True" in script[key]
    megatron = {"use_distributed_optimizer": True}
    assert f"-> {key}=True" in said(linted(tmp_path, verl(strategy="megatron", megatron=megatron)))[key]
    again = settings_of_command(["main_ppo", f"{actor}.strategy=megatron", f"++{key}=True"])
    assert again is not None
    assert again.on(Concept.OVERLAP_REDUCE)


def test_what_is_no_such_configuration(tmp_path: Path) -> None:
    for text in ("#!/bin/sh\nls --all --human-readable\n", "model: {name: x}\n", "--micro-batch-size\n"):
        with pytest.raises(DiagError):
            linted(tmp_path, text)
    run = "run --num-layers $A --micro-batch-size 1 --overlap-grad-reduce\n"
    found = linted(tmp_path, "A=x\n" + "A=$A$A$A$A\n" * 40 + run).settings
    assert found is not None
    assert len(found.told()) == 2, "a value that grows without end is left out"


def test_options_on_a_command_line() -> None:
    words = ["python", "pretrain_gpt.py", "--micro-batch-size=4", "--tensor-model-parallel-size", "2", "--bf16"]
    settings = settings_of_command(words)
    assert settings is not None
    assert (settings.program, settings.whole(Concept.MICRO_BATCH), settings.size("tp")) == (Program.MEGATRON, 4, 2)
    hydra = settings_of_command(["main_ppo", "trainer.nnodes=2", "+trainer.n_gpus_per_node=8"])
    assert hydra is not None
    assert hydra.program is Program.VERL
    for others in (
        ["train.py", "--num-layers", "3", "--hidden-size", "64", "--micro-batch-size", "2", "--seq-length", "128"],
        ["fit", "trainer.devices=8", "trainer.num_nodes=2", "model.num_layers=3", "model.optim.name=adam"],
    ):
        assert settings_of_command(others) is None, "other programs call theirs so, too"
    assert written(Program.NEMO, Concept.MICRO_BATCH, 2) == "model.micro_batch_size=2"
    assert written(Program.MEGATRON, Concept.TP, 8) == "--tensor-model-parallel-size 8"
