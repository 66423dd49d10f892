"""Ranks that are blocked outside of known waits: sleep, I/O, a lock, or a process that is stopped."""

from __future__ import annotations

import numpy as np

from diag.collectors.records import BACKWARD, DATA, FORWARD, OPTIMIZER, REST
from diag.diagnoses.policy import STRAGGLER
from diag.model.query import By, Query
from diag.model.steps import Evidence, Finding
from diag.words import sentences
from diag.words.wording import sentence

from .costs import Cost
from .subject import Diagnosis, Subject, both_ends, ranks_text, scheduled

ONE, ALL = "stalled-rank", "stalled-ranks"
_WHERE = {
    DATA: "data loading",
    FORWARD: "forward",
    BACKWARD: "backward",
    OPTIMIZER: "the optimizer",
    REST: "between the phases",
}


def find(subject: Subject) -> list[Finding]:
    shares = subject.shares
    culprits = shares.culprits(Cost.STALL)
    unequal = shares.mostly_late(Cost.STALL)
    ranks = culprits.ranks if unequal and _apart(subject, culprits.ranks) else ()
    cost = subject.each(subject.charged(Cost.STALL, ranks))
    asked = ranks or (culprits.suspects if unequal else ()) or tuple(subject.scheduling.ranks)
    place = _place(subject, asked)
    where = _in(subject, place)
    if ranks:
        cost += subject.in_few_steps(culprits)
        title = sentences.RANKS_ARE_BLOCKED(
            len(ranks),
            ranks=ranks_text(ranks).capitalize(),
            place=where,
            cost=cost,
            others_wait=subject.waiting_ranks_text(ranks),
        )
    elif unequal:
        which = sentences.BLOCKED_RANK_CHANGES if culprits.moves else sentences.BLOCKED_RANK_IS_UNCERTAIN
        title = which(place=where, cost=cost, waits=subject.others_waited(Cost.STALL, culprits))
    else:
        all_ranks = sentences.TRAINING_IS_BLOCKED if len(shares.ranks) == 1 else sentences.ALL_RANKS_ARE_BLOCKED
        title = all_ranks(place=where, cost=cost)
    return [
        subject.costing(
            Cost.STALL,
            id=ONE if unequal else ALL,
            title=title,
            action=_action(subject, ranks or (culprits.suspects if unequal else ()), place),
            evidence=_evidence(subject),
            ranks=ranks,
        )
    ]


def _apart(subject: Subject, ranks: tuple[int, ...]) -> bool:
    """On a device the ranks that wait are blocked as well, in the backward."""
    by = subject.scheduling
    return by.apart(ranks, "blocked_ns", "paused_ns", "frozen_ns") or (
        subject.shares.on_device and by.apart(ranks, "outside_backward_ns")
    )


def _place(subject: Subject, ranks: tuple[int, ...]) -> tuple[str, ...]:
    """The phase in which the ranks are blocked, or several where the time is spread: then the process itself may be
    stopped."""
    spent: dict[str, float] = {}
    for rank in ranks:
        if rank in subject.scheduling.ranks:
            for phase, ns in subject.scheduling.ranks[rank].blocked_in.items():
                spent[phase] = spent.get(phase, 0.0) + ns
    whole = sum(spent.values())
    worst = sorted(spent, key=lambda phase: -spent[phase])
    if not whole or not worst:
        return ()
    if spent[worst[0]] >= STRAGGLER.stalled_in_one_phase_share * whole:
        return (worst[0],)
    return tuple(phase for phase in worst if spent[phase] >= 0.1 * whole)


def _in(subject: Subject, place: tuple[str, ...]) -> str:
    if not place:
        return ""
    if place == (FORWARD,) and no_loader(subject):  # it begins where the step before has ended
        return f" in or before {_WHERE[FORWARD]}"
    names = [_WHERE.get(phase, phase) for phase in place]
    if names == [_WHERE[REST]]:
        return f" {names[0]}"
    names = [name for name in names if name != _WHERE[REST]]
    return " in " + (names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}")


