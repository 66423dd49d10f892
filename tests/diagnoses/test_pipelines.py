"""What is planted in runs with pipelines and tensor parallelism is found: the right rank and cause, bubbles as such."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.api import Result, analyze
from diag.collectors.records import DATA, FORWARD
from diag.diagnoses.pipeline_bubble import ideal_share
from diag.model.steps import Bottleneck, Finding
from diag.words.wording import group_name
from tests.copies import replace
from tests.pipelines import MS, Pipelined, simulate, traced

UNKNOWN = "straggler-rank-unknown"
PP = {"pp": 2, "dp": 1}
PP_DP_TP = {"pp": 2, "dp": 2, "tp": 2}
MESHES = [
    pytest.param({"pp": 2, "dp": 1}, id="pp"),
    pytest.param({"pp": 2, "dp": 2}, id="pp-dp"),
    pytest.param({"dp": 1, "tp": 2}, id="tp"),
    pytest.param(PP_DP_TP, id="pp-dp-tp"),
]


def finding(result: Result, name: str) -> Finding | None:
    return next((found for found in result.examination.findings if found.id == name), None)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "batches"), [(2, 4), (4, 8), (2, 32)])
def test_the_bubble_is_what_the_schedule_says(schedule: str, stages: int, batches: int) -> None:
    plan = Pipelined(
        mesh={"pp": stages, "dp": 1},
        batches=batches,
        schedule=schedule,
        forward_ns=(10 * MS,) * stages,
        optimizer_ns=0,
        data_ns=0,
        message_ns=20_000,
    )
    result = analyze(simulate(plan))
    expected = (stages - 1) / (batches + stages - 1)
    found = finding(result, "pipeline-bubble")
    if expected < 0.05:
        assert found is None
        assert "pipeline bubbles" in result.examination.not_found
        return
    assert found is not None
    assert found.share == pytest.approx(expected, abs=0.03)
    (measured,) = [item.value for item in found.evidence if "mean over all ranks" in item.filter]
    (ideal,) = [item.value for item in found.evidence if "bubble of" in item.filter]
    assert measured == pytest.approx(expected, abs=0.03)
    assert ideal == pytest.approx(expected, abs=1e-4)
    assert found.bottleneck == Bottleneck.COMPUTE
    assert not found.ranks
    others = [f.id for f in result.examination.findings if f.id != "pipeline-bubble"]
    assert others == [], "waiting for micro-batches is no slow wire and no straggler"


def test_several_stages_a_rank_shrink_the_bubble() -> None:
    told = {"micro_batches": 8, "pipeline_schedule": "interleaved", "stages_per_rank": 2}
    assert ideal_share(4, told) == pytest.approx(3 / 19)
    assert ideal_share(4, {**told, "pipeline_schedule": "zero-bubble"}) is None
    assert ideal_share(4, {}) is None


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_unequal_stages_are_named(schedule: str) -> None:
    result = analyze(simulate(Pipelined(forward_ns=(10 * MS, 20 * MS), schedule=schedule)))
    found = finding(result, "unbalanced-stages")
    assert found is not None
    assert found.ranks == (1,)
    assert "Stage 1" in found.title
    assert result.verdict.cause == "unbalanced-stages"
    assert result.verdict.culprit_ranks == (1,)
    assert finding(result, "compute-straggler") is None


def test_unequal_stages_of_many_ranks_blame_no_rank_of_them() -> None:
    result = analyze(simulate(Pipelined(mesh=PP_DP_TP, forward_ns=(10 * MS, 20 * MS))))
    found = finding(result, "unbalanced-stages")
    assert found is not None
    assert found.ranks == (4, 5, 6, 7)
    assert finding(result, "compute-straggler") is None


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("norm", [False, True], ids=["", "norm"])
def test_a_slow_loader_is_named(mesh: dict[str, int], norm: bool) -> None:
    ranks = mesh.get("pp", 1) * mesh["dp"] * mesh.get("tp", 1)
    for slow in range(ranks):
        plan = Pipelined(mesh=mesh, norm=norm, extra=lambda step, rank, slow=slow: {DATA: 80 * MS * (rank == slow)})
        result = analyze(simulate(plan))
        assert result.verdict.bottleneck == Bottleneck.DATA, result.verdict.headline
        assert result.verdict.culprit_ranks == (slow,), result.verdict.headline
        assert result.verdict.confidence > 0.7


@pytest.mark.parametrize("mesh", [case for case in MESHES if case.id != "pp"])
@pytest.mark.parametrize("norm", [False, True], ids=["", "norm"])
def test_a_straggler_among_equals_is_named(mesh: dict[str, int], norm: bool) -> None:
    ranks = mesh.get("pp", 1) * mesh["dp"] * mesh.get("tp", 1)
    for slow in range(ranks):
        plan = Pipelined(mesh=mesh, norm=norm, extra=lambda step, rank, slow=slow: {FORWARD: 80 * MS * (rank == slow)})
        result = analyze(simulate(plan))
        assert result.verdict.cause == "compute-straggler", (slow, result.verdict.headline)
        assert result.verdict.culprit_ranks == (slow,), result.verdict.headline
        assert finding(result, "unbalanced-stages") is None


def test_a_straggler_alone_in_its_stage_is_an_unequal_or_slow_stage() -> None:
    for slow in range(2):
        plan = Pipelined(extra=lambda step, rank, slow=slow: {FORWARD: 80 * MS * (rank == slow)})
        result = analyze(simulate(plan))
        assert result.verdict.cause == "unbalanced-stages", result.verdict.headline
        assert result.verdict.culprit_ranks == (slow,)
        found = finding(result, "unbalanced-stages")
        assert found is not None
        assert "slow machine would look the same" in found.action


@pytest.mark.parametrize("steps", [5, 7, 9, 12])
@pytest.mark.parametrize("slow", [0, 1])
def test_a_profiler_window_makes_no_straggler_of_a_stage(tmp_path: Path, steps: int, slow: int) -> None:
    """What a trace calls idle is computing in the records of the other steps, and no more of it than there. ``steps``:
    two of them are in the window, and two or three are left out as the first ones, or because a trace was written."""
    plan = Pipelined(steps=steps, extra=lambda step, rank: {FORWARD: 80 * MS * (rank == slow)})
    result = analyze(traced(simulate(plan), range(steps - 2, steps), tmp_path))
    counted = result.attribution.usable
    assert {parts.source for step in counted for parts in step.parts} == {"trace", "records"}
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("unbalanced-stages", (slow,))
    assert [f.id for f in result.examination.findings if f.id not in ("unbalanced-stages", "pipeline-bubble")] == []
    assert result.examination.doubts == ()


def test_a_rank_that_is_slow_now_and_then_is_held_against_its_own_usual_steps() -> None:
    plan = Pipelined(steps=24, extra=lambda step, rank: {FORWARD: 150 * MS * (rank == 1 and step % 3 == 0)})
    result = analyze(simulate(plan))
    found = finding(result, "compute-straggler")
    assert found is not None, result.examination.findings
    assert found.ranks == (1,)
    assert "slower than usual" in found.title
    assert finding(result, "unbalanced-stages") is None


def test_a_rank_that_is_slow_in_two_steps_may_be_the_only_one_or_not() -> None:
    """Of seven steps five count. That chance made it the same one twice is as likely as a coin's two heads."""

    def said(steps: int, late: dict[int, int]) -> Finding:
        """``late``: by step, the rank that is."""
        plan = Pipelined(steps=steps, extra=lambda step, rank: {FORWARD: 150 * MS * (rank == late.get(step))})
        (found,) = [f for f in analyze(simulate(plan)).examination.findings if f.id != "pipeline-bubble"]
        return found

    twice = said(7, {3: 1, 5: 1})
    assert (twice.id, twice.ranks) == (UNKNOWN, ())
    assert "which rank is uncertain" in twice.title
    assert "Rank 1 was last in 2 of 2 affected steps" in twice.title
    assert "more steps" in twice.action
    often = said(20, dict.fromkeys(range(2, 20, 3), 1))
    assert (often.id, often.ranks) == ("compute-straggler", (1,))
    moving = said(20, {step: step % 2 for step in range(2, 20, 3)})
    assert (moving.id, moving.ranks) == ("compute-imbalance", ())


