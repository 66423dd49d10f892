"""Lines that no pattern knows, read by words that programs share (``diag.hang.classes.words``).

It is asked only where no other rule names a cause: a line of a program that is known says more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from diag.ended.model import Clue, Culprit
from diag.ended.raised import about_the_group, shortened
from diag.hang.classes import CLASSES
from diag.hang.classes.words import Reading, device_address, far_host, far_rank, reading_of
from diag.hang.failures import failed, speaker_of, went_on
from diag.hang.job import JobLogs, distinct
from diag.hang.model import Line
from diag.hang.policy import HANG_ANSWER, HANG_EVIDENCE
from diag.hang.telling import states_of

# Patterns that say where a line stands, and not what it means
_SHAPES = ("traceback", "frame", "exception", "chained", "spawned", "exit-told", "cpp-exception", "cpp-what")


def clues(job: JobLogs) -> list[Clue]:
    """One clue a class; none where a known line says that the state of the job is open."""
    if states_of(job):
        return []
    hits = [hit for hit in job.hits if hit.name not in _SHAPES]
    ends = failed(job) or any(hit.fault_class.ending or hit.fault_class.outside for hit in hits)
    found = read(job, {hit.line for hit in hits})
    # A connection is closed whenever a process at its other end is ended.
    return [clue for clue in found if not (ends and CLASSES[clue.fault_class].closed_at_end)]


def read(job: JobLogs, without: Collection[Line]) -> list[Clue]:
    """As ``clues``, of all lines but these, whatever else is known."""
    found: dict[str, list[tuple[Line, Reading]]] = defaultdict(list)
    lines = dict.fromkeys((*job.logs.lines, *job.logs.last_lines))
    known = {(line.path, line.number) for line in without}
    for line in sorted(lines, key=lambda line: (line.path, line.number)):
        if (line.path, line.number) in known:
            continue
        mild = line.level == "INFO" or (line.source, line.level) == ("torch", "WARN")
        reading = None if mild else reading_of(line.text)
        if reading is not None and about_the_group(line.text) and not (reading.far and far_host(line.text)):
            continue
        if reading is not None and not went_on(job, line):
            found[reading.fault_class].append((line, reading))
    return [_clue(job, name, lines) for name, lines in found.items()]


def _clue(job: JobLogs, name: str, lines: list[tuple[Line, Reading]]) -> Clue:
    said = shortened(lines[0][0].text.strip(), HANG_ANSWER.text_chars)
    return Clue(
        fault_class=name,
        culprits=distinct([_culprit(job, line, reading) for line, reading in lines]),
        evidence=tuple(dict.fromkeys(line.evidence for line, _ in lines))[: HANG_ANSWER.most_lines_of_rule],
        confidence=HANG_EVIDENCE.read_by_words,
        note=f'No known pattern matches, and the words of a line say so: "{said}"',
    )


def _culprit(job: JobLogs, line: Line, reading: Reading) -> Culprit:
    """Who printed the line, with the device that it names; of a connection its other end, else the host of this one."""
    if not reading.far:
        return replace(speaker_of(job, line), bus_id=device_address(line.text))
    if (rank := far_rank(line.text)) is not None:
        return job.of_rank(rank)
    if end := far_host(line.text):
        host = job.resolve(end)
        return job.of_host(host, peer=end) if host else Culprit(peer=end)
    return Culprit(host=speaker_of(job, line).host if reading.fault_class == "net_failure" else "")
