"""Where the lines of each event are, in text as Kineto prints it.

Since PyTorch 1.8 Kineto prints an event on lines of its own: phase, category, name and thread on the first, times on
the second, arguments behind; and a line of a brace alone before and behind it.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from msgspec import Struct

from .byte_columns import Mask, Positions, Text


class Layout(Struct, frozen=True):
    """The lines of each event. Line ``i`` of the text lies between ``newlines[i]`` and ``newlines[i + 1]``. All other
    arrays have the length of the events."""

    text: Text
    newlines: Positions
    opening: Positions  # the line with the brace before each event
    closing: Positions  # and behind it

    def __len__(self) -> int:
        return len(self.opening)

    def line(self, number: int) -> tuple[Positions, Positions]:
        """(begin, end) of a line of each event, counted from 0; there are at least two."""
        at = self.opening + (number + 1)
        return self.newlines.take(at) + 1, self.newlines.take(at + 1)

    @property
    def head(self) -> tuple[Positions, Positions]:
        """(begin, end) of the first line."""
        return self.line(0)

    @property
    def times(self) -> tuple[Positions, Positions]:
        """(begin, end) of the second line."""
        return self.line(1)

    @property
    def arguments(self) -> tuple[Positions, Positions]:
        """(begin, end) of what follows the opening of the arguments on the third line, up to the last line's end."""
        body = np.minimum(self.opening + 4, self.closing)
        return self.newlines.take(body) + 1, self.newlines.take(self.closing)

    @property
    def whole(self) -> tuple[Positions, Positions]:
        """(begin, end) of all lines."""
        return self.newlines.take(self.opening + 1) + 1, self.newlines.take(self.closing)

    def only(self, chosen: Mask | Positions) -> Self:
        """These events: a mask or their indices."""
        if chosen.dtype == np.bool_:
            if chosen.all():
                return self
            chosen = np.flatnonzero(chosen)
        return type(self)(self.text, self.newlines, self.opening.take(chosen), self.closing.take(chosen))


def layout(text: Text) -> Layout | None:
    """The lines of each event; None where the text is not printed like Kineto's, or where an event is not one."""
    newlines = text.newlines()
    size = newlines[1:] - newlines[:-1]
    short = np.flatnonzero((size ^ 4) <= 1)  # 4 and 5: lines of three or four bytes
    # Which of these lines are "  {", and which "  }," or "  }": byte by byte, which copies none of them.
    begin, long = newlines.take(short) + 1, size.take(short) == 5
    indented = (text.at.take(begin) == ord(" ")) & (text.at.take(begin + 1) == ord(" "))
    brace = text.at.take(begin + 2)
    opening = short[indented & (brace == ord("{")) & ~long]
    closing = short[indented & (brace == ord("}")) & ((text.at.take(begin + 3) == ord(",")) | ~long)]
    # Every event opens right after the one before it has closed, and nothing stands around them.
    if not len(opening) or len(opening) != len(closing) or (opening[1:] != closing[:-1] + 1).any():
        return None
    around = text.raw[: newlines[opening[0]]] + text.raw[newlines[closing[-1] + 1] :]
    if around.strip() or (closing - opening < 3).any():
        return None
    return Layout(text, newlines, opening, closing)
