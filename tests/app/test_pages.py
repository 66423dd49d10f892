"""The page says what the analysis says."""

import re
import sys
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from diag.api import Result, open_run
from diag.app.markup import plain
from diag.serve.server import SCRIPT
from diag.show.json import save
from diag.show.ranks import idle_table, longest_stalls, stall_table
from diag.timeline import timeline_of
from diag.words.formatting import duration, share, size
from tests.account.kineto_builder import KinetoBuilder
from tests.app.runs import TOKENS, write_run, write_stalled_trace
from tests.patience import PATIENCE_S


def page(path: Path, monkeypatch: pytest.MonkeyPatch, **params: str) -> AppTest:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(path)])
    test = AppTest.from_file(str(SCRIPT), default_timeout=PATIENCE_S)
    for name, value in params.items():
        test.query_params[name] = value
    test.run()
    assert not test.exception
    return test


def said(test: AppTest) -> str:
    elements = (*test.title, *test.subheader, *test.markdown, *test.caption, *test.warning)
    return "\n".join(str(element.value) for element in elements)


def address(test: AppTest) -> dict[str, str]:
    return {name: value[0] if isinstance(value, list) else value for name, value in test.query_params.items()}


@pytest.fixture
def result(slow_rank_1: Path) -> Result:
    return open_run(slow_rank_1)


