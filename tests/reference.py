"""The parts of docs/ that are made from the code.

    python -m tests.reference          # writes them anew

``tests/test_python_api.py`` fails where they differ from what is written.
"""

from __future__ import annotations

from pathlib import Path

from diag.tables.frames import COLUMNS

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "python-api.md"
_BEGIN, _END = "<!-- columns -->\n", "<!-- end of columns -->\n"


def columns() -> str:
    """A table for each data frame of a run."""
    lines = []
    for name, own in COLUMNS.items():
        lines += [f"### run.{name}", "", "| column | type | meaning |", "|---|---|---|"]
        lines += [f"| `{column}` | {about.type} | {about.meaning} |" for column, about in own.items()]
        lines.append("")
    return "\n".join(lines)


def page() -> str:
    """docs/python-api.md with its tables as the code has them."""
    before, _, rest = PAGE.read_text("utf-8").partition(_BEGIN)
    return f"{before}{_BEGIN}\n{columns()}{_END}{rest.partition(_END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
