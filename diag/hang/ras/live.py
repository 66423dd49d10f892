"""NCCL RAS's reports on one run, for a page that is redrawn often: fetched while the run trains, or read from the
reports that ``diag run`` kept.

Only addresses of the run are asked. NCCL's processes listen on NCCL_RAS_ADDR, by default on the localhost of each node;
where that is a wildcard address, the hosts of the run's ranks are asked at its port. No other address is tried.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from diag.collectors.layout import RunLayout, world_size_of
from diag.collectors.masking import masked
from diag.collectors.reading import open_regular
from diag.collectors.records import RankRecord
from diag.ended.model import Clue, Source
from diag.errors import DiagError
from diag.hang.policy import NCCL_RAS
from diag.rundir.job_ranks import job_ranks
from diag.rundir.lines import read_identity, read_manifest
from diag.rundir.runs import recording_environment
from diag.words.formatting import counted, listing, spaced, visible

from ..model import Logs, Process
from .client import VARIABLE, address_of, ask
from .clues import NOT_COUNTED as NOT_COUNTED
from .clues import Names, Series, findings_of, series_of, unchanged, unchanged_counts
from .read import Reports, read_reports
from .report import RUNNING, Comm, Level, Member, Report

_ENABLE = "NCCL_RAS_ENABLE"
_LEAST = (2, 24)  # the first NCCL with RAS
_LOOPBACK = re.compile(r"localhost|127(?:\.\d{1,3}){3}|::1", re.IGNORECASE)
_ANYWHERE = ("0.0.0.0", "::")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_VERSION = re.compile(rb"NCCL version (\d{1,3})\.(\d{1,3})[\w.+-]{0,40}")
_SWITCHED_OFF = re.compile(rb"NCCL_RAS_ENABLE set by environment to 0\b")


@dataclass(frozen=True)
class Row:
    """Ranks of a communicator about which RAS reports the same. ``still``: since when, in words; "" where that does not
    apply. ``trouble``: a job that makes progress does not have it."""

    communicator: str
    ranks: str
    host: str
    says: str
    still: str = ""
    trouble: bool = False


@dataclass(frozen=True)
class Seen:
    """``why``: one sentence on why there is no new report, "" where there is one; the rest is that of the last report.
    ``source``: where it came from, "" where there is none. ``at_s``: when it came, Unix time in seconds. ``summary``:
    one sentence. ``trouble``: the user should look. ``lines``: those that RAS printed. ``covered``: not known to be a
    run without NCCL."""

    why: str = ""
    source: str = ""
    at_s: float | None = None
    summary: str = ""
    trouble: bool = False
    rows: tuple[Row, ...] = ()
    more_rows: int = 0
    lines: tuple[str, ...] = ()
    covered: bool = True


_ASKING = Seen(why="Querying NCCL RAS.")


class Watch:
    """Asks NCCL RAS of one run in a thread of its own, so that callers never wait for the network: at most every
    ``every_s`` seconds, and only when ``look`` is called. Any thread may call it."""

    def __init__(self, run: Path, every_s: float | None = None, again_s: float | None = None) -> None:
        self._run = RunLayout(run)
        self._every_s = NCCL_RAS.every_s if every_s is None else every_s
        self._again_s = NCCL_RAS.again_s if again_s is None else again_s
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._due_s = 0.0  # monotonic
        self._job = _Job(RunLayout(run), ())
        self._reports: list[Report] = []
        self._last = Seen()  # with a report
        self._seen = _ASKING

    def look(self, wait_s: float = 0.0) -> Seen:
        """The last answer. Asks for the next one when it is due; waits ``wait_s`` seconds at most, and only for the
        first one. Never raises."""
        with self._lock:
            idle = self._thread is None or not self._thread.is_alive()
            if idle and time.monotonic() >= self._due_s:
                self._thread = threading.Thread(target=self._ask, name="diag-ras", daemon=True)
                self._thread.start()
            thread = self._thread
        if thread is not None and self._seen is _ASKING:
            thread.join(wait_s)
        return self._seen

    def _ask(self) -> None:
        seen = replace(self._last, why="NCCL RAS cannot be queried: see the dashboard's log.")
        try:
            before, self._job = self._job, self._job.newest()
            if before.attempt != self._job.attempt:
                self._reports, self._last = [], Seen()
            seen = self._answer()
        finally:
            self._seen = seen
            self._due_s = time.monotonic() + (self._again_s if seen.why else self._every_s)

    def _answer(self) -> Seen:
        try:
            addresses = self._job.addresses()
        except DiagError as error:
            return Seen(why=error.message, covered=not self._job.without_nccl)
        why = ""
        for address in addresses:
            try:
                answer = ask(address, NCCL_RAS.live_answer_s)
            except DiagError as error:
                why = why or error.message
                continue
            reports = read_reports((), [answer])
            if not reports.reports:
                reason = reports.gaps[0][1] if reports.gaps else "it holds no report"
                why = f"NCCL RAS at {address} answered, and its answer cannot be read: {reason}."
            elif not self._job.is_of(reports.reports[-1]):
                why = f"NCCL RAS at {address} answers for another job. {VARIABLE} gives each job its own address."
            else:
                self._reports = _thinned([*self._reports, reports.reports[-1]])
                self._last = _seen(self._reports, self._job.logs(), f"NCCL RAS at {address}")
                return self._last
        return replace(self._last, why=self._job.why_off() or f"{why.rstrip('.')}.")


def _thinned(reports: list[Report]) -> list[Report]:
    """The last reports. Drops the oldest ones since which everything has changed, and thins out the others with their
    age."""
    last = reports[-1]

    def unchanged_since(report: Report) -> bool:
        return any(name in last.comms and unchanged(comm, last.comms[name]) for name, comm in report.comms.items())

    while len(reports) > 2 and not unchanged_since(reports[0]):
        reports = reports[1:]
    while len(reports) > NCCL_RAS.most_live_reports:
        gaps = [
            (after.time_ns or 0) - (before.time_ns or 0) for before, after in zip(reports, reports[2:], strict=False)
        ]
        least = gaps.index(min(gaps)) + 1
        reports = reports[:least] + reports[least + 1 :]
    return reports


@dataclass(frozen=True)
class _Job:
    """A run's processes, as they recorded themselves, and where their RAS listens."""

    run: RunLayout  # that the training was started with
    ranks: tuple[RankRecord, ...]
    attempt: RunLayout | None = None  # where they are recorded: another folder after a restart
    folders: int = 0
    world: int | None = None
    backend: str = ""

    def newest(self) -> _Job:
        """The same run as it is now; read again only where ranks have come or torchrun has restarted it."""
        attempt = self.run.newest()
        try:
            folders = job_ranks(attempt).files
        except OSError:
            folders = {}
        if attempt == self.attempt and len(folders) == self.folders == len(self.ranks):
            return self
        manifest, _ = read_manifest(attempt)
        read = [read_identity(files)[0] for files in list(folders.values())[: NCCL_RAS.most_identities_read]]
        identities = tuple(identity for identity in read if identity is not None)
        world = world_size_of(manifest.world_size) if manifest is not None else None
        backend = (manifest.backend or "") if manifest is not None else ""
        return _Job(self.run, identities, attempt, min(len(folders), NCCL_RAS.most_identities_read), world, backend)

    @property
    def without_nccl(self) -> bool:
        """Whether its process groups are known to use another backend."""
        return bool(self.backend) and "nccl" not in self.backend

    def addresses(self) -> list[str]:
        """Where to ask. Raises DiagError where there is nothing to ask: its message is the reason."""
        if self.without_nccl:
            raise DiagError(f"NCCL RAS does not cover this run: its backend is {self.backend[:80]}.")
        if not self.ranks:
            raise DiagError("NCCL RAS is not queried: no rank has recorded its host yet.")
        if all(rank.device == "cpu" for rank in self.ranks):
            raise DiagError("NCCL RAS does not cover this run: its ranks train on CPUs.")
        environment = self._environment()
        if environment.get(_ENABLE, "").strip() == "0":
            raise DiagError(f"NCCL RAS is off: the job runs with {_ENABLE}=0.")
        address = environment.get(VARIABLE) or os.environ.get(VARIABLE, "")
        host, port = address_of(address)
        if host in _ANYWHERE:
            return [f"{name}:{port}" for name in (["localhost"] if self._here() else self._hosts())]
        if _LOOPBACK.fullmatch(host) and not self._here() and not os.environ.get(VARIABLE):
            raise DiagError(
                f"NCCL RAS listens on the localhost of {self._hosts_named()}: open the dashboard there, or set "
                f"{VARIABLE} for the job and the dashboard."
            )
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]

    def _environment(self) -> dict[str, str]:
        """The environment of a process of this run on this host; empty where none may be read."""
        start = self.run.first
        here = (rank for rank in self.ranks if rank.host == socket.gethostname())
        return next((environment for rank in here if (environment := recording_environment(start, rank.pid))), {})

    def _here(self) -> bool:
        return any(rank.host == socket.gethostname() for rank in self.ranks)

    def _hosts(self) -> list[str]:
        hosts = list(dict.fromkeys(rank.host for rank in self.ranks if _HOST.fullmatch(rank.host)))
        if not hosts:
            raise DiagError("NCCL RAS is not queried: the ranks have recorded no host that can be queried.")
        return hosts[: NCCL_RAS.most_hosts_asked]

    def _hosts_named(self) -> str:
        hosts = list(dict.fromkeys(rank.host[:80] for rank in self.ranks))
        return ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")

    def is_of(self, report: Report) -> bool:
        """Whether a report can be about this run. Several jobs of a host may share a port."""
        levels = [level for level in (report.absent, report.dead) if level is not None]
        named = [member for comm in report.comms.values() for member in comm.members.values()]
        pids = {member.pid for member in (*named, *(peer for level in levels for peer in level.members))} - {None}
        return not pids or bool(pids & {rank.pid for rank in self.ranks})

    def why_off(self) -> str:
        """Why nothing listens, from the first rank's NCCL log; "" where it does not show that."""
        if self.attempt is None or not self.ranks:
            return ""
        try:
            with open_regular(self.attempt.rank(self.ranks[0].rank).nccl_log, self.attempt.root) as file:
                head = file.read(NCCL_RAS.log_bytes)
        except OSError:
            return ""
        version = _VERSION.search(head)
        if version is not None and (int(version[1]), int(version[2])) < _LEAST:
            return f"NCCL {int(version[1])}.{int(version[2])} has no RAS: it came with 2.24."
        return f"NCCL RAS is off: the job runs with {_ENABLE}=0." if _SWITCHED_OFF.search(head) else ""

    def logs(self) -> Logs:
        """The processes, to relate ranks of communicators to global ranks."""
        processes = tuple(
            Process(rank.host, rank.pid, rank.rank, rank.local_rank, rank.device_index) for rank in self.ranks
        )
        return Logs((), processes, (), self.world, (), ())


