"""An analysed run laid out for drawing: its page in words and arrays of ranks by steps for the figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diag.api import Result, describe_run
from diag.app.policy import DASHBOARD
from diag.diagnoses.compare import PART_NAMES, StepPart
from diag.diagnoses.ids import SLOW_LINK
from diag.diagnoses.shares import step_parts
from diag.model import UNKNOWN
from diag.model.steps import Bottleneck, Kind
from diag.show.page import Page, page_of
from diag.show.parts import Part as Part
from diag.show.parts import split
from diag.words.wording import steps_counted

# -- parts -------------------------------------------------------------------------------------------------------------
#
# The parts of a step, with the names and the order of the pages.


_OF_KIND: Mapping[Kind, Part] = {
    Kind.COMPUTE: Part.COMPUTE,
    Kind.COMM: Part.TRANSFER,
    Kind.COPY: Part.COPY,
    Kind.DATA: Part.DATA,
    Kind.CHECKPOINT: Part.CHECKPOINT,
    Kind.IDLE: Part.IDLE,
}


def _drawn_as(part: StepPart) -> Part:
    if isinstance(part, Kind):
        return _OF_KIND[part]
    if part.value.bottleneck == Bottleneck.HOST:
        return Part.HOST
    # Turns on a shared GPU take no pieces of their own: most of them is in collectives.
    return next((_OF_KIND[label.kind] for label in part.value.path if label.kind is not None), Part.COMMUNICATION)


# The parts of the critical path; its communication is transfer, and what the host lost is the host's.
PART_OF: Mapping[StepPart, Part] = {part: _drawn_as(part) for part in PART_NAMES}


Grid = npt.NDArray[np.float64]  # ranks by steps; NaN where a rank has no such step


@dataclass(frozen=True)
class Memory:
    """Peaks of each step in bytes: the allocator's on a device, the process's on a CPU. ``steps``: their numbers; where
    the account holds profiled steps only, of all recorded ones. ``windows``: whether each is in a profiler window and
    therefore not counted."""

    steps: tuple[int, ...]
    windows: npt.NDArray[np.bool_]
    on_device: bool
    allocated: Grid  # on a CPU: the resident set
    reserved: Grid  # NaN on a CPU
    capacity: float | None

    @property
    def peaks(self) -> Grid:
        """The peaks that count against the capacity."""
        return self.reserved if self.on_device else self.allocated


@dataclass(frozen=True)
class RunView:
    """``counted[i]``: whether the verdict rests on step i; if it would rest on none, all are counted. ``windows[i]``:
    whether step i is left out because a profiler recorded it."""

    result: Result
    page: Page
    run: dict[str, Any]
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    counted: npt.NDArray[np.bool_]
    windows: npt.NDArray[np.bool_]
    notes: tuple[str, ...]
    bottlenecks: tuple[Bottleneck, ...]
    dur_ns: Grid
    parts: dict[Part, Grid]  # without those that are zero everywhere
    waiting_known: bool
    memory: Memory | None

    @property
    def steps_counted(self) -> str:
        """How many of all steps the verdict rests on, in words."""
        return steps_counted(self.result.attribution, self.result.tables.retained)

    @property
    def noun(self) -> str:
        """The unit that the run is divided into."""
        return "window" if self.result.attribution.undivided else "step"

    @property
    def step_names(self) -> dict[str, str]:
        """Step numbers as texts, with the reason if a step does not count."""
        return {
            str(step): f"{step}" if counts or not note else f"{step}, not counted: {note}"
            for step, note, counts in zip(self.steps, self.notes, self.counted, strict=True)
        }

    @property
    def left_out(self) -> int:
        return int((~self.counted).sum())

    @property
    def culprits(self) -> tuple[int, ...]:
        return self.result.verdict.culprit_ranks

    @property
    def at_fault(self) -> tuple[int, ...]:
        return at_fault(self.result)

    @property
    def slow_links(self) -> tuple[int, ...]:
        """Ranks that get their results later than the others, by the findings. They arrive late at the next collective
        because of that: waiting for them is their link's, not their work's."""
        of_link = (f for f in self.result.examination.findings if f.id == SLOW_LINK)
        return tuple(dict.fromkeys(rank for finding in of_link for rank in finding.ranks))

    def per_rank(self, grid: Grid, step: int | None = None) -> Grid:
        """One value a rank: the mean over the counted steps, or the value of one step (its index)."""
        if step is not None:
            return grid[:, step]
        chosen = grid[:, self.counted]
        known = ~np.isnan(chosen)
        mean: Grid = np.where(known, chosen, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        return mean


def view_of(result: Result) -> RunView:
    """The layout of one run."""
    accounts = result.attribution.steps
    every, column = accounts.parts, accounts.of_part
    ranks, steps = result.attribution.ranks, tuple(accounts.step.tolist())
    if result.from_summaries:  # summaries hold the steps of a few ranks only
        ranks = tuple(np.unique(every.rank).tolist())
    row = np.searchsorted(ranks, every.rank)
    empty = np.full((len(ranks), len(steps)), np.nan)
    parts = {part: empty.copy() for part in Part}
    dur_ns = empty.copy()
    dur_ns[row, column] = every.dur_ns
    for part, ns in split(every).items():
        parts[part][row, column] = ns
    usable = accounts.usable
    counted = usable if usable.any() else np.ones(len(steps), dtype=np.bool_)
    return RunView(
        result=result,
        page=page_of(result, DASHBOARD.most_table_ranks),
        run=describe_run(result),
        ranks=ranks,
        steps=steps,
        counted=counted,
        windows=accounts.window,
        notes=accounts.note,
        bottlenecks=tuple(result.bottlenecks[step] for step in steps),
        dur_ns=dur_ns,
        parts={part: grid for part, grid in parts.items() if np.nansum(grid)},
        waiting_known=bool((every.exposed_wait_ns != UNKNOWN).any()),
        memory=_memory(result, ranks, steps, accounts.window, bool(every.from_source("trace").all())),
    )


def _memory(
    result: Result, ranks: tuple[int, ...], steps: tuple[int, ...], windows: npt.NDArray[np.bool_], traced: bool
) -> Memory | None:
    if traced:  # the steps around the profiler's have records of memory all the same
        recorded = {record.step for rank in ranks for record in result.tables.ranks[rank].steps if record.memory}
        left_out = {step for step, window in zip(steps, windows.tolist(), strict=True) if window}
        steps = tuple(sorted(recorded.union(steps)))
        windows = np.array([step in left_out for step in steps], dtype=np.bool_)
    column = {step: i for i, step in enumerate(steps)}
    rss, allocated, reserved = (np.full((len(ranks), len(steps)), np.nan) for _ in range(3))
    capacities = []
    for i, rank in enumerate(ranks):
        for record in result.tables.ranks[rank].steps:
            memory, j = record.memory, column.get(record.step)
            if memory is None or j is None:
                continue
            rss[i, j] = memory.rss
            if memory.allocated is not None:
                allocated[i, j] = memory.allocated
                reserved[i, j] = memory.reserved if memory.reserved is not None else memory.allocated
            if memory.capacity:
                capacities.append(memory.capacity)
    if not np.isnan(allocated).all():
        return Memory(steps, windows, True, allocated, reserved, float(min(capacities)) if capacities else None)
    if not np.isnan(rss).all():
        return Memory(steps, windows, False, rss, np.full_like(rss, np.nan), None)
    return None


def path_of(result: Result) -> dict[Part, float]:
    """Nanoseconds of the mean step by part of its critical path; nothing where no step was recorded."""
    shares = result.examination.shares
    parts_ns: dict[Part, float] = {}
    for part, series in step_parts(shares).items() if len(shares.dur_ns) else ():
        parts_ns[PART_OF[part]] = parts_ns.get(PART_OF[part], 0.0) + float(series.mean())
    return {part: ns for part, ns in parts_ns.items() if ns > 0}


def name_of_host(result: Result) -> str:
    """What the part of the critical path that is the host's was: on a CPU no device waits for it."""
    if result.on_device:
        return Part.HOST.value
    ns = {part: float(series.sum()) for part, series in step_parts(result.examination.shares).items()}
    least = DASHBOARD.least_legend_share * sum(ns.values())
    return " and ".join(PART_NAMES[part] for part in ns if PART_OF[part] is Part.HOST and ns[part] > least)


def at_fault(result: Result) -> tuple[int, ...]:
    """The verdict's culprits, those of the second cause of a mixed run, and those of further critical findings."""
    others = (rank for finding in (*result.causes[1:], *result.further) for rank in finding.ranks)
    return tuple(dict.fromkeys((*result.verdict.culprit_ranks, *others)))
