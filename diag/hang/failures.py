"""A job's failures and progress, from its lines: torchrun's last block, collectives that timed out, steps."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from diag.ended.model import Culprit, short_host
from diag.events.vote import vote
from diag.hang.classes import CLASSES
from diag.hang.classes.base import Hit
from diag.hang.classes.endings import DONE, OF_ONE_JOB, UNDERWAY
from diag.hang.classes.processes import SAYS
from diag.hang.job import JobLogs, culprit_of
from diag.hang.model import MOST_RANKS, Line, Role, Speaker, absent_of, grouped
from diag.hang.numbering import Member, Numbering
from diag.hang.policy import HANG_EVIDENCE, HANG_RULES
from diag.hang.text.prefixes import at_ns
from diag.hang.text.work import FULL_BAR, LAST_STEP, MEASUREMENT, STEP, bar_seconds, counts_of

# -- torchrun's last block: which rank failed, where, with which exit code ---------------------------------------------

# Without the bracket, and the other failures below instead of above it: torch 1.9, elastic/multiprocessing/errors.
_ROOT, _OTHERS = re.compile(r"Root Cause \(first observed failure\)|^Root Cause:$"), "Other Failures:"
_FIELD = re.compile(r"^\s{1,6}(?P<name>time|host|rank|exitcode|error_file|traceback)\s*: ?(?P<value>.*)$")
_RANK = re.compile(r"(\d{1,9})(?: \(local_rank: (\d{1,9})\))?")
_EXIT = re.compile(r"(-?\d{1,9})(?: \(pid: (\d{1,9})\))?")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)_(\d\d):(\d\d):(\d\d)")


@dataclass(frozen=True)
class FailedRank:
    """One failure in torchrun's last block. ``root``: torchrun lists it as the first failure that it observed."""

    rank: int | None
    local_rank: int | None
    host: str
    pid: int | None
    exitcode: int | None
    root: bool
    path: str
    first: int
    last: int
    evidence: Line
    time_ns: int | None = None  # when the launcher observed it


def failed_ranks(job: JobLogs) -> tuple[FailedRank, ...]:
    """Every failure that a launcher listed, in order."""
    failures: list[FailedRank] = []
    fields: dict[str, str] = {}
    lines: list[Line] = []
    root = False
    for line in job.logs.lines:
        text = line.text
        match = _FIELD.match(text)
        new = lines and (line.path != lines[-1].path or line.number - lines[-1].number > HANG_RULES.failure_reach)
        if lines and (new or (match is not None and match["name"] in fields)):
            failures += _failed_rank(fields, lines, root)
            fields, lines, root = {}, [], root and not new
        if (begins := _ROOT.search(text) is not None) or text == _OTHERS:
            failures += _failed_rank(fields, lines, root)
            fields, lines, root = {}, [], begins
        elif match is not None:
            fields[match["name"]] = match["value"]
            lines.append(line)
    return tuple(failures + _failed_rank(fields, lines, root))


def _failed_rank(fields: dict[str, str], lines: list[Line], root: bool) -> list[FailedRank]:
    if not lines or not {"exitcode", "rank"} & set(fields):
        return []
    rank, ended = _RANK.match(fields.get("rank", "")), _EXIT.match(fields.get("exitcode", ""))
    evidence = next((line for line in lines if "exitcode" in line.text), lines[0])
    return [
        FailedRank(
            rank=int(rank[1]) if rank else None,
            local_rank=int(rank[2]) if rank and rank[2] else None,
            host=short_host(fields.get("host", "").strip()),
            pid=int(ended[2]) if ended and ended[2] else None,
            exitcode=int(ended[1]) if ended else None,
            root=root,
            path=lines[0].path,
            first=lines[0].number,
            last=lines[-1].number,
            evidence=evidence,
            time_ns=evidence.time_ns if evidence.time_ns is not None else _time(fields.get("time", "")),
        )
    ]


