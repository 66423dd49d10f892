from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from diag.collectors.strategies import STRATEGIES as FACTS
from diag.collectors.trainer.faults import FAULTS, FaultError, parse_fault, parse_faults
from diag.collectors.trainer.keys import OptionError
from diag.collectors.trainer.options import TrainerOptions
from diag.collectors.trainer.refusals import validate, validate_backend, without_effect
from diag.collectors.trainer.strategies import STRATEGIES, knobs_of, usage
from diag.collectors.trainer.strategies.base import Axes
from diag.collectors.trainer.strategies.deepspeed import refuse_without_async_io
from diag.model.states import sharding_of


def test_options_survive_the_environment_variable() -> None:
    options = TrainerOptions(strategy="ddp", inject=("straggler:rank=1", "slow-wire"), batch_size=3, data="text")
    assert TrainerOptions.from_json(options.to_json()) == options


@pytest.mark.parametrize("text", ["", "[]", '{"warp": "block"}'])
def test_a_broken_environment_variable_is_a_message(text: str) -> None:
    with pytest.raises(OptionError, match="DIAG_TRAINER_OPTIONS"):
        TrainerOptions.from_json(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TrainerOptions(preset="huge"), "--preset huge is unknown: use tiny"),
        (TrainerOptions(strategy="ddp", wrap="linear"), "ddp cannot use --wrap linear.*fsdp2"),
        (TrainerOptions(strategy="ddp", reshard_after_forward="no", prefetch=2), "--prefetch 2, --reshard-after"),
        (TrainerOptions(preset="small", wrap="9"), "small has 8 blocks, so give 1 to 8"),
        (TrainerOptions(wrap="layer"), "--wrap layer is unknown"),
        (TrainerOptions(wrap="root", prefetch=1), "nothing to gather"),
        (TrainerOptions(wrap="root", reshard_after_forward="no"), "no effect"),
        (TrainerOptions(wrap="linear", activation_checkpointing=True), "a third time"),
        (TrainerOptions(reshard_after_forward="3"), "does not divide 4 ranks: use yes, no or one of 2"),
        (TrainerOptions(reshard_after_forward="4"), "use yes instead"),
        (TrainerOptions(reshard_after_forward="1"), "use no instead"),
        (TrainerOptions(reshard_after_forward="half"), "unknown"),
        (TrainerOptions(steps=0), "--steps 0 is too small"),
        (TrainerOptions(checkpoint_every=-1), "--checkpoint-every -1 is too small"),
        (TrainerOptions(data="/nowhere"), "--data /nowhere does not exist"),
        (TrainerOptions(seed=1 << 63), "is too large"),
        (TrainerOptions(keep_checkpoints=0), "--keep 0 is too small"),
        (TrainerOptions(warmup_steps=-1), "--warmup-steps -1 is too small"),
        (TrainerOptions(resume="nowhere"), "--resume nowhere: no such folder"),
        (TrainerOptions(timeout_s=0), "--timeout"),
        (TrainerOptions(inject=("die:rank=4,step=1",)), "there are 4 ranks, 0 to 3"),
        (TrainerOptions(settings=("limit_all_gathers=no",)), "setting of --strategy fsdp1, not of fsdp2, which takes"),
        (TrainerOptions(settings=("stage=3",)), "setting of --strategy deepspeed"),
        (TrainerOptions(settings=("fsdp=yes",)), "fsdp2 takes no 'fsdp': write --set replicas=1, offload=no"),
        (TrainerOptions(strategy="ddp", settings=("bucket_mb=0",)), "must be finite and 0.001 or more"),
        (TrainerOptions(strategy="ddp", settings=("comm_hook=int8",)), "use none or fp16 or bf16 or powersgd"),
        (TrainerOptions(strategy="ddp", settings=("comm_hook=bf16",)), "needs NCCL"),
        (TrainerOptions(strategy="ddp", settings=("static_graph=yes", "find_unused_parameters=yes")), "one of the two"),
        (TrainerOptions(strategy="ddp", settings=("static_graph=yes",), micro_batches=2), "only the last does"),
        (TrainerOptions(settings=("separate_reduce_scatter_group=yes",)), "needs NCCL, and this run uses gloo"),
        (TrainerOptions(strategy="fsdp1", wrap="2"), "a unit of FSDP1 is one module"),
        (TrainerOptions(strategy="fsdp1", prefetch=1), "fsdp1 cannot use --prefetch 1.*forward_prefetch=yes"),
        (TrainerOptions(strategy="fsdp1", reshard_after_forward="no"), "sharding=shard_grad_op"),
        (TrainerOptions(strategy="fsdp1", settings=("sharding=hybrid_shard",)), "needs --set replicas=N"),
        (TrainerOptions(strategy="fsdp1", settings=("replicas=2",)), "for --set sharding=hybrid_shard"),
        (TrainerOptions(strategy="fsdp1", settings=("use_orig_params=no",), compile=True), "flat parameters"),
        (TrainerOptions(settings=("replicas=3",)), "replicas 3 = 3 does not divide 4 ranks"),
        (TrainerOptions(settings=("replicas=4",)), "one rank to each replica.*--strategy ddp"),
        (TrainerOptions(settings=("replicas=2",), reshard_after_forward="2"), "is all 2 ranks"),
        (TrainerOptions(strategy="deepspeed", settings=("stage=4",)), "stages 1, 2 and 3"),
        (TrainerOptions(strategy="deepspeed", settings=("offload_param=cpu",)), "needs --set stage=3"),
        (TrainerOptions(strategy="deepspeed", settings=("zero_init=yes",)), "needs --set stage=3"),
        (TrainerOptions(strategy="deepspeed", settings=("offload_optimizer=nvme",)), "needs --set nvme_path"),
        (TrainerOptions(strategy="deepspeed", wrap="root"), "deepspeed cannot use --wrap root.*prefetch_bucket_size"),
        (TrainerOptions(strategy="deepspeed", grad_sync="every", micro_batches=2), "ZeRO 2 and 3 reduce in every"),
        (TrainerOptions(strategy="deepspeed", tensor_parallel=2), "AutoTP.*does not support ZeRO 3"),
        (TrainerOptions(strategy="deepspeed", pipeline_parallel=2), "PipelineModule works with ZeRO 1 alone"),
        (TrainerOptions(strategy="deepspeed", compile=True), "its own engine"),
        (TrainerOptions(strategy="zero1", wrap="linear"), "only optimizer states are sharded"),
        (TrainerOptions(precision="fp32", reduce_dtype="bf16"), "needs --precision bf16"),
        (TrainerOptions(strategy="ddp", precision="bf16", reduce_dtype="bf16"), "comm_hook=bf16"),
        (TrainerOptions(checkpoint_policy="selective"), "add --activation-checkpointing"),
        (TrainerOptions(strategy="ddp", tensor_parallel=2), "ddp cannot use --tp"),
        (TrainerOptions(preset="124m", tensor_parallel=2), "one table for embedding and output"),
        (TrainerOptions(preset="small", tensor_parallel=2), "does not divide the 5 heads"),
        (TrainerOptions(tensor_parallel=2, seq_len=63), "does not divide sequences of 63 tokens"),
        (TrainerOptions(tensor_parallel=2, pipeline_parallel=2, micro_batches=2, settings=("replicas=2",)), "= 8 does"),
        (TrainerOptions(strategy="fsdp1", pipeline_parallel=2), "fsdp1 cannot use --pp"),
        (TrainerOptions(preset="1b", pipeline_parallel=2), "on the first and on the last stage"),
        (TrainerOptions(pipeline_parallel=4), "4 stages are more than the 2 blocks"),
        (TrainerOptions(preset="small", pipeline_parallel=2, pipeline_schedule="interleaved"), "require each other"),
        (TrainerOptions(preset="small", pipeline_parallel=2, stages_per_rank=2), "require each other"),
        (TrainerOptions(preset="small", pipeline_parallel=2, stages_per_rank=2, pipeline_schedule="interleaved",
                        micro_batches=5), "a multiple of the 2 rounds"),
        (TrainerOptions(pipeline_parallel=2, micro_batches=2, grad_sync="every"), "reduces gradients once"),
        (TrainerOptions(pipeline_parallel=2), "the 1f1b schedule of --pp 2 needs 2 or more"),
        (TrainerOptions(pipeline_parallel=2, micro_batches=2, wrap="2"), "with --pp a unit is"),
        (TrainerOptions(stages_per_rank=2), "needs a pipeline"),
        (TrainerOptions(strategy="ddp", pipeline_parallel=2, settings=("static_graph=yes",)), "without DDP's forward"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_the_reason(options: TrainerOptions, message: str) -> None:
    def refuse() -> None:
        validate(options, world_size=4)
        validate_backend(options, "gloo")

    with pytest.raises(OptionError, match=message):
        refuse()


def test_the_rank_is_left_unchecked_while_nobody_knows_how_many_there_are() -> None:
    validate(TrainerOptions(reshard_after_forward="3", inject=("straggler:rank=9",), tensor_parallel=2))


def test_faults_are_filled_in_and_written_back() -> None:
    fault = parse_fault("straggler:rank=1,ms=50")
    assert str(fault) == "straggler:rank=1,ms=50,phase=forward,rotate=no,from=0,on=host"
    assert parse_fault(str(fault)) == fault
    assert fault.strikes(1)
    assert not fault.strikes(0)
    assert parse_fault("slow-loader").strikes(7)


def test_every_fault_parses_from_its_own_usage_once_the_gaps_are_filled() -> None:
    for kind in FAULTS.values():
        spec = kind.usage().replace("=RANK", "=0").replace("=INTEGER", "=3")
        assert str(parse_fault(spec, world_size=1)) == spec


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("slow-disk", "unknown fault 'slow-disk': use slow-loader, slow-wire"),
        ("straggler:node=1", "takes no 'node': write straggler:rank=0,ms=200"),
        ("straggler:ms=", "ms has no value"),
        ("straggler:ms=fast", "ms=fast is not a number"),
        ("straggler:ms=nan", "finite"),
        ("straggler:ms=-1", "0 or more"),
        ("straggler:ms=1,ms=2", "given twice"),
        ("straggler:phase=optimizer", "use forward or backward"),
        ("straggler:rank=all", "not a whole number"),
        ("slow-wire:rank=first", "not a rank, or all"),
        ("slow-wire:rank=2", "there are 2 ranks, 0 to 1"),
        ("slow-loader:every=0", "1 or more"),
        ("die:rank=0", "needs step="),
    ],
)
def test_a_wrong_fault_says_what_exists(spec: str, message: str) -> None:
    with pytest.raises(FaultError, match=message):
        parse_faults([spec], world_size=2)


