"""What differs between runs below the parts of the step: collectives, kernels and modules, by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from diag.api import open_run
from diag.show.compare import differences_by_name, named_table
from diag.tables.of_runs import COLLECTIVES, KERNELS, MODULES
from tests.app.runs import write_run
from tests.command import diag

SAMPLES = Path(__file__).parents[2] / "sample_traces"
BEFORE, AFTER = "fsdp2-not-overlapped", "fsdp2-slow-wire"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [shutil.copytree(SAMPLES / name, folder / name) for name in (BEFORE, AFTER)]


def test_what_differs_most_comes_first(runs: list[Path]) -> None:
    before, after = map(open_run, runs)
    found = {times.of: times for times in differences_by_name(before, after)}
    assert list(found) == [COLLECTIVES, KERNELS, MODULES]
    spreads = [row.spread_ns for row in found[COLLECTIVES].rows]
    assert spreads == sorted(spreads, reverse=True)
    exposed = sum(row.ns[1] or 0 for row in found[COLLECTIVES].rows)
    table = after.breakdowns.collectives
    assert exposed == pytest.approx(sum(row.exposed_ns for row in table.rows) / table.rank_steps)
    assert found[COLLECTIVES].rows[0].calls[0] == found[COLLECTIVES].rows[0].calls[1], "the same program"


def test_many_runs_have_a_column_each(runs: list[Path], tmp_path: Path) -> None:
    results = [*map(open_run, runs), open_run(write_run(tmp_path / "recorded"))]
    of_collectives, kernels, *_ = differences_by_name(*results)
    table = named_table(of_collectives, ("a", "b", "c"), 2)
    assert [column.name for column in table.columns[1:4]] == ["time, a", "time, b", "time, c"]
    assert "difference" not in [column.name for column in table.columns]
    assert len(table.rows) == 2
    assert kernels.missing == (2,), "the third has no trace"
    assert "Not recorded in c." in named_table(kernels, ("a", "b", "c")).notes
    only = next(row for row in of_collectives.rows if row.ns[2] is None)
    assert only.spread_ns == max(ns or 0 for ns in only.ns)


def test_the_command_prints_them_and_has_them_as_json(runs: list[Path]) -> None:
    printed = diag("compare", *runs, "--tables").stdout
    assert "Exposed time of collectives: mean milliseconds of a rank's step" in printed
    assert "Exposed time" not in diag("compare", *runs).stdout
    document = json.loads(diag("compare", *runs, "--tables", "--json").stdout)
    assert [times["of"] for times in document["by_name"]] == [COLLECTIVES, KERNELS, MODULES]
