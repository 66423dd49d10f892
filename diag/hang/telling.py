"""What can be said where no cause is known: the last telling lines, who printed them, and whether anything followed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diag.ended.model import Culprit, culprit_words
from diag.ended.raised import shortened
from diag.hang.classes import CLASSES
from diag.hang.classes.base import Hit
from diag.hang.job import JobLogs
from diag.hang.model import Line
from diag.hang.policy import HANG_ANSWER
from diag.hang.text.gather import is_telling
from diag.words.formatting import counted

# Patterns of lines that show in what state a job is, and of no cause.
_OPEN = (*CLASSES["undetermined"].patterns, "exits-with")


def states_of(job: JobLogs) -> list[Hit]:
    """The lines that show in what state the job is, though no cause."""
    return job.named(*_OPEN)


def state_words(job: JobLogs, hits: Sequence[Hit]) -> str:
    """Each state once, with how long it has lasted where it is printed again and again."""
    sentences = []
    for name in dict.fromkeys(hit.name for hit in hits):
        same = [hit for hit in hits if hit.name == name]
        sentences.append(same[0].sentence + _lasted([hit.line for hit in same]))
    last = hits[-1].line
    if not _followed(job, last):
        sentences.append(f"It is the last line of {printed_by(job, last)}.")
    return " ".join(sentences)


def _lasted(lines: Sequence[Line]) -> str:
    times = [line.time_ns for line in lines if line.time_ns is not None]
    seconds = (max(times) - min(times)) // 1_000_000_000 if times else 0
    if len(lines) < 2:
        return ""
    duration = counted(round(seconds / 60), "minute") if seconds >= 60 else counted(seconds, "second")
    return f" The line came {len(lines)} times" + (f" in {duration}." if seconds else ".")


def last_telling(job: JobLogs) -> list[Line]:
    """The last lines of the logs that tell of an error, an end or a wait; else the last lines of all."""
    telling = [line for line in job.logs.last_lines if is_telling(line.raw)]
    ends = {line.path: line for line in job.logs.last_lines}
    return telling[-HANG_ANSWER.last_lines_quoted :] or list(ends.values())[-HANG_ANSWER.last_lines_quoted :]


def _followed(job: JobLogs, line: Line) -> bool:
    """Whether anything was printed after a line of the same file."""
    return any(last.path == line.path and last.number > line.number for last in job.logs.last_lines)


def quoted(job: JobLogs, lines: Sequence[Line]) -> str:
    """The last of the lines in words, with who printed it and whether anything followed in its file."""
    last = lines[-1]
    words = shortened(last.text.strip(), HANG_ANSWER.quoted_chars)
    rest = "" if _followed(job, last) else "; nothing was printed after it"
    line = "The last telling line" if is_telling(last.raw) else "The last line"
    return f'{line}, of {printed_by(job, last)}: "{words}"{rest}.'


def printed_by(job: JobLogs, line: Line) -> str:
    """``rank 3 on node1``, ``process 71 on node1``, else the name of the file."""
    culprit = job.culprit(line)
    if culprit.rank is not None:
        return culprit_words([Culprit(culprit.rank, culprit.host)])
    if line.speaker.worker:
        return f"worker {line.speaker.worker}"
    if line.speaker.pid is not None:
        return f"process {line.speaker.pid}" + (f" on {culprit.host}" if culprit.host else "")
    return f"host {culprit.host}" if culprit.host else Path(line.path).name
