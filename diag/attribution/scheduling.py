"""What the CPU scheduler did to the ranks, per step: waiting for a core, and being blocked for no known reason.

A rank's time outside of known waits (its loader, collectives, checkpoints) divides into three: on a core, queued for
one, blocked. The last is off-CPU time: sleep, I/O, a lock, a process that is stopped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from diag.attribution import intervals as iv
from diag.attribution import records
from diag.collectors.records import CHECKPOINT, DATA, EVALUATION, REST, HostRecord, StepRecord
from diag.ingest.run import RankTables, Tables

Series = npt.NDArray[np.float64]  # one value a step

# A thread shares the training's work if it runs for a quarter of the time that the training's own thread runs.
_SHARES_WORK = 0.25
_APART = 2.5  # times as much as any other rank
_LOCAL = frozenset({DATA, CHECKPOINT, EVALUATION})  # phases whose blocked time has a known reason


class RankScheduling(Struct, frozen=True):
    """One rank, per step that counts, nanoseconds. ``queued_ns``: outside of its loader's and of collectives, of the
    thread among those that compute that was queued longest; ``loading_ns``: the part of waiting for data in which the
    loader, or its worker processes, were queued; ``communicating_ns``: the part of waiting for collectives in which the
    threads that carry them were. ``blocked_ns``: outside of all known waits; ``blocked_in``: the same by phase, the
    mean. ``data_ns``: waiting for data."""

    queued_ns: Series
    loading_ns: Series
    communicating_ns: Series
    blocked_ns: Series
    data_ns: Series
    blocked_in: Mapping[str, float]
    runnable: float | None = None  # threads of the host, the median of the samples
    knows_blocked: bool = True  # False: CPU time was not recorded, so that blocked time is not told from computing


class Scheduling(Struct, frozen=True):
    """By rank; those whose system does not say are left out. ``numbers``: the steps."""

    numbers: tuple[int, ...] = ()
    ranks: Mapping[int, RankScheduling] = field(default_factory=dict)

    def knows_blocked(self, ranks: Sequence[int]) -> bool:
        """Whether the blocked time of all these ranks is known."""
        return all(rank in self.ranks and self.ranks[rank].knows_blocked for rank in ranks)

    def apart(self, ranks: Sequence[int], *names: str) -> bool:
        """Whether these ranks have so much more of these fields, together, than each of the others that it is theirs:
        on a busy host all ranks are queued, some of them always more than others."""
        spent = {rank: sum(float(getattr(own, name).mean()) for name in names) for rank, own in self.ranks.items()}
        others = [ns for rank, ns in spent.items() if rank not in ranks]
        return bool(ranks and others) and min(spent.get(r, 0.0) for r in ranks) >= _APART * max(others)

    def mean_ms(self, name: str) -> dict[int, float]:
        """The mean over the steps of a rank's field, milliseconds."""
        return {rank: float(getattr(own, name).mean()) / 1e6 for rank, own in self.ranks.items()}

    def common(self, name: str, ranks: Sequence[int]) -> Series | None:
        """What the ranks have in common of a field, per step: the lower median. None unless all of them are known."""
        if not ranks or not set(ranks) <= set(self.ranks):
            return None
        each = np.sort([getattr(self.ranks[rank], name) for rank in ranks], axis=0)
        found: Series = each[(len(ranks) - 1) // 2]
        return found

    def columns(self, least_ms: float) -> dict[str, dict[int, float]]:
        """Mean milliseconds a step by column and rank, for a table: what costs a rank that much or more."""
        found = {"queued for a core": self.mean_ms("queued_ns"), "blocked": self.mean_ms("blocked_ns")}
        return {name: means for name, means in found.items() if max(means.values(), default=0.0) >= least_ms}

    def excess(self, name: str, rank: int) -> Series:
        """How much more of a field a rank has than the median of the others, per step."""
        own: Series = getattr(self.ranks[rank], name)
        others = [getattr(other, name) for number, other in self.ranks.items() if number != rank]
        found: Series = np.maximum(0.0, own - np.median(others, axis=0)) if others else np.zeros_like(own)
        return found


def scheduling_of(tables: Tables, numbers: Sequence[int]) -> Scheduling:
    """Of the steps with these numbers."""
    found = {rank: own for rank, each in tables.ranks.items() if (own := _of_rank(each, numbers)) is not None}
    return Scheduling(tuple(numbers), found)


def _of_rank(tables: RankTables, numbers: Sequence[int]) -> RankScheduling | None:
    by_number = {step.step: step for step in tables.steps}
    steps = [by_number.get(number) for number in numbers]
    known = [step for step in steps if step is not None and step.queued_ns is not None]
    if not known or 2 * len(known) < len(numbers):
        return None
    queued, loading, talking, blocked, data = (np.zeros(len(numbers)) for _ in range(5))
    blocked_in: dict[str, float] = defaultdict(float)
    waits = iv.Covered(records.blocked(tables.rows))
    slowest, workers, carried = _sampled(tables.scheduling, known)
    for at, step in enumerate(steps):
        if step is None or step.queued_ns is None:
            continue
        if step.on_cpu_ns is None:  # recorded before 24 November 2026: the sum over the phases is all there is
            queued[at] = step.queued_ns
            continue
        wall = step.end_ns - step.begin_ns
        waited_ns, data_ns = 0.0, 0.0
        for phase, dur_ns, on_cpu_ns, queued_ns, wait_ns in _phases(step, waits):
            off_cpu = dur_ns - on_cpu_ns - queued_ns
            # Queued while a collective is waited for: it was done, and the thread was to wake up.
            waking = min(float(queued_ns), max(0.0, float(wait_ns - off_cpu)))
            talking[at] += waking
            waited_ns += wait_ns
            if phase == DATA:
                loading[at] += queued_ns - waking
                data_ns = float(dur_ns)
                continue
            queued[at] += queued_ns - waking
            if phase not in _LOCAL:
                stalled = max(0.0, float(off_cpu - wait_ns))
                blocked[at] += stalled
                blocked_in[phase] += stalled / len(known)
        time = step.end_ns
        local = max(0.0, wall - waited_ns - data_ns)
        slow = slowest.at(time)
        # What the training's thread stands still for while another thread of its team is queued is no stall.
        blocked[at] = max(0.0, blocked[at] - slow * wall)
        queued[at] = max(queued[at], min(slow * wall, local))
        loading[at] = max(loading[at], workers.at(time) * data_ns)
        talking[at] = max(talking[at], min(carried.at(time) * wall, waited_ns))
        data[at] = data_ns
    samples = [sample.runnable for sample in tables.scheduling if sample.runnable is not None]
    return RankScheduling(
        queued,
        loading,
        talking,
        blocked,
        data,
        dict(blocked_in),
        float(np.median(samples)) if samples else None,
        any(step.on_cpu_ns is not None for step in known),
    )


def _phases(step: StepRecord, waits: iv.Covered) -> list[tuple[str, int, int, int, int]]:
    """(phase, duration, on a core, queued, waiting for collectives) of each phase of a step, and of what lies between
    them."""
    names = [row.phase for row in step.phases]
    begin = np.array([step.begin_ns, *(row.start_ns for row in step.phases)], dtype=np.int64)
    end = np.array([step.end_ns, *(row.end_ns for row in step.phases)], dtype=np.int64)
    waited = waits.between(begin, end)
    found = []
    rest = np.array([step.end_ns - step.begin_ns, step.on_cpu_ns or 0, step.queued_ns or 0, int(waited[0])])
    for name in dict.fromkeys(names):
        at = [place + 1 for place, other in enumerate(names) if other == name]
        on_cpu_ns, queued_ns = step.cpu.get(name, (0, 0))
        spent = (int((end[at] - begin[at]).sum()), on_cpu_ns, queued_ns, int(waited[at].sum()))
        if name not in step.cpu:  # it was not read: nothing is known of it
            spent = (spent[0], spent[0], 0, 0)
        found.append((name, *spent))
        rest = rest - spent
    dur, on_cpu, queued, wait = np.maximum(0, rest).tolist()
    return [*found, (REST, dur, on_cpu, queued, wait)]


class _Sampled:
    """A fraction of the time, from samples: constant in the interval that each covers."""

    def __init__(self, ends_ns: Sequence[int], values: Sequence[float]) -> None:
        self._ends = np.array(ends_ns, dtype=np.int64)
        self._values = values

    def at(self, time_ns: int) -> float:
        if not len(self._ends):
            return 0.0
        place = int(np.searchsorted(self._ends, time_ns, side="left"))
        return self._values[min(place, len(self._ends) - 1)]


def _sampled(samples: Sequence[HostRecord], steps: Sequence[StepRecord]) -> tuple[_Sampled, _Sampled, _Sampled]:
    """Fractions of the time: in which the thread that shares the training's work and was queued longest was queued; the
    worker processes were, the mean of them; and the process's other threads were, instead of running."""
    samples = [sample for sample in samples if sample.interval_ns > 0]
    wall = sum(step.end_ns - step.begin_ns for step in steps)
    trains = sum(step.on_cpu_ns or 0 for step in steps) / wall if wall else 0.0
    slowest, workers, carried = [], [], []
    for sample in samples:
        interval = sample.interval_ns
        queued = min(1.0, sample.slowest_queued_ns / interval)
        shares_work = sample.slowest_on_cpu_ns >= _SHARES_WORK * trains * interval
        slowest.append(queued if shares_work else 0.0)
        workers.append(min(1.0, sample.workers_queued_ns / (interval * sample.workers)) if sample.workers else 0.0)
        ready = sample.threads_on_cpu_ns + sample.threads_queued_ns
        carried.append(0.0 if shares_work or not ready else queued * sample.threads_queued_ns / ready)
    ends = [sample.monotonic_ns for sample in samples]
    return _Sampled(ends, slowest), _Sampled(ends, workers), _Sampled(ends, carried)
