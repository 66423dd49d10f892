"""Processes that ended: by a signal that the launcher or the kernel reported, or by an exception of their own."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from diag.ended.codes import BY_SHELLS
from diag.ended.model import Clue, Culprit, Source, short_host
from diag.ended.raised import TRACEBACK, about_others, lost_worker, shortened
from diag.events.left import Ended, who_left
from diag.hang.classes import CLASSES
from diag.hang.classes.base import Hit
from diag.hang.classes.launchers import ABORTED, ENDS, EXCEPTION, ended_as
from diag.hang.classes.waiting import WAITED_FOR_OTHERS
from diag.hang.failures import (
    FailedRank,
    Timeout,
    failed_ranks,
    is_tied,
    of_process,
    rank_said,
    speaker_of,
    timeouts_of,
    went_on,
)
from diag.hang.job import JobLogs, culprit_of, distinct
from diag.hang.model import Line, Role, Speaker
from diag.hang.policy import HANG_EVIDENCE, HANG_RULES
from diag.hang.rules.direct import clue_of, first_by_time, ranks_in, time_of
from diag.hang.text.gather import is_telling

# -- Processes that a signal ended, as reported by the launcher or the kernel ------------------------------------------

# By class the patterns that say that a process ended. The kernel's own line may be about any process.
_BY_SIGNAL = {
    name: [pattern for pattern in fault_class.patterns_of(Role.ROOT) if pattern != "kernel-oom"]
    for name, fault_class in CLASSES.items()
    if fault_class.ending and fault_class.patterns_of(Role.ROOT)
}
_WITH_CODE = {*ENDS, "exitcode", "rank-exitcode"}
_BOX = {"hydra-process": 10, "first-to-exit": 2}  # lines
_MOST_OF_UNIX = 255
_STOPS = tuple(CLASSES["job_cancelled"].patterns)  # what ends after one of these was asked to
# The exit codes that launchers report of what prints these
_CRASH_CODES = {"caught-sigbus": -7, "caught-sigsegv": -11, "glibc-abort": -6, "allocator-abort": -6}


@dataclass(frozen=True)
class _Ended:
    culprit: Culprit
    hit: Hit


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
        return self.hit.name not in ENDS and (self.code or 0) <= _MOST_OF_UNIX


def reported_ends(job: JobLogs) -> tuple[ReportedEnd, ...]:
    """Every end that a launcher reports with its exit code, or without one, in order."""
    blocks = job.once(failed_ranks)
    return tuple(
        ReportedEnd(culprit, hit, _code_of(hit))
        for hit in job.named(*ENDS, "exitcode", "rank-exitcode")
        for culprit in _reported(job, hit, blocks)
    )


def _code_of(hit: Hit) -> int | None:
    if "signal" in hit.groups:
        return -int(hit.groups["signal"])
    text = hit.groups.get("exitcode") or hit.groups.get("code")
    code = int(text) if text else None
    if hit.name == "hydra-exited" and code in _SIGNALS_OF_HYDRA:
        return -code
    return -ABORTED if code in (None, BY_SHELLS + ABORTED) and _ABORTS.search(hit.line.text) else code


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


def by_signal(job: JobLogs) -> list[Clue]:
    blocks = job.once(failed_ranks)
    clues = [clue for name in _BY_SIGNAL if (clue := _of_signal(job, name, blocks)) is not None]
    return [*clues, *_bus_error_in_nccl(job, blocks), *_told_everywhere(job)]


def _told_everywhere(job: JobLogs) -> list[Clue]:
    """Processes of several hosts that were told to end in the same second, or one after the other where no line has a
    time: somebody outside told all of them."""
    told: dict[str, dict[str, Hit]] = defaultdict(dict)  # by file and host
    for hit in job.named("terminated-on"):
        if host := hit.groups.get("host") or hit.line.speaker.host:
            told[hit.line.path].setdefault(host, hit)
    for at in told.values():
        lines = [hit.line for hit in at.values()]
        if len(at) < HANG_RULES.hosts_told or 2 * len(at) <= len(job.hosts):
            continue
        times = [line.time_ns for line in lines if line.time_ns is not None]
        if times:
            together = len(times) == len(lines) and max(times) - min(times) <= HANG_EVIDENCE.clocks_of_hosts_ns
        else:
            together = lines[-1].number - lines[0].number < 2 * len(lines)
        if together:
            note = f"Processes on {len(at)} hosts were told to end (SIGTERM) at once: a person or a scheduler did it."
            return [clue_of("job_cancelled", list(at.values()), (), note, confidence=HANG_EVIDENCE.suggests)]
    return []


def who_ended(job: JobLogs, hit: Hit, blocks: tuple[FailedRank, ...]) -> Culprit:
    """The culprit of a launcher's line: by pid, by the launcher's last block, by local rank."""
    if "rank" in hit.groups:  # mpirun, diag run
        return job.of_rank(int(hit.groups["rank"]), short_host(hit.groups.get("host", "")))
    if "tasks" in hit.groups:
        return _of_srun(job, hit, blocks)
    hydra = _hydras(job, hit)
    if hydra is not None:
        return who_ended(job, hydra, blocks)
    if "number" in hit.groups:  # Horovod's rank
        return job.of_rank(int(hit.groups["number"]))
    pid = int(hit.groups["pid"]) if "pid" in hit.groups else None
    local = int(hit.groups["local_rank"]) if "local_rank" in hit.groups else None
    if local is None and _ONLY_PROCESS.search(hit.line.text):
        return of_process(job, hit, 0)
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
    return Culprit(host=host)


# torch.distributed.launch and DeepSpeed print the command that they started last, whichever process failed: local rank
# 0 is the last one where it is the only one.
_ONLY_PROCESS = re.compile(
    r"\['[^]]*'--local[_-]rank=0'[^]]*\].*(?:exits with return code|returned non-zero|died with)"
)


def _host_of_end(job: JobLogs, hit: Hit) -> str:
    """The host that a launcher's line names, else the only one of which it reports the end in another line."""
    other = next((name for start, name in _HOSTS_BESIDE.items() if hit.name.startswith(start)), None)
    if "host" in hit.groups or other is None:
        return hit.groups.get("host", "")
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


