"""Two runs of a folder side by side: the difference is diag's, and no path leads out of the folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.api import compare_runs, open_run
from diag.app.markup import plain
from diag.app.picture import grids_of_both
from diag.app.run_view import view_of
from diag.app.theme import LIGHT
from diag.app.views import compare as figures
from diag.collectors.layout import RunLayout
from diag.diagnoses.compare import PART_NAMES
from diag.model.steps import Kind
from diag.serve.server import SAMPLES
from diag.show.compare import headline, worth_a_row
from tests.app.runs import write_run, write_stalled_trace
from tests.app.shown import shown, text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    write_run(root / "fast")
    write_run(root / "slow", slow_data_ms={1: 40})
    write_run(root / "wide", ranks=3)
    return root


def test_the_difference_is_diags(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("compare", folder / "slow", monkeypatch, folder)
    assert test.selectbox(key="with").value == "fast"
    assert plain("+39.0 ms") in text(test)
    found = compare_runs(open_run(folder / "fast"), open_run(folder / "slow"))
    assert {part.kind: part.ns[1] for part in found.parts}[Kind.DATA] == 39_000_000
    verdicts, table = (each.value for each in test.table[:2])
    assert verdicts["Run"].tolist() == ["fast", "slow"]
    assert "the data loader of rank 1 is slow" in verdicts["Verdict"][1].replace("\\", "")
    assert plain("+39.00") == table["Difference"].tolist()[[part.kind for part in found.parts].index(Kind.DATA)]
    assert "neither is better" not in text(test)


def test_a_share_that_neither_run_knows_is_no_column(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("compare", folder / "slow", monkeypatch, folder)
    assert test.table[0].value.columns.tolist() == ["", "Run", "Verdict", "Exposed comm.", "Data wait"]
    assert len(test.table[0].value) == 2


def test_settings_that_differ_are_a_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("compare", folder / "slow", monkeypatch, folder)
    assert "None that both runs recorded." in text(test)
    for name, workers, more in (("fast", 4, {"timeout": 3, "in_order": None}), ("slow", 0, {"in_order": True})):
        layout = RunLayout(folder / name)
        manifest = json.loads(layout.manifest.read_text())
        loader = {"num_workers": workers, "pin_memory": True, **more}
        layout.manifest.write_text(json.dumps(manifest | {"loader": loader}))
    test = shown("compare", folder / "slow", monkeypatch, folder)
    found = compare_runs(open_run(folder / "fast"), open_run(folder / "slow"))
    assert found.notes[-2:] == (
        "settings that differ: in order (the default) and True, num workers 4 and 0",
        "settings that only one run recorded: timeout",
    ), "as the terminal has it"
    rows = [table.value.to_numpy().tolist() for table in test.table[1:3]]
    assert [["in order", plain("(the default)"), "True"], ["num workers", "4", "0"]] in rows
    assert test.expander[0].label == "1\u00a0setting that only one run recorded"
    assert test.expander[0].table[0].value.to_numpy().tolist() == [["timeout", "3"]], "nothing is said of the other"
    assert "num workers" not in text(test), "not once more among the remarks"


def test_many_ranks_are_grids_on_one_scale_and_those_that_changed_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "before", ranks=40, slow_data_ms={21: 41, 30: 11})
    write_run(tmp_path / "after", ranks=40, slow_data_ms={30: 11})
    test = shown("compare", tmp_path / "after", monkeypatch, tmp_path, **{"with": "before"})
    assert "Every rank of both runs" in text(test)
    (changed,) = (table.value for table in test.table if "Rank" in table.value.columns)
    assert changed.to_numpy().tolist() == [["21", "node21", "40.0", "0", plain("-40.0 ms")]]
    views = [view_of(open_run(tmp_path / name)) for name in ("before", "after")]
    grids, (before, after) = grids_of_both(views, LIGHT)
    assert [grid["top"] for grid in grids] == [40, 40]
    assert [len(grid["rows"]) for grid in grids] == [40, 40], "a row for each host"
    assert (before[30], after[30]) == (10, 10)
    write_run(tmp_path / "same", ranks=40, slow_data_ms={30: 11})
    test = shown("compare", tmp_path / "after", monkeypatch, tmp_path, **{"with": "same"})
    assert "No rank that both runs have differs by 2% of the step." in text(test)
    write_run(tmp_path / "few", ranks=8)
    test = shown("compare", tmp_path / "after", monkeypatch, tmp_path, **{"with": "few"})
    assert "Every rank of both runs" in text(test), "of a run with few ranks too, on the same scale"


def test_a_change_is_green_or_red_where_it_is_sure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(folder / "same")
    for run, other, badge in (
        ("slow", "fast", ":red-badge[:material/trending_up: longer steps]"),
        ("fast", "slow", ":green-badge[:material/trending_down: shorter steps]"),
        ("fast", "same", ":gray-badge[:material/trending_flat: within noise]"),
    ):
        assert badge in text(shown("compare", folder / run, monkeypatch, folder, **{"with": other}))


def test_what_is_next_to_nothing_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the terminal. What lies within noise is called so beside its number."""
    test = shown(
        "compare", SAMPLES / "fsdp2-slow-loader-rank1", monkeypatch, SAMPLES, **{"with": "fsdp2-slow-link-rank1"}
    )
    before, after = (open_run(SAMPLES / name) for name in ("fsdp2-slow-link-rank1", "fsdp2-slow-loader-rank1"))
    found = compare_runs(before, after)
    assert any(part.kind is Kind.COPY and part.sure for part in found.parts), "a sure change of a few microseconds"
    parts = test.table[1].value.iloc[:, 0].tolist()
    assert plain(PART_NAMES[Kind.COPY]) not in parts
    assert plain(PART_NAMES[Kind.DATA]) in parts
    figure = figures.flow(worth_a_row(found), "before", "after", LIGHT)
    texts = [text for _, text, _ in figure.data[0].customdata[1:-1]]
    said = dict(zip([part.kind for part in worth_a_row(found).parts], texts, strict=True))
    assert said[Kind.COMPUTE].endswith(" ms, within noise")
    assert said[Kind.DATA].endswith(" ms")


