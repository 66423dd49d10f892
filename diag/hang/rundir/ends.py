"""Processes that ended by themselves, by exit code: what torchrun saw, without its guess at the root cause."""

from __future__ import annotations

import signal

from diag.hang.model import Clue, Evidence, Role
from diag.hang.rundir.read import Exit, Rank, Rundir

_SIGNALS = {
    signal.SIGKILL: "rank_killed_sigkill",
    signal.SIGBUS: "rank_killed_sigbus",
    signal.SIGSEGV: "rank_killed_sigsegv",
}
# What a process says whose peer is gone, or that waited for one until the time-out.
_VICTIM = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "recvValue failed",
    "imed out",
    "remote process exited",
)
_BY_SIGNAL = 0.9
_BY_CODE = 0.85
_ABORTED = 0.6  # abort() is how C++ ends over anything, also over what a peer did


def clues(run: Rundir, explained: bool = False) -> list[Clue]:
    """A clue for each rank that ended before the launcher ended the others. ``explained``: by the calls of the ranks,
    so that an abort is only what came of it."""
    first = {rank: one.exit for rank, one in sorted(run.ranks.items()) if one.exit is not None and one.exit.first}
    victims = tuple(rank for rank in run.ranks if rank not in first)
    found = [_clue(run.ranks[rank], ended, explained, victims) for rank, ended in first.items() if ended.code]
    return [clue for clue in found if clue is not None]


def _clue(one: Rank, ended: Exit, explained: bool, victims: tuple[int, ...]) -> Clue | None:
    if ended.code < 0:
        number = -ended.code
        if number == signal.SIGTERM or (number == signal.SIGABRT and explained):
            return None
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        fault = _SIGNALS.get(signal.Signals(number)) if number in set(signal.Signals) else None
        note = f"It was ended by {name} while the others still lived."
        sure = _BY_SIGNAL if fault else _ABORTED
        fault = fault or "rank_killed_exception"
    else:
        said = one.error or one.log
        if any(words in said for words in _VICTIM):
            return None
        fault, sure = "rank_killed_exception", _BY_CODE
        message = one.error.strip().splitlines()[-1] if one.error.strip() else ""
        how = f"raising {message}" if message else "without an exception"
        note = f"It ended with exit code {ended.code}, {how}, while the others still lived."
    text = f"rank {one.culprit.rank}: exit code {ended.code}, first"
    evidence = Evidence(str(one.folder.parent.parent / "exits.json"), 0, text)
    return Clue(fault, Role.ROOT, (one.culprit,), (evidence,), sure, note, victims)
