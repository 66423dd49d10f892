"""Connections that end or never begin: from who complains to who is complained about."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from dataclasses import dataclass, replace

from diag.hang.case import Case, Interface, distinct
from diag.hang.model import Clue, Culprit
from diag.hang.progress import failed as job_failed
from diag.hang.progress import lives
from diag.hang.rules.direct import clue_of, far_end
from diag.hang.signatures.base import NAMES_AN_EFFECT, NAMES_THE_CAUSE, SUGGESTS, Hit

_CONNECT = {
    "net_connect_timeout": (
        "connect-timed-out",
        "exceeded-timeouts",
        "connection-abort",
        "connect-failed-timeout",
        "gloo-connect-timeout",
        "store-connect-timed-out",
    ),
    "net_connect_refused": ("exceeded-retries", "refused-at-last", "connect-failed-refused", "gloo-refused"),
}
LOST = ("call-failed", "closed-by-peer", "gloo-connection")
# Interfaces that end on their own host: bridges and pairs of containers, tunnels, virtual machines, the loopback.
_LOCAL_NAMES = ("veth", "docker", "br-", "virbr", "cni", "flannel", "cali", "ip6tnl", "tunl", "sit", "lo")
_DOCKERS = ipaddress.ip_network("172.17.0.0/16")
_SAME_ADDRESS_TWICE = 0.9


def clues(case: Case) -> list[Clue]:
    connect = [clue for name in _CONNECT if (clue := _connect(case, name)) is not None]
    lost = _lost(case)
    wrong = _wrong_interface(case, failed=bool(connect or lost) or bool(case.named("refused-retrying")))
    return [*connect, *lost, *([wrong] if wrong is not None else [])]


def _connect(case: Case, name: str) -> Clue | None:
    hits = case.named(*_CONNECT[name])
    if not hits and name == "net_connect_refused" and not case.once(lives):
        # Usual while the others start; nothing shows that they did.
        again = case.named("refused-retrying")
        peers = distinct([culprit for hit in again if (culprit := far_end(case, hit)).peer])
        note = f"{again[0].sentence if again else ''} No line shows that it was accepted later."
        return clue_of(name, again, peers, note, confidence=SUGGESTS) if again else None
    if not hits:
        return None
    culprits = [far_end(case, hit) for hit in hits]
    named = [culprit for culprit in culprits if culprit.host or culprit.rank is not None or culprit.peer]
    # The older lines give no address: then only who complains is known, and that is not who is at fault.
    complains = [
        Culprit(peer=words) for words in dict.fromkeys(_words(case.culprit(hit.line)) for hit in hits) if words
    ]
    sure = max(hit.signature.confidence for hit in hits)
    final = [hit for hit in hits if hit.line.level == "WARN"] or hits
    clue = clue_of(name, final, named or complains, final[0].sentence, case.named("refused-retrying")[:2], sure)
    strange = [culprit for culprit in culprits if _reaches_nobody(culprit.peer)]
    if name == "net_connect_timeout" and strange and len(strange) == len(culprits):
        note = (
            f"{final[0].sentence} An address like this one is valid on its own host only: another interface is meant."
        )
        return replace(clue, fault_class="net_wrong_interface", note=note, confidence=NAMES_AN_EFFECT)
    refused = name == "net_connect_timeout" and case.named("refused-retrying")
    if refused and all(hit.signature.name == "connection-abort" for hit in hits):
        return replace(clue, fault_class="net_connect_refused")
    return clue


def _reaches_nobody(peer: str) -> bool:
    """An address that means another place on every host: link-local, or Docker's default bridge."""
    name = peer.partition("<")[0].partition("%")[0].strip("[]")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_link_local or address in _DOCKERS


def _words(culprit: Culprit) -> str:
    if culprit.rank is not None:
        return f"not reached by rank {culprit.rank}"
    return f"not reached by {culprit.host}" if culprit.host else ""


@dataclass(frozen=True)
class _Blame:
    accuser: str  # host
    accused: str
    hit: Hit


def _within(blame: _Blame) -> bool:
    name = blame.hit.groups["peer"].partition("<")[0]
    return bool(blame.accuser) and blame.accuser in (blame.accused, name, name.partition(".")[0])