def recorded_ns(run: Path) -> int:
    """The time at which the last report was written into the run directory, Unix time in ns; 0 where there is none."""
    times = [0]
    for path in _files(RunLayout(run).newest()):
        with suppress(OSError):  # taken back meanwhile
            times.append(path.stat().st_mtime_ns)
    return max(times)


def _files(attempt: RunLayout) -> list[Path]:
    try:
        return attempt.all_nccl_ras("*")[: NCCL_RAS.most_live_files]
    except OSError:
        return []


def recorded(run: Path) -> Seen | None:
    """The last report that ``diag run`` kept in the run directory; None where it kept none that can be read."""
    job = _Job(RunLayout(run), ()).newest()
    reports = read_reports(map(str, _files(job.attempt or job.run)))
    if not reports.reports:
        return None
    last = reports.reports[-1]
    seen = _seen(list(reports.reports), job.logs(), "NCCL RAS report in the run directory")
    return replace(seen, at_s=last.time_ns / 1e9 if last.time_ns is not None else None)


# -- what reports say --------------------------------------------------------------------------------------------------


def _seen(reports: Sequence[Report], logs: Logs, source: str) -> Seen:
    last = reports[-1]
    findings = findings_of(Reports(tuple(reports)), logs)
    clue = max(findings.clues, key=lambda candidate: candidate.confidence, default=None)
    rows = sorted(_rows(reports, Names(logs, reports)), key=lambda row: not row.trouble)
    summary = _of_the_job(clue) if clue is not None else findings.headline
    version = f" (NCCL {last.version})" if last.version else ""
    return Seen(
        source=f"{source}{version}",
        at_s=time.time(),
        summary=_shown(summary if summary.endswith(".") else f"{summary}."),
        trouble=any(row.trouble for row in rows) or (clue is not None and clue.confidence >= NCCL_RAS.live_sure),
        rows=tuple(rows[: NCCL_RAS.most_live_rows]),
        more_rows=max(0, len(rows) - NCCL_RAS.most_live_rows),
        lines=_lines(last),
    )


