"""Where the time of a job went, and what cost some of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import diag
from diag.api import open_run
from diag.errors import NoStepError
from diag.history.losses import goodput_of, spent
from diag.model.history import Life
from diag.rundir.series import Series, of_sums
from diag.show.json_keys import documents, undescribed
from diag.summaries import open_history
from tests.command import diag as diag_command
from tests.history.planted import BEGIN_NS, MS, Training

S = 10**9


def adds_up(life: Life) -> bool:
    goodput = life.goodput
    assert goodput is not None
    return sum(goodput.parts.values()) == goodput.wall_ns and all(ns >= 0 for ns in goodput.parts.values())


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 steps, a checkpoint in step 100, 30 steps; it fails. A minute later it goes on with step 101."""
    run = tmp_path_factory.mktemp("restarted") / "R"
    first = Training(run)
    first.train(100).save(500).train(30).close(exit_code=1)
    again = Training(run / "restart-1", begin_ns=first.end_ns + 60 * S, first_step=101)
    again.train(100).close(exit_code=0)
    return run


def test_a_restart_has_its_pause_and_its_repeated_steps(restarted: Path) -> None:
    life = open_history(restarted)
    (restart,) = life.restarts
    assert (restart.number, restart.resumed_at, restart.repeated) == (1, 101, 30)
    assert restart.down_ns == pytest.approx(60 * S, abs=10_000)
    assert restart.repeated_ns == pytest.approx(30 * 203e6, rel=0.05)
    assert restart.ended == "failed"
    (incident,) = life.incidents
    assert (incident.kind, incident.attempt) == ("restart", 1)
    assert incident.lost_ns == restart.down_ns + restart.repeated_ns
    assert incident.lost_hours == pytest.approx(4 * incident.lost_ns / 3.6e12)
    goodput = life.goodput
    assert goodput is not None
    assert adds_up(life)
    assert goodput.restarts == pytest.approx(60 * S, abs=10_000)
    assert goodput.repeated_steps == restart.repeated_ns
    assert goodput.checkpoints == pytest.approx(500 * MS, rel=0.01)
    assert goodput.new_steps == pytest.approx(201 * 203e6, rel=0.05)


def test_a_run_that_was_restarted_is_its_newest_attempt(restarted: Path) -> None:
    for path, attempt in ((restarted, 2), (restarted / "restart-1", 2), (restarted / "restart-0", 1)):
        printed = " ".join(diag_command("analyze", path, "-v").stdout.split())
        where = f"{restarted}/restart-{attempt - 1}"
        assert f" · attempt {attempt} of 2 · {where}" in printed
        assert (
            f"! To see attempt {3 - attempt}: diag analyze {restarted}/restart-{2 - attempt}; "
            f"all attempts: diag history {restarted}"
        ) in printed
        assert ("exit code 1" in printed) == (attempt == 1)
        done = diag_command("analyze", path, "--json")
        of_run = json.loads(done.stdout)["run"]
        assert (done.returncode, of_run["attempt"], of_run["restarts"], of_run["path"]) == (0, attempt - 1, 1, where)
        assert diag.open_run(path).tables.root == (restarted if attempt == 1 else restarted / "restart-1")


def test_every_command_on_a_run_takes_the_same_attempt(restarted: Path) -> None:
    def taken(*arguments: str | Path, of: Sequence[str] = ("run",)) -> list[int]:
        document = json.loads(diag_command(*arguments, "--json").stdout)
        return [document[name]["attempt"] for name in of]

    sides = ("before", "after")
    assert taken("compare", restarted / "restart-0", restarted, of=sides) == [0, 1]
    assert taken("compare", restarted / "restart-1", restarted, of=sides) == [1, 1]
    for name, attempt in (("", 1), ("restart-0", 0), ("restart-1", 1)):
        assert taken("check", restarted / name, "--max-step", "1s") == [attempt]
        issue = diag_command("report", restarted / name, "--format", "issue", "-o", "-").stdout
        assert f"of {100 if attempt else 131} steps" in issue
    of_first = diag_command("triage", restarted / "restart-0").stdout
    assert "exit code 1" in of_first
    assert "restart 1" not in of_first
    assert "restart 1" in diag_command("triage", restarted).stdout


def test_attempts_without_a_step_are_not_the_present(restarted: Path, tmp_path: Path) -> None:
    run = tmp_path / "R"
    shutil.copytree(restarted, run)
    Training(run / "restart-2", begin_ns=BEGIN_NS + 600 * S).close(exit_code=1)
    done = diag_command("analyze", run)
    assert done.returncode == 4
    assert " · attempt 2 of 3 " in " ".join(done.stdout.split())
    result = diag.open_run(run)
    assert result.tables.root == run / "restart-1"
    assert [(gap.path, gap.reason) for gap in result.coverage.skipped] == [
        (str(run / "restart-2"), f"a later attempt of this job, which recorded no step: diag triage {run}/restart-2")
    ]
    assert not diag.open_run(run / "restart-0").coverage.skipped  # there is a later one with steps


