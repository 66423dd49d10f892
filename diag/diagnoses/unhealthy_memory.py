"""Device memory with uncorrected errors, with a growing number of corrected ones, or with bad rows or pages whose
replacement by spare ones is pending or failed. Costs no time by itself, but the next error may end the job.

Counters since the driver was loaded prove nothing about this run, except uncorrected errors, of which there should be
none. For the others, only growth within the run counts, and what two readings in a row report.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from diag.diagnoses.policy import DEVICE_HEALTH, FINDINGS
from diag.model.steps import Evidence, Finding, Severity

from .device_samples import (
    Readings,
    also_late,
    growth_of,
    hosts_text,
    latest,
    not_recorded,
    plausible,
    readings,
    reads_amd,
    sampled,
)
from .ids import UNHEALTHY_MEMORY as ID
from .subject import Diagnosis, Subject, ranks_text

_CORRECTED = "growing corrected ECC errors"
_STATES = (
    ("remap_failed", "a failed row remapping", Severity.CRITICAL),
    ("remap_pending", "a pending row remapping", Severity.WARN),
    ("retire_pending", "a pending page retirement", Severity.WARN),
)
_REPLACED = (
    ("remapped_rows_uncorrected", "rows remapped for uncorrected errors"),
    ("remapped_rows_corrected", "rows remapped for corrected errors"),
    ("retired_pages", "retired pages"),
)


class Trouble(Struct, frozen=True):
    """One sign of one rank. ``number``: the quantity in its evidence."""

    rank: int
    sign: str
    number: str
    value: int
    unit: str
    severity: Severity = Severity.WARN


def find(subject: Subject) -> list[Finding]:
    troubles = [
        trouble
        for rank, samples in readings(subject).items()
        for look in (_errors, _states, _replaced)
        for trouble in look(rank, samples)
    ]
    if not troubles:
        return []
    ranks = tuple(dict.fromkeys(trouble.rank for trouble in troubles))
    signs = ", ".join(dict.fromkeys(trouble.sign for trouble in troubles))
    level = Severity.CRITICAL if any(t.severity == Severity.CRITICAL for t in troubles) else Severity.WARN
    return [
        Finding(
            id=ID,
            title=f"The GPU memory of {ranks_text(ranks)} is unhealthy: {signs}",
            severity=level,
            confidence=0.95,
            ranks=ranks,
            evidence=tuple(
                Evidence(
                    f"rank {t.rank}, {t.number}",
                    float(t.value),
                    t.unit,
                    sampled(t.rank),
                )
                for t in troubles
                if t.rank in ranks[: FINDINGS.ranks_as_evidence]
            ),
            action=_action(subject, ranks, troubles) + also_late(subject, ranks),
        )
    ]


def cannot_look(subject: Subject) -> str:
    recorded = any(
        record.ecc_uncorrected is not None or health.remap_pending is not None or health.retired_pages is not None
        for samples in readings(subject).values()
        for record, health in samples
    )
    return not_recorded(subject, recorded, "no errors of the devices' memory were recorded")


def _errors(rank: int, samples: Readings) -> Iterator[Trouble]:
    uncorrected = min(latest(plausible(record.ecc_uncorrected for record, _ in samples)), default=0)
    if uncorrected:
        number = "uncorrected ECC errors since the driver was loaded"
        yield Trouble(rank, "uncorrected ECC errors", number, uncorrected, "errors", Severity.CRITICAL)
    corrected = growth_of((record, record.ecc_corrected) for record, _ in samples)
    many = max(DEVICE_HEALTH.corrected_errors, DEVICE_HEALTH.corrected_errors_an_hour * corrected.seconds / 3600)
    if corrected.by >= many and corrected.rises >= DEVICE_HEALTH.rises_of_corrected_errors:
        yield Trouble(rank, _CORRECTED, "corrected ECC errors in this run", corrected.by, "errors")


def _states(rank: int, samples: Readings) -> Iterator[Trouble]:
    """Conditions that two readings in a row report, up to the last."""
    for field, sign, level in _STATES:
        known = [state for _, health in samples if (state := getattr(health, field)) is not None]
        if known and all(latest(known) or [False]):
            yield Trouble(rank, sign, sign, 1, "", level)


def _replaced(rank: int, samples: Readings) -> Iterator[Trouble]:
    """Rows that were replaced and pages that were retired during the run, and GPUs that can retire hardly any more."""
    for field, label in _REPLACED:
        counts = [(record, getattr(health, field)) for record, health in samples]
        end = latest(plausible(count for _, count in counts))
        grown = growth_of(counts)
        if grown.by and len(set(end)) == 1:  # two readings agree on it
            yield Trouble(rank, f"{label} during the run", f"{label} in this run", grown.by, "")
        elif (
            field == "retired_pages"
            and min(end, default=0) >= DEVICE_HEALTH.most_retired_pages
            and samples[-1][1].source == "NVML"
        ):
            yield Trouble(rank, "almost no pages left to retire", "retired pages", min(end), "pages")


def _action(subject: Subject, ranks: tuple[int, ...], troubles: list[Trouble]) -> str:
    hosts = hosts_text(subject, ranks)
    amd = reads_amd(subject, ranks)
    look = "amd-smi metric --ecc, amd-smi bad-pages" if amd else "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT"
    test = "" if amd else " Then run dcgmi diag -r 3."
    if all(trouble.sign == _CORRECTED for trouble in troubles):
        return f"The errors were corrected, so the results are right. Watch {hosts} ({look}) after the job.{test}"
    return (
        f"Drain {hosts} and reset the GPU, or reboot: that replaces bad rows and pages ({look}).{test} Replace a GPU "
        "whose errors come back or whose remapping failed."
    )


DIAGNOSIS = Diagnosis(
    find,
    needs="ECC and row remapping counters of the GPU (`device.jsonl`).",
    means={
        ID: (
            "A GPU has uncorrected ECC errors, a row remapping or page retirement that is pending or failed, or "
            "corrected errors that keep growing. It costs no time by itself."
        ),
    },
)
