"""The duration and loss of each step of a training, read while the run writes them, without an analysis."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.collectors.layout import MOST_NS, RankLayout, RunLayout
from diag.collectors.records import STEP, TOKENS
from diag.errors import DiagError
from diag.rundir.policy import RUN_READING, SILENCE

from .job_ranks import job_ranks
from .lines import read_lines
from .tail import RestartedError, Tail

_Whole = Annotated[int, msgspec.Meta(ge=0, lt=MOST_NS)]
Series = npt.NDArray[np.float64]


class _Memory(Struct):
    rss: _Whole = 0
    reserved: _Whole | None = None
    allocated: _Whole | None = None


class _Step(Struct):
    """The fields of a step record that the curves need."""

    step: _Whole
    begin_ns: _Whole
    end_ns: _Whole
    tokens: _Whole = 0
    loss: float | None = None
    memory: _Memory | None = None


class StepsSum(Struct):
    """A line of sums, without what is damaged."""

    first: _Whole
    last: _Whole
    count: Annotated[int, msgspec.Meta(gt=0, lt=MOST_NS)]
    begin_ns: _Whole
    end_ns: _Whole
    columns: dict[str, _Whole]
    longest_us: _Whole = 0
    loss: float = 0.0
    losses: _Whole = 0
    memory: _Whole = 0
    longest: Annotated[list[_Whole], msgspec.Meta(max_length=6)] = []


class Curves(Struct, frozen=True, eq=False):
    """A value for each step of one rank, in order. Older steps of a long run are known as means over several: these
    have one value, at the last of them. ``period_ns``: from the end of the previous step to the end of this
    one, so that the time between two steps counts; ``tokens``: of this rank; ``memory``: the peak in bytes, reserved on
    a device, else the process's. NaN if a value is not recorded. ``rank``: None for steps of all ranks together."""

    rank: int | None
    steps: npt.NDArray[np.int64]
    dur_ns: Series
    period_ns: Series
    tokens: Series
    loss: Series
    memory: Series

    def __len__(self) -> int:
        return len(self.steps)


class Progress(Struct, frozen=True):
    """The progress of a training. ``planned`` and ``left_ns``: None if the number of planned steps is unknown;
    ``steps_per_s`` and ``tokens_per_s``: over the last steps, None if unknown; tokens are the rank's."""

    done: int
    planned: int | None
    left_ns: float | None
    steps_per_s: float | None
    tokens_per_s: float | None


def progress_of(curves: Curves, planned: int | None) -> Progress:
    """From the recorded steps. The first steps take longer, and count only if there are no others. One that stalled
    would make hours of the minutes that are left, as long as it is among the last steps."""
    done = int(curves.steps[-1]) + 1 if len(curves) else 0
    first = max(len(curves) - RUN_READING.steps_for_remaining_time, min(RUN_READING.starting_steps, len(curves) - 2), 0)
    periods = curves.period_ns[first:]
    periods = periods[periods < SILENCE.stall_ns(float(np.median(periods)))] if len(periods) else periods
    period_ns = float(periods.mean()) if len(curves) > 1 and len(periods) else 0.0
    tokens = curves.tokens[first:]
    known = len(curves) > 1 and not np.isnan(tokens).any()
    return Progress(
        done=done,
        planned=planned,
        left_ns=max(planned - done, 0) * period_ns if planned is not None and period_ns else None,
        steps_per_s=1e9 / period_ns if period_ns else None,
        tokens_per_s=float(tokens.mean()) * 1e9 / period_ns if known and period_ns else None,
    )


def curves_of(run: Path) -> Curves | None:
    """Curves of the first rank of a run directory, as far as it has written; None without any step. Only data written
    since the last call is read."""
    with _LOCK:
        reader = _READERS.pop(run, None) or _Reader(run)
        _READERS[run] = reader
        if len(_READERS) > RUN_READING.most_curve_readers:
            _READERS.popitem(last=False)
        return reader.read()


