"""ZeRO-1 and ZeRO-2: gradient reductions that are not overlapped with the backward, although nothing needs them
earlier."""

from __future__ import annotations

from diag.diagnoses.policy import COMMUNICATION
from diag.model.steps import Evidence
from diag.tables.passes import PhasedCall

from .comm_cause import (
    NEEDS_PARTS,
    Claim,
    calls_of,
    last_reductions,
    reductions,
    shards_optimizer_only,
)
from .subject import Subject

ID = "zero-buckets"
NEEDS = f"ZeRO 1 or 2; {NEEDS_PARTS}."
MEANS = (
    "ZeRO 1 or 2: reductions are not overlapped with the backward (`overlap_comm`), or their buckets are too large or "
    "too many."
)


def claim(subject: Subject) -> Claim | None:
    """The buckets of the last backward except the last one; with it, if most of the gradients are in it."""
    if not subject.once(shards_optimizer_only):
        return None
    calls = subject.once(calls_of)
    rows = list(last_reductions(subject))
    whole = sum(call.bytes for call in rows)
    final = [call for call in rows if call.place == call.places - 1]
    one_bucket = sum(call.bytes for call in final) >= COMMUNICATION.last_zero_bucket_share * whole
    charged = rows if one_bucket else [call for call in rows if call.place < call.places - 1]
    exposed = sum(call.exposed_ns for call in charged)
    if not exposed:
        return None
    buckets, reduced = len(rows) / max(1, calls.rank_steps), reductions(micro_batch=rows[0].micro)
    if one_bucket:
        why, action = "most gradients are in the last bucket", 'Make the buckets smaller: "reduce_bucket_size".'
    elif _hidden(rows) < COMMUNICATION.hardly_overlapped_reductions_share:
        why = "no computation overlaps with them"
        action = '"overlap_comm": true (off by default in stages 1 and 2), which keeps more buckets in memory.'
    else:
        why = "the backward overlaps only a part of them"
        action = '"reduce_bucket_size" so that a bucket takes less than the backward of its layers; bf16 gradients.'
    ms = calls.ms_per_step(exposed)
    return Claim(
        ID,
        calls.part(exposed),
        ms,
        f"ZeRO's reductions cost {ms:.1f} ms {subject.per}: {why}",
        f"DeepSpeed, zero_optimization: {action}",
        (
            Evidence("buckets of a backward", round(buckets, 1), subject.per, reduced),
            Evidence("reductions in backward, exposed", ms, f"ms {subject.per}", reduced),
            Evidence("exposed share of their transfers", round(1 - _hidden(rows), 4), "share", reduced),
        ),
    )


def _hidden(rows: list[PhasedCall]) -> float:
    moved = sum(call.transfer_ns for call in rows)
    return 1 - sum(call.exposed_ns for call in rows) / moved if moved else 0.0
