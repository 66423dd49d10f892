"""The steps of one rank over the whole run, at each resolution at which they are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from diag.collectors.layout import RankLayout
from diag.collectors.records import DEVICE, EVALUATION, STEP, WINDOW_NONE, RankRecord

from .columns import Bools, Floats, Ints, Places, Steps
from .curves import StepsSum
from .lines import read_lines
from .summaries import NS_PER_US, SummaryColumns, SummaryRecord, columns_of, is_of


class Series(Struct, frozen=True, eq=False):
    """A row is a step, or several of them that were summed up: ``steps`` from ``first`` to ``last``. Times are
    nanoseconds, moments on the rank's own clock. ``step_ns`` and the columns of ``parts``, which are those of a summary
    (``diag.collectors.records.SummaryLine``), are means a step; NaN where they were not recorded. ``evaluating``: an
    evaluation ran in it; ``profiled``: in a profiler window, or next to one; as far as it is known."""

    first: Ints
    last: Ints
    steps: Ints
    begin_ns: Ints
    end_ns: Ints
    step_ns: Floats
    longest_ns: Floats
    parts: Mapping[str, Floats]
    evaluating: Bools
    profiled: Bools

    def __len__(self) -> int:
        return len(self.first)

    def take(self, places: Places) -> Series:
        columns: dict[str, Any] = {name: getattr(self, name)[places] for name in _COLUMNS}
        return Series(**columns, parts={name: column[places] for name, column in self.parts.items()})


_COLUMNS = tuple(name for name in Series.__struct_fields__ if name != "parts")


def joined(several: Sequence[Series]) -> Series:
    """The rows of all, one after the other."""
    if not several:
        return of_sums(())
    names = dict.fromkeys(name for each in several for name in each.parts)

    def part(each: Series, name: str) -> Floats:
        """A column of only zeros is left out; where there is none at all, nothing is known."""
        return each.parts.get(name, np.full(len(each), 0.0 if each.parts else np.nan))

    parts = {name: np.concatenate([part(each, name) for each in several]) for name in names}
    columns: dict[str, Any] = {name: np.concatenate([getattr(each, name) for each in several]) for name in _COLUMNS}
    return Series(**columns, parts=parts)


def each_step(files: RankLayout, identity: RankRecord | None, steps: Steps) -> Series:
    """Every step that is known by itself: from the summaries, and the steps after them from their records ``steps``."""
    records, _ = read_lines(files.summary, SummaryRecord, files.run)
    lines = [line for record in records if identity is None or is_of(record, identity) if (line := columns_of(record))]
    of_lines = [_of_summary(line) for line in lines]
    summed = joined(of_lines)
    if len(summed) and (np.diff(summed.first) <= 0).any():
        summed = summed.take(np.sort(np.unique(summed.first, return_index=True)[1]))
    known = set(summed.first.tolist())
    missing = np.array([step not in known for step in steps.step.tolist()], dtype=np.bool_)
    if not missing.any():
        return summed
    both = joined([summed, _of_records(steps.take(missing))])
    return both.take(np.argsort(both.first, kind="stable"))


class Longest(Struct, frozen=True):
    """The longest step of a sum, with the time before it and without evaluations: ``begin_ns``: the end of the step
    before it; ``gap_ns``: from there to its own begin; ``checkpoint_ns``, ``waited_ns``: of the step, in checkpoints
    and in collectives."""

    step: int
    begin_ns: int
    gap_ns: int
    end_ns: int
    checkpoint_ns: int
    waited_ns: int

    @property
    def own_ns(self) -> int:
        """Without its checkpoint."""
        return self.end_ns - self.begin_ns - self.checkpoint_ns


def longest_of(files: RankLayout) -> dict[int, Longest]:
    """By number, of the sums over each number of steps; of one that is in several, the same."""
    found: dict[int, Longest] = {}
    for stream in files.sums.values():
        for line in read_lines(stream, StepsSum, files.run)[0]:
            if len(line.longest) != len(Longest.__struct_fields__):
                continue
            step, before_ns, begin_ns, end_ns, checkpoint_ns, waited_ns = line.longest
            one = Longest(step, before_ns, begin_ns - before_ns, end_ns, checkpoint_ns, waited_ns)
            if line.first <= step <= line.last and one.gap_ns >= 0 and one.own_ns > 0 and begin_ns <= end_ns:
                found[step] = one
    return found


def sums_over(files: RankLayout, size: int) -> Series:
    """The sums over this many steps."""
    return of_sums(read_lines(files.sums[size], StepsSum, files.run)[0])


def of_sums(lines: Sequence[StepsSum]) -> Series:
    """The sums as rows."""
    # Numbers in a sum have few gaps; more are damage, and would be a run of any length.
    lines = [line for line in lines if line.count <= line.last - line.first + 1 <= 2 * line.count]
    names = dict.fromkeys(name for line in lines for name in line.columns if name != STEP)
    counts = np.array([line.count for line in lines], dtype=np.int64)

    def whole(field: str) -> Ints:
        return np.array([getattr(line, field) for line in lines], dtype=np.int64)

    def mean_ns(name: str) -> Floats:
        sums: Floats = np.array([line.columns.get(name, 0) for line in lines], dtype=np.float64)
        return NS_PER_US * sums / counts

    return Series(
        whole("first"), whole("last"), counts, whole("begin_ns"), whole("end_ns"), mean_ns(STEP),
        NS_PER_US * whole("longest_us").astype(np.float64), {name: mean_ns(name) for name in names},
        np.zeros(len(lines), dtype=np.bool_), np.zeros(len(lines), dtype=np.bool_),
    )  # fmt: skip


def _of_summary(line: SummaryColumns) -> Series:
    numbers = line.record.first + np.arange(line.record.count, dtype=np.int64)
    begin_ns = line.begin_us * NS_PER_US
    columns = {name: NS_PER_US * line.cells[at].astype(np.float64) for at, name in enumerate(line.names)}
    step_ns = columns.pop(STEP, np.zeros(len(numbers)))
    marked = line.record.marked
    evaluating = np.isin(numbers, marked.get(EVALUATION, []))
    profiled = np.isin(numbers, [step for name, steps in marked.items() if name != EVALUATION for step in steps])
    end_ns, ones = begin_ns + step_ns.astype(np.int64), np.ones_like(numbers)
    return Series(numbers, numbers, ones, begin_ns, end_ns, step_ns, step_ns, columns, evaluating, profiled)


def _of_records(steps: Steps) -> Series:
    dur_ns = (steps.end_ns - steps.begin_ns).astype(np.float64)
    ones = np.ones(len(steps), dtype=np.int64)
    evaluating, profiled = steps.with_phase(EVALUATION), ~steps.in_window(WINDOW_NONE)
    return Series(steps.step, steps.step, ones, steps.begin_ns, steps.end_ns, dur_ns, dur_ns, {}, evaluating, profiled)


def on_its_clock(series: Series, on_device: bool) -> Mapping[str, Floats]:
    """The parts on the device's clock where they are known there, else the host's."""
    if on_device and DEVICE + STEP in series.parts:
        return {name.removeprefix(DEVICE): column for name, column in series.parts.items() if name.startswith(DEVICE)}
    return {name: column for name, column in series.parts.items() if not name.startswith(DEVICE)}
