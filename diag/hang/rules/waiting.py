"""What ranks do while the others wait: slow work, Python stacks, a blocked watchdog, blocked PCIe channels."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace

from diag.ended.frames import is_machinery
from diag.ended.model import Clue, Culprit, Source
from diag.events.behind import waits_of
from diag.events.rows import Did, Event, JobRank
from diag.hang.classes import CLASSES
from diag.hang.failures import (
    TIMED_OUT,
    GroupTimeouts,
    group_of,
    groups_of,
    lives,
    speaker_of,
    timeouts_of,
    writers_of_ids,
)
from diag.hang.job import JobLogs, distinct
from diag.hang.model import Line, MergedStack, Role, Stack, of_training
from diag.hang.policy import HANG_ANSWER, HANG_EVIDENCE, HANG_RULES
from diag.hang.rules.direct import clue_of, time_of
from diag.hang.rules.network import LOST
from diag.hang.text.work import STEP

# -- Work that only one rank does, for longer than the others may wait -------------------------------------------------

# By pattern, the class of the work that its lines show.
_WORK = {
    pattern: fault_class.id
    for fault_class in CLASSES.values()
    if fault_class.busy
    for pattern in fault_class.patterns_of(Role.CONFIRMATION)
}
_BAR = re.compile(
    r"(?P<label>[^|%]{0,200}?)(?P<percent>\d{1,3})%\|[^|]*\|[^\[]*\[(?:(?P<h>\d+):)?(?P<m>\d{1,2}):(?P<s>\d{2})<"
)
# A line of MetricLogger, which many programs have from there: detection/utils.py of torchvision's references
_LOGGED = re.compile(
    r"\s*(?P<label>[A-Za-z][\w ]{0,40}:?)\s+\[ *(?P<at>\d{1,9})/(?P<of>[1-9]\d{0,8})\]\s+eta: [^\n]{0,400}?"
    r"\btime: (?P<each>\d{1,6}\.\d{1,6})"
)
_EVALUATES = re.compile(r"(?i)\s*(?:test|val|eval)")
_TRAINS = re.compile(r"(?i)\b(?:train|epoch|step|iter|loss)")
_PREPARES = re.compile(
    r"(?i)cach|scan|load|map|tokeni|generat|extract|build|index|process|filter|download|convert|pack|group"
)
_NEAR = 0.8, 1.5  # of the timeout: work that began with the wait


@dataclass(frozen=True)
class _Busy:
    """Work that a line shows. ``rank``: None where the line does not show it."""

    fault_class: str
    rank: int | None
    line: Line
    bar: str = ""  # label and part of a progress bar
    estimated: bool = False  # that it lasted until the time-out follows from the bar's own estimate only
    last: bool = False  # no step of the training was printed between it and the time-out


@dataclass(frozen=True)
class _Wait:
    """The call in which the others waited. ``absent``: ranks that do not wait; ``known``: whether these are all of
    them."""

    words: str
    ranks: frozenset[int]
    absent: tuple[int, ...]
    known: bool
    early: bool  # one of the first collectives, or a barrier
    tiny: bool  # a barrier, a flag, a length
    timeout_ms: int | None
    ran_ms: int | None
    group: str
    line: Line


def slow(job: JobLogs) -> list[Clue]:
    waits = [_of_group(group) for group in groups_of(job, job.once(timeouts_of))] or _at_barriers(job)
    waiting = frozenset(rank for wait in waits for rank in wait.ranks)
    most = max(HANG_RULES.few_waits, HANG_RULES.most_looks_at_lines // max(1, len(job.once(_working_lines))))
    clues = (clue for wait in waits[:most] if (clue := _slow(job, wait, waiting)) is not None)
    return list(itertools.islice(clues, 1))


def _of_group(group: GroupTimeouts) -> _Wait:
    report = next(report for report in group.reports if report.call == group.usual)
    tiny = report.numel_in is None or max(report.numel_in, report.numel_out or 0) <= HANG_RULES.tiny_collective
    # In a group of unknown size, only ranks below the highest are known to exist. That is enough together with a line
    # of unfinished work.
    absent = group.absent if group.members is not None else group.passed_over
    return _Wait(
        report.words,
        frozenset(group.ranks),
        absent,
        group.members is not None,
        report.seq <= HANG_RULES.early_collectives,
        tiny,
        report.timeout_ms,
        report.ran_ms,
        group.group,
        report.line,
    )


def _at_barriers(job: JobLogs) -> list[_Wait]:
    """Waits without an NCCL collective: at gloo's barrier, or for a key in the store."""
    hits = job.named("barrier-victim", "store-input") + [
        hit for hit in job.named("store-get") if TIMED_OUT.search(hit.line.text)
    ]
    if not hits:
        return []
    ranks = {int(hit.groups["rank"]) for hit in hits if "rank" in hit.groups}
    ranks |= {rank for hit in hits if (rank := job.rank_of(hit.line)) is not None}
    awaited = set(job.once(writers_of_ids)) if any("writer" in hit.groups for hit in hits) else {0}
    times = [int(hit.groups["ms"]) for hit in hits if "ms" in hit.groups]
    absent = tuple(sorted(awaited - ranks))
    timeout = times[0] if times else None
    line = hits[0].line
    return (
        [_Wait("a barrier", frozenset(ranks), absent, True, True, True, timeout, timeout, "", line)] if absent else []
    )


