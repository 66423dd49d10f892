"""A rank that is busy with something that only it does, while the others wait for longer than they may."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from diag.hang.case import Case, distinct
from diag.hang.model import Clue, Culprit, Line, Role
from diag.hang.progress import STEP
from diag.hang.signatures.base import SUGGESTS
from diag.hang.timeouts import GroupTimeouts, groups_of, timeouts_of

_WORK = {
    "preprocessing": "slow_rank_preprocess",
    "evaluating": "slow_rank_eval",
    "saving": "slow_rank_checkpoint",
    "loading": "slow_rank_init",
}
_DOES = {
    "slow_rank_preprocess": "was still preparing data",
    "slow_rank_eval": "was still evaluating",
    "slow_rank_checkpoint": "was still saving a checkpoint",
    "slow_rank_init": "was still loading",
}
_TINY = 8  # elements: a barrier, a flag, a length
_EARLY = 5  # the first collectives: the barrier behind which one rank prepares
_BAR = re.compile(
    r"(?P<label>[^|%]{0,200}?)(?P<percent>\d{1,3})%\|[^|]*\|[^\[]*\[(?:(?P<h>\d+):)?(?P<m>\d{1,2}):(?P<s>\d{2})<"
)
_TRAINS = re.compile(r"(?i)\b(?:train|epoch|step|iter|loss)")
_PREPARES = re.compile(
    r"(?i)cach|scan|load|map|tokeni|generat|extract|build|index|process|filter|download|convert|pack"
)
_NAMED = 0.88  # beyond the absent rank that it explains
_UNNAMED = 0.75  # the busy line does not say whose it is
_TIMED_OUT = re.compile(r"(?i)time(?:d )? ?out")
_USUAL_TIMEOUT_S = 600  # NCCL's in torch; gloo's is 1,800
_NEAR = 0.8, 1.5  # of the timeout: work that began with the wait


@dataclass(frozen=True)
class _Busy:
    """``rank``: None where the line does not say whose it is. ``what``: the work in words."""

    fault_class: str
    rank: int | None
    line: Line
    bar: str = ""  # label and part of a progress bar
    last: bool = False  # no step of the training was printed between it and the time-out


@dataclass(frozen=True)
class _Wait:
    """What the others waited in. ``absent``: who is known not to wait; ``known``: these are all of them."""

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


def clues(case: Case) -> list[Clue]:
    waits = [_of_group(group) for group in groups_of(case, case.once(timeouts_of))] or _at_barriers(case)
    waiting = frozenset(rank for wait in waits for rank in wait.ranks)
    found = [clue for wait in waits if (clue := _slow(case, wait, waiting)) is not None]
    return found[:1]


def _of_group(group: GroupTimeouts) -> _Wait:
    report = next(report for report in group.reports if report.call == group.usual)
    tiny = report.numel_in is None or max(report.numel_in, report.numel_out or 0) <= _TINY
    # Of a group of unknown size only those below the highest rank are known to exist: enough beside work that goes on.
    silent = group.absent if group.members is not None else group.passed_over
    return _Wait(
        report.words,
        frozenset(group.ranks),
        silent,
        group.members is not None,
        report.seq <= _EARLY,
        tiny,
        report.timeout_ms,
        report.ran_ms,
        group.group,
        report.line,
    )


def _at_barriers(case: Case) -> list[_Wait]:
    """Ranks that wait for another one without a collective of NCCL: at gloo's barrier, or for a key in the store."""
    hits = case.named("barrier-victim", "store-input") + [
        hit for hit in case.named("store-get") if _TIMED_OUT.search(hit.line.text)
    ]
    if not hits:
        return []
    ranks = {int(hit.groups["rank"]) for hit in hits if "rank" in hit.groups}
    ranks |= {rank for hit in hits if (rank := case.rank_of(hit.line)) is not None}
    awaited = {int(hit.groups["writer"]) for hit in hits if "writer" in hit.groups} or {0}
    times = [int(hit.groups["ms"]) for hit in hits if "ms" in hit.groups]
    absent = tuple(sorted(awaited - ranks))
    timeout = times[0] if times else None
    line = hits[0].line
    return (
        [_Wait("a barrier", frozenset(ranks), absent, True, True, True, timeout, timeout, "", line)] if absent else []
    )