def _of_the_job(clue: Clue) -> str:
    """The clue's note, which numbers ranks within their communicator, with the job's ranks where they are others."""
    ranks = spaced(listing(sorted(clue.ranks))) if clue.ranks else ""
    if not ranks or re.search(rf"{re.escape(ranks)}\b", clue.note, re.IGNORECASE):
        return clue.note
    return f"{clue.note}. In the job: {ranks}."


def _shown(text: str) -> str:
    return masked(visible(text.strip()))[:400]


def _lines(report: Report) -> tuple[str, ...]:
    """The lines of RAS's text that report a problem. For JSON, the same facts in the words of ``report``."""
    evidence: list[Source] = [row.evidence for row in report.rows if row.errors != "OK"]
    evidence += [level.evidence for level in (report.dead, report.absent) if level is not None]
    for comm in report.comms.values():
        evidence += [comm.evidence, *(level.evidence for level in _troubles(comm))]
    texts = [text for item in evidence if (text := _shown(item.text))]
    if report.timeouts:
        texts.append(f"RAS had {counted(report.timeouts, 'time-out')} while it queried the ranks")
    return tuple(dict.fromkeys(texts))[: NCCL_RAS.most_live_lines]


def _troubles(comm: Comm) -> Iterator[Level]:
    """The levels of a communicator that differ from the usual ones."""
    yield from (comm.unreachable,) if comm.unreachable is not None else ()
    yield from (*comm.init_errors, *comm.async_errors)
    yield from comm.statuses if len(comm.statuses) > 1 else ()
    for levels in comm.counts.values():
        yield from levels[: NCCL_RAS.most_levels] if len(levels) > 1 else ()


