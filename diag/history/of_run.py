"""The history of one attempt of a run: when its step time changed, because of what, and what else cost it time.

What is kept of a run's steps is read at each resolution, the finest first. Changes are found in the steps of one rank,
as ranks train in step. Their cause comes from the costs of all ranks before and after: the rows on which the verdict
rests, and of older steps the same rows from the ranks' summaries or sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from diag.account.policy import STEPS
from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.records import CHECKPOINT, DATA, H2D, PHASES, REST, STEP, STILL
from diag.diagnoses.shares import Shares
from diag.model.accounts import Attribution
from diag.model.history import Change, History, KeptSteps, Stretch
from diag.rundir.columns import Floats
from diag.rundir.kept import kept_spans
from diag.rundir.policy import RUN_READING
from diag.rundir.series import Longest, Series, longest_of, on_its_clock
from diag.rundir.states import Judged, State
from diag.rundir.tables import RankTables, Tables

from .blame import Blame, Sides, blame_of
from .changes import change_points, level
from .lineage import origin_of
from .losses import Job as JobOf
from .losses import behind_in, goodput_of, is_stuck, slow_stretches, spent, stalls, standstill
from .policy import HISTORY
from .steps import Kept, kept_steps

_ENDS = (State.FINISHED, State.FAILED, State.STOPPED, State.HUNG)
_COMPUTE = tuple(phase for phase in PHASES if phase not in (DATA, H2D, CHECKPOINT))
# Fields of ``diag.model.steps.Parts``, each with the columns of a summary that add up to it.
_PARTS = {
    "compute_ns": _COMPUTE,
    "exposed_comm_ns": tuple(phase + STILL for phase in (*PHASES, REST)),
    "exposed_copy_ns": (H2D,),
    "data_wait_ns": (DATA,),
    "checkpoint_ns": (CHECKPOINT,),
    "idle_ns": (REST,),
}


def history_of(tables: Tables, attribution: Attribution, shares: Shares, judged: Judged | None = None) -> History:
    """The history of an analysed run: of one attempt of its job, without its restarts. ``judged``: its state."""
    kept = kept_steps(tables) if RunLayout(tables.root).is_run() else None
    known = kept.known if kept is not None else _of_account(attribution)
    to_unix_ns = kept.to_unix_ns if kept is not None else None
    changes = [
        change
        for series, size, until in (kept.looked_at if kept is not None else ((known, 1, None),))
        for change in _changes_in(series, size, until, tables, shares, to_unix_ns)
    ]
    history = History(
        path=str(tables.root),
        ranks=tables.world_size or len(tables.ranks),
        rank=kept.rank if kept is not None else None,
        stretches=_stretches(known, kept is not None and tables.ranks[kept.rank].on_device, to_unix_ns),
        changes=_with_ends(sorted(changes, key=lambda change: change.step), int(known.last[-1]) if len(known) else 0),
        on_device=tables.on_device,
        hosts=tuple(dict.fromkeys(of.host for of in tables.ranks.values() if of.host)),
        origin=origin_of(tables.manifest),
    )
    return history if kept is None else _with_losses(history, kept, tables, shares, judged)


def _with_losses(history: History, kept: Kept, tables: Tables, shares: Shares, judged: Judged | None) -> History:
    """With what the time went into, and what cost some of it."""
    known, of_rank, only = kept.known, tables.ranks[kept.rank], tables.only
    first_ns, last_ns = int(known.begin_ns[0]), int(known.end_ns[-1])
    begins = [ns for ns in (_started_ns(tables, of_rank, kept.to_unix_ns), first_ns) if ns is not None]
    ends = [of.heartbeat.unix_ns - kept.to_unix_ns for of in tables.ranks.values() if of.heartbeat is not None]
    begin_ns = first_ns if only is not None and only.first > only.begin else min(begins)
    end_ns = max([last_ns, *ends]) if only is None else last_ns
    stuck = is_stuck(judged) and only is None
    layout = RunLayout(tables.root)
    longest = _longest_of_rows(known, layout.rank(kept.rank))
    of = spent(known, longest)
    job = JobOf(history.ranks, {rank: each.host for rank, each in tables.ranks.items() if each.host}, kept.to_unix_ns)
    kept_by: dict[int, Mapping[int, Longest]] = {}  # each rank's longest steps, which are read when they are asked for

    def behind(step: int, lost_ns: float) -> tuple[int, ...]:
        if len(tables.ranks) > RUN_READING.many_ranks:
            return ()
        if not kept_by:
            kept_by.update({rank: longest_of(layout.rank(rank)) for rank in tables.ranks})
        return behind_in(step, lost_ns, kept_by)

    incidents = [
        *slow_stretches(history.changes, known, job),
        *stalls(known, of, shares, job, longest, behind),
    ]
    if stuck and (stood := standstill(judged, int(known.last[-1]), last_ns, end_ns, job)) is not None:
        incidents.append(stood)
    saving = known.parts.get(CHECKPOINT, np.zeros(len(known)))
    saved = [int(step) for step in known.last[np.nan_to_num(saving) > 0][-1:].tolist()]
    saved += of_rank.steps.step[of_rank.steps.with_phase(CHECKPOINT)][-1:].tolist()  # not summed up yet
    saved += [each.step for each in of_rank.checkpoints if not each.failed]
    return replace(
        history,
        goodput=goodput_of(known, of, begin_ns, end_ns, stuck),
        incidents=tuple(sorted(incidents, key=lambda incident: incident.first)),
        begin_unix_ns=begin_ns + kept.to_unix_ns,
        end_unix_ns=end_ns + kept.to_unix_ns,
        saved=max(saved, default=None),
        kept=_kept(layout.rank(kept.rank), kept.to_unix_ns) if only is None else (),
        ended=judged.state.value if judged is not None and judged.state in _ENDS else "",
    )


def _kept(files: RankLayout, to_unix_ns: int) -> tuple[KeptSteps, ...]:
    """Around which incidents a rank has kept all of its records. The ranks keep the same ones."""
    return tuple(
        KeptSteps(
            span.first,
            span.last,
            span.why,
            span.begin_ns + to_unix_ns if span.begin_ns is not None else None,
            span.end_ns + to_unix_ns if span.end_ns is not None else None,
        )
        for span in kept_spans(files)
    )


def _longest_of_rows(known: Series, files: RankLayout) -> dict[int, Longest]:
    """By row of the series, the longest step of a sum; only where it was recorded."""
    if (known.steps == 1).all():
        return {}
    found: dict[int, Longest] = {}
    for step, its in longest_of(files).items():
        row = int(np.searchsorted(known.last, step))
        of_sum = row < len(known) and known.steps[row] > 1 and known.first[row] <= step
        if of_sum and (row not in found or its.own_ns > found[row].own_ns):
            found[row] = its
    return found


def _started_ns(tables: Tables, of_rank: RankTables, to_unix_ns: int) -> int | None:
    """When the run was started, on the rank's clock: by its launcher, else by the rank's process. None where that was
    after its first step."""
    created = tables.manifest.created_unix_ns if tables.manifest is not None else 0
    known = [created - to_unix_ns] if created > 0 else []
    if of_rank.identity is not None:
        known.append(of_rank.identity.monotonic_ns)
    return min(known, default=None)


def _of_account(attribution: Attribution) -> Series:
    """The steps of what another tool recorded."""
    steps = attribution.usable
    numbers, dur_ns = steps.step, steps.dur_ns.astype(np.float64)
    ends = np.cumsum(dur_ns).astype(np.int64)
    ones, none = np.ones_like(numbers), np.zeros(len(steps), dtype=np.bool_)
    return Series(numbers, numbers, ones, ends - dur_ns.astype(np.int64), ends, dur_ns, dur_ns, {}, none, none)


def _changes_in(
    series: Series, size: int, until: int | None, tables: Tables, shares: Shares, to_unix_ns: int | None
) -> Iterator[Change]:
    """The changes of the step time in a series, up to the step from which a finer one is there."""
    warm = series.first >= STEPS.warm_up_steps
    values = (series := series.take(warm)).step_ns
    places = change_points(values, summed=size > 1) if np.isfinite(values).all() else []
    edges = [0, *places, len(values)]
    most_causes = HISTORY.most_causes_of_many if len(tables.ranks) > RUN_READING.many_ranks else len(places)
    for number, ((begin, place), (_, end)) in enumerate(pairwise(pairwise(edges))):
        if until is not None and int(series.first[place]) >= until:
            continue
        before, after = level(values[begin:place]), level(values[place:end])
        most = max(HISTORY.compared_steps // size, HISTORY.least_compared)
        sides = Sides(
            (int(series.first[max(begin, place - most)]), int(series.first[place])),
            (int(series.first[place]), int(series.last[min(end, place + most) - 1]) + 1),
            after > before,
        )
        blame = blame_of(sides, tables, shares, size) if number >= len(places) - most_causes else Blame()
        yield Change(
            step=int(series.first[place]),
            last=int(series.last[end - 1]),
            unix_ns=int(series.begin_ns[place]) + to_unix_ns if to_unix_ns is not None else None,
            precision=size,
            before_ns=before,
            after_ns=after,
            cause=blame.cause,
            ranks=blame.ranks,
            hosts=_hosts(tables, blame.ranks),
            basis=blame.basis,
        )


def _hosts(tables: Tables, ranks: Sequence[int]) -> tuple[str, ...]:
    hosts = (tables.ranks[rank].host for rank in ranks if rank in tables.ranks)
    return tuple(dict.fromkeys(host for host in hosts if host))


def _with_ends(changes: Sequence[Change], last: int) -> tuple[Change, ...]:
    """Each with the last step before the next one."""
    ends = [change.step - 1 for change in changes[1:]] + [last]
    return tuple(replace(change, last=end) for change, end in zip(changes, ends, strict=False))


def _stretches(series: Series, on_device: bool, to_unix_ns: int | None) -> tuple[Stretch, ...]:
    parts = _parts(on_its_clock(series, on_device))
    names = list(parts)
    each = (
        zip(*(parts[name].tolist() for name in names), strict=True) if names else iter(() for _ in range(len(series)))
    )
    columns = (
        series.first,
        series.last,
        series.steps,
        series.begin_ns,
        series.end_ns,
        series.step_ns,
        series.longest_ns,
    )
    return tuple(
        Stretch(
            first, last, steps,
            begin + to_unix_ns if to_unix_ns is not None else None,
            end + to_unix_ns if to_unix_ns is not None else None,
            step_ns, longest_ns,
            dict(zip(names, values, strict=True)) if values and values[0] == values[0] else None,  # not NaN
        )
        for first, last, steps, begin, end, step_ns, longest_ns, values in zip(
            *(column.tolist() for column in columns), each, strict=True
        )
    )  # fmt: skip


def _parts(columns: Mapping[str, Floats]) -> dict[str, Floats]:
    if not columns:
        return {}
    known = ~np.isnan(next(iter(columns.values())))
    if STEP in columns:  # of a device: 0 where it left no record
        known &= columns[STEP] > 0
    empty = np.where(known, 0.0, np.nan)
    return {
        name: sum((np.nan_to_num(columns[each]) for each in of if each in columns), start=empty)
        for name, of in _PARTS.items()
    }
