"""A rank that computes longer than the others because its GPU runs slower: too hot, or short of power."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diag.collectors.records import DeviceRecord
from diag.model.steps import Evidence, Finding
from diag.rundir.run import RankTables

from .shares import Cost
from .subject import MENTION, Diagnosis, Subject, in_ms, mean_ns, ranks_not_comparable, ranks_text

# NVML's reasons as collectors.nvml names them. A power cap or sync boost is what a healthy GPU under load shows, too.
_REASONS = frozenset({"hardware slowdown", "software thermal", "hardware thermal", "power brake"})
_OFTEN = 0.3  # of a rank's samples
_SLOWER = 0.9  # of the other ranks' median clock


class Throttled(Struct, frozen=True):
    """``often``: fraction of the samples with a reason; median clocks in MHz, None where NVML does not report them."""

    rank: int
    reasons: tuple[str, ...]
    often: float
    clock: float | None
    others_clock: float | None


def find(subject: Subject) -> list[Finding]:
    throttled = subject.once(throttled_ranks)
    if not throttled:
        return []
    ranks = tuple(each.rank for each in throttled)
    why = ", ".join(sorted({reason for each in throttled for reason in each.reasons})) or "lower clocks"
    cost = mean_ns(subject.shares.cost(Cost.STRAGGLER))
    be = "is" if len(ranks) == 1 else "are"
    return [
        subject.costing(
            Cost.STRAGGLER,
            id="throttled-device",
            title=f"The GPU of {ranks_text(ranks)} {be} throttled ({why}): {in_ms(cost)} a step"
            f"{subject.who_waits(ranks)}",
            action=f"Drain {_hosts(subject, ranks)}, or remove the reason: cooling and dust, power supply, power limit "
            "(nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER).",
            evidence=[evidence for each in throttled for evidence in _evidence(each)],
            ranks=ranks,
        )
    ]


def cannot_look(subject: Subject) -> str:
    if not subject.shares.on_device:
        return "the run is on a CPU"
    reason = ranks_not_comparable(subject)
    if reason or any(_samples(subject, rank) for rank in subject.tables.ranks.values()):
        return reason
    reasons = (r.unavailable for rank in subject.tables.ranks.values() for r in rank.device if r.unavailable)
    return next(reasons, "no sample of the devices' clocks was recorded")


def throttled_ranks(subject: Subject) -> tuple[Throttled, ...]:
    """The late ranks, if the devices of all of them are slowed down and most of the others' are not."""
    if not subject.shares.on_device or subject.shares.share(Cost.STRAGGLER) < MENTION:
        return ()
    late = subject.shares.culprits(Cost.STRAGGLER).ranks
    samples = {rank: _samples(subject, tables) for rank, tables in subject.tables.ranks.items()}
    others = [of_rank for rank, of_rank in samples.items() if rank not in late and of_rank]
    if not late or not others or not all(samples.get(rank) for rank in late):
        return ()
    usual = float(np.median([_often(of_rank) for of_rank in others]))
    clocks = [clock for of_rank in others if (clock := _clock(of_rank)) is not None]
    usual_clock = float(np.median(clocks)) if clocks else None
    throttled = []
    for rank in late:
        of_rank = samples[rank]
        often, clock = _often(of_rank), _clock(of_rank)
        slow = clock is not None and usual_clock is not None and clock < _SLOWER * usual_clock
        if slow or (often >= _OFTEN and often > 2 * usual):
            reasons = tuple(sorted({reason for record in of_rank for reason in record.throttle_reasons} & _REASONS))
            throttled.append(Throttled(rank, reasons, often, clock, usual_clock))
    return tuple(throttled) if len(throttled) == len(late) else ()


def _samples(subject: Subject, tables: RankTables) -> list[DeviceRecord]:
    """Samples during the counted steps, on the rank's own clock; all of them where it recorded no step."""
    counted = frozenset(subject.shares.numbers)
    steps = [step for step in tables.steps if step.step in counted]
    available = [record for record in tables.device if record.unavailable is None]
    if not steps:
        return available
    begin, end = min(step.begin_ns for step in steps), max(step.end_ns for step in steps)
    return [record for record in available if begin <= record.monotonic_ns <= end] or available


def _often(samples: list[DeviceRecord]) -> float:
    return sum(bool(_REASONS & set(record.throttle_reasons)) for record in samples) / len(samples)


def _clock(samples: list[DeviceRecord]) -> float | None:
    clocks = [record.sm_clock_mhz for record in samples if record.sm_clock_mhz is not None]
    return float(np.median(clocks)) if clocks else None


def _evidence(each: Throttled) -> list[Evidence]:
    evidence = [Evidence("device", f"rank == {each.rank}, samples with a reason", round(each.often, 3), "share")]
    if each.clock is not None and each.others_clock is not None:
        evidence.append(Evidence("device", f"rank == {each.rank}, median SM clock", each.clock, "MHz"))
        evidence.append(Evidence("device", "the other ranks, median SM clock", each.others_clock, "MHz"))
    return evidence


def _hosts(subject: Subject, ranks: tuple[int, ...]) -> str:
    hosts = dict.fromkeys(host for rank in ranks if (host := subject.host_of(rank)))
    return ", ".join(hosts) or ranks_text(ranks)


DIAGNOSIS = Diagnosis("throttled-device", "throttled devices", find, cannot_look)