def _action(subject: Subject, ranks: tuple[int, ...], place: tuple[str, ...]) -> str:
    host = subject.host_of(ranks[0]) if ranks else None
    names = f"{ranks_text(ranks)}{f' on {host}' if host else ''}" if ranks else "the ranks"
    if len(subject.shares.ranks) == 1:
        names = "the training"
    if len(place) > 1:
        return (
            f"The time is lost in several phases, so {names} may be stopped as a whole: look for SIGSTOP, a debugger, "
            "a paused container, a CPU quota (cgroup cpu.max, throttled_usec) or swapping. Take stacks several times "
            "(py-spy dump) to see whether it is always in the same call."
        )
    wait = "waits" if len(ranks) == 1 or len(subject.shares.ranks) == 1 else "wait"
    text = (
        f"{sentence(names)} {wait} neither for the CPU nor for a collective{_in(subject, place)}: look for sleeps, "
        "file and network I/O, locks and subprocesses in that code (py-spy dump on the process, or a profiler window "
        "with stacks)."
    )
    if place in ((FORWARD,), (REST,)) and no_loader(subject):
        text += (
            " No batch came from a torch DataLoader: if the script reads its input itself, that is probably where it "
            "waits; read ahead in another thread or process, or wrap the reading in record().steps(...)."
        )
    few = _few_steps(subject)
    if few:
        text += (
            f" {STRAGGLER.stalled_in_few_steps_share:.0%} of it lies in {few:.0%} of the steps: look at what runs "
            "only in these, such as rollouts of an environment, logging or saving."
        )
    return text


def _few_steps(subject: Subject) -> float:
    """The part of the steps that holds most of the blocked time, where that is few of them; else 0."""
    cost = np.sort(subject.shares.cost(Cost.STALL))[::-1].cumsum()
    steps = int(np.searchsorted(cost, STRAGGLER.stalled_in_few_steps_share * cost[-1])) + 1
    part = steps / len(cost)
    return part if steps > 1 and part <= STRAGGLER.few_steps_share else 0.0


def no_loader(subject: Subject) -> bool:
    """Whether no step waited for a DataLoader: the input, if there is any, comes from elsewhere."""
    recorded = [tables.steps for tables in subject.tables.ranks.values() if tables.steps]
    return bool(recorded) and not any(steps.in_phases(DATA).any() for steps in recorded)


def _evidence(subject: Subject) -> list[Evidence]:
    means = subject.scheduling.mean_ms("blocked_ns")
    shown = both_ends(sorted(means, key=lambda rank: -means[rank]))
    evidence = [scheduled(r, "blocked_ns", "mean blocked time", means[r]) for r in shown]
    frozen = subject.scheduling.mean_ms("frozen_ns")
    evidence += [
        Evidence(
            f"rank {r}, stopped inside of collectives",
            round(frozen[r], 3),
            f"ms {subject.per}",
            Query("scheduling", {"rank": r}, "frozen_ns", By.MEAN),
        )
        for r in sorted(frozen, key=lambda rank: -frozen[rank])[:2]
        if frozen[r] >= 0.1
    ]
    for rank in shown[:1]:
        by_phase = sorted(subject.scheduling.ranks[rank].blocked_in.items(), key=lambda item: -item[1])
        evidence += [
            Evidence(
                f"rank {rank}, blocked in {phase}",
                round(ns / 1e6, 3),
                "ms",
                Query("scheduling", {"rank": rank}, "blocked_ns"),
            )
            for phase, ns in by_phase[:3]
            if ns >= 1e5
        ]
    return evidence


DIAGNOSIS = Diagnosis(
    find,
    needs="the CPU time of the training's thread, and on a GPU a second rank.",
    means={
        ONE: (
            "One rank is blocked where no wait is known: sleep, I/O, a lock, a stopped process. Where no batch came "
            "from a DataLoader, the script's own reading is suspected."
        ),
        ALL: "The same on all ranks.",
    },
)