def _rows(reports: Sequence[Report], names: Names) -> Iterator[Row]:
    last = reports[-1]
    named: set[object] = set()
    current = {id(comm) for comm in last.comms.values()}
    for series in series_of(reports):
        comm = series.comm
        if id(comm) not in current:
            continue
        at = _Place(comm, names)
        if comm.unreachable is not None:
            named |= {(member.host, member.pid) for member in comm.unreachable.members}
            yield from _silent(comm, at)
        yield from _faults(comm, at)
        yield from _counts(series, at)
    for level, says in ((last.dead, _DEAD), (last.absent, _SILENT)):
        for member in level.members if level is not None else ():
            if (member.host, member.pid) not in named:  # a process of no communicator that is known
                culprit = names.culprit(member, None)
                rank = listing([culprit.rank]) if culprit.rank is not None else f"process {member.pid}"
                yield Row("-", rank, culprit.host, says, trouble=True)


_SILENT = "does not answer"
_DEAD = "does not answer: RAS has had no connection for 60 s and considers it dead"


@dataclass(frozen=True)
class _Place:
    """Names the ranks and hosts of a communicator."""

    comm: Comm
    names: Names

    def row(self, members: Sequence[Member], number: int, says: str, still: str = "", trouble: bool = False) -> Row:
        """``number``: of the ranks, of which ``members`` are named."""
        culprits = [self.names.culprit(member, self.comm) for member in members]
        ranks = [culprit.rank for culprit in culprits if culprit.rank is not None]
        group_ranks = [member.rank for member in members if member.rank is not None]
        if not members or max(len(ranks), len(group_ranks)) < number:
            text = counted(number, "rank")
        elif len(ranks) == number:
            text = listing(sorted(ranks))
        else:
            text = f"{listing(sorted(group_ranks))} of the communicator"
        hosts = list(dict.fromkeys(culprit.host for culprit in culprits if culprit.host))
        host = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
        if number == len(culprits) == 1 and culprits[0].gpu is not None:
            host = ", ".join(filter(None, (host, f"GPU {culprits[0].gpu}")))
        size = f", {counted(self.comm.size, 'rank')}" if self.comm.size is not None else ""
        return Row(f"0x{self.comm.hash}{size}", text, _shown(host), _shown(says), still, trouble)


