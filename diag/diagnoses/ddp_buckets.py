"""DDP's last gradient bucket: no computation is left to overlap it, so it should be small."""

from __future__ import annotations

from diag.diagnoses.policy import COMMUNICATION, FINDINGS
from diag.model.steps import Evidence

from .comm_cause import (
    NEEDS_PARTS,
    Claim,
    calls_of,
    cause_of,
    is_replicated,
    last_reductions,
    reductions,
)
from .costs import Cost
from .needs import cannot_tell_parts
from .subject import Subject

ID = "ddp-buckets"
NEEDS = f"reductions that are recorded as buckets of a backward; {NEEDS_PARTS}."
MEANS = "The last DDP bucket holds most of the gradients, or there are too many small buckets."
_OP = "all_reduce"  # of a bucket


def cannot_look(subject: Subject) -> str:
    worth = subject.shares.share(Cost.COMM) >= FINDINGS.mention_share
    if worth and is_replicated(subject) and subject.once(cause_of).refinable and not last_reductions(subject, _OP):
        return "the reductions are not recorded as buckets of a backward"
    return cannot_tell_parts(subject)


def claim(subject: Subject) -> Claim | None:
    """The last bucket of the last backward, if it holds half of the gradients or more."""
    if not is_replicated(subject):
        return None
    calls = subject.once(calls_of)
    rows = list(last_reductions(subject, _OP))
    ends = {(call.rank, call.step): call.place for call in sorted(rows, key=lambda call: call.place)}
    final = [call for call in rows if call.place == ends[call.rank, call.step]]  # the all-reduce of a norm may follow
    if not final:
        return None
    size, whole = max(call.bytes for call in final), sum(call.bytes for call in rows) / len(final)
    if size < COMMUNICATION.bucket_worth_splitting_bytes or size < COMMUNICATION.last_bucket_share * whole:
        return None
    exposed = sum(call.exposed_ns for call in final)
    ms, buckets = calls.ms_per_step(exposed), reductions(op=_OP, micro_batch=rows[0].micro)
    return Claim(
        ID,
        calls.part(exposed),
        ms,
        f"DDP reduces {size / whole:.0%} of the gradients in its last bucket, after the backward: {ms:.1f} ms "
        f"{subject.per}",
        "Make the buckets smaller, so that most are reduced while the backward computes: bucket_cap_mb (25 by default) "
        "at about an eighth of the gradients; static_graph=True, find_unused_parameters=False.",
        (
            Evidence("buckets of a backward", round(len(rows) / len(final), 1), subject.per, buckets),
            Evidence("last bucket", float(size), "bytes", buckets),
            Evidence("last bucket, exposed", ms, f"ms {subject.per}", buckets),
        ),
    )
