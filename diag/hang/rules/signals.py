"""Processes that a signal ended, as their launcher or the kernel reports it."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace

from diag.ended.model import Clue, Culprit
from diag.events.left import Ended, who_left
from diag.hang.classes import CLASSES
from diag.hang.classes.base import Hit
from diag.hang.classes.launchers import ENDS
from diag.hang.failures import FailedRank, failed_ranks, timeouts_of
from diag.hang.job import JobLogs, culprit_of, distinct
from diag.hang.model import Role
from diag.hang.policy import HANG_EVIDENCE, HANG_RULES
from diag.hang.rules.direct import clue_of, first_by_time
from diag.hang.rules.ends import CRASH_CODES, in_box, names_anybody, reported_ends, who_ended

# By class the patterns that say that a process ended. The kernel's own line may be about any process.
_BY_SIGNAL = {
    name: [pattern for pattern in fault_class.patterns_of(Role.ROOT) if pattern != "kernel-oom"]
    for name, fault_class in CLASSES.items()
    if fault_class.ending and fault_class.patterns_of(Role.ROOT)
}

_WITH_CODE = {*ENDS, "exitcode", "rank-exitcode"}


@dataclass(frozen=True)
class _Ended:
    culprit: Culprit
    hit: Hit


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
        timed = [line for line in lines if line.time_ns is not None]
        if timed:
            ends = (Ended(host, hit.line.time_ns) for host, hit in at.items())
            together = len(timed) == len(lines) and not who_left(ends, HANG_EVIDENCE.clocks_of_hosts_ns).later
        else:
            together = lines[-1].number - lines[0].number < 2 * len(lines)
        if together:
            note = f"Processes on {len(at)} hosts were told to end (SIGTERM) at once: a person or a scheduler did it."
            return [clue_of("job_cancelled", list(at.values()), (), note, confidence=HANG_EVIDENCE.suggests)]
    return []


def _reported_without_code(job: JobLogs, ended: list[_Ended]) -> list[_Ended]:
    """The processes that a launcher saw end without saying how, where lines of processes without a rank say how."""
    if not ended or any(entry.culprit.rank is not None or entry.hit.name not in CRASH_CODES for entry in ended):
        return []
    return [
        _Ended(end.culprit, end.hit)
        for end in job.once(reported_ends)
        if end.code is None and end.culprit.rank is not None
    ]


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
    victims = {report.rank for report in job.once(timeouts_of) if report.rank is not None} | _ended_later(blocks)
    left = who_left((Ended(entry, of_others=entry.culprit.rank in victims) for entry in ended), 0)
    ended = list(left.first)
    if not ended:
        return _kernel_alone(job, kernel) if name == "rank_killed_sigkill" else None
    ended = _named_ones(ended)
    culprits = distinct([entry.culprit for entry in ended])
    culprits = tuple(culprit for culprit in culprits if names_anybody(culprit)) or culprits
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
    boxes = [box for hit in hits if (box := in_box(job, hit)) is not None]
    clue = clue_of(name, hits, culprits, note, [*confirming, *boxes], confidence=sure)
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


# The limit that was used up is that of a job or a container, and not the memory of the host.
_OF_A_CONTAINER = re.compile(
    r"(?:oom_memcg=|killed as a result of limit of )/\S*?(?:kubepods|slurm|docker|containerd|libpod|lxc|htcondor)"
)


def _kernel_alone(job: JobLogs, kernel: list[_Ended]) -> Clue | None:
    """What the kernel's lines say by themselves. Without a victim, who called its killer may have been another."""
    calls = [_Ended(Culprit(host=hit.line.speaker.host), hit) for hit in job.named("kernel-oom-call")]
    kernel = _named_ones(kernel) or calls
    if not kernel:
        return None
    named = any(entry.culprit.rank is not None for entry in kernel)
    hits = [entry.hit for entry in kernel]
    # Without a rank it may have been a DataLoader's worker, or nothing of this job.
    ours = any(
        _OF_A_JOB.match(hit.groups.get("name") or hit.groups.get("task", "")) or _OF_A_CONTAINER.search(hit.line.text)
        for hit in hits
    )
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
