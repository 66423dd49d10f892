"""The picture beside a finding: what it is about is in it, on the ranks that it names and those that wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diag.api import analyze, open_run
from diag.app.moment import moment_of
from diag.app.picture import bars_of_peaks, picture_of
from diag.app.policy import DASHBOARD
from diag.app.run_view import RunView, view_of
from diag.app.theme import LIGHT
from diag.collectors.records import BACKWARD, FORWARD
from diag.model.steps import Finding
from diag.show.page import Place
from diag.show.parts import Part
from diag.words.formatting import number
from tests.app.runs import write_run
from tests.samples import opened_sample
from tests.simulate import MS, Plan, simulate


def first_of(view: RunView) -> tuple[Finding, Place, dict[str, Any]]:
    finding, place = view.result.examination.findings[0], view.page.findings[0].place
    assert place is not None
    data = moment_of(view, finding, place, LIGHT)
    assert data is not None
    return finding, place, data


def columns_of(row: dict[str, Any], parts: list[list[str]]) -> dict[str, float]:
    """The share of the step that each part has in the row."""
    found = dict.fromkeys((name for name, _ in parts), 0.0)
    for count, shares in row["runs"]:
        for at, percent in shares:
            found[parts[at][0]] += count * percent / 100 / DASHBOARD.columns_of_moment
    return found


def test_the_slow_loader_and_those_that_wait_for_it_have_their_full_colour(slow_rank_1: Path) -> None:
    view = view_of(open_run(slow_rank_1))
    finding, place, data = first_of(view)
    assert data["title"] == f"Step {place.step}"
    waits, loads = data["rows"]
    assert [(row["rank"], row["named"]) for row in data["rows"]] == [(0, False), (1, True)]
    assert finding.ranks == (1,)
    step = view.steps.index(place.step)
    for row, part in ((waits, Part.WAITING), (loads, Part.DATA)):
        assert row["most"] == part
        assert data["strong"].count(part) == 1
        drawn = columns_of(row, data["parts"])[part]
        account = view.parts[part][row["rank"], step] / view.dur_ns[row["rank"], step]
        assert drawn == pytest.approx(account, abs=0.05)
    step_ms = view.dur_ns[1, step] / MS
    assert waits["text"] == f"waiting {number(view.parts[Part.WAITING][0, step] / MS)} ms"
    assert loads["text"].startswith("data wait ")
    assert loads["text"].endswith(" ms more"), "which the title has the mean of"
    assert 0 < float(loads["text"].split(", ")[1].split()[0]) < step_ms


def test_every_column_is_filled_at_most_once(slow_rank_1: Path) -> None:
    *_, data = first_of(view_of(open_run(slow_rank_1)))
    for row in data["rows"]:
        assert sum(count for count, _ in row["runs"]) == DASHBOARD.columns_of_moment
        assert all(sum(percent for _, percent in shares) <= 102 for _, shares in row["runs"])


def test_of_many_ranks_those_at_fault_and_those_that_wait_longest_are_drawn(tmp_path: Path) -> None:
    view = view_of(open_run(write_run(tmp_path / "many", 40, slow_data_ms={17: 40})))
    _, _, data = first_of(view)
    assert [row["rank"] for row in data["rows"] if row["named"]] == [17]
    assert len(data["rows"]) == DASHBOARD.most_ranks_of_moment
    assert f"{DASHBOARD.most_ranks_of_moment} of 40 ranks" in data["rest"]


def test_a_real_gpu_trace_has_the_idle_time_of_its_device() -> None:
    _, _, data = first_of(view_of(opened_sample("gpu-hf-trainer")))
    (row,) = data["rows"]
    assert row["most"] == Part.HOST
    assert columns_of(row, data["parts"])[Part.HOST] == pytest.approx(0.45, abs=0.1)


def test_a_wait_for_cores_is_a_number_beside_parts_that_contain_it() -> None:
    """Where in the step a rank has no core is not recorded: no part is it, and none is pale."""
    queued = {FORWARD: (15 * MS, 0), BACKWARD: (30 * MS, 0)}
    view = view_of(analyze(simulate(Plan(ranks=2, scheduled=lambda step, rank: queued))))
    finding, _, data = first_of(view)
    assert finding.id == "contended-host"
    assert [row["text"] for row in data["rows"]] == ["45.0 ms", "45.0 ms"]
    assert data["strong"] == [name for name, _ in data["parts"]]
    assert "its wait for a CPU core, inside of these parts" in data["rest"]
    picture = picture_of(view, LIGHT)
    assert picture is not None
    names = [name for name, *_ in picture["parts"]]
    assert names[-1] == "waiting for a CPU core"
    assert [row["ms"][-1] for row in picture["rows"]] == [45, 45], "a part of its own beside the verdict"
    compute = float(view.per_rank(view.parts[Part.COMPUTE])[0]) / MS
    assert picture["rows"][0]["ms"][names.index("compute")] == pytest.approx(compute - 45)
    assert all(sum(row["ms"]) == pytest.approx(row["total"]) for row in picture["rows"])


def test_waiting_for_a_rank_that_another_finding_names_is_not_exposed_communication() -> None:
    view = view_of(opened_sample("ddp-straggler-rank0"))
    findings = view.result.examination.findings
    (at,) = [at for at, each in enumerate(findings) if each.title.startswith("Exposed communication takes")]
    place = view.page.findings[at].place
    assert place is not None
    data = moment_of(view, findings[at], place, LIGHT)
    assert data is not None
    assert data["strong"] == [Part.TRANSFER]
    slow = first_of(view)[2]
    assert Part.WAITING in slow["strong"], "the ranks that wait for the straggler"


def test_a_full_device_is_drawn_against_its_capacity() -> None:
    view = view_of(opened_sample("gpu-memory-nearly-full"))
    data = bars_of_peaks(view, (0,), LIGHT)
    assert data is not None
    (bar,) = data["rows"]
    (row,) = view.result.memory_table.rows
    assert bar["text"].replace("\u00a0", " ") == "145 GB of 150 GB"
    assert sum(bar["ms"]) * 1e9 == pytest.approx(row.capacity)
    assert bars_of_peaks(view_of(opened_sample("ddp-healthy")), (0,), LIGHT) is None
