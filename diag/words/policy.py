"""Widths of what is printed."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Terminal(Topic, name="terminal", fixed=True):
    """How wide a terminal's output is."""

    widest = threshold(200, "columns", "chosen", "of what a terminal shows, however wide it is")
    widest_elsewhere = threshold(110, "columns", "chosen", "of a file or a pipe, unless COLUMNS says another width")
    narrowest = threshold(40, "columns", "chosen", "that COLUMNS can ask for")
    least_text_columns = threshold(
        24, "columns", "chosen", "of a column of long names; below that, another column is left out"
    )
    may_go_weight = threshold(
        5, "weight", "chosen", "the most weight of a column that is left out if it holds nothing but zeros"
    )


class Search(Topic, name="search", fixed=True):
    """Which pages ``diag help`` offers for words that are no topic."""

    most_pages = threshold(3, "pages", "chosen", "that are offered")
    heading_weight = threshold(2.0, "weight", "chosen", "of a word in a heading; in the text below it, 1")
    as_good_share = threshold(0.7, "fraction", "chosen", "of the best page's score: a page below it is not offered")


TERMINAL = Terminal()
SEARCH = Search()
