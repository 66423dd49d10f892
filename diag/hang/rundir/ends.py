"""Processes that ended by themselves: by what they raised, and by exit code. torchrun's guess at the root cause is not
asked: whoever loses a peer often ends before the peer has."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from diag.hang.model import Clue, Evidence, Role
from diag.hang.raised import Chain, about_the_group
from diag.hang.rundir.read import Exit, Rank, Rundir
from diag.words.formatting import listing, spaced

_SIGNALS = {
    signal.SIGKILL: "rank_killed_sigkill",
    signal.SIGBUS: "rank_killed_sigbus",
    signal.SIGSEGV: "rank_killed_sigsegv",
}
_BY_SIGNAL = 0.9
_RAISED = 0.87  # by itself, in words that are not about others
_BY_CODE = 0.85
_RAISED_BY_SEVERAL = 0.75
_ABORTED = 0.6  # abort() is how C++ ends over anything, also over what a peer did
_CONNECTION = 0.6  # it lost a connection, while all the others lived
_APART_S = 2  # clocks of two hosts, and error files count whole seconds
_LAST_LINES = 15
_WARNING = re.compile(r"\[W[ \d]")  # torch's, also of a connection that is tried again
_MOST_EVIDENCE = 4
RAISED_ITSELF = 1


def clues(run: Rundir, explained: bool = False) -> list[Clue]:
    """Who raised an exception that is not about others, whatever its exit code; where nobody did, a clue for each rank
    that ended before the launcher ended the others. ``explained``: by the calls of the ranks, so that an abort is only
    what came of it."""
    own = raised_by(run)
    first = {rank: one.exit for rank, one in sorted(run.ranks.items()) if one.exit is not None and one.exit.first}
    killed = {rank: ended for rank, ended in first.items() if _is_killed(ended)}
    raised = {rank: chain for rank, chain in own.items() if not killed or rank in first}
    found = [_ended(run, rank, ended, _victims(run, {*killed, *raised})) for rank, ended in killed.items()]
    if raised:
        found.append(_raised(run, raised, set(first)))
    elif not killed:
        victims = _victims(run, first)
        found += [clue for rank, ended in first.items() if (clue := _by_code(run, rank, ended, explained, victims))]
    return found


def raised_by(run: Rundir) -> dict[int, Chain]:
    """The ranks that raised an exception of their own, with it."""
    return {
        rank: one.raised
        for rank, one in sorted(run.ranks.items())
        if one.raised is not None and not one.raised.about_others and _ended_by_it(one)
    }


def lost_a_peer(one: Rank) -> bool:
    """Whether a rank ended over its peers, by what it raised or printed last."""
    if one.raised is not None and _ended_by_it(one):
        return one.raised.about_others
    last = [line for line in one.log.splitlines()[-_LAST_LINES:] if not _WARNING.search(line)]
    return any(map(about_the_group, last))


def place_of(one: Rank, code: int) -> int:
    """Of ranks that ended with an error, the one with the smaller number is to blame before the other."""
    one = replace(one, exit=Exit(code, first=False, by_launcher=False))
    if code < 0 and code not in (-signal.SIGTERM, -signal.SIGABRT):
        return 0
    if one.raised is not None and not one.raised.about_others and _ended_by_it(one):
        return RAISED_ITSELF
    if code == -signal.SIGTERM:
        return 4
    return 3 if lost_a_peer(one) else 2


def _ended_by_it(one: Rank) -> bool:
    """A traceback on standard error may be one that was caught. Python ends with a positive code over an exception that
    nobody caught, and C++ may still abort on the way out; torchrun's error file holds none but those."""
    if one.error:
        return True
    code = one.exit.code if one.exit is not None else 0
    return code > 0 or code == -signal.SIGABRT or (one.beat is not None and one.beat.failed)


def _is_killed(ended: Exit) -> bool:
    return ended.code < 0 and -ended.code not in (signal.SIGTERM, signal.SIGABRT)


def _victims(run: Rundir, culprits: Collection[int]) -> tuple[int, ...]:
    """Whoever raised an exception of its own is none, whether or not it is to blame."""
    own = raised_by(run)
    return tuple(rank for rank in sorted(run.ranks) if rank not in culprits and rank not in own)