def _hydras(job: JobLogs, hit: Hit) -> Hit | None:
    """The process that MPICH's launcher names in the same box."""
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
    number = _CRASH_CODES.get(hit.name)
    ended = {b.rank for b in blocks if b.exitcode == number and b.rank is not None and b.host in ("", speaker.host)}
    if not ended and number is not None:
        exits = [end for end in job.named("exitcode", "rank-exitcode") if int(end.groups["exitcode"]) == number]
        ended = {rank for end in exits if (rank := who_ended(job, end, blocks).rank) is not None}
    return job.of_rank(ended.pop()) if len(ended) == 1 else speaker


def _reported_without_code(job: JobLogs, ended: list[_Ended]) -> list[_Ended]:
    """The processes that a launcher saw end without saying how, where lines of processes without a rank say how."""
    if not ended or any(entry.culprit.rank is not None or entry.hit.name not in _CRASH_CODES for entry in ended):
        return []
    return [
        _Ended(end.culprit, end.hit)
        for end in job.once(reported_ends)
        if end.code is None and end.culprit.rank is not None
    ]


def _of_srun(job: JobLogs, hit: Hit, blocks: tuple[FailedRank, ...]) -> Culprit:
    """srun's task is the rank where srun started the ranks; where it started a launcher, it is a node."""
    host, tasks = hit.groups["host"], hit.groups["tasks"]
    if blocks or not tasks.isdecimal():
        return Culprit(host=host)
    return job.of_rank(int(tasks), host)


def _of_signal(job: JobLogs, name: str, blocks: tuple[FailedRank, ...]) -> Clue | None:
    ended = [_Ended(who_ended(job, hit, blocks), hit) for hit in job.named(*_BY_SIGNAL[name])]
    ended += [
        _Ended(end.culprit, end.hit)
        for end in job.once(reported_ends)
        if end.fault_class == name and not end.by_pattern
    ]
    ended += _reported_without_code(job, ended)
    kernel = _kernel_oom(job, ended) if name == "rank_killed_sigkill" else []
    # A rank that timed out before it was killed waited like the others.
    waited = {report.rank for report in job.once(timeouts_of) if report.rank is not None}
    ended = [entry for entry in ended if entry.culprit.rank is None or entry.culprit.rank not in waited]
    later = _ended_later(blocks)
    ended = [entry for entry in ended if entry.culprit.rank is None or entry.culprit.rank not in later]
    if not ended:
        return _kernel_alone(job, kernel) if name == "rank_killed_sigkill" else None
    ended = _named_ones(ended)
    culprits = distinct([entry.culprit for entry in ended])
    culprits = tuple(culprit for culprit in culprits if _names_anybody(culprit)) or culprits
    hosts = {culprit.host for culprit in culprits} | {""}
    nameless = [entry for entry in kernel if entry.culprit.rank is None and entry.culprit.host in hosts]
    confirming = [entry.hit for entry in kernel if entry.culprit in culprits or entry in nameless]
    hits = [entry.hit for entry in ended]
    sure = max(HANG_EVIDENCE.names_an_effect if hit.name in _WITH_CODE else hit.pattern.confidence for hit in hits)
    note = first_by_time(hits).sentence
    seen = [block.time_ns for block in blocks if block.rank in {c.rank for c in culprits} and block.time_ns is not None]
    if confirming:
        sure, note = HANG_RULES.out_of_memory_and_exit, f"{note} {confirming[0].sentence}"
    elif job.logs.world_size and 2 * len(culprits) > job.logs.world_size > 2:
        # Most of the job at once: a scheduler or a person ended it.
        sure, note = HANG_EVIDENCE.suggests, f"{note} Most ranks were: a scheduler or a person may have ended the job."
    clue = clue_of(name, hits, culprits, note, confirming, confidence=sure)
    return clue if clue.time_ns is not None else replace(clue, time_ns=min(seen, default=None))