def test_a_slow_wire_between_stages_is_communication() -> None:
    result = analyze(simulate(Pipelined(message_ns=40 * MS)))
    assert result.verdict.bottleneck == Bottleneck.COMMUNICATION, result.verdict.headline
    assert not result.verdict.culprit_ranks
    (row,) = [row for row in result.breakdowns.collectives.rows if row.members == (0, 1)]
    assert (row.op, row.axis) == ("send_recv", "pp")
    assert row.transfer_mean_ns == pytest.approx(40 * MS, rel=0.01)


def test_slow_tensor_parallel_collectives_are_called_that() -> None:
    result = analyze(simulate(Pipelined(mesh={"dp": 1, "tp": 2}, transfer_ns=4 * MS)))
    assert result.verdict.cause == "tensor-parallel-communication", result.verdict.headline
    (row,) = result.breakdowns.collectives.rows
    assert row.axis == "tp"


def test_groups_are_called_by_their_axis() -> None:
    plan = Pipelined(mesh=PP_DP_TP, extra=lambda step, rank: {FORWARD: 80 * MS * (rank == 5)})
    result = analyze(simulate(plan))
    found = finding(result, "compute-straggler")
    assert found is not None
    assert "slower than the others of its stage in forward" in found.title
    waiting = {item.filter: item.value for item in found.evidence if "waiting for rank 5" in item.filter}
    assert waiting["tensor-parallel group (ranks 4 and 5), waiting for rank 5"] == pytest.approx(80, rel=0.1)
    rows = result.breakdowns.collectives.rows
    assert {(row.axis, group_name(row, several=True)) for row in rows if row.op == "all_reduce"} == {
        ("tp", "tensor-parallel"),
        ("dp", "data-parallel"),
    }
    assert {group_name(row, several=True) for row in rows if row.axis == "pp"} >= {"0 to 4", "4 to 0"}


