"""Which processes their launchers saw end, with which code, and who they are."""

from __future__ import annotations

import re
from dataclasses import dataclass

from diag.ended.codes import BY_SHELLS, MOST_OF_UNIX
from diag.ended.model import Culprit, short_host
from diag.hang.classes.base import Hit
from diag.hang.classes.launchers import ABORTED, ENDS, ended_as
from diag.hang.failures import FailedRank, failed_ranks, of_process, speaker_of
from diag.hang.job import JobLogs, culprit_of
from diag.hang.model import Line
from diag.hang.policy import HANG_RULES
from diag.hang.rules.direct import ranks_in
from diag.hang.text.messages import started_by

_BOX = {"hydra-process": 10, "first-to-exit": 2}  # lines

# The exit codes that launchers report of what prints these
CRASH_CODES = {"caught-sigbus": -7, "caught-sigsegv": -11, "glibc-abort": -6, "allocator-abort": -6}


@dataclass(frozen=True)
class ReportedEnd:
    """A process that its launcher saw end. ``code``: None where it prints none."""

    culprit: Culprit
    hit: Hit
    code: int | None

    @property
    def fault_class(self) -> str:
        """ "" where somebody asked it to end."""
        return ended_as(self.code)

    @property
    def by_pattern(self) -> bool:
        """Whether a pattern of the signal's class matches the line as well."""
        return self.hit.name not in ENDS and (self.code or 0) <= MOST_OF_UNIX


def reported_ends(job: JobLogs) -> tuple[ReportedEnd, ...]:
    """Every end that a launcher reports with its exit code, or without one, in order."""
    blocks = job.once(failed_ranks)
    return tuple(
        ReportedEnd(culprit, hit, _code_of(job, hit))
        for hit in job.named(*ENDS, "exitcode", "rank-exitcode")
        for culprit in _reported(job, hit, blocks)
    )


def _code_of(job: JobLogs, hit: Hit) -> int | None:
    if "signal" in hit.groups:
        return -int(hit.groups["signal"])
    text = hit.groups.get("exitcode") or hit.groups.get("code")
    code = int(text) if text else None
    if code is None and hit.name == "sglang-exited":
        code = code_below(job, hit.line)
    if hit.name == "hydra-exited" and code in _SIGNALS_OF_HYDRA:
        return -code
    return -ABORTED if code in (None, BY_SHELLS + ABORTED) and _ABORTS.search(hit.line.text) else code


def code_below(job: JobLogs, line: Line) -> int | None:
    """The exit code below a line of mpirun, Horovod or SGLang that names a process."""
    for hit in job.named("exit-code"):
        if hit.line.follows(line, HANG_RULES.exit_code_reach):
            return int(hit.groups["exitcode"])
    return None


_SIGNALS_OF_HYDRA = (6, 7, 9, 11, 15)  # of a process that a signal ended, it prints the signal as the exit code

_ABORTS = re.compile(r"SIGABRT|\b134\b|: Aborted\b")


def _reported(job: JobLogs, hit: Hit, blocks: tuple[FailedRank, ...]) -> list[Culprit]:
    """Who ended; nobody where the launcher lists all of its processes: the first among them is unknown."""
    if "ranks" in hit.groups:
        ranks, size = ranks_in(hit.groups["ranks"]), int(hit.groups.get("size", 0))
        return [job.of_rank(rank) for rank in ranks] if len(ranks) != size or size == 1 else []
    if "process" in hit.groups:
        return [of_process(job, hit, int(hit.groups["process"]))]
    if (
        re.fullmatch(r"\d{1,6}(?:,\d{1,6})+", hit.groups.get("tasks", "")) and not blocks
    ):  # srun: a few of a host's tasks
        tasks = ranks_in(hit.groups["tasks"])
        if len(tasks) <= HANG_RULES.few_absent_ranks:
            return [job.of_rank(task, short_host(hit.groups["host"])) for task in tasks]
    return [who_ended(job, hit, blocks)]


def who_ended(job: JobLogs, hit: Hit, blocks: tuple[FailedRank, ...]) -> Culprit:
    """The culprit of a launcher's line: by pid, by the launcher's last block, by local rank."""
    if "rank" in hit.groups:  # mpirun, diag run
        return job.of_rank(int(hit.groups["rank"]), short_host(hit.groups.get("host") or _host_below(job, hit)))
    if "tasks" in hit.groups:
        return _of_srun(job, hit, blocks)
    hydra = in_box(job, hit)
    if hydra is not None:
        return who_ended(job, hydra, blocks)
    # The rank that another launcher names
    if number := next((hit.groups[name] for name in _OF_LAUNCHERS if name in hit.groups), ""):
        return job.of_rank(int(number))
    pid = int(hit.groups["pid"]) if "pid" in hit.groups else None
    local = int(hit.groups["local_rank"]) if "local_rank" in hit.groups else None
    if (named := _of_command(job, hit)) is not None:
        return named
    if pid is None and local is None:
        return Culprit(host=host) if (host := _host_of_end(job, hit)) else _who_crashed(job, hit, blocks)
    host = hit.groups.get("host") or hit.line.speaker.host or job.host_of_path(hit.line.path)
    if pid is not None:
        process = job.find_process(host=host, pid=pid, path=hit.line.path)
        if process is not None and process.rank is not None:
            return culprit_of(process)
        for block in blocks:
            if block.pid == pid and block.rank is not None and (not host or not block.host or block.host == host):
                return job.of_rank(block.rank, block.host or host)
    if local is not None:
        process = job.find_process(host=host, local_rank=local, path=hit.line.path)
        if process is not None:
            return culprit_of(process)
        if len(job.hosts) <= 1 and len({block.host for block in blocks} - {""}) <= 1:
            return Culprit(local, host or (job.hosts[0] if job.hosts else ""))  # one host: equal numbers
    # A shell prints into the output of the rank that it runs, of which it knows the pid only.
    return _who_crashed(job, hit, blocks) if hit.name.startswith("shell-") else Culprit(host=host)


