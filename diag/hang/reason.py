"""From what was read to one answer: (logs, what the dumps say) -> Triage. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from diag.words.formatting import counted, listing, spaced

from .calm import Calm, without_cause
from .case import CLOCKS_NS, Case
from .confidence import Confidence, confidence_of
from .model import Clue, Evidence, Guess, Logs, Role, RuledOut, Stack, Triage
from .rules import (
    absence,
    differences,
    direct,
    exceptions,
    exits,
    infiniband,
    mismatch,
    network,
    silent,
    slow,
    stacks,
)
from .rundir import EndedWell
from .signatures import CLASSES
from .timeouts import Timeout, groups_of, timeouts_of
from .wording import headline, steps

# -- missing -----------------------------------------------------------------------------------------------------------
#
# What is not there: which logs and dumps would tell more, and how to have them next time.

NCCL_LOGS = "Next run: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,COLL NCCL_DEBUG_FILE=/shared/nccl.%h.%p.log."
DUMPS = (
    "Next run: TORCH_FR_BUFFER_SIZE=2000 (alias TORCH_NCCL_TRACE_BUFFER_SIZE) TORCH_NCCL_DUMP_ON_TIMEOUT=1 "
    "TORCH_FR_DUMP_TEMP_FILE=/shared/fr_rank_, and give the dumps of all ranks."
)
DETAIL = "Next run: TORCH_DISTRIBUTED_DEBUG=DETAIL checks that all ranks make the same calls (slow, for finding out)."
STACKS = "While it stands still: `py-spy dump --pid PID` of every rank, into files that are given as well."


def ranks_not_read(case: Case) -> tuple[int, ...]:
    """Ranks of a world of known size of which nothing was read; empty where the size is not known."""
    world = case.logs.world_size
    if world is None:
        return ()
    read = set(case.by_rank) | {line.speaker.rank for line in case.logs.lines}
    return tuple(rank for rank in range(world) if rank not in read)


def what_to_collect(case: Case, dumps_read: bool, timed_out: bool) -> tuple[str, ...]:
    """Sentences, the cheapest first."""
    found = []
    absent = ranks_not_read(case)
    if absent:
        found.append(f"Give the logs of {spaced(listing(absent))}: nothing of theirs was read.")
    elif case.logs.world_size is None:
        found.append("Give the logs of all ranks: nothing that was read says how many there are.")
    if case.logs.deduplicated:
        found.append("Ray left lines out: RAY_DEDUP_LOGS=0, or the workers' own log files.")
    if not case.logs.communicators or not any(m.calls for c in case.logs.communicators for m in c.members):
        found.append(NCCL_LOGS)
    if not dumps_read:
        found.append(DUMPS)
    if timed_out:
        found.append(DETAIL)
    found.append(STACKS)
    return tuple(found)


# -- order -------------------------------------------------------------------------------------------------------------
#
# Which of several clues is the cause of the others: order by cause, not by place in a file.

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


RULES = (direct, exits, exceptions, network, infiniband, differences, mismatch, absence, slow, stacks, silent)
_SURE_ENOUGH = 0.35
_SURE_ENOUGH_OF_DUMPS = 0.5  # less is what they say of ranks that left none, which may only not have been collected
_SURE_ENOUGH_OF_A_GOOD_END = 0.6  # to say that a run failed whose records say that it ended well
_MOST_EVIDENCE = 10


class DumpFindings(Protocol):
    """What the Flight Recorder's dumps say (diag.hang.flight)."""

    @property
    def clues(self) -> tuple[Clue, ...]: ...
    @property
    def stacks(self) -> tuple[Stack, ...]: ...
    @property
    def coverage(self) -> tuple[str, ...]: ...
    @property
    def gaps(self) -> tuple[tuple[str, str], ...]: ...


@dataclass(frozen=True)
class NoDumps:
    clues: tuple[Clue, ...] = ()
    stacks: tuple[Stack, ...] = ()
    coverage: tuple[str, ...] = ()
    gaps: tuple[tuple[str, str], ...] = ()


