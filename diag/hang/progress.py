"""Work at the end of the logs: what goes on, how often it shows, and whether it still does.

A log of a training that hangs ends like one of a training that works: with its last step. Of public threads in which
someone asks why their job hangs, many quote nothing else. So steps alone decide nothing; the clock does. A file to
which nothing was written for much longer than its steps are apart belongs to a job that stands still or is gone. One
whose last step is as old as the file, and no older than steps are apart, works.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from diag.hang.failures import failed, is_measurement, is_step
from diag.hang.job import JobLogs
from diag.hang.model import Line, Role, Written
from diag.hang.policy import HANG_EVIDENCE, HANG_RULES
from diag.hang.text.gather import is_telling
from diag.hang.text.work import NOT_FINITE, WORK, bar_seconds, counts_of
from diag.rundir.policy import SILENCE
from diag.words.formatting import elapsed

_CALM = ("evaluating", "saving", "preprocessing", "lightning-member")  # what jobs print that are well


@dataclass(frozen=True)
class AtWork:
    """The last lines of work of each file, and when that was. ``every_ns``: the longest time between two of them, 0
    where no line shows any; ``silent_ns``: since the file that was written last was, None where that is unknown."""

    lines: tuple[Line, ...]
    every_ns: int
    silent_ns: int | None
    works: bool  # every file's last step is as new as the file, and no older than steps are apart

    @property
    def longest_ns(self) -> int:
        """For how long nothing is written at most while the job works, an evaluation or a checkpoint included."""
        return int(max(SILENCE.still_steps * self.every_ns, SILENCE.first_busy_s * 1e9))

    @property
    def stands_still(self) -> bool:
        """Whether nothing was written for much longer than between two steps."""
        return self.silent_ns is not None and self.silent_ns > self.longest_ns

    @property
    def pace(self) -> str:
        """How far its lines are apart, in words that follow them; "" where no line shows it."""
        return f", at most {elapsed(self.every_ns)} apart" if self.every_ns else ""

    @property
    def headline(self) -> str:
        """What that says of the job."""
        if self.stands_still:
            return (
                f"Work goes on up to the last line{self.pace}, and no line tells of a failure. Nothing has been "
                f"written for {elapsed(self.silent_ns or 0)}: the job stands still, or its processes ended without "
                "a word."
            )
        if self.works:
            return (
                f"The job works: the last line was written {elapsed(self.silent_ns or 0)} before it was read, the last "
                f"steps came{self.pace.lstrip(',')}, and no line tells of a failure."
            )
        longer = "for much longer than that" if self.every_ns else "since then"
        return (
            f"Work goes on up to the last line{self.pace}, and no line tells of a failure. If nothing was printed "
            f"{longer}, the job stands still there."
        )


def goes_on(job: JobLogs) -> AtWork | None:
    """The work at the end of the logs, where every file that has some ends with it and no line tells of a failure. A
    single line of work shows no progress."""
    ends = {line.path: line.number for line in job.logs.last_lines}
    works: dict[str, list[Line]] = defaultdict(list)
    for line in job.logs.lines:
        if WORK.search(line.text) or (is_step(line) and not is_measurement(line)):
            works[line.path].append(line)
    at_end = all(
        len({line.text for line in lines}) > 1
        and ends.get(path, 0) - lines[-1].number <= HANG_RULES.lines_after_work
        and not NOT_FINITE.search(lines[-1].text)
        for path, lines in works.items()
    )
    calm = all(hit.pattern.role == Role.HARMLESS or hit.name in _CALM for hit in job.hits)
    if not works or not at_end or not calm or job.once(failed):
        return None
    last = {line for lines in works.values() for line in lines[-2:]}
    since = {path: lines[-2].number for path, lines in works.items()}
    after = (line for line in job.logs.last_lines if line.number > since.get(line.path, 0) and line not in last)
    if any(is_telling(line.raw) or NOT_FINITE.search(line.text) for line in after):
        return None
    return _at_work(job, works)


def _at_work(job: JobLogs, works: Mapping[str, Sequence[Line]]) -> AtWork:
    """What lines of work, by file, show of its pace, and their files' clock of its end."""
    every = max((_apart_ns(lines) for lines in works.values()), default=0)
    written = {path: job.logs.written[path] for path in works if path in job.logs.written}
    known = bool(written) and len(written) == len(works)
    return AtWork(
        tuple(sorted((line for lines in works.values() for line in lines[-2:]), key=lambda line: line.number)),
        every,
        min(one.age_ns for one in written.values()) if known else None,
        known and every > 0 and all(_works(lines, written[path], every) for path, lines in works.items()),
    )


def _apart_ns(lines: Sequence[Line]) -> int:
    """The longest time between two successive lines, by their time stamps or by the time that one bar counts."""
    clocks: dict[int | None, list[int]] = defaultdict(list)  # by the steps of a bar; None: time stamps
    for line in lines:
        if line.time_ns is not None:
            clocks[None].append(line.time_ns)
        if (bar := bar_seconds(line.text)) is not None:
            clocks[bar[0]].append(int(bar[1] * 1e9))
    return max((0, *(later - sooner for times in clocks.values() for sooner, later in pairwise(times))))


def _works(lines: Sequence[Line], written: Written, every_ns: int) -> bool:
    """Whether the last lines count steps, the last of them was the last that was written, and that is not long ago. A
    copy of a log is newer than its last line."""
    last = lines[-HANG_EVIDENCE.steps_that_go_on :]
    steps = [counts_of(line.text) for line in last]
    counts = len(steps) == HANG_EVIDENCE.steps_that_go_on and all(
        len(sooner) == len(later) and sooner < later for sooner, later in pairwise(steps)
    )
    at = last[-1].time_ns
    near = HANG_EVIDENCE.fresh_steps * every_ns + HANG_EVIDENCE.written_late_ns
    return (
        counts
        and at is not None
        and written.age_ns <= near
        and min(abs(written.at_ns + zone - at) for zone in (0, written.zone_ns)) <= near
    )
