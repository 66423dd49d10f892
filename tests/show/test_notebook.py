"""What a notebook shows of a result."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from diag.api import Result, open_run
from diag.show.notebook import to_html
from diag.words.formatting import share
from diag.words.table import TENTHS_OF_MS
from tests.simulate import MS, Plan, simulate, write_run


@pytest.fixture
def result(tmp_path: Path) -> Result:
    plan = Plan(ranks=20, steps=12, extra=lambda step, rank: {"data": 60 * MS} if rank == 3 else {})
    return open_run(write_run(simulate(plan), tmp_path / "run").root)


def test_it_says_what_the_result_says(result: Result) -> None:
    shown = to_html(result)
    text = html.unescape(re.sub(r"<[^>]*>", " ", shown))
    assert result.verdict.headline in text
    assert f"Confidence {share(result.verdict.confidence)}" in text
    assert "3, at fault" in text
    assert "and 4 more ranks" in text
    for finding in result.examination.findings:
        assert finding.title in text
        assert finding.action.replace("`", " ") in text  # commands are <code>
    for advice in result.advice:
        assert advice.change[1:] in text
        assert (advice.command or next(iter(advice.code.values()), "")) in text
    assert "20 of 20" in text


def test_a_bar_for_each_rank_of_the_table_shows_the_parts_of_its_step(result: Result) -> None:
    (drawn,) = re.findall(r"<svg .*?</svg>", to_html(result))
    names = re.findall(r">(rank \d+[^<]*)</text>", drawn)
    assert len(names) == 16
    assert "rank 3, at fault" in names
    waited = result.ranks.filter(result.ranks["rank"] == 3)["data_wait_ns"][0]
    assert f"<title>data wait: {TENTHS_OF_MS.text(waited)}<" in drawn


def test_it_is_small_and_fits_light_and_dark_pages(result: Result) -> None:
    shown = to_html(result)
    assert len(shown) < 30_000
    assert not re.search(r"<(script|style|img|link|iframe)|src=|href=|url\(", shown)
    assert shown.count("<div") == shown.count("</div>")
    # Text has the colour of the page; only badges, on ground of their own, have one.
    assert {
        style for style in re.findall(r'style="([^"]*)"', shown) if ";color:" in style and "background:#" not in style
    } == set()
