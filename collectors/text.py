"""Text that came from elsewhere, made fit to be shown: nothing in it acts on a terminal. Standard library only."""

from __future__ import annotations

import unicodedata


def visible(text: str) -> str:
    """The text on one line, with every character that a terminal would act on written as an escape."""
    if text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character == "\t":
        return " "
    # Controls, formats (which turn the direction of writing around), surrogates, separators of lines.
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        code = ord(character)
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    return character