def reason(
    logs: Logs, dumps: DumpFindings | None = None, from_runs: Sequence[Clue] = (), well: EndedWell | None = None
) -> Triage:
    """The answer; "undetermined" with what is missing where no rule names a cause. ``from_runs``: what the records of
    run directories say; ``well``: of a run that is known to have ended well."""
    dumps = dumps or NoDumps()
    case = Case(logs)
    reports = case.once(timeouts_of)
    from_text = [clue for rule in RULES for clue in rule.clues(case)]
    from_dumps = [_with_hosts(case, clue) for clue in dumps.clues]
    first = case.first_timeout()
    chosen = choose(merged([*from_text, *from_runs, *from_dumps]), first.time_ns if first is not None else None)
    if chosen.cause is not None:
        sure = confidence_of(chosen.cause, chosen.others)
        least = _SURE_ENOUGH_OF_DUMPS if chosen.cause.from_dumps else _SURE_ENOUGH
        if sure.value >= (_SURE_ENOUGH_OF_A_GOOD_END if well is not None and not reports else least):
            return _with_cause(case, chosen, chosen.cause, sure, reports, dumps)
    if well is not None and not reports:
        return _nothing_wrong(case, well, chosen, dumps)
    return _without(case, without_cause(case, reports), chosen, reports, dumps)


def _with_hosts(case: Case, clue: Clue) -> Clue:
    """Dumps know ranks; logs know where these run."""
    culprits = []
    for culprit in clue.culprits:
        known = case.of_rank(culprit.rank) if culprit.rank is not None and not culprit.host else culprit
        culprits.append(replace(culprit, host=known.host, gpu=culprit.gpu if culprit.gpu is not None else known.gpu))
    return replace(clue, culprits=tuple(culprits))


def _with_cause(
    case: Case, chosen: Chosen, cause: Clue, sure: Confidence, reports: Sequence[Timeout], dumps: DumpFindings
) -> Triage:
    fault_class = CLASSES[cause.fault_class]
    ranks = {c.rank for c in cause.culprits if c.rank is not None}
    same = [other for other in chosen.others if {c.rank for c in other.culprits} & ranks]
    evidence = dict.fromkeys((*cause.evidence, *(line for other in same for line in other.evidence[:2])))
    return Triage(
        fault_class=cause.fault_class,
        confidence=sure.value,
        headline=headline(fault_class, cause),
        culprits=cause.culprits,
        evidence=tuple(evidence)[:_MOST_EVIDENCE],
        ruled_out=(*chosen.ruled_out, *_also_ruled_out(case, cause.fault_class, reports)),
        next_steps=(*steps(fault_class, cause.culprits, cause.note), *_more(case, sure, cause, reports, dumps)),
        victims=_victims(case, [cause, *chosen.others], ranks, reports),
        stacks=(*dumps.stacks, *stacks.shown(case, ranks)),
        coverage=_coverage(case, dumps, sure),
        gaps=(*case.logs.gaps, *dumps.gaps),
    )


def _without(case: Case, calm: Calm, chosen: Chosen, reports: Sequence[Timeout], dumps: DumpFindings) -> Triage:
    """No rule, or none that is sure enough: those are said as suspicions."""
    suspects = _suspects(chosen)
    calm = replace(calm, fault_class="undetermined") if suspects and calm.fault_class == "healthy" else calm
    evidence: list[Evidence] = [line.evidence for line in calm.lines]
    for clue in suspects:
        evidence += clue.evidence[:2]
    collect = what_to_collect(case, bool(dumps.coverage), bool(reports)) if calm.fault_class != "healthy" else ()
    ranks = {c.rank for c in calm.culprits if c.rank is not None}
    return Triage(
        fault_class=calm.fault_class,
        confidence=calm.confidence,
        headline=calm.headline,
        culprits=calm.culprits,
        evidence=tuple(dict.fromkeys(evidence))[:_MOST_EVIDENCE],
        ruled_out=tuple(_also_ruled_out(case, calm.fault_class, reports)),
        next_steps=(*steps(CLASSES[calm.fault_class], calm.culprits), *collect),
        victims=_victims(case, suspects, ranks, reports) if calm.fault_class != "healthy" else (),
        stacks=(*dumps.stacks, *stacks.shown(case, set())),
        coverage=_coverage(case, dumps, None),
        guesses=_guesses(suspects),
        gaps=(*case.logs.gaps, *dumps.gaps),
    )