def _slow(job: JobLogs, wait: _Wait, waiting: frozenset[int]) -> Clue | None:
    absent = tuple(rank for rank in wait.absent if rank not in waiting)
    busy = _busy(job, waiting, absent, wait)
    if busy is None:
        return None
    rank, name = busy.rank, busy.fault_class
    early = wait.early and wait.tiny
    supported = rank is not None or absent or early or busy.bar
    # A step behind it shows that the work of this process has ended; the first small collectives come before any step.
    if not busy.last and not busy.bar and rank is None and not early and not (wait.known and absent):
        return None
    if name == "slow_rank_preprocess" and not early and rank not in absent and not busy.bar:
        return None
    whole = wait.known or len(absent) == 1
    culprits = [job.of_rank(rank)] if rank is not None else [job.of_rank(member) for member in absent if whole]
    note = f"{_busy_rank_words(rank, absent)} {CLASSES[name].busy}{busy.bar} while the others waited in {wait.words}"
    note += f" for {wait.ran_ms // 1000:,} s." if wait.ran_ms else "."
    victims = tuple(sorted(waiting - {culprit.rank for culprit in culprits if culprit.rank is not None}))
    named = rank is not None and (rank in absent or not wait.known)
    sure = HANG_RULES.busy_rank_named if named else HANG_RULES.busy_rank_unnamed
    sure = min(sure, HANG_EVIDENCE.names_an_effect) if busy.estimated else sure
    return Clue(
        name,
        distinct([replace(culprit, process_group=wait.group) for culprit in culprits]) or (Culprit(),),
        (busy.line.evidence, wait.line.evidence),
        sure if supported else HANG_EVIDENCE.suggests,
        note,
        victims,
        time_ns=wait.line.time_ns,
    )


def _busy_rank_words(rank: int | None, absent: tuple[int, ...]) -> str:
    if rank is not None:
        return f"Rank {rank}"
    return f"Rank {absent[0]}, which did not time out," if len(absent) == 1 else "A rank"


