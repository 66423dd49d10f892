"""Whether a process, or the whole job, went on after a line that looks alarming."""

from __future__ import annotations

import re

from diag.hang.case import Case
from diag.hang.model import Line
from diag.hang.rules.exits import SAYS
from diag.hang.rules.launcher import blocks_of

# A training step or a bar, as trainers print it. A reader keeps the last one of each file. Digits are begun with their
# first, and what may stand between is bounded: or a line of 10 kB of digits, or of "step 1", takes a second.
STEP = re.compile(
    r"(?i)\b(?:step|iter|iteration|epoch)s?\b[\s:=\[]{0,40}+\d++.{0,1000}?\bloss\b|'loss': ?[\d.]|(?<!\d)\d++/\d++ "
    r"\[[>.=]*+\].{0,1000}?\bloss\b|(?<!\d)\d++%\|.{0,1000}?(?:it/s|s/it)"
    # nccl-tests
    r"|^\s*+\d++\s++\d++\s++(?:u?int\d++|float|half|double|bfloat16|f8\w++)\s++\w++\s++(?:-?\d++\s++)?\d++\.\d"
)
# The last step of the last epoch.
_LAST_STEP = re.compile(r"(?i)\bepoch:? \[?(\d+)/\1\]?,? (?:iter|step|batch):? \[?(\d+)/\2\b")
# Signs that a process was ended, or ended with an error.
_FAILED = (
    "exitcode",
    "rank-exitcode",
    "first-to-exit",
    "exit-told",
    "sigterm",
    "death-signal",
    "watchdog",
    "blocking-wait",
    "watchdog-terminated",
)


def failed(case: Case) -> bool:
    """Whether anything says that the job did not end by itself."""
    signals = ("sigkill", "sigbus", "sigsegv", "sigill", "sigfpe")
    by_signal = [f"{who}-{name}" for name in signals for who in SAYS]
    return bool(case.named(*_FAILED, *by_signal)) or bool(case.once(blocks_of))


def ended_well(case: Case) -> bool:
    """The training says that it reached its end, and nobody says that a process failed."""
    said = bool(case.named("ended-well")) or any(_LAST_STEP.search(line.text) for line in case.logs.lines)
    return said and not case.once(failed)


def lives(case: Case) -> bool:
    """Whether anything shows that the job came up: an initialisation that is complete, a step, an end in order."""
    complete = any(member.completed for one in case.logs.communicators for member in one.members)
    return complete or case.once(ended_well) or any(STEP.search(line.text) for line in case.logs.lines)


def went_on(case: Case, line: Line) -> bool:
    """Whether the job reached its end, or the process worked on, after a line that looks alarming."""
    if case.once(ended_well):
        return True
    number = case.once(_last_work).get(_voice(case, line), 0)
    return number > line.number


def in_order(case: Case, line: Line) -> bool:
    """``went_on``, or the process destroyed its communicators at some time: for what is said while it ends."""
    return went_on(case, line) or id(case.process_of(line)) in case.once(_ended_in_order)


def _voice(case: Case, line: Line) -> tuple[str, int | None]:
    """The file and the process. Lines that nobody can be told of are one voice of their file."""
    process = case.process_of(line)
    return line.path, id(process) if process is not None else line.speaker.rank


def _last_work(case: Case) -> dict[tuple[str, int | None], int]:
    """By voice the last line that tells of work. A step that a file does not ascribe says little of the process that
    another line of it speaks of, where the job failed."""
    found: dict[tuple[str, int | None], int] = {}
    working = {hit.line for hit in case.named("evaluating", "saving", "preprocessing")}
    for line in case.logs.lines:
        if line in working or STEP.search(line.text) or "Destroy COMPLETE" in line.text:
            voice = _voice(case, line)
            if voice[1] is not None or not case.once(failed):
                found[voice] = max(found.get(voice, 0), line.number)
    return found


def _ended_in_order(case: Case) -> set[int]:
    """``id`` of the processes that destroyed a communicator."""
    members = (member for communicator in case.logs.communicators for member in communicator.members)
    ended = {m.process for m in members if m.process is not None and m.ended == "destroyed"}
    return {id(case.logs.processes[number]) for number in ended}
