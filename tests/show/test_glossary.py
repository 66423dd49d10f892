"""The meaning of every number that an answer prints: in the glossary, and by ``diag help WORD``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diag.api import open_run
from diag.cli.help import _meaning, _term, terms
from diag.errors import ExitCode
from diag.serve.server import SAMPLES
from diag.show.history import step_table
from diag.show.page import RISK, page_of
from diag.show.ranks import MEANINGS
from diag.summaries import open_history
from diag.words.history import PARTS
from diag.words.wording import DOUBTS
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


@pytest.mark.parametrize("run", RUNS[1::3], ids=lambda path: path.name)
def test_what_the_first_lines_of_an_answer_count_is_in_the_glossary(run: Path) -> None:
    """In the words that are printed, with the numbers of this run."""
    page = page_of(open_run(run))
    counted = next(fact.partition(", all ")[0] for fact in page.verdict.facts if "counted" in fact)
    for words in (page.facts[0], counted):
        assert re.search(r"\d", words)
        assert _term(words), words


def test_the_words_of_a_change_are_in_the_glossary() -> None:
    words = {"predicted gain", "saves", "may save", "memory not known", "no more memory", *RISK.values()}
    assert words - set(terms()) == set()


def test_numbers_of_an_answer_need_not_be_those_of_the_glossary() -> None:
    assert _term("3 of 64 ranks") == _term("1 of 1 rank") == "2 of 2 ranks"
    assert not _term("2 of 2 hosts")
    assert _term("13 not looked for") == _term("not looked for") == "not looked for"
    assert _term("17 causes ruled out") == "causes ruled out"
    assert _term("attempt 4 of 5") == "attempt 2 of 3"
    assert _term("are kept in full") == ""
    assert _term("kept in full") == "kept in full"


def test_every_number_of_a_life_is_in_the_glossary() -> None:
    table = step_table(open_history(RUNS[0]).attempts[0])
    printed = set(PARTS.values()) | {column.label or column.name for column in table.columns}
    assert printed - {"steps", "since, UTC"} - set(terms()) == set()


def test_what_lowers_a_confidence_is_explained() -> None:
    explained = diag("help", DOUBTS["clock"].capitalize()).stdout
    words = "The ranks' clocks are not known to agree: lowers the confidence."
    assert explained.startswith(f"{words} Uncertainty of the ranks' clocks over")
    assert all(_meaning(words).startswith(f"{words}: lowers the confidence.") for words in DOUBTS.values())


def test_a_key_of_json_is_explained_by_its_name() -> None:
    explained = diag("help", "transfer_bound_ns").stdout
    assert explained.startswith("transfer_bound_ns (diag analyze --json): The mean of the shortest duration")
    steps = diag("help", "step_ns").stdout.splitlines()
    assert len(steps) == len(set(steps)) > 1
    assert all(line.startswith("step_ns (diag ") for line in steps)


def test_a_word_of_an_answer_is_explained() -> None:
    assert diag("help", "others wait").stdout.startswith("others wait: How long the other ranks wait")
    assert diag("help", "One-clock").stdout.startswith("One-clock: The moments of all ranks")


def test_a_column_of_the_tables_is_explained() -> None:
    explained = diag("help", "Waited for").stdout
    assert explained.startswith("Waited for (diag analyze --tables): The rank that the others waited for longest")
    assert "Duration of the longest call." in diag("help", "longest µs").stdout
    assert "Over the calls whose shapes are known." in diag("help", "TFLOP/s").stdout
    times = diag("help", "time ms").stdout.splitlines()
    assert len(times) == len(set(times)) > 1  # of collectives and of kernels


@pytest.mark.parametrize("asked", ["byte-budget-mb", "--byte-budget-mb"])
def test_an_option_is_explained_with_its_commands(asked: str) -> None:
    (line,) = diag("help", asked).stdout.splitlines()
    assert line.startswith("--byte-budget-mb (diag run, attach")
    assert "When it is used, the oldest are removed." in line


@pytest.mark.parametrize("name", ["--no-such-option", "no_such_key", "no-such-finding"])
def test_a_name_that_there_is_not_is_no_topic(name: str) -> None:
    """Though each of its words is on some page."""
    ended = diag("help", name)
    assert ended.returncode == ExitCode.USAGE
    assert f"there is no topic {name}" in ended.stderr


def test_words_of_an_answer_are_explained_in_any_order() -> None:
    assert diag("help", "steps", "counted").stdout.startswith("counted steps: The steps that the verdict rests on")


@pytest.mark.parametrize(
    ("asked", "page", "heading"),
    [
        (["kubernetes"], "launchers", "Kubernetes"),
        (["three", "days"], "long-runs", "Runs of days"),
        (["webhook"], "hangs", "Raise an alarm"),
        (["uninstall"], "getting-started", "Upgrade and uninstall"),
        (["two", "nodes", "without", "shared", "storage"], "record", "without shared storage"),
        (["jupyter"], "notebook", "Notebook"),
        (["pull request"], "compare-and-ci", "Compare and CI"),
        (["send it to a colleague"], "reports", "Reports"),
    ],
)
def test_words_that_are_no_topic_lead_to_the_page_about_them(asked: list[str], page: str, heading: str) -> None:
    ended = diag("help", *asked)
    assert ended.returncode == ExitCode.OK
    assert f"`diag help {page}` (" in ended.stdout
    assert heading in ended.stdout
    assert ended.stderr == ""
    assert diag("help", page).stdout.startswith("# ")


def test_the_class_of_a_verdict_and_a_finding_of_its_name_are_both_explained() -> None:
    said = diag("help", "host-bound").stdout.splitlines()
    assert said[0].startswith("host-bound: The class of a verdict")
    assert said[1].startswith("host-bound: Without a profiler window")
    for headline in ("data-bound", "mixed", "all ranks alike", "others waited", "no more memory"):
        assert diag("help", headline).stdout.startswith(f"{headline}: ")


def test_a_slip_of_the_keyboard_leads_to_the_word() -> None:
    ended = diag("help", "exposd", "comm")
    assert "did you mean exposed comm" in ended.stderr
    assert "read about it" not in ended.stderr
    unknown = diag("help", "no page has this: qwertzuiop")
    assert unknown.returncode == ExitCode.USAGE
    assert "lists them" in unknown.stderr
