"""Findings, calls and modules lead to their moment on the timeline."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from diag.api import Result, open_run
from diag.app.drawings import of_waiting
from diag.app.figures import make_cells_clickable
from diag.app.run_view import view_of
from diag.app.theme import LIGHT
from diag.model.steps import Kind
from diag.show.page import place_of
from diag.timeline import timeline_of
from tests.account.kineto_builder import AUTOGRAD, KinetoBuilder
from tests.app.runs import write_run
from tests.app.shown import shown, text
from tests.samples import opened_sample

SAMPLES = Path(__file__).parents[2] / "sample_traces"
MS, US = 1_000_000, 1_000


@pytest.fixture(scope="module")
def straggler() -> Result:
    return opened_sample("ddp-straggler-rank0")


def test_a_finding_is_seen_in_the_step_in_which_it_costs_most(straggler: Result) -> None:
    finding = straggler.cause
    assert finding is not None
    place = place_of(straggler, finding)
    assert place is not None
    waits = {
        step.step: sum(blame.ns for blame in step.blames if blame.rank == 0 and blame.kind == Kind.COMPUTE)
        for step in straggler.attribution.usable
    }
    traced = {p.step for p in straggler.attribution.rank_steps if p.rank == 0 and p.source == "trace"} & set(waits)
    assert (place.rank, place.step) == (0, max(traced or waits, key=waits.__getitem__))


def test_a_finding_without_a_cost_is_nowhere(straggler: Result) -> None:
    for finding in straggler.examination.findings:
        assert (place_of(straggler, finding) is None) == (not finding.cost_ns_per_step or finding.bottleneck is None)


def test_the_overview_links_it(straggler: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = straggler.cause
    assert finding is not None
    place = place_of(straggler, finding)
    assert place is not None
    test = shown("overview", straggler.tables.root, monkeypatch)
    assert f"(timeline?rank={place.rank}&step={place.step})" in text(test)


def test_the_overview_links_the_page_with_the_rows_of_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("overview", SAMPLES / "fsdp2-slow-wire", monkeypatch)
    assert "[Show the collectives](collectives?" in text(test)


def test_a_link_keeps_the_run_and_its_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", slow_data_ms={1: 40})
    test = shown("overview", run, monkeypatch, baseline="other", step="7")
    assert "(timeline?baseline=other&rank=1&step=7)" in text(test)


def test_the_longest_calls_are_those_of_the_account(straggler: Result) -> None:
    longest = straggler.breakdowns.collectives.longest
    assert len(longest) == 10
    assert [call.exposed_ns for call in longest] == sorted((call.exposed_ns for call in longest), reverse=True)
    exposed = {
        (parts.rank, step.step): parts.exposed_comm_ns for step in straggler.attribution.usable for parts in step.parts
    }
    for call in longest:
        assert 0 < call.exposed_ns <= exposed[call.rank, call.step]
        assert call.end_ns - call.start_ns >= call.exposed_ns
        assert call.rank != 0  # the others wait for it
        assert call.wait_ns == pytest.approx(call.exposed_ns, rel=0.2)
        assert (call.op, call.phase) == ("all_reduce", "backward")


def test_a_call_has_its_module(tmp_path: Path) -> None:
    built = KinetoBuilder(world_size=1).step(0, 0, 30 * MS).range("diag.forward", 0, 10 * MS)
    built.range("FSDP::all_gather (layers.1)", MS + US, 2 * MS - US)
    built.kernel(10 * MS, 13 * MS, "ncclDevKernel_AllGather_RING_LL", launch=MS + 2 * US)
    built.kernel(13 * MS, 20 * MS, launch=3 * MS)
    built.range("FSDP::post_backward_reduce", 6 * MS, 7 * MS, AUTOGRAD)
    built.kernel(20 * MS, 30 * MS, "ncclDevKernel_ReduceScatter_RING_LL", launch=6 * MS + US, tid=AUTOGRAD)
    longest = open_run(built.write(tmp_path)).breakdowns.collectives.longest
    found = [(call.op, call.exposed_ns // MS, call.module) for call in longest]
    assert found == [("reduce_scatter", 10, "(root)"), ("all_gather", 3, "layers.1")]


def test_a_call_leads_to_its_moment(straggler: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    call = straggler.breakdowns.collectives.longest[0]
    test = shown("collectives", straggler.tables.root, monkeypatch)
    table = next(one.value for one in test.table if "Timeline" in one.value)
    link = re.search(r"\((timeline\?.*)\)", table["Timeline"].iloc[0])
    assert link is not None
    asked = {name: values[0] for name, values in parse_qs(urlsplit(link[1]).query).items()}
    assert (asked["rank"], asked["step"]) == (str(call.rank), str(call.step))
    moved = timeline_of(straggler).ranks[call.rank].moved_ns
    begin, end = (float(asked[name]) * MS for name in ("from", "to"))
    assert begin < call.start_ns + moved < call.end_ns + moved < end
    assert end - begin == pytest.approx(1.5 * (call.end_ns - call.start_ns), abs=2 * US)
    assert table["Exposed"].tolist()[0].replace("\u00a0", " ") == "171 ms"


def test_every_cell_of_a_heat_map_can_be_clicked() -> None:
    view = view_of(opened_sample("ddp-straggler-rank0"))
    _, drawing = of_waiting(view)
    assert drawing is not None
    figure = drawing.draw(LIGHT)
    assert make_cells_clickable(figure)
    field, points = figure.data[0], figure.data[-1]
    assert len(points.x) == np.count_nonzero(~np.isnan(field.z))
    for x, y, (row, column, value) in zip(points.x, points.y, points.customdata, strict=True):
        assert (field.y[int(row)], field.x[int(column)]) == (y, x)
        assert field.z[int(row), int(column)] == pytest.approx(value)