def test_it_begins_with_a_run_of_as_many_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(folder / "another size", ranks=3)  # the first by name
    test = shown("compare", folder / "slow", monkeypatch, folder)
    assert test.selectbox(key="with").value == "fast"
    assert "neither is better" not in text(test)
    assert "the first run after" not in text(test)
    alone = shown("compare", folder / "wide", monkeypatch, folder)
    assert alone.selectbox(key="with").value == "another size"


def of_job(run: Path, began_ns: int, script: str, **fields: object) -> None:
    layout = RunLayout(run)
    manifest = json.loads(layout.manifest.read_text())
    manifest |= {"created_unix_ns": began_ns, "argv": ["run", "--", script, "--lr", "0.1"], **fields}
    layout.manifest.write_text(json.dumps(manifest))


def test_it_begins_with_the_last_run_before_of_the_same_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c", "d", "e", "f"):
        write_run(tmp_path / name)
    of_job(tmp_path / "a", 100, "jobs/train.py")
    of_job(tmp_path / "b", 200, "train.py")
    of_job(tmp_path / "c", 300, "train.py")
    of_job(tmp_path / "d", 250, "another.py")
    of_job(tmp_path / "e", 260, "train.py", model={"layers": 3})
    of_job(tmp_path / "f", 270, "train.py", device="NVIDIA H100")
    expected = {"c": ("b", "The last run before this one"), "a": ("b", "The first run after this one")}
    for run, (other, why) in expected.items():
        test = shown("compare", tmp_path / run, monkeypatch, tmp_path)
        assert test.selectbox(key="with").value == other
        assert plain(f"{why} of the same job: the same script, model, number of ranks and device.") in text(test)
    for alone in ("d", "e", "f"):
        test = shown("compare", tmp_path / alone, monkeypatch, tmp_path)
        assert test.selectbox(key="with").value == "choose a run"
        assert "No other run of this folder is of the same job" in text(test)
        assert "The step" not in text(test), "nothing is compared before one chooses"


