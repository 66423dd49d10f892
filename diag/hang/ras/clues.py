"""Clues to a hang in NCCL RAS reports: ranks that are behind, gone, not initialised, or have an error.

A single report is a snapshot of a running job: ranks launch at different moments, so counts that differ by a few are
normal (NCCL's guide says so), and equal counts do not mean that the collectives end (NVIDIA/nccl#1730). Two reports
decide: a communicator whose counts differ and have not changed is stuck. RAS counts what the host has launched, which
runs ahead of the GPU: the rank with the smallest counts has not called what the others wait in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NewType

from diag.ended.model import Clue, Culprit, Source
from diag.events.behind import uneven, usual_counts, waits_of
from diag.events.rows import Did, Event, GroupRank
from diag.events.said import Report as Word
from diag.events.said import who_said_so
from diag.events.vote import Vote, vote
from diag.hang.policy import NCCL_RAS
from diag.words.formatting import begun, counted, listing, spaced

from ..model import Communicator, Logs, Process, Triage
from ..wording import NOBODY_IS_MISSING
from .read import Reports
from .report import NO_MEMBER, REMOTE_ERROR, RUNNING, Comm, Level, Member, Report

_SURE_AFTER = ((60.0, 0.85), (10.0, 0.75), (3.0, 0.65), (1.0, 0.5))  # seconds without a change

AGAIN = (
    "While the job hangs: `ncclras -f json > ras1.json; sleep 30; ncclras -f json > ras2.json` (NCCL before "
    "2.28.7: `ncclras -v`), or `diag triage --ras`: two reports distinguish a hang from a running job."
)
IN_JSON = "Take the reports with `ncclras -f json` (NCCL 2.28.7 and newer): the text prints no counts that are equal."
NOT_COUNTED = "RAS counts what the host has launched; sends, receives and CUDA graphs are not counted."


@dataclass(frozen=True)
class Findings:
    """``headline``: the answer where nothing names a cause; ``collect``: what to collect next."""

    clues: tuple[Clue, ...] = ()
    coverage: tuple[str, ...] = ()
    gaps: tuple[tuple[str, str], ...] = ()
    headline: str = ""
    healthy: float = 0.0  # confidence that the job makes progress
    culprits: tuple[Culprit, ...] = ()
    evidence: tuple[Source, ...] = ()
    collect: tuple[str, ...] = ()
    all_launched: str = ""  # the ranks, in words, where all answer and have launched the same collectives


def findings_of(reports: Reports, logs: Logs) -> Findings:
    """The findings of the reports. ``logs`` relate their hosts and processes to global ranks."""
    if not reports.reports:
        return Findings(gaps=reports.gaps)
    names = Names(logs, reports.reports)
    series = series_of(reports.reports)
    last = reports.reports[-1]
    clues = [
        *_gone(reports.reports, names),
        *_behind(series, names, gone=_has_gone(last)),
        *_not_running(series, names),
    ]
    return replace(_without_cause(reports.reports, series, names), clues=tuple(clues), gaps=reports.gaps)


def completed(triage: Triage, findings: Findings) -> Triage:
    """The triage with the reports' coverage, and with their headline where nothing else names a cause."""
    triage = replace(
        triage, coverage=(*triage.coverage, *map(spaced, findings.coverage)), gaps=(*triage.gaps, *findings.gaps)
    )
    if findings.all_launched and triage.fault_class == "undetermined" and triage.victims and not triage.guesses:
        # Ranks timed out: what all of them have launched does not end.
        text = (
            f"{spaced(listing(triage.victims))} timed out, and by NCCL RAS {findings.all_launched} have launched "
            "the same collectives: no rank is missing, so a device or the network stands still."
        )
        evidence = tuple(dict.fromkeys((*triage.evidence[:3], *findings.evidence, *triage.evidence[3:])))[:10]
        steps = tuple(dict.fromkeys((NOBODY_IS_MISSING, *triage.next_steps)))
        return replace(triage, headline=begun(text), evidence=evidence, next_steps=steps)
    knows_less = NCCL_RAS.knows_little if findings.culprits else NCCL_RAS.knows_nothing
    if findings.headline and triage.fault_class == "undetermined" and triage.confidence <= knows_less:
        healthy = 0.0 if triage.guesses else findings.healthy
        triage = replace(
            triage,
            fault_class="healthy" if healthy else triage.fault_class,
            confidence=healthy or triage.confidence,
            headline=spaced(findings.headline),
            culprits=findings.culprits,
            evidence=tuple(dict.fromkeys((*findings.evidence, *triage.evidence)))[:10],
            next_steps=() if healthy else triage.next_steps,
        )
    elif findings.headline and triage.fault_class in ("undetermined", "healthy"):
        triage = replace(triage, coverage=(*triage.coverage, f"NCCL RAS: {spaced(findings.headline)}"))
    if triage.fault_class != "healthy" and triage.confidence < NCCL_RAS.sure:
        triage = replace(triage, next_steps=(*findings.collect, *triage.next_steps))
    return triage


