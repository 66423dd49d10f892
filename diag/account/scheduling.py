"""CPU scheduling of the ranks, per step: waiting for a core, and being blocked for no known reason.

A rank's time outside of known waits (its loader, collectives, checkpoints) divides into three: on a core, queued for
one, blocked. The last is off-CPU time: sleep, I/O, a lock, a stopped process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from diag.account.policy import SCHEDULING
from diag.collectors.records import (
    BACKWARD,
    CHECKPOINT,
    DATA,
    EVALUATION,
    FORWARD,
    OPTIMIZER,
    PHASES,
    REST,
    CollectiveRow,
    HostRecord,
    StepRecord,
)
from diag.model import UNKNOWN
from diag.rundir.columns import Rows, Steps

from . import intervals as iv
from . import records
from .intervals import Times

if TYPE_CHECKING:
    from diag.rundir.tables import RankTables, Tables


Series = npt.NDArray[np.float64]  # one value per step

_COLUMNS = (*PHASES, EVALUATION, REST)
_DATA, _REST = _COLUMNS.index(DATA), _COLUMNS.index(REST)
_FORWARD, _BACKWARD = _COLUMNS.index(FORWARD), _COLUMNS.index(BACKWARD)
_COMPUTING = tuple(_COLUMNS.index(name) for name in (FORWARD, BACKWARD, OPTIMIZER))
_EXPLAINED = (DATA, CHECKPOINT, EVALUATION)  # phases whose blocked time has a known reason


class RankScheduling(Struct, frozen=True):
    """One rank, nanoseconds per counted step. ``queued_ns``: outside of loading and collectives, of the computing
    thread that was queued longest; ``loading_ns``: the part of data wait in which the loader, or its worker processes,
    were queued; ``communicating_ns``: the part of waiting for collectives in which the threads that carry them were
    queued. ``between_ns``: on a core between the phases, in steps that have forward and backward.
    ``blocked_ns``: outside of all known waits; ``blocked_in``: its mean by phase. ``paused_ns``: the part of
    data wait in which the whole process was stopped, as observed, or inferred because it was blocked in forward and
    backward alike. ``frozen_ns``: the part of waiting for collectives in which the process was observed to be
    stopped. ``outside_backward_ns``: the part of ``blocked_ns`` outside of the backward, in which the training's thread
    sleeps while autograd's waits for a device. ``after_ns``: for fields that make a rank late, the part that lies after
    its last collective of the step; ``meets``: whether there is a collective in the step."""

    queued_ns: Series
    loading_ns: Series
    communicating_ns: Series
    between_ns: Series
    blocked_ns: Series
    paused_ns: Series
    frozen_ns: Series
    outside_backward_ns: Series
    blocked_in: Mapping[str, float]
    after_ns: Mapping[str, Series]
    meets: npt.NDArray[np.bool_]
    runnable: float | None = None  # threads of the host, the median of the samples
    starved: bool = False  # its loader's workers sleep or read all the time: more cores would not make the step shorter
    # The part of its time in which the loader, or its mean worker, ran or was queued for a core; None: not recorded.
    loader_active: float | None = None
    knows_blocked: bool = True  # False: CPU time was not recorded, so blocked time counts as compute


class Scheduling(Struct, frozen=True):
    """By rank, without ranks whose system does not report it. ``numbers``: the steps."""

    numbers: tuple[int, ...] = ()
    ranks: Mapping[int, RankScheduling] = field(default_factory=dict)

    @property
    def loading_needs_cores(self) -> bool:
        """Whether loaders mostly compute, so that more of them need more cores, or whether that is not known: a
        dataset that sleeps or reads needs none."""
        known = [rank.loader_active for rank in self.ranks.values() if rank.loader_active is not None]
        return not known or max(known) >= SCHEDULING.computing_loader_share

    def knows_blocked(self, ranks: Sequence[int]) -> bool:
        return all(rank in self.ranks and self.ranks[rank].knows_blocked for rank in ranks)

    def apart(self, ranks: Sequence[int], *names: str) -> bool:
        """Whether these ranks have so much more of these fields, together, than each of the others that they are the
        culprits: on a busy host all ranks are queued, and some always more than others."""
        spent = {
            rank: sum(float(getattr(of_rank, name).mean()) for name in names) for rank, of_rank in self.ranks.items()
        }
        others = [ns for rank, ns in spent.items() if rank not in ranks]
        return bool(ranks and others) and min(
            spent.get(r, 0.0) for r in ranks
        ) >= SCHEDULING.more_than_other_ranks * max(others)

    def mean_ms(self, name: str) -> dict[int, float]:
        """The mean over the steps of a rank's field, milliseconds."""
        return {rank: float(getattr(of_rank, name).mean()) / 1e6 for rank, of_rank in self.ranks.items()}

    def common(self, name: str, ranks: Sequence[int]) -> Series | None:
        """A field's common part, per step: the lower median over the ranks. None unless all of them are known."""
        if not ranks or not set(ranks) <= set(self.ranks):
            return None
        each = np.sort([getattr(self.ranks[rank], name) for rank in ranks], axis=0)
        median: Series = each[(len(ranks) - 1) // 2]
        return median

    def columns(self, least_ms: float) -> dict[str, dict[int, float]]:
        """Mean milliseconds per step by column and rank, for a table: columns that cost some rank that much or more."""
        by_name = {
            "between phases": self.mean_ms("between_ns"),
            "queued for a core": self.mean_ms("queued_ns"),
            "blocked": self.mean_ms("blocked_ns"),
        }
        return {name: means for name, means in by_name.items() if max(means.values(), default=0.0) >= least_ms}

    def excess(self, name: str, rank: int) -> Series:
        """How much more of a field a rank has than the median of the others, per step."""
        return self._excess({peer: getattr(of_rank, name) for peer, of_rank in self.ranks.items()}, rank)

    def excess_after(self, name: str, rank: int) -> Series:
        """The same for the part of the field that lies after the last collective of the step."""
        return self._excess({peer: of_rank.after_ns[name] for peer, of_rank in self.ranks.items()}, rank)

    def carried(self, after_ns: Series, rank: int) -> Series:
        """By step, the sum of the values since the last step in which the rank had a collective, that one included.
        Nothing is carried over steps that do not count."""
        total = np.concatenate(([0.0], after_ns.cumsum()))
        places = np.arange(len(after_ns))
        met_before = np.concatenate(([0], np.where(self.ranks[rank].meets, places, 0)[:-1]))
        follows = np.concatenate(([False], np.diff(self.numbers) == 1))
        first = np.maximum.accumulate(np.maximum(met_before, np.where(follows, 0, places)))
        carried: Series = total[places] - total[first]
        return carried

    def explains(self, least_ns: float) -> bool:
        """Whether ranks were queued, blocked or stopped this much longer than the others, a step, all together."""
        names = ("queued_ns", "loading_ns", "blocked_ns", "paused_ns", "frozen_ns")
        return sum(float(self.excess(name, rank).mean()) for name in names for rank in self.ranks) >= least_ns > 0

    def _excess(self, by_rank: Mapping[int, Series], rank: int) -> Series:
        others = [series for peer, series in by_rank.items() if peer != rank]
        if not others:
            return np.zeros_like(by_rank[rank])
        excess: Series = np.maximum(0.0, by_rank[rank] - np.median(others, axis=0))
        return excess


def scheduling_of(tables: Tables, numbers: Sequence[int]) -> Scheduling:
    """Scheduling in the steps with these numbers."""
    by_rank = {rank: of_rank for rank, each in tables.ranks.items() if (of_rank := _of_rank(each, numbers)) is not None}
    return Scheduling(tuple(numbers), by_rank)


def blocked_in_phases(
    steps: Sequence[StepRecord], rows: Sequence[CollectiveRow], samples: Sequence[HostRecord] = ()
) -> dict[int, dict[str, int]]:
    """How long the training's thread was blocked in each computing phase of each step, outside of collectives; without
    phases of which that is less than ``paused_share``. Steps whose CPU time was not recorded are missing."""
    timed = Steps.of(steps)
    known = (timed.on_cpu_ns != UNKNOWN) & (timed.queued_ns != UNKNOWN)
    if not known.any():
        return {}
    timed = timed.take(known)
    spent = _spent(timed, records.blocked(rows), samples)
    stalled = spent.stalled()[:, list(_COMPUTING)].astype(np.float64)
    whole = stalled.sum(axis=1)
    left = np.divide(np.maximum(0, whole - spent.by_team), whole, out=np.zeros_like(whole), where=whole > 0)
    stalled *= left[:, None]
    stalled[stalled < SCHEDULING.paused_share * np.maximum(1, spent.dur[:, list(_COMPUTING)])] = 0
    return {
        step: {_COLUMNS[at]: round(ns) for at, ns in zip(_COMPUTING, blocked_ns, strict=True) if ns}
        for step, blocked_ns in zip(timed.step.tolist(), stalled.tolist(), strict=True)
    }


class _Spent(Struct, frozen=True, eq=False):
    """What the training's thread did, nanoseconds by step and ``_COLUMNS``: for how long there was each phase, and of
    that on a core, queued for one, waiting for collectives. ``by_team``: by step, while another thread of its team was
    queued: then it waits for that one, and is not blocked."""

    dur: Times
    on_cpu: Times
    queued: Times
    waited: Times
    by_team: Series

    @property
    def off_cpu(self) -> Times:
        """Neither on a core nor queued."""
        off: Times = self.dur - self.on_cpu - self.queued
        return off

    def stalled(self) -> Times:
        """Blocked, in phases where that has no known reason. Includes waiting for the team."""
        stalled: Times = np.maximum(0, self.off_cpu - self.waited)
        stalled[:, [_COLUMNS.index(name) for name in _EXPLAINED]] = 0
        return stalled


def _spent(steps: Steps, waits: iv.Intervals, samples: Sequence[HostRecord]) -> _Spent:
    tables = _filled(steps, *_by_phase(steps, iv.Covered(waits)))
    slowest = _sampled(samples, steps)[0]
    return _Spent(*tables, slowest.at(steps.end_ns) * tables[0].sum(axis=1))


def _of_rank(tables: RankTables, numbers: Sequence[int]) -> RankScheduling | None:
    if (tables.steps.queued_ns == UNKNOWN).all():
        return None
    at = np.flatnonzero(np.isin(numbers, tables.steps.step))
    steps = tables.steps.take(tables.steps.places_of(np.array(numbers, dtype=np.int64)[at]))
    timed = steps.queued_ns != UNKNOWN
    steps, at = steps.take(timed), at[timed]
    if not steps or 2 * len(steps) < len(numbers):
        return None
    pauses = iv.make((start, end) for sample in tables.scheduling for start, end in sample.pauses if end > start)
    waits = records.blocked(tables.rows)
    spent = _spent(steps, iv.subtract(waits, pauses), tables.scheduling)
    dur, on_cpu, queued, waited = spent.dur, spent.on_cpu, spent.queued, spent.waited
    # Queued while waiting for a collective: it was done, and the thread was about to wake up.
    waking = np.clip(waited - spent.off_cpu, 0, queued)
    stalled = spent.stalled()
    wall, data, waiting = dur.sum(axis=1), dur[:, _DATA], waited.sum(axis=1)
    _, workers, carried = _sampled(tables.scheduling, steps)
    ends, slow = steps.end_ns, spent.by_team
    not_waking = queued - waking
    loading = np.maximum(not_waking[:, _DATA], workers.at(ends) * data)
    local = np.maximum(
        not_waking.sum(axis=1) - not_waking[:, _DATA], np.minimum(slow, np.maximum(0, wall - waiting - data))
    )
    talking = np.maximum(waking.sum(axis=1), np.minimum(carried.at(ends) * wall, waiting))
    blocked = np.maximum(0, stalled.sum(axis=1) - slow)
    idle = np.maximum(0, spent.off_cpu[:, _DATA])
    probably = idle * min(1.0, _pause(dur - waited, stalled) * float(data.sum()) / max(1.0, float(idle.sum())))
    paused = np.maximum(probably, np.minimum(idle, _while_loading(steps, iv.Covered(pauses))))
    frozen = iv.Covered(iv.intersect(waits, pauses)).between(steps.begin_ns, ends)
    blocked = np.maximum(0, blocked - frozen)  # counted separately
    known = steps.on_cpu_ns != UNKNOWN
    # Recorded before 24 November 2026: these records have only the sum over the phases.
    local = np.where(known, local, steps.queued_ns)
    trains = (dur[:, _FORWARD] > 0) & (dur[:, _BACKWARD] > 0)
    between = np.where(trains, on_cpu[:, _REST], 0)
    blocked, paused, loading, talking, between = (
        np.where(known, each, 0) for each in (blocked, paused, loading, talking, between)
    )

    def series(values: npt.NDArray[Any]) -> Series:
        per_step = np.zeros(len(numbers))
        per_step[at] = values
        return per_step

    after, meets = _after_collectives(steps, tables.rows, dur)
    met = np.ones(len(numbers), dtype=np.bool_)
    met[at] = meets

    def later(values: npt.NDArray[Any], spent: Times) -> Series:
        """The part of the values that lies after the last collective, in proportion to the phases that they are of."""
        whole = spent.sum(axis=1)
        part = np.divide((spent * after).sum(axis=1), whole, out=np.zeros(len(steps)), where=whole > 0)
        return series(values * part)

    computing = not_waking.copy()
    computing[:, _DATA] = 0
    loads = np.zeros_like(dur)
    loads[:, _DATA] = 1
    samples = [sample.runnable for sample in tables.scheduling if sample.runnable is not None]
    return RankScheduling(
        queued_ns=series(local),
        loading_ns=series(loading),
        communicating_ns=series(talking),
        between_ns=series(between),
        blocked_ns=series(blocked),
        paused_ns=series(paused),
        frozen_ns=series(frozen),
        outside_backward_ns=series(blocked * _outside_backward(stalled)),
        blocked_in={
            name: float(ns) for name, ns in zip(_COLUMNS, stalled[known].sum(axis=0) / len(steps), strict=True) if ns
        }
        | ({DATA: float(paused.mean())} if paused.any() else {}),
        after_ns={
            "queued_ns": later(local, computing),
            "loading_ns": later(loading, loads),
            "blocked_ns": later(blocked, stalled),
            "paused_ns": later(paused, loads),
        },
        meets=met,
        runnable=float(np.median(samples)) if samples else None,
        starved=_starved(steps, loading, data, wall),
        loader_active=_loader_active(tables.scheduling, dur[known], on_cpu[known], queued[known]),
        knows_blocked=bool(known.any()),
    )


def _outside_backward(stalled: Times) -> Series:
    """The part of each step's blocked time that lies outside of the backward."""
    whole = stalled.sum(axis=1)
    outside: Series = np.divide(whole - stalled[:, _BACKWARD], whole, out=np.zeros(len(whole)), where=whole > 0)
    return outside


def _after_collectives(steps: Steps, rows: Rows, dur: Times) -> tuple[Series, npt.NDArray[np.bool_]]:
    """The fraction of each phase that lies after the rank's last collective of the step, by step and ``_COLUMNS``; and
    whether the step has a collective. Without one, all of it."""
    ends = np.sort(rows.end_ns[rows.end_ns != UNKNOWN])
    begins, until = steps.begin_ns, steps.end_ns
    places = np.searchsorted(ends, until, side="right") - 1
    last = np.where(places >= 0, ends[np.maximum(places, 0)] if len(ends) else begins, begins)
    meets = last > begins
    last = np.maximum(last, begins)
    after = np.zeros_like(dur)
    place, column, begin, end = _phases(steps)
    np.add.at(after, (place, column), np.maximum(0, end - np.maximum(begin, last[place])))
    after[:, _REST] = np.maximum(0, until - last - after.sum(axis=1))
    fraction: Series = np.divide(np.minimum(after, dur), dur, out=np.zeros(dur.shape), where=dur > 0)
    return fraction, meets


def _starved(steps: Steps, loading: Series, data: Times, wall: Times) -> bool:
    """Whether the loader has worker processes that are never ahead of the training, and do not wait for cores: then it
    determines the step time, and other delays of the ranks do not show."""
    ready = steps.queue_of("ready")
    empty = ready[ready != UNKNOWN] == 0
    if len(empty) < SCHEDULING.least_looks_at_queue or empty.sum() < SCHEDULING.empty_queue_share * len(empty):
        return False
    return bool(
        data.sum() >= SCHEDULING.phase_that_may_stop_share * wall.sum()
        and loading.sum() <= SCHEDULING.queued_workers_share * data.sum()
    )


def _loader_active(samples: Sequence[HostRecord], dur: Times, on_cpu: Times, queued: Times) -> float | None:
    """Of the worker processes; without any, of the training's thread while it loads. Tables: step and ``_COLUMNS``."""
    of_workers = [sample for sample in samples if sample.workers and sample.interval_ns > 0]
    if of_workers:
        ready = sum(sample.workers_on_cpu_ns + sample.workers_queued_ns for sample in of_workers)
        return ready / sum(sample.workers * sample.interval_ns for sample in of_workers)
    spent = int(dur[:, _DATA].sum())
    return float((on_cpu + queued)[:, _DATA].sum()) / spent if spent else None


def _while_loading(steps: Steps, pauses: iv.Covered) -> Series:
    """How long the process was observed to be stopped while each step waited for data."""
    place, column, begin, end = _phases(steps)
    loads = column == _DATA
    seen_ns = np.zeros(len(steps))
    np.add.at(seen_ns, place[loads], pauses.between(begin[loads], end[loads]))
    return seen_ns


def _pause(active: Times, stalled: Times) -> float:
    """The fraction of the time in which a process was stopped as a whole: the smallest blocked fraction of its large
    phases. 0 with fewer than two of them, or if one was not blocked. Both by step and ``_COLUMNS``."""
    spent, lost = active.sum(axis=0), stalled.sum(axis=0)
    large = [at for at in _COMPUTING if spent[at] >= SCHEDULING.phase_that_may_stop_share * spent.sum()]
    pause = min((float(lost[at] / spent[at]) for at in large), default=0.0)
    return pause if len(large) > 1 and pause >= SCHEDULING.paused_share else 0.0


def _phases(steps: Steps) -> tuple[Times, Times, Times, Times]:
    """The phases of all steps that are ``_COLUMNS``: the place of the step, the column, begin and end."""
    columns = steps.codes(_COLUMNS)[steps.phases.name]
    known = columns >= 0
    return steps.phases.owner[known], columns[known], steps.phases.left[known], steps.phases.right[known]


def _by_phase(steps: Steps, waits: iv.Covered) -> tuple[Times, Times, Times, Times]:
    """Nanoseconds by step and ``_COLUMNS``: duration, on a core, queued, waiting for collectives. A phase whose CPU
    time was not read counts as on a core."""
    place, column, begin, end = _phases(steps)
    dur, on_cpu, queued, waited = (np.zeros((len(steps), len(_COLUMNS)), dtype=np.int64) for _ in range(4))
    np.add.at(dur, (place, column), end - begin)
    np.add.at(waited, (place, column), waits.between(begin, end))
    read = np.zeros_like(dur, dtype=np.bool_)
    of_phase = steps.codes(_COLUMNS)[steps.cpu.name]
    known = of_phase >= 0
    where = steps.cpu.owner[known], of_phase[known]
    on_cpu[where], queued[where], read[where] = steps.cpu.left[known], steps.cpu.right[known], True
    on_cpu = np.where(read, on_cpu, dur)
    for table, whole in (
        (dur, steps.end_ns - steps.begin_ns),
        (waited, waits.between(steps.begin_ns, steps.end_ns)),
        (on_cpu, _or_zero(steps.on_cpu_ns)),
        (queued, _or_zero(steps.queued_ns)),
    ):
        table[:, _REST] = np.maximum(0, whole - table.sum(axis=1))
    return dur, on_cpu, queued, waited


_Table = npt.NDArray[np.float64]


def _or_zero(values: Times) -> Times:
    known: Times = np.where(values == UNKNOWN, 0, values)
    return known


def _filled(steps: Steps, dur: Times, on_cpu: Times, queued: Times, waited: Times) -> tuple[Times, Times, Times, Times]:
    """The tables of ``_by_phase``, with estimates for short steps that hold sums only: a phase takes about as much CPU
    time as in the nearest step that has it by phase, and the same fraction of the rest is queueing. Scaled to the
    sums."""
    by_phase = np.diff(steps.cpu.first) > 0
    known = np.flatnonzero(by_phase)
    places = np.flatnonzero(~by_phase & (steps.on_cpu_ns != UNKNOWN))
    if not len(known) or not len(places):
        return dur, on_cpu, queued, waited
    after = np.minimum(np.searchsorted(known, places), len(known) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(known[before] - places) <= np.abs(known[after] - places), known[before], known[after])
    sums = np.stack((_or_zero(steps.on_cpu_ns), _or_zero(steps.queued_ns)), axis=1)[places].astype(np.float64)
    spent = dur[places].astype(np.float64)
    on_core = _scaled(np.minimum(on_cpu[nearest], spent), sums[:, 0], spent)
    off_core = np.maximum(1, dur[nearest] - on_cpu[nearest])
    waiting = _scaled((spent - on_core) * np.minimum(1, queued[nearest] / off_core), sums[:, 1], spent - on_core)
    on_cpu, queued = on_cpu.copy(), queued.copy()
    on_cpu[places], queued[places] = np.rint(on_core), np.rint(waiting)
    return dur, on_cpu, queued, waited


def _scaled(parts: _Table, sums: Series, most: _Table) -> _Table:
    """Rows like ``parts`` that add up to ``sums``, with no part above ``most``: the excess goes to parts with room."""
    total = parts.sum(axis=1)
    factor = np.divide(sums, total, out=np.zeros(len(parts)), where=total > 0)
    scaled: _Table = np.minimum(most, parts * factor[:, None])
    room = most - scaled
    free = room.sum(axis=1)
    missing = np.minimum(free, np.maximum(0, sums - scaled.sum(axis=1)))
    scaled += room * np.divide(missing, free, out=np.zeros(len(parts)), where=free > 0)[:, None]
    return scaled


class _Sampled:
    """A fraction of the time, from samples: constant in the interval that each of them covers."""

    def __init__(self, ends_ns: Sequence[int], values: Sequence[float]) -> None:
        self._ends = np.array(ends_ns, dtype=np.int64)
        self._values = np.array(values, dtype=np.float64)

    def at(self, times_ns: Times) -> Series:
        if not len(self._ends):
            return np.zeros(len(times_ns))
        places = np.minimum(np.searchsorted(self._ends, times_ns, side="left"), len(self._ends) - 1)
        values: Series = self._values[places]
        return values


def _sampled(samples: Sequence[HostRecord], steps: Steps) -> tuple[_Sampled, _Sampled, _Sampled]:
    """Fractions of the time in which threads were queued: the thread that shares the training's work and was queued
    longest; the worker processes, their mean; and the process's other threads, as a fraction of their time ready."""
    samples = [sample for sample in samples if sample.interval_ns > 0]
    wall = int((steps.end_ns - steps.begin_ns).sum())
    trains = int(_or_zero(steps.on_cpu_ns).sum()) / wall if wall else 0.0
    slowest, workers, carried = [], [], []
    for sample in samples:
        interval = sample.interval_ns
        queued = min(1.0, sample.slowest_queued_ns / interval)
        shares_work = (
            sample.slowest_on_cpu_ns
            >= max(SCHEDULING.share_of_training_thread * trains, SCHEDULING.least_share_of_all_time) * interval
        )
        slowest.append(queued if shares_work else 0.0)
        workers.append(min(1.0, sample.workers_queued_ns / (interval * sample.workers)) if sample.workers else 0.0)
        ready = sample.threads_on_cpu_ns + sample.threads_queued_ns
        carried.append(0.0 if shares_work or not ready else queued * sample.threads_queued_ns / ready)
    ends = [sample.monotonic_ns for sample in samples]
    return _Sampled(ends, slowest), _Sampled(ends, workers), _Sampled(ends, carried)


class Load(Struct, frozen=True):
    """How many threads of a host were ready to run, the median over the run, and on how many cores."""

    runnable: float
    cores: int


def load_of(tables: Tables, scheduling: Scheduling, ranks: Collection[int]) -> Load | None:
    """Of the busiest of these ranks' hosts; None where it was not recorded."""
    busy = [each.runnable for rank, each in scheduling.ranks.items() if rank in ranks and each.runnable]
    cores = [t.identity.cpus for r, t in tables.ranks.items() if r in ranks and t.identity and t.identity.cpus]
    return Load(max(busy), min(cores)) if busy and cores else None
