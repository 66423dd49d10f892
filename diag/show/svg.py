"""Figures as SVG, without scripts and without anything from outside: bars of parts, lanes over time, stacked areas.

A colour is any value of ``fill``. Text has the colour of the text around the figure.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from msgspec import Struct

from diag.show.policy import SVG
from diag.words.formatting import visible


class Row(Struct, frozen=True):
    """A row of a figure. ``pieces``: (begin, end, fill, tooltip), in the unit of the axis; ``end``: a text behind it;
    ``bold``: at fault."""

    name: str
    pieces: tuple[tuple[float, float, str, str], ...]
    end: str = ""
    bold: bool = False


def rows_over(rows: Sequence[Row], begin: float, end: float, alt: str, width: int = 720) -> str:
    """Rows of pieces over one axis, such as bars of parts, or lanes of ranks over time."""
    room, span = width - SVG.name_px - SVG.end_px, (end - begin) or 1.0
    drawn = []
    for place, row in enumerate(rows):
        top = place * SVG.row_px
        weight = ' font-weight="700"' if row.bold else ""
        drawn.append(_text(SVG.name_px - 8, top + 13, row.name, f'text-anchor="end"{weight}'))
        for piece_begin, piece_end, fill, about in _joined(row.pieces, span / room / 2):
            at = SVG.name_px + room * (max(piece_begin, begin) - begin) / span
            wide = room * (min(piece_end, end) - max(piece_begin, begin)) / span
            if wide > 0:
                title = f"<title>{_escape(about)}</title>" if about else ""
                box = f'x="{at:.1f}" y="{top}" width="{wide:.1f}" height="{SVG.bar_px}"'
                drawn.append(f'<rect {box} style="fill:{fill}">{title}</rect>')
        if row.end:
            drawn.append(_text(width - SVG.end_px + 6, top + 13, row.end, weight.strip()))
    return _svg(width, len(rows) * SVG.row_px, alt, drawn)


def _joined(pieces: Sequence[tuple[float, float, str, str]], least: float) -> Iterable[tuple[float, float, str, str]]:
    """Pieces narrower than half a pixel are left to the one before, so that a figure has a bounded size."""
    last: tuple[float, float, str, str] | None = None
    for piece in sorted(pieces):
        if last is not None and (piece[1] - piece[0] < least or (piece[2] == last[2] and piece[0] - last[1] < least)):
            last = (last[0], max(last[1], piece[1]), *last[2:])
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


def stacked(
    at: Sequence[float], series: Sequence[tuple[str, Sequence[float]]], top: float, marks: Sequence[tuple[float, str]],
    alt: str, width: int = 720, height: int = 200,
) -> str:  # fmt: skip
    """Stacked areas; each moment holds until the next one. ``series``: fill and values, from the bottom; ``marks``:
    moments with a text."""
    begin, span = at[0], (at[-1] - at[0]) or 1.0
    foot, room = height - 4, height - 24
    base = [0.0] * len(at)
    drawn = []

    def x(moment: float) -> float:
        return width * (moment - begin) / span

    def y(value: float) -> float:
        return foot - room * value / (top or 1.0)

    for fill, values in series:
        upper = [low + value for low, value in zip(base, values, strict=True)]
        edge = [*_steps(at, upper), *reversed(list(_steps(at, base)))]
        points = " ".join(f"{x(moment):.1f},{y(value):.1f}" for moment, value in edge)
        drawn.append(f'<polygon points="{points}" style="fill:{fill}"/>')
        base = upper
    for moment, text in marks:
        anchor = "end" if moment - begin > span / 2 else "start"
        drawn.append(f'<line x1="{x(moment):.1f}" x2="{x(moment):.1f}" y1="16" y2="{foot}" stroke="currentColor"/>')
        drawn.append(_text(x(moment), 12, text, f'text-anchor="{anchor}"'))
    return _svg(width, height, alt, drawn)


def _steps(at: Sequence[float], values: Sequence[float]) -> Iterable[tuple[float, float]]:
    for place, moment in enumerate(at):
        if place:
            yield moment, values[place - 1]
        yield moment, values[place]


def _svg(width: int, height: int, alt: str, drawn: Iterable[str]) -> str:
    look = f'style="width:100%;max-width:{width}px;height:auto" font-size="12" font-family="inherit"'
    box = f'viewBox="0 0 {width} {height}" role="img" aria-label="{_escape(alt)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} {look}>{"".join(drawn)}</svg>'


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="currentColor" {attributes}>{_escape(text)}</text>'


def _escape(text: str) -> str:
    return html.escape(visible(text), quote=True)
