"""Which ranks are late, from the durations of collectives alone (``diag.account.durations``).

NCCL Inspector and PyTorch's Flight Recorder record nothing of what a rank does between its collectives. So the verdict
names the rank that the others wait for, and leaves open why it is late.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from msgspec.structs import replace

from diag.account.durations import Durations, Late, late_ranks
from diag.diagnoses.policy import FINDINGS, STRAGGLER
from diag.model.query import Query
from diag.model.steps import Bottleneck, Coverage, Evidence, Finding, NotLooked, Severity, Verdict
from diag.rundir.durations import INSPECTOR, DurationRecords
from diag.rundir.tables import Tables
from diag.words.formatting import counted, share
from diag.words.wording import ONLY_DURATIONS, only_durations, sentence

from . import DIAGNOSES, Examination, straggler
from .cost_rows import Source
from .shares import NO_NOISE, Shares
from .subject import ranks_text, severity

_INTERVAL = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=1000000"
_WINDOW = "record a profiler window (`diag run --trace`)"


def examine_durations(
    account: Durations, read: DurationRecords, tables: Tables, notes: Sequence[str]
) -> tuple[Examination, Coverage]:
    """The examination of a run with durations only. ``notes``: what else lowers the confidence."""
    findings = _findings(account, read)
    not_looked = tuple(NotLooked(d.question, ONLY_DURATIONS, d.id) for d in DIAGNOSES if d.id != straggler.DIAGNOSIS.id)
    nothing = np.zeros(0)
    shares = Shares((), nothing, (), account.ranks, True, NO_NOISE, Source.COLLECTIVES)
    examination = Examination(findings, () if findings else (straggler.DIAGNOSIS.question,), not_looked, shares)
    coverage = Coverage(
        ranks_used=tuple(tables.ranks),
        ranks_missing=tuple(rank for rank in range(tables.world_size or 0) if rank not in tables.ranks),
        skipped=read.gaps,
        clock_uncertainty_ns=0,
        not_looked=not_looked,
        notes=(*notes, *_notes(account, read)),
    )
    return examination, coverage


def add_durations(
    account: Durations, read: DurationRecords, examination: Examination, coverage: Coverage
) -> tuple[Examination, Coverage]:
    """Adds the findings from durations to a run whose device work was not recorded."""
    stragglers = _findings(account, read)
    others = tuple(f for f in examination.findings if f.id != straggler.DIAGNOSIS.id)
    findings = tuple(sorted((*others, *stragglers), key=lambda finding: (-finding.share, finding.id)))
    return (
        replace(examination, findings=findings if stragglers else examination.findings),
        replace(coverage, notes=(*coverage.notes, *_notes(account, read))),
    )


def judge_durations(account: Durations, examination: Examination, tables: Tables) -> Verdict:
    busy = account.share
    finding = next((finding for finding in examination.findings if finding.id == straggler.DIAGNOSIS.id), None)
    if finding is not None:
        hosts = dict.fromkeys(tables.ranks[rank].host or "" for rank in finding.ranks)
        cost = f", and {share(finding.share)} of the wall-clock time" if account.wall_ns else ""
        return Verdict(
            Bottleneck.UNDETERMINED,
            finding.severity,
            finding.id,
            finding.share,
            finding.confidence,
            finding.ranks,
            tuple(host for host in hosts if host),
            f"{finding.title}{cost}. The cause of the delay is not recorded.",
        )
    no_straggler = "no rank arrives last much more often than the others"
    if busy is None:
        text = f"Undetermined: {no_straggler}; the share of communication is not recorded. Next: set {_INTERVAL}."
        return Verdict(Bottleneck.UNDETERMINED, Severity.WARN, "", 0.0, 0.0, (), (), text)
    if busy < FINDINGS.warning_share:
        text = f"Undetermined: communication is {share(busy)} of the time, and {no_straggler}. Next: {_WINDOW}."
        return Verdict(Bottleneck.UNDETERMINED, Severity.WARN, "", round(busy, 4), 0.0, (), (), text)
    text = (
        f"Undetermined: {share(busy)} of the time is in collectives, and {no_straggler}; how much of it overlaps with "
        f"computation is not recorded. Next: {_WINDOW}."
    )
    return Verdict(Bottleneck.UNDETERMINED, Severity.WARN, "", round(busy, 4), 0.0, (), (), text)


def _findings(account: Durations, read: DurationRecords) -> tuple[Finding, ...]:
    """The late ranks, if they are always the same ones."""
    late = late_ranks(account)
    return (
        (_straggler(account, late, read),)
        if late is not None and late.lasting >= STRAGGLER.lasting_straggler_share
        else ()
    )


def _straggler(account: Durations, late: Late, read: DurationRecords) -> Finding:
    cost_share = min(1.0, late.cost_ns / account.wall_ns) if account.wall_ns else 0.0
    names = ranks_text(late.ranks)
    waits = account.wait_ns[[account.ranks.index(rank) for rank in late.ranks]]
    others = np.delete(account.wait_ns, [account.ranks.index(rank) for rank in late.ranks])
    per = account.complete
    was, rows = "was" if len(late.ranks) == 1 else "were", Query("collectives")
    return Finding(
        id=straggler.DIAGNOSIS.id,
        title=f"{sentence(names)} arrive{'s' if len(late.ranks) == 1 else ''} last at the collectives: waiting for "
        f"{'it' if len(late.ranks) == 1 else 'them'} is {share(late.of_busy)} of the other ranks' time in collectives",
        severity=severity(cost_share) if account.wall_ns else Severity.WARN,
        share=round(cost_share, 4),
        cost_ns_per_step=round(late.cost_ns / account.steps) if account.steps else 0,
        confidence=_confidence(account, late, read),
        ranks=late.ranks,
        evidence=(
            Evidence(
                "collectives", f"waiting of {names}", round(float(waits.mean()) / per / 1e6, 3), "ms a collective", rows
            ),
            Evidence(
                "collectives",
                "waiting of the other ranks, median",
                round(float(np.median(others)) / per / 1e6, 3),
                "ms a collective",
                rows,
            ),
            Evidence(
                "collectives",
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


def _notes(account: Durations, read: DurationRecords) -> list[str]:
    notes = [f"the verdict rests on the durations of {account.complete:,} collectives: {only_durations(read.source)}"]
    if account.complete < account.collectives:
        left = account.collectives - account.complete
        notes.append(f"{left:,} collectives were not recorded on all their ranks: left out")
    if read.dropped and read.source == INSPECTOR:
        notes.append(f"NCCL Inspector dropped {counted(read.dropped, 'record')}: NCCL_INSPECTOR_DUMP_COLL_RING_SIZE")
    elif read.dropped:
        part = f"costs are estimated from the {share(read.seen)} that were read"
        notes.append(f"{read.source} overwrote {counted(read.dropped, 'entry', 'entries')}: {part}")
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
