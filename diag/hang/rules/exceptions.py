"""Python exceptions: one that is not about the others, and not later than their time-outs, is a cause."""

from __future__ import annotations

from dataclasses import dataclass

from diag.hang.case import Case, distinct
from diag.hang.model import Clue, Culprit, Line, Role, Speaker
from diag.hang.progress import went_on
from diag.hang.raised import about_others
from diag.hang.rules.direct import time_of
from diag.hang.rules.exits import who_ended
from diag.hang.rules.launcher import Block, blocks_of, speaker_of
from diag.hang.signatures.base import Hit
from diag.hang.timeouts import timeouts_of

_RAISED = 0.85  # the program says what failed
_RAISED_WITHOUT_FRAMES = 0.7
_RAISED_BY_SEVERAL = 0.6  # and nothing tells who was first
_ENDED_ITSELF = 0.7
_PERHAPS_A_VICTIM = 0.45
_FIRST_OF_MANY = 0.3
_ABORTED = -6
_SIGNALLED = 128  # and more: of a shell, for a signal
_TRACEBACK_REACH = 200  # lines


@dataclass(frozen=True)
class Raised:
    culprit: Culprit
    name: str
    message: str
    line: Line
    traceback: Line | None


def clues(case: Case) -> list[Clue]:
    """One clue: the first exception, or all where nothing tells which one was first."""
    all_raised = case.once(_first_of_each)
    raised = [one for one in all_raised if _can_be_cause(case, one)]
    blocks = case.once(blocks_of)
    if not raised:
        return _ended_without_one(case, all_raised, blocks)
    first = _earliest(case, raised, blocks)
    same = [one for one in first if (one.name, one.message) == (first[0].name, first[0].message)]
    sure = _RAISED if len(same) == len(first) else _RAISED_BY_SEVERAL
    sure = min(sure, _RAISED_WITHOUT_FRAMES) if all(one.traceback is None for one in first) else sure
    exits = _exit_lines(case, [one.culprit for one in first], blocks)
    lines = [line for one in first for line in (one.traceback, one.line) if line is not None]
    what = first[0].name + (f": {_shortened(first[0].message)}" if first[0].message else "")
    return [
        Clue(
            "rank_killed_exception",
            Role.ROOT,
            distinct([one.culprit for one in first]),
            tuple(dict.fromkeys(line.evidence for line in (*lines, *exits)))[:8],
            sure,
            f"It raised {what}",
            time_ns=time_of([*lines, *exits]),
        )
    ]


def victims_of(case: Case) -> dict[int, Line]:
    """Ranks whose first exception is about the others: they lost a peer, or waited for one too long."""
    found = {}
    for one in case.once(_first_of_each):
        if one.culprit.rank is not None and about_others(f"{one.name}: {one.message}"):
            found[one.culprit.rank] = one.line
    return found


def _ended_without_one(case: Case, raised: list[Raised], blocks: tuple[Block, ...]) -> list[Clue]:
    """A rank that ended by itself with an exit code, before the others lost it, and printed no exception."""
    known = {one.culprit.rank for one in raised} | {report.rank for report in case.once(timeouts_of)}
    ended: dict[Culprit, list[Line]] = {}
    codes: dict[Culprit, int] = {}
    for hit in case.named("first-to-exit"):
        number = hit.groups.get("rank") or hit.groups.get("number")
        rank = int(number) if number else None
        if rank is not None and rank not in known:
            ended.setdefault(case.of_rank(rank), []).append(hit.line)
            codes[case.of_rank(rank)] = 1
    for hit in case.named("exitcode", "rank-exitcode"):
        code, who = int(hit.groups["exitcode"]), who_ended(case, hit, blocks)
        aborted = code == _ABORTED and hit.signature.name == "rank-exitcode" and not known
        if (0 < code < _SIGNALLED or aborted) and who.rank is not None and who.rank not in known:
            ended.setdefault(who, []).append(hit.line)
            codes[who] = code
    for block in blocks:
        if block.root and block.rank is not None and (block.exitcode or 0) > 0 and block.rank not in known:
            who = case.of_rank(block.rank)
            who = who if who.host else Culprit(block.rank, block.host)
            ended.setdefault(who, []).append(block.evidence)
            codes[who] = block.exitcode or 0
    if not ended:
        return []
    roots = {block.rank for block in blocks if block.root}
    first = [who for who in ended if who.rank in roots] or list(ended)
    if len(first) > 1:
        return []
    who = first[0]
    # Without a log of that rank, what it printed is not known: it may have been a victim.
    read = any(line.speaker.rank == who.rank and line.source != "launcher" for line in case.logs.lines)
    note = "It aborted (SIGABRT)" if codes[who] == _ABORTED else f"It ended with exit code {codes[who]}"
    note += " and printed no exception." if read else "; no log of it was read."
    evidence = tuple(dict.fromkeys(line.evidence for line in ended[who]))
    # Where lines name a cause, an exit is how a process ends that met it.
    alone = not any((b.exitcode or 0) > 0 and b.rank not in (who.rank, None, *known) for b in blocks)
    sure = _ENDED_ITSELF if read and alone and not _explained(case) else _PERHAPS_A_VICTIM
    if any(hit.line.evidence in evidence for hit in case.named("first-to-exit") if "number" in hit.groups):
        sure = max(sure, _RAISED_BY_SEVERAL)  # Horovod waits for the first
    if not read and any(hit.line.evidence in evidence for hit in case.named("first-to-exit") if "rank" in hit.groups):
        sure = _FIRST_OF_MANY  # mpirun names the first that it sees, of all that failed together
    return [Clue("rank_killed_exception", Role.ROOT, (who,), evidence, sure, note, time_ns=time_of(ended[who]))]


