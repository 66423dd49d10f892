"""Parameters that are gathered again for the backward although there is memory to keep them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from diag.model.steps import Detail, Evidence
from diag.tables.phased import GATHERS, PhasedCall

from . import comm_parts
from .comm_parts import Claim, calls_of
from .memory_pressure import NEAR_FULL, peaks_of
from .subject import Subject

ID = "regather-in-backward"
QUESTION = "all-gathers in the backward"
_NEXT_NS = 50_000  # between the end of one collective and the start of the one that queued behind it

Queued = dict[tuple[int, int, int], int]  # rank, step, start: nanoseconds


def cannot_look(subject: Subject) -> str:
    if not peaks_of(subject.tables):
        return "no device memory was recorded"
    return comm_parts.cannot_look(subject)


def claim(subject: Subject) -> Claim | None:
    """The gathers of the backward, where every rank could keep what they bring below ``NEAR_FULL`` of its memory."""
    peaks = peaks_of(subject.tables)
    calls = subject.once(calls_of)
    again = _gathers(calls.rows)
    exposed = sum(call.exposed_ns for call in again)
    behind = sum(subject.once(queued_behind).values())
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
        calls.part(exposed + behind),
        f"Parameters are gathered again for the backward, {calls.ms_per_step(exposed + behind):.1f} ms a step, with "
        "memory to keep them",
        "Keep them from forward to backward: fully_shard(..., reshard_after_forward=False), at least for the last "
        "units. Bundled trainer: --reshard-after-forward no.",
        (
            Evidence("collectives", "all_gather in backward, exposed", calls.ms_per_step(exposed), "ms a step"),
            Evidence("collectives", "reductions that they queue behind", calls.ms_per_step(behind), "ms a step"),
            Evidence("collectives", "what they bring, to be kept", float(kept), "bytes"),
            Evidence("memory", f"free on the fullest rank below {NEAR_FULL:.0%}", float(free), "bytes"),
        ),
    )


def queued_behind(subject: Subject) -> Queued:
    """Reductions that stand in the way of a gather: the exposed part that the unit after it would hide.

    On one communicator a gather that is asked for late queues behind the reduction of the unit before, and the
    computation waits for both. Parameters that are kept need no gather: the computation goes on beside the reduction.
    """
    rows = [call for call in subject.once(calls_of).rows if call.phase == Detail.BACKWARD]
    again = {(c.rank, c.step, c.start_ns): c for c in _gathers(rows)}
    following = {
        (a.rank, a.step, a.start_ns): b
        for a, b in pairwise(again.values())
        if (a.rank, a.step, a.micro) == (b.rank, b.step, b.micro)
    }
    found: Queued = {}
    for before, call in pairwise(sorted(rows, key=lambda call: (call.rank, call.step, call.start_ns))):
        key = (call.rank, call.step, call.start_ns)
        if key not in again or before.op != "reduce_scatter" or (before.rank, before.step) != key[:2]:
            continue
        if call.exposed_ns and before.exposed_ns and call.start_ns - before.end_ns <= _NEXT_NS:
            after = following.get(key)
            hidden = before.exposed_ns if after is None else min(before.exposed_ns, after.room_ns)
            found[before.rank, before.step, before.start_ns] = hidden
    return found


def _gathers(rows: Sequence[PhasedCall]) -> list[PhasedCall]:
    """Those of the backward, in order."""
    own = [c for c in rows if c.op in GATHERS and c.phase == Detail.BACKWARD and c.of_data]
    return [c for c in own if c.bytes >= comm_parts.TELLING]
