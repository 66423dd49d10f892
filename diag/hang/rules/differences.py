"""Settings that must be the same on all hosts and differ: NCCL's version, plugins, variables."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from diag.ended.model import Clue, Culprit
from diag.events.differs import unlike_most
from diag.hang.classes.base import Hit
from diag.hang.failures import ended_well, lives
from diag.hang.job import JobLogs, culprit_of
from diag.hang.model import Line, grouped
from diag.hang.policy import HANG_EVIDENCE, HANG_RULES
from diag.hang.rules.direct import clue_of, time_of
from diag.hang.text.work import STEP

# What NCCL prints when two processes do not speak the same protocol.
_STUMBLES = ("wrong-type", "family-0", "bootstrap-truncated", "rank-count", "checked-in")
# May differ from host to host, or from process to process.
_HOST_SPECIFIC = (
    "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_TOPO", "NCCL_GRAPH", "NCCL_CONF_FILE", "NCCL_HOSTID",
    "NCCL_COMM_ID", "NCCL_IGNORE_CPU_AFFINITY", "NCCL_RAS", "NCCL_PROFILER", "NCCL_LOCAL",
)  # fmt: skip

_NONE_FOUND = re.compile(r"Could not find|No plugin found|Plugin load .*returned 2")


@dataclass(frozen=True)
class _Difference:
    """``odd``: the processes of the minority; in a tie all processes."""

    what: str
    odd: tuple[Culprit, ...]
    lines: tuple[Line, ...]
    variable: bool = False  # of the environment


def clues(job: JobLogs) -> list[Clue]:
    twice = _one_name_for_two(job)
    if twice is not None:
        return [twice]
    stumbles = job.named(*_STUMBLES)
    # NCCL prints these for a mismatch in collective sizes or in settings. Settings that differ show which it is.
    truncated = job.named("socket-truncated", "collective-mismatch-size", "incorrect-receive")
    mismatched = job.named("mismatched-version")
    versions = _versions(job)
    settings = _settings(job)
    fails = bool(stumbles) or job.is_initialising
    if versions is not None or mismatched:
        return [_version_clue(job, versions, mismatched, stumbles, fails)]
    if settings is not None and (fails or truncated or job.first_timeout() is not None):
        sure = HANG_EVIDENCE.names_the_cause if stumbles or truncated else HANG_RULES.settings_differ
        return [_from_difference("env_mismatch", settings, [*stumbles, *truncated], sure)]
    if settings is not None and not settings.variable and not job.once(lives):
        return [_from_difference("env_mismatch", settings, [], HANG_EVIDENCE.suggests)]
    return [_stumble(job, stumbles)] if stumbles else []


def _one_name_for_two(job: JobLogs) -> Clue | None:
    """Two ranks on one host with the same GPU: two machines or containers share a name, and NCCL joins them as one.

    Channel lines do not name their communicator, and a process has another rank in each: so this needs every process to
    print one rank, and every rank to be printed by one process.
    """
    hits = [hit for hit in job.named("via-p2p") if "rank" in hit.groups and hit.line.speaker.host]
    if not hits or any(STEP.search(line.text) for line in job.logs.lines) or job.once(ended_well):
        return None
    printed = {(hit.line.speaker.host, hit.line.speaker.pid, int(hit.groups["rank"])) for hit in hits}
    if len({rank for _, _, rank in printed}) < len(printed) or len({ends[:2] for ends in printed}) < len(printed):
        return None
    ranks = grouped(
        ((hit.line.speaker.host, hit.groups[device]), int(hit.groups[rank]))
        for hit in hits
        for device, rank in (("dev", "rank"), ("other_dev", "other_rank"))
    )
    for (host, device), sharing in ranks.items():
        if len(sharing) > 1:
            words = " and ".join(map(str, sorted(sharing)))
            shown = [hit for hit in hits if hit.line.speaker.host == host]
            shown.sort(key=lambda hit: not {hit.groups["dev"], hit.groups["other_dev"]} & {device})
            channel = shown[0].groups
            note = f"Ranks {words} both have GPU {device} of {host}, and NCCL joins "
            note += f"{channel['rank']}[{channel['dev']}] -> "
            note += f"{channel['other_rank']}[{channel['other_dev']}] as within one host."
            culprits = [Culprit(host=host)]
            return clue_of("same_host_identity", shown, culprits, note, confidence=HANG_EVIDENCE.names_an_effect)
    return None


def _version_clue(
    job: JobLogs, versions: _Difference | None, mismatched: list[Hit], stumbles: list[Hit], fails: bool
) -> Clue:
    if versions is None:
        odd = _mismatched_ranks(job, mismatched)
        return clue_of("nccl_version_mismatch", mismatched, odd, mismatched[0].sentence, stumbles)
    sure = 0.95 if mismatched else HANG_EVIDENCE.names_the_cause if fails else HANG_EVIDENCE.names_an_effect
    return _from_difference("nccl_version_mismatch", versions, [*mismatched, *stumbles], sure)


def _from_difference(name: str, difference: _Difference, hits: list[Hit], sure: float) -> Clue:
    lines = (*(hit.line for hit in hits), *difference.lines)
    return Clue(
        name,
        difference.odd,
        tuple(dict.fromkeys(line.evidence for line in lines))[:8],
        sure,
        difference.what,
        time_ns=time_of(lines),
    )


def _stumble(job: JobLogs, stumbles: list[Hit]) -> Clue:
    """The lines alone name the class that is usual for them, with a lower confidence."""
    first = stumbles[0]
    if first.name == "checked-in":
        ranks = sorted({int(hit.groups["group_rank"]) for hit in stumbles if hit.name == "checked-in"})
        return clue_of("env_mismatch", stumbles, [job.of_rank(rank) for rank in ranks], first.sentence)
    name = "net_no_interface" if first.name == "family-0" else first.fault_class.id
    return clue_of(
        name, stumbles, [job.culprit(hit.line) for hit in stumbles], first.sentence, confidence=HANG_EVIDENCE.suggests
    )


def _mismatched_ranks(job: JobLogs, hits: list[Hit]) -> list[Culprit]:
    """From NCCL's lines, which name two ranks each: the ranks with the rarer version."""
    version: dict[int, str] = {}
    for hit in hits:
        version[int(hit.groups["group_rank"])] = hit.groups["version"]
        version[int(hit.groups["other_group_rank"])] = hit.groups["other_version"]
    return [job.of_rank(rank) for rank in unlike_most(version)]


