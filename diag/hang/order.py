"""Which of several clues is the cause of the others: order by cause, not by place in a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from diag.hang.case import CLOCKS_NS
from diag.hang.model import Clue, Role, RuledOut
from diag.hang.signatures import CLASSES

# Connections end, and transfers fail, whenever a process at the other end does: behind every other cause of their
# priority. An interface that reaches nobody stays before the connections that fail over it.
_CONSEQUENCE = {
    "ib_completion_error": 0.4,
    "net_connect_timeout": 0.6,
    "net_connect_refused": 0.6,
    "net_connection_lost": 0.8,
    "net_failure": 0.7,  # what no finer class knows
    # A rank that is busy explains that it is missing.
    "slow_rank_preprocess": -0.1,
    "slow_rank_eval": -0.1,
    "slow_rank_checkpoint": -0.1,
    "slow_rank_init": -0.1,
    # CUDA cannot open the memory of a GPU that is on another host.
    "same_host_identity": -0.1,
}
_ENDED = ("rank_killed_exception", "rank_killed_sigkill", "rank_killed_sigsegv", "rank_killed_sigbus")
_NEVER_FIRST = 6.5  # behind every class that can be a cause
_DOUBTFUL_END = 4.5  # a process that ended, perhaps as a victim: behind ranks that are missing
_WEAK = 0.5  # below it a clue gives way to stronger ones of the next priority


@dataclass(frozen=True)
class Chosen:
    """``cause`` is None where no clue is left."""

    cause: Clue | None
    others: tuple[Clue, ...]  # the other roots, best first
    ruled_out: tuple[RuledOut, ...]


@dataclass(frozen=True)
class _Placed:
    clue: Clue
    place: float
    demoted: str = ""  # why it is not where its class puts it


def choose(clues: Iterable[Clue], first_timeout_ns: int | None) -> Chosen:
    """The cause, and why the others are not it."""
    roots = [clue for clue in clues if clue.role == Role.ROOT and clue.fault_class in CLASSES]
    placed = [_place(clue, roots, first_timeout_ns) for clue in roots]
    placed.sort(key=lambda one: (one.place, -one.clue.confidence))
    if not placed:
        return Chosen(None, (), ())
    best = _earliest([one for one in placed if one.place == placed[0].place])
    rest = [one for one in placed if one is not best]
    ruled_out = [RuledOut(one.clue.fault_class, _because(best, one)) for one in rest if _differs(best.clue, one.clue)]
    unique = {(ruled.fault_class, ruled.because): ruled for ruled in ruled_out}
    return Chosen(best.clue, tuple(one.clue for one in rest), tuple(unique.values()))


def _differs(best: Clue, other: Clue) -> bool:
    return other.fault_class != best.fault_class or not set(_ends(other)) & set(_ends(best))


def _ends(clue: Clue) -> list[object]:
    return [(c.rank,) if c.rank is not None else (c.host, c.peer) for c in clue.culprits]


def _earliest(equal: Sequence[_Placed]) -> _Placed:
    """Of clues that could each be the cause: the one that is earlier beyond doubt, else the surest."""
    best = max(equal, key=lambda one: one.clue.confidence)
    for one in equal:
        if _before(one.clue, best.clue):
            best = one
    return best


def _before(first: Clue, second: Clue) -> bool:
    """Beyond what clocks of two hosts may differ."""
    if first.time_ns is None or second.time_ns is None:
        return False
    return second.time_ns - first.time_ns > CLOCKS_NS


def _place(clue: Clue, roots: Sequence[Clue], first_timeout_ns: int | None) -> _Placed:
    name = clue.fault_class
    place = CLASSES[name].priority + _CONSEQUENCE.get(name, 0.0)
    demoted = _why_not_first(clue, roots, first_timeout_ns)
    if demoted:
        return _Placed(clue, max(place, _NEVER_FIRST), demoted)
    if clue.confidence < _WEAK:
        place = max(place + 1, _DOUBTFUL_END) if name in _ENDED else place + 1
    return _Placed(clue, place)


def _why_not_first(clue: Clue, roots: Sequence[Clue], first_timeout_ns: int | None) -> str:
    name = clue.fault_class
    if name in _ENDED:
        for other in roots:
            if CLASSES[other.fault_class].priority != 2 or other.fault_class in _CONSEQUENCE:
                continue
            words = CLASSES[other.fault_class].title
            if _same_rank(clue, other) or _nameless_behind(clue, other):
                return f"the same process had said why: {words}"
            if name == "rank_killed_sigbus" and other.fault_class == "shm_exhausted" and _same_host(clue, other):
                return CLASSES["shm_exhausted"].rules_out["rank_killed_sigbus"]
            if _before(other, clue):
                return f"it ended {_apart(other, clue)} after the first sign that {words}"
        if first_timeout_ns is not None and clue.time_ns is not None and clue.time_ns > first_timeout_ns + CLOCKS_NS:
            seconds = (clue.time_ns - first_timeout_ns) / 1e9
            return f"it ended {seconds:,.0f} s after the first collective had timed out, as the watchdogs' processes do"
    if name == "net_connection_lost" and first_timeout_ns is not None:
        time = clue.time_ns
        if time is not None and time - first_timeout_ns > -CLOCKS_NS:
            return "the connections ended after collectives had timed out, when their processes were ended"
    if name == "net_connection_lost":
        for other in roots:
            ended = CLASSES[other.fault_class].priority in (3, 4) or other.fault_class == "watchdog_blocked"
            stronger = ended and other.confidence >= clue.confidence
            if stronger and not _before(clue, other):
                return "connections end when the processes of a job that failed are ended"
    return ""


def _same_rank(first: Clue, second: Clue) -> bool:
    ranks = {c.rank for c in first.culprits if c.rank is not None}
    return bool(ranks & {c.rank for c in second.culprits if c.rank is not None})


def _nameless_behind(clue: Clue, other: Clue) -> bool:
    """Whether a process that nobody names ended behind lines of the same file that say why."""
    hosts = {c.host for c in other.culprits if c.host}
    if any(c.rank is not None or (c.host and c.host not in hosts) for c in clue.culprits):
        return False
    return any(a.path == b.path and b.line < a.line for a in clue.evidence[:1] for b in other.evidence)


def _same_host(first: Clue, second: Clue) -> bool:
    hosts = {c.host for c in first.culprits if c.host}
    return bool(hosts & {c.host for c in second.culprits if c.host}) or not hosts


def _apart(first: Clue, second: Clue) -> str:
    return f"{((second.time_ns or 0) - (first.time_ns or 0)) / 1e9:,.0f} s"


def _because(best: _Placed, other: _Placed) -> str:
    if other.demoted:
        return other.demoted
    stated = CLASSES[best.clue.fault_class].rules_out.get(other.clue.fault_class)
    if stated:
        return stated
    if _before(best.clue, other.clue):
        return f"its first line comes {_apart(best.clue, other.clue)} later"
    if other.place > best.place:
        return f"it follows from the cause: {CLASSES[best.clue.fault_class].title}"
    return "its lines are weaker evidence"


def merged(clues: Iterable[Clue]) -> list[Clue]:
    """Text and dumps that name the same class and culprit become one clue, surer than each."""
    found: list[Clue] = []
    for clue in clues:
        for number, other in enumerate(found):
            same = other.fault_class == clue.fault_class and other.role == clue.role
            if same and other.from_dumps != clue.from_dumps and set(_ends(other)) == set(_ends(clue)):
                found[number] = _joined(other, clue)
                break
        else:
            found.append(clue)
    return found


def _joined(first: Clue, second: Clue) -> Clue:
    sure = 1 - (1 - first.confidence) * (1 - second.confidence)
    better = max(first, second, key=lambda clue: (clue.confidence, not clue.from_dumps))
    return replace(
        better,
        culprits=first.culprits if any(c.host for c in first.culprits) else second.culprits,
        evidence=(*first.evidence[:4], *second.evidence[:4]),
        confidence=sure,
        victims=tuple(sorted({*first.victims, *second.victims})),
        time_ns=first.time_ns if first.time_ns is not None else second.time_ns,
    )