def _ended_later(blocks: tuple[FailedRank, ...]) -> set[int]:
    """Ranks that ended clearly after the first failure of their launcher, which ends them itself: after half a minute
    by SIGKILL."""
    names = {block.rank for block in blocks if block.root}
    of_launcher: dict[str, list[Ended[int]]] = defaultdict(list)
    for block in blocks:
        if block.rank is not None and block.time_ns is not None:
            of_launcher[block.path].append(Ended(block.rank, block.time_ns))
    later = (who_left(ends, HANG_EVIDENCE.clocks_of_hosts_ns).later for ends in of_launcher.values())
    return {rank for ranks in later for rank in ranks} - names


def _named_ones(ended: list[_Ended]) -> list[_Ended]:
    """Those with a rank, if any."""
    known = [entry for entry in ended if entry.culprit.rank is not None]
    return known or ended


def _kernel_oom(job: JobLogs, ended: list[_Ended]) -> list[_Ended]:
    """The victims of the kernel's out-of-memory killer; the host where the rank is unknown."""
    victims = []
    for hit in job.named("kernel-oom"):
        pid, host = int(hit.groups.get("pid") or hit.groups["victim"]), hit.line.speaker.host
        process = job.find_process(host=host, pid=pid, path=hit.line.path)
        same = [entry.culprit for entry in ended if entry.hit.groups.get("pid") == str(pid)]
        victims.append(_Ended(culprit_of(process) if process is not None else (*same, Culprit(host=host))[0], hit))
    return victims


# Names of a job's processes: the interpreter, torch's first thread, launchers and engines.
_OF_A_JOB = re.compile(r"(?i)^(?:python|pt_|torchrun|deepspeed|accelerate|ray\b|vllm|sglang|mpi|orted|prted|train)")


def _kernel_alone(job: JobLogs, kernel: list[_Ended]) -> Clue | None:
    """What the kernel's lines say by themselves. Without a victim, who called its killer may have been another."""
    calls = [_Ended(Culprit(host=hit.line.speaker.host), hit) for hit in job.named("kernel-oom-call")]
    kernel = _named_ones(kernel) or calls
    if not kernel:
        return None
    named = any(entry.culprit.rank is not None for entry in kernel)
    hits = [entry.hit for entry in kernel]
    # Without a rank it may have been a DataLoader's worker, or nothing of this job.
    ours = any(_OF_A_JOB.match(hit.groups.get("name") or hit.groups.get("task", "")) for hit in hits)
    unsure = HANG_EVIDENCE.suggests if ours else HANG_RULES.perhaps_another_job
    sure = hits[0].pattern.confidence if named else unsure
    return clue_of("rank_killed_sigkill", hits, [entry.culprit for entry in kernel], hits[0].sentence, confidence=sure)


def _bus_error_in_nccl(job: JobLogs, blocks: tuple[FailedRank, ...]) -> list[Clue]:
    """A bus error with NCCL's frames on its stack: it comes from NCCL's shared memory."""
    for hit in job.named("caught-sigbus"):
        for line in job.logs.lines:
            near = line.path == hit.line.path and 0 <= line.number - hit.line.number <= HANG_RULES.stack_reach
            same = (line.speaker.rank, line.speaker.pid) == (hit.line.speaker.rank, hit.line.speaker.pid)
            if near and same and "libnccl" in line.text:
                clue = clue_of(
                    "shm_exhausted",
                    [hit],
                    [who_ended(job, hit, blocks)],
                    "The bus error is in NCCL, which maps its shared memory from /dev/shm.",
                    confidence=HANG_EVIDENCE.names_an_effect,
                )
                evidence = (*clue.evidence, line.evidence)
                return [Clue(clue.fault_class, clue.culprits, evidence, clue.confidence, clue.note)]
    return []


# -- Python exceptions: a cause if not about other ranks, and not later than their time-outs ---------------------------

