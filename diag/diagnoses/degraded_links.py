"""A GPU whose PCIe link is narrower or slower than its maximum or than the other GPUs' links, or a GPU with fewer
NVLinks than the others (XGMI links of an AMD GPU) or with growing errors on them. These findings have no cost of their
own: copies and collectives are slower, and their findings carry that time.

An idle GPU lowers the generation of its PCIe link to save power, so only samples under load count. Counters since the
driver was loaded prove nothing; only growth within the run, seen in several readings, does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil

from msgspec import Struct

from diag.collectors.records import DeviceHealth
from diag.diagnoses.policy import DEVICE_HEALTH, FINDINGS
from diag.model.steps import Evidence, Finding, Severity
from diag.words import sentences

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
    usual_of_others,
)
from .subject import Diagnosis, Subject, ranks_text

_LINK_ERRORS_A_SECOND: Mapping[str, float] = {"recovery": 0.0, "replay": 0.0, "crc": 100.0}


class Sign(Struct, frozen=True):
    """What is wrong with one rank's link, in words, with the numbers as (quantity, value, unit). ``below_own``: it
    is below its own maximum, not only below the others."""

    rank: int
    words: str
    numbers: tuple[tuple[str, float, str], ...]
    below_own: bool = False


def find(subject: Subject) -> list[Finding]:
    return [*_pcie(subject), *_gpu_links(subject)]


def cannot_look(subject: Subject) -> str:
    recorded = any(
        health.pcie_width is not None or health.active_links is not None
        for samples in readings(subject).values()
        for _, health in samples
    )
    return not_recorded(subject, recorded, "no state of the devices' links was recorded")


def _finding(subject: Subject, name: str, title: str, signs: Sequence[Sign], action: str) -> Finding:
    ranks = _ranks(signs)
    return Finding(
        id=name,
        title=title,
        severity=Severity.WARN,
        confidence=0.9,
        ranks=ranks,
        evidence=_evidence(signs),
        action=action + also_late(subject, ranks),
    )


def _evidence(signs: Sequence[Sign]) -> tuple[Evidence, ...]:
    shown = _ranks(signs)[: FINDINGS.ranks_as_evidence]
    return tuple(
        Evidence(f"rank {sign.rank}, {quantity}", value, unit, sampled(sign.rank))
        for sign in signs
        if sign.rank in shown
        for quantity, value, unit in sign.numbers
    )


def _ranks(signs: Sequence[Sign]) -> tuple[int, ...]:
    return tuple(sorted({sign.rank for sign in signs}))


def _words(signs: Sequence[Sign]) -> str:
    return ", ".join(dict.fromkeys(sign.words for sign in signs))


def _pcie(subject: Subject) -> list[Finding]:
    slower, findings = _slower(subject), []
    if _all_alike(subject, slower):
        findings, slower = [_everywhere(subject, slower)], []
    signs = [*slower, *_replays(subject)]
    if signs:
        ranks = _ranks(signs)
        action = (
            f"Drain {hosts_text(subject, ranks)}, reseat the GPU, its riser or its cable, and compare with the other "
            f"hosts under load ({_look(subject, ranks)}); errors of PCIe (AER) are in the kernel's log (dmesg)."
        )
        title = sentences.PCIE_IS_DEGRADED(len(ranks), ranks=ranks_text(ranks), signs=_words(signs))
        findings.append(_finding(subject, "degraded-pcie", title, signs, action))
    return findings


def _everywhere(subject: Subject, signs: Sequence[Sign]) -> Finding:
    """The same on all ranks: more likely how the hosts are built than a fault."""
    ranks = _ranks(signs)
    return Finding(
        id="degraded-pcie",
        title=sentences.PCIE_IS_BELOW_MAXIMUM(len(ranks), ranks=ranks_text(ranks), signs=_words(signs)),
        severity=Severity.HEALTHY,
        confidence=0.9,
        evidence=_evidence(signs),
        action="The slots may have no more lanes. Otherwise check risers and the BIOS (bifurcation, link speed) "
        f"({_look(subject, ranks)}).",
    )


def _look(subject: Subject, ranks: tuple[int, ...]) -> str:
    if reads_amd(subject, ranks):
        return "amd-smi metric --pcie"
    names = ("gen.current", "gen.max", "width.current", "width.max")
    return f"nvidia-smi --query-gpu={','.join(f'pcie.link.{name}' for name in names)} --format=csv"


def _slower(subject: Subject) -> list[Sign]:
    by_rank = readings(subject)
    widths = {rank: width for rank, samples in by_rank.items() if (width := _width(samples))}
    generations = {rank: number for rank, samples in by_rank.items() if (number := _generation(samples))}
    signs = []
    for rank, width in widths.items():
        most = max(
            plausible((h.pcie_max_width for _, h in by_rank[rank]), 1, DEVICE_HEALTH.largest_lanes), default=width
        )
        usual = usual_of_others(subject, rank, widths)
        if width < max(most, usual or 0):
            words = f"x{width} of x{most}" if width < most else f"x{width}, on the other ranks x{usual}"
            numbers = (("PCIe lanes", width, "lanes"), ("PCIe lanes at most", max(most, usual or 0), "lanes"))
            signs.append(Sign(rank, words, numbers, width < most))
    for rank, number in generations.items():
        most = max(
            plausible((h.pcie_max_generation for _, h in by_rank[rank]), 1, DEVICE_HEALTH.largest_generation),
            default=number,
        )
        usual = usual_of_others(subject, rank, generations)
        if number < max(most, usual or 0):
            limit = f" of {most} under load" if number < most else f" under load, on the other ranks {usual}"
            numbers = (
                ("PCIe generation under load", number, ""),
                ("PCIe generation at most", max(most, usual or 0), ""),
            )
            signs.append(Sign(rank, f"generation {number}{limit}", numbers, number < most))
    return signs


def _width(samples: Readings) -> int | None:
    """The widest of the last readings, whatever the load: NVIDIA's GPUs keep the width when they are idle."""
    return max(
        latest(
            plausible((health.pcie_width for _, health in samples), 1, DEVICE_HEALTH.largest_lanes),
            DEVICE_HEALTH.readings,
        ),
        default=None,
    )


