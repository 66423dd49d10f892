"""What is drawn is what was analysed."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
import pytest

from diag.api import open_run
from diag.app import drawings
from diag.app import figures as common
from diag.app.curves import STEP_TIME, curve_figure
from diag.app.policy import DASHBOARD
from diag.app.run_view import Part, RunView, split, view_of
from diag.app.theme import DARK, LIGHT
from diag.app.views import loading, memory
from diag.app.views.common import METRIC_PX, _legend, card_px
from diag.collectors.records import MemoryRecord
from diag.diagnoses.compare import RankDifference
from diag.model.parts import PartColumns
from diag.model.steps import Bottleneck, Kind, Parts
from diag.rundir.curves import Curves
from diag.show.page import metrics_of
from diag.tables.memory import peak_memory
from diag.tables.tokens import token_rate, tokens_of
from diag.words.formatting import duration, share, size, spaced
from tests.app.runs import MS, TOKENS, write_run, write_stalled_trace
from tests.copies import replace

ON_DEVICE = MemoryRecord(rss=1, allocated=30 * 10**9, reserved=60 * 10**9, capacity=80 * 10**9)


@pytest.fixture
def view(slow_rank_1: Path) -> RunView:
    return view_of(open_run(slow_rank_1))


@pytest.mark.parametrize("known", [True, False])
def test_the_parts_add_up_to_the_step(known: bool) -> None:
    parts = Parts(0, "records", 100, 40, 30, 5, 10, 8, 7, 3, 2, 20 if known else None, 10 if known else None)
    columns = split(PartColumns.of([parts]))
    assert sum(columns.values()) == parts.dur_ns
    assert columns[Part.COMMUNICATION] == (0 if known else 30)


def test_the_layout_holds_the_analysed_numbers(view: RunView) -> None:
    means = {part: (view.per_rank(grid) / MS).tolist() for part, grid in view.parts.items()}
    assert means == {Part.COMPUTE: [60, 60], Part.TRANSFER: [5, 5], Part.WAITING: [39, 0], Part.DATA: [1, 40]}
    assert {metric.label: metric.value for metric in view.page.metrics}["Step time"] == duration(105 * MS)
    assert view.result.share_of(Bottleneck.DATA) == pytest.approx(40 / 105)
    assert view.result.share_of(Bottleneck.COMMUNICATION) == pytest.approx(5 / 105)
    helps = {metric.label: metric.help for metric in view.page.metrics}
    assert f"The ranks spend {share(41 / 210)} of their own steps on it." in helps["Data wait"]
    tokens = tokens_of(view.result.tables, view.result.attribution)
    assert isinstance(tokens, tuple)
    counted = [step.dur_ns for step in view.result.attribution.usable]
    assert token_rate(sum(tokens), sum(counted)) == pytest.approx(2 * TOKENS / 0.105)
    assert view.culprits == (1,)


def test_what_costs_nothing_does_not_fill_a_figure(tmp_path: Path) -> None:
    """Noise of 1 ms in a step of 66 ms: pale cells, no pale row, and no bars of ranks against each other."""
    healthy = view_of(open_run(write_run(tmp_path / "run", slow_data_ms={1: 2})))
    field = drawings.waiting_field(healthy, LIGHT).data[0]
    assert 0 < field.z.max() < 0.2 * field.zmax
    text, _ = drawings.of_waiting(healthy)
    assert "hardly" not in text
    text, figure = drawings.of_differences(healthy)
    assert "no part of the step differs by 2% of the step" in text
    assert figure is None


def test_what_costs_much_stands_out(view: RunView) -> None:
    text, _ = drawings.of_waiting(view)
    assert spaced(text).endswith("Rank 1 hardly waits: the others wait for it.")
    low, high = drawings.difference_bars(view.result.differences, (1,), 105 * MS, LIGHT).layout.xaxis.range
    assert (low, high) == (0, pytest.approx(39 * 1.1)), "of two ranks, on the one that takes longer"
    low, high = drawings.difference_bars(view.result.differences, (1,), 1000 * MS, LIGHT).layout.xaxis.range
    assert (low, high) == (0, pytest.approx(110)), "at least a tenth of the step"


def test_of_two_ranks_only_the_slower_one_has_a_bar(view: RunView) -> None:
    text, drawing = drawings.of_differences(view)
    assert drawing is not None
    assert (text, drawing.lead) == ("", "What takes longer on one of the two ranks")
    (bar,) = drawing.draw(LIGHT).data
    assert (bar.name, bar.x.tolist()) == (Part.DATA, [0, 39])


def test_a_card_cuts_neither_its_label_nor_its_value() -> None:
    assert card_px("Gain", "3%") == METRIC_PX
    assert card_px("Reserved, never used", "12%") > METRIC_PX


def test_memory_is_not_drawn_in_the_colours_of_time(view: RunView) -> None:
    assert view.memory is not None
    peaks = drawings.memory_peaks(view, view.memory, LIGHT).data
    steps = drawings.memory_history(view, view.memory, 0, LIGHT).data
    ranks = memory.lines_of_ranks(view, view.memory, LIGHT).data
    drawn = {bar.marker.color for bar in peaks} | {line.line.color for line in (*steps, *ranks)}
    assert drawn - {None}
    assert drawn.isdisjoint(LIGHT.part.values())


def test_tokens_that_ranks_share_are_not_added_up(view: RunView) -> None:
    manifest = view.result.tables.manifest
    assert manifest is not None
    tables = replace(view.result.tables, manifest=replace(manifest, mesh={"dp": 1, "tp": 2}))
    shared = replace(view.result, tables=tables)
    assert tokens_of(tables, shared.attribution) == "ranks along tp process the same tokens"
    assert "Tokens per second" not in {metric.label for metric in metrics_of(shared)}  # an unknown number has no card


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_bars_of_the_ranks(view: RunView, theme) -> None:
    bars = {bar.name: bar for bar in drawings.rank_bars(view, theme).data}
    assert list(bars) == [part.value for part in view.parts]
    assert sum(bar.x for bar in bars.values()).tolist() == [105, 105]
    assert bars["data wait"].marker.color == theme.part[Part.DATA]
    assert ["at fault" in name for name in bars["compute"].y] == [False, True]


def test_one_step_instead_of_the_mean(view: RunView) -> None:
    one = drawings.rank_bars(view, LIGHT, step=4)
    assert [bar.x.tolist() for bar in one.data if bar.name == Part.WAITING.value] == [[39, 0]]


def test_steps_left_out_of_the_verdict_are_hatched_and_say_why(view: RunView) -> None:
    figure = drawings.step_history(view, 1, LIGHT, selected=3)
    strip = next(bar for bar in figure.data if bar.name == "class")
    assert list(strip.marker.pattern.shape) == ["" if counted else "/" for counted in view.counted]
    assert strip.customdata[0] == "data-bound, not counted: warm-up"
    assert strip.customdata[-1] == "data-bound"
    assert set(strip.marker.color) == {LIGHT.bottleneck[view.bottlenecks[-1]]}
    compute = next(bar for bar in figure.data if bar.name == "compute" and bar.type == "bar")
    assert compute.y.tolist() == [60] * 12
    assert (figure.layout.shapes[0].x0, figure.layout.shapes[0].x1) == (2.5, 3.5)


def test_long_steps_that_do_not_count_are_cut_off(view: RunView) -> None:
    assert drawings.limit_ms(view, 1) is None
    assert drawings.step_history(view, 1, LIGHT).layout.yaxis.range is None
    dur = view.dur_ns.copy()
    dur[1, 0] = 1050 * MS  # step 0 is warm-up
    long = replace(view, dur_ns=dur)
    figure = drawings.step_history(long, 1, LIGHT)
    assert figure.layout.yaxis.range == (0, pytest.approx(1.1 * 105))
    assert [(note.x, note.text) for note in figure.layout.annotations] == [("0", "1,050 ms ↑")]
    assert "cut off" in drawings.of_steps(long, 1).rest
    dur[1, -1] = 1050 * MS  # which counts, so that all of it is shown
    assert drawings.limit_ms(replace(view, dur_ns=dur), 1) is None


def _curves(step_ms: npt.NDArray[np.float64]) -> Curves:
    unknown = np.full(len(step_ms), np.nan)
    return Curves(0, np.arange(len(step_ms)), step_ms * MS, unknown, unknown, unknown, unknown)


def test_a_first_step_longer_than_all_later_ones_does_not_set_the_axis_of_curves() -> None:
    times = np.full(40, 300.0)
    times[[0, 32]] = 2_283, 1_288
    figure = curve_figure([("run", _curves(times))], [STEP_TIME], LIGHT, 240)
    assert figure.layout.yaxis.range == pytest.approx((0, 1.15 * 1_288))
    times[0] = 1_300
    assert curve_figure([("run", _curves(times))], [STEP_TIME], LIGHT, 240).layout.yaxis.range is None


def test_a_stall_does_not_set_the_axis_of_curves() -> None:
    times = np.full(100, 300.0)
    times[60] = 246_000
    figure = curve_figure([("run", _curves(times))], [STEP_TIME], LIGHT, 240)
    assert figure.layout.yaxis.range == pytest.approx((0, 1.15 * 300))
    times[60:65] = 246_000  # often
    assert curve_figure([("run", _curves(times))], [STEP_TIME], LIGHT, 240).layout.yaxis.range is None


def test_a_class_is_in_the_legend_where_no_part_has_its_colour(view: RunView) -> None:
    def legend(one: RunView) -> set[str]:
        return {trace.name for trace in drawings.step_history(one, 1, LIGHT).data if trace.type == "scatter"}

    assert not any("(class)" in name for name in legend(view))
    late = replace(view, bottlenecks=(Bottleneck.HOST,) * len(view.steps))
    assert "host (class)" in legend(late)


def test_a_part_of_next_to_nothing_is_not_in_the_legend_of_the_steps(view: RunView) -> None:
    def names(one: RunView) -> set[str]:
        return {entry.name for entry in common.legend_of(drawings.step_history(one, 1, LIGHT))}

    assert Part.DATA.value in names(view)
    nothing = {**view.parts, Part.DATA: view.parts[Part.DATA] / 1e6}
    assert Part.DATA.value not in names(replace(view, parts=nothing))


def test_a_legend_has_the_entries_that_plotly_would_show() -> None:
    figure = go.Figure()
    figure.add_bar(x=[1], y=[1], name="bars", marker={"color": ["#111111", "#222222"]})
    assert common.legend_of(figure) == []  # of a single one there is nothing to tell apart
    figure.add_scatter(x=[1, 2], y=[1, 2], name="line", line={"color": "#333333", "dash": "dot"}, mode="lines")
    figure.add_scatter(
        x=[1], y=[1], name="points", mode="markers", marker={"symbol": ["diamond-open"]}, line={"color": "red"}
    )
    figure.add_scatter(x=[1], y=[1], name="area", fill="tonexty", fillcolor="#444444")
    figure.add_scatter(x=[1], y=[1], name="untold", showlegend=False)
    figure.add_heatmap(z=[[1]], name="field")
    assert common.legend_of(figure) == [
        common.Entry("bars", "#111111", False, "square", 1.0),
        common.Entry("line", "#333333", True, "dot", 1.0),
        common.Entry("points", "red", False, "diamond", 1.0),
        common.Entry("area", "#444444", False, "square", 1.0),
    ]
    figure.update_layout(showlegend=False)
    assert common.legend_of(figure) == []


def test_idle_time_of_a_device_is_stacked_by_its_cause(tmp_path: Path) -> None:
    view = view_of(open_run(write_stalled_trace(tmp_path / "traces")))
    means = {part: (view.per_rank(grid) / MS).tolist() for part, grid in view.parts.items()}
    assert means == {Part.COMPUTE: [5], Part.HOST: [4.4], Part.QUEUED: [0.6]}
    assert set(view.bottlenecks) == {Bottleneck.HOST}
    found = {metric.label: metric.value for metric in metrics_of(view.result)}
    assert found["Host wait"] == share(view.result.share_of(Bottleneck.HOST)) == "44%"


def test_idle_time_has_the_same_parts_and_colours_in_every_figure_of_the_ranks() -> None:
    more = RankDifference(1, "", {Kind.COMPUTE: -2 * MS, Kind.IDLE: 9 * MS}, 6 * MS, 2 * MS)
    less = RankDifference(0, "", {Kind.COMPUTE: 2 * MS, Kind.IDLE: -9 * MS}, -6 * MS, -2 * MS)
    same = RankDifference(2, "", {})
    bars = {bar.name: bar for bar in drawings.difference_bars((less, more, same), (), 50 * MS, LIGHT).data}
    assert {name: bar.x.tolist() for name, bar in bars.items()} == {
        Part.COMPUTE.value: [2, -2, 0], Part.HOST.value: [-6, 6, 0], Part.QUEUED.value: [-2, 2, 0],
        Part.IDLE.value: [-1, 1, 0],
    }  # fmt: skip
    assert {name: bar.marker.color for name, bar in bars.items()} == {name: LIGHT.part[Part(name)] for name in bars}


def test_the_rank_that_is_waited_for_is_faint(view: RunView) -> None:
    field = drawings.waiting_field(view, LIGHT).data[0]
    assert field.z.shape == (2, 12)
    assert field.z.mean(axis=1).tolist() == [39, 0]
    assert "at fault" in field.y[1]
    assert field.zmax == 39


def test_memory_of_a_process_and_of_a_device(view: RunView, tmp_path: Path) -> None:
    assert view.memory is not None
    assert not view.memory.on_device
    assert drawings.memory_peaks(view, view.memory, LIGHT).data[0].x.tolist() == [0.4, 0.400000001]
    device = view_of(open_run(write_run(tmp_path / "device", memory=ON_DEVICE)))
    assert device.memory is not None
    peak = peak_memory(device.result.tables, device.result.attribution)
    assert peak is not None
    assert (peak.bytes, peak.on_device, peak.unknown) == (60e9, True, 0)
    assert peak.bytes == max(row.peak for row in device.result.memory_table.rows)
    assert device.page.metrics[-1].value == size(60e9)
    allocated, reserved = drawings.memory_peaks(device, device.memory, LIGHT).data
    assert (allocated.x.tolist(), reserved.x.tolist()) == ([30, 30], [60, 60])
    assert [line.y.tolist()[0] for line in drawings.memory_history(device, device.memory, 1, LIGHT).data] == [30, 60]


def test_of_many_ranks_the_figures_name_those_that_the_others_wait_for(tmp_path: Path) -> None:
    view = view_of(open_run(write_run(tmp_path / "wide", ranks=40, slow_data_ms={36: 40})))
    text, found = drawings.of_waiting(view)
    assert found is not None
    assert "at least 2% of a step: 1\u00a0rank." in text
    assert found.ranks == [36]
    field = found.draw(LIGHT).data[0]
    assert "at fault ▸ rank 36" in field.y[0]
    assert field.z[0, view.counted] == pytest.approx(np.full(int(view.counted.sum()), 39.0))
    assert np.isnan(field.z[0, ~view.counted]).all()
    _, differences = drawings.of_differences(view)
    assert differences is not None
    assert differences.lead == "The 20 ranks that differ most from the others"
    figure = differences.draw(LIGHT)
    assert "at fault ▸ rank 36" in figure.data[0].y[0]
    assert figure.layout.height / len(figure.data[0].y) > 20, "names are below each other"


def test_nobody_waits_for_one_of_many_ranks(tmp_path: Path) -> None:
    view = view_of(open_run(write_run(tmp_path / "even", ranks=40, slow_data_ms={5: 2})))
    assert drawings.of_waiting(view) == ("For no rank do the others wait for 2% of a step.", None)


def test_many_ranks_and_steps_are_fields_and_areas(tmp_path: Path) -> None:
    view = view_of(open_run(write_run(tmp_path / "wide", ranks=70, steps=4, slow_data_ms={66: 40}, memory=ON_DEVICE)))
    assert view.memory is not None
    drawn = drawings.rank_bars(view, LIGHT).data[0]
    assert drawn.type == "heatmap"
    assert drawn.z[list(view.parts).index(Part.DATA)].tolist() == [40 if rank == 66 else 1 for rank in view.ranks]
    assert drawings.memory_field(view, view.memory, LIGHT).data[0].z.shape == (70, 4)
    long = view_of(open_run(write_run(tmp_path / "long", steps=1600)))
    figure = drawings.step_history(long, 0, LIGHT)
    assert sum(len(trace.x) for trace in figure.data if trace.type == "bar") <= DASHBOARD.most_bars
    area = next(trace for trace in figure.data if trace.stackgroup and trace.name == "compute")
    assert np.allclose(area.y, 60)
    assert drawings.waiting_field(long, LIGHT).data[0].z.shape == (2, 800)


def test_of_many_ranks_those_that_differ_most_are_compared(tmp_path: Path) -> None:
    """The grid beside the verdict has all of them."""
    view = view_of(open_run(write_run(tmp_path / "run", ranks=40, steps=6, slow_data_ms={21: 40, 30: 20})))
    text, drawing = drawings.of_differences(view)
    assert drawing is not None
    assert text == ""
    assert drawing.lead.startswith("The 20 ranks that differ most from the others")
    figure = drawing.draw(LIGHT)
    assert {21, 30} < set(figure.data[0].customdata)
    assert len(figure.data[0].y) == DASHBOARD.most_rows_of_many_ranks


def test_columns_of_several_steps() -> None:
    grid = np.array([[1.0, 3.0, np.nan, 5.0, np.nan]])
    blocks = common.blocks_of(5, most=3)
    assert [(block.start, block.stop) for block in blocks] == [(0, 2), (2, 4), (4, 5)]
    assert common.step_names([10, 11, 12, 13, 14], blocks) == ["10", "12", "14"]
    np.testing.assert_array_equal(common.averaged(grid, blocks), [[2, 5, np.nan]])
    np.testing.assert_array_equal(common.highest(grid, blocks), [[3, 5, np.nan]])


SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ddp-straggler-rank0"
TRACED = 15  # the one step of it that a profiler recorded


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_profiler_windows_are_shaded_in_every_plot_over_steps(theme) -> None:
    view = view_of(open_run(SAMPLE))
    assert view.windows.tolist() == [step == TRACED for step in view.steps]
    assert view.memory is not None
    column = view.steps.index(TRACED)
    for figure in (
        drawings.step_history(view, 0, theme),
        drawings.waiting_field(view, theme),
        loading.field(view, (), theme),
        drawings.memory_history(view, view.memory, 0, theme),
        drawings.memory_field(view, view.memory, theme),
        memory.lines_of_ranks(view, view.memory, theme),
    ):
        shades = [shape for shape in figure.layout.shapes if shape.opacity == common.SHADE]
        assert {(shape.x0, shape.x1) for shape in shades} == {(column - 0.5, column + 0.5)}
        assert {shape.fillcolor for shape in shades} == {theme.ink}
        assert common.PROFILER_WINDOW in [trace.name for trace in figure.data]
        assert figure.layout.showlegend


def test_nothing_is_shaded_where_no_step_was_left_out_for_a_profiler(view: RunView) -> None:
    figure = drawings.step_history(view, 0, LIGHT)
    assert not figure.layout.shapes
    assert common.PROFILER_WINDOW not in [trace.name for trace in figure.data]


def test_places_in_a_row_are_one_span() -> None:
    assert common.spans([2, 3, 4, 9, 11, 12]) == [(2, 4), (9, 9), (11, 12)]
    assert common.spans([]) == []


def test_a_legend_shows_names_literally() -> None:
    entries = [common.Entry(name, "#000", False, "square", 1.0) for name in ("<img src=x>", "&lt;b&gt; &amp; c")]
    assert "<img" not in _legend(entries)
    assert "&lt;b&gt; &amp; c</span>" in _legend(entries)