def _raised(run: Rundir, own: Mapping[int, Chain], first: Collection[int]) -> Clue:
    """One clue: whoever raised first as far as that is known, else all."""
    ranks = _earliest(run, [rank for rank in own if rank in first] or list(own))
    later = [rank for rank in own if rank not in ranks]
    note = _who_raised(run, ranks, first)
    if later:
        note += f"; later {_each(own, later)}"
    return Clue(
        "rank_killed_exception",
        Role.ROOT,
        tuple(run.ranks[rank].culprit for rank in ranks),
        tuple(line for rank in ranks[:_MOST_EVIDENCE] for line in _evidence(run.ranks[rank])),
        _RAISED if len(ranks) == 1 else _RAISED_BY_SEVERAL,
        note,
        _victims(run, own),
    )


def _earliest(run: Rundir, ranks: list[int]) -> list[int]:
    """By the times in error files, where all have one."""
    times = {rank: run.ranks[rank].raised_at for rank in ranks}
    if not all(times.values()):
        return ranks
    return [rank for rank in ranks if times[rank] - min(times.values()) < _APART_S]


def _who_raised(run: Rundir, ranks: list[int], first: Collection[int]) -> str:
    own = {rank: chain for rank in ranks if (chain := run.ranks[rank].raised) is not None}
    if len({chain.words for chain in own.values()}) > 1:
        return f"{_sentence(_each(own, ranks))}; nothing tells which of them was first"
    words, ended = own[ranks[0]].words, run.ranks[ranks[0]].exit
    if len(ranks) > 1:
        return f"They raised {words}"
    if ended is not None and ended.code > 0 and ranks[0] in first:
        return f"It raised {words}, and ended with exit code {ended.code} while the others still lived"
    before = sorted(rank for rank in first if rank not in ranks)
    if before:
        return (
            f"It raised {words}; {spaced(listing(before))} ended before it, with no exception but that of a lost peer"
        )
    return f"It raised {words}"


def _each(own: Mapping[int, Chain], ranks: Iterable[int]) -> str:
    """``rank 0 raised ..; ranks 1, 2 raised ..``."""
    by_words: dict[str, list[int]] = {}
    for rank in ranks:
        by_words.setdefault(own[rank].words, []).append(rank)
    return "; ".join(f"{spaced(listing(same))} raised {words}" for words, same in by_words.items())


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _by_code(run: Rundir, rank: int, ended: Exit, explained: bool, victims: tuple[int, ...]) -> Clue | None:
    """Of a rank that raised nothing of its own."""
    one = run.ranks[rank]
    if lost_a_peer(one):
        said = one.raised
        if said is None or about_the_group(str(said.errors[0])) or not _others_lived(run, rank):
            return None
        note = f"It raised {said.words}, and ended with exit code {ended.code} while all the others lived"
        return Clue(
            "rank_killed_exception", Role.ROOT, (one.culprit,), tuple(_evidence(one)), _CONNECTION, note, victims
        )
    if ended.code == 0 or -ended.code == signal.SIGTERM or (-ended.code == signal.SIGABRT and explained):
        return None
    return _ended(run, rank, ended, victims)


def _others_lived(run: Rundir, rank: int) -> bool:
    """Whether every other rank is known to have been ended by the launcher: then none of them was the lost peer."""
    others = [one.exit for number, one in run.ranks.items() if number != rank]
    lived = [ended for ended in others if ended is not None and -ended.code == signal.SIGTERM and not ended.first]
    return len(lived) == len(others) and run.world_size == len(run.ranks)


def _ended(run: Rundir, rank: int, ended: Exit, victims: tuple[int, ...]) -> Clue:
    one = run.ranks[rank]
    if ended.code < 0:
        number = -ended.code
        known = number in set(signal.Signals)
        name = signal.Signals(number).name if known else f"signal {number}"
        fault = _SIGNALS.get(signal.Signals(number)) if known else None
        note = f"It was ended by {name} while the others still lived."
        sure = _BY_SIGNAL if fault else _ABORTED
        fault = fault or "rank_killed_exception"
    else:
        fault, sure = "rank_killed_exception", _BY_CODE
        note = f"It ended with exit code {ended.code}, without an exception, while the others still lived."
    return Clue(fault, Role.ROOT, (one.culprit,), tuple(_evidence(one)), sure, note, victims)


def _evidence(one: Rank) -> list[Evidence]:
    """Its exit code, and its exception unless its log has it: lines of logs are found by the rules of text."""
    found = []
    who = f"rank {one.culprit.rank}"
    if one.exit is not None:
        text = f"{who}: exit code {one.exit.code}{', first' if one.exit.first else ''}"
        found.append(Evidence(str(one.folder.parent.parent / "exits.json"), 0, text))
    if one.raised is not None and (one.error or not found):
        found.append(
            Evidence(str(one.folder / ("error.json" if one.error else "log.txt")), 0, f"{who}: {one.raised.words}")
        )
    return found
