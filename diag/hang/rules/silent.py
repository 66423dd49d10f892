"""A job that stands still without a word: everybody is in the first collective, over GPU-to-GPU channels."""

from __future__ import annotations

from diag.hang.case import Case, distinct
from diag.hang.model import Clue, Role
from diag.hang.rules.direct import time_of
from diag.hang.rules.network import LOST
from diag.hang.signatures.base import NAMES_AN_EFFECT
from diag.hang.timeouts import GroupTimeouts, group_of, groups_of, timeouts_of

_FIRST = 3  # nothing was ever finished
_ONE_USUAL_CAUSE = 0.6
_BESIDE_TIMEOUTS = 0.4  # a guess


def clues(case: Case) -> list[Clue]:
    return [*_blocked_channels(case), *_blocked_watchdog(case)]


def _blocked_watchdog(case: Case) -> list[Clue]:
    """The heartbeat monitor ends a process whose watchdog does not move: CUDA or Python's lock holds it. Where a
    collective timed out as well, that one says more."""
    hits = case.named("heartbeat", "gil")
    reports = case.once(timeouts_of)
    late = [report for report in reports if (report.ran_ms or 0) > 2 * (report.timeout_ms or report.ran_ms or 0)]
    if not hits and not late:
        return []
    lines = [hit.line for hit in hits] or [report.line for report in late]
    culprits = distinct([culprit for line in lines if (culprit := case.culprit(line)).rank is not None or culprit.host])
    groups = list(dict.fromkeys(group for line in lines if (group := group_of(line)[0])))
    note = (
        hits[0].sentence if hits else f"{late[0].words} ran for {(late[0].ran_ms or 0) // 1000:,} s: more than twice "
    )
    note += "" if hits else "its timeout, so the watchdog itself was late."
    note += f" Process groups: {', '.join(groups)}." if groups else ""
    ranks = {c.rank for c in culprits if c.rank is not None}
    # Who lost a connection before may hang in the abort of its communicators.
    lost = {case.rank_of(hit.line) for hit in case.named(*LOST)} - {None}
    sure = NAMES_AN_EFFECT if hits and not reports and not ranks & lost else _BESIDE_TIMEOUTS
    # Several at once wait for the same thing: none of them is the cause.
    named = culprits if len(culprits) == 1 else ()
    evidence = tuple(line.evidence for line in lines[:4])
    victims = tuple(sorted(c.rank for c in culprits if c.rank is not None)) if not named else ()
    return [Clue("watchdog_blocked", Role.ROOT, named, evidence, sure, note, victims, time_of(lines))]


def _blocked_channels(case: Case) -> list[Clue]:
    """PCIe isolation (IOMMU, ACS): initialised everywhere, all wait in the first collective, nobody complains."""
    channels = case.named("via-p2p")
    if not channels or not _all_initialised(case) or _complains(case):
        return []
    everybody = [group for group in groups_of(case, case.once(timeouts_of)) if _all_in_the_first(group)]
    stuck = _last_call_is_the_first(case)
    if not everybody and not stuck:
        return []
    hosts = list(dict.fromkeys(case.culprit(hit.line).host for hit in channels if case.culprit(hit.line).host))
    lines = [everybody[0].reports[0].line] if everybody else []
    waits = everybody[0].reports[0].words if everybody else "the first collective"
    return [
        Clue(
            "p2p_iommu_acs",
            Role.ROOT,
            distinct([case.of_host(host) for host in hosts]),
            tuple(line.evidence for line in (*lines, *(hit.line for hit in channels[:3]))),
            _ONE_USUAL_CAUSE if everybody else _ONE_USUAL_CAUSE - 0.1,
            f"All ranks are initialised and all wait in {waits}; the channels go from GPU to GPU and nobody reports an "
            "error.",
            tuple(sorted(everybody[0].ranks)) if everybody else (),
        )
    ]


def _all_initialised(case: Case) -> bool:
    """Whether every member of some communicator finished."""
    several = [c for c in case.communicators if c.size > 1]
    return any(len(c.members) == c.size and all(m.completed for m in c.members) for c in several)


def _all_in_the_first(group: GroupTimeouts) -> bool:
    same = len({report.call for report in group.reports}) == 1
    return same and group.members is not None and not group.absent and group.reports[0].seq <= _FIRST


def _last_call_is_the_first(case: Case) -> bool:
    """Without time-outs: every rank's first call is its last, and nobody ended in order."""
    members = [m for c in case.communicators if c.size > 1 for m in c.members]
    called = [m for m in members if m.calls]
    return (
        bool(called) and len(called) == len(members) and all(m.calls[-1].op_count == 0 and not m.ended for m in called)
    )


def _complains(case: Case) -> bool:
    return any(hit.signature.role == Role.ROOT and hit.line.level != "INFO" for hit in case.hits)
