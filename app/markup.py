"""Escapes untrusted text for Markdown and for Plotly's labels."""

from __future__ import annotations

import html
import re

from diag.words.formatting import visible
from diag.words.wording import pieces

_MARKDOWN = re.compile(r"([\\`*_\[\]{}()#|$~<>&:!+\-])")
# The parts that make text an address: Markdown links an address anywhere, escaped or not.
_ADDRESS = re.compile(r"(https?\\?://|www(?=\.)|@)", re.IGNORECASE)
_JOINER = "\u2060"  # invisible, and not part of an address


def plain(text: object) -> str:
    """Text that Markdown shows literally, with control characters as escapes: paths and messages hold underscores,
    brackets, colons and dollar signs. No address in it becomes a link."""
    return _ADDRESS.sub(rf"\1{_JOINER}", _MARKDOWN.sub(r"\\\1", visible(str(text))))


def label(text: object, most: int = 200) -> str:
    """Text that a figure shows literally, with control characters as escapes and without its middle if it is long.
    Plotly interprets a few tags, entities and, in a template, names of values."""
    whole = visible(str(text))
    if len(whole) > most:
        whole = f"{whole[: most // 2 - 1]}…{whole[-(most // 2 - 1) :]}"
    return html.escape(whole, quote=False).replace("%{", "%&#123;")


def prose(text: str) -> str:
    """Sentences of diag as Markdown: text between backticks is a command to type."""
    return "".join(
        f"`{visible(part)}`" if typed else "\n".join(map(plain, part.split("\n"))) for part, typed in pieces(text)
    )