def _slow(case: Case, wait: _Wait, waiting: frozenset[int]) -> Clue | None:
    absent = tuple(rank for rank in wait.absent if rank not in waiting)
    busy = _busy(case, waiting, absent, wait)
    if busy is None:
        return None
    rank, name = busy.rank, busy.fault_class
    early = wait.early and wait.tiny
    told = rank is not None or absent or early or busy.bar
    if not told and not busy.last:
        return None
    if name == "slow_rank_preprocess" and not early and rank not in absent and not busy.bar:
        return None
    whole = wait.known or len(absent) == 1
    culprits = [case.of_rank(rank)] if rank is not None else [case.of_rank(one) for one in absent if whole]
    note = f"{_who(rank, absent)} {_DOES[name]}{busy.bar} while the others waited in {wait.words}"
    note += f" for {wait.ran_ms // 1000:,} s." if wait.ran_ms else "."
    victims = tuple(sorted(waiting - {culprit.rank for culprit in culprits if culprit.rank is not None}))
    named = rank is not None and (rank in absent or not wait.known)
    sure = _NAMED if named else _UNNAMED
    return Clue(
        name,
        Role.ROOT,
        distinct([replace(culprit, process_group=wait.group) for culprit in culprits]) or (Culprit(),),
        (busy.line.evidence, wait.line.evidence),
        sure if told else SUGGESTS,
        note,
        victims,
        time_ns=wait.line.time_ns,
    )


def _who(rank: int | None, absent: tuple[int, ...]) -> str:
    if rank is not None:
        return f"Rank {rank}"
    return f"Rank {absent[0]}, which did not time out," if len(absent) == 1 else "A rank"


def _busy(case: Case, waiting: frozenset[int], absent: tuple[int, ...], wait: _Wait) -> _Busy | None:
    """The last line about such work of a rank that does not wait, where it was not finished before; a progress bar that
    ran for about as long as the others waited before any other line."""
    names = {hit.line: _WORK[hit.signature.name] for hit in case.named(*_WORK)}
    found: _Busy | None = None
    for line in case.logs.lines:
        name, bar = names.get(line), _BAR.match(line.text)
        if name is None and bar is None:
            if found is not None and line.path == found.line.path and STEP.search(line.text):
                found = replace(found, last=False)
            continue
        rank = case.rank_of(line)
        if rank in waiting and line.speaker.rank is None:
            rank = None  # of the only rank that speaks in its file; who works need not speak
        if rank in waiting or (absent and rank is not None and rank not in absent):
            continue
        if line.source in ("nccl", "kernel", "stack", "launcher") or line.level in ("ERROR", "WARN"):
            continue
        if bar is None:
            last = line.path == wait.line.path and line.number < wait.line.number
            found = _Busy(name or "", rank, line, last=last) if found is None or not found.bar else found
            continue
        if int(bar["percent"]) >= 100:
            continue
        near, label = _near(bar, wait), bar["label"].strip(" :")
        trains = _TRAINS.search(line.text) and not _PREPARES.search(label)
        if near and (label or wait.early) and not trains:
            words = f" ({label}: {bar['percent']} %)" if label else f" (a progress bar at {bar['percent']} %)"
            found = _Busy(name or "slow_rank_preprocess", rank, line, words)
        elif name is not None and (found is None or not found.bar):
            # A bar's last print may be long before: its rank wrote nothing since.
            lasts = wait.timeout_ms and 1000 * _seconds(bar) >= _NEAR[0] * wait.timeout_ms
            if lasts or line.number == wait.line.number or case.before(line, wait.line) is not False:
                found = _Busy(name, rank, line, last=line.path == wait.line.path and line.number <= wait.line.number)
    return found


def _seconds(bar: re.Match[str]) -> int:
    return 3600 * int(bar["h"] or 0) + 60 * int(bar["m"]) + int(bar["s"])


def _near(bar: re.Match[str], wait: _Wait) -> bool:
    """Whether a bar ran for about as long as the timeout, or for longer than any timeout that is not told."""
    least, most = _NEAR
    if wait.timeout_ms is None:
        return _seconds(bar) >= _USUAL_TIMEOUT_S
    return least <= 1000 * _seconds(bar) / wait.timeout_ms <= most