class Names:
    """Culprits for ranks of communicators: with the global rank only where it is known."""

    def __init__(self, logs: Logs, reports: Sequence[Report]) -> None:
        self._processes = logs.processes
        self._comms: dict[str, Communicator] = {
            communicator.comm_id.removeprefix("0x").lower().zfill(16): communicator
            for communicator in logs.communicators
            if communicator.comm_id
        }
        pids = Counter(process.pid for process in logs.processes if process.pid is not None)
        self._by_pid = {
            process.pid: process
            for process in logs.processes
            if process.pid is not None and pids[process.pid] == 1 and process.rank is not None
        }
        gpus = max((report.gpus or 0 for report in reports), default=0)
        self.world = logs.world_size if logs.world_size is not None else gpus or None
        if self.world is None or len(self._by_pid) < self.world:
            self._by_pid = {}  # a process of another host, of which there is no log, may have the same pid

    def is_whole_job(self, comm: Comm) -> bool:
        return comm.size is not None and comm.size == self.world

    def culprit(self, member: Member, comm: Comm | None) -> Culprit:
        known = self._known(member, comm)
        if known is not None:
            gpu = member.gpu if member.gpu is not None else known.gpu
            return Culprit(known.rank, known.host or member.host, gpu, "" if comm is None else comm.name)
        if comm is not None and member.rank is not None and self.is_whole_job(comm):
            return Culprit(member.rank, member.host, member.gpu, comm.name)
        peer = f"rank {member.rank} of {comm.name}" if comm is not None and member.rank is not None else ""
        return Culprit(
            None, member.host, member.gpu, comm.name if comm is not None else "", "" if member.host else peer
        )

    def _known(self, member: Member, comm: Comm | None) -> Process | None:
        logged = self._comms.get(comm.hash[:16]) if comm is not None else None
        for logged_member in logged.members if logged is not None else ():
            if logged_member.group_rank == member.rank and logged_member.process is not None:
                process = self._processes[logged_member.process]
                if process.rank is not None:
                    return process
        process_of_pid = self._by_pid.get(member.pid) if member.pid is not None else None
        if process_of_pid is None or (
            None not in (process_of_pid.gpu, member.gpu) and process_of_pid.gpu != member.gpu
        ):
            return None
        return process_of_pid


def _member_words(member: Member) -> str:
    """``rank 7 (process 123 on node1, GPU 3)``."""
    about = [f"process {member.pid}{f' on {member.host}' if member.host else ''}"] if member.pid is not None else []
    about += [f"GPU {member.gpu}"] if member.gpu is not None else []
    name = f"rank {member.rank}" if member.rank is not None else about.pop(0) if about else "a process"
    return f"{name} ({', '.join(about)})" if about else name


def _all(members: Sequence[Member]) -> str:
    if len(members) <= 2:
        return " and ".join(_member_words(member) for member in members)
    ranks = [member.rank for member in members if member.rank is not None]
    if len(ranks) == len(members):
        return spaced(listing(ranks))
    return f"{_member_words(members[0])} and {len(members) - 1} more"


def _process(member: Member) -> Hashable:
    """The identity of a process in all communicators."""
    return (member.host, member.pid, member.gpu) if member.pid is not None else (member.host, member.gpu, member.rank)


