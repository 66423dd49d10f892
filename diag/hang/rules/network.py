"""Connections that end or never begin, and InfiniBand completions with errors: which end is at fault."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from diag.ended.model import Clue, Culprit, short_host
from diag.events.differs import unlike_most
from diag.events.vote import vote
from diag.hang.classes import CLASSES
from diag.hang.classes.base import Hit
from diag.hang.failures import failed as job_failed
from diag.hang.failures import lives, went_on
from diag.hang.job import Interface, JobLogs, distinct
from diag.hang.model import Role
from diag.hang.policy import HANG_EVIDENCE, HANG_RULES
from diag.hang.rules.direct import clue_of, far_end, other_end
from diag.hang.rules.exceptions import victims_of

# -- Connections that end or never begin: the peer that is complained about --------------------------------------------

_CONNECT = {name: CLASSES[name].patterns_of(Role.ROOT) for name in ("net_connect_timeout", "net_connect_refused")}
LOST = CLASSES["net_connection_lost"].patterns_of(Role.ROOT)
# Interfaces that end on their own host: bridges and pairs of containers, tunnels, virtual machines, the loopback.
_LOCAL_NAMES = ("veth", "docker", "br-", "virbr", "cni", "flannel", "cali", "ip6tnl", "tunl", "sit", "lo")
# Docker's default bridge has it on every host. The addresses behind it are those of containers, which reach each other.
_BRIDGE_OF_DOCKER = ipaddress.ip_address("172.17.0.1")


def connections(job: JobLogs) -> list[Clue]:
    connect = [clue for name in _CONNECT if (clue := _connect(job, name)) is not None]
    lost = _lost(job)
    failed = bool(connect or job.named("refused-retrying")) or (bool(lost) and not _at_home(job))
    wrong = _wrong_interface(job, failed)
    return [*connect, *lost, *_daemons(job), *([wrong] if wrong is not None else _fell_back(job))]


def _at_home(job: JobLogs) -> bool:
    """Whether all connections that were lost were to processes of the one host that is seen, which they had reached."""
    hosts = {*job.hosts, *(interface.host for interface in job.interfaces)} - {""}
    peers = [hit.groups["peer"] for hit in job.named(*LOST) if "peer" in hit.groups]
    local = bool(peers) and all(_OF_THIS_HOST.match(p) or short_host(p.partition("<")[0]) in hosts for p in peers)
    return local and len(hosts) == 1


_OF_THIS_HOST = re.compile(r"\[?(?:localhost\b|127\.|::1\b)")


def _connect(job: JobLogs, name: str) -> Clue | None:
    hits = job.named(*_CONNECT[name])
    if job.named("coordination-barrier"):  # the service answers, and some task did not come
        hits = [hit for hit in hits if hit.name != "jax-no-answer"]
    if not hits and name == "net_connect_refused" and not job.once(lives):
        # Usual while the others start; nothing shows that they did.
        again = job.named("refused-retrying")
        peers = distinct([culprit for hit in again if (culprit := far_end(job, hit)).peer])
        note = f"{again[0].sentence if again else ''} No log line shows a successful retry."
        return clue_of(name, again, peers, note, confidence=HANG_EVIDENCE.suggests) if again else None
    if not hits:
        return None
    culprits = [far_end(job, hit) for hit in hits]
    named = [culprit for culprit in culprits if culprit.host or culprit.rank is not None or culprit.peer]
    # The older lines have no address: then only the reporting process is known, which is not the one at fault.
    complains = [Culprit(peer=words) for words in dict.fromkeys(_words(job.culprit(hit.line)) for hit in hits) if words]
    sure = max(hit.pattern.confidence for hit in hits)
    final = [hit for hit in hits if hit.line.level == "WARN"] or hits
    clue = clue_of(name, final, named or complains, final[0].sentence, job.named("refused-retrying")[:2], sure)
    strange = [culprit for culprit in culprits if _reaches_nobody(culprit.peer)]
    if name == "net_connect_timeout" and strange and len(strange) == len(culprits):
        note = (
            f"{final[0].sentence} An address like this one is valid on its own host only: the wrong interface is used."
        )
        return replace(clue, fault_class="net_wrong_interface", note=note, confidence=HANG_EVIDENCE.names_an_effect)
    if all(hit.name == "connection-abort" for hit in hits):  # whether it was refused or not answered is hidden
        return replace(clue, fault_class="net_connect_refused" if job.named("refused-retrying") else "net_failure")
    return clue


def _reaches_nobody(peer: str) -> bool:
    """Whether an address means another place on every host: link-local, or that of Docker's default bridge."""
    name = peer.partition("<")[0].partition("%")[0].strip("[]")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_link_local or address == _BRIDGE_OF_DOCKER


