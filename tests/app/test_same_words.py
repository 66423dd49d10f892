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
from diag.app.html_report.evidence import figures_of
from diag.app.html_report.render import render
from diag.app.run_view import view_of
from diag.model.steps import Bottleneck
from diag.show.answer import Part
from diag.show.json import to_dict
from diag.show.notebook import to_html
from diag.show.page import Page, advice_of, page_of
from diag.show.ranks import OTHERS_WAIT
from diag.show.text import print_report
from diag.words.formatting import duration
from tests.app.test_html_report import Parsed
from tests.app.test_pages import page as dashboard
from tests.samples import opened_sample

SAMPLES = Path(__file__).parents[2] / "sample_traces"
NUMBER = re.compile(r"\d")
TIME = re.compile(r"(?<![\w.,])[\d.,]*\d (?:ms|µs|s)\b")


def _plain(text: str) -> str:
    """One line with single spaces, without backticks and the escapes of Markdown."""
    return " ".join(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text).translate({0x2060: None, ord("`"): None}).split())


def _text(result: Result) -> str:
    console = Console(file=io.StringIO(), width=110, highlight=False, emoji=False)
    print_report(result, console, (Part.EVIDENCE, Part.CHECKED))
    assert isinstance(console.file, io.StringIO)
    return _plain(console.file.getvalue())


def _notebook(result: Result) -> str:
    return _plain(html.unescape(re.sub(r"<[^>]*>", " ", to_html(result))))


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
    cells = [cell for row in page.ranks.texts() for cell in row]
    evidence = [cell for finding in page.findings[:1] for row in finding.evidence.texts() for cell in row]
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
    page = page_of(result)
    shown = {
        "text": _text(result),
        "notebook": _notebook(result),
        "HTML": _plain(Parsed(re.sub(r"<svg.*?</svg>", "", render(result, "diag report", "1"))).text),
        "overview": _overview(path, monkeypatch),
    }
    worst = figures_of(view_of(result)).timeline
    assert worst is not None
    for front_end, text in shown.items():
        more = TIME.findall(_plain(worst.rest)) if front_end == "HTML" else ()  # the length of the step that it draws
        strange = set(TIME.findall(text)) - _times(page, result) - set(more)
        assert strange == set(), front_end
    facts = _facts(page, result)
    numbers = [fact for fact in facts["text"] if NUMBER.search(fact)]
    assert len(numbers) > 30
    for front_end, texts in facts.items():
        missing = [fact for fact in texts if fact and _said(fact) not in shown[front_end].lower()]
        assert missing == [], front_end


@pytest.mark.parametrize(("name", "rank"), [("ddp-straggler-rank0", 0), ("fsdp2-slow-loader-rank1", 1)])
def test_the_rank_at_fault_has_one_size(name: str, rank: int) -> None:
    """In the headline, the card, the advice, the evidence, the table of ranks, the page of the loaders and the document
    for programs."""
    result = opened_sample(name)
    page, document = page_of(result), to_dict(result)
    (size,) = {TIME.findall(_plain(text))[-1] for text in (page.verdict.headline, page.findings[0].title)}
    assert document["verdict"]["headline"].count(size) == 1
    assert f"{round(document['findings'][0]['cost_ns_per_step'] / 1e6)} ms" == size
    assert document["findings"][0]["charged_ns"][str(rank)] == document["findings"][0]["cost_ns_per_step"]
    charged = page.ranks.headings.index(OTHERS_WAIT)
    (cell,) = (cells[charged] for cells in page.ranks.texts() if cells[0] == str(rank))
    assert f"{float(cell):.0f} ms" == size
    for change in advice_of(result).changes[:1]:
        gain = float(TIME.findall(_plain(change.gain))[0].split()[0])
        assert gain == pytest.approx(float(size.split()[0]), rel=0.05) or f"than the {size} of" in _plain(change.gain)
    if result.verdict.bottleneck == Bottleneck.DATA:
        (waited,) = (row.others_waited_ns for row in result.loading.rows if row.rank == rank)
        assert _plain(duration(waited)) == size


def _times(page: Page, result: Result) -> set[str]:
    """Every time with its unit that the page holds, and so the only ones that a front end may show."""
    advised = advice_of(result)
    idle = [*((page.idle.title, *(cell for row in page.idle.texts() for cell in row)) if page.idle is not None else ())]
    told = [
        page.verdict.headline,
        page.verdict.why,
        page.verdict.action,
        page.basis,
        *idle,
        *page.stall_lines,
        *(cell for row in page.stalls.texts() for cell in row),
        *page.notes,
        *page.not_looked,
        *(part for metric in page.metrics for part in (metric.value, metric.help)),
        *(part for card in page.findings for part in (card.title, card.cost, card.action)),
        *(cell for card in page.findings for row in card.evidence.texts() for cell in row),
        *(
            part
            for change in advised.changes
            for part in (change.title, change.saves, change.gain, *change.assumptions)
        ),
        *(cell for change in advised.changes for row in change.evidence.texts() for cell in row),
        *advised.left_out,
    ]
    return {time for text in told for time in TIME.findall(_plain(text))}


def _said(fact: str) -> str:
    """Text joins facts into sentences, so the first letter may be small."""
    return _plain(fact).rstrip(".").lower()
