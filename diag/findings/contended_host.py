"""Ranks that compute on a CPU and are late because they wait for a core: something else runs on their host."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diag.findings.culprits import Culprits, Series
from diag.findings.shares import Cost
from diag.findings.subject import MENTION, Subject, mean_ns, who_is_late
from diag.model import Evidence, Finding

_EXPLAINS = 0.5  # of the lateness: less, and waiting for a core is not why


class Contended(Struct, frozen=True):
    """``explained``: the part of the late ranks' lateness in which they were ready to run and had no core.
    ``queued_ns``: that time by rank, the mean of the steps."""

    culprits: Culprits
    explained: float
    queued_ns: dict[int, float]


def find(subject: Subject) -> list[Finding]:
    found = subject.once(contended)
    if found is None:
        return []
    cost = f"{mean_ns(subject.shares.cost(Cost.STRAGGLER)) / 1e6:.0f} ms a step"
    who = who_is_late(found.culprits).capitalize()
    wait = "wait" if len(found.culprits.ranks) > 1 else "waits"
    shown = sorted(found.queued_ns, key=lambda rank: -found.queued_ns[rank])[:8]
    return [
        subject.costing(
            Cost.STRAGGLER,
            id="contended-host",
            title=f"{who} {wait} for a CPU core, and every other rank with it: {cost}",
            action="Find what else runs on the host (top, pidstat): other jobs, too many loader processes or threads "
            "(OMP_NUM_THREADS). Give each rank cores of its own (taskset, numactl, --cpus-per-task).",
            evidence=[
                Evidence("steps", "lateness spent waiting for a core", round(found.explained, 3), "share"),
                *(
                    Evidence("steps", f"rank == {r}, mean of queued_ns", round(found.queued_ns[r] / 1e6, 3), "ms")
                    for r in shown
                ),
            ],
            ranks=found.culprits.ranks,
        )
    ]


def cannot_look(subject: Subject) -> str:
    if subject.shares.on_device:
        return "the run is on a device"
    return subject.cannot_look("a slow rank") or (
        "" if queued(subject) else "the system did not tell how long processes wait for a core"
    )


def contended(subject: Subject) -> Contended | None:
    """Whether most of what made ranks late was waiting for a core, longer than the others did."""
    shares = subject.shares
    if shares.on_device or shares.share(Cost.STRAGGLER) < MENTION:
        return None
    waited = queued(subject)
    late = shares.blame_ns.get(Cost.STRAGGLER, {})
    total = sum(float(series.sum()) for series in late.values())
    if len(waited) < 2 or not total or not set(late) <= set(waited):
        return None
    explained = 0.0
    for rank, series in late.items():
        others = np.median([own for other, own in waited.items() if other != rank], axis=0)
        explained += float(np.minimum(series, np.maximum(0.0, waited[rank] - others)).sum())
    if explained < _EXPLAINS * total:
        return None
    means = {rank: float(own.mean()) for rank, own in waited.items()}
    return Contended(shares.culprits(Cost.STRAGGLER), explained / total, means)


def queued(subject: Subject) -> dict[int, Series]:
    """By rank, per step that counts: nanoseconds ready to run without a core. Ranks that do not know are left out."""
    found = {}
    for rank, tables in subject.tables.ranks.items():
        own = {record.step: record.queued_ns for record in tables.steps if record.queued_ns is not None}
        if own:
            found[rank] = np.array([own.get(step, 0) for step in subject.shares.numbers], dtype=np.float64)
    return found