def _words(culprit: Culprit) -> str:
    if culprit.rank is not None:
        return f"not reached by rank {culprit.rank}"
    return f"not reached by {culprit.host}" if culprit.host else ""


def _daemons(job: JobLogs) -> list[Clue]:
    """Hosts whose daemon mpirun lost, and processes that Open MPI, MPICH or OneFlow lost."""
    clues = []
    for name in ("daemon-lost", "mpi-peer", "mpi-rank-lost", "machine-lost"):
        if hits := [
            hit for hit in job.named(name) if {"host", "peer_rank"} & set(hit.groups) or _of_a_daemon(job, hit)
        ]:
            culprits = [_daemon(job, hit) for hit in hits]
            clues.append(clue_of("net_connection_lost", hits, culprits, hits[0].sentence))
    return clues


def _daemon(job: JobLogs, hit: Hit) -> Culprit:
    if "peer_rank" in hit.groups:
        return far_end(job, hit)
    return job.of_host(short_host(hit.groups.get("host") or hit.groups["node"]))


def _of_a_daemon(job: JobLogs, hit: Hit) -> bool:
    """Whether a host name stands below the sentence that its daemon was lost."""
    return any(
        hit.line.follows(line, HANG_RULES.exit_code_reach) and "lost communication with its daemon" in line.text
        for line in job.logs.lines
    )


@dataclass(frozen=True)
class _Complaint:
    by: str  # host
    about: str
    hit: Hit


def _within(complaint: _Complaint) -> bool:
    name = complaint.hit.groups["peer"].partition("<")[0]
    return bool(complaint.by) and complaint.by in (complaint.about, name, short_host(name))