@dataclass(frozen=True)
class Series:
    """A communicator in its last report, and in an earlier one. ``seconds``: between them, where both have a time."""

    comm: Comm
    before: Comm | None = None
    seconds: float | None = None

    @property
    def still(self) -> bool:
        """Whether two reports show the same counts and statuses."""
        return self.before is not None and unchanged(self.before, self.comm)

    @property
    def sure(self) -> float:
        """The confidence that nothing moved."""
        if self.seconds is None:
            return NCCL_RAS.interval_unknown
        return next((sure for least, sure in _SURE_AFTER if self.seconds >= least), NCCL_RAS.one_report)

    @property
    def since(self) -> str:
        return f" for {self.seconds:,.0f} s" if self.seconds is not None else " between two reports"


def unchanged(before: Comm, now: Comm) -> bool:
    """Whether two states are the same. Between JSON and text, only numbers of ranks are compared."""
    if before.vectors and now.vectors:
        return before.vectors == now.vectors and _values(before.statuses) == _values(now.statuses)
    mixed = bool(before.vectors) != bool(now.vectors)
    return _differing(before, mixed) == _differing(now, mixed)


def _differing(comm: Comm, numbers_only: bool) -> object:
    by_op = {op: _values(levels, numbers_only) for op, levels in comm.counts.items() if len(levels) > 1}
    return by_op, _values(comm.statuses, numbers_only) if len(comm.statuses) > 1 else None


def _values(levels: Iterable[Level], numbers_only: bool = False) -> frozenset[object]:
    return frozenset(
        (level.value, level.number, () if numbers_only else frozenset(member.rank for member in level.members))
        for level in levels
    )


def series_of(reports: Sequence[Report]) -> list[Series]:
    """The communicators in the last report of their job. In text, one that a later report does not name has no problem
    by then."""
    series = []
    for name in dict.fromkeys(name for report in reports for name in report.comms):
        seen = [number for number, report in enumerate(reports) if name in report.comms]
        latest = seen[-1]
        if any(_same_job(reports[latest], later) and later.whole for later in reports[latest + 1 :]):
            continue
        now = reports[latest]
        earlier = [reports[number] for number in seen[:-1] if _apart(reports[number], now) != 0.0]
        if not earlier:
            series.append(Series(now.comms[name]))
            continue
        # Back to the first of the reports that are all the same.
        then = earlier[-1]
        for report in reversed(earlier):
            if not unchanged(report.comms[name], now.comms[name]):
                break
            then = report
        series.append(Series(now.comms[name], then.comms[name], _apart(then, now)))
    return series


def _apart(first: Report, second: Report) -> float | None:
    if first.time_ns is None or second.time_ns is None:
        return None
    return abs(second.time_ns - first.time_ns) / 1e9


def _same_job(first: Report, second: Report) -> bool:
    if first.json and second.json:
        return bool(set(first.comms) & set(second.comms))
    return first.gpus == second.gpus or None in (first.gpus, second.gpus)


ProcessNumber = NewType("ProcessNumber", int)  # of a process in all communicators


@dataclass(frozen=True)
class _Odd:
    """Ranks whose counts differ from those of the others of a communicator."""

    series: Series
    fault_class: str
    members: tuple[Member, ...]
    confidence: float
    difference: str  # "launched fewer collectives than the others: ..."
    evidence: tuple[Source, ...]
    others: tuple[Member, ...]  # as far as they are named


