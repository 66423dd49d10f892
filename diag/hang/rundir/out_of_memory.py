"""Allocations of device memory that failed, as the ranks' logs and error files of a run directory report them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.reading import read_tail
from diag.hang.classes import CLASSES

_TAIL_BYTES = 64 << 10
_PATTERNS = tuple(CLASSES["cuda_oom"].patterns.values())
_ANCHORS = tuple(dict.fromkeys(anchor for pattern in _PATTERNS for anchor in pattern.anchors))


def out_of_memory_lines(layout: RunLayout, ranks: Iterable[int]) -> dict[int, tuple[Path, str]]:
    """For each of these ranks whose log ends with an out-of-memory error, the file and the size that did not fit as
    the log has it, "" if it has none."""
    lines = {}
    for rank in ranks:
        files = layout.rank(rank)
        for path in (files.error, files.log):
            size = _size(path, files)
            if size is not None:
                lines[rank] = path, size
                break
    return lines


def _size(path: Path, files: RankLayout) -> str | None:
    try:
        text = read_tail(path, _TAIL_BYTES, files.run)[0].decode(errors="replace")
    except OSError:  # no such file, or one that the analysis reports
        return None
    if not any(anchor in text for anchor in _ANCHORS):
        return None
    matched = [
        match
        for line in text.splitlines()
        for pattern in _PATTERNS
        if not any(word in line for word in pattern.unless)
        for match in pattern.matches(line)
    ]
    if not matched:
        return None
    return next((size for match in matched if (size := match.groupdict().get("size"))), "")
