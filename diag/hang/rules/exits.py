"""Processes that ended: by a signal, as the launcher or the kernel saw it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from diag.hang.case import CLOCKS_NS, Case, culprit_of, distinct
from diag.hang.model import Clue, Culprit, Role
from diag.hang.rules.direct import clue_of, first_by_time
from diag.hang.rules.launcher import Block, blocks_of, speaker_of
from diag.hang.signatures.base import NAMES_AN_EFFECT, SUGGESTS, Hit
from diag.hang.timeouts import timeouts_of

SAYS = ("exitcode", "signal", "mpirun", "srun", "diag", "launcher", "shell")  # who says that a process ended
_SIGNALS = {
    "rank_killed_sigkill": (*(f"{who}-sigkill" for who in SAYS), "oom-killed"),
    "rank_killed_sigbus": (*(f"{who}-sigbus" for who in SAYS), "caught-sigbus", "worker-bus-error"),
    "rank_killed_sigsegv": (
        *(f"{who}-{name}" for name in ("sigsegv", "sigill", "sigfpe") for who in SAYS),
        "caught-sigsegv",
    ),
}
_OOM_AND_EXIT = 0.95
_PERHAPS_ANOTHER = 0.4  # process than one of the job's
_BOX = {"hydra-process": 10, "first-to-exit": 2}  # lines
_STACK_REACH = 60  # lines after "Caught signal" that are its stack


@dataclass(frozen=True)
class _Ended:
    culprit: Culprit
    hit: Hit


def clues(case: Case) -> list[Clue]:
    blocks = case.once(blocks_of)
    found = [clue for name in _SIGNALS if (clue := _of_signal(case, name, blocks)) is not None]
    return [*found, *_bus_error_in_nccl(case, blocks)]


def who_ended(case: Case, hit: Hit, blocks: tuple[Block, ...]) -> Culprit:
    """The process that a launcher's line is about: by pid, by the launcher's last block, by local rank."""
    if "rank" in hit.groups:  # mpirun, diag run
        known = case.of_rank(int(hit.groups["rank"]))
        return known if known.host else replace(known, host=hit.groups.get("host", "").partition(".")[0])
    if "tasks" in hit.groups:
        return _of_srun(case, hit, blocks)
    beside = _hydras(case, hit)
    if beside is not None:
        return who_ended(case, beside, blocks)
    if "number" in hit.groups:  # Horovod's rank
        return case.of_rank(int(hit.groups["number"]))
    pid = int(hit.groups["pid"]) if "pid" in hit.groups else None
    local = int(hit.groups["local_rank"]) if "local_rank" in hit.groups else None
    if pid is None and local is None:
        return Culprit(host=hit.groups["host"]) if "host" in hit.groups else _who_crashed(case, hit, blocks)
    host = hit.groups.get("host") or hit.line.speaker.host or case.host_of_path(hit.line.path)
    if pid is not None:
        process = case.find_process(host=host, pid=pid, path=hit.line.path)
        if process is not None and process.rank is not None:
            return culprit_of(process)
        for block in blocks:
            if block.pid == pid and block.rank is not None and (not host or not block.host or block.host == host):
                known = case.of_rank(block.rank)
                return known if known.host else Culprit(block.rank, block.host or host)
    if local is not None:
        process = case.find_process(host=host, local_rank=local, path=hit.line.path)
        if process is not None:
            return culprit_of(process)
        if len(case.hosts) <= 1 and len({block.host for block in blocks} - {""}) <= 1:
            return Culprit(local, host or (case.hosts[0] if case.hosts else ""))  # one host: the same numbers
    return Culprit(host=host)


def _hydras(case: Case, hit: Hit) -> Hit | None:
    """The process that MPICH's launcher names in the same box."""
    if not hit.signature.name.startswith("launcher-") or set(hit.groups) & {"pid", "local_rank"}:
        return None
    near = [
        one
        for one in case.named("hydra-process", "first-to-exit")
        if one.line.path == hit.line.path and abs(one.line.number - hit.line.number) <= _BOX[one.signature.name]
    ]
    return near[0] if near else None


def _who_crashed(case: Case, hit: Hit, blocks: tuple[Block, ...]) -> Culprit:
    """Who says of itself that it got a signal; of several in one file only the launcher may know which one it was."""
    found = speaker_of(case, hit.line)
    if found.rank is not None:
        return found
    number = {name: -code for code, name in ((7, "caught-sigbus"), (11, "caught-sigsegv"))}.get(hit.signature.name)
    ended = {b.rank for b in blocks if b.exitcode == number and b.rank is not None and b.host in ("", found.host)}
    return case.of_rank(ended.pop()) if len(ended) == 1 else found


def _of_srun(case: Case, hit: Hit, blocks: tuple[Block, ...]) -> Culprit:
    """srun's task is the rank where srun started the ranks; where it started a launcher, it is a node."""
    host, tasks = hit.groups["host"], hit.groups["tasks"]
    if blocks or not tasks.isdecimal():
        return Culprit(host=host)
    known = case.of_rank(int(tasks))
    return known if known.host else replace(known, host=host)