def _behind(series: Sequence[Series], names: Names, gone: bool) -> list[Clue]:
    odd = [entry for of_comm in series if (entry := _odd(of_comm)) is not None]
    # A rank that is behind in one communicator, and waits for another rank elsewhere, is not the cause.
    numbers: dict[object, ProcessNumber] = {}
    events: list[Event[ProcessNumber]] = []
    members_of: dict[Hashable, list[ProcessNumber]] = {}
    for place, entry in enumerate(odd):
        if entry.fault_class == "missing_rank":
            waiting, late = (
                [numbers.setdefault(_process(member), ProcessNumber(len(numbers))) for member in members]
                for members in (entry.others, entry.members)
            )
            waiting = waiting or [ProcessNumber(-1 - place)]  # a text names only those that differ
            events += [Event(process, 0, did=Did.WAITS, group=place) for process in waiting]
            members_of[place] = [*waiting, *late]
    first = set(waits_of(events, members_of).absent)
    merged: dict[tuple[object, ...], Clue] = {}
    for entry in odd:
        members = entry.members
        if entry.fault_class == "missing_rank" and first:
            members = tuple(member for member in members if numbers[_process(member)] in first)
            if not members:
                continue
        clue = _clue(entry, members, names, NCCL_RAS.explained_factor if gone else 1.0)
        key = (clue.fault_class, *sorted(repr(_process(member)) for member in members))
        if key in merged:
            previous = merged[key]
            best = max(
                previous, clue, key=lambda candidate: (candidate.culprits[0].rank is not None, candidate.confidence)
            )
            evidence = tuple(dict.fromkeys((*previous.evidence, *clue.evidence)))[: NCCL_RAS.most_evidence_rows]
            clue = replace(best, evidence=evidence, confidence=max(previous.confidence, clue.confidence))
        merged[key] = clue
    return list(merged.values())


def _clue(odd: _Odd, members: tuple[Member, ...], names: Names, times: float) -> Clue:
    comm = odd.series.comm
    whole = names.is_whole_job(comm)
    victims = tuple(sorted(m.rank for m in odd.others if m.rank is not None)) if whole else ()
    return Clue(
        fault_class=odd.fault_class,
        culprits=tuple(names.culprit(member, comm) for member in members[: NCCL_RAS.most_culprits]),
        evidence=odd.evidence[: NCCL_RAS.most_evidence_rows],
        confidence=round(odd.confidence * times, 2),
        note=begun(f"{_all(members)} of {_of(comm)} {odd.difference}"),
        victims=victims,
    )


def _odd(series: Series) -> _Odd | None:
    """The ranks that differ; None where counts are equal, where no rank is named, and where ranks make progress."""
    comm = series.comm
    differs = _differences(comm)
    if not differs:
        return None
    size = comm.size or sum(level.number for level in next(iter(comm.counts.values())))
    everybody = map(GroupRank, range(size if size <= NCCL_RAS.most_named_behind else 0))
    found = uneven({GroupRank(rank): list(by_op.values()) for rank, by_op in differs.items()}, everybody)
    crossed, ahead = bool(found.crossed), found.ahead
    ranks = list[int](found.crossed or found.behind)
    if crossed:
        sure = 1 - (1 - NCCL_RAS.crossed_counts) * (1 - series.sure) if series.still else NCCL_RAS.crossed_counts
        fault, difference = str(found.kind), "launched different collectives than"
    elif not ahead:
        sure, fault, difference = series.sure, "missing_rank", "launched fewer collectives than"
    else:
        sure, fault = series.sure * NCCL_RAS.few_ahead_factor, "missing_rank"
        difference = f"launched fewer collectives than {spaced(listing(sorted(ahead)))}"
    if not series.still and not crossed:
        if series.before is not None and not unchanged_counts(series, ranks):
            return None  # all move: a running job
        sure = (
            min(sure * NCCL_RAS.others_move_factor, NCCL_RAS.straggler)
            if series.before is not None
            else min(sure, NCCL_RAS.one_report)
        )
    elif not series.still and series.before is not None and not unchanged_counts(series, ranks):
        return None
    apart = [levels for levels in comm.counts.values() if len(levels) > 1]
    most = bool(apart) and all(_vote(levels, size).most for levels in apart)
    if not ahead and (2 * len(ranks) >= size or not most):
        sure *= NCCL_RAS.no_majority_factor
    if fault != "missing_rank" and size == 2:
        ranks = sorted({*ranks, *(member for member in comm.members)})
    members = tuple(comm.members[rank] for rank in sorted(ranks) if rank in comm.members)
    members = members if not ahead else tuple(comm.members.get(rank, Member(rank)) for rank in ranks)
    if not members:
        return None
    others = tuple(member for rank, member in sorted(comm.members.items()) if rank not in set(ranks))
    still = f"; none of its counts changed{series.since}" if series.still else ""
    if not ahead:
        difference = f"{difference} the others: {_counts(comm, differs, ranks[0])}{still}"
    else:
        difference += (
            f", which wait for them or made a call of their own: {_counts(comm, differs, min(differs))}{still}"
        )
    return _Odd(series, fault, members, sure, difference, _evidence(comm), others)


