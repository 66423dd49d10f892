"""What the demo says about what it planted."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.api import open_run
from diag.cli.demo import found
from tests.command import diag_process
from tests.samples import opened_sample

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ("fsdp2-slow-loader-rank1", "The verdict names it, and its rank."),
        ("fsdp2-slow-wire", "It was not found: "),
    ],
)
def test_the_demo_says_whether_it_found_what_it_planted(sample: str, said: str) -> None:
    assert found(opened_sample(sample)).startswith(said)


def test_a_fault_that_costs_less_than_something_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    result = open_run(SAMPLES / "fsdp2-slow-loader-rank1")
    monkeypatch.setattr(type(result), "cause", None)
    text = found(result)
    assert text.startswith("Something else costs more on this machine. It is found as well: ")
    assert "loader of rank 1 is slow" in text


def test_help_of_a_word_that_pages_write_about_names_the_command() -> None:
    ended = diag_process("help", "alarm")
    assert ended.returncode == 0
    assert "`diag help hangs`" in ended.stdout