def _lost(job: JobLogs) -> list[Clue]:
    """The end of the chain of complaints. Where hosts accuse each other, no single host is named."""
    # Of ranks that raised such an error, who raised none says more than the address that they lost.
    ranked = job.once(victims_of)
    hits = [hit for hit in job.named(*LOST) if not ranked or hit.name not in ("c10d-connection", "gloo-closed")]
    hits = [hit for hit in hits if hit.name != "gloo-closed" or job.rank_of(hit.line) is None]
    if job.of_class("cascade_store_lost"):  # the same call of gRPC says that the coordination service is gone
        hits = [hit for hit in hits if hit.name != "grpc-closed"]
    hits = [hit for hit in hits if hit.name != "grpc-closed" or not went_on(job, hit.line)]  # the call is tried again
    if not hits:
        return []
    nameless, hits = [hit for hit in hits if "peer" not in hit.groups], [hit for hit in hits if "peer" in hit.groups]
    if not hits:
        if others := distinct([end for hit in nameless for end in _remote(job, hit)]):
            return [clue_of("net_connection_lost", nameless, others, nameless[0].sentence)]
        who = "This version of NCCL" if nameless[0].line.source == "nccl" else "The program"
        note = f"{nameless[0].sentence} {who} does not print the peer."
        return [clue_of("net_connection_lost", nameless, [], note, confidence=HANG_EVIDENCE.suggests)]
    complaints = [_Complaint(job.culprit(hit.line).host, job.resolve(hit.groups["peer"]), hit) for hit in hits]
    # A connection within the host is to a thread or a process that lost another one.
    beyond = [complaint for complaint in complaints if not _within(complaint)]
    complaints = beyond or complaints
    hits = [complaint.hit for complaint in complaints]
    known = [complaint for complaint in complaints if complaint.about]
    across = [complaint for complaint in known if complaint.about != complaint.by]
    if not across:
        within = [replace(job.of_host(complaint.about), peer=complaint.hit.groups["peer"]) for complaint in known]
        ports: dict[str, list[str]] = defaultdict(list)
        for hit in hits:
            ports[hit.groups["peer"].partition("<")[0]].append(hit.groups["peer"])
        # Several connections to one address are one peer.
        peers = [Culprit(peer=addresses[0] if len(set(addresses)) == 1 else name) for name, addresses in ports.items()]
        note = f"{hits[0].sentence} No log line attributes that address to another host."
        return [clue_of("net_connection_lost", hits, within or peers, note, confidence=HANG_EVIDENCE.suggests)]
    reporters = {complaint.by for complaint in across}
    about = {complaint.about for complaint in across}
    ends = sorted(about - reporters)
    if ends:
        culprits = [replace(job.of_host(end), peer="") for end in ends]
        chain = [complaint.hit for complaint in across if complaint.about in ends]
        report = "reports" if len(ends) == 1 else "report"
        note = f"{chain[0].sentence} {', '.join(ends)} {report} no lost connection."
        rest = [hit for hit in hits if hit not in chain]
        return [clue_of("net_connection_lost", chain, culprits, note, rest, confidence=HANG_EVIDENCE.names_an_effect)]
    pairs = [Culprit(host=complaint.by, peer=complaint.about) for complaint in across]
    note = f"{' and '.join(sorted(about))} report each other: the cause is the link or common to both."
    return [
        clue_of(
            "net_connection_lost",
            [complaint.hit for complaint in across],
            pairs,
            note,
            confidence=HANG_EVIDENCE.suggests,
        )
    ]


def _remote(job: JobLogs, hit: Hit) -> list[Culprit]:
    """The other end of a connection of an RPC: in the line itself, else in the other lines of its message."""
    if hit.name == "rpc-lost":
        return [far_end(job, hit)]
    if hit.name != "grpc-closed":
        return []
    return other_end(job, hit)


def _wrong_interface(job: JobLogs, failed: bool) -> Clue | None:
    """Interfaces that cannot reach another host, in a job of several hosts with failed connections."""
    used = [interface for interface in job.interfaces if interface.host]
    hosts = {interface.host for interface in used} | set(job.hosts)
    if not failed and not job.is_initialising and not job.once(job_failed):
        return None
    twice = _same_address(used)
    local = [interface for interface in job.interfaces if ends_on_its_host(interface)]
    if twice:
        shown, sure, note = (
            twice,
            HANG_RULES.same_address_twice,
            "Two hosts use the same address, local to each of them.",
        )
    elif local and (len(hosts) > 1 or failed):
        shown, sure, note = local, HANG_EVIDENCE.names_the_cause, f"{interface_words(local)} cannot reach other hosts."
    else:
        shown, note = (
            _different_networks(used) if failed or job.is_initialising else [],
            "The hosts use addresses of different networks.",
        )
        sure = (
            HANG_EVIDENCE.names_an_effect if len({interface.name for interface in used}) > 1 else HANG_EVIDENCE.suggests
        )
        if not shown:
            return None
    hits = [
        hit
        for hit in job.named("bootstrap-using", "socket-using", "ib-oob", "interface-using")
        if hit.line in {o.line for o in shown}
    ]
    errors = job.named(*_CONNECT["net_connect_timeout"], *_CONNECT["net_connect_refused"], *LOST)
    culprits = [
        replace(job.of_host(interface.host), peer=f"{interface.name}:{interface.address}") for interface in shown
    ]
    by_host: dict[object, Culprit] = {}
    for culprit in culprits:
        by_host.setdefault((culprit.host, culprit.rank), culprit)
    sure = sure if failed else sure - 0.2
    return clue_of("net_wrong_interface", hits, distinct(list(by_host.values())), note, errors[:2], confidence=sure)


