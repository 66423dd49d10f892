"""The means of the ranks' parts over the steps that count, which every table of ranks shows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from diag.model import UNKNOWN
from diag.model.accounts import Attribution
from diag.model.parts import Bools, Ints, PartColumns


def rank_means(attribution: Attribution, fields: Iterable[str]) -> dict[int, dict[str, float | None]]:
    """By rank, the mean of each field of ``Parts`` (``idle_parts.queued_ns`` as well) over the counted steps in which
    it is known; None if it is never known. Overlapped communication that the counted steps lack is read from profiler
    windows."""
    counted = attribution.counted.parts
    traced = attribution.traced.parts
    ranks = np.unique(counted.rank)
    means = {field: _means(counted, traced, field, ranks) for field in fields}
    return {rank: {field: means[field][at] for field in fields} for at, rank in enumerate(ranks.tolist())}


def _means(steps: PartColumns, traced: PartColumns, field: str, ranks: Ints) -> list[float | None]:
    values, known = steps.column(field), steps.column(field) != UNKNOWN
    if field != "overlapped_comm_ns":
        return _by_rank(steps.rank, values, known, ranks)
    # A lower bound if some communication was recorded at its end only.
    sure = _by_rank(steps.rank, values, steps.hidden_known, ranks)
    in_windows = _by_rank(traced.rank, traced.column(field), traced.hidden_known, ranks)
    return [in_windows[at] if mean is None else mean for at, mean in enumerate(sure)]


def _by_rank(rank: Ints, values: Ints, counted: Bools, ranks: Ints) -> list[float | None]:
    """The mean of the counted values of each of the ``ranks``; None without any. Other ranks are left out."""
    counted = counted & np.isin(rank, ranks)
    at = np.searchsorted(ranks, rank[counted])
    number = np.bincount(at, minlength=len(ranks))
    total = np.zeros(len(ranks), dtype=np.int64)
    np.add.at(total, at, values[counted])
    return [ns / count if count else None for ns, count in zip(total.tolist(), number.tolist(), strict=True)]