# Limits of the operating system, which few programs get over: memory and open files.
_OF_THE_SYSTEM = re.compile(r"\[Errno (?:12|23|24)\] ")


# Checks that all ranks make together and fail together: fairseq/trainer.py
_OF_ALL_RANKS = ("gradients are inconsistent between workers",)


@dataclass(frozen=True)
class RankException:
    culprit: Culprit
    name: str
    message: str
    line: Line
    traceback: Line | None


def by_exception(job: JobLogs) -> list[Clue]:
    """One clue: the first exception, or all where the order is unknown."""
    all_raised = job.once(_first_of_each)
    raised = [exception for exception in all_raised if _can_be_cause(job, exception)]
    blocks = job.once(failed_ranks)
    if not raised:
        return _ended_without_one(job, all_raised, blocks)
    first = _earliest(job, raised, blocks)
    if len(all_raised) == 1 and not _names_anybody(first[0].culprit):
        first = [replace(first[0], culprit=_only_end(job) or first[0].culprit)]
    same = [
        exception for exception in first if (exception.name, exception.message) == (first[0].name, first[0].message)
    ]
    sure = HANG_RULES.raised if len(same) == len(first) else HANG_RULES.raised_by_several
    sure = (
        min(sure, HANG_RULES.raised_without_frames) if all(exception.traceback is None for exception in first) else sure
    )
    exits = _exit_lines(job, [exception.culprit for exception in first], blocks)
    lines = [line for exception in first for line in (exception.traceback, exception.line) if line is not None]
    said = shortened(first[0].message, 100)
    description = f"raised {first[0].name}{': ' * bool(said)}{said}" if first[0].name else f"ended with: {said}"
    if not first[0].name and not said:
        description = "raised an exception, which the end of the log cuts off"
        sure = min(sure, HANG_RULES.raised_and_cut)
    if any(words in first[0].message for words in _OF_ALL_RANKS):
        first = [replace(exception, culprit=Culprit()) for exception in first]
    worker = lost_worker(first[0].message) if len(same) == len(first) else None
    fault_class, note = worker or ("rank_killed_exception", "")
    return [
        Clue(
            fault_class,
            distinct([exception.culprit for exception in first]),
            tuple(dict.fromkeys(line.evidence for line in (*lines, *exits)))[:8],
            sure,
            f"It {note}: {description.removeprefix('raised ')}" if worker else f"It {description}",
            time_ns=time_of([*lines, *exits]),
        )
    ]


def _only_end(job: JobLogs) -> Culprit | None:
    """The only process that the launcher saw fail, where its summary of all of them is not in the log."""
    ends = [end.culprit for end in job.once(reported_ends) if (end.code or 0) > 0 and end.culprit.rank is not None]
    return ends[0] if len(ends) == 1 and not job.once(failed_ranks) else None


def victims_of(job: JobLogs) -> dict[int, Line]:
    """Ranks whose first exception is about other ranks: they lost a peer, or waited too long for one."""
    lines = {}
    for exception in job.once(_first_of_each):
        if exception.culprit.rank is not None and about_others(f"{exception.name}: {exception.message}"):
            lines[exception.culprit.rank] = exception.line
    return lines