def _busy(job: JobLogs, waiting: frozenset[int], absent: tuple[int, ...], wait: _Wait) -> _Busy | None:
    """The last line that shows unfinished work of a rank that does not wait; a progress bar that ran about as long as
    the others waited takes precedence."""
    busy: _Busy | None = None
    possible = set(absent)
    for line, name, bar, speaker in job.once(_working_lines):
        rank = speaker
        if name is None and bar is None:
            if busy is not None and line.path == busy.line.path:
                busy = replace(busy, last=False)
            continue
        if rank in waiting and line.speaker.rank is None:
            rank = None  # the only rank that prints in this file need not be the busy one
        if rank in waiting or (absent and rank is not None and rank not in possible):
            continue
        if line.source in ("nccl", "kernel", "stack", "launcher") or line.level in ("ERROR", "WARN"):
            continue
        if bar is None:
            last = line.path == wait.line.path and line.number < wait.line.number
            busy = _Busy(name or "", rank, line, last=last) if busy is None or not busy.bar else busy
            continue
        if int(bar["percent"]) >= 100:
            continue
        label = bar["label"].strip(" :")
        near = _near(bar, wait)
        estimated = not near and wait.early and wait.tiny and _outlasts(bar, wait)
        near = near or estimated
        rank = speaker_of(job, line).rank if rank is None and line.speaker.local_rank is not None else rank
        evaluates = _EVALUATES.match(label) is not None
        trains = _TRAINS.search(line.text) and not _PREPARES.search(label) and not evaluates
        if near and (label or wait.early) and not trains:
            words = f" ({label}: {bar['percent']} %)" if label else f" (a progress bar at {bar['percent']} %)"
            work = name or ("slow_rank_eval" if evaluates else "slow_rank_preprocess")
            busy = _Busy(work, rank, line, words, estimated)
        elif name is not None and (busy is None or not busy.bar):
            # A bar's last print may be long before: its rank wrote nothing since.
            lasts = wait.timeout_ms and 1000 * _seconds(bar) >= _NEAR[0] * wait.timeout_ms
            if lasts or line.number == wait.line.number or job.before(line, wait.line) is not False:
                busy = _Busy(name, rank, line, last=line.path == wait.line.path and line.number <= wait.line.number)
    return busy


def _working_lines(job: JobLogs) -> list[tuple[Line, str | None, re.Match[str] | None, int | None]]:
    """The lines that show work, each with its class, its progress bar and its rank; a step has neither of the first."""
    names = {hit.line: _WORK[hit.name] for hit in job.named(*_WORK)}
    lines = ((line, names.get(line), _bar_of(line.text)) for line in job.logs.lines)
    return [
        (line, name, bar, job.rank_of(line))
        for line, name, bar in lines
        if name is not None or bar is not None or STEP.search(line.text)
    ]


def _bar_of(text: str) -> re.Match[str] | None:
    """The progress bar in a line: tqdm's, or one in its form of what MetricLogger prints."""
    logged = _LOGGED.match(text)
    if logged is None:
        return _BAR.match(text)
    at, seconds = int(logged["at"]), int(int(logged["at"]) * float(logged["each"]))
    percent = min(100, 100 * at // int(logged["of"]))
    return _BAR.match(f"{logged['label']}{percent}%||[{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}<")


def _seconds(bar: re.Match[str]) -> int:
    return 3600 * int(bar["h"] or 0) + 60 * int(bar["m"]) + int(bar["s"])


_REST = re.compile(r"<(?:(?P<h>\d+):)?(?P<m>\d{1,2}):(?P<s>\d{2})")


def _outlasts(bar: re.Match[str], wait: _Wait) -> bool:
    """Whether by its own estimate a bar of preparation, printed last long before the time-out, was not full by then."""
    rest = _REST.match(bar.string, bar.end() - 1)
    if rest is None or wait.timeout_ms is None or not _PREPARES.search(bar["label"]):
        return False
    least, most = _NEAR
    elapsed = 1000 * _seconds(bar)
    return elapsed <= most * wait.timeout_ms and elapsed + 1000 * _seconds(rest) >= least * wait.timeout_ms


def _near(bar: re.Match[str], wait: _Wait) -> bool:
    """Whether a bar ran about as long as the timeout, or longer than any usual timeout where that is unknown."""
    least, most = _NEAR
    if wait.timeout_ms is None:
        return _seconds(bar) >= HANG_RULES.usual_timeout_s
    return least <= 1000 * _seconds(bar) / wait.timeout_ms <= most


# -- Stacks of py-spy and faulthandler: which ranks are in a collective ------------------------------------------------

_FAULTHANDLER = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+?)\s*$')
_PYSPY = re.compile(r"^\s+(?P<name>[\w.<>~ ]+?) \((?P<file>[^():]+):(?P<line>\d+)\)\s*$")
# The dumps of several processes may be in one file; torch.distributed.launch and DeepSpeed give the local rank.
_DUMPED = re.compile(r"^Process (?P<pid>\d{1,10}): (?:[^\n]*? --local[-_]rank[= ](?P<local>\d{1,6})\b)?")
_THREAD = re.compile(r"^\s*(?:Current thread|Thread) (?P<id>0x[0-9a-f]+|\d+)(?P<rest>.*)$")
_RECORDER = re.compile(r"[(/]collectors/(?:fence|background|machine)\.py:\d+\)$")
_COLLECTIVE = ("torch/distributed/distributed_c10d.py", "torch/distributed/c10d_logger.py", "_functional_collectives")


