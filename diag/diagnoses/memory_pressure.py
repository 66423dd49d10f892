"""Device memory: peaks near the capacity, and retried allocations. Costs no time by itself."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from diag.diagnoses.policy import FINDINGS, MEMORY_USE
from diag.model.query import By, Query
from diag.model.states import Sharding
from diag.model.states import sharding_of as states_sharded
from diag.model.steps import Evidence, Finding, Severity
from diag.rundir.sharing import sharing_of
from diag.rundir.tables import Tables
from diag.tables.memory import rank_peaks
from diag.words import sentences

from .ids import ALLOCATOR_RETRIES, NEAR_OUT_OF_MEMORY
from .subject import Diagnosis, Subject, ranks_text
from .workload import allocator_setting, less_memory, workload


class Peak(Struct, frozen=True):
    """The most that one rank's allocator held, in bytes, and how often it had to try again. ``beside``: what those of
    other ranks held on the same device."""

    rank: int
    reserved: int
    capacity: int
    retries: int
    beside: int = 0

    @property
    def used(self) -> float:
        """The share of the device's memory that its ranks hold."""
        return (self.reserved + self.beside) / self.capacity

    @property
    def free(self) -> int:
        return self.capacity - self.reserved - self.beside


def peaks_of(tables: Tables) -> list[Peak]:
    """For the ranks whose device's memory capacity is known."""
    rows = [row for row in rank_peaks(tables).rows if row.capacity]
    peak = {row.rank: row.peak for row in rows}
    others = {
        rank: sum(peak.get(other, 0) for other in gpu.ranks if other != rank)
        for gpu in sharing_of(tables).shared
        for rank in gpu.ranks
    }
    return [Peak(row.rank, row.peak, row.capacity or 0, row.retries or 0, others.get(row.rank, 0)) for row in rows]


def peaks(subject: Subject) -> list[Peak]:
    return peaks_of(subject.tables)


def find(subject: Subject) -> list[Finding]:
    held = subject.once(peaks)
    retries = {peak.rank: peak.retries for peak in held}
    full = tuple(peak.rank for peak in held if peak.used >= MEMORY_USE.near_full_share)
    facts = subject.once(workload)
    retried = tuple(rank for rank, count in retries.items() if count > 0)
    findings = []
    if retried:
        findings.append(
            _finding(
                ALLOCATOR_RETRIES,
                sentences.ALLOCATIONS_WERE_RETRIED(ranks=ranks_text(retried)),
                Severity.CRITICAL,
                retried,
                tuple(
                    Evidence(
                        f"rank {r}, allocation retries",
                        float(retries[r]),
                        "times",
                        Query("memory", {"rank": r}, "retries", By.SUM),
                    )
                    for r in retried[: FINDINGS.ranks_as_evidence]
                ),
                f"Set {allocator_setting(facts)}, or use less memory ({less_memory(facts)}).",
            )
        )
    elif full:
        findings.append(
            _finding(
                NEAR_OUT_OF_MEMORY,
                sentences.MEMORY_IS_NEARLY_FULL(ranks=ranks_text(full), together=_together(held)),
                Severity.WARN,
                full,
                tuple(
                    Evidence(
                        f"rank {peak.rank}, peak reserved",
                        round(peak.reserved / peak.capacity, 4),
                        "share",
                        peak_of(peak.rank),
                    )
                    for peak in held
                    if peak.rank in full[: FINDINGS.ranks_as_evidence]
                ),
                sentences.LEAVE_HEADROOM(changes=", ".join(_changes(subject.tables, facts.training))),
            )
        )
    return findings


def _changes(tables: Tables, training: bool | None) -> list[str]:
    """What frees memory in any model, without what the run does already, or what its strategy does not have."""
    if training is False:
        return ["smaller batches"]
    manifest = tables.manifest
    trainer, strategy = (manifest.trainer, manifest.strategy) if manifest is not None else ({}, None)
    changes = ["smaller micro-batches"]
    if not trainer.get("activation_checkpointing"):
        changes.append("activation checkpointing")
    if states_sharded(strategy or "") in (None, Sharding.PARAMETERS) and trainer.get("reshard_after_forward") != "yes":
        changes.append("reshard after forward")
    return changes


def _together(held: Sequence[Peak]) -> str:
    """What makes a device full that none of its ranks fills."""
    shared = any(peak.used >= MEMORY_USE.near_full_share and peak.beside for peak in held)
    return ", which several ranks share" if shared else ""


def peak_of(rank: int) -> Query:
    """The peak of a rank, as a share of its device's memory."""
    return Query("memory", {"rank": rank}, "reserved", By.SUM, of="capacity")


def _finding(
    name: str, title: str, level: Severity, ranks: tuple[int, ...], evidence: tuple[Evidence, ...], action: str
) -> Finding:
    return Finding(name, title, level, 0.99, evidence, action, ranks)


def cannot_look(subject: Subject) -> str:
    return subject.once(_why_unknown)


def _why_unknown(subject: Subject) -> str:
    return "" if subject.once(peaks) else why_unknown(subject.tables)


def why_unknown(tables: Tables) -> str:
    """Why ``peaks_of`` is empty."""
    recorded = rank_peaks(tables)
    if recorded.rows and recorded.on_device:
        return "the capacity of the device was not recorded"
    return "no device memory was recorded"


DIAGNOSIS = Diagnosis(
    find,
    needs="device memory in the records.",
    means={
        ALLOCATOR_RETRIES: "The caching allocator had to free its cache and try again.",
        NEAR_OUT_OF_MEMORY: "Device memory is nearly full.",
    },
)