def _versions(job: JobLogs) -> _Difference | None:
    by_process = {
        index: process.nccl_version.partition("+")[0]
        for index, process in enumerate(job.logs.processes)
        if process.nccl_version
    }
    if len(set(by_process.values())) < 2:
        return _versions_of_hosts(job)
    text = _by_value(job, by_process)
    hits = [hit for hit in job.named("version-line") if hit.groups["version"] in set(by_process.values())]
    lines = {hit.groups["version"]: hit.line for hit in reversed(hits)}
    return _Difference(f"NCCL {text}.", _odd(job, by_process), tuple(lines.values()))


def _versions_of_hosts(job: JobLogs) -> _Difference | None:
    """Versions by host. At level VERSION NCCL prints no prefix, so the host is the file's."""
    lines: dict[str, Line] = {}
    versions: dict[str, str] = {}
    for hit in job.named("version-line"):
        host = job.culprit(hit.line).host
        if host:
            versions.setdefault(host, hit.groups["version"])
            lines.setdefault(hit.groups["version"], hit.line)
    if len(set(versions.values())) < 2:
        return None
    hosts = list(versions)
    odd = tuple(job.of_host(hosts[at]) for at in unlike_most({at: versions[host] for at, host in enumerate(hosts)}))
    text = ", ".join(f"{version} on {host}" for host, version in versions.items())
    return _Difference(f"NCCL {text}.", odd, tuple(lines.values()))


def _odd(job: JobLogs, values: Mapping[int, str]) -> tuple[Culprit, ...]:
    return tuple(culprit_of(job.logs.processes[index]) for index in unlike_most(values))


def _by_value(job: JobLogs, values: Mapping[int, str]) -> str:
    """``2.19.3 on node1, 2.21.5 on node2``."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for index, value in values.items():
        process = job.logs.processes[index]
        hosts[value].append(process.host or (f"rank {process.rank}" if process.rank is not None else "?"))
    return ", ".join(f"{value or 'not set'} on {', '.join(dict.fromkeys(names))}" for value, names in hosts.items())


def _settings(job: JobLogs) -> _Difference | None:
    """The first variable that differs between hosts, else the plugins."""
    hosts = {index: process.host for index, process in enumerate(job.logs.processes) if process.env and process.host}
    if len(set(hosts.values())) > 1:
        names = sorted({name for index in hosts for name in job.logs.processes[index].env})
        for name in (name for name in names if not name.startswith(_HOST_SPECIFIC)):
            values = {index: job.logs.processes[index].env.get(name, "") for index in hosts}
            per_host = {host: {values[i] for i in hosts if hosts[i] == host} for host in hosts.values()}
            if len(set(map(frozenset, per_host.values()))) > 1:
                lines = [ln for ln in job.logs.lines if f"{name} set by environment to" in ln.text]
                shown = {job.culprit(line).host: line for line in reversed(lines)}
                text = f"{name} differs: {_by_value(job, values)}."
                return _Difference(text, _odd(job, values), tuple(shown.values()), variable=True)
    return _plugins(job)


def _plugins(job: JobLogs) -> _Difference | None:
    """The plugins that each host loaded. Every process also looks for plugins of other kinds and prints that it finds
    none."""
    loaded: dict[str, dict[str, Line]] = defaultdict(dict)
    absent: dict[str, Line] = {}
    for hit in job.named("plugin"):
        host = job.culprit(hit.line).host
        if host and _NONE_FOUND.search(hit.groups["plugin"]):
            absent.setdefault(host, hit.line)
        elif host:
            loaded[host].setdefault(hit.groups["plugin"], hit.line)
    names = list(dict.fromkeys((*loaded, *absent)))
    values = {number: "; ".join(sorted(loaded.get(name, {}))) for number, name in enumerate(names)}
    if len(set(values.values())) < 2:
        return None
    odd = tuple(job.of_host(names[number]) for number in unlike_most(values))
    lines = tuple(next(iter(loaded[name].values())) if name in loaded else absent[name] for name in names)
    return _Difference("The hosts load different network plugins.", odd, lines)