@dataclass(frozen=True)
class ThreadStack:
    rank: int  # -1: not known
    main: bool
    frames: tuple[str, ...]  # innermost first
    lines: tuple[Line, ...]  # of the frames
    whole: tuple[str, ...] = ()  # all frames

    @property
    def in_collective(self) -> bool:
        return any(words in frame for frame in self.frames for words in _COLLECTIVE)

    @property
    def of_recorder(self) -> bool:
        """Whether it is one of diag's own threads in the training: the one that takes the stacks may be the current
        one."""
        begun = [frame for frame in self.whole if "/threading.py:" not in frame and "(threading.py:" not in frame]
        return bool(begun) and _RECORDER.search(begun[-1]) is not None

    @property
    def told(self) -> int:
        """The index of the frame that says most: the collective, else the innermost one that is not Python's, PyTorch's
        or diag's own, which only say how it waits."""
        places = [at for at, frame in enumerate(self.frames) if any(words in frame for words in _COLLECTIVE)]
        places += [at for at, frame in enumerate(self.frames) if not is_machinery(frame)]
        return places[0] if places else 0

    @property
    def where(self) -> str:
        return self.frames[self.told]

    @property
    def evidence(self) -> Source:
        return self.lines[self.told].evidence


def stacks_of(job: JobLogs) -> tuple[ThreadStack, ...]:
    """The main thread of every rank whose stack was printed; the last one printed."""
    stacks = {stack.rank: stack for (_, rank, _), stack in job.once(_all_stacks).items() if rank is not None}
    return tuple(stacks[rank] for rank in sorted(stacks))


def stacks_without_rank(job: JobLogs) -> dict[int, ThreadStack]:
    """The same of the processes of which py-spy names the pid, and nothing the rank; by pid."""
    found = job.once(_all_stacks).items()
    return {pid: stack for (_, rank, pid), stack in found if rank is None and pid is not None}


def _all_stacks(job: JobLogs) -> dict[tuple[str, int | None, int | None], ThreadStack]:
    """By file, rank and the pid that py-spy prints, as far as they are known."""
    by_process: dict[tuple[str, int | None, int | None], list[Line]] = defaultdict(list)
    dumped: dict[str, tuple[int | None, int]] = {}  # by file, the process whose dump the lines are of
    for line in job.logs.lines:
        if line.source == "stack":
            if (process := _DUMPED.match(line.text)) is not None:
                number = int(process["pid"])
                dumped[line.path] = _rank_of_dumped(job, line, number, process["local"]), number
            rank, pid = job.rank_of(line), None
            if rank is None:
                rank, pid = dumped.get(line.path, (None, None))
            by_process[line.path, rank, pid].append(line)
    stacks = {}
    for key, lines in by_process.items():
        threads = [thread for thread in _threads(-1 if key[1] is None else key[1], lines) if not thread.of_recorder]
        mains = [thread for thread in threads if thread.main] or threads[-1:]
        if mains:
            stacks[key] = mains[-1]
    return stacks


def _rank_of_dumped(job: JobLogs, line: Line, pid: int, local: str | None) -> int | None:
    """The rank of a process that py-spy names: as logs have its pid, else by the local rank in its command, which is
    the rank where all are on one host."""
    process = job.find_process(host=line.speaker.host, pid=pid, path=line.path)
    if process is not None and process.rank is not None:
        return process.rank
    return int(local) if local is not None and len(job.hosts) <= 1 else None