def _of(comm: Comm) -> str:
    return f"{comm.name}{f' of {comm.size} ranks' if comm.size is not None else ''}"


def _vote(levels: Sequence[Level], of: int | None = None) -> Vote[int | str]:
    return vote({level.value: level.number for level in levels}, of)


def _differences(comm: Comm) -> dict[int, dict[str, int]]:
    """The difference of each rank's counts from the most frequent ones; in text, only for the ranks that are named."""
    by_rank: dict[int, dict[str, int]] = defaultdict(dict)
    if comm.vectors:
        ops, usual = list(comm.counts), usual_counts(comm.vectors.values())
        for rank, vector in comm.vectors.items():
            if vector != usual:
                pairs = zip(ops, vector, usual, strict=False)
                by_rank[rank] = {op: count - expected for op, count, expected in pairs if count != expected}
        return {rank: by_op for rank, by_op in by_rank.items() if by_op}
    for op, levels in comm.counts.items():
        if len(levels) < 2:
            continue
        usual_value = int(_vote(levels).usual)
        for level in levels:
            for member in level.members:
                if member.rank is not None and level.value != usual_value:
                    by_rank[member.rank][op] = int(level.value) - usual_value
    return dict(by_rank)


def unchanged_counts(series: Series, ranks: Sequence[int]) -> bool:
    """Whether the counts of these ranks have not changed since the earlier report, while those of others have."""
    before = series.before
    if before is None:
        return False
    if series.comm.vectors:
        return all(before.vectors.get(rank) == series.comm.vectors.get(rank) for rank in ranks)
    return all(_named_counts(before, rank) == _named_counts(series.comm, rank) != {} for rank in ranks)


def _named_counts(comm: Comm, rank: int) -> dict[str, int]:
    return {
        op: int(level.value)
        for op, levels in comm.counts.items()
        for level in levels
        if any(member.rank == rank for member in level.members)
    }


def _counts(comm: Comm, differs: Mapping[int, Mapping[str, int]], rank: int) -> str:
    """``AllReduce 60, not 64``."""
    parts = []
    for op in differs.get(rank, {}):
        usual = _usual_value(comm, op)
        parts.append(f"{op or 'collectives'} {usual + differs[rank][op]:,}, not {usual:,}")
    return "; ".join(parts[:3]) or "different counts"


def _usual_value(comm: Comm, op: str) -> int:
    if comm.vectors:
        return usual_counts(comm.vectors.values())[list(comm.counts).index(op)]
    return int(_vote(comm.counts[op]).usual)


def _counts_differ(comm: Comm) -> bool:
    return any(len(levels) > 1 for levels in comm.counts.values())


def _evidence(comm: Comm) -> tuple[Source, ...]:
    lines = [comm.evidence] if comm.evidence.line else []
    lines += [level.evidence for levels in comm.counts.values() if len(levels) > 1 for level in levels[:3]]
    return tuple(dict.fromkeys(lines))


def _has_gone(report: Report) -> bool:
    return report.dead is not None or report.absent is not None


def _gone(reports: Sequence[Report], names: Names) -> list[Clue]:
    """Clues for processes that do not answer RAS in the last report."""
    last = reports[-1]
    clues = []
    earlier = [report for report in reports[:-1] if _same_job(report, last)]
    for level, is_dead in ((last.dead, True), (last.absent, False)):
        if level is None:
            continue
        members = _with_ranks(level.members, last, names)
        known = who_said_so([_as_said(level)]).named
        before = set(who_said_so(_as_said(report.absent) for report in earlier if report.absent is not None).named)
        if is_dead:
            sure = NCCL_RAS.process_dead if last.comms or last.rows else NCCL_RAS.process_dead_at_the_end
            problem = "RAS has had no connection for 60 s and considers dead"
        else:
            sure = NCCL_RAS.unresponsive_twice if known and before.issuperset(known) else NCCL_RAS.unresponsive
            problem = "RAS gets no answer from"
        shown = [
            member if comm is None or names.is_whole_job(comm) else replace(member, rank=None)
            for member, comm in members
        ]
        processes = _all(shown) if shown else spaced(counted(level.number, "process", "processes"))
        comms = [comm.unreachable.evidence for comm in last.comms.values() if comm.unreachable is not None]
        clues.append(
            Clue(
                fault_class="missing_rank",
                culprits=tuple(names.culprit(member, comm) for member, comm in members[: NCCL_RAS.most_culprits]),
                evidence=(level.evidence, *comms)[: NCCL_RAS.most_evidence_rows],
                confidence=sure,
                note=f"{problem} {processes}: the process has ended, is stopped, or its host cannot be reached",
            )
        )
    return clues


