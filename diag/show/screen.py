"""A screen of a few rows: parts are put at their places as long as there is room, and printed from top to bottom."""

from __future__ import annotations

import math

from rich.console import Console
from rich.text import Text

from diag.show.fitting import rows_of
from diag.show.policy import PAGE
from diag.show.table import Styles, print_table
from diag.words.table import Table


class Screen:
    """What an answer shows, and how many rows are ``left`` for more. Places are numbers that grow downwards."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.left = PAGE.rows_of_answer
        self._parts: dict[int, list[Text | tuple[Table, Styles]]] = {}

    def put(self, place: int, text: Text) -> None:
        self._parts.setdefault(place, []).append(text)
        self.left -= rows_of(self.console, text.plain)

    def put_command(self, place: int, text: Text) -> None:
        """A text that ends in a command, which is not broken into rows, so that it can be copied."""
        text.no_wrap = True
        self._parts.setdefault(place, []).append(text)
        self.left -= max(1, math.ceil(text.cell_len / self.console.width))

    def put_if_room(self, place: int, text: Text) -> bool:
        """False if there is none."""
        fits = rows_of(self.console, text.plain) <= self.left
        if fits and text.plain:
            self.put(place, text)
        return fits

    def put_table(self, place: int, table: Table, styles: Styles | None = None) -> None:
        """A table whose columns have no long text: each row takes one of the screen."""
        self._parts.setdefault(place, []).append((table, styles or {}))
        self.left -= 1 + len(table.rows) + bool(table.more)

    def print(self) -> None:
        for _, parts in sorted(self._parts.items()):
            for part in parts:
                if isinstance(part, Text):
                    self.console.print(part, soft_wrap=bool(part.no_wrap))
                else:
                    print_table(self.console, *part, in_short=True)
