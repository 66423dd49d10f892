"""Parameters that are gathered again for the backward although there is memory to keep them."""

from __future__ import annotations

from collections import defaultdict

from msgspec.structs import replace

from diag.diagnoses.policy import COMMUNICATION, MEMORY_USE
from diag.model.query import By, Query
from diag.model.steps import Evidence
from diag.words import sentences

from .comm_cause import (
    NEEDS_PARTS,
    Claim,
    backward_gathers,
    calls_of,
    exposed_of,
    gathers_in,
    queued_behind,
)
from .memory_pressure import peaks
from .subject import Subject

ID = "regather-in-backward"
NEEDS = f"device memory (peak and capacity); {NEEDS_PARTS}."
MEANS = "Parameters are gathered again in the backward although memory would keep them (`reshard_after_forward=False`)."


def claim(subject: Subject) -> Claim | None:
    """The gathers of the backward, if every rank could keep the parameters below ``near_full_share`` of its memory."""
    held_at_peak = subject.once(peaks)
    if not held_at_peak:
        return None
    calls = subject.once(calls_of)
    gathers = backward_gathers(calls.rows)
    exposed = sum(call.exposed_ns for call in gathers)
    behind = sum(subject.once(queued_behind).values())
    if not exposed:
        return None
    held: dict[tuple[int, int, int], int] = defaultdict(int)
    for call in gathers:
        held[call.rank, call.step, call.micro] += call.bytes
    gathered_bytes = max(held.values())
    free = min(round(MEMORY_USE.near_full_share * peak.capacity) - peak.reserved - peak.beside for peak in held_at_peak)
    if free < gathered_bytes:
        return None
    ms = calls.ms_per_step(exposed + behind)
    gathered = exposed_of(gathers_in("backward", **{"bytes >=": COMMUNICATION.tensors_from_bytes}))
    delaying = (
        Query("calls", {"op": "reduce_scatter", "phase": "backward"}) if behind else replace(gathered, by=By.ROWS)
    )
    return Claim(
        ID,
        calls.part(exposed + behind),
        ms,
        f"Parameters are gathered again for the backward, {ms:.1f} ms {subject.per}, although there is memory to "
        "keep them",
        sentences.WITH_OPTIONS(
            action="Keep them from forward to backward: fully_shard(..., reshard_after_forward=False), at least for "
            "the last units.",
            options="--reshard-after-forward no",
        ),
        (
            Evidence(
                "all_gather in backward, exposed",
                calls.ms_per_step(exposed),
                f"ms {subject.per}",
                gathered,
            ),
            Evidence("reductions that delay them", calls.ms_per_step(behind), f"ms {subject.per}", delaying),
            Evidence(
                "gathered parameters to keep",
                float(gathered_bytes),
                "bytes",
                replace(gathered, by=By.ROWS),
            ),
            Evidence(
                f"free on the fullest rank below {MEMORY_USE.near_full_share:.0%}",
                float(free),
                "bytes",
                Query("memory"),
            ),
        ),
    )
