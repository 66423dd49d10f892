"""Who is late, from durations alone."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from diag.api import DurationResult, open_run
from diag.errors import DiagError
from diag.model.steps import Bottleneck, Severity
from diag.words.formatting import NBSP
from tests.command import diag
from tests.inspector.files import EPOCH_US, MS, Took, write_job

ALL = {"0xa": tuple(range(8))}


def opened(folder: Path) -> DurationResult:
    result = open_run(folder)
    assert isinstance(result, DurationResult)
    return result


def late_by(microseconds: float, *late: int, every: int = 1) -> Took:
    """All ranks jitter; these are late in every so manieth collective."""
    random = Random(0)
    jitter = [[random.uniform(0, 60) for _ in range(8)] for _ in range(1000)]

    def took(rank: int, number: int, ranks: tuple[int, ...]) -> float:
        arrival = {r: jitter[number][r] + (microseconds if r in late and number % every == 0 else 0) for r in ranks}
        return round(400 + max(arrival.values()) - arrival[rank])

    return took


@pytest.mark.parametrize("version", ["v4.0", "v4.2", "v4.3"])
def test_the_late_rank_is_named(tmp_path: Path, version: str) -> None:
    result = opened(write_job(tmp_path, ALL, late_by(2 * MS, 5), version=version))
    verdict = result.verdict
    assert (verdict.culprit_ranks, verdict.culprit_hosts, verdict.cause) == ((5,), ("node1",), "straggler")
    assert verdict.bottleneck == Bottleneck.UNDETERMINED, "what it does meanwhile is not in the files"
    assert verdict.confidence >= 0.9
    assert "Rank 5 arrives last at the collectives" in verdict.headline


def test_a_rank_that_is_late_now_and_then(tmp_path: Path) -> None:
    assert opened(write_job(tmp_path, ALL, late_by(6 * MS, 5, every=7))).verdict.culprit_ranks == (5,)


def test_a_late_host(tmp_path: Path) -> None:
    """Three ranks of eight, which wait for nobody."""
    assert opened(write_job(tmp_path, ALL, late_by(2 * MS, 5, 6, 7))).verdict.culprit_ranks == (5, 6, 7)


def test_nobody_is_late(tmp_path: Path) -> None:
    assert opened(write_job(tmp_path, ALL, late_by(0))).verdict.culprit_ranks == ()


def test_now_this_rank_now_that(tmp_path: Path) -> None:
    def took(rank: int, number: int, ranks: tuple[int, ...]) -> float:
        return 400 if rank == number // 3 % 8 else 2400

    assert opened(write_job(tmp_path, ALL, took)).verdict.culprit_ranks == ()


def test_a_rank_that_was_made_late_is_not_named(tmp_path: Path) -> None:
    """Rank 0 is late; rank 1 waits for it in their group, and is late in its other group with rank 3 for that."""
    groups = {"0xa": (0, 1), "0xb": (2, 3), "0xc": (0, 2), "0xd": (1, 3)}

    def took(rank: int, number: int, ranks: tuple[int, ...]) -> float:
        waits = {(0, 1): 1, (0, 2): 2, (1, 3): 3}.get(ranks)
        return 2300 if rank == waits else 300

    result = opened(write_job(tmp_path, groups, took))
    assert result.verdict.culprit_ranks == (0,)
    assert "no communicator has all processes" in " ".join(result.coverage.notes)


def test_how_much_of_the_time_it_is(tmp_path: Path) -> None:
    """Twenty dumps over ten seconds show what the waiting costs."""
    result = opened(write_job(tmp_path, ALL, late_by(10 * MS, 5), dumps=20, wall_us=10_000_000))
    assert result.verdict.severity == Severity.CRITICAL
    assert result.verdict.share == pytest.approx(200 * 10 / 10_000, rel=0.1)
    idle = opened(write_job(tmp_path / "idle", ALL, late_by(0), dumps=20, wall_us=10_000_000))
    assert "communication is 1% of the time, and no rank arrives last" in idle.verdict.headline.replace(NBSP, " ")


def test_bus_bandwidth_and_reach(tmp_path: Path) -> None:
    groups = {"0xa": tuple(range(8)), "0xb": (0, 1, 2, 3), "0xc": (4, 5, 6, 7)}
    result = opened(write_job(tmp_path, groups, lambda rank, number, ranks: 800 if len(ranks) == 8 else 200))
    rows = {row.group: row for row in result.breakdowns.collectives.rows}
    assert rows["0xa"].busbw_gb_s == pytest.approx(2 * 7 / 8 * (8 << 20) / 800_000, rel=0.01)
    assert rows["0xb"].members == (0, 1, 2, 3)
    assert "of the time in collectives, 20% is within a host and 80% across hosts" in result.coverage.notes
    assert result.collectives.height == 3


def test_another_job_s_files_in_the_folder(tmp_path: Path) -> None:
    write_job(tmp_path, {"0xold": tuple(range(8))}, late_by(2 * MS, 1), first_pid=1000, epoch_us=EPOCH_US - 10**9)
    result = opened(write_job(tmp_path, ALL, late_by(2 * MS, 5)))
    assert result.verdict.culprit_ranks == (5,)
    assert result.coverage.ranks_used == tuple(range(8))
    reasons = [gap.reason for gap in result.coverage.skipped]
    assert reasons == ["8 processes of an earlier job in the same folder; left out"]


def test_missing_ranks_are_stated(tmp_path: Path) -> None:
    folder = write_job(tmp_path, ALL | {"0xb": (0, 1, 2, 3)}, late_by(2 * MS, 2))
    (folder / "node1-pid107.log").unlink()
    result = opened(folder)
    assert result.coverage.ranks_missing == (7,)
    assert "200 collectives were not recorded on all their ranks: left out" in result.coverage.notes
    assert result.verdict.culprit_ranks == (2,)
    assert result.verdict.confidence < 0.8


def test_one_rank_alone_answers_nothing(tmp_path: Path) -> None:
    folder = write_job(tmp_path, ALL, late_by(0))
    for path in sorted(folder.iterdir())[1:]:
        path.unlink()
    with pytest.raises(DiagError, match="no collective can be compared"):
        open_run(folder)


def test_means_of_prometheus_text(tmp_path: Path) -> None:
    for gpu in range(4):
        labels = f'node="n0",gpu="GPU{gpu}",comm_name="DP",n_nodes="1",nranks="4",collective="AllReduce"'
        sizes = {"1-2MB": 300, "4-5MB": 900, "16-17MB": 2000}
        waited = 0 if gpu == 2 else 4000
        samples = [
            f'nccl_collective_exec_time_microseconds{{{labels},message_size="{size}"}} {took + waited}\n'
            for size, took in sizes.items()
        ]
        (tmp_path / f"nccl_inspector_metrics_{gpu}.prom").write_text("".join(samples))
    result = opened(tmp_path)
    assert result.verdict.culprit_ranks == (2,)
    assert result.verdict.confidence <= 0.6, "means show no single collective"


def test_every_front_end_shows_it(tmp_path: Path) -> None:
    folder = write_job(tmp_path / "logs", ALL, late_by(2 * MS, 5), dumps=20, wall_us=1_000_000)
    text = diag("analyze", folder)
    assert text.returncode == 0
    assert "Rank 5 arrives last" in text.stdout
    answer = json.loads(diag("analyze", folder, "--json").stdout)
    assert answer["verdict"]["culprit"]["ranks"] == [5]
    page = tmp_path / "report.html"
    assert diag("report", folder, "-o", page).returncode == 0
    assert "Rank 5 arrives last" in page.read_text()
    assert "Rank 5 arrives last" in repr(open_run(folder))
