"""Measured beside estimated: from records that are made up, and messages where something is missing."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from diag.collectors.records import HeldRecord, Manifest, MemoryRecord
from diag.collectors.trainer.loop import held
from diag.collectors.trainer.model import build
from diag.collectors.trainer.options import PRESETS, TrainerOptions
from diag.errors import DiagError
from diag.model.states import Sharding
from diag.planning.gathering import FlatUnits
from diag.planning.measured import measured, step_of_run
from diag.planning.step_memory import Step, step_peak
from diag.rundir.tables import Tables
from diag.show.plan import measured_to_json, print_measured
from tests.command import diag
from tests.copies import replace as changed
from tests.simulate import Plan, simulate

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def manifest(strategy: str = "fsdp2", **options: object) -> Manifest:
    own = TrainerOptions(preset="small", strategy=strategy, **options)  # type: ignore[arg-type]
    return Manifest(
        "r", 0, world_size=2, strategy=strategy, mesh={"dp": 2}, model=asdict(own.shape()) | {"preset": "small"},
        trainer=asdict(own),
    )  # fmt: skip


def set_up(strategy: str, **setup: str) -> Manifest:
    """With what the strategy says of itself."""
    plain = manifest(strategy)
    return replace(plain, trainer={**plain.trainer, "setup": setup})


def on_a_device(allocated: int, held_by_rank: HeldRecord | None = None) -> Tables:
    tables = simulate(Plan())
    ranks = {
        rank: changed(
            own,
            identity=changed(own.identity, device="GPU") if own.identity else None,
            steps=tuple(
                replace(
                    step,
                    memory=MemoryRecord(rss=1, allocated=allocated + 1_000 * rank, reserved=2 * allocated),
                    held=held_by_rank,
                )
                for step in own.steps
            ),
        )
        for rank, own in tables.ranks.items()
    }
    return changed(tables, ranks=ranks, manifest=manifest())


def test_what_a_manifest_says_was_trained() -> None:
    step = step_of_run(manifest(wrap="2", prefetch=1, micro_batches=3, activation_checkpointing=True), on_device=False)
    assert isinstance(step, Step)
    shape = PRESETS["small"]
    assert (step.shape.layers, step.shape.ffn, step.sequences, step.length) == (8, 896, 4, 256)
    assert (step.wrap, step.ahead, step.micro_batches, step.recompute, step.shards) == ("2", 1, 3, True, 2)
    assert (step.kept, step.gloo, step.recipe.name, step.sharding) == (0.0, True, "fp32", Sharding.PARAMETERS)
    assert step.tokens == shape.batch_size * shape.seq_len
    kept = step_of_run(manifest(reshard_after_forward="no"), on_device=True)
    assert isinstance(kept, Step)
    assert (kept.kept, kept.gloo, kept.kernels.foreach) == (1.0, False, True)
    ddp = step_of_run(manifest("ddp"), on_device=False)
    assert isinstance(ddp, Step)
    assert (ddp.sharding, ddp.shards) == (Sharding.NONE, 1)


def test_what_strategies_say_of_themselves() -> None:
    def step(strategy: str, **setup: str) -> Step:
        found = step_of_run(set_up(strategy, **setup), on_device=False)
        assert isinstance(found, Step)
        return found

    assert not step("ddp", gradient_as_bucket_view="no").bucket_views
    zero = step("zero1")
    assert (zero.sharding, zero.shards, zero.in_buckets) == (Sharding.OPTIMIZER, 2, True)
    assert step("fsdp1").flat == FlatUnits()
    kept = step("fsdp1", sharding="shard_grad_op", backward_prefetch="post", forward_prefetch="yes")
    assert kept.flat == FlatUnits(keeps=True, backward_prefetch="post", forward_prefetch=True)
    flat = step("fsdp1-no_shard", sharding="no_shard", use_orig_params="no")
    assert (flat.flat, flat.shards, flat.in_buckets) == (FlatUnits(padded=False), 1, False)
    assert step("fsdp2").flat is None


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (None, "no manifest"),
        (Manifest("r", 0), "lacks the model's layers, dim"),
        (replace(manifest(), trainer={}), "did not use the bundled trainer"),
        (replace(manifest(), strategy="zero3"), "a step of zero3 is not modelled"),
        (replace(manifest(), mesh={"dp": 1, "tp": 2}), "other than data parallelism"),
        (set_up("ddp", comm_hook="fp16"), "communication hooks"),
        (set_up("ddp", find_unused_parameters="yes"), "unused parameters"),
    ],
)
def test_what_is_not_modelled_is_said(given: Manifest | None, reason: str) -> None:
    found = step_of_run(given, on_device=False)
    assert isinstance(found, str)
    assert reason in found


# (strategy, ranks, sequences of 1,024 tokens, bytes by torch's allocator): the preset 124m in bf16, on an H200 with
# torch 2.11.
H200_PEAKS = [
    ("ddp", 2, 8, 10_897_800_704),
    ("fsdp2", 2, 8, 8_695_939_584),
    ("fsdp2", 1, 8, 9_437_725_696),
    ("ddp", 1, 1, 3_388_051_968),
    ("ddp", 1, 122, 132_930_871_296),
]


@pytest.mark.parametrize(("strategy", "ranks", "sequences", "peak"), H200_PEAKS)
def test_peaks_of_a_gpu(strategy: str, ranks: int, sequences: int, peak: int) -> None:
    """What is left is the allocator's rounding: it counts blocks, and cuts off what is left of one above 1 MiB."""
    own = TrainerOptions(preset="124m", strategy=strategy, precision="bf16", batch_size=sequences)
    given = Manifest(
        "r", 0, world_size=ranks, strategy=strategy, mesh={"dp": ranks}, device="NVIDIA H200",
        model=asdict(own.shape()) | {"preset": "124m"}, trainer=asdict(own), versions={"cuda": "13.0"},
    )  # fmt: skip
    step = step_of_run(given, on_device=True)
    assert isinstance(step, Step)
    assert step.types.autocast == (strategy == "ddp")
    assert -0.008 < step_peak(step).bytes / peak - 1 < 0
    older = step_of_run(replace(given, device="NVIDIA A100-SXM4-80GB"), on_device=True)
    assert isinstance(older, Step)
    assert (step.kernels.workspaces, older.kernels.workspaces) == (2 * (32 << 20), 2 * 8_519_680)
    none = step_of_run(replace(given, device="AMD Instinct MI300X", versions={}), on_device=True)
    assert isinstance(none, Step)
    assert none.kernels.workspaces == 0


