"""Low MFU, where nothing else explains it."""

from __future__ import annotations

import numpy as np

from diag.diagnoses.policy import COMPUTE, FINDINGS
from diag.model.breakdown import Measure, peak_of
from diag.model.query import Query
from diag.model.steps import Evidence, Finding, Kind, Severity
from diag.rundir.sharing import sharing_of
from diag.rundir.tables import Tables
from diag.tables.efficiency import device_of, efficiency

from .costs import Cost
from .ids import LOW_MFU as ID
from .shares import Shares
from .subject import Diagnosis, Subject
from .workload import Workload, larger_batches, workload


def find(subject: Subject) -> list[Finding]:
    """A finding only if all removable costs are below a tenth of the step: else those keep the utilisation low."""
    mfu = subject.once(_mfu)
    if (
        mfu.value is None
        or mfu.value >= COMPUTE.low_mfu
        or sum(subject.shares.share(cost) for cost in Cost) >= FINDINGS.warning_share
    ):
        return []
    steps = subject.attribution.counted
    computing = float(steps.spent()[Kind.COMPUTE].sum()) / max(1, int(steps.dur_ns.sum()))
    share = (1 - mfu.value / COMPUTE.reference_mfu) * computing
    if share < FINDINGS.warning_share:
        return []
    return [
        Finding(
            id=ID,
            title=f"MFU is {mfu.value:.0%} of the device's peak; {COMPUTE.reference_mfu:.0%} is usual",
            severity=Severity.WARN,
            share=share,
            cost_ns_per_step=int(share * float(subject.shares.dur_ns.mean())),
            confidence=COMPUTE.confidence_of_low_mfu,
            evidence=(Evidence(f"MFU: {mfu.basis}", round(mfu.value, 4), "share", Query("steps", subject.counted)),),
            action=_action(subject.once(workload)),
        )
    ]


def _action(facts: Workload) -> str:
    compiling = [] if facts.compiled else ["torch.compile"]
    types = "BF16 (TF32 at least: set_float32_matmul_precision('high'))"
    changes = [*compiling, types, "fused attention", larger_batches(facts), "sizes in multiples of 64"]
    return f"{', '.join(changes)}; see which kernels take the time."


def cannot_look(subject: Subject) -> str:
    return subject.once(_mfu).reason


def mfu_of(tables: Tables, shares: Shares) -> Measure:
    """Model FLOPs utilisation of the steps that count, from the manifest and the step records alone."""
    device = device_of(tables)
    records = tables.sums if tables.sums is not None else [rank.steps for rank in tables.ranks.values()]
    step_ns = float(np.mean(shares.dur_ns)) if len(shares.dur_ns) else 0.0
    gpus = sharing_of(tables).count(tables.world_size)
    return efficiency(
        (), tables.manifest, records, step_ns, tables.world_size, peak_of(device), device, shares.on_device, gpus
    ).mfu


def _mfu(subject: Subject) -> Measure:
    return mfu_of(subject.tables, subject.shares)


DIAGNOSIS = Diagnosis(
    find,
    needs="a known model and GPU, and no larger cost.",
    means={
        ID: "Nothing can be removed, and yet the MFU is below 30 %.",
    },
)
