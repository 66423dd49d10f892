"""Texts that fit into the rows of a terminal: whole pieces are left out where there is no room, and nothing is cut."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from diag.words.formatting import spaced, visible_lines

_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"])")
_APART = "   "  # of two texts that share a row


def sentences_of(text: str) -> list[str]:
    """The sentences of a text, each with its full stop."""
    return _BETWEEN_SENTENCES.split(text)


def rows_of(console: Console, text: str) -> int:
    """How many rows of the console a text takes."""
    return len(Text(visible_lines(spaced(text))).wrap(console, console.width))


def fitting(console: Console, pieces: Sequence[str], rows: int, joint: str = " ", before: str = "") -> str:
    """The first pieces that fit into ``rows`` behind ``before``, joined; at least one. A piece without room ends the
    text."""
    text = "".join(pieces[:1])
    for piece in pieces[1:]:
        if rows_of(console, f"{before}{text}{joint}{piece}") > rows:
            break
        text = f"{text}{joint}{piece}"
    return text


def together(console: Console, *texts: Text) -> Text | None:
    """The texts in one row, without those that are empty; None where there is no room."""
    row = Text(_APART).join([Text(spaced(text.plain), text.style) for text in texts if text.plain])
    return row if row.cell_len <= console.width else None


def headed(heading: str, text: Text | str) -> Text:
    return Text.assemble((f"{heading}: ", "bold"), text)


def warning(text: str) -> Text:
    return Text.assemble(("!", "yellow"), f" {spaced(text)}")


def print_together(
    console: Console, text: str, style: str, more: str, style_of_more: str, command: bool = False
) -> None:
    """Prints two texts in one row where there is room, else below each other; "" is none. ``command``: the second one
    ends in a command, which is not broken into rows, so that it can be copied."""
    shown = [Text(spaced(part), of) for part, of in ((text, style), (more, style_of_more)) if part]
    row = together(console, *shown)
    rows = [row] if row is not None else shown
    for row in rows:
        console.print(row, soft_wrap=command and row is rows[-1] and bool(more))
