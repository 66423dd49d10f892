"""Which ranks are late, from the durations of collectives alone (``diag.account.durations``).

NCCL Inspector and PyTorch's Flight Recorder record nothing of what a rank does between its collectives. So the answer
names the rank that the others wait for, and leaves open why it is late.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diag.account.durations import Durations, Late, late_ranks
from diag.deferred import pl
from diag.diagnoses.policy import FINDINGS, STRAGGLER
from diag.model.query import By, Query
from diag.model.steps import Detail, Evidence, Finding, Kind, Severity
from diag.rundir.durations import INSPECTOR, DurationRecords
from diag.words import sentences
from diag.words.formatting import counted, share
from diag.words.wording import only_durations, sentence

from . import ids
from .cost_rows import CostTable, Side, Source
from .costs import Cost
from .shares import NO_NOISE, Shares
from .subject import ranks_text, severity

WAIT = "collective_wait_ns"  # column of the frame "summaries": ``CollectivesAccount.wait_ms``


class CollectivesAccount(Struct, frozen=True, eq=False, dict=True):
    """Who is late, from the durations of a run's collectives. ``durations``: the collectives, matched; ``read``: as
    recorded; ``late``: the ranks that are late in most parts of the job, None without any."""

    durations: Durations
    read: DurationRecords
    late: Late | None

    @cached_property
    def shares(self) -> Shares:
        """The whole job as one step: its time if known, else that of a rank in its collectives. Nothing is known of
        computation, nor of what communication is exposed."""
        account, table = self.durations, CostTable(1)
        dur_ns = np.full(1, float(account.wall_ns or account.busy_ns.mean()))
        busy = np.minimum(dur_ns, account.busy_ns.mean())
        table.add(Side.PATH, None, dur_ns - busy, Kind.COMPUTE, Detail.NONE)
        table.add(Side.PATH, None, busy, Kind.COMM, Detail.NONE)
        if self.late is not None:
            late_ns = np.minimum(dur_ns, self.late.cost_ns)
            table.relabel(Side.PATH, None, Cost.STRAGGLER, late_ns, activity=(Kind.IDLE, Detail.UNKNOWN))
            for rank in self.late.ranks:
                table.add(Side.WAITING, Cost.STRAGGLER, late_ns, Kind.IDLE, Detail.UNKNOWN, rank)
        rows, sees = tuple(table.rows()), frozenset((Cost.STRAGGLER,))
        return Shares((0,), dur_ns, rows, account.ranks, True, NO_NOISE, Source.COLLECTIVES, sees)

    @cached_property
    def wait_ms(self) -> dict[int, float]:
        """Mean milliseconds for which each rank waits for later ones in a collective."""
        waits = self.durations.wait_ns / self.durations.of_rank / 1e6
        return dict(zip(self.durations.ranks, waits.tolist(), strict=True))


def collectives_account(durations: Durations, read: DurationRecords) -> CollectivesAccount:
    late = late_ranks(durations)
    lasting = late is not None and late.lasting >= STRAGGLER.lasting_straggler_share
    account = CollectivesAccount(durations, read, late if lasting else None)
    if account.late is None or not durations.wall_ns:
        return account
    mentioned = account.shares.share(Cost.STRAGGLER) >= FINDINGS.mention_share
    return account if mentioned else CollectivesAccount(durations, read, None)


def find(collectives: CollectivesAccount) -> tuple[Finding, ...]:
    """The late ranks, if they are always the same ones."""
    account, late = collectives.durations, collectives.late
    if late is None:
        return ()
    cost_share = collectives.shares.share(Cost.STRAGGLER) if account.wall_ns else 0.0
    names = ranks_text(late.ranks)
    of_late = frozenset(late.ranks)
    waits = [ms for rank, ms in collectives.wait_ms.items() if rank in of_late]
    others = [ms for rank, ms in collectives.wait_ms.items() if rank not in of_late]
    was, rows = "was" if len(late.ranks) == 1 else "were", Query("collectives")
    rows_of_late = rows
    if collectives.read.calls_of_a_row > 1:  # of which no row was kept
        rows = Query("summaries", column=WAIT)
        rows_of_late = replace(rows, where={"rank": list(late.ranks)}, by=By.MEAN)
    finding = Finding(
        id=ids.STRAGGLER,
        title=sentences.RANKS_ARRIVE_LAST(len(late.ranks), ranks=sentence(names), share=share(late.of_busy)),
        severity=severity(cost_share) if account.wall_ns else Severity.WARN,
        share=round(cost_share, 4),
        cost_ns_per_step=round(late.cost_ns / account.steps) if account.steps else 0,
        confidence=_confidence(account, late, collectives.read),
        ranks=late.ranks,
        evidence=(
            Evidence(f"waiting of {names}", round(float(np.mean(waits)), 3), "ms a collective", rows_of_late),
            Evidence("waiting of the other ranks, median", round(float(np.median(others)), 3), "ms a collective", rows),
            Evidence(
                f"parts of the job in which {names} {was} last, of {late.telling} with a late rank",
                float(late.led),
                "parts",
                rows,
            ),
        ),
        action=f"Record what {names} {'does' if len(late.ranks) == 1 else 'do'} between collectives: `diag run`, or "
        "profiler traces of these ranks and of one other rank. Compare clocks, temperature and host load with the "
        "other ranks'.",
    )
    return (finding,)


def _confidence(account: Durations, late: Late, read: DurationRecords) -> float:
    """The rule of succession over the parts of the job, bounded by how much of it was seen."""
    sure = (late.led + 1) / (late.telling + 2)
    return round(
        min(
            sure,
            STRAGGLER.confidence_of_durations,
            STRAGGLER.confidence_of_mean_durations if read.means else 1.0,
            STRAGGLER.confidence_of_host_times if 2 * read.on_cpu > len(read.rows) else 1.0,
            STRAGGLER.confidence_of_parts if 2 * account.complete <= account.collectives else 1.0,
        ),
        2,
    )


def notes_on(collectives: CollectivesAccount) -> list[str]:
    account, read = collectives.durations, collectives.read
    notes = [f"the verdict rests on the durations of {account.complete:,} collectives: {only_durations(read.source)}"]
    if account.complete < account.collectives:
        left = account.collectives - account.complete
        notes.append(f"{left:,} collectives were not recorded on all their ranks: left out")
    if read.dropped and read.source == INSPECTOR:
        notes.append(f"NCCL Inspector dropped {counted(read.dropped, 'record')}: NCCL_INSPECTOR_DUMP_COLL_RING_SIZE")
    elif read.dropped:
        part = f"costs are estimated from the {share(read.seen)} that were read"
        notes.append(f"{read.source} overwrote {counted(read.dropped, 'entry', 'entries')}: {part}")
    if read.calls_of_a_row > 1:
        notes.append(
            f"durations are summed over {read.calls_of_a_row} consecutive collectives: ranks that are late in turn are "
            "not seen"
        )
    if read.means:
        notes.append("the files are Prometheus text: means over an interval, in which no single collective is seen")
    if len({process.host for process in read.processes}) > 1 and (parts := _by_reach(account, read)):
        notes.append(parts)
    return notes


def _by_reach(account: Durations, read: DurationRecords) -> str:
    """How much of the time in collectives is spent in groups within a host, and in groups across hosts."""
    hosts_of: dict[str, set[str]] = {}
    for process in read.processes:
        for group in process.communicators:
            hosts_of.setdefault(group, set()).add(process.host)
    spent = account.met.group_by("group").agg((pl.col("duration_ns") * pl.col("size")).sum()).rows()
    total = sum(ns for _, ns in spent)
    across = sum(ns for group, ns in spent if len(hosts_of.get(group, ())) > 1)
    if not total:
        return ""
    within, between = share(1 - across / total), share(across / total)
    return f"of the time in collectives, {within} is within a host and {between} across hosts"
