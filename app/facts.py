"""The numbers at the top of a run's page, and those behind its first figure, as text: the same on every page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diag.app.formatting import UNKNOWN, duration, number, share, size
from diag.app.parts import Part
from diag.app.run_view import RunView
from diag.model import Bottleneck

MS = 1e6


@dataclass(frozen=True)
class Metric:
    """``help``: what exactly the number is."""

    label: str
    value: str
    help: str


def metrics(view: RunView) -> tuple[Metric, ...]:
    """Five numbers of the steps that count."""
    communication = share(view.mean_share(Part.COMMUNICATION, Part.WAITING, Part.TRANSFER))
    memory, peak = view.memory, view.peak_memory
    capacity = memory.capacity if memory is not None else None
    return (
        Metric(
            "Step time, median",
            duration(view.median_step_ns),
            "From the first rank's begin to the last rank's end, of the steps that count.",
        ),
        Metric(
            "Tokens per second",
            f"{view.tokens_per_second:,.0f}" if view.tokens_per_second else UNKNOWN,
            "All ranks together, in the steps that count. Unknown where the training does not count its tokens.",
        ),
        Metric(
            "Exposed comm.",
            share(view.result.share_of(Bottleneck.COMMUNICATION)),
            "Exposed communication: transfers on the critical path, the part of the time that free communication "
            "would save. Waiting for a slower rank is counted with what made it slow. As a mean over the ranks, "
            f"waiting included: {communication}.",
        ),
        Metric(
            "Data wait",
            share(view.result.share_of(Bottleneck.DATA)),
            "Waiting for the data loader on the critical path, also where all ranks wait for the loader of one. As a "
            f"mean over the ranks: {share(view.mean_share(Part.DATA))}.",
        ),
        Metric(
            "Peak memory" if capacity is None else f"Memory, of {size(capacity)}",
            size(peak) if peak is not None else UNKNOWN,
            "The largest of all ranks and steps: reserved by the allocator of the device, on a CPU the resident set.",
        ),
    )


def shown_rank(view: RunView) -> int:
    """Whose steps are shown first: the first rank at fault, else the first one."""
    return next((rank for rank in view.culprits if rank in view.ranks), view.ranks[0])


@dataclass(frozen=True)
class RankValues:
    """``rows``: (rank, at fault, one number a column), milliseconds. ``left_out``: ranks that are not among them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[int, bool, tuple[str, ...]], ...]
    left_out: int


def rank_values(view: RunView, most: int) -> RankValues:
    """What the figure of the ranks draws, for those who read: the ranks at fault, then the first others, by number."""
    columns = [("step", view.dur_ns), *((part.value, grid) for part, grid in view.parts.items())]
    means = [view.per_rank(grid) / MS for _, grid in columns]
    by_guilt = sorted(range(len(view.ranks)), key=lambda i: view.ranks[i] not in view.culprits)
    rows = [
        (view.ranks[i], view.ranks[i] in view.culprits, _cells([float(mean[i]) for mean in means]))
        for i in sorted(by_guilt[:most])
    ]
    return RankValues(tuple(name for name, _ in columns), tuple(rows), len(view.ranks) - len(rows))


def _cells(values: Sequence[float]) -> tuple[str, ...]:
    return tuple(UNKNOWN if np.isnan(value) else number(value) for value in values)
