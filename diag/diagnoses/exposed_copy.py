"""Copies between host and device that are not overlapped with computation."""

from __future__ import annotations

from diag.account.records import loader_settings
from diag.diagnoses.policy import DATA_LOADING
from diag.model.steps import FROM_HOST_DETAILS, TO_HOST_DETAILS, Detail, Finding, Kind

from .costs import Cost
from .subject import Diagnosis, Subject, mean_ns

_AHEAD = "with non_blocking=True, one batch ahead"
_PIN = f"Copy from pinned memory (pin_memory=True) {_AHEAD}."
_PINNED = f"The copies come from pinned memory already: make them {_AHEAD}, on a separate stream."
_RARELY = "Copy less often: .item(), .cpu() and print of a tensor make the device wait for the host. "
_TO_HOST = _RARELY + "What has to be copied, copy into pinned memory with non_blocking=True, and read it later."
_TO_PINNED = _RARELY + "The copies go to pinned memory already: make them with non_blocking=True on a separate stream."
_LOADER_UNPINNED = f"Copy from pinned memory (DataLoader(..., pin_memory=True), which is off) {_AHEAD}."
_LOADER_PINNED = f"The loader's batches are in pinned memory already: copy {_AHEAD}, on a separate stream."


def find(subject: Subject) -> list[Finding]:
    copied_ms = mean_ns(subject.shares.cost(Cost.COPY)) / 1e6
    direction, action = _explained(subject)
    return [
        subject.costing(
            Cost.COPY,
            id="exposed-copy",
            title=f"The device waits for copies {direction}: {copied_ms:.1f} ms {subject.per}",
            action=action,
            evidence=subject.per_rank("exposed_copy_ns"),
            title_ms=round(copied_ms, 1),
        )
    ]


def _explained(subject: Subject) -> tuple[str, str]:
    """Where most of the exposed copies go, and what to do about them. Records name only copies from the host."""
    counted = subject.attribution.steps.of_numbers(subject.shares.numbers)
    copied = counted.spent()[Kind.COPY].tolist()
    spent = {detail: copied[detail] for detail in (Detail.NONE, Detail.OTHER, *FROM_HOST_DETAILS, *TO_HOST_DETAILS)}
    total = sum(spent.values())
    inward = spent[Detail.NONE] + sum(spent[detail] for detail in FROM_HOST_DETAILS)
    outward = sum(spent[detail] for detail in TO_HOST_DETAILS)
    from_host = _from_host(subject, spent, inward)
    to_host = _TO_PINNED if _pinned(spent, TO_HOST_DETAILS, outward) else _TO_HOST
    if inward >= DATA_LOADING.one_kind_of_copy_share * total:
        return "from the host", from_host
    if outward >= DATA_LOADING.one_kind_of_copy_share * total:
        return "to the host", to_host
    if spent[Detail.OTHER] >= DATA_LOADING.one_kind_of_copy_share * total:
        return "between host and device", _PIN
    return "between host and device", f"From the host: {from_host} To the host: {to_host}"


def _from_host(subject: Subject, spent: dict[Detail, int], inward: int) -> str:
    pinned = _pinned(spent, FROM_HOST_DETAILS, inward)
    loader_pins = loader_settings(subject.tables.manifest).pin_memory
    if loader_pins is False and not pinned:
        return _LOADER_UNPINNED
    if loader_pins and pinned is None:
        return _LOADER_PINNED
    return _PINNED if pinned else _PIN


def _pinned(spent: dict[Detail, int], details: tuple[Detail, Detail, Detail], total: int) -> bool | None:
    """Whether the host's memory is pinned in most of these copies; None if that is unknown or mixed."""
    _, pinned, pageable = (spent[detail] for detail in details)
    if total and pinned >= DATA_LOADING.one_kind_of_copy_share * total:
        return True
    return False if total and pageable >= DATA_LOADING.one_kind_of_copy_share * total else None


DIAGNOSIS = Diagnosis(
    find,
    needs="a run on a GPU.",
    means={
        "exposed-copy": "Copies between host and device are not overlapped with computation.",
    },
)
