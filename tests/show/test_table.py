"""One table for every front end: in a terminal of any width no number is cut."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest
from rich.console import Console

from diag.api import Result
from diag.show.breakdowns import breakdown_tables
from diag.show.ranks import rank_table
from diag.show.table import print_table
from diag.words.formatting import spaced
from diag.words.table import MS, SHARE, SIZE, Cell, Column, Table, markdown, table_of
from tests.samples import opened_sample

ROOT = Path(__file__).parents[2]
NAMES = ("collectives", "kernels", "modules", "efficiency", "path")


def printed(table: Table, width: int) -> str:
    console = Console(file=io.StringIO(), highlight=False, width=width)
    print_table(console, table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    return text


@pytest.fixture(scope="module")
def result() -> Result:
    return opened_sample("fsdp2-straggler-rank0")


@pytest.mark.parametrize("width", [60, 80, 110, 200])
def test_a_number_is_shown_whole_or_its_column_is_named_below(result: Result, width: int) -> None:
    tables = [table for name in NAMES for table in breakdown_tables(result, name)]
    for table in (rank_table(result.attribution, (0,)), *tables):
        text = printed(table, width)
        left_out = " ".join(line.strip() for line in text.partition("A wider terminal also shows: ")[2].splitlines())
        known = table.known().without_zeros()
        for place, column in enumerate(known.columns):
            if not column.unit.is_number:
                continue
            cells = [spaced(row[place]) for row in known.texts()]
            assert all(cell in text for cell in cells) or known.heading(column) in left_out, column.id


def test_the_least_important_columns_give_way_first() -> None:
    rows = [1_234_000_000, 5_678_000_000]
    table = table_of(
        "example",
        "",
        {
            Column("name", weight=0): ["one", "two"],
            Column("most", MS, weight=9): rows,
            Column("least", MS, weight=1): rows,
            Column("some", MS, weight=5): rows,
        },
        symbol="ms",
    )
    assert "A wider terminal" not in printed(table, 40)
    assert "A wider terminal also shows: least." in " ".join(printed(table, 20).split())
    narrow = " ".join(printed(table, 12).split())
    assert "1,234" in narrow
    assert "A wider terminal also shows: least, some." in narrow


def test_a_column_without_a_known_value_is_left_out() -> None:
    table = table_of(
        "example", "", {Column("name"): ["one"], Column("size", SIZE): [None], Column("share", SHARE): [0]}
    )
    assert table.known().headings == ("name", "share")


def test_a_column_of_zeros_is_left_out_unless_it_is_important() -> None:
    zeros = {
        Column("name"): ["one", "two"],
        Column("bubble", MS, weight=4): [0, 0],
        Column("step", MS, weight=9): [0, 0],
    }
    assert table_of("example", "", zeros).without_zeros().headings == ("name", "step ms")


def test_values_stay_numbers_behind_their_texts() -> None:
    table = table_of("example", "", {Column("transfer_ns", MS): [Cell(2_000_000, "≤2.00"), 1_500_000.4, None]})
    assert table.texts() == (("≤2.00",), ("1.50",), ("-",))
    assert table.frame()["transfer_ns"].to_list() == [2_000_000, 1_500_000, None]
    assert markdown(table.headings, table.texts()).splitlines()[2] == "| ≤2.00 |"


def test_no_front_end_draws_a_table_of_its_own() -> None:
    """Rich's tables, Streamlit's and column configurations are made in one place each."""
    allowed = {"diag/show/table.py", "app/views/common.py"}
    found = set()
    for path in [*(ROOT / "app").rglob("*.py"), *(ROOT / "diag" / "show").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("dataframe", "table", "column_config"):
                owner = node.value.id if isinstance(node.value, ast.Name) else ""
                found |= {str(path.relative_to(ROOT))} if owner in ("st", "streamlit") else set()
            if isinstance(node, ast.ImportFrom) and node.module == "rich.table":
                found.add(str(path.relative_to(ROOT)))
    assert found <= allowed