def test_every_table_says_what_its_numbers_are_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("compare", folder / "slow", monkeypatch, folder)
    said = text(test)
    assert "All of it is of the critical path" in said
    assert "Means over all ranks, not the critical path" in said
    assert "Shares beside the verdicts are of it too." in said


def test_it_begins_with_traces_of_the_same_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "first by name")
    write_stalled_trace(tmp_path / "resized")
    traces = write_stalled_trace(tmp_path / "traced")
    test = shown("compare", traces, monkeypatch, tmp_path)
    assert test.selectbox(key="with").value == "resized"
    assert "neither is better" not in text(test)


def test_bars_lead_from_one_run_to_the_other(folder: Path) -> None:
    found = compare_runs(open_run(folder / "fast"), open_run(folder / "slow"))
    bars = figures.flow(found, "fast", "slow", LIGHT).data[0]
    assert bars.x[0] == found.before_ns / 1e6
    assert bars.x[-1] == found.after_ns / 1e6
    ends = [found.before_ns / 1e6]
    for part in found.parts:
        ends.append(ends[-1] + part.ns[1] / 1e6)
    assert ends[-1] == pytest.approx(found.after_ns / 1e6, abs=1e-4)
    for base, height, before, after in zip(bars.base[1:-1], bars.x[1:-1], ends, ends[1:], strict=False):
        assert (base, base + height) == pytest.approx((min(before, after), max(before, after)))


def test_small_differences_are_not_drawn_as_hairs(tmp_path: Path) -> None:
    write_run(tmp_path / "a", slow_data_ms={1: 40})
    write_run(tmp_path / "b", slow_data_ms={1: 41})
    found = compare_runs(open_run(tmp_path / "a"), open_run(tmp_path / "b"))
    axis = figures.flow(found, "a", "b", LIGHT).layout.xaxis
    assert axis.range[0] == pytest.approx(105 - 0.5)
    assert axis.title.text == "milliseconds a step, cut off below 104"


def test_not_comparable_because(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("compare", folder / "fast", monkeypatch, folder, **{"with": "wide"})
    assert plain("neither is better: one ran on 3 ranks, the other on 2.") in text(test)
    assert [name for name in ("green", "red", "gray") if f":{name}-badge[" in text(test)] == []


def test_a_path_out_of_the_folder_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "secret")
    test = shown("compare", folder / "fast", monkeypatch, folder, **{"with": "another path …", "path": "../secret"})
    assert plain("../secret: not in") in text(test)
    assert "The step" not in text(test)


def test_a_typed_path_that_is_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("compare", folder / "fast", monkeypatch, folder, **{"with": "another path …", "path": "nothing"})
    assert "no such file or folder" in text(test)


def test_a_run_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(folder / "deep" / "down", slow_data_ms={0: 20})
    test = shown("compare", folder / "fast", monkeypatch, folder, **{"with": "another path …", "path": "deep/down"})
    assert plain("-19.0 ms") in text(test)


def test_traces_compare_as_recorded_runs_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = write_stalled_trace(tmp_path / "before")
    after = write_stalled_trace(tmp_path / "after", host="another operator")
    test = shown("compare", after, monkeypatch, tmp_path, **{"with": "another path …", "path": "before"})
    found = compare_runs(open_run(before), open_run(after))
    assert plain(headline(found)).replace("\u00a0", " ") in text(test)
    assert len(test.table[1].value) == len(found.parts) + 1
    assert "neither is better" not in text(test)
