"""What the machines say about a finding: counters that grew on the culprits' hosts, and not as fast on the others; what
the culprits' GPUs did, and the other GPUs of these hosts did not."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nlargest
from statistics import fmean, median

from msgspec.structs import replace

from diag.collectors.records import GPU_ACTIVITY, split_machine_name
from diag.diagnoses.policy import FINDINGS, MACHINES
from diag.model.query import Query
from diag.model.steps import Evidence, Finding
from diag.rundir.machines import Machine, Machines, Rates, counter_of, machines_of
from diag.rundir.sharing import as_nvml, sharing_by
from diag.words.formatting import counted, measured

from .ids import SLOW_LINK
from .memory_pressure import peaks as peaks_of_run
from .subject import Subject

# Counters of ``diag.collectors.machine`` without their device. What counts no trouble is left out: bytes, rates, sizes.
_NETWORK = (
    r"rdma\.(?!port_xmit_data|port_rcv_data|rate_mbit|active)\w+"
    r"|net\.(\w+_(errors|dropped)|carrier_changes)|pcie\.aer_\w+"
    r"|(gpu|dcgm)\.nvlink_(?!\w*bytes)\w+|dcgm\.pcie_replays"
)
# Of a GPU whose clocks were lowered, or that failed.
_CLOCKS = r"(gpu|dcgm)\.\w+_violation_ns|dcgm\.(xid|ecc_uncorrected)"
_HOST = r"pressure\.\w+\.some_us|cpu\.steal_ns|cgroup\.cpu\.throttled_us|(cgroup\.)?memory\.oom_kills"
_MEMORY = r"pressure\.memory\.some_us|(cgroup\.)?memory\.(oom_kills|at_limit)"
# By the id of a finding: the counters that may explain it.
_EXPLAINED_BY = {
    **dict.fromkeys((SLOW_LINK, "slow-network", "low-bus-bandwidth"), re.compile(_NETWORK)),
    **dict.fromkeys(("contended-host", "crowded-host", "stalled-rank", "stalled-ranks"), re.compile(_HOST)),
    **dict.fromkeys(("host-straggler", "slow-data-rank-unknown"), re.compile(_HOST)),
    **dict.fromkeys(("compute-straggler", "straggler-cause-unknown"), re.compile(f"{_HOST}|{_CLOCKS}")),
    **dict.fromkeys(("straggler-rank-unknown", "compute-imbalance"), re.compile(f"{_HOST}|{_CLOCKS}")),
    **dict.fromkeys(("slow-data-one-rank", "slow-data-all-ranks", "slow-data-bursty"), re.compile(_HOST)),
    **dict.fromkeys(("checkpoint-stall", "host-bound", "launch-bound", "host-stall"), re.compile(_HOST)),
    **dict.fromkeys(("exposed-communication", "communication-not-overlapped"), re.compile(_NETWORK)),
    "tensor-parallel-communication": re.compile(_NETWORK),
    **dict.fromkeys(("allocator-retries", "near-out-of-memory"), re.compile(_MEMORY)),
    **dict.fromkeys(("degraded-pcie", "exposed-copy"), re.compile(r"pcie\.aer_\w+")),
    "degraded-gpu-links": re.compile(r"(gpu|dcgm)\.nvlink_(?!\w*bytes)\w+"),
    "throttled-device": re.compile(_CLOCKS),
}
# Findings that what the GPUs did may explain.
_OF_GPUS = frozenset({
    "compute-straggler", "straggler-cause-unknown", "straggler-rank-unknown", "throttled-device", "degraded-gpu-links",
    SLOW_LINK, "low-bus-bandwidth", "low-mfu",
})  # fmt: skip
# They are about the network and name no rank: what all hosts counted is evidence, too.
_OF_ALL_HOSTS = frozenset({"slow-network", "low-bus-bandwidth"})
_MEMORY_FINDINGS = ("allocator-retries", "near-out-of-memory")
_PER_SECOND = {"_us": 1e6, "_ns": 1e9}  # of a counter of time, by how its name ends
_PPM = "_ppm"
_UNITS = {_PPM: (10**6, "share"), "_mw": (1000, "W"), "_bytes_a_second": (10**9, "GB/s")}  # by how a name ends
_ORDER = [name for name in GPU_ACTIVITY if name.endswith(_PPM)]
_NONE = re.compile(r"(?!)")
_XID = "dcgm.xid"
_MEMORY_USED = re.compile(r"gpu\..*\.memory_used")


def cited(subject: Subject, finding: Finding) -> Finding:
    """The finding, with what the machines say about it as further evidence."""
    pattern = _EXPLAINED_BY.get(finding.id)
    if pattern is None and finding.id not in _OF_GPUS:
        return finding
    pattern = pattern or _NONE
    found = subject.once(machines)
    ranks = finding.ranks or tuple(subject.tables.ranks)
    of_ranks = dict.fromkeys(host for rank in ranks if (host := subject.host_of(rank)) is not None)
    hosts = list(of_ranks)
    if finding.ranks:
        told = hosts[: FINDINGS.ranks_as_evidence]
        own = {host: _gpus_of(subject, finding.ranks, host) for host in told}
        evidence = [item for host in told for item in _grown(found, host, hosts, pattern, own[host])]
        if finding.id in _OF_GPUS:
            evidence += [item for host in told for item in _unlike_other_gpus(found.of(host), host, own[host])]
    else:
        rates = found.rates()
        hosts = [host for host in hosts if host in rates]
        told = hosts[: MACHINES.most_hosts_cited]
        # Of no rank in particular: a host that is unlike all others may be the reason.
        unlike = _unlike_others(rates, pattern) if len(hosts) > 1 else []
        evidence = [item for host in unlike for item in _grown(found, host, [host], pattern)]
        if len(hosts) < 2 or (not evidence and finding.id in _OF_ALL_HOSTS):
            evidence = [item for host in told for item in _grown(found, host, hosts, pattern)]
        if finding.id in _OF_GPUS:
            evidence += [item for host in told for item in _usual_activity(found.of(host), host)]
    if finding.id in _MEMORY_FINDINGS:
        evidence += [item for host in told for item in _held_by_others(subject, found.of(host), host)]
    return replace(finding, evidence=(*finding.evidence, *evidence)) if evidence else finding


def machines(subject: Subject) -> Machines:
    return subject.machines() if subject.machines is not None else machines_of(subject.tables)


def _grown(
    found: Machines, host: str, culprits: Sequence[str], pattern: re.Pattern[str], own: Collection[str] = ()
) -> list[Evidence]:
    """The counters of this host that grew, most unusual first: much faster than on every other host, or, where no
    other host is known, fast enough to matter. ``own``: the culprits' GPUs, if known; the others of the host are then
    compared with as those of other hosts are."""
    machine = found.of(host)
    if machine.seconds < MACHINES.least_seconds:
        return []
    rates = {
        name: by / machine.seconds for name, by in machine.grew.items() if by and pattern.fullmatch(counter_of(name))
    }
    xids = [name for name in rates if counter_of(name) == _XID and _is_of(name, own)]
    shown = [_last(host, machine, name, "the last Xid in this run") for name in sorted(xids)]
    rates = {name: rate for name, rate in rates.items() if _matters(name, rate) and counter_of(name) != _XID}
    if not rates:
        return shown
    # Whatever the device is called there. Without the same counter, another host tells nothing about it.
    others, who = found.others(culprits)
    beside: dict[str, float] = {}
    if own:
        for name in machine.grew:
            if is_of_gpu(name) and not _is_of(name, own):
                beside[counter_of(name)] = max(beside.get(counter_of(name), 0.0), machine.grew[name] / machine.seconds)
    grown = []
    for name, rate in rates.items():
        if not _is_of(name, own):
            continue
        counter = counter_of(name)
        most = max((rates[counter] for rates in (*others, beside) if counter in rates), default=None)
        if most is None or rate > MACHINES.faster_than_others * most:
            words = "the other GPUs" if counter in beside else who
            grown.append((rate / most if most else float("inf"), name, most, words))
    grown.sort(key=lambda item: (-item[0], item[1]))
    grown = grown[: MACHINES.most_counters_cited]
    return [*shown, *(_evidence(host, machine, name, most, (words, found.when)) for _, name, most, words in grown)]


def is_of_gpu(name: str) -> bool:
    return name.startswith(("gpu.", "dcgm."))


def _is_of(name: str, own: Collection[str]) -> bool:
    """Whether a value belongs to no GPU, or to one of these; to any, if none is known."""
    return not own or not is_of_gpu(name) or split_machine_name(name)[0].partition(":")[0] in own


def _gpus_of(subject: Subject, ranks: Iterable[int], host: str) -> frozenset[str]:
    """The ids of these ranks' GPUs on a host, as NVML writes them; none where one is not known."""
    identities = [subject.tables.ranks[rank].identity for rank in ranks if subject.host_of(rank) == host]
    ids = [identity.device_uuid if identity is not None else "" for identity in identities]
    return frozenset(map(as_nvml, ids)) if all(ids) else frozenset()


