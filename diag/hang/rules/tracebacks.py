"""The first exception of every process, whole or cut off, and whose it is."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from diag.ended.model import Culprit
from diag.ended.raised import TRACEBACK, lost_worker
from diag.hang.classes.base import Hit
from diag.hang.classes.launchers import ABORTED, ENDS
from diag.hang.classes.programs import RAISED_IN, STOPS, STOPS_AT_LAST
from diag.hang.classes.words import reading_of
from diag.hang.failures import FailedRank, failed_ranks, is_tied, of_process, rank_said, speaker_of, timeouts_of
from diag.hang.job import JobLogs
from diag.hang.model import Line, Role, Speaker
from diag.hang.policy import HANG_RULES
from diag.hang.rules.ends import names_anybody, reported_ends
from diag.hang.text.gather import is_telling

# Limits of the operating system, which few programs get over: memory and open files.
_OF_THE_SYSTEM = re.compile(r"\[Errno (?:12|23|24)\] ")


@dataclass(frozen=True)
class RankException:
    culprit: Culprit
    name: str
    message: str
    line: Line
    traceback: Line | None


def first_of_each(job: JobLogs) -> list[RankException]:
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
        if hit.name == "aborts-itself" and (hit.line.path, hit.line.number) in job.once(_lines_about_peers):
            continue  # a failed check about a peer
        if hit.name in STOPS_AT_LAST and reading_of(hit.line.text) is not None:  # its words say what failed
            continue
        # What a process passes on of a worker, whose exception stands below
        if hit.groups.get("message", "").startswith(TRACEBACK) or _passes_on(job, hit):
            continue
        # The interpreter itself prints that it finds no module to run, without a traceback, and ends.
        begin = hit.line if hit.name in _ENDS_IT else _traceback_of(tracebacks, hit)
        culprit = _culprit_of_traceback(job, hit.line, by_path.get(hit.line.path, []))
        if "rank" in hit.groups and not names_anybody(culprit):
            culprit = job.of_rank(int(hit.groups["rank"]))
        if begin is None and hit.line.speaker == Speaker() and not blocks and not is_tied(job, hit.line):
            culprit = Culprit()  # nothing ties a line without a traceback to the processes of its file
        begin = begin or _cut_traceback(job, hit.line) or (hit.line if _IN_ERROR_FILE.search(hit.line.raw) else None)
        if begin is None and (begin := _traceback_below(job, hit.line)) is not None and not names_anybody(culprit):
            culprit = speaker_of(job, begin)
        key = (culprit.rank, culprit.host) if culprit.rank is not None else (hit.line.path, culprit.host)
        message = hit.groups.get("message", "")
        if not names_anybody(culprit) and not job.communicators and (said := rank_said(message)) is not None:
            culprit = job.of_rank(said)
        alone = begin is None and (is_last_word(job, hit.line) or ended_after(job, hit.line))
        if begin is not None or culprit.rank is not None or blocks or alone or is_fatal(message):
            exceptions.setdefault(
                key,
                RankException(culprit, hit.groups.get("exception", ""), message, hit.line, begin),
            )
    # A file of the launcher repeats what a rank printed, without saying whose it is.
    named = {(raised.name, raised.message) for raised in exceptions.values() if names_anybody(raised.culprit)}
    found = [
        raised
        for raised in exceptions.values()
        if names_anybody(raised.culprit) or (raised.name, raised.message) not in named
    ]
    # A watchdog ends its process by such an exception too, and lines of several processes run into each other.
    if found:
        return found
    return [] if job.once(timeouts_of) else _of_cpp(job) or _cut_before_exception(job) or _told_alone(job)


def _told_alone(job: JobLogs) -> list[RankException]:
    """Processes of which a line says that they raised, where the end of the log cuts off what, and no line below names
    the process."""
    found: dict[Culprit, RankException] = {}
    for hit in job.named(*RAISED_IN) if not job.named("spawned") else ():
        culprit = speaker_of(job, hit.line)
        found.setdefault(culprit, RankException(culprit, "", "", hit.line, hit.line))
    return list(found.values())


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
        reach = HANG_RULES.what_reach if line.speaker == Speaker() else HANG_RULES.what_reach_of_speaker
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


# Lines that a program prints as it ends
_ENDS_IT = ("no-module", "aborts-itself", "crashed-on-this-rank", *STOPS)

_NAMELESS = (*_ENDS_IT, "refuses-to-start", *STOPS_AT_LAST)  # ends without an exception of Python

# What torchrun's error file says ended the process; not a logger's line that is an object
_IN_ERROR_FILE = re.compile(r'\{"message": ?\{"message": |^\W*"message": "')


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
    speaker = speaker_of(job, line)
    return replace(speaker, rank=None) if line.speaker == Speaker() and _is_of_a_child(job, line) else speaker


def _is_of_a_child(job: JobLogs, line: Line) -> bool:
    """Whether multiprocessing says above the traceback that a process ends which the program itself started: that may
    be another rank than the one that all other lines of the file are of."""
    titles = job.once(_frames).get((line.path, "child-process"), [])
    at = bisect_left(titles, line.number, key=lambda title: title.number) - 1
    return at >= 0 and line.number - titles[at].number <= HANG_RULES.traceback_reach


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


def _traceback_below(job: JobLogs, line: Line) -> Line | None:
    """The first frame of a file, of one process, right below the only exception of the file: who pastes a log may put
    what was raised above its traceback."""
    frames = job.once(_frames).get((line.path, "frame"), [])
    if not frames or not 0 < frames[0].number - line.number <= HANG_RULES.frame_reach:
        return None
    alone = len(job.once(_frames)[line.path, "exception"]) == 1
    return frames[0] if alone and len({frame.speaker for frame in frames}) == 1 else None


def _passes_on(job: JobLogs, hit: Hit) -> bool:
    """Whether torch raised it to show, below it, the traceback of another process: of one that torch.multiprocessing
    started, below an empty line, or of a rank that failed in a checkpoint."""
    of_checkpoint = hit.groups.get("exception", "").endswith("CheckpointException")
    below = job.once(_frames).get((hit.line.path, "checkpoint-rank" if of_checkpoint else "spawned"), [])
    at = bisect_right(below, hit.line.number, key=lambda title: title.number)
    near = at < len(below) and below[at].number - hit.line.number <= HANG_RULES.frame_reach
    return near and (of_checkpoint or not hit.groups.get("message"))


def _lines_about_peers(job: JobLogs) -> set[tuple[str, int]]:
    """The lines that say which peer the process that prints them has lost."""
    told = (hit for hit in job.hits if "peer_rank" in hit.groups and hit.pattern.role != Role.HARMLESS)
    return {(hit.line.path, hit.line.number) for hit in told}


def _frames(job: JobLogs) -> dict[tuple[str, str], list[Line]]:
    """By file, the frames of tracebacks, exceptions, the lines between those of a chain, and the titles of tracebacks
    of other processes, in order."""
    lines: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for hit in job.named("frame", "exception", "chained", "spawned", "checkpoint-rank", "child-process"):
        lines[hit.line.path, hit.name].append(hit.line)
    return lines


def is_fatal(message: str) -> bool:
    """Whether few programs get over an exception with this message: a limit of the system, a worker that is gone."""
    return _OF_THE_SYSTEM.match(message) is not None or lost_worker(message) is not None


def is_last_word(job: JobLogs, line: Line) -> bool:
    """Whether a file ends with this line."""
    return any(last.path == line.path and last.number == line.number for last in job.logs.last_lines) and not any(
        last.path == line.path and last.number > line.number for last in job.logs.last_lines
    )


def cut_among(job: JobLogs, lines: Iterable[Line]) -> set[str]:
    """The files that end inside a line of a kind, where all others of its kind in the file end alike and it does not:
    more lines of the kind may have come behind it. ``lines``: all of the kind."""
    by_path: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_path[line.path].append(line)
    cut = set()
    for path, of_kind in by_path.items():
        *others, last = sorted(of_kind, key=lambda line: line.number)
        ends = {_end_of(line) for line in others if line.number != last.number}
        if len(ends) == 1 and _end_of(last) not in ends and is_last_word(job, last):
            cut.add(path)
    return cut


_NUMBERS = re.compile(r"\d+")


def _end_of(line: Line) -> str:
    """The last word of a line, whatever its numbers."""
    return _NUMBERS.sub("0", line.raw.rstrip().rpartition(" ")[2])


def ended_after(job: JobLogs, line: Line) -> bool:
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
