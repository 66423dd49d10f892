"""A rank that is busy with something that only it does, while the others wait for longer than they may."""

from __future__ import annotations

import re
from dataclasses import replace

from diag.hang.case import Case, distinct
from diag.hang.model import Clue, Culprit, Line, Role
from diag.hang.signatures.base import Hit
from diag.hang.timeouts import GroupTimeouts, Timeout, groups_of, timeouts_of

_WORK = {
    "preprocessing": "slow_rank_preprocess",
    "evaluating": "slow_rank_eval",
    "saving": "slow_rank_checkpoint",
}
_TINY = 8  # elements: a barrier, a flag, a length
_EARLY = 5  # the first collectives: the barrier behind which one rank prepares
_BAR = re.compile(r"(?P<percent>\d{1,3})%\|")
_ELAPSED = re.compile(r"\[(?:(?P<h>\d+):)?(?P<m>\d{1,2}):(?P<s>\d{2})<")
_NAMED = 0.88  # beyond the absent rank that it explains
_UNNAMED = 0.75  # the busy line does not say whose it is
_MUCH = 0.8  # of the timeout


def clues(case: Case) -> list[Clue]:
    groups = groups_of(case, case.once(timeouts_of))
    waiting = {rank for group in groups for rank in group.ranks}
    found = []
    for group in groups:
        clue = _of_group(case, group, waiting)
        if clue is not None:
            found.append(clue)
    return found[:1]


def _of_group(case: Case, group: GroupTimeouts, waiting: set[int]) -> Clue | None:
    report = next(report for report in group.reports if report.call == group.usual)
    absent = tuple(rank for rank in group.absent if rank not in waiting)
    hit = _busy(case, waiting, absent, report)
    if hit is None:
        return None
    rank = case.rank_of(hit.line)
    tiny = report.numel_in is None or max(report.numel_in, report.numel_out or 0) <= _TINY
    name = _WORK[hit.signature.name]
    early = tiny and report.seq <= _EARLY
    if rank is None and not absent and not early:
        return None
    if name == "slow_rank_preprocess" and not early and rank not in absent:
        return None
    culprits = [case.of_rank(rank)] if rank is not None else [case.of_rank(one) for one in absent]
    note = f"{_who(rank, absent)} {_DOES[name]} while the others waited in {report.words}"
    note += f" for {report.ran_ms // 1000:,} s." if report.ran_ms else "."
    victims = tuple(sorted(waiting - {culprit.rank for culprit in culprits if culprit.rank is not None}))
    named = rank is not None and (rank in absent or not group.members)
    return Clue(
        name,
        Role.ROOT,
        distinct([replace(culprit, process_group=group.group) for culprit in culprits]) or (Culprit(),),
        (hit.line.evidence, report.line.evidence),
        _NAMED if named else _UNNAMED,
        note,
        victims,
        time_ns=report.line.time_ns,
    )


_DOES = {
    "slow_rank_preprocess": "prepared data",
    "slow_rank_eval": "evaluated",
    "slow_rank_checkpoint": "saved a checkpoint",
}


def _who(rank: int | None, absent: tuple[int, ...]) -> str:
    if rank is not None:
        return f"Rank {rank}"
    return f"Rank {absent[0]}, which did not time out," if len(absent) == 1 else "A rank"


def _busy(case: Case, waiting: set[int], absent: tuple[int, ...], report: Timeout) -> Hit | None:
    """The last line about such work of a rank that does not wait, where it was not finished before."""
    found: Hit | None = None
    for hit in case.named(*_WORK):
        line = hit.line
        rank = case.rank_of(line)
        if rank in waiting or (absent and rank is not None and rank not in absent):
            continue
        if line.source in ("nccl", "kernel", "stack", "launcher") or line.level in ("ERROR", "WARN"):
            continue
        if not _goes_on(case, line, report):
            continue
        found = hit
    return found


def _goes_on(case: Case, line: Line, report: Timeout) -> bool:
    """Not a bar that is complete, and not a short piece of work. A line without a bar counts as it stands."""
    bar = _BAR.search(line.text) or _BAR.search(line.raw)
    if bar is not None and int(bar["percent"]) >= 100:
        return False
    elapsed = _ELAPSED.search(line.text)
    if elapsed is not None and report.timeout_ms:
        seconds = 3600 * int(elapsed["h"] or 0) + 60 * int(elapsed["m"]) + int(elapsed["s"])
        if seconds * 1000 >= _MUCH * report.timeout_ms:
            return True
        # A bar's last print may be long before: its rank wrote nothing since.
        return case.before(line, report.line) is not False
    return True
