"""Which of several clues is the cause of the others, and how sure the answer is.

Clues are ordered by cause, not by their place in a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from diag.ended.model import Clue
from diag.ended.policy import ENDED
from diag.ended.precedence import DOUBTFUL_END, FIRST, NEVER_FIRST, Place, place_of, reason_of
from diag.events.left import Ended, who_left
from diag.hang.classes import CLASSES
from diag.hang.confidence import named
from diag.hang.model import Guess, RuledOut
from diag.hang.policy import HANG_EVIDENCE

# -- Causes before consequences, wherever they stand in a file ---------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """``cause`` is None where no clue is left."""

    cause: Clue | None
    others: tuple[Clue, ...]  # the other roots, best first
    ruled_out: tuple[RuledOut, ...]

    @property
    def clues(self) -> tuple[Clue, ...]:
        return self.others if self.cause is None else (self.cause, *self.others)

    @property
    def guesses(self) -> tuple[Guess, ...]:
        return tuple(Guess(clue.fault_class, clue.confidence, clue.culprits, clue.note) for clue in self.clues)


@dataclass(frozen=True)
class _Placed:
    clue: Clue
    place: Place
    demoted: str = ""  # why it is not at the place of its class


def choose(clues: Iterable[Clue], first_timeout_ns: int | None) -> Chosen:
    """The cause, and why the other clues are not it."""
    roots = [clue for clue in clues if clue.fault_class in CLASSES]
    placed = [_place(clue, roots, first_timeout_ns) for clue in roots]
    placed.sort(key=lambda candidate: (candidate.place, -candidate.clue.confidence))
    if not placed:
        return Chosen(None, (), ())
    best = _earliest([candidate for candidate in placed if candidate.place == placed[0].place])
    rest = [candidate for candidate in placed if candidate is not best]
    ruled_out = [
        RuledOut(candidate.clue.fault_class, _because(best, candidate))
        for candidate in rest
        if _differs(best.clue, candidate.clue)
    ]
    unique = {(ruled.fault_class, ruled.because): ruled for ruled in ruled_out}
    return Chosen(best.clue, tuple(candidate.clue for candidate in rest), tuple(unique.values()))


def _differs(best: Clue, other: Clue) -> bool:
    named = set(_ends(other))
    return other.fault_class != best.fault_class or bool(named and not named & set(_ends(best)))


def _ends(clue: Clue) -> list[object]:
    return [(c.rank,) if c.rank is not None else (c.host, c.peer) for c in clue.culprits]


def _earliest(equal: Sequence[_Placed]) -> _Placed:
    """The clue with the highest confidence of those that no other is before beyond doubt."""
    surest = max(equal, key=lambda candidate: candidate.clue.confidence)
    if surest.clue.time_ns is None:
        return surest
    timed = (Ended(one, one.clue.time_ns) for one in equal if one.clue.time_ns is not None)
    first = who_left(timed, HANG_EVIDENCE.clocks_of_hosts_ns).first
    return max(first, key=lambda candidate: candidate.clue.confidence)


def _before(first: Clue, second: Clue) -> bool:
    """Whether a clue is earlier by more than the clocks of two hosts may differ."""
    if first.time_ns is None or second.time_ns is None:
        return False
    return second.time_ns - first.time_ns > HANG_EVIDENCE.clocks_of_hosts_ns


def _place(clue: Clue, roots: Sequence[Clue], first_timeout_ns: int | None) -> _Placed:
    if clue.comes_first:
        return _Placed(clue, FIRST)
    fault_class = CLASSES[clue.fault_class]
    demoted = _why_not_first(clue, roots, first_timeout_ns)
    if demoted:
        return _Placed(clue, max(place_of(fault_class.id, fault_class.priority), NEVER_FIRST), demoted)
    weak = clue.confidence < ENDED.weak
    place = place_of(fault_class.id, fault_class.priority, weak)
    return _Placed(clue, max(place, DOUBTFUL_END) if weak and fault_class.ending else place)


def _why_not_first(clue: Clue, roots: Sequence[Clue], first_timeout_ns: int | None) -> str:
    fault_class = CLASSES[clue.fault_class]
    if fault_class.ending:
        for other in roots:
            cause = CLASSES[other.fault_class]
            if not cause.explains_ends:
                continue
            words = cause.title
            if clue.ranks & other.ranks or _nameless_behind(clue, other):
                return f"the same process reported the cause: {words}"
            if cause.id in fault_class.explained_on_host and (clue.hosts & other.hosts or not clue.hosts):
                return cause.rules_out[fault_class.id]
            if _before(other, clue):
                return f"it ended {_apart(other, clue)} after the first sign that {words}"
        if (
            first_timeout_ns is not None
            and clue.time_ns is not None
            and clue.time_ns > first_timeout_ns + HANG_EVIDENCE.clocks_of_hosts_ns
        ):
            seconds = (clue.time_ns - first_timeout_ns) / 1e9
            return f"it ended {seconds:,.0f} s after the first collective had timed out, as the watchdogs' processes do"
    if fault_class.closed_at_end and first_timeout_ns is not None:
        time = clue.time_ns
        if time is not None and time - first_timeout_ns > -HANG_EVIDENCE.clocks_of_hosts_ns:
            return "the connections ended after collectives had timed out, when their processes were ended"
    if fault_class.closed_at_end:
        for other in roots:
            ended = CLASSES[other.fault_class].priority in (3, 4) or CLASSES[other.fault_class].ends_processes
            stronger = ended and other.confidence >= clue.confidence
            if stronger and not _before(clue, other):
                return "connections end when the processes of a job that failed are ended"
    return ""


def _nameless_behind(clue: Clue, other: Clue) -> bool:
    """Whether an unnamed process ended after lines of the same file that say why."""
    if clue.ranks or clue.hosts - other.hosts:
        return False
    return any(a.path == b.path and b.line < a.line for a in clue.evidence[:1] for b in other.evidence)


def _apart(first: Clue, second: Clue) -> str:
    return f"{((second.time_ns or 0) - (first.time_ns or 0)) / 1e9:,.0f} s"


def _because(best: _Placed, other: _Placed) -> str:
    if other.demoted:
        return other.demoted
    stated = CLASSES[best.clue.fault_class].rules_out.get(other.clue.fault_class)
    if stated:
        return stated
    if explained := reason_of(best.clue.fault_class, other.clue.fault_class):
        return explained
    if _before(best.clue, other.clue):
        return f"its first line comes {_apart(best.clue, other.clue)} later"
    if other.place > best.place:
        return f"it follows from the cause: {CLASSES[best.clue.fault_class].title}"
    return "its lines are weaker evidence"


def attributed(clues: Iterable[Clue]) -> list[Clue]:
    """The clues; a cause that a line of nobody reports is that of the processes that ended by themselves after it, in
    the same file."""
    listed = list(clues)
    ends = [
        clue
        for clue in listed
        if clue.fault_class == "rank_killed_exception"
        and clue.confidence >= ENDED.sure_enough
        and (clue.ranks or clue.hosts)
    ]
    return [
        replace(clue, culprits=end.culprits)
        if CLASSES[clue.fault_class].explains_ends
        and CLASSES[clue.fault_class].speaker_is_culprit
        and not named(clue.culprits)
        and (end := next((end for end in ends if _is_behind(end, clue)), None)) is not None
        else clue
        for clue in listed
    ]


def _is_behind(end: Clue, cause: Clue) -> bool:
    """Whether every line of an end stands below the first line of a cause, in its file."""
    first = min(((source.path, source.line) for source in cause.evidence), default=("", 0))
    return bool(end.evidence) and all(source.path == first[0] and source.line > first[1] for source in end.evidence)


def merged(clues: Iterable[Clue]) -> list[Clue]:
    """The clues; those from text and from dumps with the same class and culprits become one, with a higher
    confidence."""
    merged_clues: list[Clue] = []
    for clue in clues:
        for number, other in enumerate(merged_clues):
            if (
                other.fault_class == clue.fault_class
                and other.from_dumps != clue.from_dumps
                and set(_ends(other)) == set(_ends(clue))
            ):
                merged_clues[number] = _joined(other, clue)
                break
        else:
            merged_clues.append(clue)
    return merged_clues


def _joined(first: Clue, second: Clue) -> Clue:
    confidence = 1 - (1 - first.confidence) * (1 - second.confidence)
    better = max(first, second, key=lambda clue: (clue.confidence, not clue.from_dumps))
    return replace(
        better,
        culprits=first.culprits if any(c.host for c in first.culprits) else second.culprits,
        evidence=(*first.evidence[:4], *second.evidence[:4]),
        confidence=confidence,
        victims=tuple(sorted({*first.victims, *second.victims})),
        time_ns=first.time_ns if first.time_ns is not None else second.time_ns,
    )


# -- Confidence by the rules of the evidence ---------------------------------------------------------------------------
#
# It decides whether a cause is named at all, and it is a doubt of the fitted confidence (diag.hang.confidence), which
# is printed. It starts with the confidence of the cause's own evidence: 0.9 where a program says what failed, 0.7 for
# an effect with one usual cause, 0.5 for one with several, and the rules' own values for votes and absences. Factors
# lower it for what speaks against the cause, and lower its doubt for what speaks for it.


@dataclass(frozen=True)
class Confidence:
    value: float
    of_evidence: float  # of the evidence alone
    because: tuple[str, ...]  # what lowered or raised it
    rivals: bool = False  # another cause, or other ranks, are as likely


def confidence_of(cause: Clue, others: Sequence[Clue]) -> Confidence:
    value, because, others_named = cause.confidence, list[str](), False
    ranks = cause.ranks
    if not ranks and not cause.hosts and not CLASSES[cause.fault_class].outside:
        value *= ENDED.no_culprit_factor
        because.append("no evidence attributes it to a rank or host")
    rivals = [other for other in others if _rival(cause, other)]
    if rivals:
        value *= HANG_EVIDENCE.rival_factor
        because.append(f"{rivals[0].fault_class} could be the cause as well")
    for other in others:
        if other.from_dumps == cause.from_dumps:
            continue
        named = other.ranks
        source = "the dumps" if other.from_dumps else "the logs"
        if ranks and named and named <= ranks:
            value = 1 - (1 - value) * HANG_EVIDENCE.supported_doubt
            because.append(f"{source} name the same ranks")
            break
        if ranks and named and not named & ranks:
            value *= HANG_EVIDENCE.contradicted_factor
            because.append(f"{source} name others ({other.fault_class})")
            others_named = True
            break
    return Confidence(
        round(min(value, HANG_EVIDENCE.confidence_at_most), 2),
        cause.confidence,
        tuple(because),
        bool(rivals) or others_named or cause.rivalled,
    )


def _rival(cause: Clue, other: Clue) -> bool:
    """Whether another clue has the same priority, about the same confidence, and other culprits."""
    if other.fault_class == cause.fault_class or CLASSES[other.fault_class].coarse:
        return False
    same = CLASSES[other.fault_class].priority == CLASSES[cause.fault_class].priority
    explained = other.fault_class in CLASSES[cause.fault_class].rules_out
    return same and not explained and not cause.ranks & other.ranks and other.confidence >= cause.confidence - 0.1
