"""A line of evidence is a query: it returns rows, and where its number is their sum or mean, it is that number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from diag.api import Result, analyze, open_run
from diag.app.pages import PAGES
from diag.app.views.common import PAGES_OF_ROWS
from diag.collectors.records import BACKWARD, CHECKPOINT, DATA, FORWARD
from diag.model.evidence import query_of
from diag.model.query import By, Query
from diag.model.steps import Evidence
from diag.rundir.policy import BLOCKS
from diag.show.json import to_dict
from diag.summaries import open_summaries
from diag.tables.evidence import number, rows
from diag.tables.frames import COLUMNS
from tests import pipelines
from tests.app.runs import write_stalled_trace
from tests.many_devices import Devices, write_devices
from tests.many_ranks import Job, write_summaries
from tests.samples import NAMES, opened_sample
from tests.simulate import MS, SMALL_BLOCKS, Plan, simulate, write_run


def in_its_unit(item: Evidence, value: float) -> float:
    assert item.query is not None
    return value / 1e6 if item.unit.startswith("ms") and item.query.column.endswith("_ns") else value


def check(result: Result) -> int:
    """How many numbers were compared."""
    compared = 0
    for finding in result.examination.findings:
        assert len(result.rows(query_of(finding))), (finding.id, query_of(finding))
        assert result.evidence(finding).equals(result.rows(query_of(finding)))
        for item in finding.evidence:
            assert item.query is not None, (finding.id, item)
            assert len(result.rows(item.query)), (finding.id, item)
            value = number(item.query, getattr(result, item.query.frame))
            if item.query.by != By.ROWS:
                assert value is not None
                half_a_digit = 0.06 if item.unit == "a step" else 0.0006 if item.unit != "share" else 0.00006
                assert in_its_unit(item, value) == pytest.approx(item.value, abs=half_a_digit), (finding.id, item)
                compared += 1
    return compared


@pytest.mark.parametrize("name", NAMES)
def test_the_rows_of_every_line_give_its_number(name: str) -> None:
    result = opened_sample(name)
    assert check(result) >= len(result.examination.findings)
    for finding in to_dict(result)["findings"]:
        assert {"frame", "where"} <= finding["query"].keys()
        assert all({"frame", "where", "column", "by"} <= item["query"].keys() for item in finding["evidence"])


def _late(step: int, rank: int) -> int:
    return 80 * MS if rank == 2 else 0


PLANTED = {
    "compute-straggler": Plan(ranks=4, extra=lambda step, rank: {FORWARD: _late(step, rank)}),
    "compute-imbalance": Plan(ranks=4, extra=lambda step, rank: {FORWARD: 80 * MS if rank == step % 4 else 0}),
    "slow-data-one-rank": Plan(ranks=4, extra=lambda step, rank: {DATA: _late(step, rank)}),
    "gc-pause": Plan(ranks=4, extra=lambda step, rank: {"gc": _late(step, rank)}),
    "checkpoint-stall": Plan(ranks=4, extra=lambda step, rank: {CHECKPOINT: 300 * MS if step % 5 == 0 else 0}),
    "slow-network": Plan(ranks=4, transfer_ns=40 * MS),
    "slow-link": Plan(ranks=4, tail=lambda step, rank: _late(step, rank) // 4),
    "contended-host": Plan(ranks=4, scheduled=lambda step, rank: {FORWARD: (20 * MS, 0), BACKWARD: (30 * MS, 0)}),
    "stalled-rank": Plan(
        ranks=4,
        extra=lambda step, rank: {FORWARD: _late(step, rank)},
        scheduled=lambda step, rank: {FORWARD: (0, _late(step, rank))},
    ),
    "sync-every-micro-step": Plan(ranks=4, micro_batches=4, strategy="ddp", transfer_ns=4 * MS),
}


@pytest.mark.parametrize("finding", PLANTED)
def test_the_rows_of_a_planted_fault_give_its_numbers(finding: str) -> None:
    result = analyze(simulate(PLANTED[finding]))
    assert finding in {found.id for found in result.examination.findings}
    check(result)


def test_a_stall_of_the_host_and_a_bubble(tmp_path: Path) -> None:
    for result in (
        open_run(write_stalled_trace(tmp_path / "traces")),
        analyze(pipelines.simulate(pipelines.Pipelined(batches=2, forward_ns=(10 * MS, 14 * MS)))),
    ):
        assert result.examination.findings
        check(result)


def test_summaries_have_rows(tmp_path: Path) -> None:
    layout = write_summaries(Job(6, steps=50, extra_us={5: {DATA: 80_000}}), tmp_path)
    result = open_summaries(layout.root)
    assert result.evidence("slow-data-one-rank")["rank"].to_list() == [5]
    assert check(result) > 4


def test_sums_of_durations_have_rows(tmp_path: Path) -> None:
    job = Devices(16, units=4, waits_seen=0.3, timed=True, slow={5: 1.4})
    result = open_summaries(write_devices(job, tmp_path).root)
    assert result.evidence("straggler")["rank"].to_list() == [5]
    assert check(result) >= 1, "the waiting of the late rank"


def test_the_dashboard_has_the_pages_that_it_links_to() -> None:
    assert PAGES_OF_ROWS.keys() <= COLUMNS.keys()
    assert {path for path, _, _ in PAGES_OF_ROWS.values()} <= {page.path for page in PAGES}


def test_a_bound_and_null_are_conditions() -> None:
    frame = pl.DataFrame({"rank": [0, 1, None], "ns": [1, 5, 9]})
    assert rows(Query("costs", {"rank": None}), frame)["ns"].to_list() == [9]
    assert rows(Query("costs", {"ns >=": 5, "rank": [0, 1]}), frame)["ns"].to_list() == [5]
    assert number(Query("costs", {"ns <": 9}, "ns", By.SUM, of="ns"), frame) == 1
    assert number(Query("costs", {"ns <": 9}, "ns", By.SUM, per=("ns",)), frame) == 2


@pytest.mark.parametrize("finding", ["slow-network", "sync-every-micro-step"])
def test_a_run_in_blocks_has_the_rows_that_its_evidence_was_made_of(
    finding: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in SMALL_BLOCKS.items():
        monkeypatch.setitem(vars(BLOCKS), name, value)
    result = open_run(write_run(simulate(replace(PLANTED[finding], steps=48)), tmp_path / "run").root)
    assert result.tables.long
    assert check(result)
