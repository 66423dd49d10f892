"""Numbers with their units as text, never broken between the two, as every page that people look at writes them."""

from __future__ import annotations

from collections.abc import Sequence

from diag.collectors.text import masked as masked
from diag.collectors.text import visible as visible
from diag.collectors.text import visible_lines as visible_lines

NBSP = "\u00a0"
UNKNOWN = "unknown"


def number(value: float) -> str:
    """Three significant digits, all of those before the point, no exponent."""
    magnitude = abs(value)
    digits = 0 if magnitude >= 99.95 or magnitude == 0 else 1 if magnitude >= 9.995 else 2 if magnitude >= 0.995 else 3
    return f"{value:,.{digits}f}"


def duration(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        # 999.7 ms would be printed as 1,000 ms.
        if abs(ns) >= 0.9995 * size:
            return f"{number(ns / size)}{NBSP}{unit}"
    return f"{ns:.0f}{NBSP}ns"


def size(count: float) -> str:
    """Bytes, in powers of a thousand as everywhere in diag."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= 0.9995 * factor:
            return f"{number(count / factor)}{NBSP}{unit}"
    return f"{count:.0f}{NBSP}bytes"


def share(value: float) -> str:
    return "<1%" if 0 < value < 0.005 else f"{value:.0%}"


def spaced(text: str) -> str:
    """With ordinary spaces, for terminals and programs."""
    return text.replace(NBSP, " ")


def counted(count: int, noun: str, nouns: str = "") -> str:
    """``1 rank``, ``2 ranks``. ``nouns``: the plural, where it is not formed by an s."""
    return f"{count:,}{NBSP}{noun if count == 1 else nouns or f'{noun}s'}"


def measured(value: float, unit: str) -> str:
    """A piece of evidence, in the words of ``diag analyze``."""
    if unit == "share":
        return f"{value:.1%}"
    if unit == "bytes":
        return size(value)
    return f"{value:,.4g}{NBSP}{unit}".rstrip(NBSP)


def listing(ranks: Sequence[int], most: int = 8) -> str:
    """``rank 3``, or ``ranks 0, 1, 2 and 61 more``."""
    if len(ranks) == 1:
        return f"rank{NBSP}{ranks[0]}"
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"ranks{NBSP}" + ", ".join(map(str, ranks[:most])) + more