def _silent(comm: Comm, at: _Place) -> Iterator[Row]:
    level = comm.unreachable
    assert level is not None
    dead = [member for member in level.members if member.rank in comm.dead]
    silent = [member for member in level.members if member.rank not in comm.dead]
    if dead:
        yield at.row(dead, len(dead), _DEAD, trouble=True)
    if silent or level.number > len(level.members):
        yield at.row(silent, level.number - len(dead), _SILENT, trouble=True)


def _faults(comm: Comm, at: _Place) -> Iterator[Row]:
    """Errors, and ranks whose status differs from that of most ranks."""
    for kind, levels in (("initialisation", comm.init_errors), ("asynchronous", comm.async_errors)):
        for level in levels:
            yield at.row(level.members, level.number, f"NCCL reports an {kind} error: {level.value}", trouble=True)
    statuses = sorted(comm.statuses, key=lambda level: -level.number)
    for level in statuses[1:]:
        says = f"status {level.value}, the others {statuses[0].value}"
        yield at.row(level.members, level.number, says, trouble=level.value == "ABORT")
    if len(statuses) == 1 and statuses[0].value != RUNNING:
        yield at.row(statuses[0].members, statuses[0].number, f"status {statuses[0].value}")


def _counts(series: Series, at: _Place) -> Iterator[Row]:
    """Rows for counts that differ, and for equal counts where they do not change."""
    comm = series.comm
    differ = {op: levels for op, levels in comm.counts.items() if len(levels) > 1}
    for op, levels in differ.items():
        for level in levels[: NCCL_RAS.most_levels]:
            says = f"{op or 'collectives'}: {int(level.value):,} launched"
            yield at.row(level.members, level.number, says, _since(series, level))
        if len(levels) > NCCL_RAS.most_levels:
            others = sum(level.number for level in levels[NCCL_RAS.most_levels :])
            yield at.row((), others, f"{op or 'collectives'}: different counts", _since(series, None))
    if not differ and series.still and comm.counts:
        launched = [f"{op} {int(levels[0].value):,}" for op, levels in comm.counts.items() if levels[0].value]
        members = next(iter(comm.counts.values()))[0]
        says = f"equal counts: {', '.join(launched) or 'no collective launched'}"
        yield at.row(members.members, members.number, says, _since(series, None))


def _since(series: Series, level: Level | None) -> str:
    """Since when the counts of these ranks have not changed, in words."""
    if series.before is None:
        return "one report so far"
    if series.still:
        return f"unchanged for {series.seconds:,.0f} s" if series.seconds is not None else "unchanged since a report"
    ranks = [member.rank for member in level.members if member.rank is not None] if level is not None else []
    whole = level is not None and len(ranks) == level.number
    return "unchanged, while others make progress" if whole and unchanged_counts(series, ranks) else "changing"
