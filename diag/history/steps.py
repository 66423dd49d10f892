"""Which steps of a run are known, and when each was; the steps that an answer is asked about."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diag.account.of_traces import host_windows
from diag.collectors.layout import RunLayout
from diag.collectors.records import RankRecord
from diag.rundir.asked import KnownSteps, StepsAsked
from diag.rundir.curves import sums_before
from diag.rundir.identity import clock_of
from diag.rundir.policy import JOBS
from diag.rundir.series import Series, each_step, joined, of_sums, sums_over
from diag.rundir.tables import Only, RankTables, Tables


class Kept(Struct, frozen=True, eq=False):
    """What is kept of the steps of a rank. ``known``: each stretch at its best resolution. ``looked_at``: the series of
    each resolution, how many steps it sums up, and the step from which a finer one is there."""

    rank: int
    known: Series
    looked_at: tuple[tuple[Series, int, int | None], ...]
    to_unix_ns: int


def kept_steps(tables: Tables) -> Kept | None:
    """Of the first rank that left steps; None without any. Only the steps that are analysed."""
    for of_rank in tables.ranks.values():
        if of_rank.identity is not None and (kept := _of_rank(tables, of_rank, of_rank.identity)) is not None:
            return kept
    return None


def _of_rank(tables: Tables, of_rank: RankTables, identity: RankRecord) -> Kept | None:
    files, only = RunLayout(tables.root).rank(of_rank.rank), tables.only

    def asked(series: Series) -> Series:
        return series if only is None else series.take((series.first >= only.first) & (series.last <= only.last))

    fine = each_step(files, identity, of_rank.steps)
    looked_at: list[tuple[Series, int, int | None]] = [(asked(fine), 1, None)]
    first = int(fine.first[0]) if len(fine) else None
    for size in files.sums if first is None or first > 0 else ():
        sums = sums_over(files, size)
        if len(sums) and (first is None or int(sums.first[0]) < first):
            looked_at.append((asked(sums), size, first))
            first = int(sums.first[0])
    known = fine
    if len(looked_at) > 1:
        begin = int(fine.first[0]) if len(fine) else int(looked_at[-1][0].last[-1]) + 1
        older = of_sums(sums_before(files, begin))
        known = joined([older.take(older.last < begin), fine])
    known = asked(known)
    return Kept(of_rank.rank, known, tuple(looked_at), clock_of(identity)[1]) if len(known) else None


def only_of(tables: Tables, asked: StepsAsked) -> Only:
    """The steps asked for, as far as the run has them. DiagError if it has none of them."""
    known = known_steps(tables)
    first, last = asked.among(known)
    return Only(first, last, known.numbers[0], asked.text)


def known_steps(tables: Tables) -> KnownSteps:
    """All steps of which anything is known."""
    kept = kept_steps(tables) if RunLayout(tables.root).is_run() else None
    if kept is None:
        return _of_traces(tables)
    known = kept.known
    numbers = np.concatenate([np.arange(first, last + 1) for first, last in zip(known.first, known.last, strict=True)])
    edges = np.stack((known.first, known.last + 1), axis=1).ravel()
    moments = np.stack((known.begin_ns, known.end_ns), axis=1).ravel()
    begin, end = (np.interp(at, edges, moments).astype(np.int64) + kept.to_unix_ns for at in (numbers, numbers + 1))
    return KnownSteps(numbers.tolist(), begin.tolist(), end.tolist())


def _of_traces(tables: Tables) -> KnownSteps:
    """Of traces by themselves: those of the first rank that has any."""
    for of_rank in tables.ranks.values():
        windows = sorted({window[0]: window for trace in of_rank.traces for window in host_windows(trace)}.values())
        if windows:
            numbers, begins, ends = (list(column) for column in zip(*windows, strict=True))
            timed = begins[0] >= JOBS.time_of_day_from_ns
            return KnownSteps(numbers, begins if timed else (), ends if timed else ())
    return KnownSteps(())
