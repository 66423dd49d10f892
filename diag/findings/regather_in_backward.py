"""Parameters that are gathered again for the backward although there is memory to keep them."""

from __future__ import annotations

from collections import defaultdict

from diag.attribution.phased import GATHERS
from diag.findings import comm_parts
from diag.findings.comm_parts import Claim, calls_of
from diag.findings.memory_pressure import NEAR_FULL, peaks_of
from diag.findings.subject import Subject
from diag.model import Detail, Evidence, Finding

ID = "regather-in-backward"


def find(subject: Subject) -> list[Finding]:
    return comm_parts.findings(subject, ID)


def cannot_look(subject: Subject) -> str:
    if not peaks_of(subject.tables):
        return "no device memory was recorded"
    return comm_parts.cannot_look(subject)


def claim(subject: Subject) -> Claim | None:
    """The gathers of the backward, where every rank could keep what they bring below ``NEAR_FULL`` of its memory."""
    peaks = peaks_of(subject.tables)
    calls = subject.once(calls_of)
    again = [c for c in calls.rows if c.op in GATHERS and c.phase == Detail.BACKWARD and c.bytes >= comm_parts.TELLING]
    exposed = sum(call.exposed_ns for call in again)
    if not peaks or not exposed:
        return None
    held: dict[tuple[int, int, int], int] = defaultdict(int)
    for call in again:
        held[call.rank, call.step, call.micro] += call.bytes
    kept = max(held.values())
    free = min(round(NEAR_FULL * peak.capacity) - peak.reserved for peak in peaks)
    if free < kept:
        return None
    return Claim(
        ID,
        calls.part(exposed),
        f"Parameters are gathered again for the backward, {calls.ms_per_step(exposed):.1f} ms a step, with memory to "
        "keep them",
        "Keep them from forward to backward: fully_shard(..., reshard_after_forward=False), at least for the last "
        "units. Bundled trainer: --reshard-after-forward no.",
        (
            Evidence("collectives", "all_gather in backward, exposed", calls.ms_per_step(exposed), "ms a step"),
            Evidence("collectives", "what they bring, to be kept", float(kept), "bytes"),
            Evidence("memory", f"free on the fullest rank below {NEAR_FULL:.0%}", float(free), "bytes"),
        ),
    )
