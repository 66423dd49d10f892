"""A rank that is late within one step is named by how often it comes last to the collectives, with the reason."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from diag.api import Result, open_run
from diag.model.steps import Bottleneck, Finding
from tests.device_ranks import MS, Extra, Ranks


def found(result: Result, name: str) -> Finding:
    (one,) = [f for f in result.examination.findings if f.id == name]
    return one


def value(finding: Finding, text: str) -> float:
    (row,) = [row for row in finding.evidence if text in row.filter]
    return row.value


def often(ranks: tuple[int, ...], part: float, ns: int, seed: int = 0, of: int = 8) -> Extra:
    """One of these ranks is late in so many of the calls, in the others any rank."""
    random = Random(seed)
    late = [random.choice(ranks) if random.random() < part else random.randrange(of) for _ in range(1000)]
    return lambda call, rank: ns if late[call] == rank else 0


@pytest.mark.parametrize("off_ns", [lambda rank: 0, lambda rank: rank * 3_000 * MS], ids=["one clock", "own clocks"])
def test_a_rank_that_its_host_holds_up_is_named_in_one_step(tmp_path: Path, off_ns: Extra) -> None:
    late = often((5,), 0.8, 3 * MS)
    plan = Ranks(host_ns=late, off_ns=off_ns)  # type: ignore[arg-type]
    waited = plan.write(tmp_path)
    finding = found(open_run(tmp_path), "host-straggler")
    last = sum(late(call, 5) > 0 for call in range(plan.calls))
    assert finding.ranks == (5,)
    assert finding.bottleneck == Bottleneck.HOST
    assert value(finding, "collectives in which rank 5 was last, of 40 with") == last
    assert value(finding, "waiting for rank 5") == pytest.approx(3 * last, abs=0.1)
    assert f"last in {last} of 40 collectives" in finding.title
    assert sum(map(max, waited)) == 40 * 3 * MS
    # All of the waiting is accounted for: for rank 5, and for the others in their turn. The finding names rank 5.
    assert finding.cost_ns_per_step == finding.charged_ns[5] == pytest.approx(3 * last * MS, rel=0.02)
    assert sum(finding.charged_ns.values()) == pytest.approx(40 * 3 * MS, rel=0.02)


def test_two_ranks_in_turn(tmp_path: Path) -> None:
    Ranks(host_ns=often((0, 6), 1.0, 4 * MS)).write(tmp_path)
    assert set(found(open_run(tmp_path), "host-straggler").ranks) == {0, 6}


def test_longer_kernels_are_no_fault_of_the_host(tmp_path: Path) -> None:
    Ranks(more_ns=often((5,), 0.8, 3 * MS)).write(tmp_path)
    result = open_run(tmp_path)
    assert found(result, "compute-straggler").ranks == (5,)
    assert result.verdict.culprit_ranks == (5,)
    assert "host-straggler" not in {f.id for f in result.examination.findings}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("ranks", [2, 8])
def test_lateness_at_random_names_nobody(tmp_path: Path, ranks: int, seed: int) -> None:
    random = Random(seed)
    late = [(random.randrange(ranks), round(random.expovariate(1 / (3 * MS)))) for _ in range(40)]
    Ranks(ranks=ranks, host_ns=lambda call, rank: late[call][1] if late[call][0] == rank else 0).write(tmp_path)
    result = open_run(tmp_path)
    assert not any(f.ranks for f in result.examination.findings)
    assert result.verdict.culprit_ranks == ()


@pytest.mark.parametrize(("late", "expected"), [((0, 0, 0, 0), (0,)), ((0, 0, 1, 0), ())])
def test_one_step_that_says_otherwise_leaves_it_open(
    tmp_path: Path, late: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """One of two ranks in all of four steps, by unequal amounts: one chance in sixteen, and the collectives prove it.
    In three of four: what is late in all collectives of a step may be so for one reason."""
    Ranks(
        ranks=2,
        steps=5,
        calls=50,
        work_ns=MS,
        transfer_ns=MS // 10,
        host_ns=lambda call, rank: (1 + call // 10) * MS // 2 if rank == late[max(0, call // 10 - 1)] else 0,
    ).write(tmp_path)
    assert found(open_run(tmp_path), "host-straggler").ranks == expected


def test_two_large_waits_outweigh_many_small_ones(tmp_path: Path) -> None:
    """Rank 2's host stalls for 200 ms in two of twelve collectives; in the others rank 3 is later by 30 us."""

    def late(call: int, rank: int) -> int:
        if call in (3, 9):
            return 200 * MS if rank == 2 else 0
        return 30_000 if rank == 3 else 0

    Ranks(ranks=4, steps=2, calls=12, host_ns=late).write(tmp_path)
    verdict = open_run(tmp_path).verdict
    assert (verdict.bottleneck, verdict.culprit_ranks) == (Bottleneck.HOST, (2,))