def test_the_command_says_what_a_restart_lost(restarted: Path) -> None:
    printed = " ".join(diag_command("history", restarted).stdout.split())
    assert "Restart 1" in printed
    assert "after it failed: 60.0 s without a step; 30 steps trained again" in printed
    assert "Goodput" in printed
    document = json.loads(diag_command("history", restarted, "--json").stdout)
    parts = document["goodput"]["parts_ns"]
    assert sum(parts.values()) == document["goodput"]["wall_ns"]
    assert [attempt["number"] for attempt in document["attempts"]] == [0, 1]


def test_steps_that_count_anew_go_on_after_the_last_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "R"
    first = Training(run, ranks=2)
    first.train(60).save(300).train(20).close(exit_code=1)
    again = Training(run / "restart-1", ranks=2, begin_ns=first.end_ns + 10 * S)
    again.train(50).close(exit_code=0)
    life = open_history(run)
    (restart,) = life.restarts
    assert (restart.resumed_at, restart.repeated, restart.basis) == (61, 20, "the last checkpoint before it")
    assert adds_up(life)
    assert any("is taken to begin with step 61" in note for note in life.goodput.notes)  # type: ignore[union-attr]


def test_without_a_checkpoint_all_is_trained_again(tmp_path: Path) -> None:
    run = tmp_path / "R"
    first = Training(run, ranks=2)
    first.train(40).close(exit_code=1)
    Training(run / "restart-1", ranks=2, begin_ns=first.end_ns + 10 * S).train(60).close(exit_code=0)
    (restart,) = open_history(run).restarts
    assert (restart.resumed_at, restart.repeated) == (0, 40)


@pytest.mark.parametrize(("without", "where"), [(0, "is left out"), (1, "counts as restarts")])
def test_an_attempt_without_a_step_does_not_hide_the_others(without: int, where: str, tmp_path: Path) -> None:
    """It failed while it loaded its data. Of a later one, the time is that between the steps before and after it."""
    run = tmp_path / "R"
    begin_ns = BEGIN_NS
    for number in range(3):
        attempt = Training(
            run / f"restart-{number}" if number else run, ranks=2, begin_ns=begin_ns, first_step=number * 40
        )
        attempt.train(0 if number == without else 40).close(exit_code=1)
        begin_ns = attempt.end_ns + 10 * S
    life = open_history(run)
    assert [attempt.number for attempt in life.attempts] == [number for number in range(3) if number != without]
    assert adds_up(life)
    assert life.goodput is not None
    assert life.goodput.restarts == pytest.approx(20 * S if without else 10 * S, abs=10_000)
    printed = diag_command("history", run)
    assert printed.returncode == 0
    assert f"No step of attempt {without} could be read: its time {where}." in " ".join(printed.stdout.split())


def test_without_a_step_in_any_attempt_there_is_no_history(tmp_path: Path) -> None:
    for folder in ("R", "R/restart-1"):
        Training(tmp_path / folder, ranks=2).train(0).close(exit_code=1)
    with pytest.raises(NoStepError, match="The run recorded no step"):
        open_history(tmp_path / "R")


def test_a_slow_stretch_is_an_incident_with_its_rank_and_cost(tmp_path: Path) -> None:
    Training(tmp_path / "R").train(150).train(80, [2], 100).train(150).close()
    history = diag.open_run(tmp_path / "R").history
    (incident,) = history.incidents
    assert incident.kind == "slow"
    assert (incident.ranks, incident.hosts) == ((2,), ("node1",))
    assert abs(incident.first - 150) <= 2
    assert abs(incident.last - 229) <= 2
    assert not incident.goes_on
    assert incident.lost_ns == pytest.approx(80 * 100 * MS, rel=0.05)
    assert incident.lost_hours == pytest.approx(4 * incident.lost_ns / 3.6e12)
    assert incident.begin_unix_ns is not None
    assert incident.begin_unix_ns - BEGIN_NS == pytest.approx(150 * 203e6, rel=0.05)


def test_a_step_that_stands_still_is_one_too(tmp_path: Path) -> None:
    Training(tmp_path / "R").train(80).stall(20_000, rank=1).train(40).pause(9_000).train(40).close()
    history = open_run(tmp_path / "R").history
    stalled, paused = history.incidents
    assert (stalled.kind, stalled.first, stalled.ranks) == ("stalled", 80, (1,))
    assert stalled.lost_ns == pytest.approx(20 * S, rel=0.02)
    assert (paused.kind, paused.first, paused.cause) == ("stalled", 121, "between steps")
    assert paused.lost_ns == pytest.approx(9 * S, abs=10_000)
    assert history.goodput is not None
    assert history.goodput.stalls == pytest.approx(stalled.lost_ns + paused.lost_ns, abs=10)
    assert "stalled for 20.0 s, the others waited for rank 1" in diag_command("history", tmp_path / "R").stdout


