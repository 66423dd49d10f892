"""The registry of fault classes: what each looks like in logs, where it ranks among others, and what to do about it.

A class is defined once, in its family's file. What follows from several lines is in ``diag.hang.rules``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from diag.ended.model import FULL
from diag.ended.out_of_memory import bytes_of
from diag.hang.classes import devices, mismatches, network, processes, waiting
from diag.hang.classes.base import FaultClass, Hit, LogPattern
from diag.hang.classes.words import LITERALS
from diag.hang.model import Line
from diag.hang.text.streams import block_of, search_of
from diag.words.formatting import size, spaced

_FAMILIES = (devices, processes, network, mismatches, waiting)

CLASSES: dict[str, FaultClass] = {fault_class.id: fault_class for family in _FAMILIES for fault_class in family.CLASSES}
NEVER_ROOTS: tuple[FaultClass, ...] = (waiting.CASCADE, waiting.HARMLESS)
PATTERNS: tuple[tuple[FaultClass, str, LogPattern], ...] = tuple(
    (fault_class, *item) for fault_class in (*CLASSES.values(), *NEVER_ROOTS) for item in fault_class.patterns.items()
)


@cache
def anchors() -> tuple[str, ...]:
    """Every literal that a pattern or a rule searches for, once each: a reader of logs must keep lines with one."""
    literals = [anchor.strip("\n") for *_, pattern in PATTERNS for anchor in pattern.anchors]
    return tuple(
        dict.fromkeys(
            (*literals, *(text for fault_class in CLASSES.values() for text in fault_class.context), *LITERALS)
        )
    )


_BY_ANCHOR: dict[str, list[int]] = {}
for _number, (*_, _pattern) in enumerate(PATTERNS):
    for _anchor in _pattern.anchors:
        _BY_ANCHOR.setdefault(_anchor, []).append(_number)


def hits_of(lines: Sequence[Line]) -> list[Hit]:
    """The hits of all lines, in the lines' order and then the registry's.

    One pass over the joined texts finds the anchors: 0.3 s for 30,000 lines, where 350 searches in each take 2 s.
    """
    search, wholes = search_of(tuple(_BY_ANCHOR)), [_whole(line) for line in lines]
    _, anchored = search.hits(block_of("\n".join(wholes).encode("utf-8", "replace")))
    hits = []
    for index, _, words in anchored:
        line = lines[index]
        for number in sorted({number for word in words for number in _BY_ANCHOR[search.wanted[word]]}):
            fault_class, name, pattern = PATTERNS[number]
            match = pattern.match(line)
            if match is not None:
                groups = {name: text for name, text in match.groupdict().items() if text is not None}
                for each in ("size", "asked") if fault_class.id == FULL else ():  # in one unit, as everywhere in diag
                    if (amount := bytes_of(groups.get(each, ""))) is not None:
                        groups[each] = spaced(size(amount))
                hits.append(Hit(fault_class, name, pattern, line, groups))
    return hits


def _whole(line: Line) -> str:
    """The line as one line: its text may hold what a terminal wrapped."""
    whole = line.raw if line.raw.endswith(line.text) else f"{line.raw} {line.text}"
    return whole.replace("\n", " ") if "\n" in whole else whole
