"""What the machines say about a finding: counters that grew on the culprits' hosts, and not as fast on the others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import nlargest

from msgspec.structs import replace

from diag.diagnoses.policy import FINDINGS, MACHINES
from diag.model.query import Query
from diag.model.steps import Evidence, Finding
from diag.rundir.machines import Machine, Machines, Rates, counter_of, machines_of
from diag.rundir.sharing import sharing_by

from .comm_cause import SLOW_LINK
from .memory_pressure import peaks as peaks_of_run
from .subject import Subject

# Counters of ``diag.collectors.machine`` without their device. What counts no trouble is left out: bytes, rates, sizes.
_NETWORK = (
    r"rdma\.(?!port_xmit_data|port_rcv_data|rate_mbit|active)\w+"
    r"|net\.(\w+_(errors|dropped)|carrier_changes)|pcie\.aer_\w+"
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
    **dict.fromkeys(("degraded-pcie", "exposed-copy"), re.compile(r"pcie\.aer_\w+")),
    "degraded-gpu-links": re.compile(r"gpu\.nvlink_\w+"),
}
# They are about the network and name no rank: what all hosts counted is evidence, too.
_OF_ALL_HOSTS = frozenset({"slow-network", "low-bus-bandwidth"})
_MEMORY_FINDINGS = ("allocator-retries", "near-out-of-memory")
_PER_SECOND = {"_us": 1e6, "_ns": 1e9}  # of a counter of time, by how its name ends
_MEMORY_USED = re.compile(r"gpu\..*\.memory_used")


def cited(subject: Subject, finding: Finding) -> Finding:
    """The finding, with what the machines say about it as further evidence."""
    pattern = _EXPLAINED_BY.get(finding.id)
    if pattern is None:
        return finding
    found = subject.once(machines)
    ranks = finding.ranks or tuple(subject.tables.ranks)
    of_ranks = dict.fromkeys(host for rank in ranks if (host := subject.host_of(rank)) is not None)
    hosts = list(of_ranks)
    if finding.ranks:
        told = hosts[: FINDINGS.ranks_as_evidence]
        evidence = [item for host in told for item in _grown(found, host, hosts, pattern)]
    else:
        rates = found.rates()
        hosts = [host for host in hosts if host in rates]
        told = hosts[: MACHINES.most_hosts_cited]
        # Of no rank in particular: a host that is unlike all others may be the reason.
        unlike = _unlike_others(rates, pattern) if len(hosts) > 1 else []
        evidence = [item for host in unlike for item in _grown(found, host, [host], pattern)]
        if len(hosts) < 2 or (not evidence and finding.id in _OF_ALL_HOSTS):
            evidence = [item for host in told for item in _grown(found, host, hosts, pattern)]
    if finding.id in _MEMORY_FINDINGS:
        evidence += [item for host in told for item in _held_by_others(subject, found.of(host), host)]
    return replace(finding, evidence=(*finding.evidence, *evidence)) if evidence else finding


def machines(subject: Subject) -> Machines:
    return subject.machines() if subject.machines is not None else machines_of(subject.tables)


def _grown(found: Machines, host: str, culprits: Sequence[str], pattern: re.Pattern[str]) -> list[Evidence]:
    """The counters of this host that grew, most unusual first: much faster than on every other host, or, where no
    other host is known, fast enough to matter."""
    machine = found.of(host)
    if machine.seconds < MACHINES.least_seconds:
        return []
    rates = {
        name: by / machine.seconds for name, by in machine.grew.items() if by and pattern.fullmatch(counter_of(name))
    }
    rates = {name: rate for name, rate in rates.items() if _matters(name, rate)}
    if not rates:
        return []
    # Whatever the device is called there. Without the same counter, another host tells nothing about it.
    others, who = found.others(culprits)
    grown = []
    for name, rate in rates.items():
        counter = counter_of(name)
        most = max((of_host[counter] for of_host in others if counter in of_host), default=None)
        if most is None or rate > MACHINES.faster_than_others * most:
            grown.append((rate / most if most else float("inf"), name, most))
    grown.sort(key=lambda item: (-item[0], item[1]))
    shown = grown[: MACHINES.most_counters_cited]
    return [_evidence(host, machine, name, most, (who, found.when)) for _, name, most in shown]


def _matters(name: str, rate: float) -> bool:
    """Whether a counter of time, if it is one, grew by a part of the time that may explain something."""
    unit_a_second = _PER_SECOND.get(name[-3:])
    return unit_a_second is None or rate >= MACHINES.least_time_share * unit_a_second


def _unlike_others(found: Mapping[str, Rates], pattern: re.Pattern[str]) -> list[str]:
    """The hosts on which a counter grew much faster than on every other host, the most unusual first."""
    by_counter: dict[str, dict[str, float]] = defaultdict(dict)
    for host, rates in found.items():
        for counter, rate in rates.items():
            by_counter[counter][host] = rate
    unlike: dict[str, float] = {}
    for counter, by_host in by_counter.items():
        if len(by_host) < 2 or not pattern.fullmatch(counter):
            continue
        first, second = nlargest(2, by_host, key=by_host.__getitem__)
        if by_host[first] > MACHINES.faster_than_others * by_host[second]:
            times = by_host[first] / by_host[second] if by_host[second] else float("inf")
            unlike[first] = max(times, unlike.get(first, 0.0))
    return nlargest(MACHINES.most_hosts_cited, unlike, key=unlike.__getitem__)


def _evidence(host: str, machine: Machine, name: str, most: float | None, words: tuple[str, str]) -> Evidence:
    """``words``: which other hosts, and when."""
    by, (who, when) = machine.grew[name], words
    query = Query("samples", {"rank": sorted(machine.ranks), "source": "machine", "field": name})
    unit_a_second = _PER_SECOND.get(name[-3:])
    if unit_a_second is not None:
        others = "" if most is None else f" ({who} at most {most / unit_a_second:.1%})"
        value, unit, of_what = round(by / machine.seconds / unit_a_second, 4), "share", "share of the time"
    else:
        others = "" if most is None else f" ({who} at most {most * machine.seconds:,.0f})"
        value, unit, of_what = float(by), "", when
    return Evidence(f"host {host}, {name} {of_what}{others}", value, unit, query)


def _held_by_others(subject: Subject, machine: Machine, host: str) -> list[Evidence]:
    """Memory in use on a host's GPUs that is not in the peaks of PyTorch's allocators; nothing where a GPU may have no
    rank."""
    used = {name: value for name, value in machine.last.items() if _MEMORY_USED.fullmatch(name)}
    of_host = [peak for peak in subject.once(peaks_of_run) if subject.host_of(peak.rank) == host]
    peaks = [peak.reserved for peak in of_host]
    identities = {peak.rank: subject.tables.ranks[peak.rank].identity for peak in of_host}
    sharing = sharing_by({rank: identity for rank, identity in identities.items() if identity is not None})
    devices = sharing.count(len(of_host)) or len(of_host)
    if not used or len(used) != devices:
        return []
    outside = sum(used.values()) - sum(peaks)
    if outside <= 0:
        return []
    query = Query("samples", {"rank": sorted(machine.ranks), "source": "machine", "field": sorted(used)})
    what = f"host {host}, memory in use on its GPUs that PyTorch does not hold"
    return [Evidence(what, round(outside / 1e9, 3), "GB", query)]