def test_gradients_and_layers_are_not_taken_for_each_other() -> None:
    """A reduction in every layer and micro-batch is not one of gradients."""
    result = analyze(simulate(Pipelined(mesh={"dp": 2, "tp": 2}, transfer_ns=2 * MS)))
    assert finding(result, "sync-every-micro-step") is None
    assert finding(result, "ddp-buckets") is None


def test_without_a_mesh_a_pipeline_is_no_straggler() -> None:
    """Nothing says which ranks are a stage, so no rank's computation is held against another stage's at a message."""
    result = analyze(simulate(Pipelined(told=False, forward_ns=(10 * MS, 20 * MS))))
    assert finding(result, "compute-straggler") is None
    assert finding(result, "unbalanced-stages") is None


def test_the_mesh_must_fit_the_ranks() -> None:
    tables = simulate(Pipelined(forward_ns=(10 * MS, 20 * MS)))
    assert tables.manifest is not None
    told = replace(tables.manifest, mesh={"pp": 4})
    result = analyze(replace(tables, manifest=told))
    assert finding(result, "unbalanced-stages") is None


def test_a_message_is_matched_with_its_receive() -> None:
    result = analyze(simulate(Pipelined(schedule="gpipe")))
    pairs = [met for met in result.attribution.collectives if met.op == "send_recv"]
    assert pairs
    assert all(met.complete and set(met.tail_ns) == {0} for met in pairs)
    for met in pairs:
        sender, receiver = (int(rank) for rank in met.key[0].removeprefix("p2p ").split(">"))
        waits = dict(zip(met.ranks, met.wait_ns, strict=True))
        if met.last_arriver == sender:
            assert met.transfer_ns == MS // 5
            assert waits[receiver] > waits[sender] == 0
        else:
            assert met.transfer_ns < MS // 5, "the rest of a message that was under way"
            assert waits[sender] <= 20_000, "it handed the message over"
    assert finding(result, "mismatched-collectives") is None


def test_the_parts_still_sum_to_the_step() -> None:
    result = analyze(simulate(Pipelined(mesh=PP_DP_TP)))
    for step in result.attribution.steps:
        for part in step.parts:
            parts = (part.compute_ns, part.exposed_comm_ns, part.exposed_copy_ns, part.data_wait_ns)
            assert sum(parts) + part.checkpoint_ns + part.idle_ns == part.dur_ns
            assert part.exposed_wait_ns is not None
            assert part.exposed_transfer_ns is not None
            assert part.exposed_wait_ns + part.exposed_transfer_ns == part.exposed_comm_ns
            assert part.overlapped_comm_ns == 0
