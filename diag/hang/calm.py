"""What to say where no rule names a cause: healthy, a lost store, or undetermined with what is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diag.hang.case import Case, distinct
from diag.hang.model import Culprit, Line, Role
from diag.hang.progress import STEP, ended_well, in_order
from diag.hang.rules.exceptions import victims_of
from diag.hang.rules.network import ends_on_its_host
from diag.hang.timeouts import Timeout, groups_of
from diag.words.formatting import listing, spaced

_STORE = ("store-get", "should-dump", "recv-value")
_ANSWERS = re.compile(r"(?i)time(?:d )? ?out")  # a store that says so is alive: somebody else is late
_REMOTE = re.compile(r"^\[?(?P<host>[^\]\s:]+(?::[^\]\s:]+)*?)\]?(?::\d+)?$")
_MOST = 6
_MOST_NAMED = 1_024  # ranks
_WELL, _STEPS, _STEPS_ONLY = 0.85, 0.7, 0.5


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
    store = [hit for hit in store if hit.signature.name != "store-get" or not _ANSWERS.search(hit.line.text)]
    if store and not reports:
        ends = [Culprit(host=found["host"]) for hit in store if (found := _REMOTE.match(hit.groups.get("remote", "")))]
        zero = [case.of_rank(0)] if 0 in case.by_rank else [Culprit(rank=0)]
        where = "its host" if ends else "rank 0, which serves it,"
        return Calm(
            "cascade_store_lost",
            0.5,
            f"The store of the job is gone, and no line says why. Look at {where} first. {store[0].sentence}",
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
    lost = case.once(victims_of)
    if lost:
        return _only_victims(case, lost)
    if alarms:
        first = alarms[0]
        text = "No known signature fits. The first warning of each process is what there is."
        return Calm("undetermined", 0.3, text, (), (first, *alarms[1:_MOST]))
    return _healthy_or_unknown(case)


def _only_victims(case: Case, lost: Mapping[int, Line]) -> Calm:
    """Ranks raised errors about their peers, and nobody raised another one: who was first, and who raised none."""
    lines = sorted(lost.items(), key=lambda item: item[1].time_ns or 0)
    who = spaced(listing(sorted(lost)))
    text = f"Only errors about other ranks were found, and none that explains them: {who} lost or waited for a peer."
    timed = all(line.time_ns is not None for _, line in lines)
    if timed and len(lines) > 1:
        text += f" Rank {lines[0][0]} raised first."
    world = range(
        case.logs.world_size if case.logs.world_size is not None and case.logs.world_size <= _MOST_NAMED else 0
    )
    rest = [rank for rank in world if rank not in lost]
    if rest:
        text += f" Of {spaced(listing(rest))} no exception was found: look there first."
    return Calm("undetermined", 0.3, text, (), tuple(line for _, line in lines)[:_MOST])


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
    """Healthy is only what shows that all ranks are initialised and that they train, or that the job ended in order."""
    members = [m for c in case.communicators for m in c.members]
    largest = max(case.communicators, key=lambda c: c.size, default=None)
    harmless = [hit.line for hit in case.hits if hit.fault_class.id == "harmless"]
    complete = [line for line in case.logs.lines if "COMPLETE" in line.text]
    lines = tuple(dict.fromkeys((*complete[:_MOST], *harmless)))[:_MOST]
    doubt = _doubt(case)
    if case.once(ended_well) and not _another_job(case):
        lines = tuple(dict.fromkeys((*(hit.line for hit in case.named("ended-well")), *lines)))[:_MOST]
        return Calm("healthy", _WELL, "The training says that it reached its end, and nothing failed.", (), lines)
    whole = largest is not None and len(largest.members) == largest.size and all(m.completed for m in members)
    if whole and all(m.ended == "destroyed" for m in members):
        return Calm("healthy", 0.9, "The run ended in order: every communicator was destroyed.", (), lines)
    steps = [line for line in case.logs.lines if STEP.search(line.text)]
    if doubt:
        return Calm("undetermined", 0.4, doubt, (), lines)
    if steps and (whole or not members):
        after = [line for line in steps if case.once(last_alarm) < line.number] if harmless else steps
        if whole:
            text = f"All {largest.size if largest else 0} ranks are initialised, they train, and no line says that "
            return Calm("healthy", _STEPS, f"{text}anything is wrong.", (), (*lines[:3], *steps[-2:]))
        if harmless and after:
            text = "The training makes steps, and no line says that anything is wrong."
            return Calm("healthy", _STEPS_ONLY, text, (), (*lines[:3], *steps[-2:]))
    if whole and largest is not None:
        text = f"All {largest.size} ranks are initialised. No line says that they train, or that anything is wrong."
        return Calm("undetermined", 0.4, text, (), lines)
    if members and largest is not None:
        text = f"{len(largest.members)} of {largest.size} ranks were read, and nothing is wrong with them."
        return Calm("undetermined", 0.4, text, (), lines)
    if harmless:
        text = "Only lines that healthy runs print as well, and no sign that the job trains or ended."
        return Calm("undetermined", 0.3, text, (), tuple(harmless[:_MOST]))
    return Calm("undetermined", 0.2, "Nothing that was read tells how the job is doing.", (), ())


def _doubt(case: Case) -> str:
    """What bars the answer "healthy" although no line complains."""
    local = [one for one in case.interfaces if ends_on_its_host(one)]
    if local:
        names = ", ".join(dict.fromkeys(f"{one.name} ({one.address})" for one in local))
        return f"No line says that anything is wrong, but NCCL uses {names}, which does not leave its host."
    versions = {process.nccl_version.partition("+")[0] for process in case.logs.processes} - {""}
    if len(versions) > 1:
        return f"No line says that anything is wrong, but the processes load NCCL {' and '.join(sorted(versions))}."
    return ""


def _another_job(case: Case) -> bool:
    """Whether a file holds all ranks of a job and does not say that it ended well, beside one that does."""
    ended = {hit.line.path for hit in case.named("ended-well")}
    for communicator in case.communicators:
        paths = {
            path
            for member in communicator.members
            if member.process is not None
            for path in case.logs.processes[member.process].paths
        }
        whole = len(communicator.members) == communicator.size == case.logs.world_size
        if whole and len(paths) == 1 and not paths & ended and not all(m.ended for m in communicator.members):
            return True
    return False


def last_alarm(case: Case) -> int:
    """The number of the last line that looks alarming and is harmless."""
    return max((hit.line.number for hit in case.hits if hit.fault_class.id == "harmless"), default=0)
