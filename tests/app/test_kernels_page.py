"""Kernels, modules, efficiency and path as diag's tables have them; names from a trace stay text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from diag.api import open_run
from diag.app.markup import plain
from diag.app.policy import DASHBOARD
from diag.app.theme import LIGHT
from diag.app.timeline_data.work import work_words
from diag.app.views import kernels as figures
from diag.model.breakdown import Bound, KernelKind
from diag.show.parts import Part
from diag.tables.zoom import Category
from diag.words.formatting import short_name
from tests.account.kineto_builder import KinetoBuilder
from tests.app.runs import write_run
from tests.app.shown import metrics, shown, text
from tests.samples import opened_sample
from tests.tables.test_breakdowns import two_ranks

SAMPLES = Path(__file__).parents[2] / "sample_traces"
MS = 1_000_000
HOSTILE = "<script>alert(1)</script> **bold** %{x} [a](http://b)"


def test_the_tables_hold_diags_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = two_ranks(tmp_path).breakdowns
    test = shown("kernels", tmp_path, monkeypatch)
    kernels, modules = (element.value for element in test.dataframe[:2])
    steps = found.kernels.rank_steps
    assert kernels["Time, ms"].tolist() == [row.total_ns / steps / 1e6 for row in found.kernels.rows]
    assert kernels["Share"].tolist() == [row.share for row in found.kernels.rows]
    by_name = dict(zip(kernels["Kernel, in full"], kernels["Bound is"], strict=True))
    measured = [row.name for row in found.kernels.rows if row.bound != Bound.UNKNOWN and row.bound_from == "shapes"]
    inferred = [row.name for row in found.kernels.rows if row.bound != Bound.UNKNOWN and row.bound_from != "shapes"]
    assert kernels["Kernel"].tolist() == [short_name(row.name) for row in found.kernels.rows]
    assert {by_name[name] for name in measured} == {"measured"}
    assert {by_name[name] for name in inferred} == {"inferred"}
    table = found.modules[0]
    assert modules["Forward, ms"].tolist() == [row.forward_ns / steps / 1e6 for row in table.rows]
    assert ("Recomputed, ms" in modules) == any(row.recompute_ns for row in table.rows)
    assert plain("kernels are compute-bound above") in text(test)


def test_a_kernel_that_copies_is_not_called_a_copy_between_host_and_device() -> None:
    """direct_copy_kernel_cuda runs on the device; Memcpy HtoD and DtoH are no kernels."""
    found = opened_sample("gpu-hf-trainer").breakdowns
    copies = [row.name for row in found.kernels.rows if row.kind == KernelKind.COPY]
    assert any("direct_copy_kernel" in name for name in copies)
    bars = {bar.name: bar for bar in figures.kernels(found.kernels, LIGHT).data}
    assert bars["copy or fill in one memory"].marker.color != LIGHT.part[Part.COPY]
    assert not any("between host and device" in name for name in bars)
    assert work_words(KernelKind.COPY) != work_words(Category.COPY) == Part.COPY


@pytest.mark.parametrize("name", ["Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)"])
def test_a_copy_from_or_to_the_host_is_called_one_in_its_colour(name: str) -> None:
    """Old traces and ROCm list them among the kernels."""
    found = opened_sample("gpu-hf-trainer").breakdowns.kernels
    row = next(row for row in found.rows if row.kind == KernelKind.COPY)
    table = structs.replace(found, rows=(structs.replace(row, name=name), *found.rows))
    bars = {bar.name: bar for bar in figures.kernels(table, LIGHT).data}
    assert bars[Part.COPY].marker.color == LIGHT.part[Part.COPY]
    assert bars[Part.COPY].customdata[0][0].startswith("Memcpy")


def test_a_copy_of_an_operator_is_not_called_one_between_host_and_device() -> None:
    """On a CPU ``aten::copy_`` copies within the host's memory."""
    found = opened_sample("fsdp2-slow-link-rank1").breakdowns
    names = {bar.name for bar in figures.kernels(found.kernels, LIGHT).data}
    assert {"copy or fill in one memory", "gemm", "other compute"} <= names


def test_figures_add_up_to_the_tables(tmp_path: Path) -> None:
    found = two_ranks(tmp_path).breakdowns
    drawn = figures.kernels(found.kernels, LIGHT)
    steps = found.kernels.rank_steps
    total = sum(x for bar in drawn.data for x in bar.x)
    assert total == pytest.approx(
        sum(row.total_ns for row in found.kernels.rows[: DASHBOARD.most_kernel_bars]) / steps / MS
    )
    path = figures.path(found.path, LIGHT)
    assert sum(x for bar in path.data for x in bar.x) == pytest.approx(
        sum(row.ns_per_step for row in found.path.rows[: DASHBOARD.most_kernel_bars]) / MS
    )
    module = figures.modules(found.modules[0], LIGHT)
    rows = found.modules[0].rows
    assert sum(x for bar in module.data for x in bar.x) == pytest.approx(
        sum(row.forward_ns + row.backward_ns for row in rows) / steps / MS
    )


def test_names_from_a_trace_stay_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = KinetoBuilder(rank=0, world_size=1)
    for step in range(4):
        t = 10 * MS + step * 50 * MS
        built.step(step, t, t + 50 * MS).range(HOSTILE, t, t + 900_000)
        built.op(HOSTILE, t + 1000, t + 800_000)
        built.kernel(t + MS, t + 20 * MS, HOSTILE, launch=t + 2000)
    built.write(tmp_path, "rank0.json")
    test = shown("kernels", tmp_path, monkeypatch)
    assert test.dataframe[0].value["Kernel, in full"].tolist() == [HOSTILE]
    assert not [element for element in (*test.markdown, *test.caption) if "<script>" in str(element.value)]
    charts = [json.loads(element.proto.spec) for element in test.get("plotly_chart")]
    assert charts
    texts = json.dumps(charts)
    assert "&lt;script&gt;" in texts
    assert "<script>" not in texts
    assert "<script>" not in "".join(str(trace.get("hovertemplate")) for chart in charts for trace in chart["data"])
    assert not any("%{x} [a]" in str(trace.get("hovertemplate")) for chart in charts for trace in chart["data"])


def test_a_run_on_a_cpu_has_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SAMPLES / "fsdp2-root-only"
    found = open_run(run).breakdowns
    test = shown("kernels", run, monkeypatch)
    assert test.title[0].value == "Operators and modules"
    assert test.dataframe[0].value["Operator, in full"].tolist()[0] == found.kernels.rows[0].name == "aten::mm"
    assert test.dataframe[0].value["Operator"].tolist()[0] == "mm", "as in the figure above"
    order = list(test.dataframe[0].proto.column_order)
    assert (order[0], order[-1]) == ("Operator", "Operator, in full")
    assert "MFU" not in metrics(test)  # a sentence instead of a box with "unknown"
    said = text(test).replace("\\", "")
    assert "MFU and HFU:" in said[said.index("Not known") :], "below what is known"
    assert plain(found.efficiency.mfu.reason) in text(test)
    assert all(row.bound == Bound.UNKNOWN for row in found.kernels.rows)
    assert "Bound by" not in test.dataframe[0].proto.column_order  # would be a column of dashes
    assert "TFLOP/s" in test.dataframe[0].proto.column_order


def test_without_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("kernels", write_run(tmp_path / "run"), monkeypatch)
    assert "No trace covers a counted step" in text(test)
    assert "of which none is traced" in text(test)
    assert "% of the path is in a module" not in text(test), "that is not known"
    assert plain("run · ranks 0-1 · ") in text(test), "all ranks in few words, however many"