def _as_said(level: Level) -> Word[Hashable]:
    """The processes of which RAS says that they do not answer. It names no ranks of them."""
    return Word(tuple(_process(replace(member, rank=None)) for member in level.members))


def _with_ranks(peers: Sequence[Member], report: Report, names: Names) -> list[tuple[Member, Comm | None]]:
    """Processes with their rank in the most informative communicator: the whole job's, else the largest."""
    ranks: dict[object, tuple[bool, int, Member, Comm]] = {}
    for comm in report.comms.values():
        for member in comm.unreachable.members if comm.unreachable is not None else ():
            place = (names.is_whole_job(comm), comm.size or 0)
            key = (member.host, member.pid)
            if key not in ranks or place > ranks[key][:2]:
                ranks[key] = (*place, member, comm)
    return [ranks[peer.host, peer.pid][2:] if (peer.host, peer.pid) in ranks else (peer, None) for peer in peers]


def _not_running(series: Sequence[Series], names: Names) -> list[Clue]:
    """Clues for a few ranks of a communicator that still initialise or have left it while the others use it, or that
    still use it while the others wait for its end."""
    clues = []
    for entry in series:
        comm = entry.comm
        levels = sorted(entry.comm.statuses, key=lambda level: -level.number)
        if len(levels) < 2 or any(level.value == "ABORT" for level in levels) or not _vote(levels).most:
            continue
        usual = _vote(levels).usual
        for level in levels[1:]:
            reason = _reason(usual, level.value)
            if reason is None or not level.members:
                continue
            problem, times = reason
            sure = entry.sure * times if entry.still else (NCCL_RAS.one_report if entry.before is None else 0.0)
            if not sure:
                continue
            still = f"; that did not change{entry.since}" if entry.still else ""
            clues.append(
                Clue(
                    fault_class="missing_rank",
                    culprits=tuple(names.culprit(member, comm) for member in level.members[: NCCL_RAS.most_culprits]),
                    evidence=tuple(shown.evidence for shown in levels[: NCCL_RAS.most_evidence_rows]),
                    confidence=round(sure, 2),
                    note=begun(
                        f"{_all(level.members)} of {_of(comm)} {problem}: {level.value}, the others {usual}{still}"
                    ),
                )
            )
    return clues


def _reason(usual: object, value: object) -> tuple[str, float] | None:
    if usual == RUNNING and value == "INIT":
        return "did not complete the initialisation", NCCL_RAS.initialising_factor
    if usual in (RUNNING, "INIT") and value in NO_MEMBER:
        return "does not take part in it", NCCL_RAS.left
    if usual == RUNNING and value == "FINALIZE":
        return "has begun to leave it", NCCL_RAS.left
    if usual in ("FINALIZE", *NO_MEMBER) and value == RUNNING:
        return "has not begun to leave it", NCCL_RAS.left
    return None


