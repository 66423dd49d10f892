"""What is left of a run whose oldest records were removed at the byte budget, and at which resolution."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from diag.collectors.layout import RankLayout, numbered_parts
from diag.collectors.policy import RECORDED_FILES
from diag.collectors.reading import open_regular
from diag.collectors.step_places import complete_from
from diag.decoding import json_decoder
from diag.model import DAMAGED
from diag.model.retained import Retained

from .columns import Steps
from .kept import kept_spans


class _Line(Struct):
    """The number of the first step in a line of several."""

    first: int


def retained(files: Mapping[int, RankLayout], steps: Mapping[int, Steps]) -> Retained | None:
    """Of all ranks together; None if nothing was removed. ``steps``: those of each rank of which all is there."""
    whole = {rank: of_rank for rank, of_rank in steps.items() if len(of_rank)}
    if not whole or all(complete_from(files[rank]) is None for rank in whole):
        return None
    some = files[next(iter(whole))]
    first = max(int(of_rank.step[0]) for of_rank in whole.values())
    last = max(int(of_rank.step[-1]) for of_rank in whole.values())
    sums = [number for stream in some.sums.values() if (number := _first_step(stream)) is not None]
    first = min(first, last)
    kept = tuple(span for span in kept_spans(some) if span.last < first)
    return Retained(first, last, _first_step(some.summary), min(sums, default=None), kept)


def _first_step(stream: Path) -> int | None:
    """The step in the first line of what is left of a stream."""
    for _, part in numbered_parts(stream):
        with suppress(OSError, *DAMAGED), open_regular(part, stream.parent.parent.parent) as file:
            return json_decoder(_Line).decode(file.readline(RECORDED_FILES.line_bytes)).first
    return None
