"""Where the lines of a step are, in a file whose lines are in the order of their steps. Standard library only.

The place of a step is found by halving the file, so that finding it takes as long in a large file as in a small one.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from .layout import RankLayout, numbered_parts
from .policy import RECORDED_FILES, RECORDING
from .reading import open_regular

# The collectors write the step first.
_STEP: Final = re.compile(rb'\{\s*"step"\s*:\s*(\d{1,18})\s*[,}]')


class UnorderedError(Exception):
    """A line is not where the order of the steps has it, or has no step."""


def step_of(line: bytes) -> int | None:
    """The step of a line, or of the begin of one; None if it does not say it first."""
    match = _STEP.match(line)
    return int(match[1]) if match is not None else None


def complete_from(files: RankLayout) -> int | None:
    """The number of the first step of which a rank has all records; None if no record of it was removed."""
    cut = {stream for stream, oldest in files.streams().items() if oldest}
    if not cut:
        return None
    firsts = [_first_step(files.steps)] if files.steps.stem in cut else []
    # A line of an earlier step may have had the calls of this one that ended late.
    calls = [_first_step(stream) for stream in (files.collectives, files.device_steps) if stream.stem in cut]
    firsts += [first + RECORDING.latest_calls + 1 for first in calls if first is not None]
    known = [first for first in firsts if first is not None]
    return max(known) if known else None


def _first_step(stream: Path) -> int | None:
    """The step in the first line of what is left of a stream."""
    for _, part in numbered_parts(stream):
        with suppress(OSError), open_regular(part, stream.parent.parent.parent) as file:
            if (step := step_of(file.read(RECORDED_FILES.head_bytes))) is not None:
                return step
    return None


def lines_of(file: BinaryIO, first: int, last: int) -> tuple[int, int]:
    """Where the lines of the steps from ``first`` to before ``last`` begin and end. UnorderedError where a line among
    those that were looked at has no step."""
    size = os.fstat(file.fileno()).st_size
    begin = _place_of(file, first, 0, size)
    return begin, _place_of(file, last, begin, size)


def _place_of(file: BinaryIO, step: int, low: int, high: int) -> int:
    """Where the first line of this step or a later one begins. ``low``: where some line begins that is not behind it;
    ``high``: the end of the file."""
    end = high
    while high - low > RECORDED_FILES.searched_bytes:
        middle = (low + high) // 2
        begin, of_line = line_after(file, middle, end)
        if of_line is None or of_line >= step or begin >= high:
            high = middle
        else:
            low = begin
    file.seek(low)
    at = low
    while at < end:
        line = file.readline(RECORDED_FILES.line_bytes)
        of_line = step_of(line)
        if of_line is None:
            if line.strip() and line.endswith(b"\n"):
                raise UnorderedError
            break  # the last line was not written to its end
        if of_line >= step:
            return at
        at += len(line)
    return at


def line_after(file: BinaryIO, place: int, end: int) -> tuple[int, int | None]:
    """The begin of the first line that begins at ``place`` or later, and its step; None at the end of the file."""
    file.seek(place - 1 if place else 0)
    if place:
        file.readline(RECORDED_FILES.line_bytes)
    begin = file.tell()
    head = file.read(RECORDED_FILES.head_bytes)
    of_line = step_of(head)
    if of_line is not None:
        return begin, of_line
    if begin + len(head) >= end:
        return begin, None  # nothing, or a line that was not written to its end
    raise UnorderedError
