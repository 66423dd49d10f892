"""Limits as people write them, and files of them: understood, or refused with the line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.errors import DiagError, ExitCode
from diag.gate.budgets import BY_NAME, EXAMPLE, QUANTITIES, Quantity, parse_limit, read_budgets


@pytest.mark.parametrize(
    ("name", "written", "limit"),
    [
        ("max-data-wait", "5%", 0.05),
        ("max-data-wait", " 0.5 % ", 0.005),
        ("max-step", "350ms", 350e6),
        ("max-step", "1.2s", 1.2e9),
        ("max-step", "80µs", 80e3),
        ("max-peak-memory", "70GB", 70e9),
        ("max-peak-memory", "64GiB", 64 * 2**30),
        ("min-tokens-per-second", "12000", 12000),
        ("min-tokens-per-second", "1.5M", 1.5e6),
    ],
)
def test_limits(name: str, written: str, limit: float) -> None:
    assert parse_limit(BY_NAME[name], written).limit == pytest.approx(limit)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("max-data-wait", "5"),  # per cent, or five hundred?
        ("max-data-wait", "0.05"),
        ("max-data-wait", "-5%"),
        ("max-data-wait", "5ms"),
        ("max-step", "350"),
        ("max-step", "1e3ms"),
        ("max-peak-memory", "70G"),
        ("max-peak-memory", "70 gb"),
        ("min-mfu", ""),
        ("min-mfu", "35%%"),
    ],
)
def test_what_is_no_limit_is_refused_with_an_example(name: str, written: str) -> None:
    with pytest.raises(DiagError) as raised:
        parse_limit(BY_NAME[name], written)
    assert raised.value.exit_code is ExitCode.USAGE
    assert EXAMPLE[BY_NAME[name].unit] in raised.value.hint


@given(st.text(max_size=12), st.sampled_from(QUANTITIES))
def test_any_text_is_a_limit_or_a_mistake_of_the_user(written: str, quantity: Quantity) -> None:
    with suppress(DiagError):
        assert parse_limit(quantity, written).limit >= 0


def write(folder: Path, text: str) -> Path:
    path = folder / "budget.toml"
    path.write_text(text)
    return path


def test_a_file(tmp_path: Path) -> None:
    found = read_budgets(
        write(tmp_path, '# ours\nmax-exposed-comm = "20%"\nmin-tokens-per-second = 12000\nbaseline = "runs/a"\n')
    )
    assert [(budget.quantity.name, budget.limit) for budget in found.budgets] == [
        ("max-exposed-comm", 0.2),
        ("min-tokens-per-second", 12000),
    ]
    assert found.baseline == tmp_path / "runs/a"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            'max-step = "1s"\nmax-exposed-com = "5%"\n',
            "line 2: max-exposed-com is not a budget",
            "mean max-exposed-comm?",
        ),
        ('max_step = "1s"\n', "line 1: max_step is not a budget", "mean max-step?"),
        ('\n[budget]\nmax-step = "1s"\n', "line 2: budget is not a budget", "use one of"),
        ("# first\nmax-data-wait = 5\n", "line 2: max-data-wait = 5 is not a limit", "5%"),
        ("max-step = true\n", "line 1: max-step = True is not a limit", "350ms"),
        ("min-tokens-per-second = true\n", "is not a limit", "12000"),
        ('"max-step" = "fast"\n', "line 1: max-step = 'fast' is not a limit", "350ms"),
        ("baseline = 3\n", "line 1: baseline = 3 is not a run", "runs/before"),
        ("max-step = 1s\n", "not TOML", "one budget a line"),
        ('max-step = "1s"\nmax-step = "2s"\n', "not TOML", "one budget a line"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line(tmp_path: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(DiagError) as raised:
        read_budgets(write(tmp_path, text))
    assert message in raised.value.message
    assert hint in raised.value.hint
    assert raised.value.path == str(tmp_path / "budget.toml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="cannot be read"):
        read_budgets(tmp_path / "none.toml")


def test_a_limit_that_overflows_is_refused() -> None:
    with pytest.raises(DiagError, match="is not a limit"):
        parse_limit(BY_NAME["max-step"], "9" * 400 + "s")
