"""The figures of a run's page with what is said beside them, or what is said where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import plotly.graph_objects as go

from diag.app.figures import memory as memory_figures
from diag.app.figures import ranks as rank_figures
from diag.app.figures import steps as step_figures
from diag.app.figures.common import MOST_RANK_BARS
from diag.app.run_view import RunView
from diag.app.theme import Theme

from .facts import counted
from .figures import compare as difference_figures
from .figures import what_if as waiting_figures
from .run_view import Part


@dataclass(frozen=True)
class Drawing:
    """``lead`` and ``rest``: the words above it, the first of them stressed; ``alt``: what it shows, for those who do
    not see it."""

    key: str
    draw: Callable[[Theme], go.Figure]
    alt: str
    lead: str = ""
    rest: str = ""


def every_rank(view: RunView) -> str:
    """What the ranks that are shown are of all."""
    ranks = len(view.result.attribution.ranks)
    return f"{len(view.ranks)} of {ranks:,} ranks" if len(view.ranks) < ranks else "Every rank"


def of_ranks(view: RunView, step: int | None = None) -> Drawing:
    """Every rank, in the mean of the steps that count or in one step (its index)."""
    counts = int(view.counted.sum())
    if step is not None:
        what = f"{view.noun} {view.steps[step]}"
    elif len(view.steps) == 1:
        what = f"the one {view.noun}"
    else:
        what = f"mean of {counted(counts, f'counted {view.noun}')}"
    return Drawing(
        "ranks",
        lambda theme: rank_figures.breakdown(view, theme, step),
        f"Milliseconds by part of the step for every rank, {what}",
        every_rank(view),
        f", {what}",
    )


def of_differences(view: RunView) -> tuple[str, Drawing | None]:
    """What there is to say, and the figure where there are ranks to compare."""
    if len(view.ranks) < 2:
        return "One rank was recorded: nobody to compare it with.", None
    return "", Drawing(
        "differences",
        partial(difference_figures.bars, view.result.differences, view.culprits),
        "What each rank does more of, or less, than the median of the others, milliseconds a step",
        "Each rank against the others",
        ", without its waiting for others",
    )


def of_steps(view: RunView, rank: int, selected: int | None = None) -> Drawing:
    left_out = f"; hatched: {counted(view.left_out, view.noun)} left out of the verdict" if view.left_out else ""
    if step_figures.limit_ms(view, rank) is not None:
        left_out += ", cut off at the top where longer"
    return Drawing(
        "history",
        lambda theme: step_figures.history(view, rank, theme, selected),
        f"Milliseconds by part of the step for every {view.noun} of rank {rank}",
        f"Every {view.noun} of rank {rank}",
        f"{left_out}. The strip shows each {view.noun}'s class.",
    )


def of_waiting(view: RunView) -> tuple[str, Drawing | None]:
    """What there is to say, and the figure where somebody waits."""
    if len(view.ranks) < 2:
        return "One rank was recorded: nobody to wait for.", None
    if view.result.from_summaries:
        return "The ranks' summaries do not tell who waits for whom.", None
    if not view.waiting_known:
        return "The ranks' clocks could not be aligned, so waiting cannot be told from transfer.", None
    if Part.WAITING not in view.parts:
        return "No rank waits for another.", None
    text = "Time that each rank waits in collectives for a later one. The faint stripe is whom they wait for."
    alt = "Milliseconds that each rank waited in each step"
    return text, Drawing("waiting", partial(waiting_figures.field, view), alt)


def of_memory(view: RunView, rank: int) -> tuple[str, tuple[Drawing, ...]]:
    """What there is to say, "" where the figures say it all; peaks of the ranks and of one rank's steps, or a field of
    both where there are many ranks."""
    memory = view.memory
    if memory is None and view.result.from_summaries:
        return "The ranks' summaries do not tell the steps' memory.", ()
    if memory is None:
        return "Not recorded: traces alone do not hold it, `diag run` records it.", ()
    text = "" if memory.on_device else "Resident memory of the training processes: the run is on a CPU."
    if len(view.ranks) > MOST_RANK_BARS:
        field = partial(memory_figures.field, view, memory)
        return text, (Drawing("memory-field", field, "Peak memory of each rank in each step"),)
    return text, (
        Drawing("memory-peaks", partial(memory_figures.peaks, view, memory), "Peak memory of each rank"),
        Drawing(
            "memory-steps",
            lambda theme: memory_figures.history(view, memory, rank, theme),
            f"Peak memory of rank {rank} by step",
        ),
    )
