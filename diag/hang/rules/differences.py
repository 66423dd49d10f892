"""What differs between hosts and must not: NCCL's version, its plugins, its variables."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from diag.hang.case import Case, culprit_of
from diag.hang.model import Clue, Culprit, Line, Role
from diag.hang.progress import STEP, ended_well, lives
from diag.hang.rules.direct import clue_of
from diag.hang.signatures.base import NAMES_AN_EFFECT, NAMES_THE_CAUSE, SUGGESTS, Hit

_DIFFERS_AND_HANGS = 0.6  # settings differ and the job stands still: nothing ties the one to the other
# What NCCL stumbles over when two processes do not speak the same way.
_STUMBLES = ("wrong-type", "family-0", "bootstrap-truncated", "rank-count", "checked-in")
# May differ from host to host, or from process to process.
_OWN = (
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_TOPO",
    "NCCL_GRAPH",
    "NCCL_CONF_FILE",
    "NCCL_HOSTID",
    "NCCL_COMM_ID",
    "NCCL_IGNORE_CPU_AFFINITY",
    "NCCL_RAS",
    "NCCL_PROFILER",
    "NCCL_LOCAL",
)


_NONE_FOUND = re.compile(r"Could not find|No plugin found|Plugin load .*returned 2")


@dataclass(frozen=True)
class _Difference:
    """``odd``: the processes of the smaller part, all where the parts are equal."""

    what: str
    odd: tuple[Culprit, ...]
    lines: tuple[Line, ...]
    variable: bool = False  # of the environment


def clues(case: Case) -> list[Clue]:
    twice = _one_name_for_two(case)
    if twice is not None:
        return [twice]
    stumbles = case.named(*_STUMBLES)
    # NCCL's own words for it: a mismatch in collective sizes or in settings. Settings that differ decide which.
    truncated = case.named("socket-truncated", "collective-mismatch-size", "incorrect-receive")
    mismatched = case.named("mismatched-version")
    versions = _versions(case)
    settings = _settings(case)
    fails = bool(stumbles) or _does_not_start(case)
    if versions is not None or mismatched:
        return [_version_clue(case, versions, mismatched, stumbles, fails)]
    if settings is not None and (fails or truncated or case.first_timeout() is not None):
        sure = NAMES_THE_CAUSE if stumbles or truncated else _DIFFERS_AND_HANGS
        return [_from_difference("env_mismatch", settings, [*stumbles, *truncated], sure)]
    if settings is not None and not settings.variable and not case.once(lives):
        return [_from_difference("env_mismatch", settings, [], SUGGESTS)]
    return [_stumble(case, stumbles)] if stumbles else []


def _one_name_for_two(case: Case) -> Clue | None:
    """Channels within "one host" between ranks of which two have the same GPU: two machines, or containers, bear one
    name, and NCCL joins what cannot be joined. Channel lines do not name their communicator, in each of which a process
    has another rank: only where every process tells one rank, and each rank is told by one process, it is the same."""
    hits = [hit for hit in case.named("via-p2p") if "rank" in hit.groups and hit.line.speaker.host]
    if not hits or any(STEP.search(line.text) for line in case.logs.lines) or case.once(ended_well):
        return None
    told: dict[tuple[str, int | None], set[int]] = defaultdict(set)
    tellers: dict[int, set[tuple[str, int | None]]] = defaultdict(set)
    ranks: dict[tuple[str, str], set[int]] = defaultdict(set)
    for hit in hits:
        speaker, rank = hit.line.speaker, int(hit.groups["rank"])
        told[speaker.host, speaker.pid].add(rank)
        tellers[rank].add((speaker.host, speaker.pid))
        ranks[speaker.host, hit.groups["dev"]].add(rank)
        ranks[speaker.host, hit.groups["other_dev"]].add(int(hit.groups["other_rank"]))
    if any(len(found) > 1 for found in told.values()) or any(len(found) > 1 for found in tellers.values()):
        return None
    for (host, device), found in ranks.items():
        if len(found) > 1:
            words = " and ".join(map(str, sorted(found)))
            shown = [hit for hit in hits if hit.line.speaker.host == host]
            shown.sort(key=lambda hit: not {hit.groups["dev"], hit.groups["other_dev"]} & {device})
            channel = shown[0].groups
            note = f"Ranks {words} both have GPU {device} of {host}, and NCCL joins "
            note += f"{channel['rank']}[{channel['dev']}] -> "
            note += f"{channel['other_rank']}[{channel['other_dev']}] as within one host."
            culprits = [Culprit(host=host)]
            return clue_of("same_host_identity", shown, culprits, note, confidence=NAMES_AN_EFFECT)
    return None


def _does_not_start(case: Case) -> bool:
    return any(m.started and not m.completed for c in case.communicators for m in c.members)


def _version_clue(
    case: Case, versions: _Difference | None, mismatched: list[Hit], stumbles: list[Hit], fails: bool
) -> Clue:
    if versions is None:
        odd = _mismatched_ranks(case, mismatched)
        return clue_of("nccl_version_mismatch", mismatched, odd, mismatched[0].sentence, stumbles)
    sure = 0.95 if mismatched else NAMES_THE_CAUSE if fails else NAMES_AN_EFFECT
    return _from_difference("nccl_version_mismatch", versions, [*mismatched, *stumbles], sure)


def _from_difference(name: str, found: _Difference, hits: list[Hit], sure: float) -> Clue:
    lines = (*(hit.line for hit in hits), *found.lines)
    times = [line.time_ns for line in lines if line.time_ns is not None]
    return Clue(
        name,
        Role.ROOT,
        found.odd,
        tuple(dict.fromkeys(line.evidence for line in lines))[:8],
        sure,
        found.what,
        time_ns=min(times, default=None),
    )


def _stumble(case: Case, stumbles: list[Hit]) -> Clue:
    """The lines alone: which class is usual for them, and less sure."""
    first = stumbles[0]
    if first.signature.name == "checked-in":
        ranks = sorted({int(hit.groups["group_rank"]) for hit in stumbles if hit.signature.name == "checked-in"})
        return clue_of("env_mismatch", stumbles, [case.of_rank(rank) for rank in ranks], first.sentence)
    name = "net_no_interface" if first.signature.name == "family-0" else first.fault_class.id
    return clue_of(name, stumbles, [case.culprit(hit.line) for hit in stumbles], first.sentence, confidence=SUGGESTS)


def _mismatched_ranks(case: Case, hits: list[Hit]) -> list[Culprit]:
    """From NCCL's own lines, which name two ranks each: those of the rarer version."""
    version: dict[int, str] = {}
    for hit in hits:
        version[int(hit.groups["group_rank"])] = hit.groups["version"]
        version[int(hit.groups["other_group_rank"])] = hit.groups["other_version"]
    return [case.of_rank(rank) for rank in _minority(version)]


