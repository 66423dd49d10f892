"""Text from elsewhere for a terminal: characters that act on it are escaped. Standard library only."""

from __future__ import annotations

import unicodedata


def visible(text: str) -> str:
    """The text on one line, with every character that a terminal would act on escaped."""
    if text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def visible_lines(text: str) -> str:
    """The same line by line: its newlines stay."""
    return text if text.isprintable() else "\n".join(map(visible, text.split("\n")))


def _shown(character: str) -> str:
    if character == "\t":
        return " "
    # Controls, formats (such as bidirectional overrides), surrogates, line separators.
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        code = ord(character)
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    return character
