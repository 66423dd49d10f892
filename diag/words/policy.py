"""Widths of what is printed."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Terminal(Topic, name="terminal", fixed=True):
    """How wide a terminal's output is."""

    widest = threshold(110, "columns")
    least_text_columns = threshold(30, "columns")


TERMINAL = Terminal()