def _unlike_other_gpus(machine: Machine, host: str, own: Collection[str]) -> list[Evidence]:
    """What the culprits' GPUs did unlike the other GPUs of their host, most unusual first."""
    others: dict[str, list[float]] = defaultdict(list)
    for name, value in machine.activity.items():
        if own and not _is_of(name, own):
            others[counter_of(name)].append(value)
    unlike = []
    for name, value in machine.activity.items():
        counter = counter_of(name)
        usual = median(others[counter]) if counter in others and _is_of(name, own) else 0.0
        times = value / usual if usual else 1.0
        if not 1 / MACHINES.activity_unlike_others < times < MACHINES.activity_unlike_others:
            unlike.append((-max(times, 1 / times if times else float("inf")), name, usual))
    return [_activity(host, machine, name, usual) for _, name, usual in sorted(unlike)[: MACHINES.most_counters_cited]]


def _usual_activity(machine: Machine, host: str) -> list[Evidence]:
    """Of all GPUs of a host: for which part of the time their units worked."""
    by_counter: dict[str, list[str]] = defaultdict(list)
    for name in machine.activity:
        if name.endswith(_PPM):
            by_counter[counter_of(name)].append(name)
    told = []
    for counter, names in sorted(by_counter.items(), key=lambda item: _ORDER.index(item[0].partition(".")[2])):
        mean = fmean(machine.activity[name] for name in names)
        query = Query("samples", {"rank": sorted(machine.ranks), "source": "machine", "field": sorted(names)})
        said = f"host {host}, {counter}, mean of {counted(len(names), 'GPU', 'GPUs')}"
        told.append(Evidence(said, round(mean / 10**6, 4), "share", query))
    return told


def _activity(host: str, machine: Machine, name: str, usual: float) -> Evidence:
    divided_by, unit = next((by, unit) for ending, (by, unit) in _UNITS.items() if name.endswith(ending))
    said = f"host {host}, {name} (median of its other GPUs {measured(usual / divided_by, unit)})"
    query = Query("samples", {"rank": sorted(machine.ranks), "source": "machine", "field": name})
    return Evidence(said, round(machine.activity[name] / divided_by, 4), unit, query)


def _last(host: str, machine: Machine, name: str, what: str) -> Evidence:
    query = Query("samples", {"rank": sorted(machine.ranks), "source": "machine", "field": name})
    return Evidence(f"host {host}, {name}: {what}", float(machine.last.get(name, 0)), "", query)


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