def _time(text: str) -> int | None:
    """Nanoseconds of ``2026-01-01_00:00:00``, in the time zone of its host."""
    match = _TIME.match(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second = map(int, match.groups())
    return at_ns(year, month, day, hour, minute, second, "")


def speaker_of(job: JobLogs, line: Line) -> Culprit:
    """The culprit that printed a line, also where only the launcher knows the rank: by the pid of a process that it saw
    end, by local rank, or, for a line without either, the launcher's only process that ended with an error."""
    if (passed_on := _passed_on(job, line)) is not None:
        return passed_on
    culprit = job.culprit(line)
    if culprit.rank is not None:
        return culprit
    if (spawned := _spawned(job, line)) is not None:
        return of_process(job, spawned, int(spawned.groups["process"]))
    rank = _rank_by_launcher(job, line, culprit.host)
    rank = _rank_by_ray(job, line.path, line.speaker.pid, line.speaker.host) if rank is None else rank
    rank = _rank_beside(job, line) if rank is None else rank
    rank = _rank_by_paddle(job, line) if rank is None else rank
    rank = _rank_on_one_host(job, line) if rank is None else rank
    # Where a job has one process, all that is not of its launcher is of that one.
    if rank is None and job.logs.world_size == 1 and line.source not in ("kernel", "launcher"):
        rank = 0
    if rank is None:
        return culprit if culprit.host else _of_ray(job, line) or culprit
    return job.of_rank(rank, culprit.host)


def _rank_on_one_host(job: JobLogs, line: Line) -> int | None:
    """The local rank of a line's process, which is its rank where all ranks are on one host: nothing shows a second
    one, and the job is no larger than a host can be."""
    local, size = line.speaker.local_rank, job.logs.world_size
    fits = size is None or size <= HANG_RULES.most_gpus_of_a_host
    alone = len(job.hosts_shown) <= 1 and not job.once(failed_ranks)
    return local if local is not None and fits and alone else None


def _rank_by_ray(job: JobLogs, path: str, pid: int | None, host: str) -> int | None:
    """The rank that Ray Train gave a process, of which the host may be unknown."""
    started = job.once(_started_by_ray).get((path, pid), set()) if pid is not None else set()
    ranks = {rank for rank, at in started if not host or at == host}
    return ranks.pop() if len(ranks) == 1 else None


def _started_by_ray(job: JobLogs) -> dict[tuple[str, int | None], set[tuple[int, str]]]:
    """By file and pid the ranks, each with its host, that Ray Train lists as it starts its workers."""
    hits = job.named("ray-started")
    return grouped(
        ((hit.line.path, int(hit.groups["pid"])), (int(hit.groups["rank"]), hit.groups["host"])) for hit in hits
    )


def _passed_on(job: JobLogs, line: Line) -> Culprit | None:
    """The process that raised an exception which another one prints: the title of its traceback stands above,
    ``ray::Trainer.fit() (pid=619, ip=10.0.0.2)`` of Ray or ``Traceback (most recent call last): (RANK 3)`` of torch's
    checkpoints. Of several, the exception is of the last."""
    if line.source in ("nccl", "kernel", "launcher"):
        return None
    titles = job.once(_titles).get(line.path, [])
    at = bisect_left(titles, line.number, key=lambda hit: hit.line.number) - 1
    if at < 0 or titles[at].line.speaker != line.speaker:
        return None
    title = titles[at]
    raised = job.once(_raised_at).get(line.path, [])
    after = bisect_right(raised, title.line.number)
    if raised[after : after + 1] != [line.number] or line.number - title.line.number > HANG_RULES.traceback_reach:
        return None
    if title.name == "checkpoint-rank":
        return job.of_rank(int(title.groups["rank"]))
    host = title.groups["host"].strip("[]")
    rank = _rank_by_ray(job, line.path, int(title.groups["pid"]), host)
    return job.of_host(host) if rank is None else job.of_rank(rank, host)


def _titles(job: JobLogs) -> dict[str, list[Hit]]:
    """By file the titles of tracebacks of other processes, in order."""
    titles: dict[str, list[Hit]] = defaultdict(list)
    for hit in job.named("ray-task", "checkpoint-rank"):
        titles[hit.line.path].append(hit)
    return titles


def _raised_at(job: JobLogs) -> dict[str, list[int]]:
    """By file the numbers of the lines that begin a traceback or end one, in order."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for hit in job.named("exception", "traceback"):
        numbers[hit.line.path].append(hit.line.number)
    return numbers


def _of_ray(job: JobLogs, line: Line) -> Culprit | None:
    """The host of a process whose end Ray reports, by the pid with which Ray marks its lines."""
    if line.speaker.pid is None or line.source in ("nccl", "kernel", "launcher"):
        return None
    hosts = job.once(_died_of_ray).get((line.path, line.speaker.pid), set())
    return job.of_host(next(iter(hosts))) if len(hosts) == 1 else None


def _died_of_ray(job: JobLogs) -> dict[tuple[str, int], set[str]]:
    """By file and pid the hosts of the processes whose end Ray reports."""
    died = (hit for hit in job.named("ray-worker-died") if "pid" in hit.groups)
    return grouped(((hit.line.path, int(hit.groups["pid"])), hit.groups["host"]) for hit in died)


# "reached OUT_OF_MEMORY on MPI rank 11", "rank 3: found NaN in local grad norm", "Rank 3, node n7, device 3"
_ON_RANK = re.compile(
    r"\b(?:on|in|at|of|by) (?:MPI |global |world )?rank[ =:#]{0,2}(\d{1,6})\b|"
    r"^\s*\[?(?:[Rr]ank|RANK)[ =:#]{0,2}(\d{1,6})\b|"
    r"(?:\s-|\|)\s{1,3}(?:[Rr]ank|RANK)[ =:#]{0,2}(\d{1,6})\s{1,3}(?=-\s|\|)"  # a column of a program's logger
)


def rank_said(text: str) -> int | None:
    """The rank on which something happened, where a program's own text says it of one."""
    ranks = {int(one or other or column) for one, other, column in _ON_RANK.findall(text)}
    return ranks.pop() if len(ranks) == 1 else None


def of_process(job: JobLogs, hit: Hit, number: int) -> Culprit:
    """The culprit for the number of a process among those of its launcher: the local rank, and on one host the rank."""
    host = hit.line.speaker.host or job.host_of_path(hit.line.path)
    process = job.find_process(host=host, local_rank=number, path=hit.line.path)
    if process is not None:
        return culprit_of(process)
    return job.of_rank(number, host) if len(job.hosts) <= 1 else Culprit(host=host)


def is_tied(job: JobLogs, line: Line) -> bool:
    """Whether the lines around a line without a prefix say whose it is."""
    alone = job.logs.world_size == 1 and line.source not in ("kernel", "launcher")
    beside = (_rank_beside(job, line), _rank_by_paddle(job, line))
    quoted = _spawned(job, line) is not None or _passed_on(job, line) is not None
    return alone or quoted or any(rank is not None for rank in beside)


def _spawned(job: JobLogs, line: Line) -> Hit | None:
    """The line of torch.multiprocessing above, "-- Process 1 terminated with the following error", where a line
    belongs to what it quotes."""
    if line.speaker != Speaker() or line.source in ("launcher", "kernel"):
        return None
    above = [hit for hit in job.named("spawned") if line.follows(hit.line, HANG_RULES.traceback_reach)]
    return above[-1] if above else None


def _rank_beside(job: JobLogs, line: Line) -> int | None:
    """The rank in the line that torch_npu prints below its exception, or ProcessGroupNCCL below the one that ends a
    process that marks no line."""
    below = (hit for hit in job.named("npu-error") if hit.line.follows(line, HANG_RULES.rank_beside_reach))
    rank = next((int(hit.groups["rank"]) for hit in below), None)
    if rank is not None or line.speaker != Speaker() or line.source in ("nccl", "launcher", "kernel"):
        return rank
    ended = {
        int(hit.groups["rank"])
        for hit in job.named("group-destroyed")
        if hit.line.follows(line, HANG_RULES.failure_reach)
    }
    return ended.pop() if len(ended) == 1 else None


def _rank_by_launcher(job: JobLogs, line: Line, host: str) -> int | None:
    speaker = line.speaker
    here = [block for block in job.once(failed_ranks) if _of_launcher(job, block, line, host)]
    if speaker.pid is not None:
        ranks = {block.rank for block in here if block.pid == speaker.pid and block.rank is not None}
        return ranks.pop() if len(ranks) == 1 else None
    if speaker.local_rank is not None:
        stated = job.once(_ranks_of_local).get((line.path, speaker.local_rank), set())
        numbered = {
            b.rank - b.local_rank + speaker.local_rank for b in here if b.rank is not None and b.local_rank is not None
        }
        ended = [b for b in here if (b.exitcode or 0) > 0 and b.local_rank == speaker.local_rank]
        raised = {b.rank for b in ended if b.rank is not None}
        ranks = stated or numbered if len(stated or numbered) == 1 else raised
        if not ranks:
            offsets = job.once(_offsets_of_local).get(line.path, set())
            ranks = {offset + speaker.local_rank for offset in offsets}
        return next(iter(ranks)) if len(ranks) == 1 else None
    if line.source in ("nccl", "kernel", "launcher"):
        return None
    ends = {block.rank for block in here if block.exitcode is not None and block.exitcode > 0}
    return ends.pop() if len(ends) == 1 else None


def _of_launcher(job: JobLogs, block: FailedRank, line: Line, host: str) -> bool:
    """Whether the launcher that printed a block started the process that printed a line."""
    if host and block.host:
        return block.host == host
    return block.path == line.path or (bool(host) and job.host_of_path(block.path) == host)


def _ranks_of_local(job: JobLogs) -> dict[tuple[str, int], set[int]]:
    """Ranks that lines print together with a local rank, by file and local rank."""
    lines = ((line.path, line.speaker) for line in job.logs.lines)
    return grouped(
        ((path, s.local_rank), s.rank) for path, s in lines if s.local_rank is not None and s.rank is not None
    )


def _offsets_of_local(job: JobLogs) -> dict[str, set[int]]:
    """By file, how far ranks are ahead of local ranks, from watchdogs of the whole job that print both: a launcher
    numbers the ranks of a host in their order. Several where a file holds several hosts."""
    numbers = (
        (hit.line.path, group_of(hit.line)[1], hit.line.speaker.local_rank, group_of(hit.line)[0])
        for hit in job.named("watchdog", "blocking-wait")
    )
    return grouped(
        (path, rank - local)
        for path, rank, local, group in numbers
        if rank is not None and local is not None and (is_world(group) or group == _UNKNOWN)
    )


def actor_above(job: JobLogs, line: Line) -> dict[str, str]:
    """Name, process and address of the actor that Ray prints above a line: ``name``, ``pid``, ``ip``, as far as they
    are there."""
    return {
        hit.groups["key"]: hit.groups["value"]
        for hit in job.named("ray-actor")
        if line.follows(hit.line, HANG_RULES.actor_reach)
    }


def _listed(hit: Hit) -> list[int]:
    return [int(number) for number in re.findall(r"\d{1,9}", hit.groups.get("ranks") or hit.groups["rank"])]


def _rank_by_paddle(job: JobLogs, line: Line) -> int | None:
    """The rank whose log Paddle's launcher shows: until 2.2 that of its first process, later that of the one that
    failed."""
    if line.speaker != Speaker() or line.source in ("nccl", "kernel", "launcher"):
        return None
    first = {rank for hit in job.named("paddle-aborted") if hit.line.path == line.path for rank in _listed(hit)}
    if 0 in first:
        return 0
    failed = {rank for hit in job.named("paddle-exited") if hit.line.path == line.path for rank in _listed(hit)}
    return failed.pop() if len(failed) == 1 else None


# -- Watchdogs: collectives that timed out, by group -------------------------------------------------------------------

# "[PG ID 0 PG GUID 0(default_pg) Rank 3]", before torch 2.5 "[PG 0 (default_pg) Rank 3]" and "[PG 0 Rank 3]". This is
# the rank within the group.
_GROUP = re.compile(
    r"\[PG (?:ID \d+ PG GUID (?P<guid>[^\s(\]]+)|(?P<id>[^\s(\]]+)) ?(?:\((?P<desc>[^)]*)\))? ?Rank (?P<rank>\d{1,9})\]"
)
_AT_WORK = re.compile(r"(?:at work sequence id|watchdog at work|Timeout at NCCL work): (\d{1,20})")
TIMED_OUT = re.compile(r"(?i)time(?:d )? ?out")  # a store that prints this is alive: another process is late
_UNKNOWN = ""  # torch before 2.2 does not name the group


@dataclass(frozen=True)
class Timeout:
    """A watchdog's report. ``rank``: global; None where only the rank within an unknown group is known."""

    rank: int | None
    group_rank: int | None
    group: str
    seq: int
    op: str
    line: Line
    numel_in: int | None = None
    numel_out: int | None = None
    timeout_ms: int | None = None
    ran_ms: int | None = None

    @property
    def call(self) -> tuple[int, str, int | None, int | None]:
        return self.seq, self.op, self.numel_in, self.numel_out

    @property
    def late(self) -> bool:
        """Whether the watchdog itself was late: it looks every second, so a short timeout is easily exceeded."""
        limit, ran = self.timeout_ms or 0, self.ran_ms or 0
        return limit > 0 and ran > 2 * limit and ran > limit + HANG_EVIDENCE.timeout_of_watchdog_ms

    @property
    def words(self) -> str:
        plural = "" if self.numel_in == 1 else "s"
        size = f", {self.numel_in} element{plural}" if self.numel_in is not None else ""
        out = f" in and {self.numel_out} out" if size and self.numel_out not in (None, self.numel_in) else ""
        number = f" number {self.seq}" if self.seq else ""  # torch before 1.12 prints none
        return f"{self.op}{number}{size}{out}"


@dataclass(frozen=True)
class GroupTimeouts:
    """All reports of one process group. ``members``: global ranks; None where the size is not known."""

    group: str
    reports: tuple[Timeout, ...]  # one a rank, its first
    members: Sequence[int] | None

    @property
    def ranks(self) -> set[int]:
        return {report.rank for report in self.reports if report.rank is not None}

    @property
    def absent(self) -> tuple[int, ...]:
        """Members that did not report; empty where the members are not known, or are the ranks of a far larger job."""
        if isinstance(self.members, range):
            return tuple(absent_of(len(self.members), self.ranks))
        return tuple(sorted(set(self.members or ()) - self.ranks))

    @property
    def is_whole(self) -> bool:
        """Whether all members are known, and reported."""
        return self.members is not None and len(self.ranks) >= len(self.members)

    @property
    def passed_over(self) -> tuple[int, ...]:
        """Ranks below the highest reporting rank that did not report. There may be more."""
        return tuple(absent_of(max(self.ranks, default=0), self.ranks))

    @property
    def usual(self) -> tuple[int, str, int | None, int | None]:
        """The call that most of them wait in."""
        return vote(Counter(report.call for report in self.reports)).usual

    @property
    def words(self) -> str:
        return (
            f"process group {self.group}" if self.group else "a process group that this version of torch does not name"
        )


def group_of(line: Line) -> tuple[str, int | None]:
    """The name of the process group whose watchdog prints a line, and the rank within it."""
    match = _GROUP.search(line.raw)
    if match is None:
        return _UNKNOWN, line.speaker.group_rank
    name, desc = match["guid"] or match["id"], match["desc"]
    return desc if desc and desc != "undefined" else name, int(match["rank"])


def is_world(group: str) -> bool:
    return group in ("default_pg", "0")


def rank_in(job: JobLogs, line: Line, group: str, group_rank: int | None) -> int | None:
    """The global rank: the group's own number where the group is the whole job, else that of the line's process."""
    if is_world(group) and group_rank is not None:
        return group_rank
    rank = job.rank_of(line)
    if rank is None and (is_world(group) or group == _UNKNOWN):
        return group_rank
    return rank


def timeouts_of(job: JobLogs) -> tuple[Timeout, ...]:
    """Every report once, in the order of the files."""
    reports: dict[tuple[int | None, int | None, str, int, str], Timeout] = {}
    of_parts = job.once(_number_parts_of_the_job)
    for hit in job.named("watchdog", "blocking-wait"):
        if "op" not in hit.groups:  # the line reports only that something timed out
            continue
        seq = int(hit.groups.get("seq", 0))
        group, group_rank = group_of(hit.line)
        if "pg_rank" in hit.groups and group == _UNKNOWN:
            group_rank = int(hit.groups["pg_rank"])
            group = _group_beside(job, hit.line, group_rank, seq)
        numbers = {field: int(hit.groups[name]) for name, field in _NUMBERS.items() if name in hit.groups}
        report = Timeout(
            rank=job.rank_of(hit.line) if of_parts and group == _UNKNOWN else rank_in(job, hit.line, group, group_rank),
            group_rank=group_rank,
            group=group,
            seq=seq,
            op=hit.groups["op"],
            line=hit.line,
            **numbers,
        )
        reports.setdefault((report.rank, report.group_rank, group, report.seq, report.op), report)
    return tuple(_repaired(_without_echoes(reports.values())))


def _number_parts_of_the_job(job: JobLogs) -> bool:
    """Whether "[Rank 1]" without a group is a number in a part of the job, as in an expert-parallel group: two
    processes print it of one call, each with the time that it took there."""
    took: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for hit in job.named("watchdog", "blocking-wait"):
        group, group_rank = group_of(hit.line)
        number = hit.groups.get("pg_rank") or group_rank
        if group == _UNKNOWN and number is not None and "ran" in hit.groups and job.rank_of(hit.line) is None:
            took[str(number), hit.groups.get("seq", ""), hit.groups.get("op", "")].add(hit.groups["ran"])
    return any(len(times) > 1 for times in took.values())


def _repaired(reports: list[Timeout]) -> list[Timeout]:
    """Completes reports whose line was overwritten after the first letters of the operation, from another rank's report
    of the same number."""
    whole = {(report.seq, report.op): report for report in reports if report.numel_in is not None}
    repaired = []
    for report in reports:
        same = [
            candidate
            for (seq, op), candidate in whole.items()
            if seq == report.seq and op.startswith(report.op) and seq
        ]
        if report.numel_in is None and report.timeout_ms is None and len(same) == 1:
            report = replace(report, op=same[0].op, numel_in=same[0].numel_in, numel_out=same[0].numel_out)
        repaired.append(report)
    return repaired


def _group_beside(job: JobLogs, line: Line, group_rank: int, seq: int) -> str:
    """The group of a message without "[PG ...]" (torch 2.9 and older): the watchdog's later message of the same number
    names it."""
    stated = job.once(_stated_groups).get((line.path, job.rank_of(line), group_rank, seq), [])
    return min(stated, key=lambda place: abs(place[0] - line.number))[1] if stated else _UNKNOWN


def _stated_groups(job: JobLogs) -> dict[tuple[str, int | None, int | None, int], list[tuple[int, str]]]:
    """(line number, group) of the watchdogs' messages, by file, rank, rank in the group and sequence number."""
    groups: dict[tuple[str, int | None, int | None, int], list[tuple[int, str]]] = defaultdict(list)
    for hit in job.named("pg-status"):
        group, member = group_of(hit.line)
        at = _AT_WORK.search(hit.line.text)
        if group and at is not None:
            groups[hit.line.path, job.rank_of(hit.line), member, int(at[1])].append((hit.line.number, group))
    return groups


_NUMBERS = {"numel_in": "numel_in", "numel_out": "numel_out", "timeout": "timeout_ms", "ran": "ran_ms"}


def _without_echoes(reports: Iterable[Timeout]) -> list[Timeout]:
    """Reports without the repetition in the exception that ends the process, which lacks the group in some versions."""
    listed = list(reports)
    named = {(report.rank, report.seq, report.op) for report in listed if report.group}
    return [report for report in listed if report.group or (report.rank, report.seq, report.op) not in named]


def groups_of(job: JobLogs, reports: Iterable[Timeout]) -> tuple[GroupTimeouts, ...]:
    """The reports by process group. Groups with the same name and different members are separated where communicators
    show it."""
    by_group: dict[str, dict[int | None, Timeout]] = defaultdict(dict)
    for report in reports:
        first = by_group[report.group].setdefault(report.rank, report)
        if report.seq < first.seq:
            by_group[report.group][report.rank] = report
    _assign_ungrouped(by_group)
    return tuple(
        GroupTimeouts(
            group,
            tuple(by_rank.values()),
            _members(job, group, {rank for rank in by_rank if rank is not None}, by_rank.values()),
        )
        for group, by_rank in by_group.items()
    )


def _assign_ungrouped(by_group: dict[str, dict[int | None, Timeout]]) -> None:
    """Moves reports without a group to the only group whose other ranks wait in the same call: within one version some
    messages have "[PG ...]" and some do not."""
    nameless = by_group.get(_UNKNOWN, {})
    if not nameless:
        by_group.pop(_UNKNOWN, None)
        return
    calls: dict[tuple[int, str], dict[str, set[_Sizes]]] = defaultdict(lambda: defaultdict(set))
    numbers: dict[int, dict[str, None]] = defaultdict(dict)
    for group, by_rank in by_group.items():
        for report in by_rank.values() if group != _UNKNOWN else ():
            calls[report.seq, report.op][group].add((report.numel_in, report.numel_out))
            numbers[report.seq][group] = None
    for rank, report in list(nameless.items()):
        same: list[str] = []
        for group, sizes in calls[report.seq, report.op].items():
            if rank not in by_group[group] and _same_size((report.numel_in, report.numel_out), sizes):
                same.append(group)
                if len(same) > 1:
                    break
        if not same and report.seq > HANG_EVIDENCE.equal_by_chance:
            same = list(numbers[report.seq])
        if len(same) == 1 and rank is not None:
            by_group[same[0]][rank] = nameless.pop(rank)
            calls[report.seq, report.op][same[0]].add((report.numel_in, report.numel_out))
    if not nameless:
        by_group.pop(_UNKNOWN, None)


_Sizes = tuple[int | None, int | None]


def _same_size(own: _Sizes, others: set[_Sizes]) -> bool:
    """Whether the sizes agree with one of the others, as far as both are printed."""
    return own == (None, None) or own in others or (None, None) in others


def _by_ratio(reports: Iterable[Timeout]) -> int | None:
    """The size of a group from the ratio of output and input of its all-gathers and reduce-scatters."""
    sizes = set()
    for report in reports:
        small, large = sorted((report.numel_in or 0, report.numel_out or 0))
        if ("ALLGATHER" in report.op or "REDUCE_SCATTER" in report.op) and small and large % small == 0:
            sizes.add(large // small)
    size = sizes.pop() if len(sizes) == 1 else 0
    return size if 1 < size <= MOST_RANKS else None


def _members(job: JobLogs, group: str, ranks: set[int], reports: Iterable[Timeout]) -> Sequence[int] | None:
    """The global ranks of a group: all for the default group, else those of the only communicator that has these ranks.
    None where the size is not known: the highest rank that was seen need not be the last."""
    world = job.logs.world_size
    if group == _UNKNOWN and any(r.rank != r.group_rank for r in reports if None not in (r.rank, r.group_rank)):
        return None  # a part of the job
    if is_world(group) or group == _UNKNOWN:
        size = world or _by_ratio(reports) or 0
        alone = is_world(group) or len(job.communicators) <= 1
        return range(size) if max(1, *ranks, 0) < size <= MOST_RANKS and alone else None
    by_rank = job.once(_groups_of_ranks)
    fitting = (
        set.intersection(*(by_rank.get(rank, set()) for rank in ranks)) if ranks else set().union(*by_rank.values())
    )
    return fitting.pop() if len(fitting) == 1 else None


def _groups_of_ranks(job: JobLogs) -> dict[int, set[tuple[int, ...]]]:
    """By rank, the members of the communicators of a part of the job that it is in, where all of them are known."""
    sizes = (communicator for communicator in job.communicators if communicator.size != job.logs.world_size)
    everyone = {members for communicator in sizes if (members := job.global_ranks(communicator)) is not None}
    return grouped((rank, members) for members in everyone for rank in members)


_UNPRINTED = -1  # a number in a group that a line does not print


def writers_of_ids(job: JobLogs) -> list[int]:
    """The ranks that set the ids of the communicators that others wait for, as far as lines show them. A line has their
    number in the group."""
    hits = [hit for hit in job.named("store-get") if "writer" in hit.groups]
    readers = [Member(int(hit.groups.get("reader", _UNPRINTED)), job.rank_of(hit.line)) for hit in hits]
    numbering = Numbering(reader for reader in readers if reader.number != _UNPRINTED)
    ranks = {numbering.likely(int(hit.groups["writer"]), reader) for hit, reader in zip(hits, readers, strict=True)}
    return sorted(rank for rank in ranks if rank is not None)


# -- Progress: whether a process or the whole job continued after a line that looks alarming ---------------------------

# What programs print as they come to their end, after the last step
_CLOSES = re.compile(
    r"(?i)\b(?:passed|done|complete[d]?|finished|succeeded|finaliz(?:ing|ed)|evaluat(?:e|ing|ion)\b.{0,40}\b(?:in main|"
    r"results?|done)|exit(?:ed|ing)? with (?:code )?0|successfully saved|results saved to|"
    r"final[ _][\w ]{0,60}?(?:loss|accuracy|results?|metrics))\b|"
    r"^\s*(?:train|eval|test|predict)_\w{1,40} += +\S"  # the table of log_metrics; transformers, trainer_pt_utils.py
)
_OF_HELPERS = re.compile(r"\bException (?:in thread|ignored in)\b")
# What begins, or waits, where a line is the last of its file
_BEGINS = re.compile(
    r"(?i)^FAILED \(|^\[  FAILED  \]|\b(?:start(?:s|ing|ed)?|begin(?:s|ning)?|loading|initiali[sz]ing|launching|"
    r"preparing|saving|destroying|syncing|synchroni[sz]ing|(?<!done )waiting|evaluating|uploading|"
    r"building|compiling)\b|"
    r"(?<!exiting)(?<!exiting )\.\.\.\s*$|"
    r"\u2026\s*$|"
    r"(?<!\d)\d{1,2}%\||\bnThread\b|\bsize +count +type\b"
)
# Signs that a process was ended, or ended with an error.
_FAILED = (
    "exitcode", "rank-exitcode", "first-to-exit", "exit-told", "sigterm", "death-signal", "watchdog", "blocking-wait",
    "watchdog-terminated",
)  # fmt: skip


def failed(job: JobLogs) -> bool:
    """Whether a line reports that a process was ended or ended with an error."""
    endings = [
        name for fault_class in CLASSES.values() if fault_class.ending for name in fault_class.patterns_of(Role.ROOT)
    ]
    by_signal = [name for name in endings if name.partition("-")[0] in SAYS]
    return bool(job.named(*_FAILED, *by_signal)) or bool(job.once(failed_ranks))


def ended_well(job: JobLogs) -> bool:
    """Whether the training printed that it reached its end, nothing in these files shows that it then did or waited for
    anything else, and no process failed."""
    return bool(job.once(last_words)) and not job.once(failed)


_NO_STATE = {"name", "completions"}  # groups of a record beside what became of it


def recorded_as_done(job: JobLogs) -> list[Line]:
    """The lines of a scheduler that say that all that it lists ended with exit code 0, in files in which nothing else
    tells of a failure: a job script that ignores its program's error ends with 0 as well."""
    records = job.named("recorded-state")
    states = _last_recorded(records)
    lines = {hit.line for hit in records}
    silent = all(hit.line in lines or hit.pattern.role == Role.HARMLESS for hit in job.hits)
    return [hit.line for hit in records] if states and states <= DONE and silent else []


def _last_recorded(records: Iterable[Hit]) -> set[str]:
    """What is recorded, without what a later record of the same job makes old: of one on its way. Only a name, or a
    client that reports on one job, shows that two records are of the same."""
    states: dict[object, str] = {}
    for hit in sorted(records, key=lambda hit: (hit.line.path, hit.line.number)):
        for group in hit.groups.keys() - _NO_STATE:
            same = "name" in hit.groups or group in OF_ONE_JOB
            job = (hit.line.path, group, hit.groups.get("name", "")) if same else (hit.line, group)
            if states.get(job, UNDERWAY[0]) not in UNDERWAY:
                job = (hit.line, group)
            states[job] = hit.groups[group]
    return set(states.values())


def last_words(job: JobLogs) -> list[Line]:
    """The lines that say that a job reached its end, where nothing goes on after them. That the last step is done is
    no end by itself: a job may stand still as it saves."""
    steps = [hit.line for hit in job.named("last-step-done")]
    steps += [line for line in job.logs.lines if FULL_BAR.search(line.text) or LAST_STEP.search(line.text)]
    closes = last_of_each(line for line in (*job.logs.lines, *job.logs.last_lines) if _closes(line)) if steps else {}
    ends = [hit.line for hit in job.named("ended-well")]
    ends += job.once(_done_by_all)
    ends += [line for line in steps if line.path in closes and closes[line.path].number > line.number]
    return ends if ends and not _begins_after(job, last_of_each(ends)) else []


def last_of_each(lines: Iterable[Line]) -> dict[str, Line]:
    """The last of these lines of each file."""
    last: dict[str, Line] = {}
    for line in lines:
        if line.path not in last or last[line.path].number < line.number:
            last[line.path] = line
    return last


def _closes(line: Line) -> bool:
    """Whether a program says that it goes on to its end."""
    return line.source != "nccl" and _CLOSES.search(line.raw) is not None


def _done_by_all(job: JobLogs) -> list[Line]:
    """The lines with which a program says that it is done: one rank for all, or every rank that prints anything in
    their file."""
    hits = [hit.line for hit in job.named("training-done") if not _BEGINS.search(hit.line.text)]
    done = grouped((line.path, line.speaker.rank) for line in hits)
    printed = grouped((line.path, line.speaker.rank) for line in job.logs.lines if line.path in done)
    return [line for line in hits if len(done[line.path]) < 2 or printed[line.path] - {None} <= done[line.path]]


def _begins_after(job: JobLogs, ends: dict[str, Line]) -> bool:
    """Whether, in a file with an end, its last line shows that something else began after it, or a step or a traceback
    comes after it. ``ends``: the last one of each file."""
    for path, last in last_of_each(line for line in job.logs.last_lines if line.path in ends).items():
        began = _BEGINS.search(last.text) or last.source == "nccl"
        if last.number > ends[path].number and began and "COMPLETE" not in last.text:
            return True
    after = [line for line in job.logs.lines if line.path in ends and line.number > ends[line.path].number]
    # An exception of a helper thread, of an object that is collected: the process ends all the same.
    helpers = {line.path for line in (*after, *job.logs.last_lines) if _OF_HELPERS.search(line.raw)}
    raised = (hit.line for hit in job.named("traceback") if hit.line.path in ends)
    raised_after = any(line.path not in helpers and line.number > ends[line.path].number for line in raised)
    return raised_after or any(map(is_step, after))


def is_step(line: Line) -> bool:
    """Whether a line shows a step of a training."""
    return STEP.search(line.text) is not None


def is_measurement(line: Line) -> bool:
    """Whether a line is of nccl-tests' table."""
    return MEASUREMENT.search(line.text) is not None


def lives(job: JobLogs) -> bool:
    """Whether the job came up: a completed initialisation, a step, or an orderly end."""
    complete = any(member.completed for communicator in job.logs.communicators for member in communicator.members)
    return complete or job.once(ended_well) or any(STEP.search(line.text) for line in job.logs.lines)


def went_on(job: JobLogs, line: Line) -> bool:
    """Whether the job reached its end, or the process kept working, after a line that looks alarming."""
    if job.once(ended_well):
        return True
    number = job.once(_last_work).get(_voice(job, line), 0)
    return number > line.number


def in_order(job: JobLogs, line: Line) -> bool:
    """``went_on``, or the process destroyed its communicators: for lines that are printed while a process ends."""
    return went_on(job, line) or id(job.process_of(line)) in job.once(_ended_in_order)


def _voice(job: JobLogs, line: Line) -> tuple[str, int | None]:
    """File and process of a line. All lines of unknown processes of a file count as one."""
    process = job.process_of(line)
    return line.path, id(process) if process is not None else line.speaker.rank


def _last_work(job: JobLogs) -> dict[tuple[str, int | None], int]:
    """The last line of each voice that shows work. Where the job failed, lines of unknown processes do not count. A bar
    that an exception closes is drawn once more, with the steps that it had before."""
    last_lines: dict[tuple[str, int | None], int] = {}
    working = {hit.line for hit in job.named("evaluating", "saving", "preprocessing")}
    bars: dict[str, tuple[float, ...]] = {}
    for line in job.logs.lines:
        if bar_seconds(line.text) is not None:
            before, bars[line.path] = bars.get(line.path), counts_of(line.text)
            if before == bars[line.path]:
                continue
        if line in working or STEP.search(line.text) or "Destroy COMPLETE" in line.text:
            voice = _voice(job, line)
            if voice[1] is not None or not job.once(failed):
                last_lines[voice] = max(last_lines.get(voice, 0), line.number)
    return last_lines


def _ended_in_order(job: JobLogs) -> set[int]:
    """``id`` of the processes that destroyed a communicator."""
    members = (member for communicator in job.logs.communicators for member in communicator.members)
    ended = {m.process for m in members if m.process is not None and m.ended == "destroyed"}
    return {id(job.logs.processes[number]) for number in ended}
