"""The picture beside the verdict: what it shows of few and of many ranks, and that noise looks like noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.api import open_run
from diag.app.picture import BEYOND_MEDIAN, WAITED_FOR, Data, advice_rows, picture_of, waited_for, waits_for_loaders
from diag.app.policy import DASHBOARD
from diag.app.run_view import Part, RunView, view_of
from diag.app.theme import LIGHT
from diag.show.page import STEP_TIME, advice_of, numbers_of
from diag.summaries import open_summaries
from diag.words.formatting import duration
from tests.app.runs import write_run
from tests.app.shown import shown
from tests.many_ranks import Job, write_summaries
from tests.samples import opened_sample

MANY = 40


def drawn(view: RunView) -> Data:
    data = picture_of(view, LIGHT, next(iter(view.result.advice), None))
    assert data is not None
    return data


def test_bars_are_the_steps_of_the_ranks_and_mark_who_is_at_fault(slow_rank_1: Path) -> None:
    view = view_of(open_run(slow_rank_1))
    data = drawn(view)
    assert data["kind"] == "bars"
    assert [(row["rank"], row["fault"]) for row in data["rows"]] == [(0, False), (1, True)]
    for row in data["rows"]:
        assert sum(row["ms"]) == pytest.approx(row["total"], rel=0.01)


def test_it_says_why_a_rank_takes_longer_than_the_step(slow_rank_1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a trace the ranks begin a step at different times, and its critical path begins with a late one's."""
    view = view_of(open_run(slow_rank_1))
    assert "critical path" not in drawn(view)["rest"]
    step_ns = drawn(view)["end"] * 1e6 / (1.05 + DASHBOARD.full_scale_share)
    monkeypatch.setattr("diag.app.picture.numbers_of", lambda result: {STEP_TIME: step_ns})
    assert drawn(view)["rest"].endswith(f"; some begin early and wait: the critical path takes {duration(step_ns)}")


def test_a_predicted_step_is_drawn_only_where_it_was_predicted(tmp_path: Path) -> None:
    view = view_of(opened_sample("fsdp2-straggler-rank0"))
    step_ns = numbers_of(view.result)[STEP_TIME]
    assert step_ns is not None
    low, likely, high = drawn(view)["predicted"]["ms"]
    assert low <= likely <= high
    assert likely == pytest.approx((step_ns - view.result.advice[0].predicted_gain_ns[1]) / 1e6)
    assert drawn(view_of(open_run(write_run(tmp_path / "healthy"))))["predicted"] is None


def test_many_ranks_are_a_grid_in_which_the_one_at_fault_is_dark(tmp_path: Path) -> None:
    view = view_of(open_run(write_run(tmp_path / "run", ranks=MANY, steps=6, slow_data_ms={7: 40})))
    data = drawn(view)
    assert (data["kind"], data["rest"].endswith(BEYOND_MEDIAN)) == ("grid", True)
    shares = {cell[0]: cell[1] / data["top"] for row in data["rows"] for cell in row["cells"]}
    assert sorted(shares) == list(range(MANY))
    assert shares.pop(7) == pytest.approx(1.0, abs=0.01)
    assert max(shares.values()) < 0.1
    assert [row["fault"] for row in data["rows"]].count(True) == 1


def test_noise_does_not_fill_the_grid(tmp_path: Path) -> None:
    view = view_of(open_run(write_run(tmp_path / "run", ranks=MANY, steps=6, slow_data_ms={7: 2})))
    data = drawn(view)
    shares = [cell[1] / data["top"] for row in data["rows"] for cell in row["cells"]]
    assert max(shares) < 0.2  # 1 of 67 ms


def test_of_ranks_with_summaries_alone_all_are_in_the_grid(tmp_path: Path) -> None:
    run = write_summaries(Job(64, steps=20, extra_us={9: {"forward": 60_000}}), tmp_path / "run").root
    result = open_summaries(run)
    assert result.from_summaries
    data = drawn(view_of(result))
    assert data["rest"].endswith(WAITED_FOR)
    assert sum(len(row["cells"]) for row in data["rows"]) == 64
    assert len(json.dumps(data["rows"])) < 64 * 30, "no texts: there may be 24,576 ranks"
    assert "rank 9" in data["most"]
    assert DASHBOARD.most_bars_of_ranks < 64


def test_a_row_of_advice_has_its_gain_as_a_part_of_the_step() -> None:
    view = view_of(opened_sample("fsdp2-not-overlapped"))
    advised = view.result.advice
    data = advice_rows(view, advised, advice_of(view.result).changes, LIGHT)
    assert len(data["rows"]) == len(advised) > 1
    for row, advice in zip(data["rows"], advised, strict=True):
        assert row["share"][1] == pytest.approx(advice.gain_share, abs=0.01)
        assert row["copy"]


def test_for_whom_many_ranks_wait_is_a_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", ranks=MANY, steps=6, slow_data_ms={7: 40})
    for ms, unit in (waited_for(open_run(run)), waits_for_loaders(open_run(run))):
        assert max(ms, key=lambda rank: ms[rank]) == 7
        assert len(ms) == MANY
        assert unit.startswith("ms a step")
    drawn_on = []
    monkeypatch.setattr("diag.app.views.common.component", lambda name: lambda **asked: drawn_on.append(asked["key"]))
    for page in ("collectives", "input"):
        shown(page, run, monkeypatch)
    assert drawn_on == ["collectives-grid", "loader-grid"]


def test_what_a_rank_does_outside_of_operators_is_drawn_as_compute_and_that_is_said() -> None:
    """The advice speaks of sleeps and locks, the bar and the critical path of compute: also in profiled steps."""
    view, healthy = (view_of(opened_sample(name)) for name in ("ddp-straggler-rank0", "ddp-healthy"))
    data, other = picture_of(view, LIGHT), picture_of(healthy, LIGHT)
    assert data is not None
    assert other is not None
    assert "also Python, sleeps and locks" in data["rest"]
    assert "also Python" not in other["rest"]
    compute = view.parts[Part.COMPUTE][0] / 1e6
    assert view.windows.any()
    assert compute[view.windows].min() > 140
    assert "compute" in view.result.why


def test_of_a_run_that_stands_the_rank_at_fault_is_marked_and_nothing_is_predicted() -> None:
    view = view_of(opened_sample("ddp-straggler-rank0"))
    data = picture_of(view, LIGHT, None, standing=(2,))
    assert data is not None
    assert [row["rank"] for row in data["rows"] if row["fault"]] == [2]
    assert data["predicted"] is None
    assert "the steps until it stopped" in data["rest"]