def _fell_back(job: JobLogs) -> list[Clue]:
    """Ranks that fell back to the loopback, in a job whose ranks cannot all be on one host, where a connection to the
    loopback is told of, or gloo could not connect the ranks: their peers on other hosts are sought at home. On one host
    the fallback is as good. A rank that connects to the loopback only shows that a peer is sought there."""
    said, seen = job.named("loopback-fallback"), job.named("dials-loopback")
    paths = {hit.line.path for hit in (*said, *seen)}
    below = [hit for hit in job.named("loopback-peer", "gloo-full-mesh") if hit.line.path in paths]
    ranks = sorted({rank for hit in said if (rank := _rank_of(job, hit)) is not None})
    sizes = [int(hit.groups["size"]) for hit in seen]
    size = max((job.logs.world_size or 0, *sizes, *(rank + 1 for rank in ranks)))
    several = len(job.hosts) > 1 or size > HANG_RULES.most_gpus_of_a_host
    if not below or not several or job.once(lives):
        return []
    told = [*said, *seen]
    note = f"{told[0].sentence} Its peers on other hosts are then sought at the loopback." if said else told[0].sentence
    culprits = [job.of_rank(rank) for rank in ranks]
    sure = HANG_EVIDENCE.names_an_effect if seen else HANG_EVIDENCE.suggests
    return [clue_of("net_wrong_interface", told, culprits, note, below, confidence=sure)]


def _rank_of(job: JobLogs, hit: Hit) -> int | None:
    """The rank of the process that prints a line, else the one that the line itself names."""
    rank = job.rank_of(hit.line)
    return int(hit.groups["rank"]) if rank is None and "rank" in hit.groups else rank


def ends_on_its_host(interface: Interface) -> bool:
    """Whether an interface reaches its own host only: a container bridge, a tunnel, loopback, link-local."""
    if interface.name == "lo" or interface.name.startswith(tuple(name for name in _LOCAL_NAMES if name != "lo")):
        return True
    try:
        address = ipaddress.ip_address(interface.address.partition("%")[0])
    except ValueError:
        return False
    return address.is_link_local or address.is_loopback


def interface_words(interfaces: Iterable[Interface]) -> str:
    """``docker0 (172.17.0.1), lo (127.0.0.1)``."""
    return ", ".join(dict.fromkeys(f"{interface.name} ({interface.address})" for interface in interfaces))


def _same_address(used: list[Interface]) -> list[Interface]:
    by_address: dict[str, list[Interface]] = defaultdict(list)
    for interface in used:
        by_address[interface.address].append(interface)
    # A host that only a launcher names, by its address, does not count as another host.
    return [
        interface
        for address, interfaces in by_address.items()
        if len({o.host for o in interfaces} - {address}) > 1
        for interface in interfaces
    ]


def _different_networks(used: list[Interface]) -> list[Interface]:
    """The hosts whose first interface is in another network than most; all where there is no majority. The netmask is
    not printed: it rarely has fewer than 16 bits between hosts that route to each other."""
    first: dict[str, Interface] = {}
    for interface in used:
        first.setdefault(interface.host, interface)
    interfaces = list(first.values())
    return [interfaces[at] for at in unlike_most({at: _network(own.address) for at, own in enumerate(interfaces)})]


def _network(address: str) -> str:
    return ".".join(address.split(".")[:2]) if "." in address else ":".join(address.split(":")[:4])


# -- InfiniBand completions with errors: the end that most failing links share is the suspect --------------------------

_RETRIES_USED_UP = "12"
_FAILED_DEVICES = [
    fault_class.id
    for fault_class in CLASSES.values()
    if fault_class.priority == 1 and "ib_completion_error" in fault_class.rules_out
]


@dataclass(frozen=True)
class _Pair:
    """The reporting end and the other end: hosts, or addresses of unknown hosts."""

    here: str
    there: str
    hca: str
    hit: Hit

    @property
    def ends(self) -> frozenset[str]:
        return frozenset((self.here, self.there))


