"""What to say where no rule names a cause: healthy, a lost store, or undetermined with what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diag.hang.case import Case, distinct
from diag.hang.model import Culprit, Line, Role
from diag.hang.progress import ended_well, in_order
from diag.hang.rules.direct import note_of
from diag.hang.timeouts import Timeout, groups_of

_STORE = ("store-get", "should-dump", "recv-value", "client-timeout", "store-wait")
_MOST = 6


@dataclass(frozen=True)
class Calm:
    fault_class: str
    confidence: float
    headline: str
    culprits: tuple[Culprit, ...]
    lines: tuple[Line, ...]


def without_cause(case: Case, reports: Sequence[Timeout]) -> Calm:
    alarms = _alarms(case)
    store = [hit for hit in case.named(*_STORE) if not in_order(case, hit.line)]
    if store and not reports:
        ends = [Culprit(host=hit.groups["host"].strip()) for hit in store if "host" in hit.groups]
        zero = [case.of_rank(0)] if 0 in case.by_rank else [Culprit(rank=0)]
        return Calm(
            "cascade_store_lost",
            0.5,
            "The store of the job is gone, and nothing that was read says why: look at its host first. "
            + note_of(store[0]),
            distinct(ends or zero),
            tuple(hit.line for hit in store[:_MOST]),
        )
    if reports:
        return _only_timeouts(case, reports)
    waits = [m for c in case.communicators for m in c.members if m.started and not m.completed and not m.ended]
    if waits:
        lines = tuple(line for line in case.logs.lines if "Init START" in line.text)
        text = "The initialisation of a communicator began and was not completed, and no line says why."
        return Calm("undetermined", 0.4, text, (), lines[:_MOST])
    if alarms:
        first = alarms[0]
        text = "No known signature fits. The first warning of each process is what there is."
        return Calm("undetermined", 0.3, text, (), (first, *alarms[1:_MOST]))
    return _healthy_or_unknown(case)


def _only_timeouts(case: Case, reports: Sequence[Timeout]) -> Calm:
    groups = groups_of(case, reports)
    main = max(groups, key=lambda group: len(group.reports))
    calls = {report.call for report in main.reports}
    ranks = len(main.reports)
    if len(calls) == 1 and main.members is not None and not main.absent:
        text = f"All {ranks} ranks of {main.words} wait in {main.reports[0].words}: none is missing, no line says why."
    else:
        unknown = "" if main.members is not None else " How large the group is, nothing says."
        some = f"{ranks} rank{'s' if ranks > 1 else ''}"
        text = f"{some} timed out in {main.reports[0].words}; who is missing cannot be told."
        text += unknown
    if any(r.ran_ms and r.timeout_ms and r.ran_ms > 2 * r.timeout_ms for r in reports):
        text += " It ran for more than twice its timeout: the watchdog itself was blocked."
    return Calm("undetermined", 0.4, text, (), tuple(report.line for report in reports[:_MOST]))


def _alarms(case: Case) -> list[Line]:
    """The first warning or error of every process that no healthy run prints."""
    harmless = {hit.line for hit in case.hits if hit.signature.role == Role.HARMLESS}
    cascades = {hit.line for hit in case.hits if hit.signature.role == Role.CASCADE}
    found: dict[object, Line] = {}
    for line in case.logs.lines:
        warned = (line.source, line.level) in (("nccl", "WARN"), ("torch", "ERROR"))
        told = line in cascades and not in_order(case, line)
        if (warned or told) and line not in harmless and not in_order(case, line):
            speaker = line.speaker
            found.setdefault((line.path, speaker.host, speaker.pid, speaker.rank), line)
    return list(found.values())


def _healthy_or_unknown(case: Case) -> Calm:
    members = [m for c in case.communicators for m in c.members]
    ended = [m for m in members if m.ended == "destroyed"]
    largest = max(case.communicators, key=lambda c: c.size, default=None)
    harmless = [hit.line for hit in case.hits if hit.fault_class.id == "harmless"]
    complete = [line for line in case.logs.lines if "COMPLETE" in line.text]
    lines = tuple(dict.fromkeys((*complete[:_MOST], *harmless)))[:_MOST]
    if case.once(ended_well):
        lines = tuple(dict.fromkeys((*(hit.line for hit in case.named("ended-well")), *lines)))[:_MOST]
        return Calm("healthy", 0.85, "The training says that it reached its end, and nothing failed.", (), lines)
    if members and all(m.completed for m in members) and largest is not None:
        whole = len(largest.members) == largest.size
        if ended and len(ended) == len(members):
            sure = 0.9 if whole else 0.75
            return Calm("healthy", sure, "The run ended in order: every communicator was destroyed.", (), lines)
        if whole:
            text = f"All {largest.size} ranks are initialised and no line says that anything is wrong."
            return Calm("healthy", 0.75, text, (), lines)
        text = f"{len(largest.members)} of {largest.size} ranks were read, and nothing is wrong with them."
        return Calm("undetermined", 0.4, text, (), lines)
    if harmless:
        text = "What looks alarming here is usual in healthy runs."
        return Calm("healthy", 0.55, text, (), tuple(harmless[:_MOST]))
    return Calm("undetermined", 0.2, "Nothing that was read tells how the job is doing.", (), ())
