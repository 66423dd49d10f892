"""What is left of a run whose oldest records were removed at the byte budget, and at which resolution."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from diag.collectors.layout import RankLayout, begins_with_run, numbered_parts
from diag.collectors.policy import RECORDED_FILES, RECORDING
from diag.collectors.reading import open_regular
from diag.model import DAMAGED
from diag.model.retained import Retained

from .columns import Steps


class _Line(Struct):
    """The number with which the lines of a stream begin."""

    step: int | None = None
    first: int | None = None  # of a line of several steps


def complete_from(files: RankLayout) -> int | None:
    """The number of the first step of which a rank has all records; None if no record of it was removed."""
    firsts = [_first_step(files.steps)] if not begins_with_run(files.steps) else []
    # A line of an earlier step may have had the calls of this one that ended late.
    streams = (files.collectives, files.device_steps)
    calls = [_first_step(stream) for stream in streams if not begins_with_run(stream)]
    firsts += [first + RECORDING.latest_calls + 1 for first in calls if first is not None]
    known = [first for first in firsts if first is not None]
    return max(known) if known else None


def retained(files: Mapping[int, RankLayout], steps: Mapping[int, Steps]) -> Retained | None:
    """Of all ranks together; None if nothing was removed. ``steps``: those of each rank of which all is there."""
    whole = {rank: of_rank for rank, of_rank in steps.items() if len(of_rank)}
    if not whole or all(complete_from(files[rank]) is None for rank in whole):
        return None
    some = files[next(iter(whole))]
    first = max(int(of_rank.step[0]) for of_rank in whole.values())
    last = max(int(of_rank.step[-1]) for of_rank in whole.values())
    sums = [number for stream in some.sums.values() if (number := _first_step(stream)) is not None]
    return Retained(min(first, last), last, _first_step(some.summary), min(sums, default=None))


def _first_step(stream: Path) -> int | None:
    """The step in the first line of what is left of a stream."""
    for _, part in numbered_parts(stream):
        with suppress(OSError, *DAMAGED), open_regular(part, stream.parent.parent.parent) as file:
            line = msgspec.json.decode(file.readline(RECORDED_FILES.line_bytes), type=_Line)
            return line.step if line.step is not None else line.first
    return None
