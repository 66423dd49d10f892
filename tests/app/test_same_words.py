"""Text, notebook, HTML report and dashboard show the same number of the same fact as the same string."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from diag.api import Result, open_run
from diag.app.html_report.render import render
from diag.show.page import Page, advice_of, page_of
from diag.show.text import print_report
from tests.app.test_html_report import Parsed
from tests.app.test_pages import page as dashboard

SAMPLES = Path(__file__).parents[2] / "sample_traces"
NUMBER = re.compile(r"\d")


def _plain(text: str) -> str:
    """One line with single spaces, without backticks and the escapes of Markdown."""
    return " ".join(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text).translate({0x2060: None, ord("`"): None}).split())


def _text(result: Result) -> str:
    console = Console(file=io.StringIO(), width=110, highlight=False, emoji=False)
    print_report(result, console)
    assert isinstance(console.file, io.StringIO)
    return _plain(console.file.getvalue())


def _notebook(result: Result) -> str:
    return _plain(html.unescape(re.sub(r"<[^>]*>", " ", result._repr_html_())))


def _overview(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    test = dashboard(path, monkeypatch)
    shown = [
        str(element.value)
        for element in (*test.title, *test.subheader, *test.markdown, *test.caption, *test.warning, *test.code)
    ]
    shown += [f"{metric.label} {metric.value}" for metric in test.metric]
    shown += [str(cell) for table in test.table for row in table.value.to_numpy().tolist() for cell in row]
    return _plain("\n".join(shown))


def _facts(page: Page, result: Result) -> Mapping[str, tuple[str, ...]]:
    """What has a number in it, by what draws it."""
    advised = advice_of(result)
    everywhere = [
        page.verdict.headline,
        *page.facts,
        *(fact.removeprefix("At fault: ") for fact in page.verdict.facts),
        *(f"{metric.label} {metric.value}" for metric in page.metrics),
        *(part for finding in page.findings for part in (finding.title, finding.cost)),
        *(change.gain for change in advised.changes),
        *(change.memory for change in advised.changes),
        page.basis,
    ]
    cells = [cell for _, _, row in page.ranks.rows for cell in row]
    evidence = [cell for finding in page.findings[:1] for row in finding.evidence for cell in row]
    return {
        "text": (*everywhere, page.ranks.title, *cells, *evidence, *page.not_looked, advised.basis),
        "notebook": (*everywhere, page.ranks.title, *cells),
        "HTML": (*everywhere, page.ranks.title, *cells, *evidence, *page.not_looked, advised.basis),
        "overview": (*everywhere, *evidence, *page.not_looked, advised.basis),
    }


@pytest.mark.parametrize("name", ["fsdp2-root-only", "ddp-straggler-rank0"])
def test_every_front_end_shows_the_same_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = SAMPLES / name
    result = open_run(path)
    shown = {
        "text": _text(result),
        "notebook": _notebook(result),
        "HTML": _plain(Parsed(render(result, "diag report", "1")).text),
        "overview": _overview(path, monkeypatch),
    }
    facts = _facts(page_of(result), result)
    numbers = [fact for fact in facts["text"] if NUMBER.search(fact)]
    assert len(numbers) > 30
    for front_end, texts in facts.items():
        missing = [fact for fact in texts if fact and _said(fact) not in shown[front_end].lower()]
        assert missing == [], front_end


def _said(fact: str) -> str:
    """Text joins facts into sentences, so the first letter may be small."""
    return _plain(fact).rstrip(".").lower()
