"""Expert parallelism: which rank is slow, and whether by the tokens that it received or by itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from diag.api import Result, analyze, open_run
from diag.model.breakdown import AllToAllStat
from diag.model.steps import Bottleneck, Finding, Severity
from diag.show.breakdowns import exchange_table
from diag.show.json import breakdowns_to_dict
from tests.account.kineto_builder import KinetoBuilder
from tests.experts import ROW, Experts, hot, mild, run_of
from tests.simulate import MS, write_run

STRAGGLERS = {"expert-imbalance", "compute-straggler", "straggler-cause-unknown"}


def about_stragglers(result: Result) -> Finding:
    (found,) = [finding for finding in result.examination.findings if finding.id in STRAGGLERS]
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("ranks", "factor", "fixed_ns"), [(2, 2.5, 0), (4, 1.8, 3 * MS), (8, 3.0, 10 * MS)])
def test_the_rank_of_the_popular_experts_is_late_by_its_load(
    ranks: int, factor: float, fixed_ns: int, seed: int
) -> None:
    rank = seed % ranks
    plan = Experts(ranks=ranks, popular=hot(rank, factor, ranks, noise=0.2), fixed_ns=fixed_ns, seed=seed)
    result = analyze(run_of(plan))
    verdict, found = result.verdict, about_stragglers(result)
    assert (verdict.bottleneck, verdict.cause, verdict.culprit_ranks) == (
        Bottleneck.COMPUTE,
        "expert-imbalance",
        (rank,),
    )
    imbalance = next(e.value for e in found.evidence if e.filter.startswith("most received over the mean"))
    assert imbalance == pytest.approx(factor * ranks / (factor + ranks - 1), rel=0.1)
    assert "load-balancing loss" in found.action


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("where", ["slow", "slow_experts"])
def test_a_slow_rank_that_received_no_more_is_slow_by_itself(where: str, noise: float, seed: int) -> None:
    plan = Experts(popular=mild(4, noise), seed=seed)
    plan = replace(plan, slow={seed: 1.6}) if where == "slow" else replace(plan, slow_experts={seed: 1.8})
    result = analyze(run_of(plan))
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("compute-straggler", (seed,))
    assert "received no more tokens than the others" in result.verdict.headline or "explains" in result.verdict.headline


def test_a_slow_rank_beside_one_of_popular_experts() -> None:
    result = analyze(run_of(Experts(popular=hot(2, 1.5, 4), slow={1: 2.5})))
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("compute-straggler", (1,))
    assert "received no more tokens than the others" in result.verdict.headline


@pytest.mark.parametrize("ranks", [2, 4])
def test_slow_and_popular_at_once_is_never_called_the_load_alone(ranks: int) -> None:
    for seed in range(4):
        plan = Experts(ranks=ranks, popular=hot(1, 1.6, ranks), slow={1: 1.6}, seed=seed)
        result = analyze(run_of(plan))
        assert result.verdict.culprit_ranks == (1,)
        assert result.verdict.cause in ("straggler-cause-unknown", "compute-straggler")


def test_a_load_that_never_changes_decides_nothing_where_other_work_is_beside_it() -> None:
    """Two ranks: a slow one, or one with more tokens, would look the same."""
    plan = Experts(ranks=2, popular=hot(1, 2.0, 2, noise=0.0), fixed_ns=20 * MS)
    found = about_stragglers(analyze(run_of(plan)))
    assert (found.id, found.ranks) == ("straggler-cause-unknown", (1,))
    assert "is not decided" in found.title
    assert "more steps" in found.action


def test_as_long_per_token_as_the_others_is_the_load_with_less_confidence() -> None:
    plan = Experts(ranks=2, popular=hot(1, 2.0, 2, noise=0.0))
    result = analyze(run_of(plan))
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("expert-imbalance", (1,))
    assert result.verdict.confidence <= 0.7


def test_the_popular_experts_change() -> None:
    plan = Experts(
        popular=lambda step, layer, random: [2.5 if rank == (step * 3 + layer) % 4 else 1.0 for rank in range(4)]
    )
    result = analyze(run_of(plan))
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("expert-imbalance", ())


def popular_in_each_group(step: int, layer: int, random: Random) -> list[float]:
    return [(2.5 if rank in (2, 5) else 1.0) * (1 + random.uniform(-0.1, 0.1)) for rank in range(8)]


@pytest.mark.parametrize("groups", [2, 4])
def test_one_popular_rank_in_each_group(groups: int) -> None:
    result = analyze(run_of(Experts(ranks=8, groups=groups, popular=popular_in_each_group)))
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("expert-imbalance", (2, 5))
    assert len(result.breakdowns.collectives.all_to_alls) == 8


def test_sequence_parallelism_in_equal_parts_says_nothing_of_the_load() -> None:
    popular = hot(2, 2.0, 4, noise=0.2)
    verdict = analyze(run_of(Experts(popular=popular, sequence=True))).verdict
    assert (verdict.cause, verdict.culprit_ranks) == ("expert-imbalance", (2,))
    verdict = analyze(run_of(Experts(popular=mild(4, 0.1), sequence=True, slow={1: 1.8}))).verdict
    assert (verdict.cause, verdict.culprit_ranks) == ("compute-straggler", (1,))


def test_one_group_has_a_popular_rank_and_another_a_slow_one() -> None:
    popular = hot(2, 2.0, 8)
    verdict = analyze(run_of(Experts(ranks=8, groups=2, popular=popular, slow={5: 2.0}))).verdict
    assert (verdict.cause, verdict.culprit_ranks) == ("compute-straggler", (5,))


@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_are_disturbed_at_random_are_not_late_by_their_load(seed: int) -> None:
    verdict = analyze(run_of(Experts(popular=mild(4, 0.15), disturbed=0.1, seed=seed))).verdict
    assert verdict.severity != Severity.HEALTHY
    assert verdict.cause != "expert-imbalance"


def test_longer_batches_are_no_expert_imbalance() -> None:
    """The return brings a rank as many tokens as it sent: that it receives more there is no load of its experts."""
    plan = Experts(popular=mild(4, 0.1), own_tokens=lambda rank: 1024 if rank == 3 else 512, dense_ns=20 * MS)
    result = analyze(run_of(plan))
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("compute-straggler", (3,))


@pytest.mark.parametrize("seed", range(6))
def test_mild_imbalance_is_healthy(seed: int) -> None:
    verdict = analyze(run_of(Experts(popular=mild(4, 0.05), seed=seed))).verdict
    assert (verdict.severity, verdict.culprit_ranks) == (Severity.HEALTHY, ())


def test_what_is_saved_is_what_a_balanced_run_takes_less() -> None:
    plan = Experts(popular=hot(2, 2.0, 4), jitter=0.0)
    found = about_stragglers(analyze(run_of(plan)))
    saved = next(e.value for e in found.evidence if e.filter.startswith("saved if"))

    def step_ms(plan: Experts) -> float:
        steps = run_of(plan).ranks[0].steps
        return (steps[-1].end_ns - steps[2].begin_ns) / (len(steps) - 2) / MS

    assert saved == pytest.approx(step_ms(plan) - step_ms(replace(plan, popular=mild(4, 0.0))), rel=0.05)


def test_records_of_older_versions_say_that_the_load_is_not_known(tmp_path: Path) -> None:
    """They lack the bytes that were received."""
    layout = write_run(run_of(Experts(popular=hot(2, 2.0, 4), sized=False)), tmp_path / "run")
    for rank in range(4):
        file = layout.rank(rank).collectives
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            line["rows"] = [row[:10] for row in line["rows"]]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = open_run(tmp_path / "run")
    found = about_stragglers(result)
    assert (found.id, found.ranks) == ("compute-straggler", (2,))
    assert "sizes were not recorded" in found.action
    assert result.breakdowns.collectives.all_to_alls == ()


def test_the_table_of_all_to_alls(tmp_path: Path) -> None:
    plan = Experts(popular=hot(1, 2.0, 4, noise=0.0), layers=2)
    write_run(run_of(plan), tmp_path / "run")
    result = open_run(tmp_path / "run")
    rows = result.breakdowns.collectives.all_to_alls
    most, *others = rows
    assert (most.rank, most.count, {row.rank for row in others}) == (1, 8, {0, 2, 3})
    received = 4 * plan.tokens * 2 // 5  # of the tokens of four ranks two in five
    there_and_back = 2 * 2 * ROW * (received + plan.tokens)  # layers, passes
    assert most.received_bytes == most.sent_bytes == pytest.approx(there_and_back, rel=0.01)
    assert most.received_over_mean == pytest.approx(1.6, rel=0.01)
    assert all(row.imbalance == pytest.approx(1.6, rel=0.01) for row in rows)
    assert most.caused_wait_ns is not None
    assert most.caused_wait_ns > 10 * MS > sum(row.caused_wait_ns or 0 for row in others)
    frame = result.all_to_alls
    assert frame["rank"].to_list() == [row.rank for row in rows]
    assert frame["received_bytes"].to_list() == [row.received_bytes for row in rows]
    content = breakdowns_to_dict(result.breakdowns)["collectives"]
    assert [row["received_bytes"] for row in content["all_to_alls"]] == [row.received_bytes for row in rows]
    shown = exchange_table(rows)
    assert shown.values("rank") == [1, *(row.rank for row in others)]
    assert shown.notes[0] == "The rank that receives most in an all-to-all gets 1.60 times the mean."


# -- traces ------------------------------------------------------------------------------------------------------------

WORLD, STEPS, TOKENS, ELEMENTS = 4, 6, 1000, 512


def all_to_all_args(sent: list[int], received: list[int], seq: int) -> dict[str, Any]:
    """As Kineto writes them for NCCL's kernels of all_to_all_single with split sizes."""
    return {
        "Collective name": "all_to_allv",
        "In msg nelems": sum(sent) * ELEMENTS,
        "Out msg nelems": sum(received) * ELEMENTS,
        "Group size": WORLD,
        "dtype": "BFloat16",
        "In split size": f"[{', '.join(map(str, sent))}]",
        "Out split size": f"[{', '.join(map(str, received))}]",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": f"[{', '.join(map(str, range(WORLD)))}]",
        "Seq": seq,
    }