def test_one_large_wait_proves_nothing(tmp_path: Path) -> None:
    Ranks(ranks=4, calls=12, host_ns=lambda call, rank: 200 * MS if (call, rank) == (3, 2) else 0).write(tmp_path)
    found = open_run(tmp_path).examination.findings
    assert [finding.ranks for finding in found if finding.id == "host-straggler"] in ([()], [])


def test_a_rank_that_shares_its_device_makes_no_other_one_late(tmp_path: Path) -> None:
    """Its part of each collective ends later, so that it is longer; the other rank's is not late for that."""
    Ranks(ranks=2, work_ns=3 * MS, tail_ns=lambda call, rank: 2 * MS if rank == 0 else 0).write(tmp_path)
    result = open_run(tmp_path)
    assert 1 not in {rank for f in result.examination.findings for rank in f.ranks}


def waits(result: Result) -> tuple[str, ...]:
    return tuple(f.id for f in result.examination.findings if f.bottleneck == Bottleneck.COMMUNICATION)


@pytest.mark.parametrize("recorded", [(1, 2, 3, 4, 5, 7), (2,)], ids=["six of eight", "one of eight"])
@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
def test_waiting_for_ranks_that_were_not_recorded(tmp_path: Path, recorded: tuple[int, ...], told: bool) -> None:
    """Late in nine calls of ten: what the collectives take longer than the fastest one is waiting for them."""
    late = often((0, 6), 1.0, 4 * MS)
    plan = Ranks(host_ns=lambda call, rank: 0 if call % 10 == 9 else late(call, rank), told=told)
    waited = plan.write(tmp_path, recorded)
    result = open_run(tmp_path)
    finding = found(result, "waiting-for-missing-ranks")
    expected = sum(row[recorded[0]] for row in waited)
    assert expected == 36 * 4 * MS
    assert finding.cost_ns_per_step == pytest.approx(expected, rel=0.02)
    assert finding.confidence == result.verdict.confidence
    absent = "ranks 0, 6" if len(recorded) > 1 else "ranks 0-1, 3-7"
    assert absent in finding.title
    assert absent in finding.action
    assert finding.ranks == ()
    assert value(finding, ", fastest") == pytest.approx(plan.transfer_ns / MS)
    assert result.verdict.bottleneck == Bottleneck.COMMUNICATION
    assert result.verdict.cause == "waiting-for-missing-ranks"
    assert result.verdict.confidence <= 0.7  # a quarter of the ranks
    assert result.verdict.culprit_ranks == ()
    assert set(waits(result)) <= {"waiting-for-missing-ranks", "exposed-communication"}


def test_without_a_faster_call_waiting_is_not_told_from_transfer(tmp_path: Path) -> None:
    """Small collectives that all take 4 ms: with all ranks at hand a slow network, with one of them not known."""
    plan = Ranks(ranks=4, elements=1_000, transfer_ns=4 * MS)
    plan.write(tmp_path / "all")
    plan.write(tmp_path / "one", (1,))
    whole, one = open_run(tmp_path / "all"), open_run(tmp_path / "one")
    assert whole.verdict.cause == "slow-network"
    assert waits(one) == ("exposed-communication",)
    assert "unknown without ranks 0, 2-3" in found(one, "exposed-communication").title
    assert one.verdict.confidence <= 0.6


def test_a_group_that_was_recorded_whole_is_judged_though_ranks_are_missing(tmp_path: Path) -> None:
    """Ranks 0 and 1 meet each other only; that ranks 2 and 3 are missing is nothing to them."""
    plan = Ranks(ranks=2, elements=1_000, transfer_ns=4 * MS)
    plan.write(tmp_path)
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace('"world_size": 2', '"world_size": 4'))
    result = open_run(tmp_path)
    assert result.coverage.ranks_missing == (2, 3)
    assert waits(result) == ("slow-network",)