def test_the_page_holds_the_analysed_numbers(
    slow_rank_1: Path, result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = page(slow_rank_1, monkeypatch)
    text = said(test)
    assert plain(result.verdict.headline) in text
    assert plain(f"Confidence {share(result.verdict.confidence)}") in text
    assert "At fault" in text
    assert "node1" in text
    assert "10 of 12" in text.replace("\u00a0", " ")
    for finding in result.examination.findings:
        assert plain(finding.title) in text
        assert plain(finding.action) in text
    for item in result.coverage.not_looked:
        assert plain(item.question) in text
        assert plain(item.reason) in text
    for question in result.examination.not_found:
        assert plain(question) in text
    assert {metric.label: metric.value for metric in test.metric} == {
        "Step time": duration(105_000_000),
        "Tokens per second": f"{2 * TOKENS / 0.105:,.0f}",
        "Exposed comm.": "5%",
        "Data wait": "38%",
        "Peak memory": size(400_000_001),
    }
    assert address(test) == {"rank": "1", "step": "mean"}


def test_why_the_device_was_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_stalled_trace(tmp_path / "traces")
    test = page(run, monkeypatch)
    attribution = open_run(run).attribution
    idle = idle_table(attribution, 0)
    assert idle is not None
    assert plain(idle.title) in said(test)
    shown = [table.value.map(plain_spaces).to_numpy().tolist() for table in test.table]
    assert [[plain_spaces(plain(cell)) for cell in row] for row in idle.texts()] in shown
    stalls = [table for table in shown if len(table) == len(stall_table(attribution).rows)][-1]
    assert [[plain_spaces(plain(cell)) for cell in row] for row in stall_table(attribution).texts()] == [
        row[1:] for row in stalls
    ]
    first = longest_stalls(attribution)[0]
    link = re.search(r"timeline\?.*step=(\d+)&from=([\d.]+)&to=([\d.]+)", stalls[0][0])
    assert link is not None
    assert int(link[1]) == first[0].step
    step = next(span for span in timeline_of(open_run(run)).steps if span.step == first[0].step)
    begin_ms, end_ms = float(link[2]), float(link[3])
    assert step.begin_ns / 1e6 <= begin_ms < end_ms <= step.end_ns / 1e6 + 1, "its moment"
    assert end_ms - begin_ms == pytest.approx(1.5 * first[2].dur_ns / 1e6, abs=0.01)
    test.selectbox(key="step").select("2").run()
    assert "in step 2" in plain_spaces(said(test))


def plain_spaces(text: str) -> str:
    return text.replace("\u00a0", " ")


def test_an_answer_that_nobody_can_give_has_no_confidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KinetoBuilder(world_size=1).kernel(10_000, 12_000, launch=5_000).write(tmp_path)
    test = page(tmp_path, monkeypatch)
    text = said(test)
    assert "undetermined" in text
    assert "onfidence" not in text
    assert "One window, not divided into steps" in text
    assert next(metric.label for metric in test.metric) == "Window"


def test_a_link_opens_the_same_view(slow_rank_1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(slow_rank_1, monkeypatch, rank="0", step="7")
    assert [box.value for box in test.selectbox] == ["0", "7"]
    assert "Every step of rank 0" in said(test)
    test.selectbox(key="step").select("9").run()
    assert address(test) == {"rank": "0", "step": "9"}


def test_a_link_to_what_is_not_there_is_mended(slow_rank_1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert address(page(slow_rank_1, monkeypatch, rank="17", step="x")) == {"rank": "1", "step": "mean"}


def test_a_healthy_run_has_the_same_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(write_run(tmp_path / "healthy"), monkeypatch)
    text = said(test)
    assert ":green-badge[" in text
    assert "healthy" in text
    assert "At fault" not in text
    assert "No rank waits for another." in text
    assert len(test.metric) == 5
    assert [title.value for title in test.subheader][1:] == [
        "Where the time goes",
        "Who waits",
        "Memory",
        "Findings",
        "Coverage",
    ]


def test_a_folder_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "one", ranks=3, slow_data_ms={2: 40})
    write_run(tmp_path / "two", slow_data_ms={0: 40})
    test = page(tmp_path, monkeypatch, run="two")
    assert test.title[0].value == "two"
    assert address(test) == {"run": "two", "rank": "0", "step": "mean", "baseline": "none"}
    test.selectbox(key="run").select("one").run()
    assert test.title[0].value == "one"
    # The choice of rank does not outlive its run: the culprit's again.
    assert address(test) == {"run": "one", "rank": "2", "step": "mean", "baseline": "none"}


def test_missing_ranks_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", ranks=4, missing=(2,))
    test = page(run, monkeypatch)
    assert "Incomplete" in test.warning[0].value
    assert "3 of 4" in said(test)
    assert [warning.value for warning in test.warning[1:]] == [
        plain(gap.reason) for gap in open_run(run).coverage.skipped
    ]


def _page_of_gaps() -> None:
    from diag.app.views.common import show_gaps
    from diag.model import Gap

    show_gaps(
        [
            *(Gap(f"ranks/{rank:05}/rank.json", f"{rank} bytes are missing") for rank in range(64)),
            Gap("manifest.json", "no JSON"),
        ]
    )


def test_many_files_that_cannot_be_read_are_one_warning() -> None:
    test = AppTest.from_function(_page_of_gaps, default_timeout=PATIENCE_S).run()
    assert not test.exception
    (warning,) = test.warning
    assert "64\u00a0files" in warning.value
    assert plain("manifest.json: no JSON") in warning.value
    (fold,) = test.expander
    assert plain("ranks/00003/rank.json: 3 bytes are missing") in fold.markdown[0].value


def test_an_empty_folder_is_a_message_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(tmp_path, monkeypatch)
    assert "contains neither a run directory nor a trace" in test.error[0].value
    assert "`diag run --out`" in test.info[0].value


def test_a_run_that_has_grown_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run")
    test = page(run, monkeypatch)
    assert "12 steps" in said(test).replace("\u00a0", " ")
    for rank in run.glob("ranks/*"):
        for file in (rank / "steps.jsonl", rank / "collectives.jsonl"):
            file.write_text("\n".join(file.read_text().splitlines()[:10]) + "\n")
    test.run()
    assert "10 steps" in said(test).replace("\u00a0", " ")


def test_a_run_that_was_analysed_before_opens_with_its_last_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run of the page draws that answer, and then the page."""
    run = write_run(tmp_path / "run")
    save(open_run(run))
    assert plain(open_run(run).verdict.headline) in said(page(run, monkeypatch))
