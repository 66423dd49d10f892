"""What the ranks' devices reported about themselves; shared by the diagnoses of devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from diag.collectors.records import DeviceHealth, DeviceRecord
from diag.diagnoses.policy import DEVICE_HEALTH, FINDINGS
from diag.model.query import Query
from diag.rundir.tables import RankTables

from .costs import Cost
from .subject import Subject, ranks_text

Readings = list[tuple[DeviceRecord, DeviceHealth]]


class Growth(Struct, frozen=True):
    """How much a counter grew during the run, in how many of the intervals between readings, within which time."""

    by: int
    rises: int
    seconds: float


def sampled(*ranks: int) -> Query:
    """The samples of the devices of these ranks."""
    return Query("samples", {"rank": list(ranks), "source": ["device", "device health"]})


def samples_of(tables: RankTables) -> list[DeviceRecord]:
    return [record for record in tables.device if record.unavailable is None]


def readings(subject: Subject) -> Mapping[int, Readings]:
    """By rank, the samples with a device's health; those that an older version recorded have ECC errors only."""
    return subject.once(_readings)


def _readings(subject: Subject) -> dict[int, Readings]:
    return {
        rank: [
            (record, record.health or DeviceHealth())
            for record in tables.device
            if record.health is not None or record.ecc_uncorrected is not None
        ]
        for rank, tables in subject.tables.ranks.items()
    }


def not_recorded(subject: Subject, recorded: bool, missing: str) -> str:
    """Why a diagnosis cannot look at the devices; "" where what it needs was recorded for any rank."""
    if recorded:
        return ""
    reasons = (r.unavailable for tables in subject.tables.ranks.values() for r in tables.device if r.unavailable)
    return next(reasons, missing)


def plausible(values: Iterable[int | None], least: int = 0, most: int | None = None) -> list[int]:
    """The values that were read and lie within the bounds; ``most``: by default what no counter reaches."""
    most = DEVICE_HEALTH.largest_counter if most is None else most
    return [value for value in values if value is not None and least <= value <= most]


def latest(values: Sequence[int], count: int = 2) -> Sequence[int]:
    """The last ``count`` readings; () where there are fewer. A single one proves nothing about a state. A run ends with
    two readings of the same moment, so a state that may be transient takes ``readings``."""
    return values[-count:] if len(values) >= count else ()


def growth_of(counts: Iterable[tuple[DeviceRecord, int | None]]) -> Growth:
    """Zero where a reading is lower than the one before: the counter was reset or misread."""
    known = [
        (r.monotonic_ns, count)
        for r, count in counts
        if count is not None and 0 <= count <= DEVICE_HEALTH.largest_counter
    ]
    values = [count for _, count in known]
    steps = [later - earlier for earlier, later in pairwise(values)]
    if not steps or min(steps) < 0:
        return Growth(0, 0, 0.0)
    seconds = max(0, known[-1][0] - known[0][0]) / 1e9
    return Growth(sum(steps), sum(step > 0 for step in steps), seconds)


def usual_of_others(subject: Subject, rank: int, values: Mapping[int, int]) -> int | None:
    """The value that more than half of the other ranks with the same device have; None without one."""
    model = _model(subject, rank)
    others = [value for peer, value in values.items() if peer != rank and _model(subject, peer) == model]
    value, count = Counter(others).most_common(1)[0] if others else (None, 0)
    return value if 2 * count > len(others) else None


def reads_amd(subject: Subject, ranks: tuple[int, ...]) -> bool:
    """Whether amdsmi read the devices of these ranks; advice then names its commands."""
    return any(health.source == "amdsmi" for rank in ranks for _, health in readings(subject)[rank])


def hosts_text(subject: Subject, ranks: tuple[int, ...]) -> str:
    hosts = list(dict.fromkeys(host for rank in ranks if (host := subject.host_of(rank))))
    more = f" and {len(hosts) - FINDINGS.ranks_as_evidence} more" if len(hosts) > FINDINGS.ranks_as_evidence else ""
    return ", ".join(hosts[: FINDINGS.ranks_as_evidence]) + more or ranks_text(ranks)


def also_late(subject: Subject, ranks: tuple[int, ...]) -> str:
    """A sentence if the other ranks wait for some of these; whether for this reason is not known."""
    shares = subject.shares
    late = {
        rank for cost in Cost if shares.share(cost) >= FINDINGS.mention_share for rank in shares.culprits(cost).ranks
    }
    both = tuple(rank for rank in ranks if rank in late)
    return f" The other ranks wait for {ranks_text(both)}: start there." if both else ""


def _model(subject: Subject, rank: int) -> str | None:
    identity = subject.tables.ranks[rank].identity
    return identity.device if identity is not None else None