def _ended_without_one(job: JobLogs, raised: list[RankException], blocks: tuple[FailedRank, ...]) -> list[Clue]:
    """A rank that ended with an exit code before the others lost it, and printed no exception."""
    known = {exception.culprit.rank for exception in raised} | {report.rank for report in job.once(timeouts_of)}
    # torch's error of the store's barrier names the rank that waited.
    known |= {int(hit.groups["rank"]) for hit in job.named("store-barrier") if "Timed out" in hit.line.text}
    ends = [end for end in _ends_with_codes(job, blocks, aborts=not known) if end.culprit.rank not in known]
    stops = [hit.line for hit in job.named(*_STOPS)]
    left = who_left(
        (
            Ended(end.culprit, first=end.first, of_others=any(job.before(stop, end.line) for stop in stops))
            for end in ends
            if _names_anybody(end.culprit)
        ),
        HANG_EVIDENCE.clocks_of_hosts_ns,
    )
    first = list(dict.fromkeys(left.first))
    if not first or (len(first) > 1 and not _alike(job, ends)):
        return []
    culprit = first[0]
    of_it = [end for end in ends if end.culprit == culprit]
    lines = [end.line for end in of_it]
    ended_with = of_it[-1].code
    # Without a log of that rank, what it printed is not known: it may have been a victim.
    read = culprit.rank is not None and any(
        line.speaker.rank == culprit.rank and line.source != "launcher" for line in job.logs.lines
    )
    note = "It ended with an error"
    if ended_with is not None:
        note = "It aborted (SIGABRT)" if ended_with == -ABORTED else f"It ended with exit code {ended_with}"
    called = {hit.line for hit in job.named("mpi-abort")}
    if called & set(lines):
        note = "It called MPI_Abort" + (f" with {ended_with}" if ended_with is not None else "")
    note += " and printed no exception." if read else "; no log of it was read."
    evidence = tuple(dict.fromkeys(line.evidence for line in lines))
    # Where lines name a cause, the exit can be its consequence.
    alone = not any((b.exitcode or 0) > 0 and b.rank not in (culprit.rank, None, *known) for b in blocks)
    sure = HANG_RULES.ended_itself if read and alone and not _explained(job) else HANG_RULES.perhaps_a_victim
    if any(end.waits for end in of_it):
        sure = max(sure, HANG_RULES.raised_by_several)  # Horovod waits for the first
    if not read and any(end.observed for end in of_it):
        # mpirun names the first that it observes of all that failed together: the first, where the others only report
        # that they lost it.
        nobody_else = not job.once(_first_of_each) and not any("NCCL failure" in line.text for line in job.logs.lines)
        others = bool(victims_of(job)) or nobody_else
        sure = HANG_RULES.perhaps_a_victim if others else HANG_RULES.first_of_many
    if len(first) > 1:
        note = f"They ended with exit code {ended_with}, and no line shows which of them was first"
        return [Clue("rank_killed_exception", distinct(first), evidence, HANG_RULES.perhaps_a_victim, note)]
    return [Clue("rank_killed_exception", (culprit,), evidence, sure, note, time_ns=time_of(lines))]


def _alike(job: JobLogs, ends: Sequence[_WithCode]) -> bool:
    """Whether all ends are of ranks on one host, with the same exit code, and nothing else complains."""
    codes = {end.code for end in ends}
    hosts = {end.culprit.host for end in ends}
    ranks = all(end.culprit.rank is not None for end in ends)
    quiet = not victims_of(job) and not any("NCCL failure" in line.text for line in job.logs.lines)
    return ranks and quiet and len(codes) == 1 and None not in codes and len(hosts) == 1


@dataclass(frozen=True)
class _WithCode:
    """``first``: its launcher saw it end first. ``observed``: of all that failed together; ``waits``: and it waited for
    the others."""

    culprit: Culprit
    line: Line
    code: int | None = None
    first: bool = False
    observed: bool = False
    waits: bool = False


def _ends_with_codes(job: JobLogs, blocks: tuple[FailedRank, ...], aborts: bool) -> list[_WithCode]:
    """Ends with an exit code that no signal explains. ``aborts``: whether an abort may be one, since nobody reports
    that it lost another."""
    ends = []
    for hit in job.named("first-to-exit"):
        number = hit.groups.get("rank") or hit.groups.get("number")
        if number:
            culprit, waits = job.of_rank(int(number)), "number" in hit.groups
            ends.append(_WithCode(culprit, hit.line, _code_in_box(job, hit.line), observed=not waits, waits=waits))
    # What torchrun ends aborts as well, and so does a watchdog: its line counts where it is all that there is.
    alone = len(job.named("exitcode")) == 1 and not blocks and not _fails_otherwise(job)
    for end in job.once(reported_ends):
        by_torchrun = end.hit.name == "exitcode" and not alone
        aborted = end.code == -ABORTED and (end.hit.name == "spawn-exited" or (aborts and not by_torchrun))
        if end.fault_class == EXCEPTION and (end.code is None or 0 < end.code < BY_SHELLS or aborted):
            ends.append(_WithCode(end.culprit, end.hit.line, end.code))
    for hit in job.named("mpi-abort"):
        rank = int(next(hit.groups[name] for name in ("rank", "number", "process") if name in hit.groups))
        code = next((int(hit.groups[name]) for name in ("exitcode", "code", "given") if name in hit.groups), None)
        ends.append(_WithCode(job.of_rank(rank), hit.line, code))
    known_root = any(block.root for block in blocks)
    for block in blocks:
        aborted = block.exitcode == -ABORTED and aborts
        if (block.root or not known_root) and block.rank is not None and ((block.exitcode or 0) > 0 or aborted):
            culprit = job.of_rank(block.rank, block.host)
            ends.append(_WithCode(culprit, block.evidence, block.exitcode or 0, first=block.root))
    return ends


def _fails_otherwise(job: JobLogs) -> bool:
    """Whether any line but that of an abort tells of a failure."""
    return any(hit.pattern.role in (Role.ROOT, Role.CASCADE) and hit.name != "exit-told" for hit in job.hits)


