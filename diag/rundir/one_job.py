"""The records of a run directory that the processes of one job wrote: whatever another process left in a rank's folder,
and the ranks of another job, are left out with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
from msgspec.structs import replace

from diag.collectors.layout import RunLayout
from diag.collectors.records import Manifest, RankRecord
from diag.model import Gap
from diag.rundir.policy import JOBS
from diag.traces.trace import Trace
from diag.words.formatting import counted, elapsed, visible

from .columns import NO_ROWS, Steps
from .identity import Life, at_other_times, clock_of, strangers
from .tables import RankTables

_UNIDENTIFIED = "is missing or damaged: it is unknown which process wrote the other files of this rank"
_ALL_UNIDENTIFIED = (
    "is missing or damaged, as that of every other rank: it is unknown which processes wrote the files of this run, "
    "and whether they are of one job"
)

Calls = dict[tuple[str, int], tuple[str, int]]  # (operation, bytes) by (group, number)


def of_one_job(
    layout: RunLayout, ranks: Mapping[int, RankTables], manifest: Manifest | None
) -> tuple[dict[int, RankTables], Manifest | None, list[Gap]]:
    """The ranks and the manifest of one job, and a gap for each piece that is not of it."""

    def folder(rank: int) -> str:
        return str(layout.rank(rank).folder)

    named = strangers({rank: tables.identity for rank, tables in ranks.items()}, manifest)
    gaps = named.gaps(folder, layout.manifest)
    manifest = None if named.manifest else manifest
    own: dict[int, RankTables] = {}
    recorded = [rank for rank, tables in ranks.items() if not tables.empty]
    identified = any(tables.identity is not None for tables in ranks.values())
    for rank, tables in ranks.items():
        if rank not in named.ranks:
            own[rank], of_others = _of_its_process(tables, layout)
            gaps += of_others
            if identified and tables.identity is None and not tables.empty:
                gaps.append(Gap(str(layout.rank(rank).identity), _UNIDENTIFIED))
    if recorded and not identified:
        gaps.append(Gap(str(layout.rank(recorded[0]).identity), _ALL_UNIDENTIFIED))
    calls_of = cache(lambda rank: _calls_of(own[rank]))  # every host is compared with the same rank
    timed = at_other_times(
        [life for tables in own.values() if (life := _life(tables)) is not None],
        manifest,
        lambda left, right: _in_step(own[left], own[right], calls_of(right)),
    )
    gaps += timed.gaps(folder, layout.manifest)
    return {rank: tables for rank, tables in own.items() if rank not in timed.ranks}, manifest, gaps


def _life(tables: RankTables) -> Life | None:
    identity = tables.identity
    if identity is None:
        return None
    if tables.steps:
        begin_ns, end_ns = int(tables.steps.begin_ns[0]), int(tables.steps.end_ns.max())
    elif identity.monotonic_ns > 0:
        begin_ns, end_ns = identity.monotonic_ns - JOBS.started_apart_ns, identity.monotonic_ns + JOBS.started_apart_ns
    else:
        return None
    clock, to_unix_ns = clock_of(identity)
    return Life(tables.rank, clock, begin_ns, end_ns, to_unix_ns)


def _in_step(left: RankTables, right: RankTables, others: Calls) -> bool | None:
    """Whether two ranks of different clocks are of a job of one name, or made the same calls in steps that began at the
    same intervals; None if that was not recorded. Ranks of one job wait for each other: they drift apart by less than
    a step. ``others``: the calls of ``right``."""
    if left.identity is not None and right.identity is not None and left.identity.job and right.identity.job:
        return left.identity.job == right.identity.job
    calls = _calls_of(left)
    common = calls.keys() & others.keys()
    numbers = sorted(left.recorded & right.recorded)
    if not common or len(numbers) < JOBS.least_common_steps:
        return None
    if sum(calls[key] == others[key] for key in common) < JOBS.common_calls_share * len(common):
        return False
    begins, other_begins = (of.steps.begin_ns[of.steps.places_of(numbers)] for of in (left, right))
    apart_ns = begins - other_begins
    longest_ns = max((tables.steps.end_ns - tables.steps.begin_ns).max() for tables in (left, right))
    return bool(apart_ns.max() - apart_ns.min() <= longest_ns)


def _calls_of(tables: RankTables) -> Calls:
    rows = tables.rows
    keys = zip((rows.names[code] for code in rows.group.tolist()), rows.seq.tolist(), strict=True)
    values = zip((rows.names[code] for code in rows.op.tolist()), rows.bytes.tolist(), strict=True)
    return dict(zip(keys, values, strict=True))


def _of_its_process(tables: RankTables, layout: RunLayout) -> tuple[RankTables, list[Gap]]:
    """The records of a folder that its process wrote, and gaps for those of others: an earlier attempt that used the
    same folder, or files that were copied into it."""
    identity, files = tables.identity, layout.rank(tables.rank)
    if identity is None:
        return tables, []
    gaps: list[Gap] = []
    started_ns = identity.monotonic_ns
    own = _own_steps(tables.steps, started_ns)
    if len(own) < len(tables.steps):
        earlier = counted(len(tables.steps) - len(own), "step")
        gaps.append(Gap(str(files.steps), f"{earlier} of a process before this one; left out"))
        tables = replace(tables, steps=own)
    if tables.rows and (reason := _calls_of_another(tables)):
        gaps.append(Gap(str(files.collectives), f"{reason}; left out"))
        tables = replace(tables, rows=NO_ROWS, groups={}, unread=None)
    beat = tables.heartbeat
    if beat is not None and 0 < beat.monotonic_ns < started_ns:
        gaps.append(Gap(str(files.heartbeat), "written before this process started: another process's; left out"))
        tables = replace(tables, heartbeat=None)
    others = {trace.path: reason for trace in tables.traces if (reason := _not_its_trace(trace, identity, tables))}
    gaps += [Gap(path, f"{reason}; left out") for path, reason in others.items()]
    return replace(tables, traces=tuple(trace for trace in tables.traces if trace.path not in others)), gaps


def _own_steps(steps: Steps, started_ns: int) -> Steps:
    """The steps of the process that started then. An earlier one used the folder if steps end before, and nothing was
    recorded for longer than a step takes, in which the process started."""
    before = steps.end_ns < started_ns
    if not before.any():
        return steps
    after_ns = int(steps.begin_ns[~before].min()) if not before.all() else started_ns
    pause_ns = after_ns - int(steps.end_ns[before].max())
    longest_ns = int((steps.end_ns - steps.begin_ns).max())
    return steps.take(~before) if pause_ns > max(JOBS.restart_ns, longest_ns) else steps


def _calls_of_another(tables: RankTables) -> str:
    """Why the collectives are not this process's; "" if nothing contradicts it."""
    named = [ranks for ranks in tables.groups.values() if ranks]
    if named and not any(tables.rank in ranks for ranks in named):
        return f"no process group in it has rank {tables.rank}: another rank's calls"
    steps, rows = tables.steps, tables.rows
    known = np.isin(rows.step, steps.step)
    start_ns, places = rows.start_ns[known], steps.places_of(rows.step[known])
    outside = (start_ns < steps.begin_ns[places]) | (start_ns > steps.end_ns[places])
    return "no call in it lies in its step: another process's calls" if len(outside) and outside.all() else ""


def _not_its_trace(trace: Trace, identity: RankRecord, tables: RankTables) -> str:
    """Why a trace in a rank's folder was not recorded by its process; "" if nothing contradicts it."""
    if trace.rank is not None and trace.rank != identity.rank:
        return f"a trace of rank {trace.rank}"
    if trace.world_size is not None and trace.world_size != identity.world_size:
        return f"a trace of a job of {trace.world_size:,} ranks"
    if identity.monotonic_ns <= 0:
        return ""
    pids = [pid for pid in trace.host_pids if pid.isdecimal()]
    by = "" if not pids or str(identity.pid) in pids else f" by process {visible(', '.join(pids[:3]))}"
    slack_ns = 0 if by else JOBS.clock_set_by_ns
    if trace.end_ns < identity.unix_ns - slack_ns:
        return f"recorded{by} {elapsed(identity.unix_ns - trace.end_ns)} before this process started"
    if tables.heartbeat is not None and tables.steps:
        last_ns = max(tables.heartbeat.unix_ns, int(tables.steps.end_ns[-1]) + clock_of(identity)[1])
        if trace.begin_ns > last_ns + slack_ns:
            return f"recorded{by} {elapsed(trace.begin_ns - last_ns)} after the last sign of this process"
    return ""