def _minority(values: Mapping[int, str]) -> list[int]:
    """The keys of all values but the most frequent one; all where there is no single one."""
    counts = Counter(values.values()).most_common()
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        return sorted(values)
    return sorted(key for key, value in values.items() if value != counts[0][0])


def _versions(case: Case) -> _Difference | None:
    by_process = {
        index: process.nccl_version.partition("+")[0]
        for index, process in enumerate(case.logs.processes)
        if process.nccl_version
    }
    if len(set(by_process.values())) < 2:
        return _versions_of_hosts(case)
    text = _by_value(case, by_process)
    hits = [hit for hit in case.named("version-line") if hit.groups["version"] in set(by_process.values())]
    lines = {hit.groups["version"]: hit.line for hit in reversed(hits)}
    return _Difference(f"NCCL {text}.", _odd(case, by_process), tuple(lines.values()))


def _versions_of_hosts(case: Case) -> _Difference | None:
    """NCCL prints its version without a prefix at the level VERSION: the host is that of the file."""
    lines: dict[str, Line] = {}
    versions: dict[str, str] = {}
    for hit in case.named("version-line"):
        host = case.culprit(hit.line).host
        if host:
            versions.setdefault(host, hit.groups["version"])
            lines.setdefault(hit.groups["version"], hit.line)
    if len(set(versions.values())) < 2:
        return None
    hosts = list(versions)
    odd = tuple(case.of_host(hosts[at]) for at in _minority({at: versions[host] for at, host in enumerate(hosts)}))
    text = ", ".join(f"{version} on {host}" for host, version in versions.items())
    return _Difference(f"NCCL {text}.", odd, tuple(lines.values()))


def _odd(case: Case, values: Mapping[int, str]) -> tuple[Culprit, ...]:
    return tuple(culprit_of(case.logs.processes[index]) for index in _minority(values))


def _by_value(case: Case, values: Mapping[int, str]) -> str:
    """``2.19.3 on node1, 2.21.5 on node2``."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for index, value in values.items():
        process = case.logs.processes[index]
        hosts[value].append(process.host or (f"rank {process.rank}" if process.rank is not None else "?"))
    return ", ".join(f"{value or 'not set'} on {', '.join(dict.fromkeys(found))}" for value, found in hosts.items())


def _settings(case: Case) -> _Difference | None:
    """The first variable that differs between hosts; else the plugin lines."""
    hosts = {index: process.host for index, process in enumerate(case.logs.processes) if process.env and process.host}
    if len(set(hosts.values())) > 1:
        names = sorted({name for index in hosts for name in case.logs.processes[index].env})
        for name in (name for name in names if not name.startswith(_OWN)):
            values = {index: case.logs.processes[index].env.get(name, "") for index in hosts}
            per_host = {host: {values[i] for i in hosts if hosts[i] == host} for host in hosts.values()}
            if len(set(map(frozenset, per_host.values()))) > 1:
                lines = [ln for ln in case.logs.lines if f"{name} set by environment to" in ln.text]
                shown = {case.culprit(line).host: line for line in reversed(lines)}
                text = f"{name} differs: {_by_value(case, values)}."
                return _Difference(text, _odd(case, values), tuple(shown.values()), variable=True)
    return _plugins(case)


def _plugins(case: Case) -> _Difference | None:
    """What each host's processes loaded: those that did say so, the others have none. Every process also looks for
    plugins of other kinds, and says that it finds none."""
    loaded: dict[str, dict[str, Line]] = defaultdict(dict)
    absent: dict[str, Line] = {}
    for hit in case.named("plugin"):
        host = case.culprit(hit.line).host
        if host and _NONE_FOUND.search(hit.groups["plugin"]):
            absent.setdefault(host, hit.line)
        elif host:
            loaded[host].setdefault(hit.groups["plugin"], hit.line)
    names = list(dict.fromkeys((*loaded, *absent)))
    values = {number: "; ".join(sorted(loaded.get(name, {}))) for number, name in enumerate(names)}
    if len(set(values.values())) < 2:
        return None
    odd = tuple(case.of_host(names[number]) for number in _minority(values))
    lines = tuple(next(iter(loaded[name].values())) if name in loaded else absent[name] for name in names)
    return _Difference("The hosts load different network plugins.", odd, lines)
