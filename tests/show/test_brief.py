"""A result to paste: an issue and a message say what the page says, first things first."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.api import Result, open_run
from diag.collectors.layout import RunLayout
from diag.show.brief import as_issue, as_message
from diag.show.page import advice_of, page_of
from tests.app.runs import write_run
from tests.command import diag
from tests.tables.test_memory_history import NEW


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("brief") / "slow", slow_data_ms={1: 40})


def issue(result: Result) -> str:
    return as_issue(page_of(result), advice_of(result), "1")


def test_an_issue_has_the_verdict_the_ranks_and_the_evidence(slow: Path) -> None:
    text = issue(open_run(slow))
    assert text.startswith("### Data-bound")
    assert "| **1** |" in text, "the culprit is bold"
    assert text.index("**Findings**") < text.index("<details><summary>Evidence") < text.index("<summary>Run</summary>")
    assert "\u00a0" not in text


def test_a_message_has_a_few_lines(slow: Path) -> None:
    result = open_run(slow)
    text = as_message(page_of(result), advice_of(result))
    assert text.replace("\n", " ").startswith(result.verdict.headline.replace("\u00a0", " "))
    assert "At fault: rank 1" in text
    assert len(text.splitlines()) <= 6


def test_memory_that_ran_out_comes_first(tmp_path: Path) -> None:
    layout = RunLayout(write_run(tmp_path / "run"))
    layout.rank(1).log.write_text(f"[rank1]: {NEW}\n")
    first, second, *_ = as_message(page_of(open_run(layout.root)), advice_of(open_run(layout.root))).splitlines()
    assert first.startswith("Out of memory: an allocation of 2.15 GB failed on rank 1")
    assert "1.61 GB free" in second
    assert "expandable_segments" in second


def test_names_become_no_markup(tmp_path: Path) -> None:
    text = issue(open_run(write_run(tmp_path / "[a](b) <b>*c*|d")))
    assert r"\[a\](b) \<b\>\*c\*\|d" in text
    assert "](b)" not in text.replace(r"\](b)", "")


def test_the_command_prints_it_or_writes_it(slow: Path, tmp_path: Path) -> None:
    printed = diag("report", slow, "--format", "issue", "--redact")
    assert printed.returncode == 0
    assert "### Data-bound" in printed.stdout
    assert str(slow) not in printed.stdout
    file = tmp_path / "message.txt"
    assert diag("report", slow, "--format", "message", "-o", file).returncode == 0
    assert file.read_text().startswith("Data-bound")
    assert diag("report", slow, "--format", "message", "--open").returncode == 2