# Connections are lost when a process ends: they explain nothing.
_EFFECTS = ("net_connection_lost", "ib_completion_error")


def _explained(case: Case) -> bool:
    roots = (hit for hit in case.hits if hit.signature.role == Role.ROOT)
    return any(hit.fault_class.priority in (2, 3) and hit.fault_class.id not in _EFFECTS for hit in roots)


def _shortened(message: str, most: int = 100) -> str:
    return message if len(message) <= most else f"{message[: most - 1]}…"


def _first_of_each(case: Case) -> list[Raised]:
    """The first exception of every process: what follows in a chain came of it."""
    tracebacks = case.named("traceback")
    blocks = case.once(blocks_of)
    found: dict[object, Raised] = {}
    for hit in case.named("exception"):
        if hit.line.source in ("nccl", "kernel", "stack"):
            continue
        begin = _traceback_of(tracebacks, hit)
        culprit = _who(case, hit.line, blocks)
        key = (culprit.rank, culprit.host) if culprit.rank is not None else (hit.line.path, culprit.host)
        if begin is not None or culprit.rank is not None or blocks:
            message = hit.groups.get("message", "")
            found.setdefault(key, Raised(culprit, hit.groups["exception"], message, hit.line, begin))
    return list(found.values())


def _who(case: Case, line: Line, blocks: tuple[Block, ...]) -> Culprit:
    """A traceback inside of the launcher's block is of the rank that the block names."""
    for block in blocks:
        inside = block.path == line.path and block.first < line.number <= block.last + _TRACEBACK_REACH
        later = [b for b in blocks if b.path == block.path and block.first < b.first <= line.number]
        if inside and not later and block.rank is not None and line.speaker == Speaker():
            known = case.of_rank(block.rank)
            return known if known.host else Culprit(block.rank, block.host)
    return speaker_of(case, line)


def _traceback_of(tracebacks: list[Hit], hit: Hit) -> Line | None:
    speaker = hit.line.speaker
    for begin in reversed(tracebacks):
        line = begin.line
        near = line.path == hit.line.path and 0 < hit.line.number - line.number <= _TRACEBACK_REACH
        if near and (line.speaker.rank, line.speaker.pid) == (speaker.rank, speaker.pid):
            return line
    return None


def _can_be_cause(case: Case, raised: Raised) -> bool:
    # A line alone may be a message of a program that went on; not where processes were ended after it.
    if about_others(f"{raised.name}: {raised.message}"):
        return False
    if raised.traceback is None and not _ended_after(case, raised.line):
        return False
    if went_on(case, raised.line):
        return False
    # Lines that name a fault of their own: out of memory, ECC, DDP's unused parameters.
    named = {hit.line.evidence for hit in case.hits if hit.signature.role == Role.ROOT}
    if raised.line.evidence in named or raised.name.endswith("OutOfMemoryError"):
        return False
    waited = [
        report for report in case.once(timeouts_of) if report.rank == raised.culprit.rank and report.rank is not None
    ]
    if any(case.before(report.line, raised.line) is not False for report in waited):
        return False
    first = case.first_timeout()
    if first is None:
        return True
    after = case.before(first, raised.traceback or raised.line)
    # In one file the order of two processes means little: only clocks count against it.
    clocks = first.time_ns is not None and raised.line.time_ns is not None
    return not (after and clocks)


def _ended_after(case: Case, line: Line) -> bool:
    ends = case.named("sigterm", "exitcode", "rank-exitcode")
    seen = [hit.line for hit in ends] + [block.evidence for block in case.once(blocks_of) if (block.exitcode or 0) > 0]
    return any(end.path == line.path and 0 < end.number - line.number <= _TRACEBACK_REACH for end in seen)


def _earliest(case: Case, raised: list[Raised], blocks: tuple[Block, ...]) -> list[Raised]:
    """The first by clock, else the one that the launcher saw first, else all."""
    if len(raised) == 1:
        return raised
    if all(one.line.time_ns is not None for one in raised):
        by_time = sorted(raised, key=lambda one: one.line.time_ns or 0)
        return [one for one in by_time if one is by_time[0] or case.before(by_time[0].line, one.line) is not True]
    roots = {block.rank for block in blocks if block.root and block.rank is not None}
    named = [one for one in raised if one.culprit.rank in roots]
    return named if len(named) == 1 else raised


def _exit_lines(case: Case, culprits: list[Culprit], blocks: tuple[Block, ...]) -> list[Line]:
    """What the launcher says of the same ranks."""
    ranks = {culprit.rank for culprit in culprits} - {None}
    lines = [hit.line for hit in case.named("exitcode", "rank-exitcode") if who_ended(case, hit, blocks).rank in ranks]
    return lines + [block.evidence for block in blocks if block.rank in ranks]