def _host_below(job: JobLogs, hit: Hit) -> str:
    """The host in the line below that of MPT's report of a signal."""
    below = (line for line in job.named("mpt-process") if line.line.path == hit.line.path)
    return next((line.groups["host"] for line in below if line.line.number == hit.line.number + 1), "")


_OF_LAUNCHERS = ("number", "of_shard", "of_cray")  # groups with the rank that a launcher names

_LAST_STARTED = re.compile(r"(\['[^]]*\]).*(?:exits with return code|returned non-zero|died with)")


def _of_command(job: JobLogs, hit: Hit) -> Culprit | None:
    """The process whose command a line quotes: a shell's line that of the process that died. torch.distributed.launch
    and DeepSpeed print the one that they started last, whichever process failed: local rank 0 is the last one where it
    is the only one."""
    if hit.name.startswith("shell-"):
        started = started_by(hit.line.text)
        if started.rank is not None:
            return job.of_rank(started.rank)
        return of_process(job, hit, started.local_rank) if started.local_rank is not None else None
    last = _LAST_STARTED.search(hit.line.text) if "local_rank" not in hit.groups else None
    return of_process(job, hit, 0) if last is not None and started_by(last[1]).local_rank == 0 else None


def _host_of_end(job: JobLogs, hit: Hit) -> str:
    """The host that a launcher's line names, else the only one of which it reports the end in another line."""
    other = next((name for start, name in _HOSTS_BESIDE.items() if hit.name.startswith(start)), None)
    if "host" in hit.groups or other is None:
        return hit.groups.get("host", "")
    if "node" in hit.groups:
        return hit.groups["node"]
    pods = [pod for pod in job.named("pod-described") if pod.line.path == hit.line.path]
    if above := [pod for pod in pods if pod.line.number < hit.line.number]:
        return above[-1].groups["host"]
    beside = {
        found.groups.get("host") or found.groups["node"]
        for found in job.named(other)
        if found.line.path == hit.line.path
    }
    return beside.pop() if len(beside) == 1 else ""


# By how the name of a pattern begins, the pattern whose lines name the host
_HOSTS_BESIDE = {"launcher-": "daemon-lost", "hydra-exited": "hydra-proxy", "oom-killed": "step-cancelled"}


def in_box(job: JobLogs, hit: Hit) -> Hit | None:
    """The line of the same box in which MPICH's launcher or mpirun names the process."""
    if not hit.name.startswith(("launcher-", "hydra-exited")) or set(hit.groups) & {"pid", "local_rank"}:
        return None
    near = [
        candidate
        for candidate in job.named("hydra-process", "first-to-exit")
        if candidate.line.path == hit.line.path and abs(candidate.line.number - hit.line.number) <= _BOX[candidate.name]
    ]
    return near[0] if near else None


def _who_crashed(job: JobLogs, hit: Hit, blocks: tuple[FailedRank, ...]) -> Culprit:
    """The process that reports a signal of its own; where its rank is unknown, the launcher may know it."""
    speaker = speaker_of(job, hit.line)
    if speaker.rank is not None:
        return speaker
    number = CRASH_CODES.get(hit.name)
    ended = {b.rank for b in blocks if b.exitcode == number and b.rank is not None and b.host in ("", speaker.host)}
    if not ended and number is not None:
        exits = [end for end in job.named("exitcode", "rank-exitcode") if int(end.groups["exitcode"]) == number]
        ended = {rank for end in exits if (rank := who_ended(job, end, blocks).rank) is not None}
    return job.of_rank(ended.pop()) if len(ended) == 1 else speaker


def _of_srun(job: JobLogs, hit: Hit, blocks: tuple[FailedRank, ...]) -> Culprit:
    """srun's task is the rank where srun started the ranks; where it started a launcher, it is a node."""
    host, tasks = hit.groups["host"], hit.groups["tasks"]
    if blocks or not tasks.isdecimal():
        return Culprit(host=host)
    return job.of_rank(int(tasks), host)


def names_anybody(culprit: Culprit) -> bool:
    return culprit.rank is not None or bool(culprit.host)
