"""The meaning of every number that an answer prints: in the glossary, and by ``diag help WORD``."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.api import open_run
from diag.cli.help import terms
from diag.errors import ExitCode
from diag.serve.server import SAMPLES
from diag.show.page import page_of
from diag.show.ranks import MEANINGS
from tests.command import diag

RUNS = sorted(path for path in SAMPLES.iterdir() if (path / "manifest.json").exists())


@pytest.mark.parametrize("run", RUNS[::3], ids=lambda path: path.name)
def test_every_number_of_an_answer_is_in_the_glossary(run: Path) -> None:
    page = page_of(open_run(run))
    # "Reserved, of 150 GB" of a GPU: the word before the capacity is the term.
    printed = {metric.label.lower().partition(", of ")[0] for metric in page.metrics} | {
        column.name for column in page.ranks.columns
    }
    assert printed - {"rank"} - set(terms()) == set()
    assert set(MEANINGS) <= set(terms())


def test_a_word_of_an_answer_is_explained() -> None:
    assert diag("help", "others wait").stdout.startswith("others wait: How long the other ranks wait")
    assert diag("help", "One-clock").stdout.startswith("One-clock: The moments of all ranks")


def test_a_word_that_is_no_topic_leads_to_the_page_about_it() -> None:
    ended = diag("help", "kubernetes")
    assert ended.returncode == ExitCode.USAGE
    assert "launchers" in ended.stderr
    assert "did you mean" not in ended.stderr
    assert diag("help", "launchers").stdout.startswith("# Launchers")