def _names_anybody(culprit: Culprit) -> bool:
    return culprit.rank is not None or bool(culprit.host)


def _code_in_box(job: JobLogs, line: Line) -> int | None:
    """The exit code in the box of mpirun or Horovod that names a process in this line."""
    for hit in job.named("exit-code"):
        if hit.line.path == line.path and 0 < hit.line.number - line.number <= HANG_RULES.exit_code_reach:
            return int(hit.groups["exitcode"])
    return None


def _explained(job: JobLogs) -> bool:
    roots = (hit for hit in job.hits if hit.pattern.role == Role.ROOT)
    return any(hit.fault_class.priority in (2, 3) and not hit.fault_class.lost_with_process for hit in roots)


def _first_of_each(job: JobLogs) -> list[RankException]:
    """The first exception of every process: later ones in a chain follow from it."""
    tracebacks = _by_voice(hit.line for hit in job.named("traceback"))
    blocks = job.once(failed_ranks)
    by_path: dict[str, list[FailedRank]] = defaultdict(list)
    for block in sorted(blocks, key=lambda block: block.first):
        by_path[block.path].append(block)
    exceptions: dict[object, RankException] = {}
    for hit in job.named("exception", *_NAMELESS):
        if hit.line.source in ("nccl", "kernel", "stack"):
            continue
        if hit.groups.get("message", "").startswith(TRACEBACK):  # of a worker: its exception stands below
            continue
        # The interpreter itself prints that it finds no module to run, without a traceback, and ends.
        begin = hit.line if hit.name in _ENDS_IT else _traceback_of(tracebacks, hit)
        culprit = _culprit_of_traceback(job, hit.line, by_path.get(hit.line.path, []))
        if begin is None and hit.line.speaker == Speaker() and not blocks and not is_tied(job, hit.line):
            culprit = Culprit()  # nothing ties a line without a traceback to the processes of its file
        begin = begin or _cut_traceback(job, hit.line) or (hit.line if _IN_ERROR_FILE in hit.line.raw else None)
        key = (culprit.rank, culprit.host) if culprit.rank is not None else (hit.line.path, culprit.host)
        message = hit.groups.get("message", "")
        if not _names_anybody(culprit) and not job.communicators and (said := rank_said(message)) is not None:
            culprit = job.of_rank(said)
        alone = begin is None and (_is_last_word(job, hit.line) or _ended_after(job, hit.line))
        if begin is not None or culprit.rank is not None or blocks or alone or _is_fatal(message):
            exceptions.setdefault(
                key,
                RankException(culprit, hit.groups.get("exception", ""), message, hit.line, begin),
            )
    # A file of the launcher repeats what a rank printed, without saying whose it is.
    named = {(raised.name, raised.message) for raised in exceptions.values() if _names_anybody(raised.culprit)}
    found = [
        raised
        for raised in exceptions.values()
        if _names_anybody(raised.culprit) or (raised.name, raised.message) not in named
    ]
    # A watchdog ends its process by such an exception too, and lines of several processes run into each other.
    return found or ([] if job.once(timeouts_of) else _of_cpp(job) or _cut_before_exception(job))


# The interpreter begins a traceback with nothing but the tags of torch and of launchers before it.
_UNCAUGHT = re.compile(r"[\s`]*(?:\[[^\]\n]{1,40}\](?:<\w{1,10}>)?:? ?|\d{1,6}: ){0,3}" + re.escape(TRACEBACK))
_OF_TRACEBACKS = ("traceback", "frame", "chained")
# Frames of a call that waits for others: its exception would be about them.
_WAITS = ("torch/distributed/", "torch_npu/distributed/", "deepspeed/comm/", "horovod/", "mpi4py", "/ray/", "c10d")


def _cut_before_exception(job: JobLogs) -> list[RankException]:
    """Tracebacks of ranks that the end of the log cuts before the exception, where the frames wait for nobody and no
    other line tells of a failure: the exception may be about that."""
    if any(hit.pattern.role != Role.HARMLESS and hit.name not in _OF_TRACEBACKS for hit in job.hits):
        return []
    blocks: dict[tuple[str, int], list[Line]] = defaultdict(list)
    for line in job.logs.lines:
        if line.block and line.source == "python":
            blocks[line.path, line.block].append(line)
    of_blocks = {(line.path, line.number) for lines in blocks.values() for line in lines}
    ends = {(line.path, line.number) for line in job.logs.last_lines}
    if any(is_telling(line.raw) for line in job.logs.last_lines if (line.path, line.number) not in of_blocks):
        return []
    end_of = dict(sorted(ends))  # of each file its last line
    inside = {path for (path, _), lines in blocks.items() if lines[-1].number == end_of.get(path)}
    exceptions: dict[object, RankException] = {}
    for (path, _), lines in blocks.items():
        whole = not lines[-1].text.startswith((" ", "\t")) or not _UNCAUGHT.match(lines[0].raw)
        if path not in inside or whole:
            continue
        waits = any(word in line.text for line in lines[-HANG_RULES.frames_above_cut :] for word in _WAITS)
        culprit = speaker_of(job, lines[-1])
        if culprit.rank is not None and not waits:
            exceptions.setdefault(culprit.rank, RankException(culprit, "", "", lines[-1], lines[0]))
    return list(exceptions.values())


