"""Which loss or gradient norm of which rank was the first that is not finite, or that jumped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from msgspec import Struct

from diag.collectors.layout import RankLayout
from diag.collectors.numbers import GRADIENT, LOSS, REPORTED_LOSS, REPORTED_NORM
from diag.collectors.records import NumberRecord
from diag.model import Gap
from diag.rundir.policy import RUN_READING, SILENCE
from diag.words.formatting import listing, spaced

from .lines import read_lines
from .printed import printed_numbers


class OddNumber(Struct, frozen=True):
    """``ranks``: those whose own loss it is, while that of others was not; else empty: after a reduction all ranks have
    it. ``usual``: the median of those before, None if there were none."""

    step: int
    what: str
    value: float
    usual: float | None
    ranks: tuple[int, ...]

    @property
    def finite(self) -> bool:
        return math.isfinite(self.value)

    @property
    def words(self) -> str:
        """``The loss of rank 3 is nan in step 812, the first one that is not finite``."""
        of = f" of {spaced(listing(self.ranks))}" if self.ranks else ""
        if self.finite:
            usual = f", usually {self.usual:.3g}" if self.usual is not None else ""
            return f"The {self.what}{of} jumps to {self.value:.3g} in step {self.step:,}{usual}"
        before = f"; before, it was {self.usual:.3g}" if self.usual is not None else ""
        return f"The {self.what}{of} is {self.value} in step {self.step:,}, the first that is not finite{before}"


def first_odd(numbers: Mapping[int, Iterable[NumberRecord]], finite: bool) -> OddNumber | None:
    """The first one of all ranks that is not finite, or with ``finite`` that jumped. What the training reports comes
    some steps later, and counts where nothing else was seen."""
    of_all = [
        (rank, record, value)
        for rank, records in numbers.items()
        for record in records
        if (value := value_of(record)) is not None and math.isfinite(value) is finite
    ]
    measured = [entry for entry in of_all if entry[1].what not in (REPORTED_LOSS, REPORTED_NORM)]
    if not of_all:
        return None
    step = min(record.step for _, record, _ in measured or of_all)
    first = [entry for entry in measured or of_all if entry[1].step == step]
    own = [entry for entry in first if entry[1].what in (LOSS, GRADIENT)]
    ranks = tuple(sorted({rank for rank, _, _ in own}))
    _, record, value = min(own or first, key=lambda entry: entry[0])
    return OddNumber(step, record.what, value, record.usual, ranks if len(ranks) < len(numbers) else ())


def value_of(record: NumberRecord) -> float | None:
    """The number; None if what was written is none."""
    try:
        return float(record.value)
    except ValueError:
        return None


def read_numbers(
    files: RankLayout, most_bytes: int = RUN_READING.most_printed_bytes
) -> tuple[list[NumberRecord], list[Gap]]:
    """What a rank recorded, or where it recorded none that is not finite, what its output and its exception say.
    ``most_bytes``: of its output."""
    records, gaps = read_lines(files.numbers, NumberRecord, files.run)
    if not any((value := value_of(record)) is not None and not math.isfinite(value) for record in records):
        records += printed_numbers(files, most_bytes)
    return records, gaps


def numbers_of(ranks: Mapping[int, RankLayout]) -> dict[int, Sequence[NumberRecord]]:
    """Of all ranks, while they train, the newest output; empty while none of the first few ranks has anything, as a
    reduction gives it to all."""
    first = {
        rank: read_numbers(files, RUN_READING.tail_bytes)[0]
        for rank, files in islice(ranks.items(), SILENCE.ranks_looked_at)
    }
    if not any(first.values()):
        return {}
    some = islice(ranks.items(), RUN_READING.most_identities_read)
    return {
        rank: first[rank] if rank in first else read_lines(files.numbers, NumberRecord, files.run)[0]
        for rank, files in some
    }