class _Reader:
    """The steps of one run that have been read so far."""

    def __init__(self, run: Path) -> None:
        self._run = RunLayout(run)
        self._rank: int | None = None
        self._begin_anew(None)

    def _begin_anew(self, files: RankLayout | None) -> None:
        self._tail = Tail(files.steps, _Step, RUN_READING.most_curve_bytes) if files is not None else None
        self._steps = array("q")
        self._end_ns = array("q")
        self._period_ns = array("d")  # of the first values, which are means over several steps
        self._series = {name: array("d") for name in ("dur_ns", "tokens", "loss", "memory")}
        self._files = files

    def read(self) -> Curves | None:
        with suppress(OSError, DiagError):  # opening the run reports it
            rank, files = next(iter(job_ranks(self._run).files.items()), (None, None))
            if self._tail is None or rank != self._rank:
                self._rank = rank
                self._begin_anew(files)
        if self._tail is None:
            return None
        try:
            new = self._tail.read()
        except RestartedError:  # another file under the same name
            self._begin_anew(self._run.rank(self._rank or 0))
            new = self._tail.read()
        if new and not self._steps and self._files is not None:
            for line in sums_before(self._files, new[0].step):
                self._add_sum(line)
        for step in new:
            if step.end_ns > step.begin_ns and not (self._steps and step.step <= self._steps[-1]):
                self._add(step)
        return self._curves() if self._steps else None

    def _add(self, step: _Step) -> None:
        self._steps.append(step.step)
        self._end_ns.append(step.end_ns)
        self._series["dur_ns"].append(step.end_ns - step.begin_ns)
        self._series["tokens"].append(step.tokens or np.nan)
        self._series["loss"].append(step.loss if step.loss is not None else np.nan)
        memory = step.memory
        used = (memory.reserved or memory.allocated or memory.rss) if memory is not None else 0
        self._series["memory"].append(used or np.nan)

    def _add_sum(self, line: StepsSum) -> None:
        self._steps.append(line.last)
        self._end_ns.append(line.end_ns)
        self._period_ns.append(max(0, line.end_ns - line.begin_ns) / line.count)
        self._series["dur_ns"].append(line.columns.get(STEP, 0) * 1_000 / line.count)
        self._series["tokens"].append(line.columns.get(TOKENS, 0) / line.count or np.nan)
        self._series["loss"].append(line.loss / line.losses if line.losses else np.nan)
        self._series["memory"].append(line.memory or np.nan)

    def _curves(self) -> Curves:
        series = {name: np.array(values) for name, values in self._series.items()}
        # The first step's period is its own duration; no clock runs backwards within a process.
        period_ns = np.diff(np.array(self._end_ns, dtype=np.float64), prepend=np.nan)
        period_ns = np.where(period_ns > 0, period_ns, series["dur_ns"])
        period_ns[: len(self._period_ns)] = self._period_ns
        return Curves(self._rank, np.array(self._steps), period_ns=period_ns, **series)


def sums_before(files: RankLayout, step: int) -> list[StepsSum]:
    """The sums of the steps before this one, in order and without overlap, each part of the run by the finest that
    there are. The last one may go on behind the step."""
    found: list[StepsSum] = []
    for stream in reversed(files.sums.values()):  # the coarsest first
        finer, _ = read_lines(stream, StepsSum, files.run)
        if finer:
            found = [_before(line, finer) for line in found if line.first < finer[0].first]
            reached = found[-1].last if found else -1
            found += [line for line in finer if line.first > reached]
    return [line for line in found if line.first < step]


def _before(line: StepsSum, finer: list[StepsSum]) -> StepsSum:
    """The part of a sum that is before the finer ones; all of it, if they are not parts of it."""
    inside = [part for part in finer if line.first <= part.first and part.last <= line.last]
    count = line.count - sum(part.count for part in inside)
    if not inside or inside[0] is not finer[0] or count <= 0:
        return line
    columns = {name: value - sum(part.columns.get(name, 0) for part in inside) for name, value in line.columns.items()}
    return replace(
        line,
        last=inside[0].first - 1,
        count=count,
        end_ns=inside[0].begin_ns,
        columns={name: max(0, value) for name, value in columns.items()},
        loss=line.loss - sum(part.loss for part in inside),
        losses=max(0, line.losses - sum(part.losses for part in inside)),
    )


_LOCK = Lock()
_READERS: OrderedDict[Path, _Reader] = OrderedDict()
