"""Answers about some of the steps of a run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

import diag
from diag.by_size import open_by_size
from diag.errors import DiagError
from diag.rundir.asked import KnownSteps, steps_asked
from tests.command import diag as diag_command
from tests.history.planted import BEGIN_NS, Training
from tests.tables.lane_traces import write_gpu_traces

S = 10**9
# A step a second, from 14:00:00 on.
KNOWN = KnownSteps(
    range(100), [1_764_079_200 * S + at * S for at in range(100)], [1_764_079_201 * S + at * S for at in range(100)]
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 2 is slow in steps 100 to 159. Of the first steps, the phases and sums are left."""
    folder = tmp_path_factory.mktemp("asked") / "R"
    Training(folder, ranks=3).train(100).train(60, [2], 80).train(60).close()
    return folder


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asked") / "L"
    Training(folder, ranks=3, byte_budget=210_000).train(400).train(300, [1], 50).train(600).close()
    return folder


@pytest.mark.parametrize(
    ("steps", "since", "found"),
    [
        ("10:20", None, (10, 20)),
        ("95:", None, (95, 99)),
        (":5", None, (0, 5)),
        ("90:500", None, (90, 99)),
        (None, "70", (70, 99)),
        (None, "10s", (90, 99)),
        (None, "1.5min", (10, 99)),
        (None, "2h", (0, 99)),
        (None, "14:00:30", (30, 99)),
        (None, "14:01", (60, 99)),
        (None, "2025-11-25T14:01", (60, 99)),
        (None, "2025-11-25T15:01:00+01:00", (60, 99)),
        (":40", "14:00:30", (30, 40)),
    ],
)
def test_steps_are_named_by_number_time_or_duration(
    steps: str | None, since: str | None, found: tuple[int, int]
) -> None:
    asked = steps_asked(steps, since)
    assert asked is not None
    assert asked.among(KNOWN) == found


@pytest.mark.parametrize(
    ("steps", "since", "why"),
    [
        ("x", None, "A:B"), (":", None, "A:B"), ("-3:4", None, "A:B"), ("1:2:3", None, "A:B"), ("²:4", None, "A:B"),
        ("9" * 30 + ":", None, "A:B"), ("20:10", None, "ends before it begins"), ("3:", "4", "both"),
        (None, "4q", "neither"), (None, "", "neither"), (None, "25:00", "neither"), (None, "-3", "neither"),
        ("100:", None, "none of the recorded steps 0 to 99"), (None, "2030-01-01", "none of the recorded steps"),
        (":5", "14:01", "none of the recorded steps"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_an_error(steps: str | None, since: str | None, why: str) -> None:
    with pytest.raises(DiagError, match=why) as error:
        steps_asked(steps, since).among(KNOWN)  # type: ignore[union-attr]
    assert error.value.exit_code == 2
    assert error.value.hint


def test_without_a_clock_there_is_no_time() -> None:
    asked = steps_asked(None, "2h")
    assert asked is not None
    with pytest.raises(DiagError, match="no clock"):
        asked.among(KnownSteps(range(3)))


def test_every_number_is_of_these_steps(run: Path) -> None:
    whole, slow = diag.open_run(run), diag.open_run(run, steps="100:159")
    assert slow.verdict.culprit_ranks == (2,)
    assert {step.step for step in slow.attribution.steps} == set(range(100, 160))
    for name in ("steps", "spans", "calls", "costs", "path", "waits"):
        assert set(getattr(slow, name)["step"]) <= set(range(100, 160)), name
    assert slow.stretches["first"].to_list() == list(range(100, 160))
    assert slow.examination.shares.numbers == tuple(range(100, 160))  # none is warm-up
    expected = [ns for step, ns in zip(whole.examination.shares.numbers, whole.examination.shares.dur_ns, strict=True)
                if 100 <= step < 160]  # fmt: skip
    assert slow.examination.shares.dur_ns.tolist() == pytest.approx(expected)


def test_the_answer_says_what_it_is_about(run: Path) -> None:
    printed = diag_command("analyze", run, "--steps", "100:159")
    assert "only steps 100 to 159" in printed.stdout.splitlines()[0] + printed.stdout.splitlines()[1]
    document = json.loads(diag_command("analyze", run, "--steps", "100:159", "--json").stdout)
    assert document["run"]["only"] == {"first": 100, "last": 159, "asked": "--steps 100:159"}
    assert any("only steps 100 to 159" in note for note in document["coverage"]["notes"])
    assert not (run / "verdict.json").exists()


def test_warm_up_is_that_of_the_run(run: Path) -> None:
    assert diag.open_run(run, steps=":50").examination.shares.numbers[0] == 2
    assert diag.open_run(run, since="160").verdict.culprit_ranks == ()


def test_old_steps_are_analysed_by_what_is_left(long_run: Path) -> None:
    result = open_by_size(long_run, steps="420:680")
    assert result.verdict.culprit_ranks == (1,)
    assert any("sums over 50 steps" in note for note in result.coverage.notes)
    with pytest.raises(DiagError, match="no full records are left"):
        diag.open_run(long_run, steps="420:680")
    retained = diag.open_run(long_run).tables.retained
    assert retained is not None
    phases = open_by_size(long_run, steps=f"{retained.phases_from}:{retained.first - 1}")
    assert phases.from_summaries
    assert phases.verdict.culprit_ranks == ()


def test_a_time_is_found_in_sums_too(long_run: Path) -> None:
    seconds = (400 * 0.203) + (100 * 0.253)
    moment = datetime.fromtimestamp(BEGIN_NS // S + round(seconds), UTC).isoformat()
    printed = diag_command("analyze", long_run, "--since", moment, "--steps", ":690")
    assert "only steps 4" in printed.stdout or "only steps 5" in printed.stdout
    assert "rank 1" in printed.stdout


def test_traces_have_steps_too(tmp_path: Path) -> None:
    write_gpu_traces(tmp_path / "T")
    whole = diag.open_run(tmp_path / "T")
    numbers = [step.step for step in whole.attribution.steps]
    assert len(numbers) > 2
    some = diag.open_run(tmp_path / "T", steps=f"{numbers[1]}:{numbers[-1]}")
    assert [step.step for step in some.attribution.steps] == numbers[1:]
    assert set(some.breakdowns.steps) <= set(numbers[1:])