def _of_cpp(job: JobLogs) -> list[RankException]:
    """C++ exceptions that nobody caught, the first of each process. Where Python raised, it is the cause of these."""
    whats = job.named("cpp-what")
    exceptions: dict[object, RankException] = {}
    for hit in job.named("cpp-exception"):
        line = hit.line
        reach = _WHAT if line.speaker == Speaker() else _WHAT_OF_SPEAKER
        after = (what for what in whats if what.line.path == line.path and 0 <= what.line.number - line.number <= reach)
        what = next((what for what in after if what.line.speaker == line.speaker), None)
        said = what.line if what is not None else line
        message = what.groups["message"] if what is not None else ""
        culprit = speaker_of(job, line)
        aborted = {end.culprit for end in job.once(reported_ends) if end.code == -ABORTED}
        if culprit.rank is None and len(aborted) == 1:
            culprit = next(iter(aborted))
        key = culprit.rank if culprit.rank is not None else (line.path, culprit.host)
        exceptions.setdefault(key, RankException(culprit, hit.groups["exception"], message, said, line))
    return list(exceptions.values())


_ENDS_IT = ("no-module", "aborts-itself")  # lines that a program prints as it ends
_NAMELESS = (*_ENDS_IT, "refuses-to-start")  # ends without an exception of Python
_IN_ERROR_FILE = '"message": "'  # what torchrun's error file says ended the process
_WHAT = 2  # lines from "terminate called" to "what():"
_WHAT_OF_SPEAKER = 64  # the same where lines of other processes may come in between


def _culprit_of_traceback(job: JobLogs, line: Line, blocks: list[FailedRank]) -> Culprit:
    """The culprit of a traceback; inside torchrun's block it belongs to the block's rank. ``blocks``: of the file, in
    order."""
    spawned = [hit for hit in job.named("spawned") if hit.line.path == line.path and hit.line.number < line.number]
    if spawned and line.number - spawned[-1].line.number <= HANG_RULES.traceback_reach and line.speaker.rank is None:
        return of_process(job, spawned[-1], int(spawned[-1].groups["process"]))
    at = bisect_right(blocks, line.number, key=lambda block: block.first) - 1
    if at >= 0 and line.speaker == Speaker():
        block = blocks[at]  # the last that begins before the line
        if block.first < line.number <= block.last + HANG_RULES.traceback_reach and block.rank is not None:
            return job.of_rank(block.rank, block.host)
    return speaker_of(job, line)


_Voice = tuple[str, int | None, int | None]


def _by_voice(lines: Iterable[Line]) -> dict[_Voice, list[Line]]:
    """The lines by file and process, in order."""
    voices: dict[_Voice, list[Line]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: line.number):
        voices[line.path, line.speaker.rank, line.speaker.pid].append(line)
    return voices


def _traceback_of(tracebacks: dict[_Voice, list[Line]], hit: Hit) -> Line | None:
    line = hit.line
    begun = tracebacks.get((line.path, line.speaker.rank, line.speaker.pid), [])
    at = bisect_left(begun, line.number, key=lambda begin: begin.number) - 1
    return begun[at] if at >= 0 and line.number - begun[at].number <= HANG_RULES.traceback_reach else None


def _cut_traceback(job: JobLogs, line: Line) -> Line | None:
    """The last frame above an exception, or the line that it led to another one, where the beginning of its traceback
    is not in the log."""
    around = job.once(_frames)
    at = bisect_left(around.get((line.path, "frame"), []), line.number, key=lambda frame: frame.number) - 1
    if at >= 0 and line.number - around[line.path, "frame"][at].number <= HANG_RULES.frame_reach:
        return around[line.path, "frame"][at]
    after = around.get((line.path, "chained"), [])
    at = bisect_right(after, line.number, key=lambda chained: chained.number)
    return line if at < len(after) and after[at].number - line.number <= HANG_RULES.frame_reach else None


