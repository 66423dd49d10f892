"""Communication that is not visible: in kernels with unknown names, or in kernels that also compute."""

from __future__ import annotations

from collections import Counter

from diag.account import gpu
from diag.account.cached_steps import windows_of
from diag.account.rank_steps import RankSteps
from diag.deferred import pl
from diag.diagnoses.policy import COMMUNICATION
from diag.model.accounts import Attribution
from diag.model.breakdown import KernelKind
from diag.model.steps import Kind
from diag.rundir.tables import Tables
from diag.tables.work import work_of
from diag.traces import kineto_names as names

from .subject import Subject

_FUSED = "communication inside fused kernels"


def unrecognised(subject: Subject) -> str:
    """Why a job of several ranks shows no communication, with the kernels that may be it; "" where some was seen."""
    several = _several_ranks(subject.tables)
    if not several or not subject.attribution.comm_known or _seen(subject.attribution):
        return ""
    if RankSteps.of(subject.attribution.rank_steps).fused_ns.any():
        return f"{several}, and all communication that was recognised is inside fused kernels"
    reason = f"{several}, and no kernel was recognised as communication"
    unknown = _unknown_kernels(subject.tables)
    if not unknown:
        return reason
    kernels = ", ".join(f"{_short(name)} ({ns / 1e6:.1f} ms {subject.per})" for name, ns in unknown)
    return f"{reason}; the longest kernels of unknown kind are {kernels}: name those that communicate (--comm-kernels)"


def _seen(attribution: Attribution) -> bool:
    """Whether any step contains communication, or no trace of a device was read at all."""
    steps = RankSteps.of(attribution.rank_steps)
    traced = steps.take(steps.from_source("trace"))
    exposed = (traced.segments.every.kind == Kind.COMM).any()
    return not traced or bool(len(traced.places) or traced.overlapped_comm_ns.any() or exposed)


def _several_ranks(tables: Tables) -> str:
    """The evidence that the job has several ranks, in words; "" where it has one, nothing shows it, or it has no
    device."""
    traces = [trace for rank_tables in tables.ranks.values() for trace in rank_tables.traces if trace.has_gpu]
    if not traces or tables.world_size == 1:
        return ""
    sizes = [len(ranks) for trace in traces for ranks in trace.groups.values()]
    ranks = max([tables.world_size or 0, *sizes])  # not by a rank in a file's name, which may be any number
    if ranks > 1:
        return f"the job has {ranks} ranks"
    for trace in traces:
        calls = trace.select(names.CPU_OP, names.ANNOTATION, name=names.CALL_OP_PATTERN, arguments=True)
        group = calls["group_size"].max()
        if len(calls) and group != 1:
            return f"the job has {group} ranks" if isinstance(group, int) else "the host calls collectives"
    return ""


def _unknown_kernels(tables: Tables) -> list[tuple[str, int]]:
    """The longest kernels of one rank that neither name nor operator explains: (name, nanoseconds a step)."""
    rank_tables = next(
        rank_tables
        for _, rank_tables in sorted(tables.ranks.items())
        if any(trace.has_gpu for trace in rank_tables.traces)
    )
    total_ns: Counter[str] = Counter()
    busy = steps = 0
    for trace in rank_tables.traces:
        windows = windows_of(trace)
        work = work_of(trace, windows).frame
        gpu.forget(trace)
        busy, steps = busy + int(work["dur_ns"].sum()), steps + len(windows)
        unknown = work.filter(pl.col("kind") == str(KernelKind.OTHER))
        sums = unknown.group_by(pl.col("name").cast(pl.String), maintain_order=True).agg(pl.col("dur_ns").sum())
        for name, ns in sums.iter_rows():
            total_ns[name] += ns
    return [
        (name, ns // max(1, steps))
        for name, ns in total_ns.most_common(COMMUNICATION.unseen_kernels_shown)
        if ns >= COMMUNICATION.least_unseen_kernel_share * busy
    ]


def _short(name: str) -> str:
    return name if len(name) <= COMMUNICATION.kernel_name_chars else name[: COMMUNICATION.kernel_name_chars - 1] + "…"