def _of_signal(case: Case, name: str, blocks: tuple[Block, ...]) -> Clue | None:
    ended = [_Ended(who_ended(case, hit, blocks), hit) for hit in case.named(*_SIGNALS[name])]
    kernel = _kernel_oom(case, ended) if name == "rank_killed_sigkill" else []
    # Who timed out before it was killed waited like the others.
    waited = {report.rank for report in case.once(timeouts_of) if report.rank is not None}
    ended = [one for one in ended if one.culprit.rank is None or one.culprit.rank not in waited]
    later = _ended_later(blocks)
    ended = [one for one in ended if one.culprit.rank is None or one.culprit.rank not in later]
    if not ended:
        return _kernel_alone(kernel)
    ended = _named_ones(ended)
    culprits = distinct([one.culprit for one in ended])
    hosts = {culprit.host for culprit in culprits} | {""}
    nameless = [one for one in kernel if one.culprit.rank is None and one.culprit.host in hosts]
    confirming = [one.hit for one in kernel if one.culprit in culprits or one in nameless]
    hits = [one.hit for one in ended]
    sure = max(hit.signature.confidence for hit in hits)
    note = first_by_time(hits).sentence
    seen = [block.time_ns for block in blocks if block.rank in {c.rank for c in culprits} and block.time_ns is not None]
    if confirming:
        sure, note = _OOM_AND_EXIT, f"{note} {confirming[0].sentence}"
    elif case.logs.world_size and 2 * len(culprits) > case.logs.world_size > 2:
        # Most of the job at once: a scheduler or a person ended it.
        sure, note = SUGGESTS, f"{note} Most ranks were: a scheduler or a person may have ended the job."
    clue = clue_of(name, hits, culprits, note, confirming, confidence=sure)
    return clue if clue.time_ns is not None else replace(clue, time_ns=min(seen, default=None))


def _ended_later(blocks: tuple[Block, ...]) -> set[int]:
    """Ranks that the launcher saw end well after the first failure: it ends them itself, after half a minute by
    SIGKILL."""
    first = {block.path: block.time_ns for block in blocks if block.root and block.time_ns is not None}
    names = {block.rank for block in blocks if block.root}
    return {
        block.rank
        for block in blocks
        if block.rank is not None
        and block.rank not in names
        and block.time_ns is not None
        and block.path in first
        and block.time_ns > first[block.path] + CLOCKS_NS
    }


def _named_ones(ended: list[_Ended]) -> list[_Ended]:
    """Without those that say less of the same: a line without a rank beside one with."""
    known = [one for one in ended if one.culprit.rank is not None]
    return known or ended


def _kernel_oom(case: Case, ended: list[_Ended]) -> list[_Ended]:
    """The kernel's victims; where nothing ties one to a rank, its host."""
    found = []
    for hit in case.named("kernel-oom"):
        pid, host = int(hit.groups["pid"]), hit.line.speaker.host
        process = case.find_process(host=host, pid=pid, path=hit.line.path)
        same = [one for one in ended if one.hit.groups.get("pid") == str(pid)]
        if process is not None:
            found.append(_Ended(culprit_of(process), hit))
        elif same:
            found.append(_Ended(same[0].culprit, hit))
        else:
            found.append(_Ended(Culprit(host=host), hit))
    return found


def _kernel_alone(kernel: list[_Ended]) -> Clue | None:
    if not kernel:
        return None
    kernel = _named_ones(kernel)
    named = any(one.culprit.rank is not None for one in kernel)
    hits = [one.hit for one in kernel]
    # Without a rank it may have been a DataLoader's worker, or nothing of this job.
    sure = hits[0].signature.confidence if named else _PERHAPS_ANOTHER
    return clue_of("rank_killed_sigkill", hits, [one.culprit for one in kernel], hits[0].sentence, confidence=sure)


def _bus_error_in_nccl(case: Case, blocks: tuple[Block, ...]) -> list[Clue]:
    """A bus error with NCCL's frames on its stack: NCCL's shared memory is what it mapped."""
    for hit in case.named("caught-sigbus"):
        for line in case.logs.lines:
            near = line.path == hit.line.path and 0 <= line.number - hit.line.number <= _STACK_REACH
            same = (line.speaker.rank, line.speaker.pid) == (hit.line.speaker.rank, hit.line.speaker.pid)
            if near and same and "libnccl" in line.text:
                clue = clue_of(
                    "shm_exhausted",
                    [hit],
                    [who_ended(case, hit, blocks)],
                    "The bus error is in NCCL, which maps its shared memory from /dev/shm.",
                    confidence=NAMES_AN_EFFECT,
                )
                evidence = (*clue.evidence, line.evidence)
                return [Clue(clue.fault_class, Role.ROOT, clue.culprits, evidence, clue.confidence, clue.note)]
    return []