def _of_others(job: JobLogs) -> list[Clue]:
    """Transfers of other libraries than NCCL that failed: a line names at most this end and its adapter."""
    hits = job.named("ucx-retries", "verbs-retries") or job.named("ucx-completion")
    if not hits:
        return []
    culprits = [Culprit(host=short_host(hit.groups.get("host", "")), nic=hit.groups.get("hca", "")) for hit in hits]
    return [clue_of("ib_completion_error", hits, culprits, hits[0].sentence)]


def completions(job: JobLogs) -> list[Clue]:
    hits, events = job.named("completion-with-error"), job.named("queue-event")
    failed = {(job.culprit(hit.line).host, hit.groups.get("hca", "")) for hit in events}
    worse = [hit for hit in job.of_class(*_FAILED_DEVICES) if hit.pattern.role == Role.ROOT]
    if len(failed) == 1 and not worse:
        # The side whose queue reports the error is the one that refused or damaged the transfer.
        statuses = "".join(f" A peer got status {_status(hit)}." for hit in hits[:1])
        culprits = [replace(job.culprit(events[0].line), nic=events[0].groups.get("hca", ""))]
        note = f"{events[0].sentence}{statuses}"
        sure = HANG_EVIDENCE.names_an_effect if hits else HANG_EVIDENCE.suggests
        return [clue_of("ib_completion_error", events, culprits, note, hits, confidence=sure)]
    if not hits:
        return _of_others(job)
    pairs = [_pair(job, hit) for hit in hits]
    links = {pair.ends for pair in pairs if len(pair.ends - {""}) == 2}
    counts = Counter(end for link in links for end in link if end)
    often = vote(counts) if len(counts) > 1 else None
    status = _status(hits[0])
    seen = f"status {status}{' (retries used up)' if status == _RETRIES_USED_UP else ''}"
    flushed = job.named("completion-flushed")[:2]
    if len(links) > 1 and often is not None and often.clear:
        end = often.usual
        adapters = {pair.hca for pair in pairs if pair.here == end and pair.hca}
        peer = next(iter(adapters)) if len(adapters) == 1 else ""
        note = f"{end} is one end of {counts[end]} of {len(links)} links with {seen}."
        return [
            clue_of(
                "ib_completion_error",
                hits,
                [_end(job, end, peer)],
                note,
                flushed,
                confidence=HANG_RULES.one_connection_clear,
            )
        ]
    culprits = []
    for pair in pairs:
        if pair.here:
            culprits.append(_end(job, pair.here, pair.there, pair.hca))
        if pair.there not in ("", pair.here):
            culprits.append(_end(job, pair.there, pair.here))
    ends = " and ".join(sorted(end for end in counts))
    gids = [hits[0].groups[name] for name in ("local_gid", "remote_gid") if name in hits[0].groups]
    note = f"{seen.capitalize()} between {ends}: the link, not one of its hosts." if ends else f"{seen.capitalize()}."
    note += f" GIDs: {' and '.join(gids)}." if gids else ""
    sure = HANG_EVIDENCE.names_an_effect if len(links) == 1 else HANG_EVIDENCE.suggests
    return [clue_of("ib_completion_error", hits, culprits, note, flushed, confidence=sure)]


def _status(hit: Hit) -> str:
    return next(hit.groups[name] for name in ("error", "named_status", "status") if name in hit.groups)


def _pair(job: JobLogs, hit: Hit) -> _Pair:
    here = job.culprit(hit.line)
    name = job.resolve(here.host) or here.host or (f"rank {here.rank}" if here.rank is not None else "")
    peer = hit.groups.get("peer", "")
    return _Pair(name, job.resolve(peer) or peer.partition("<")[0], hit.groups.get("hca", ""), hit)


def _end(job: JobLogs, end: str, peer: str, nic: str = "") -> Culprit:
    if end.startswith("rank "):
        culprit = job.of_rank(int(end.removeprefix("rank ")))
        return Culprit(culprit.rank, culprit.host, culprit.gpu, peer=peer, nic=nic)
    return replace(job.of_host(end, peer=peer), nic=nic)