def test_a_standstill_of_which_only_sums_are_left_has_its_time_and_its_rank(tmp_path: Path) -> None:
    """Two minutes in one step, and a minute between two; evaluations and checkpoints in the sums are no incidents."""
    run = Training(tmp_path / "R", byte_budget=210_000)
    run.train(130).evaluate(90_000).train(60).stall(120_000, rank=2).train(300).save(60_000)
    stood_ns = run.train(200).end_ns
    run.pause(60_000).train(1400).close()
    history = open_run(tmp_path / "R").history
    assert history.stretches[0].steps > 1
    stalled, paused = history.incidents
    assert (stalled.kind, stalled.first, stalled.last, stalled.ranks) == ("stalled", 191, 191, (2,))
    assert stalled.lost_ns == pytest.approx(120 * S, rel=0.01)
    assert stalled.begin_unix_ns is not None
    assert stalled.begin_unix_ns - BEGIN_NS == pytest.approx(190 * 203e6 + 90.2 * S, rel=0.01)
    assert (paused.first, paused.ranks, paused.cause) == (693, (), "between steps")
    assert paused.lost_ns == pytest.approx(60 * S, rel=0.01)
    assert paused.begin_unix_ns == stood_ns
    assert history.goodput is not None
    assert history.goodput.stalls == pytest.approx(stalled.lost_ns + paused.lost_ns, abs=10)
    assert sum(history.goodput.parts.values()) == history.goodput.wall_ns


def test_a_healthy_run_has_no_incident(tmp_path: Path) -> None:
    Training(tmp_path / "R").train(100).save(3_000).train(100).close(exit_code=0)
    life = open_history(tmp_path / "R")
    assert life.incidents == ()
    assert adds_up(life)
    assert life.goodput is not None
    assert life.goodput.share > 0.9


@pytest.mark.parametrize("sample", sorted(path.name for path in Path("sample_traces").glob("*/")))
def test_the_sample_runs_have_no_incident(sample: str) -> None:
    life = open_history(Path("sample_traces") / sample)
    assert life.incidents == ()
    assert life.goodput is None or adds_up(life)


ROW = st.tuples(st.integers(0, 10**10), st.integers(1, 10**11), st.integers(0, 10**11), st.booleans(), st.booleans())


@settings(max_examples=200, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=30), st.integers(0, 10**12), st.integers(0, 10**12), st.booleans())
def test_the_parts_of_any_steps_add_up_to_the_wall_time(
    rows: list[tuple[int, int, int, bool, bool]], before: int, after: int, stuck: bool
) -> None:
    series = made(rows)
    begin, end = int(series.begin_ns[0]) - before, int(series.end_ns[-1]) + after
    goodput = goodput_of(series, spent(series), begin, end, stuck)
    assert goodput.wall_ns == end - begin
    assert sum(goodput.parts.values()) == goodput.wall_ns
    assert all(ns >= -len(rows) for ns in goodput.parts.values())  # rounded


def made(rows: list[tuple[int, int, int, bool, bool]]) -> Series:
    """(gap before the step, its duration, its checkpoint, whether it evaluates, whether a profiler runs)"""
    import numpy as np

    gaps, durations, saved = (np.array([row[at] for row in rows], dtype=np.int64) for at in range(3))
    ends = np.cumsum(gaps + durations)
    empty, numbers = of_sums(()), np.arange(len(rows), dtype=np.int64)
    flags = [np.array([row[at] for row in rows], dtype=np.bool_) for at in (3, 4)]
    times = durations.astype(np.float64)
    assert len(empty) == 0
    return Series(
        numbers, numbers, np.ones_like(numbers), ends - durations, ends, times, times,
        {"checkpoint": np.minimum(saved, durations).astype(np.float64)}, *flags,
    )  # fmt: skip


def test_a_host_that_is_at_fault_again_and_again_is_named(tmp_path: Path) -> None:
    for name, slow in (("monday", [3]), ("tuesday", [2]), ("wednesday", [])):
        Training(tmp_path / name, begin_ns=BEGIN_NS).train(80).train(60, slow, 80 if slow else 0).close(exit_code=0)
    printed = " ".join(diag_command("history", tmp_path).stdout.split())
    assert "node1 was at fault in 2 of 3 runs (monday, tuesday)" in printed
    assert "node0 was at fault" not in printed
    document = json.loads(diag_command("history", tmp_path, "--json").stdout)
    assert [(host["host"], host["runs"]) for host in document["hosts"]] == [("node1", ["monday", "tuesday"])]
    assert [run["name"] for run in document["runs"]] == ["monday", "tuesday", "wednesday"]
    assert list(undescribed(document, documents()["history SEVERAL"])) == []
