"""All-gathers of the forward that are exposed, although the computation before them is long enough to overlap them."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from diag.diagnoses.policy import COMMUNICATION
from diag.model.query import By, Query
from diag.model.steps import Detail, Evidence
from diag.tables.passes import GATHERS, PhasedCalls
from diag.words import sentences

from .comm_cause import NEEDS_PARTS, Calls, Claim, calls_of, exposed_of, gathers_in
from .subject import Subject

ID = "missing-prefetch"
NEEDS = f"{NEEDS_PARTS}."
MEANS = "All-gathers are exposed that the unit ahead of them could overlap."
_PREFETCH = "trainer.prefetch"


def claim(subject: Subject) -> Claim | None:
    """The part of each gather that the computation since the previous gather could overlap. The first gather
    has none before it."""
    calls = subject.once(calls_of)
    gathers = _forward(calls)
    late = (gathers.bytes >= COMMUNICATION.tensors_from_bytes) & (gathers.place > 0)
    hideable = int(np.minimum(gathers.exposed_ns, gathers.room_ns)[late].sum())
    if not hideable:
        return None
    setting = _prefetch(subject)
    ms, gathered = calls.ms_per_step(hideable), exposed_of(gathers_in("forward"))
    return Claim(
        ID,
        calls.part(hideable),
        ms,
        f"All-gathers in the forward are not prefetched: computation could overlap {ms:.1f} ms of them {subject.per}",
        _action(subject, setting),
        (
            Evidence("all_gather in forward, exposed", _exposed_ms(subject), f"ms {subject.per}", gathered),
            Evidence(
                "all_gather in forward, could be overlapped",
                ms,
                f"ms {subject.per}",
                replace(gathered, by=By.ROWS),
            ),
            *(
                [Evidence("trainer.prefetch", float(setting), "units", Query("facts", {"key": _PREFETCH}))]
                if setting is not None
                else []
            ),
        ),
    )


def _forward(calls: Calls) -> PhasedCalls:
    rows = calls.rows
    return rows.take(rows.with_op(GATHERS) & rows.in_pass(Detail.FORWARD) & rows.of_data)


def _exposed_ms(subject: Subject) -> float:
    calls = subject.once(calls_of)
    return calls.ms_per_step(int(_forward(calls).exposed_ns.sum()))


def _prefetch(subject: Subject) -> int | None:
    manifest = subject.tables.manifest
    value = manifest.trainer.get("prefetch") if manifest is not None else None
    return value if isinstance(value, int) else None


def _action(subject: Subject, setting: int | None) -> str:
    manifest = subject.tables.manifest
    if manifest is not None and manifest.backend == "gloo":
        return sentences.WITH_OPTIONS(
            action="Prefetch the next unit while this one computes: set_modules_to_forward_prefetch([next]). On gloo "
            "this needs asynchronous unshard as well.",
            options="--prefetch 1",
        )
    deeper = f" {setting + 1} units ahead" if setting else ""
    return (
        f"Prefetch the next unit while this one computes{deeper}: set_modules_to_forward_prefetch([next]) (FSDP1: "
        "forward_prefetch=True); remove .item() and other synchronising calls from the forward."
    )
