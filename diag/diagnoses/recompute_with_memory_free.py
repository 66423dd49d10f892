"""Activations that are computed twice to save memory that is free."""

from __future__ import annotations

from diag.account import gpu
from diag.account.cached_steps import windows_of
from diag.diagnoses.policy import MEMORY_USE
from diag.model.programs import Concept, Settings, written
from diag.model.query import Query
from diag.model.steps import Evidence, Finding, Kind, Severity
from diag.tables.recompute import recomputed
from diag.tables.totals import totals
from diag.tables.work import work_of

from .memory_pressure import Peak, peak_of, peaks, why_unknown
from .subject import Diagnosis, Subject, ranks_text, settings_of_run

ID = "recompute-with-memory-free"


def find(subject: Subject) -> list[Finding]:
    """Re-reads the traces of one rank only, since all ranks recompute alike, and only if memory is free."""
    fullest = _fullest(subject)
    if fullest is None or fullest.used > MEMORY_USE.roomy_share:
        return []
    share, basis = _recomputed(subject)
    if share < MEMORY_USE.recomputation_share:
        return []
    steps = subject.attribution.counted
    computing = float(steps.spent()[Kind.COMPUTE].sum()) / max(1, int(steps.dur_ns.sum()))
    cost, free = share * computing, 1 - fullest.used
    return [
        Finding(
            id=ID,
            title=f"{share:.0%} of the computation repeats the forward, and {free:.0%} of the memory is free",
            severity=Severity.WARN,
            share=cost,
            cost_ns_per_step=int(cost * float(subject.shares.dur_ns.mean())),
            confidence=0.9,
            evidence=(
                Evidence(f"recomputed, of all computation: {basis}", round(share, 4), "share", Query("kernels")),
                Evidence(
                    f"{ranks_text((fullest.rank,))}, the fullest, peak reserved",
                    round(fullest.reserved / fullest.capacity, 4),
                    "share",
                    peak_of(fullest.rank),
                ),
            ),
            action=_action(subject.once(settings_of_run)),
        )
    ]


def _action(program: Settings | None) -> str:
    if program is not None and program.by_megatron:
        selective = written(program.program, Concept.RECOMPUTE, "selective")
        return f"{program.program}: {selective} (attention alone), or no recomputation; watch the peak of the memory."
    return (
        "Checkpoint fewer layers (every second block, or selective activation checkpointing), and watch the peak of "
        "the memory."
    )


def cannot_look(subject: Subject) -> str:
    if _fullest(subject) is None:
        return why_unknown(subject.tables)
    return "" if any(rank.traces for rank in subject.tables.ranks.values()) else "no profiler window was recorded"


def _fullest(subject: Subject) -> Peak | None:
    return max(subject.once(peaks), key=lambda peak: peak.used, default=None)


def _recomputed(subject: Subject) -> tuple[float, str]:
    """The recomputed fraction of the kernels' time in the counted steps, and its basis."""
    counted = frozenset(subject.shares.numbers)
    for rank in subject.tables.ranks.values():
        trace_totals = []
        for trace in rank.traces:
            windows = [window for window in windows_of(trace) if window[0] in counted]
            if windows:
                work = work_of(trace, windows)
                trace_totals.append(totals(work, sum(end - begin for _, begin, end in windows), recomputed(work)))
                gpu.forget(trace)
        whole = sum(total.compute_ns for total in trace_totals)
        if whole:
            bases = sorted({total.basis for total in trace_totals if total.basis})
            return sum(total.recomputed_ns for total in trace_totals) / whole, ", ".join(bases)
    return 0.0, ""


DIAGNOSIS = Diagnosis(
    find,
    needs="a run on a GPU with a profiler window, and device memory.",
    means={
        ID: "Activations are recomputed although there is memory to keep them.",
    },
)
