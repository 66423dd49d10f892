"""The life of a run, from what is kept of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import diag
from diag.api import analyze
from diag.by_size import open_by_size
from diag.collectors.layout import RunLayout
from diag.collectors.records import FORWARD
from diag.history.condense import condensed
from diag.history.policy import HISTORY
from diag.model.history import Goodput
from diag.rundir.curves import StepsSum
from diag.rundir.policy import RUN_READING
from diag.rundir.series import Series, joined, of_sums
from diag.show.json import to_dict
from diag.show.page import page_of
from diag.summaries import open_summaries
from diag.words.history import goodput_words
from tests.command import diag as diag_command
from tests.history.planted import BEGIN_NS, Training
from tests.many_ranks import Job, write_summaries
from tests.samples import NAMES, opened_sample
from tests.simulate import MS, Plan, simulate, write_run


@pytest.fixture(scope="module")
def slow_rank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 3 is slower from step 150 on."""
    folder = tmp_path_factory.mktemp("slow") / "R"
    training = Training(folder)
    training.train(150).train(100, [3], 60).close()
    return folder


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 1 was slower in steps 400 to 699, of which sums are left."""
    folder = tmp_path_factory.mktemp("long") / "R"
    training = Training(folder, ranks=3, byte_budget=210_000)
    training.train(400).train(300, [1], 50).train(1_000).close()
    return folder


def test_the_answer_says_since_when_and_because_of_whom(slow_rank: Path) -> None:
    result = diag.open_run(slow_rank)
    (change,) = result.history.changes
    assert abs(change.step - 150) <= 2
    assert change.last == 249
    assert change.by == pytest.approx(60 / 203, abs=0.03)
    assert (change.ranks, change.hosts) == ((3,), ("node1",))
    assert change.unix_ns is not None
    assert change.unix_ns - BEGIN_NS == pytest.approx(150 * 203e6, rel=0.05)
    since = page_of(result).since.replace("\xa0", " ")
    assert since.startswith(f"Since step {change.step} (2025-11-24 16:00 UTC): 30% slower")
    assert "because of rank 3 on node1" in since
    assert since in " ".join(diag_command("analyze", slow_rank).stdout.split())


def test_the_data_frames_and_json_have_it(slow_rank: Path) -> None:
    result = diag.open_run(slow_rank)
    assert result.changes["ranks"].to_list() == [[3]]
    assert result.stretches["first"].to_list() == list(range(250))
    parts = result.stretches.select("compute_ns", "exposed_comm_ns", "data_wait_ns", "idle_ns").sum_horizontal()
    assert (result.stretches["step_ns"] - parts).abs().max() < 10_000
    assert to_dict(result)["changes"][0]["ranks"] == [3]


def test_old_stretches_are_known_by_their_sums(long_run: Path) -> None:
    result = diag.open_run(long_run)
    slower, faster = result.history.changes
    assert (slower.step, slower.last, faster.step) == (400, 699, 700)
    assert (slower.ranks, slower.basis) == ((1,), "sums over 50 steps")
    assert slower.slower
    assert not faster.slower
    first = result.tables.retained.phases_from
    assert result.history.resolutions == ((50, 0, first - 1), (1, first, 1_699))
    assert set(result.stretches["resolution"]) == {"each step", "sums over 50 steps"}


def test_so_they_are_on_devices(tmp_path: Path) -> None:
    training = Training(tmp_path / "R", ranks=3, byte_budget=420_000, on_device=True)
    training.train(400).train(300, [1], 50).train(1_000).close()
    slower, _ = diag.open_run(tmp_path / "R").history.changes
    assert (slower.step, slower.last) == (400, 699)
    assert (slower.ranks, slower.basis) == ((1,), "sums over 50 steps")


def test_steps_are_told_together_but_not_over_a_change(long_run: Path) -> None:
    history = diag.open_run(long_run).history
    rows = condensed(history, 8)
    assert len(rows) <= 10
    assert {400, 700} <= {row.first for row in rows}
    assert [row.first for row in rows[1:]] == [row.last + 1 for row in rows[:-1]]
    assert sum(row.steps for row in rows) == 1_700


def test_the_command_prints_a_dozen_lines(long_run: Path) -> None:
    printed = diag_command("history", long_run)
    assert printed.returncode == 0
    assert "Steps 400 to 699" in printed.stdout
    assert "sums over 50" in printed.stdout
    assert len(printed.stdout.splitlines()) <= 25
    document = json.loads(diag_command("history", long_run, "--json").stdout)
    assert [change["step"] for change in document["attempts"][0]["changes"]] == [400, 700]


def test_a_steady_run_has_no_change(tmp_path: Path) -> None:
    Training(tmp_path / "R", ranks=2).train(300).close()
    result = diag.open_run(tmp_path / "R")
    assert result.history.changes == ()
    assert page_of(result).since == ""
    assert "did not change" in diag_command("history", tmp_path / "R").stdout


@pytest.mark.parametrize("sample", NAMES)
def test_the_sample_runs_have_none(sample: str) -> None:
    assert opened_sample(sample).history.changes == ()


def test_very_many_ranks_have_their_summaries(tmp_path: Path) -> None:
    job = Job(16, steps=200, extra_us={5: {"forward": 60_000}}, extra_from=120)
    result = open_summaries(write_summaries(job, tmp_path / "R").root)
    (change,) = result.history.changes
    assert change.step == 120
    assert change.ranks == (5,)


def test_the_cause_of_an_older_change_of_very_many_ranks(tmp_path: Path) -> None:
    job = Job(RUN_READING.many_ranks + 8, steps=1_600, extra_us={5: {"forward": 60_000}}, extra_from=150)
    result = open_by_size(write_summaries(job, tmp_path / "R").root)
    assert result.from_summaries
    assert min(result.attribution.usable.step) > 150, "the newest steps do not reach back so far"
    (change,) = result.history.changes
    assert (change.step, change.ranks, change.basis) == (150, (5,), "the phase durations")


def test_nothing_to_show_is_an_error(tmp_path: Path) -> None:
    printed = diag_command("history", tmp_path / "nothing")
    assert printed.returncode == 1
    assert "no such file" in printed.stderr


def test_a_column_of_zeros_that_a_summary_leaves_out_is_known() -> None:
    first = _made(0, {"forward": np.full(3, 5.0), "rest": np.full(3, 1.0)})
    second, unknown = _made(3, {"forward": np.full(3, 6.0)}), _made(6, {})
    both = joined([first, second, unknown])
    assert both.parts["rest"][:6].tolist() == [1, 1, 1, 0, 0, 0]
    assert np.isnan(both.parts["rest"][6:]).all()


def _made(first: int, parts: dict[str, np.ndarray]) -> Series:
    numbers = np.arange(first, first + 3, dtype=np.int64)
    ones, no, times = np.ones_like(numbers), np.zeros(3, dtype=np.bool_), np.full(3, 9.0)
    return Series(numbers, numbers, ones, 10 * numbers, 10 * numbers + 9, times, times, parts, no, no)


def test_a_damaged_sum_is_left_out() -> None:
    assert len(of_sums([StepsSum(0, 10**17, 50, 0, 10, {}), StepsSum(0, 49, 50, 0, 10, {})])) == 1


@pytest.mark.parametrize(("steps", "expected"), [(2 * HISTORY.least_steps - 1, False), (2 * HISTORY.least_steps, True)])
def test_a_run_of_few_steps_is_known_not_to_have_changed(steps: int, expected: bool) -> None:
    result = analyze(simulate(Plan(steps=steps)))
    assert result.may_have_changed is expected
    assert not result.history.changes


@pytest.mark.parametrize("later", [(3,), (0, 1, 2, 3)])
def test_of_what_all_ranks_had_before_the_rank_that_has_more_of_it_is_named(
    later: tuple[int, ...], tmp_path: Path
) -> None:
    """All ranks are blocked for 100 ms in each forward; from step 80 on, these for 50 ms more."""

    def blocked_ns(step: int, rank: int) -> int:
        return (150 if step >= 80 and rank in later else 100) * MS

    plan = Plan(
        ranks=4,
        steps=200,
        extra=lambda step, rank: {FORWARD: blocked_ns(step, rank)},
        scheduled=lambda step, rank: {FORWARD: (0, blocked_ns(step, rank))},
    )
    write_run(simulate(plan), tmp_path)
    (change,) = diag.open_run(tmp_path).history.changes
    assert change.cause == "blocked outside of known waits"
    assert change.ranks == (later if len(later) == 1 else ())


@pytest.mark.parametrize(
    ("lost", "said"), [(0, "100%"), (2, "99.8%"), (1, "99.9%"), (4, "99.6%"), (6, "99%"), (400, "60%")]
)
def test_goodput_is_100_percent_where_nothing_was_lost(lost: int, said: str) -> None:
    wall_ns = 1000 * 3600 * 10**9
    goodput = Goodput(wall_ns, new_steps=(1000 - lost) * wall_ns // 1000, checkpoints=lost * wall_ns // 1000)
    assert goodput_words(goodput).startswith(f"Goodput {said}: ")


def test_a_checkpoint_among_steps_that_were_not_summed_up_yet_is_the_last_one(tmp_path: Path) -> None:
    Training(tmp_path / "R", ranks=2).train(60).save(50).train(60).save(50).train(9).close()
    for files in RunLayout(tmp_path / "R").ranks().values():
        first, second, *_ = files.summary.read_bytes().splitlines(keepends=True)
        files.summary.write_bytes(first + second)  # as of a rank that was killed
    assert diag.open_run(tmp_path / "R").history.saved == 121
