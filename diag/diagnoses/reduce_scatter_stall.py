"""A backward on a device that stalls on the reductions of earlier units: FSDP2 keeps one of them in flight."""

from __future__ import annotations

import numpy as np

from diag.account.trace_ranges import named
from diag.diagnoses.policy import COMMUNICATION
from diag.model.query import Query
from diag.model.steps import Evidence

from .comm_cause import (
    NEEDS_PARTS,
    Claim,
    calls_of,
    last_reductions,
    queued_behind,
)
from .subject import Subject

ID = "reduce-scatter-stall"
NEEDS = f"a run on a GPU; {NEEDS_PARTS}."
MEANS = "The backward waits for reduce-scatters between units."
_WAIT = r"^FSDP::post_backward_rs_wait"


def claim(subject: Subject, gathers_claimed: bool) -> Claim | None:
    """The reduce-scatters that the last backward waits for before it goes on. Those after its last unit (that unit's
    and the root's) cannot be overlapped. ``gathers_claimed``: all-gathers of the backward have a claim of their own,
    with the reductions that delay them."""
    if not subject.shares.on_device:
        return None
    calls = subject.once(calls_of)
    between = last_reductions(subject, "reduce_scatter")
    between = between.take(between.after_ns > COMMUNICATION.work_after_stall_share * between.exposed_ns)
    exposed = int(between.exposed_ns.sum())
    if gathers_claimed:
        behind = subject.once(queued_behind)
        exposed -= sum(behind.get((c.rank, c.step, c.start_ns), 0) for c in between)
    if exposed <= 0:
        return None
    waits = _waits_ms(subject)
    ms, rows = calls.ms_per_step(exposed), Query("calls", {"op": "reduce_scatter", "phase": "backward"})
    return Claim(
        ID,
        calls.part(exposed),
        ms,
        f"The backward stalls on reduce-scatters: {ms:.1f} ms {subject.per} between units",
        "Allow two reductions in flight: set_reduce_scatter_max_input_buffers(2) (torch 2.13 or later); where gathers "
        "queue behind them, set_separate_reduce_scatter_group(). This takes memory for one more unit's gradients.",
        (
            Evidence("reduce_scatter between units, exposed", ms, f"ms {subject.per}", rows),
            *([Evidence("FSDP::post_backward_rs_wait, median", waits, "ms", rows)] if waits is not None else []),
        ),
    )


def _waits_ms(subject: Subject) -> float | None:
    """How long the host is in one of the waits; None where no trace has them."""
    for rank in subject.tables.ranks.values():
        for trace in rank.traces:
            waits_ns = named(trace, _WAIT)["dur_ns"].to_numpy()
            if len(waits_ns):
                return round(float(np.median(waits_ns)) / 1e6, 4)
    return None