def _threads(rank: int, lines: list[Line]) -> list[ThreadStack]:
    threads: list[ThreadStack] = []
    begin: Line | None = None
    frames: list[tuple[str, Line]] = []
    for line in [*lines, None]:
        text = line.text if line is not None else ""
        begins = line is None or _THREAD.match(text) is not None
        if begins and begin is not None and frames:
            # faulthandler prints the main thread last, and calls the current one "Current thread".
            main = '"MainThread"' in begin.text or "Current thread" in begin.text
            texts, of_frames = zip(*frames[: HANG_ANSWER.most_frames], strict=True)
            threads.append(ThreadStack(rank, main, texts, of_frames, tuple(text for text, _ in frames)))
        if begins:
            begin, frames = line, []
            continue
        frame = _FAULTHANDLER.match(text) or _PYSPY.match(text)
        if frame is not None and line is not None:
            begin = begin or line
            frames.append((f"{frame['name'].strip()} ({frame['file']}:{frame['line']})", line))
    return threads


def outside_collectives(job: JobLogs) -> list[Clue]:
    """Ranks outside of any collective while most others are in one."""
    stacks = job.once(stacks_of)
    inside = [stack for stack in stacks if stack.in_collective]
    events = [Event(JobRank(stack.rank), 0, did=Did.WAITS) for stack in inside]
    behind = set(waits_of(events, {"": [JobRank(stack.rank) for stack in stacks]}).absent)
    outside = [stack for stack in stacks if stack.rank in behind]
    if not outside or len(outside) > len(inside):
        return []
    others = "1 other is" if len(inside) == 1 else f"{len(inside)} others are"
    note = f"Rank {outside[0].rank} is in {outside[0].where}, {others} in a collective."
    evidence = tuple(stack.evidence for stack in (*outside[:3], inside[0]))
    culprits = distinct([job.of_rank(stack.rank) for stack in outside])
    victims = tuple(stack.rank for stack in inside)
    return [Clue("missing_rank", culprits, evidence, HANG_EVIDENCE.names_an_effect, note, victims)]


def in_one_place(stacks: Collection[ThreadStack]) -> bool:
    """Whether all are in the same call, in whichever line of it."""
    return len({stack.where.rpartition(":")[0] for stack in stacks}) == 1


def shown_stacks(job: JobLogs, culprits: set[int]) -> tuple[Stack, ...]:
    """The culprits' stacks, and one of a victim."""
    stacks = job.once(stacks_of)
    stopped = [Stack(s.rank, "culprit", s.frames, s.evidence) for s in stacks if s.rank in culprits]
    victims = [
        Stack(s.rank, "a typical victim", s.frames, s.evidence)
        for s in stacks
        if s.rank not in culprits and s.in_collective
    ]
    return (*stopped[:4], *victims[:1])


def merged_stacks(job: JobLogs) -> tuple[MergedStack, ...]:
    """The main threads of all ranks, those in the same calls together. Outliers first: those outside of collectives,
    then the smallest groups."""
    groups: dict[tuple[str, ...], list[ThreadStack]] = defaultdict(list)
    for stack in job.once(stacks_of):
        groups[of_training(stack.whole)].append(stack)
    merged = [
        MergedStack(tuple(stack.rank for stack in stacks), frames, stacks[0].in_collective)
        for frames, stacks in groups.items()
    ]
    return tuple(sorted(merged, key=lambda group: (group.in_collective, len(group.ranks), group.ranks)))


# -- Hangs without an error: a blocked watchdog, or all ranks in the first collective over P2P channels ----------------


def silent(job: JobLogs) -> list[Clue]:
    return [*(_blocked_channels(job) or _kernel_settings(job)), *_blocked_watchdog(job)]