def _without_cause(reports: Sequence[Report], series: Sequence[Series], names: Names) -> Findings:
    last = reports[-1]
    coverage = [_read(reports)]
    failed = [(entry.comm, level) for entry in series for level in (*entry.comm.async_errors, *entry.comm.init_errors)]
    own_errors = [(comm, level) for comm, level in failed if level.value != REMOTE_ERROR]
    aborted = sum(level.number for entry in series for level in entry.comm.statuses if level.value == "ABORT")
    if aborted:
        coverage.append(f"{counted(aborted, 'rank')} of communicators aborted: that follows an error or a time-out.")
    if last.timeouts:
        coverage.append(f"RAS itself had {counted(last.timeouts, 'time-out')} while it queried the ranks.")
    evidence = (*(row.evidence for row in last.rows[:4]), last.evidence)
    if failed:
        comm, level = (own_errors or failed)[0]
        members = level.members
        kind = "asynchronous" if level in comm.async_errors else "initialisation"
        ranks = _all(members) if members else spaced(counted(level.number, "rank"))
        return Findings(
            coverage=tuple(coverage),
            headline=f"NCCL reports an {kind} error, {level.value!r}, on {ranks} of {_of(comm)}; what caused it is in "
            "that rank's log.",
            culprits=tuple(names.culprit(member, comm) for member in members) if own_errors else (),
            evidence=(level.evidence, *evidence),
            collect=(f"Read the NCCL WARN lines of {ranks}: RAS reports no more about an error.",),
        )
    moved, still = _moves(reports, series)
    between = [report for report in reports[:-1] if _same_job(report, last) and _apart(report, last) != 0.0]
    well = last.whole and not _has_gone(last) and not last.empty
    if moved and well and not still:
        seconds = _apart(between[0], last) if between else None
        within = f" within {seconds:,.0f} s" if seconds is not None else ""
        return Findings(
            coverage=tuple(coverage),
            headline=f"The job makes progress: ranks launched collectives between two NCCL RAS reports{within}.",
            healthy=NCCL_RAS.progress,
            evidence=evidence,
            collect=(AGAIN,),
        )
    differ = [entry for entry in series if _counts_differ(entry.comm)]
    known = last.gpus or sum(entry.comm.size or 0 for entry in series[:1])
    launched = f"all {spaced(counted(known, 'rank'))}" if well and known and not differ else ""
    initialising = [row for row in last.rows if row.status == "INIT"]
    initialising_comms = [entry for entry in series if {level.value for level in entry.comm.statuses} == {"INIT"}]
    collect: tuple[str, ...] = (AGAIN,)
    if initialising or initialising_comms:
        text = "The initialisation of a communicator is not complete, and no rank differs from the others in it."
    elif differ and not still:
        text = "Ranks have launched different numbers of collectives, as in any running job."
    elif differ:
        text = "Ranks have launched different numbers of collectives and stall; it is unclear which is wrong."
        collect = (IN_JSON,) if not last.json else ()
    elif last.empty:
        text = "RAS knows of no communicator: the job has not created one yet, or has ended."
    elif not between:
        text = "All ranks answer and have launched the same collectives; two reports show whether they continue."
    elif last.json and between[-1].json:
        text = (
            "All ranks have launched the same collectives, and none launched another one between two reports: a step "
            "that takes longer, or a collective that does not end on the GPUs or the network."
        )
        coverage.append(NOT_COUNTED)
    else:
        text = "All ranks answer and no counts differ; the text does not show whether they continue."
        collect = (IN_JSON, AGAIN)
    starting = bool(initialising or initialising_comms)
    return Findings(
        coverage=tuple(coverage),
        headline=text,
        evidence=evidence,
        collect=collect,
        all_launched="" if starting else launched,
    )


def _read(reports: Sequence[Report]) -> str:
    last = reports[-1]
    about = f"{counted(len(reports), 'NCCL RAS report')}{f' of NCCL {last.version}' if last.version else ''}"
    comms = sum(row.comms for row in last.rows) or len(last.comms)
    return f"{about}; the last shows {counted(comms, 'communicator')}{f' on {last.gpus} GPUs' if last.gpus else ''}."


def _moves(reports: Sequence[Report], series: Sequence[Series]) -> tuple[bool, bool]:
    """Whether counts changed between the last report and an earlier one, and whether counts that differ stayed."""
    last = reports[-1]
    moved = any(entry.before is not None and not entry.still for entry in series)
    for report in reports[:-1]:
        if _same_job(report, last) and not last.json and last.whole and _apart(report, last) != 0.0:
            # In text: counts that differed then do not now.
            moved |= any(name not in last.comms and _counts_differ(comm) for name, comm in report.comms.items())
    still = any(entry.still and _counts_differ(entry.comm) for entry in series)
    return moved, still