def _generation(samples: Readings) -> int | None:
    """The generation that neither most of the readings under load nor the last two of them exceed."""
    loaded = [health for record, health in samples if (record.utilization_percent or 0) >= DEVICE_HEALTH.loaded_percent]
    known = plausible((health.pcie_generation for health in loaded), 1, DEVICE_HEALTH.largest_generation)
    if len(known) < DEVICE_HEALTH.readings:
        return None
    return max(sorted(known)[ceil(DEVICE_HEALTH.lower_generation_share * len(known)) - 1], *latest(known))


def _all_alike(subject: Subject, signs: Sequence[Sign]) -> bool:
    by_rank: dict[int, list[str]] = {rank: [] for rank, samples in readings(subject).items() if _width(samples)}
    for sign in signs:
        by_rank.setdefault(sign.rank, []).append(sign.words)
    return (
        bool(signs) and all(sign.below_own for sign in signs) and len({tuple(words) for words in by_rank.values()}) == 1
    )


def _replays(subject: Subject) -> Iterator[Sign]:
    for rank, samples in readings(subject).items():
        growth = growth_of((record, health.pcie_replays) for record, health in samples)
        if growth.rises >= DEVICE_HEALTH.rises and growth.by > DEVICE_HEALTH.replays_a_second * growth.seconds:
            yield Sign(rank, "growing replays", (("PCIe replays in this run", growth.by, "replays"),))


def _gpu_links(subject: Subject) -> list[Finding]:
    signs = [*_fewer(subject), *_link_errors(subject)]
    if not signs:
        return []
    ranks = _ranks(signs)
    hosts = hosts_text(subject, ranks)
    if reads_amd(subject, ranks):
        degraded, action = (
            sentences.XGMI_IS_DEGRADED,
            f"Drain {hosts}, look at amd-smi xgmi there, and reset the GPUs, or reboot.",
        )
    else:
        degraded = sentences.NVLINK_IS_DEGRADED
        action = (
            f"Drain {hosts} and look at nvidia-smi nvlink -s and nvidia-smi nvlink -e there; reset the GPUs, and the "
            "fabric manager of a host with NVSwitch, or reboot; then run dcgmi diag -r 3."
        )
    title = degraded(ranks=ranks_text(ranks), signs=_words(signs))
    return [_finding(subject, "degraded-gpu-links", title, signs, action)]


def _fewer(subject: Subject) -> Iterator[Sign]:
    """Ranks with fewer active links than most others with the same GPU. Two GPUs without a bridge between them have
    no links, which is no fault."""
    active: dict[int, int] = {}
    for rank, samples in readings(subject).items():
        last = latest(
            plausible((health.active_links for _, health in samples), 0, DEVICE_HEALTH.largest_links),
            DEVICE_HEALTH.readings,
        )
        if last:
            active[rank] = max(last)
    bridged = sum(count > 0 for count in active.values())
    for rank, count in active.items():
        usual = usual_of_others(subject, rank, active)
        if usual is None or count >= usual:
            continue
        if count == 0 and (bridged < DEVICE_HEALTH.other_ranks_with_links or bridged < len(active) - 1):
            continue
        numbers = (("active links", count, "links"), ("active links of the other ranks", usual, "links"))
        yield Sign(rank, f"{count} of {usual} active", numbers)


def _link_errors(subject: Subject) -> Iterator[Sign]:
    for rank, samples in readings(subject).items():
        for counter, a_second in _LINK_ERRORS_A_SECOND.items():
            numbers = []
            for link in _may_have_grown(samples, counter):
                growth = growth_of((record, _of_link(health, counter, link)) for record, health in samples)
                if growth.rises >= DEVICE_HEALTH.rises and growth.by > a_second * growth.seconds:
                    numbers.append((f"{counter} errors of link {link} in this run", growth.by, "errors"))
            if numbers:
                yield Sign(rank, f"growing {counter} errors", tuple(numbers))


def _may_have_grown(samples: Readings, counter: str) -> list[int]:
    """Links whose counter is not the same at the end as at the start: a long run has many readings of many links."""
    if not samples:
        return []
    links = range(min(DEVICE_HEALTH.largest_links, len(samples[-1][1].link_errors.get(counter, ()))))
    return [
        link for link in links if len({_of_link(health, counter, link) for _, health in (samples[0], samples[-1])}) > 1
    ]


def _of_link(health: DeviceHealth, counter: str, link: int) -> int | None:
    counts = health.link_errors.get(counter, [])
    return counts[link] if link < len(counts) else None


DIAGNOSIS = Diagnosis(
    find,
    needs="the state of PCIe and NVLink or XGMI links (`device.jsonl`).",
    means={
        "degraded-pcie": (
            "A GPU's PCIe link is narrower, or under load of a lower generation, than it could be or than those of "
            "the other ranks, or its replays grow. Where all ranks are alike, no rank is named. It costs no time by "
            "itself."
        ),
        "degraded-gpu-links": (
            "A GPU has fewer active NVLinks (AMD: XGMI links) than the other ranks, or replay, recovery or CRC errors "
            "of a link grow during the run. It costs no time by itself."
        ),
    },
)
