"""The parts of docs/ that are made from the code.

    python -m tests.reference          # writes them anew

``tests/test_python_api.py`` fails where they differ from what is written.
"""

from __future__ import annotations

from pathlib import Path

from diag.tables.frames import COLUMNS
from diag.words.table import markdown

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "python-api.md"
_BEGIN, _END = "<!-- columns -->\n", "<!-- end of columns -->\n"


def columns() -> str:
    """A table for each data frame of a run."""
    headings = ("column", "type", "unit", "meaning")
    parts = []
    for name, own in COLUMNS.items():
        rows = [(f"`{column.id}`", column.unit.type, column.unit.name, column.meaning) for column in own.values()]
        parts.append(f"### run.{name}\n\n{markdown(headings, rows)}\n")
    return "\n".join(parts)


def page() -> str:
    """docs/python-api.md with its tables as the code has them."""
    before, _, rest = PAGE.read_text("utf-8").partition(_BEGIN)
    return f"{before}{_BEGIN}\n{columns()}{_END}{rest.partition(_END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