def test_the_command_line_can_read_options_without_torch() -> None:
    code = (
        "import sys, diag.collectors.trainer.refusals, diag.collectors.trainer.faults; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategys_usage_is_its_own_defaults(strategy: str) -> None:
    given = tuple(usage(strategy).split(", "))
    assert knobs_of(strategy, given) == knobs_of(strategy, ())
    assert len(given) == len(STRATEGIES[strategy].settings)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_says_what_it_shards_and_in_whose_interface_it_is_used(strategy: str) -> None:
    kind = STRATEGIES[strategy]
    assert kind.facts == FACTS[strategy]
    assert kind.about
    assert kind.facts.api in STRATEGIES
    assert kind.facts.shards
    assert all(name.partition("-")[0] == strategy and sharding_of(name) is not None for name in kind.facts.shards)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_facts_know_which_advised_options_a_strategy_takes(strategy: str) -> None:
    """An analysis asks them instead of the trainer."""
    trained: list[dict[str, Any]] = [
        {"micro_batches": 2},
        {"pipeline_parallel": 2, "micro_batches": 2},
        {"wrap": "root"},
        {"wrap": "linear", "prefetch": 1},
        {"settings": ("static_graph=yes",), "micro_batches": 2, "grad_sync": "every"},
    ]
    advised: list[dict[str, Any]] = [
        {"wrap": "block"},
        {"wrap": "block", "prefetch": 1, "reshard_after_forward": "no"},
        {"wrap": "2"},
        {"prefetch": 2},
        {"reshard_after_forward": "no"},
        {"grad_sync": "last"},
        {"num_workers": 4},
    ]
    compared = 0
    for before in trained:
        if not _works(TrainerOptions(strategy=strategy, preset="small", **before)):
            continue
        for change in advised:
            options = TrainerOptions(**{"strategy": strategy, "preset": "small", **before, **change})
            assert FACTS[strategy].takes(json.loads(options.to_json())) == _works(options), options
            compared += 1
    assert compared >= len(advised)


def _works(options: TrainerOptions) -> bool:
    try:
        validate(options, world_size=4)
    except OptionError:
        return False
    return True


def test_axes_number_the_ranks_innermost_last() -> None:
    axes = Axes.of(16, stages=2, replicas=2, parts=2)
    assert axes.sizes() == {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "tp": 2}
    assert (axes.data, axes.model) == (4, 4)
    ranks = range(16)
    assert [axes.stage(rank) for rank in ranks] == [0] * 8 + [1] * 8
    assert [axes.data_rank(rank) for rank in ranks] == [0, 0, 1, 1, 2, 2, 3, 3] * 2
    assert [axes.shard(rank) for rank in ranks] == [0, 1, 2, 3] * 4
    assert Axes.of(4).sizes() == {"dp": 4}
    assert Axes.of(4, parts=4).sizes() == {"dp": 1, "tp": 4}


def test_nvme_is_refused_where_deepspeed_cannot_build_its_input_and_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    builders = pytest.importorskip("deepspeed.ops.op_builder", reason="the extra diag[deepspeed] is not installed")
    monkeypatch.setattr(builders.AsyncIOBuilder, "is_compatible", lambda *_args, **_kwargs: False)
    with pytest.raises(OptionError, match="libaio-dev"):
        refuse_without_async_io()


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        (TrainerOptions(checkpoint_every=100), "--checkpoint-every 100"),
        (TrainerOptions(keep_checkpoints=1), "--keep-checkpoints 1"),
        (TrainerOptions(warmup_steps=21), "--warmup-steps 21"),
        (TrainerOptions(num_workers=0, prefetch_factor=4), "--prefetch-factor 4"),
    ],
)
def test_options_without_an_effect_are_named(options: TrainerOptions, flag: str) -> None:
    (sentence,) = without_effect(options)
    assert sentence.startswith(flag)


def test_options_with_an_effect_are_not_named() -> None:
    assert without_effect(TrainerOptions(checkpoint_every=20, keep_checkpoints=1, warmup_steps=20)) == []
    assert without_effect(TrainerOptions(steps=30, checkpoint_every=20), done=20) != []