def test_gradients_that_are_reduced_in_bf16() -> None:
    narrow = step_of_run(manifest(precision="bf16", reduce_dtype="bf16"), on_device=True)
    wide = step_of_run(manifest(precision="bf16"), on_device=True)
    assert isinstance(narrow, Step)
    assert isinstance(wide, Step)
    assert (narrow.recipe.reduced, wide.recipe.reduced) == (2, 4)


def test_the_fullest_rank_is_compared() -> None:
    step = step_of_run(manifest(), on_device=True)
    assert isinstance(step, Step)
    estimate = step_peak(step)
    found = measured(on_a_device(estimate.bytes // 2))
    peak, reserved = found.rows
    fullest = max(rank.rank for rank in found.ranks)
    assert (peak.rank, peak.measured) == (fullest, estimate.bytes // 2 + 1_000 * fullest)
    assert peak.error == pytest.approx(1.0, abs=0.001)
    assert reserved.measured == estimate.bytes // 2 * 2
    document = json.loads(measured_to_json(found, "run"))["measured"]
    assert document["compared"][0]["error"] == peak.error
    assert len(document["ranks"]) == len(found.ranks)
    shown = io.StringIO()
    print_measured(found, "run", Console(file=shown, width=110))
    assert "The estimate is off by +100.0%" in shown.getvalue() or "The estimate is off by +99.9%" in shown.getvalue()


def test_components_that_were_held() -> None:
    step = step_of_run(manifest(), on_device=True)
    assert isinstance(step, Step)
    half = 4 * step.shape.parameters // 2
    found = measured(on_a_device(10 * half, HeldRecord(half, half, 2 * half)))
    errors = {row.name: row.error for row in found.rows}
    assert errors["parameters"] == errors["gradients"] == errors["optimizer"] == 0
    rest = next(row for row in found.rows if row.name == "other allocations at the peak")
    assert rest.measured == pytest.approx(10 * half - 3 * half, abs=10_000)


def test_a_run_without_a_measured_peak() -> None:
    ended = diag("plan", "--measured", SAMPLES / "ddp-healthy")
    assert ended.returncode == 1
    assert "no rank recorded its peak memory: rank 0: " in ended.stderr
    assert "--trace-memory" in ended.stderr
    with pytest.raises(DiagError, match="no rank recorded"):
        measured(simulate(Plan()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("7B", "--measured", "x"), "takes the model from the run"),
        ((), "no MODEL"),
        (("--measured", "x"), "no such file"),
    ],
)
def test_mistakes_are_messages(arguments: tuple[str, ...], message: str) -> None:
    ended = diag("plan", *arguments)
    assert ended.returncode == 1
    assert message in ended.stderr


def test_what_model_and_optimizer_hold() -> None:
    model = build(PRESETS["tiny"], seed=0)
    optimizer = torch.optim.AdamW(model.parameters())
    size = sum(p.numel() * 4 for p in model.parameters())
    assert held(model, optimizer) == HeldRecord(size, 0, 0)
    model(torch.zeros((1, 8), dtype=torch.long)).sum().backward()
    optimizer.step()
    batch = torch.zeros((2, 9), dtype=torch.long)
    found = held(model, optimizer, batch)
    steps = 4 * len(list(model.parameters()))  # Adam counts the steps of each in a tensor of its own
    assert found == HeldRecord(size, size, 2 * size + steps, batch=2 * 9 * 8)


def test_what_deepspeed_keeps_beside_model_and_optimizer() -> None:
    model = torch.nn.Linear(4, 4, bias=False)
    partition = torch.zeros(8)

    class Engine(torch.optim.SGD):
        def flat(self) -> list[object]:
            """A flat partition with a view of it, what the model has anyway, and an empty bucket beside a full one."""
            own = {"fp32": [partition], "views": (partition[:4],), "fp16": list(model.parameters()), "stage": 1}
            return [own, [None, torch.zeros(100)]]

    assert held(model, Engine(model.parameters())) == HeldRecord(64, 0, 32 + 400)


def test_views_of_one_bucket_count_as_the_bucket() -> None:
    model = torch.nn.Linear(4, 4, bias=True)
    bucket = torch.zeros(100)
    for parameter, first in zip(model.parameters(), (0, 16), strict=True):
        parameter.grad = bucket[first : first + parameter.numel()].view_as(parameter)
    assert held(model, torch.optim.SGD(model.parameters())).gradients == 400