def _lost(case: Case) -> list[Clue]:
    """The end of the chain of complaints. Where two hosts accuse each other, or all accuse all, it is no one host."""
    hits = case.named(*LOST)
    if not hits:
        return []
    nameless, hits = [hit for hit in hits if "peer" not in hit.groups], [hit for hit in hits if "peer" in hit.groups]
    if not hits:
        note = f"{nameless[0].sentence} To whom, this version of NCCL does not say."
        return [clue_of("net_connection_lost", nameless, [], note, confidence=SUGGESTS)]
    blames = [_Blame(case.culprit(hit.line).host, case.resolve(hit.groups["peer"]), hit) for hit in hits]
    # A connection within the host is to a thread or a process that lost another one.
    beyond = [blame for blame in blames if not _within(blame)]
    blames = beyond or blames
    hits = [blame.hit for blame in blames]
    known = [blame for blame in blames if blame.accused]
    across = [blame for blame in known if blame.accused != blame.accuser]
    if not across:
        within = [replace(case.of_host(blame.accused), peer=blame.hit.groups["peer"]) for blame in known]
        ports: dict[str, list[str]] = defaultdict(list)
        for hit in hits:
            ports[hit.groups["peer"].partition("<")[0]].append(hit.groups["peer"])
        # Several connections to one address are one peer.
        peers = [Culprit(peer=found[0] if len(set(found)) == 1 else name) for name, found in ports.items()]
        note = f"{hits[0].sentence} Nothing ties that address to another host."
        return [clue_of("net_connection_lost", hits, within or peers, note, confidence=SUGGESTS)]
    accusers = {blame.accuser for blame in across}
    accused = {blame.accused for blame in across}
    ends = sorted(accused - accusers)
    if ends:
        culprits = [replace(case.of_host(end), peer="") for end in ends]
        chain = [blame.hit for blame in across if blame.accused in ends]
        note = f"{chain[0].sentence} {', '.join(ends)} complains of nobody."
        rest = [hit for hit in hits if hit not in chain]
        return [clue_of("net_connection_lost", chain, culprits, note, rest, confidence=NAMES_AN_EFFECT)]
    pairs = [Culprit(host=blame.accuser, peer=blame.accused) for blame in across]
    note = f"{' and '.join(sorted(accused))} accuse each other: the cause is between them or common to them."
    return [clue_of("net_connection_lost", [blame.hit for blame in across], pairs, note, confidence=SUGGESTS)]


def _wrong_interface(case: Case, failed: bool) -> Clue | None:
    """Interfaces that cannot reach another host, in a job of several whose connections failed."""
    used = [one for one in case.interfaces if one.host]
    hosts = {one.host for one in used} | set(case.hosts)
    if not failed and not _waiting_to_start(case) and not case.once(job_failed):
        return None
    twice = _same_address(used)
    local = [one for one in case.interfaces if ends_on_its_host(one)]
    if twice:
        shown, sure, note = twice, _SAME_ADDRESS_TWICE, "Two hosts use the same address, which only each itself has."
    elif local and (len(hosts) > 1 or failed):
        names = ", ".join(dict.fromkeys(f"{one.name} ({one.address})" for one in local))
        shown, sure, note = local, NAMES_THE_CAUSE, f"{names} ends on its own host."
    else:
        shown, note = (
            _different_networks(used) if failed or _waiting_to_start(case) else [],
            "The hosts use addresses of different networks.",
        )
        sure = NAMES_AN_EFFECT if _names_differ(used) else SUGGESTS
        if not shown:
            return None
    hits = [
        hit
        for hit in case.named("bootstrap-using", "socket-using", "ib-oob", "interface-using")
        if hit.line in {o.line for o in shown}
    ]
    errors = case.named(*_CONNECT["net_connect_timeout"], *_CONNECT["net_connect_refused"], *LOST)
    culprits = [replace(case.of_host(one.host), peer=f"{one.name}:{one.address}") for one in shown]
    by_host: dict[object, Culprit] = {}
    for culprit in culprits:
        by_host.setdefault((culprit.host, culprit.rank), culprit)
    sure = sure if failed else sure - 0.2
    return clue_of("net_wrong_interface", hits, distinct(list(by_host.values())), note, errors[:2], confidence=sure)


def _waiting_to_start(case: Case) -> bool:
    return any(m.started and not m.completed for c in case.communicators for m in c.members)


def ends_on_its_host(one: Interface) -> bool:
    """Whether an interface reaches its own host only: a bridge of containers, a tunnel, the loopback, link-local."""
    if one.name == "lo" or one.name.startswith(tuple(name for name in _LOCAL_NAMES if name != "lo")):
        return True
    try:
        address = ipaddress.ip_address(one.address.partition("%")[0])
    except ValueError:
        return False
    return address.is_link_local or address.is_loopback


def _same_address(used: list[Interface]) -> list[Interface]:
    by_address: dict[str, list[Interface]] = defaultdict(list)
    for one in used:
        by_address[one.address].append(one)
    # Where only a launcher names the host, by its address, it is none of its own.
    return [
        one for address, found in by_address.items() if len({o.host for o in found} - {address}) > 1 for one in found
    ]


def _names_differ(used: list[Interface]) -> bool:
    return len({one.name for one in used}) > 1


def _different_networks(used: list[Interface]) -> list[Interface]:
    """The hosts whose first interface is in another network than that of most; nothing where none is common. The mask
    is not printed: 16 bits are as small as it usually is between hosts that route to each other."""
    first: dict[str, Interface] = {}
    for one in used:
        first.setdefault(one.host, one)
    networks: dict[str, list[Interface]] = defaultdict(list)
    for one in first.values():
        network = ".".join(one.address.split(".")[:2]) if "." in one.address else ":".join(one.address.split(":")[:4])
        networks[network].append(one)
    if len(networks) < 2:
        return []
    most = max(len(found) for found in networks.values())
    larger = [found for found in networks.values() if len(found) == most]
    odd = [one for found in networks.values() if len(found) < most for one in found]
    return odd if len(larger) == 1 else [one for found in networks.values() for one in found]
