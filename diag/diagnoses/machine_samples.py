"""What the machines say about a finding: counters that grew on the culprits' hosts, and not as fast on the others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest

from msgspec import Struct, field
from msgspec.structs import replace

from diag.collectors.records import split_machine_name
from diag.diagnoses.policy import MACHINES
from diag.model.query import Query
from diag.model.steps import Evidence, Finding

from .comm_cause import SLOW_LINK
from .memory_pressure import peaks_of
from .subject import Subject

# Names of ``diag.collectors.machine``. What counts no trouble is left out: bytes, rates, sizes.
_NETWORK = (
    r"rdma\..*\.(?!port_xmit_data|port_rcv_data|rate_mbit|active)\w+"
    r"|net\..*\.(\w+_(errors|dropped)|carrier_changes)|pcie\..*\.aer_\w+"
)
_HOST = r"pressure\.\w+\.some_us|cpu\.steal_ns|cgroup\.cpu\.throttled_us|(cgroup\.)?memory\.oom_kills"
_MEMORY = r"pressure\.memory\.some_us|(cgroup\.)?memory\.(oom_kills|at_limit)"
# By the id of a finding: the counters that may explain it.
_EXPLAINED_BY = {
    **dict.fromkeys((SLOW_LINK, "slow-network", "low-bus-bandwidth"), re.compile(_NETWORK)),
    **dict.fromkeys(("contended-host", "crowded-host", "stalled-rank", "stalled-ranks"), re.compile(_HOST)),
    **dict.fromkeys(("host-straggler", "compute-straggler", "straggler-cause-unknown"), re.compile(_HOST)),
    **dict.fromkeys(("straggler-rank-unknown", "compute-imbalance", "slow-data-rank-unknown"), re.compile(_HOST)),
    **dict.fromkeys(("slow-data-one-rank", "slow-data-all-ranks", "slow-data-bursty"), re.compile(_HOST)),
    **dict.fromkeys(("checkpoint-stall", "host-bound", "launch-bound", "host-stall"), re.compile(_HOST)),
    **dict.fromkeys(("exposed-communication", "communication-not-overlapped"), re.compile(_NETWORK)),
    "tensor-parallel-communication": re.compile(_NETWORK),
    **dict.fromkeys(("allocator-retries", "near-out-of-memory"), re.compile(_MEMORY)),
    **dict.fromkeys(("degraded-pcie", "exposed-copy"), re.compile(r"pcie\..*\.aer_\w+")),
    "degraded-gpu-links": re.compile(r"gpu\..*\.nvlink_\w+"),
}
# They are about the network and name no rank: what all hosts counted is evidence, too.
_OF_ALL_HOSTS = frozenset({"slow-network", "low-bus-bandwidth"})
_MEMORY_FINDINGS = ("allocator-retries", "near-out-of-memory")
_PER_SECOND = {"_us": 1e6, "_ns": 1e9}  # of a counter of time, by how its name ends
_MEMORY_USED = re.compile(r"gpu\..*\.memory_used")


class Machine(Struct):
    """What one host recorded: by the name of a value, how much it grew, over how many seconds, and its last value.
    ``ranks``: those that wrote it."""

    ranks: set[int] = field(default_factory=set)
    grew: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    last: dict[str, int] = field(default_factory=dict)


def cited(subject: Subject, finding: Finding) -> Finding:
    """The finding, with what the machines say about it as further evidence."""
    pattern = _EXPLAINED_BY.get(finding.id)
    found = subject.once(machines)
    if pattern is None or not found:
        return finding
    ranks = finding.ranks or tuple(subject.tables.ranks)
    hosts = list(dict.fromkeys(host for rank in ranks if (host := subject.host_of(rank)) is not None and host in found))
    if finding.ranks or len(hosts) < 2:
        evidence = [item for host in hosts for item in _grown(found, host, hosts, pattern)]
    else:  # of no rank in particular: a host that is unlike all others may be the reason
        evidence = [item for host in _unlike_others(found, pattern) for item in _grown(found, host, [host], pattern)]
        if not evidence and finding.id in _OF_ALL_HOSTS:
            evidence = [item for host in hosts for item in _grown(found, host, hosts, pattern)]
    if finding.id in _MEMORY_FINDINGS:
        evidence += [item for host in hosts for item in _held_by_others(subject, found[host], host)]
    return replace(finding, evidence=(*finding.evidence, *evidence)) if evidence else finding


def machines(subject: Subject) -> Mapping[str, Machine]:
    """By host. The rank that reads may change, so lines of all ranks of a host are put in the order of its clock."""
    lines: dict[str, list[tuple[int, int, dict[str, int | None]]]] = {}
    for rank, tables in subject.tables.ranks.items():
        if tables.host is not None and tables.machine:
            lines.setdefault(tables.host, []).extend((line.monotonic_ns, rank, line.values) for line in tables.machine)
    return {host: _machine(sorted(of_host, key=lambda line: line[:2])) for host, of_host in lines.items()}


def _machine(lines: Iterable[tuple[int, int, dict[str, int | None]]]) -> Machine:
    machine, first_ns, last_ns = Machine(), None, 0
    for at_ns, rank, values in lines:
        first_ns, last_ns = at_ns if first_ns is None else first_ns, at_ns
        machine.ranks.add(rank)
        for name, value in values.items():
            before = machine.last.pop(name, None)
            if value is None:
                continue
            machine.last[name] = value
            # A value that is lower was reset or misread.
            grew = max(0, value - before) if before is not None else 0
            machine.grew[name] = machine.grew.get(name, 0) + grew
    machine.seconds = max(0, last_ns - (first_ns or 0)) / 1e9
    return machine


def _grown(
    found: Mapping[str, Machine], host: str, culprits: Sequence[str], pattern: re.Pattern[str]
) -> list[Evidence]:
    """The counters of this host that grew, most unusual first: much faster than on every other host, or, where no
    other host is known, fast enough to matter."""
    machine = found[host]
    if machine.seconds < MACHINES.least_seconds:
        return []
    others = [other for name, other in found.items() if name not in culprits and other.seconds]
    grown = []
    for name, by in machine.grew.items():
        if by <= 0 or not pattern.fullmatch(name):
            continue
        rate = by / machine.seconds
        unit_a_second = _PER_SECOND.get(name[-3:])
        if unit_a_second is not None and rate < MACHINES.least_time_share * unit_a_second:
            continue
        # Without the same counter, another host tells nothing about it.
        rates = [_kin(other, name) for other in others]
        most = max((each for each in rates if each is not None), default=None)
        if most is not None and rate <= MACHINES.faster_than_others * most:
            continue
        grown.append((rate / most if most else float("inf"), name, by, most))
    grown.sort(key=lambda item: (-item[0], item[1]))
    return [_evidence(host, machine, name, by, most) for _, name, by, most in grown[: MACHINES.most_counters_cited]]


def _unlike_others(found: Mapping[str, Machine], pattern: re.Pattern[str]) -> list[str]:
    """The hosts on which a counter grew much faster than on every other host, the most unusual first."""
    rates: dict[str, dict[str, float]] = defaultdict(dict)
    for host, machine in found.items():
        for name, by in machine.grew.items():
            if machine.seconds and pattern.fullmatch(name):
                of_host = rates[split_machine_name(name)[1]]
                of_host[host] = max(of_host.get(host, 0.0), by / machine.seconds)
    unlike: dict[str, float] = {}
    for by_host in rates.values():
        first, second = nlargest(2, by_host, key=by_host.__getitem__) if len(by_host) > 1 else ("", "")
        if first and by_host[first] > MACHINES.faster_than_others * by_host[second]:
            times = by_host[first] / by_host[second] if by_host[second] else float("inf")
            unlike[first] = max(times, unlike.get(first, 0.0))
    return nlargest(MACHINES.most_hosts_cited, unlike, key=unlike.__getitem__)


def _kin(other: Machine, name: str) -> float | None:
    """How fast the same counter grew on another host, whatever the device is called there; None if it has none."""
    kind, counter = name.partition(".")[0], name.rpartition(".")[2]
    known = [by for its, by in other.grew.items() if _same(its, name, kind, counter)]
    return max(known) / other.seconds if known else None


def _same(its: str, name: str, kind: str, counter: str) -> bool:
    if kind in ("rdma", "net", "pcie", "gpu"):
        return its.startswith(f"{kind}.") and its.endswith(f".{counter}")
    return its == name


def _evidence(host: str, machine: Machine, name: str, by: int, most: float | None) -> Evidence:
    query = Query("samples", {"rank": sorted(machine.ranks), "source": "machine", "field": name})
    unit_a_second = _PER_SECOND.get(name[-3:])
    if unit_a_second is not None:
        others = "" if most is None else f" (the other hosts at most {most / unit_a_second:.1%})"
        value, unit, of_what = round(by / machine.seconds / unit_a_second, 4), "share", "share of the time"
    else:
        others = "" if most is None else f" (the other hosts at most {most * machine.seconds:,.0f})"
        value, unit, of_what = float(by), "", "in this run"
    return Evidence(f"host == {host}, {name} {of_what}{others}", value, unit, query)


def _held_by_others(subject: Subject, machine: Machine, host: str) -> list[Evidence]:
    """Memory in use on a host's GPUs that is not in the peaks of PyTorch's allocators; nothing where a GPU may have no
    rank."""
    used = {name: value for name, value in machine.last.items() if _MEMORY_USED.fullmatch(name)}
    peaks = [peak.reserved for peak in peaks_of(subject.tables) if subject.host_of(peak.rank) == host]
    if not used or len(used) != len(peaks):
        return []
    outside = sum(used.values()) - sum(peaks)
    if outside <= 0:
        return []
    query = Query("samples", {"rank": sorted(machine.ranks), "source": "machine", "field": sorted(used)})
    what = f"host == {host}, memory in use on its GPUs that PyTorch does not hold"
    return [Evidence(what, round(outside / 1e9, 3), "GB", query)]