def _blocked_watchdog(job: JobLogs) -> list[Clue]:
    """The heartbeat monitor ends a process whose watchdog makes no progress: CUDA or Python's lock (GIL) blocks it. A
    collective that timed out as well is the better clue."""
    hits = job.named("heartbeat", "gil")
    reports = job.once(timeouts_of)
    late = [report for report in reports if report.late]
    if not hits and not late:
        return []
    lines = [hit.line for hit in hits] or [report.line for report in late]
    culprits = distinct([culprit for line in lines if (culprit := job.culprit(line)).rank is not None or culprit.host])
    groups = list(dict.fromkeys(group for line in lines if (group := group_of(line)[0])))
    note = (
        hits[0].sentence if hits else f"{late[0].words} ran for {(late[0].ran_ms or 0) // 1000:,} s: more than twice "
    )
    note += "" if hits else "its timeout, so the watchdog itself was late."
    note += f" Process groups: {', '.join(groups)}." if groups else ""
    ranks = {c.rank for c in culprits if c.rank is not None}
    # A rank that lost a connection before may hang in the abort of its communicators.
    lost = {job.rank_of(hit.line) for hit in job.named(*LOST)} - {None}
    sure = (
        HANG_EVIDENCE.names_an_effect if hits and not reports and not ranks & lost else HANG_RULES.guess_with_timeouts
    )
    # Several at once wait for the same thing: none of them is the cause.
    named = culprits if len(culprits) == 1 else ()
    evidence = tuple(line.evidence for line in lines[:4])
    victims = tuple(sorted(c.rank for c in culprits if c.rank is not None)) if not named else ()
    return [Clue("watchdog_blocked", named, evidence, sure, note, victims, time_of(lines))]


def _blocked_channels(job: JobLogs) -> list[Clue]:
    """PCIe isolation (IOMMU, ACS): all ranks are initialised and wait in the first collective, and none reports an
    error."""
    channels = job.named("via-p2p")
    complaints = any(hit.pattern.role == Role.ROOT and hit.line.level != "INFO" for hit in job.hits)
    if not channels or not _all_initialised(job) or complaints:
        return []
    everybody = [group for group in groups_of(job, job.once(timeouts_of)) if _all_in_the_first(group)]
    stuck = _last_call_is_the_first(job)
    if not everybody and not stuck:
        return []
    hosts = list(dict.fromkeys(job.culprit(hit.line).host for hit in channels if job.culprit(hit.line).host))
    lines = [everybody[0].reports[0].line] if everybody else []
    waits = everybody[0].reports[0].words if everybody else "the first collective"
    return [
        Clue(
            "p2p_iommu_acs",
            distinct([job.of_host(host) for host in hosts]),
            tuple(line.evidence for line in (*lines, *(hit.line for hit in channels[:3]))),
            HANG_RULES.no_first_collective if everybody else HANG_RULES.no_first_collective - 0.1,
            f"All ranks are initialised and all wait in {waits}; the channels use P2P, and no rank reports an error.",
            tuple(sorted(everybody[0].ranks)) if everybody else (),
        )
    ]


def _kernel_settings(job: JobLogs) -> list[Clue]:
    """RCCL warns of a setting of the kernel without which GPUs can hang, and nothing shows that the job went on."""
    hits = job.named("rccl-iommu")
    complaints = any(hit.pattern.role == Role.ROOT and hit.line.level != "INFO" for hit in job.hits)
    if not hits or complaints or job.once(lives):
        return []
    hosts = dict.fromkeys(job.culprit(hit.line).host for hit in hits)
    culprits = [job.of_host(host) for host in hosts if host]
    return [clue_of("p2p_iommu_acs", hits, [replace(c, rank=None, gpu=None) for c in culprits], hits[0].sentence)]


def _all_initialised(job: JobLogs) -> bool:
    several = [c for c in job.communicators if c.size > 1]
    return any(len(c.members) == c.size and all(m.completed for m in c.members) for c in several)


def _all_in_the_first(group: GroupTimeouts) -> bool:
    same = len({report.call for report in group.reports}) == 1
    return same and group.is_whole and group.reports[0].seq <= HANG_RULES.never_finished_up_to


def _last_call_is_the_first(job: JobLogs) -> bool:
    """Without time-outs: every rank's first call is its last, and no process ended in order."""
    members = [m for c in job.communicators if c.size > 1 for m in c.members]
    called = [m for m in members if m.calls]
    return (
        bool(called) and len(called) == len(members) and all(m.calls[-1].op_count == 0 and not m.ended for m in called)
    )
