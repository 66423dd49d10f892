"""Exceptions as causes: of an own rank, not about other ranks, and not later than their time-outs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from diag.ended.codes import MOST_OF_UNIX, signal_name, signal_number
from diag.ended.model import Clue, Culprit, Source, short_host
from diag.ended.raised import OF_A_WORKER, about_others, is_of_a_device, lost_worker, shortened
from diag.events.left import Ended, who_left
from diag.hang.classes import CLASSES
from diag.hang.classes.launchers import ABORTED, EXCEPTION
from diag.hang.classes.waiting import WAITED_FOR_OTHERS
from diag.hang.classes.words import reading_of_own
from diag.hang.failures import FailedRank, Timeout, failed_ranks, speaker_of, timeouts_of, went_on
from diag.hang.job import JobLogs, distinct
from diag.hang.model import Line, Role, Speaker
from diag.hang.policy import HANG_ANSWER, HANG_EVIDENCE, HANG_RULES
from diag.hang.rules.direct import time_of
from diag.hang.rules.ends import code_below, names_anybody, reported_ends, who_ended
from diag.hang.rules.tracebacks import RankException, ended_after, first_of_each, is_fatal, is_last_word
from diag.words.formatting import counted, listing, spaced

_CUT_OFF = "It raised an exception, which the end of the log cuts off"

_STOPS = tuple(CLASSES["job_cancelled"].patterns)  # what ends after one of these was asked to

# Checks that all ranks make together and fail together: fairseq/trainer.py
_OF_ALL_RANKS = ("gradients are inconsistent between workers",)


def by_exception(job: JobLogs) -> list[Clue]:
    """One clue: the first exception, or all where the order is unknown."""
    all_raised = job.once(first_of_each)
    raised = [exception for exception in all_raised if _can_be_cause(job, exception)]
    blocks = job.once(failed_ranks)
    if not raised:
        return _ended_without_one(job, all_raised, blocks)
    first = _earliest(job, raised, blocks)
    if len(all_raised) == 1 and not names_anybody(first[0].culprit):
        first = [replace(first[0], culprit=_only_end(job) or _only_abort(job, first[0].line) or first[0].culprit)]
    first = sorted(first, key=lambda exception: (exception.line.path, exception.line.number))
    same = [
        exception for exception in first if (exception.name, exception.message) == (first[0].name, first[0].message)
    ]
    sure = HANG_RULES.raised if len(same) == len(first) else HANG_RULES.raised_by_several
    if not any(_has_frames_above(exception) for exception in first):
        sure = min(sure, HANG_RULES.raised_without_frames)
    worker = lost_worker(first[0].message) if len(same) == len(first) else None
    others = [exception for exception in first if exception not in same]
    if len({exception.line.path for exception in first}) == 1:
        first = same  # what another rank raised below, in the same file, it may have raised because of these
    exits = _exit_lines(job, [exception.culprit for exception in first], blocks)
    lines = [line for exception in first for line in (exception.traceback, exception.line) if line is not None]
    said = shortened(first[0].message, 100)
    description = f"raised {first[0].name}{': ' * bool(said)}{said}" if first[0].name else f"ended with: {said}"
    if not first[0].name and not said:
        description = _CUT_OFF.removeprefix("It ")
        sure = min(sure, HANG_RULES.raised_and_cut)
    of_worker = OF_A_WORKER.match(first[0].message)
    if of_worker and ": " not in first[0].message and not _is_cause_below(job, first[0].line, of_worker["name"]):
        sure = min(sure, HANG_RULES.raised_and_cut)  # it passes on what is not there, or what says more
    if any(words in first[0].message for words in _OF_ALL_RANKS):
        first = [replace(exception, culprit=Culprit()) for exception in first]
    of_a_device = is_of_a_device(first[0].name) and "driver shutting down" not in first[0].message
    fault_class, note = worker or ("cuda_failure" if of_a_device else EXCEPTION, "")
    if fault_class == EXCEPTION and len(same) == len(first):
        own = reading_of_own(first[0].message)
        fault_class, sure = (own, min(sure, HANG_RULES.raised_without_frames)) if own else (fault_class, sure)
    return [
        Clue(
            fault_class,
            distinct([exception.culprit for exception in first]),
            tuple(dict.fromkeys(line.evidence for line in (*lines, *exits)))[:8],
            sure,
            f"It {note}: {description.removeprefix('raised ')}"
            if worker
            else f"It {_unordered(first, others, description)}",
            time_ns=time_of([*lines, *exits]),
            rivalled=bool(others),
        )
    ]


def _unordered(first: Sequence[RankException], others: Sequence[RankException], description: str) -> str:
    """What was raised, with the ``others`` that may have been first; ``first``: those whose processes are named."""
    if not others:
        return description
    if len(first) > 1 and set(map(id, others)) <= set(map(id, first)):
        who = (f"rank {one.culprit.rank}" if one.culprit.rank is not None else one.culprit.host for one in first)
        raised = [f"{name} {one.name}" for name, one in zip(who, first, strict=True) if name and one.name]
        shown = f" ({', '.join(raised[: HANG_ANSWER.kinds_shown])})" if raised else ""
        return f"raised different exceptions{shown}, and no line shows which was first"
    ranks = [one.culprit.rank for one in others if one.culprit.rank is not None]
    who_else = spaced(listing(sorted(ranks))) if len(ranks) == len(others) else counted(len(others), "other")
    what = others[0].name if len(others) == 1 and others[0].name else "another exception"
    return f"{description}; {who_else} raised {what}, and no line shows which was first"


def _is_cause_below(job: JobLogs, line: Line, name: str) -> bool:
    """Whether the exception that a line passes on stands below it, and is of no other class, as one of a GPU's memory
    is."""
    of_name = (hit.line for hit in job.named("exception") if hit.groups["exception"] == name)
    original = next((below for below in of_name if below.follows(line, HANG_RULES.traceback_reach)), None)
    others = (hit for hit in job.hits if hit.line is original and hit.pattern.role == Role.ROOT)
    return original is not None and all(hit.fault_class.id == EXCEPTION for hit in others)


def _has_frames_above(raised: RankException) -> bool:
    return raised.traceback is not None and raised.traceback.number <= raised.line.number


def _only_end(job: JobLogs) -> Culprit | None:
    """The only process that the launcher saw fail, where its summary of all of them is not in the log."""
    ends = [end.culprit for end in job.once(reported_ends) if (end.code or 0) > 0 and end.culprit.rank is not None]
    return ends[0] if len(ends) == 1 and not job.once(failed_ranks) else None


def _only_abort(job: JobLogs, line: Line) -> Culprit | None:
    """The host of the process that MPI says below a line it aborted, where it names no other host in any such line."""
    aborts = job.named("mpi-local-abort")
    hosts = {hit.groups["host"] for hit in aborts}
    near = any(hit.line.follows(line, HANG_RULES.failure_reach) for hit in aborts)
    return job.of_host(short_host(hosts.pop())) if near and len(hosts) == 1 else None


def victims_of(job: JobLogs) -> dict[int, Line]:
    """Ranks whose first exception is about other ranks: they lost a peer, or waited too long for one."""
    lines = {}
    for exception in job.once(first_of_each):
        if exception.culprit.rank is not None and _is_about_others(job, exception):
            lines[exception.culprit.rank] = exception.line
    return lines


def _ended_without_one(job: JobLogs, raised: list[RankException], blocks: tuple[FailedRank, ...]) -> list[Clue]:
    """A rank that ended with an exit code before the others lost it, and printed no exception."""
    # What the launcher raises, to end with the code of a rank, is of no rank.
    known = {exception.culprit.rank for exception in raised if exception.line.source != "launcher"}
    known |= {report.rank for report in job.once(timeouts_of)}
    # The watchdog's monitor ends the process, and says so.
    known |= {speaker_of(job, hit.line).rank for hit in job.named("heartbeat")} - {None}
    # torch's error of the store's barrier names the rank that waited.
    known |= {int(hit.groups["rank"]) for hit in job.named("store-barrier") if "Timed out" in hit.line.text}
    reported = _ends_with_codes(job, blocks, aborts=not known)
    ends = [end for end in reported if end.culprit.rank not in known]
    if ends and (told := _told_to_fail(job)) is not None:
        return [told]
    stops = [hit.line for hit in job.named(*_STOPS)]
    left = who_left(
        (
            Ended(end.culprit, end.time_ns, end.first, any(job.before(stop, end.line) for stop in stops))
            for end in ends
            if names_anybody(end.culprit)
        ),
        HANG_EVIDENCE.clocks_of_hosts_ns,
    )
    first = list(dict.fromkeys(left.first))
    if not first:
        return _ended_unnamed(job, raised, reported)
    if len(first) > 1 and not _alike(job, ends):
        return []
    culprit = first[0]
    of_it = [end for end in ends if end.culprit == culprit]
    lines = [end.line for end in of_it]
    ended_with = of_it[-1].code
    # Without a log of that rank, what it printed is not known: it may have been a victim.
    read = culprit.rank is not None and any(
        line.speaker.rank == culprit.rank and line.source != "launcher" for line in job.logs.lines
    )
    if not read and any(_SYSTEM_ERROR in line.text and line.path == lines[0].path for line in job.logs.lines):
        return []
    note = "It ended with an error"
    if ended_with is not None:
        note = "It aborted (SIGABRT)" if ended_with == -ABORTED else f"It ended with exit code {ended_with}"
    called = {hit.line for hit in job.named("mpi-abort")}
    if called & set(lines):
        note = "It called MPI_Abort" + (f" with {ended_with}" if ended_with is not None else "")
    note += " and printed no exception." if read else "; no log of it was read."
    if {hit.line for hit in job.named("spawned")} & set(lines):
        note = _CUT_OFF
    evidence = tuple(dict.fromkeys(line.evidence for line in lines))
    # Where lines name a cause, the exit can be its consequence.
    alone = not any((b.exitcode or 0) > 0 and b.rank not in (culprit.rank, None, *known) for b in blocks)
    sure = HANG_RULES.ended_itself if read and alone and not _explained(job) else HANG_RULES.perhaps_a_victim
    if any(end.waits for end in of_it):
        sure = max(sure, HANG_RULES.raised_by_several)  # Horovod waits for the first
    if not read and any(end.observed for end in of_it):
        # mpirun names the first that it observes of all that failed together: the first, where the others only report
        # that they lost it.
        nobody_else = not job.once(first_of_each) and not any("NCCL failure" in line.text for line in job.logs.lines)
        others = bool(victims_of(job)) or nobody_else
        sure = HANG_RULES.perhaps_a_victim if others else HANG_RULES.first_of_many
    if len(first) > 1:
        note = f"They ended with exit code {ended_with}, and no line shows which of them was first"
        return [Clue("rank_killed_exception", distinct(first), evidence, HANG_RULES.perhaps_a_victim, note)]
    return [Clue("rank_killed_exception", (culprit,), evidence, sure, note, time_ns=time_of(lines))]


def _ended_unnamed(job: JobLogs, raised: list[RankException], ends: Sequence[_WithCode]) -> list[Clue]:
    """The end of a process of torch.distributed.launch, which prints the command that it started last, whichever
    process failed; none where a process says what it failed of."""
    lines = {hit.line for hit in job.named("launch-exited")}
    ended = [end for end in ends if end.line in lines]
    if not ended or any(exception.line not in lines for exception in raised) or _fails_otherwise(job):
        return []
    note = f"Its exit code was {ended[0].code}; the launcher prints the command that it started last, whichever failed"
    evidence = tuple(dict.fromkeys(end.line.evidence for end in ended))
    return [Clue(EXCEPTION, (Culprit(),), evidence, HANG_RULES.perhaps_a_victim, note)]


# NCCL's result where a call of the system failed, which its own log alone names: another rank's end is such a failure.
_SYSTEM_ERROR = "unhandled system error"


def _told_to_fail(job: JobLogs) -> Clue | None:
    """The rank of which the program itself says that it failed: the others that end may end because of it."""
    hits = job.named("error-on-rank")
    ranks = {int(hit.groups["rank"]) for hit in hits}
    if len(ranks) != 1:
        return None
    evidence = tuple(dict.fromkeys(hit.line.evidence for hit in hits))
    return Clue(EXCEPTION, (job.of_rank(ranks.pop()),), evidence, HANG_RULES.ended_itself, hits[0].sentence)


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
    time_ns: int | None = None


def _ends_with_codes(job: JobLogs, blocks: tuple[FailedRank, ...], aborts: bool) -> list[_WithCode]:
    """Ends with an exit code that no signal explains. ``aborts``: whether an abort may be one, since nobody reports
    that it lost another."""
    ends = []
    for hit in job.named("first-to-exit"):
        number = hit.groups.get("rank") or hit.groups.get("number")
        if number:
            culprit, waits = job.of_rank(int(number)), "number" in hit.groups
            ends.append(_WithCode(culprit, hit.line, code_below(job, hit.line), observed=not waits, waits=waits))
    # What torchrun ends aborts as well, and so does a watchdog: its line counts where it is all that there is.
    all_there_is = len(job.named("exitcode")) == 1 and not blocks and not _fails_otherwise(job)
    aborted_there = {block.host for block in blocks if block.exitcode == -ABORTED and _of_several_hosts(block)}
    for end in job.once(reported_ends):
        if end.hit.name == "srun-exited" and end.culprit.host in aborted_there:  # it saw torchrun end after its rank
            continue
        by_torchrun = end.hit.name == "exitcode" and not all_there_is
        aborted = end.code == -ABORTED and (end.hit.name == "spawn-exited" or (aborts and not by_torchrun))
        if end.fault_class == EXCEPTION and (end.code is None or _by_itself(end.code) or aborted):
            ends.append(_WithCode(end.culprit, end.hit.line, end.code))
    for hit in job.named("mpi-abort"):
        rank = int(next(hit.groups[name] for name in ("rank", "number", "process") if name in hit.groups))
        code = next((int(hit.groups[name]) for name in ("exitcode", "code", "given") if name in hit.groups), None)
        ends.append(_WithCode(job.of_rank(rank), hit.line, code))
    known_root = any(block.root for block in blocks)
    ranks_aborted = {block.rank for block in blocks if block.exitcode == -ABORTED}  # of several any may be the first
    for block in blocks:
        alone = block.exitcode == -ABORTED and len(ranks_aborted) == 1
        aborted = alone and aborts and not _of_several_hosts(block)
        if (block.root or not known_root) and block.rank is not None and ((block.exitcode or 0) > 0 or aborted):
            culprit = job.of_rank(block.rank, block.host)
            code = block.exitcode or 0
            ends.append(_WithCode(culprit, block.evidence, code, first=block.root, time_ns=block.time_ns))
    return ends


def _by_itself(code: int) -> bool:
    """Whether a process gave this exit code itself, as 255 for exit(-1)."""
    return 0 < code <= MOST_OF_UNIX and not signal_name(signal_number(code))


def _of_several_hosts(block: FailedRank) -> bool:
    """Whether the launcher that saw a rank end is one of several, each of which sees the ranks of its host alone."""
    return None not in (block.rank, block.local_rank) and block.rank != block.local_rank


def _fails_otherwise(job: JobLogs) -> bool:
    """Whether any line but that of an abort tells of a failure."""
    return any(hit.pattern.role in (Role.ROOT, Role.CASCADE) and hit.name != "exit-told" for hit in job.hits)


def _explained(job: JobLogs) -> bool:
    roots = (hit for hit in job.hits if hit.pattern.role == Role.ROOT)
    return any(hit.fault_class.priority in (2, 3) and not hit.fault_class.lost_with_process for hit in roots)


def _can_be_cause(job: JobLogs, raised: RankException) -> bool:
    # A line without a traceback may come from a program that went on, unless processes ended after it.
    if _is_about_others(job, raised) or _ran_out(raised) or raised.line in job.once(_of_waits):
        return False
    ended = is_fatal(raised.message) or ended_after(job, raised.line) or is_last_word(job, raised.line)
    if raised.traceback is None and not ended:
        return False
    if went_on(job, raised.line):
        return False
    # Lines that name a fault of their own: out of memory, ECC, DDP's unused parameters.
    roots = job.once(_root_lines)
    if raised.line.evidence in roots or raised.name.endswith("OutOfMemoryError"):
        return False
    if (raised.line.path, raised.line.number + 1) in job.once(_device_lines):  # its message has two lines
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


# A wait that ran out: what did not come in time is to blame, and not who waited for it. It need not be another rank, so
# whoever raised it is no witness against one. A command that took too long is the rank's own.
_RAN_OUT = re.compile(
    r"^(?!subprocess\.)(?:(?:\w{1,80}\.){0,12}_?\w{0,60}Timeout(?:Error|Exception)?: |"
    r".{0,400}?(?i:\btimed[ -]?out (?:after|waiting|while)\b|\btimeout (?:after|exceeded|waiting|while)\b|: timeout \(|"
    r"\b(?:request|wait|call) timed out\b|\b(?:connect(?:ion)?|recv|receive|read) timeout\b|"
    r"\bwait(?:ing)? for (?:all |the |other ){1,3}(?:nodes|ranks|workers|processes|peers)\b))"
)


def _ran_out(raised: RankException) -> bool:
    return _RAN_OUT.match(f"{raised.name}: {raised.message}") is not None


def _is_about_others(job: JobLogs, raised: RankException) -> bool:
    return about_others(f"{raised.name}: {raised.message}") or raised.line in job.once(_of_calls)


def _of_calls(job: JobLogs) -> set[Line]:
    """The exceptions of gRPC for Python whose status, a line below, says that the other end was not reached or did not
    answer."""
    lines = {(hit.line.path, hit.line.number): hit.line for hit in job.named("exception")}
    above = (
        lines.get((hit.line.path, hit.line.number - distance))
        for hit in job.named("grpc-status", "grpc-deadline")
        for distance in range(1, HANG_RULES.rpc_message_reach + 1)
    )
    return {line for line in above if line is not None and "of RPC that terminated with" in line.text}


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


def _device_lines(job: JobLogs) -> set[tuple[str, int]]:
    """Lines of no process that say what of a device failed, as the second line of an exception does."""
    hits = [hit for name in ("cuda_failure", "cuda_oom", "gpu_hardware") for hit in job.of_class(name)]
    roots = (hit.line for hit in hits if hit.pattern.role == Role.ROOT)
    return {(line.path, line.number) for line in roots if line.speaker == Speaker()}


def _timeouts_by_rank(job: JobLogs) -> dict[int | None, list[Timeout]]:
    by_rank: dict[int | None, list[Timeout]] = defaultdict(list)
    for report in job.once(timeouts_of):
        if report.rank is not None:
            by_rank[report.rank].append(report)
    return by_rank


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
