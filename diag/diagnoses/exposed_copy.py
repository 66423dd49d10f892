"""Host-to-device copies that are not overlapped with computation."""

from __future__ import annotations

from diag.account.records import loader_settings
from diag.model.steps import Finding

from .shares import Cost
from .subject import MENTION, Diagnosis, Subject, mean_ns, no_device

_ACTIONS = {
    None: "Copy from pinned memory (pin_memory=True) with non_blocking=True, one batch ahead.",
    False: "Copy from pinned memory (DataLoader(..., pin_memory=True), which is off) with non_blocking=True, one batch "
    "ahead.",
    True: "The loader's batches are in pinned memory already: copy with non_blocking=True, one batch ahead, on a "
    "stream of its own.",
}


def find(subject: Subject) -> list[Finding]:
    if subject.shares.share(Cost.COPY) < MENTION:
        return []
    copied_ms = mean_ns(subject.shares.cost(Cost.COPY)) / 1e6
    pinned = loader_settings(subject.tables.manifest).pin_memory
    return [
        subject.costing(
            Cost.COPY,
            id="exposed-copy",
            title=f"The device waits for copies from the host: {copied_ms:.1f} ms a step",
            action=_ACTIONS[pinned],
            evidence=subject.per_rank("exposed_copy_ns"),
            title_ms=round(copied_ms, 1),
        )
    ]


DIAGNOSIS = Diagnosis(
    "exposed-copies",
    "exposed host-to-device copies",
    find,
    no_device,
    needs="a run on a GPU.",
    means={
        "exposed-copy": "Host-to-device copies are not overlapped with computation.",
    },
)
