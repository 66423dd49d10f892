"""Waiting for a late rank that hides behind computation.

With overlap the others go on with work that they have while they wait, and run out of it later. What they lack then is
not waiting for the late rank by any timeline, so the path charges it with a part of what it costs. The replay of the
run with this rank as fast as the others shows the whole. Where that is surely more, the difference is taken from the
path's computation, which no cost has. Where the replay says less, nothing changes, as it has errors, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from msgspec.structs import replace

from diag.diagnoses.policy import FINDINGS
from diag.model.steps import Detail, Kind

from .cost_rows import CostTable, Side, Source
from .costs import Cost
from .culprits import Series
from .shares import Shares

# How much shorter a step would be were these ranks as fast as the others, nanoseconds: at least, and most likely. None
# where it cannot be predicted.
Gain = Callable[[tuple[int, ...]], tuple[float, float] | None]


def with_hidden_waits(shares: Shares, gain: Gain) -> Shares:
    """The rows with such waiting as a cost of the ranks that are always late; the same if there is none."""
    late = Cost.STRAGGLER
    if shares.source != Source.TIMELINES or shares.share(late) < FINDINGS.mention_share:
        return shares
    ranks = shares.culprits(late).ranks
    predicted = gain(ranks) if ranks else None
    charged_ns = float(shares.charged(late, ranks).mean())
    if predicted is None or predicted[0] <= charged_ns:
        return shares
    table = CostTable.of(shares.rows, len(shares.numbers))
    more_ns = np.full_like(shares.dur_ns, predicted[1] - charged_ns)
    moved = table.relabel(Side.PATH, None, late, more_ns)
    waited = {rank: float(table.total(Side.WAITING, late, rank).sum()) for rank in ranks}
    for rank, ns in waited.items():
        table.add(Side.WAITING, late, moved * (ns / max(1.0, sum(waited.values()))), *_HIDDEN, rank)
    return replace(shares, rows=tuple(table.rows()))


_HIDDEN = Kind.COMM, Detail.NONE  # what the others do while they wait: a late rank is late because of no collective


def hidden_ns(shares: Shares) -> Mapping[int, Series]:
    """By late rank: the waiting for it that hides behind computation, nanoseconds of each counted step."""
    return {
        row.rank: row.ns
        for row in shares.rows
        if row.kind == _HIDDEN[0] and row.detail == _HIDDEN[1] and row.side == Side.WAITING
        if row.cost == Cost.STRAGGLER
    }
