"""Widths of what is printed."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Terminal(Topic, name="terminal", fixed=True):
    """How wide a terminal's output is."""

    widest = threshold(110, "columns", "chosen", "of text")
    widest_table = threshold(200, "columns", "chosen", "of a table, on a terminal that is so wide")
    least_text_columns = threshold(
        24, "columns", "chosen", "of a column of long names; below that, another column is left out"
    )
    may_go_weight = threshold(
        5, "weight", "chosen", "the most weight of a column that is left out if it holds nothing but zeros"
    )


TERMINAL = Terminal()