def write_traces(folder: Path, slow: int | None = None) -> None:
    """Ranks of which number 2 receives twice as much and computes as much longer, or ``slow`` computes longer."""
    built = [KinetoBuilder(rank=rank, world_size=WORLD) for rank in range(WORLD)]
    now, seq = [MS] * WORLD, 0
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    for step in range(STEPS):
        begin = max(now)
        popular = 2 + 0.1 * (step % 3) if slow is None else 1
        weights = [popular if rank == 2 else 1 + 0.05 * ((step + rank) % 3) for rank in range(WORLD)]
        row = [int(TOKENS * weight / sum(weights)) for weight in weights]  # of each sender
        for rank in range(WORLD):
            now[rank] = begin + 5 * MS
            built[rank].kernel(begin, now[rank], "attention", launch=begin)
        for back in (False, True):
            end = max(now) + MS
            for rank in range(WORLD):
                sent, received = (row, [row[rank]] * WORLD)[:: -1 if back else 1]
                args = all_to_all_args(sent, received, seq)
                built[rank].kernel(now[rank], end, name, launch=begin + 10, stream=20, **args)
                longer = 2.0 if rank == slow else 1.0
                now[rank] = end + round((5 * MS if back else row[rank] * WORLD * 20_000) * longer)
                built[rank].kernel(end, now[rank], "grouped_gemm", launch=begin + 20)
            seq += 1
        for rank in range(WORLD):
            built[rank].step(step, begin, max(now), "ProfilerStep#")
    folder.mkdir()
    for rank in range(WORLD):
        built[rank].write(folder, f"rank{rank}.json")


def test_traces_of_nccl_with_split_sizes(tmp_path: Path) -> None:
    write_traces(tmp_path / "hot")
    result = open_run(tmp_path / "hot")
    most = result.breakdowns.collectives.all_to_alls[0]
    assert isinstance(most, AllToAllStat)
    assert (most.rank, most.count) == (2, 2)
    calls = [call for step in result.attribution.rank_steps if step.rank == 2 for call in step.collectives]
    dispatch, back = calls[0], calls[1]
    row = int(TOKENS * 2 / (2 + 1 + 1.05 + 1))  # in step 0
    assert dispatch.received_bytes == back.sent_bytes == pytest.approx(row * WORLD * ELEMENTS * 2, rel=0.01)
    assert dispatch.sent_bytes == back.received_bytes == pytest.approx(TOKENS * ELEMENTS * 2, rel=0.01)
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("expert-imbalance", (2,))


def test_traces_of_nccl_with_a_slow_rank(tmp_path: Path) -> None:
    write_traces(tmp_path / "slow", slow=1)
    verdict = open_run(tmp_path / "slow").verdict
    assert (verdict.cause, verdict.culprit_ranks) == ("compute-straggler", (1,))
    assert "received no more tokens than the others" in verdict.headline
