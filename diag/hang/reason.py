"""From what was read to one answer: (logs, what the dumps say) -> Triage. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from diag.hang.calm import Calm, without_cause
from diag.hang.case import Case
from diag.hang.confidence import Confidence, confidence_of
from diag.hang.missing import ranks_not_read, what_to_collect
from diag.hang.model import Clue, Evidence, Guess, Logs, Role, RuledOut, Stack, Triage
from diag.hang.order import Chosen, choose, merged
from diag.hang.rules import (
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
from diag.hang.rundir import EndedWell
from diag.hang.signatures import CLASSES
from diag.hang.timeouts import Timeout, groups_of, timeouts_of
from diag.hang.wording import headline, steps
from diag.words.formatting import counted, spaced

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
