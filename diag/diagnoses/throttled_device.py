"""A rank that computes longer than the others because its GPU runs slower: too hot, short of power, or at lower clocks
without a reported reason.

A GPU that computes while the others wait draws more power than they do. If that takes it to a power limit that all of
them have, its clocks are lower because of its work, and the rank is late for another reason.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from diag.collectors.records import DeviceRecord
from diag.diagnoses.policy import DEVICE_HEALTH, FINDINGS
from diag.model.steps import Evidence, Finding
from diag.rundir.tables import RankTables
from diag.words import sentences

from .costs import Cost
from .device_samples import Readings, hosts_text, not_recorded, plausible, readings, reads_amd, sampled, samples_of
from .subject import Diagnosis, Subject, in_ms, mean_ns, ranks_not_comparable, ranks_text

# Reasons as the samplers of diag.collectors name them. A power cap or sync boost is what a healthy GPU under load
# shows, too.
_REASONS = frozenset(
    {"hardware slowdown", "software thermal", "hardware thermal", "power brake"}
    | {"socket thermal", "voltage regulator thermal", "memory thermal"}  # of AMD GPUs
)

_CLOCKS = (("sm_clock_mhz", "SM clock"), ("memory_clock_mhz", "memory clock"))
_CAP, _LIMIT = "power cap", "power limit"
_LOWER = frozenset({"SM clock", "memory clock", _LIMIT})  # a reason where they are lower than the others'


class Throttled(Struct, frozen=True):
    """``often``: fraction of the samples with a reason. ``lower``: which clocks are lower than the others', and whether
    the power limit is. ``measured``: medians as (quantity, the rank's, the other ranks', unit)."""

    rank: int
    reasons: tuple[str, ...]
    often: float
    lower: tuple[str, ...]
    measured: tuple[tuple[str, float, float, str], ...]


def find(subject: Subject) -> list[Finding]:
    throttled = subject.once(throttled_ranks)
    if not throttled:
        return []
    ranks = tuple(each.rank for each in throttled)
    others = [rank for rank, tables in subject.tables.ranks.items() if rank not in ranks and tables.device]
    cost = mean_ns(subject.charged(Cost.STRAGGLER, ranks))
    return [
        subject.costing(
            Cost.STRAGGLER,
            id="throttled-device",
            title=sentences.DEVICES_ARE_THROTTLED(
                len(ranks),
                ranks=ranks_text(ranks),
                why=_why(throttled),
                cost=f"{in_ms(cost)} {subject.per}",
                others_wait=subject.waiting_ranks_text(ranks),
            ),
            action=f"Drain {hosts_text(subject, ranks)}, or remove the reason: cooling and dust, power supply, power "
            f"limit ({_look(subject, ranks)}).",
            evidence=[evidence for each in throttled for evidence in _evidence(each, others)],
            ranks=ranks,
        )
    ]


def cannot_look(subject: Subject) -> str:
    sampled = any(samples_of(tables) for tables in subject.tables.ranks.values())
    missing = "no sample of the devices' clocks was recorded"
    return ranks_not_comparable(subject) or not_recorded(subject, sampled, missing)


def throttled_ranks(subject: Subject) -> tuple[Throttled, ...]:
    """The late ranks, if the devices of all of them are slowed down and most of the others' are not."""
    if not subject.shares.on_device or subject.shares.share(Cost.STRAGGLER) < FINDINGS.mention_share:
        return ()
    late = subject.shares.culprits(Cost.STRAGGLER).ranks
    samples = {rank: _samples(subject, tables) for rank, tables in subject.tables.ranks.items()}
    others = [rank for rank, rank_samples in samples.items() if rank not in late and rank_samples]
    if not late or not others or not all(samples.get(rank) for rank in late):
        return ()
    usual = float(np.median([_often(samples[rank]) for rank in others]))
    medians = {rank: _medians(samples[rank], readings(subject)[rank]) for rank in (*late, *others)}
    throttled = []
    for rank in late:
        measured = tuple(
            (quantity, value, float(np.median(known)), unit)
            for quantity, (value, unit) in medians[rank].items()
            if (known := [medians[peer][quantity][0] for peer in others if quantity in medians[peer]])
        )
        lower = tuple(
            quantity
            for quantity, value, peer_median, _ in measured
            if quantity in _LOWER and value < DEVICE_HEALTH.slower_clock * peer_median
        )
        often, reported = _often(samples[rank]), _reported(samples[rank])
        slow = any(quantity != _LIMIT for quantity in lower) and not _works_more(reported, lower, measured)
        if slow or (often >= DEVICE_HEALTH.throttled_samples_share and often > 2 * usual):
            reasons = tuple(sorted(reported & (_REASONS | {_CAP} if slow else _REASONS)))
            throttled.append(Throttled(rank, reasons, often, lower, measured))
    return tuple(throttled) if len(throttled) == len(late) else ()