def _frames(job: JobLogs) -> dict[tuple[str, str], list[Line]]:
    """By file, the frames of tracebacks, and the lines between the exceptions of a chain, in order."""
    lines: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for hit in job.named("frame", "chained"):
        lines[hit.line.path, hit.name].append(hit.line)
    return lines


def _is_fatal(message: str) -> bool:
    """Whether few programs get over an exception with this message: a limit of the system, a worker that is gone."""
    return _OF_THE_SYSTEM.match(message) is not None or lost_worker(message) is not None


def _can_be_cause(job: JobLogs, raised: RankException) -> bool:
    # A line without a traceback may come from a program that went on, unless processes ended after it.
    if about_others(f"{raised.name}: {raised.message}") or raised.line in job.once(_of_waits):
        return False
    ended = _is_fatal(raised.message) or _ended_after(job, raised.line) or _is_last_word(job, raised.line)
    if raised.traceback is None and not ended:
        return False
    if went_on(job, raised.line):
        return False
    # Lines that name a fault of their own: out of memory, ECC, DDP's unused parameters.
    if raised.line.evidence in job.once(_root_lines) or raised.name.endswith("OutOfMemoryError"):
        return False
    waited = job.once(_timeouts_by_rank).get(raised.culprit.rank, [])
    if any(job.before(report.line, raised.line) is not False for report in waited):
        return False
    first = job.first_timeout()
    if first is None:
        return True
    after = job.before(first, raised.traceback or raised.line)
    # In one file the order of two processes means little: only clocks count against it.
    clocks = first.time_ns is not None and raised.line.time_ns is not None
    return not (after and clocks)


def _is_last_word(job: JobLogs, line: Line) -> bool:
    """Whether a file ends with this line."""
    return any(last.path == line.path and last.number == line.number for last in job.logs.last_lines) and not any(
        last.path == line.path and last.number > line.number for last in job.logs.last_lines
    )


def _of_waits(job: JobLogs) -> set[Line]:
    """The exceptions beside which the same process says that its device waited too long for others, or that another
    training still has it."""
    waits = job.named(*WAITED_FOR_OTHERS, "hccp-in-use")
    return {
        hit.line
        for hit in (job.named("exception") if waits else ())
        if any(
            (hit.line.path, hit.line.speaker.rank) == (wait.line.path, wait.line.speaker.rank)
            and abs(wait.line.number - hit.line.number) <= HANG_RULES.failure_reach
            for wait in waits
        )
    }


def _root_lines(job: JobLogs) -> set[Source]:
    return {hit.line.evidence for hit in job.hits if hit.pattern.role == Role.ROOT}


def _timeouts_by_rank(job: JobLogs) -> dict[int | None, list[Timeout]]:
    by_rank: dict[int | None, list[Timeout]] = defaultdict(list)
    for report in job.once(timeouts_of):
        if report.rank is not None:
            by_rank[report.rank].append(report)
    return by_rank


def _ended_after(job: JobLogs, line: Line) -> bool:
    ends = job.once(_ends).get(line.path, [])
    at = bisect_right(ends, line.number)
    return at < len(ends) and ends[at] - line.number <= HANG_RULES.traceback_reach


def _ends(job: JobLogs) -> dict[str, list[int]]:
    """By file the numbers of the lines that say that a process ended, sorted."""
    seen = [(hit.line.path, hit.line.number) for hit in job.named("sigterm", "exitcode", "rank-exitcode", *ENDS)]
    seen += [(b.evidence.path, b.evidence.number) for b in job.once(failed_ranks) if (b.exitcode or 0) > 0]
    numbers: dict[str, list[int]] = defaultdict(list)
    for path, number in sorted(seen):
        numbers[path].append(number)
    return numbers


def _earliest(job: JobLogs, raised: list[RankException], blocks: tuple[FailedRank, ...]) -> list[RankException]:
    roots = {block.rank for block in blocks if block.root and block.rank is not None}
    named = [exception for exception in raised if exception.culprit.rank in roots]

    def before(one: Ended[RankException], other: Ended[RankException]) -> bool | None:
        return job.before(one.who.line, other.who.line)

    # Launchers of several nodes each name one of theirs.
    ends = (Ended(exception, exception.line.time_ns, len(named) == 1 and exception in named) for exception in raised)
    return list(who_left(ends, HANG_EVIDENCE.clocks_of_hosts_ns, before).first)


def _exit_lines(job: JobLogs, culprits: list[Culprit], blocks: tuple[FailedRank, ...]) -> list[Line]:
    ranks = {culprit.rank for culprit in culprits} - {None}
    lines = [hit.line for hit in job.named("exitcode", "rank-exitcode") if who_ended(job, hit, blocks).rank in ranks]
    return lines + [block.evidence for block in blocks if block.rank in ranks]