def _nothing_wrong(case: Case, well: EndedWell, chosen: Chosen, dumps: DumpFindings) -> Triage:
    """What its logs warn of did not hold it up."""
    return Triage(
        fault_class="healthy",
        confidence=well.confidence,
        headline=well.headline,
        culprits=(),
        evidence=well.evidence,
        ruled_out=(),
        guesses=_guesses(_suspects(chosen)),
        next_steps=(),
        victims=(),
        coverage=_coverage(case, dumps, None),
        gaps=(*case.logs.gaps, *dumps.gaps),
    )


def _suspects(chosen: Chosen) -> list[Clue]:
    return [clue for clue in (chosen.cause, *chosen.others) if clue is not None]


def _guesses(suspects: Sequence[Clue]) -> tuple[Guess, ...]:
    return tuple(Guess(clue.fault_class, clue.confidence, clue.culprits, clue.note) for clue in suspects)


def _more(
    case: Case, sure: Confidence, cause: Clue, reports: Sequence[Timeout], dumps: DumpFindings
) -> tuple[str, ...]:
    """What would make a doubtful answer sure."""
    nobody = not any(c.rank is not None or c.host for c in cause.culprits)
    if sure.value >= 0.8 and not nobody:
        return ()
    return what_to_collect(case, bool(dumps.coverage), bool(reports))


def _also_ruled_out(case: Case, chosen: str, reports: Sequence[Timeout]) -> list[RuledOut]:
    found = []
    if chosen not in ("mismatch_op", "mismatch_shape", "desync"):
        for group in groups_of(case, reports):
            if len(group.reports) > 2 and len({report.call for report in group.reports}) == 1:
                count = spaced(counted(len(group.reports), "rank"))
                text = f"all {count} of {group.words} that report wait in the same call, {group.reports[0].words}"
                found.append(RuledOut("mismatch_op", text))
                break
    store = case.named("store-get", "should-dump", "recv-value")
    if store and chosen != "cascade_store_lost":
        text = "the store is lost when the process that holds it ends, which has a cause of its own"
        found.append(RuledOut("cascade_store_lost", text))
    return found


def _victims(case: Case, clues: Sequence[Clue], culprits: set[int], reports: Sequence[Timeout]) -> tuple[int, ...]:
    """Ranks that waited or were told to stop, without the culprits."""
    found = {rank for clue in clues for rank in clue.victims}
    found |= {report.rank for report in reports if report.rank is not None}
    for hit in case.hits:
        if hit.signature.role == Role.CASCADE and hit.line.source != "launcher":
            rank = case.rank_of(hit.line)
            found |= {rank} if rank is not None else set()
    return tuple(sorted(found - culprits))


def _coverage(case: Case, dumps: DumpFindings, sure: Confidence | None) -> tuple[str, ...]:
    logs = case.logs
    found = []
    if logs.paths:
        world = f" of {logs.world_size}" if logs.world_size is not None else ""
        read = f"{len(case.by_rank)}{world} ranks" if world else counted(len(case.by_rank), "rank")
        ranks = f", {read}" if case.by_rank or world else ""
        processes = counted(len(logs.processes), "process", "processes")
        found.append(f"{counted(len(logs.paths), 'log')} read: {processes}{ranks}.")
    absent = ranks_not_read(case)
    if absent and logs.paths:
        found.append(
            f"Nothing was read of {len(absent)} ranks: {', '.join(map(str, absent[:8]))}{'…' * (len(absent) > 8)}."
        )
    if logs.deduplicated:
        found.append("Ray left repeated lines out: that a rank is absent means nothing.")
    harmless = Counter(hit.signature.says for hit in case.hits if hit.fault_class.id == "harmless")
    found += [f"Usual in healthy runs: {says} ({counted(count, 'line')})" for says, count in harmless.most_common(3)]
    found += dumps.coverage
    if sure is not None:
        found.append(f"Confidence {sure.value:.2f}: {'; '.join(sure.because)}.")
    return tuple(spaced(text) for text in found)