def _works_more(
    reported: set[str], lower: tuple[str, ...], measured: tuple[tuple[str, float, float, str], ...]
) -> bool:
    more = any(
        quantity == "power" and value > DEVICE_HEALTH.more_power * peer_median
        for quantity, value, peer_median, _ in measured
    )
    return more and _CAP in reported and _LIMIT not in lower


def _samples(subject: Subject, tables: RankTables) -> list[DeviceRecord]:
    """Samples during the counted steps, on the rank's own clock. All samples where the rank recorded no step or too few
    samples fall into its steps; [] where there are too few in all."""
    samples = samples_of(tables)
    if samples and (steps := tables.steps.of_numbers(subject.shares.numbers)):
        begin, end = int(steps.begin_ns.min()), int(steps.end_ns.max())
        inside = [record for record in samples if begin <= record.monotonic_ns <= end]
        samples = inside if len(inside) >= DEVICE_HEALTH.least_throttled_samples else samples
    return samples if len(samples) >= DEVICE_HEALTH.least_throttled_samples else []


def _often(samples: list[DeviceRecord]) -> float:
    return sum(bool(_REASONS & set(record.throttle_reasons)) for record in samples) / len(samples)


def _reported(samples: list[DeviceRecord]) -> set[str]:
    """Every reason of a sample; a power cap only if many have it: any GPU under load reaches it for a moment."""
    reported = {reason for record in samples for reason in record.throttle_reasons}
    capped = sum(_CAP in record.throttle_reasons for record in samples)
    return reported if capped >= DEVICE_HEALTH.throttled_samples_share * len(samples) else reported - {_CAP}


def _medians(samples: list[DeviceRecord], health_readings: Readings) -> dict[str, tuple[float, str]]:
    """The median and the unit of each quantity; those that the device does not report are left out."""
    known = {}
    for field, quantity in _CLOCKS:
        known[quantity] = (plausible(getattr(record, field) for record in samples), 1, "MHz")
    known["power"] = (plausible(record.power_mw for record in samples), 1000, "W")
    known[_LIMIT] = (plausible(health.power_limit_mw for _, health in health_readings), 1000, "W")
    known["temperature"] = (plausible(record.temperature_c for record in samples), 1, "°C")
    return {
        quantity: (float(np.median(values)) / per, unit) for quantity, (values, per, unit) in known.items() if values
    }


def _why(throttled: tuple[Throttled, ...]) -> str:
    reasons = sorted({reason for each in throttled for reason in each.reasons}) or ["lower clocks"]
    if any(_LIMIT in each.lower for each in throttled):
        reasons.append("lower power limit")
    return ", ".join(reasons)


def _look(subject: Subject, ranks: tuple[int, ...]) -> str:
    if reads_amd(subject, ranks):
        return "amd-smi metric --clock --power --temperature"
    return "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"


def _evidence(each: Throttled, others: Sequence[int]) -> list[Evidence]:
    evidence, rows, of_others = [], sampled(each.rank), sampled(*others)
    if each.often:
        evidence.append(Evidence(f"rank {each.rank}, samples with a reason", round(each.often, 3), "share", rows))
    for quantity, value, peer_median, unit in each.measured:
        evidence.append(Evidence(f"rank {each.rank}, median {quantity}", value, unit, rows))
        evidence.append(Evidence(f"the other ranks, median {quantity}", peer_median, unit, of_others))
    return evidence


DIAGNOSIS = Diagnosis(
    find,
    needs="samples of the GPU (`device.jsonl`) on two ranks or more.",
    means={
        "throttled-device": (
            "The late rank's GPU is throttled or clocked lower, with or without a reported reason. Clocks, power, "
            "power limit and temperature are compared with those of the other ranks."
        ),
    },
)
