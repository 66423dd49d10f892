"""Processes and communicators out of what each line said (hang.md 1.3).

Pointers mean something within their process only; commId joins across processes. A communicator that was split off
bears no commId from NCCL 2.23 on: it is named after its parent's, the number of the split and the colour.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ..model import Call, Communicator, Member, Process
from .facts import Facts, Heard, Own, Who
from .gaps import Gaps
from .prefixes import Named


@dataclass(slots=True)
class Joined:
    """``index``: of the process that a line names; None where it could be several."""

    processes: list[Process] = field(default_factory=list)
    owns: list[list[Own]] = field(default_factory=list)  # by process
    loose: list[Own] = field(default_factory=list)  # of no process that can be told
    index: dict[tuple[str, int | None], list[int]] = field(default_factory=lambda: defaultdict(list))
    by_pid: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    aliases: dict[str, str] = field(default_factory=dict)  # a launcher's name for a host: its address, a pod
    by_rank: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def find(self, host: str, pid: int | None, rank: int | None) -> int | None:
        """The process with this host and pid; the rank tells apart those that share them."""
        if pid is None:
            found = self.by_rank.get(rank, []) if rank is not None else []
            return found[0] if len(found) == 1 else None
        found = self.index.get((self.aliases.get(host, host), pid), [])
        if not found and not host:  # Ray on one node, py-spy
            found = self.by_pid.get(pid, [])
        if len(found) > 1 and rank is not None:
            found = [one for one in found if self.processes[one].rank == rank]
        return found[0] if len(found) == 1 else None

    def put(self, process: Process, owns: list[Own]) -> None:
        number = len(self.processes)
        self.processes.append(process)
        self.owns.append(owns)
        if process.pid is not None:
            self.index[process.host, process.pid].append(number)
            self.by_pid[process.pid].append(number)
        if process.rank is not None:
            self.by_rank[process.rank].append(number)


def processes_of(
    facts: Facts, names: list[Named], files: list[str], size: int | None, renamed: dict[Who, Who], gaps: Gaps
) -> Joined:
    merged: dict[Who, Heard] = {}
    for who, heard in facts.heard.items():
        new = renamed[who]
        merged[new] = heard if new not in merged else _merged(merged[new], heard)
    hinted = {(host, pid) for host, pid, hint in merged if hint is not None}
    unhinted = {(host, pid) for host, pid, hint in merged if hint is None and pid is not None}
    for name, number in sorted(unhinted & hinted, key=str):
        gaps.say("", f"{name}: pid {number} is used by several ranks, and some of its lines do not say by which")
    joined = Joined(aliases={outer: min(hosts) for outer, hosts in facts.aliases.items() if len(hosts) == 1})
    for (host, pid, hint), heard in merged.items():
        for owns in _lives(heard, size, joined, host, pid, gaps):
            world = {own.event.rank for own in owns if own.event.size == size}
            rank = hint[1] if hint is not None else min(world) if len(world) == 1 else None
            devices = {own.event.device for own in owns if own.event.device is not None}
            buses = {own.event.bus_id for own in owns if own.event.bus_id}
            joined.put(
                Process(
                    host=host,
                    pid=pid,
                    rank=rank,
                    local_rank=heard.local_rank if heard.local_rank is not None else _local_rank(heard, names),
                    gpu=min(devices) if len(devices) == 1 else heard.device,
                    bus_id=min(buses) if len(buses) == 1 else "",
                    nccl_version=heard.version,
                    env=heard.env,
                    paths=tuple(files[file] for file in sorted(heard.files)),
                    last_time_ns=heard.last_ns,
                ),
                owns,
            )
    _said_of_restarts(joined, gaps)
    return joined


def _merged(one: Heard, other: Heard) -> Heard:
    return Heard(
        owns=_once([*one.owns, *other.owns]),
        env={**one.env, **other.env},
        version=other.version or one.version,
        local_rank=one.local_rank if one.local_rank is not None else other.local_rank,
        device=one.device if one.device is not None else other.device,
        files=one.files | other.files,
        last_ns=max((ns for ns in (one.last_ns, other.last_ns) if ns is not None), default=None),
    )


def _once(owns: list[Own]) -> list[Own]:
    """The same communicator, told in two files, once."""
    found: dict[tuple[str, str, int, int], Own] = {}
    for own in owns:
        key = (own.event.comm, own.event.comm_id, own.event.rank, own.event.size)
        if (before := found.get(key)) is None or not own.event.comm_id:
            found[key if before is None else (*key[:3], -len(found) - 1)] = own
            continue
        before.started |= own.started
        before.completed |= own.completed
        before.ended = before.ended or own.ended
    return list(found.values())


def _lives(heard: Heard, size: int | None, joined: Joined, host: str, pid: int | None, gaps: Gaps) -> list[list[Own]]:
    """The communicators of each process behind one host and pid: one process, unless one communicator has several of
    its ranks there. Then it is a process that drives several GPUs (each counts as one here), or containers share the
    host's name, and the device tells them apart or nothing does."""
    if not _conflict(heard.owns, size):
        return [heard.owns]
    by_device: dict[int | None, list[Own]] = defaultdict(list)
    for own in heard.owns:
        by_device[own.event.device].append(own)
    found: list[list[Own]] = []
    for owns in by_device.values():
        if not _conflict(owns, size):
            found.append(owns)
            continue
        gaps.say("", f"{host}: pid {pid} is several processes (containers with one host name): joined only in part")
        of_world = [own for own in owns if own.event.size == size]
        found.extend([own] for own in of_world)
        joined.loose.extend(own for own in owns if own.event.size != size)
    return found


def _conflict(owns: list[Own], size: int | None) -> bool:
    ranks: dict[str, int] = {}
    for own in owns:
        key = own.event.comm_id or ("world" if own.event.size == size else "")
        if key and ranks.setdefault(key, own.event.rank) != own.event.rank:
            return True
    return False


def _local_rank(heard: Heard, names: list[Named]) -> int | None:
    found = {names[file].local_rank for file in heard.files} - {None}
    return found.pop() if len(found) == 1 else None


def _said_of_restarts(joined: Joined, gaps: Gaps) -> None:
    twice = [rank for rank, found in joined.by_rank.items() if len(found) > 1]
    if twice:
        some = ", ".join(map(str, sorted(twice)[:8])) + (", .." if len(twice) > 8 else "")
        gaps.say("", f"several processes have the same rank (a restart, or several jobs): {some}")


def communicators_of(joined: Joined, calls: dict[int, tuple[Call, ...]], gaps: Gaps) -> tuple[Communicator, ...]:
    """``calls``: the last ones, by ``id`` of the process's communicator."""
    groups: dict[object, dict[int, Member]] = {}
    about: dict[object, tuple[str, int, str]] = {}
    twice = 0
    everyone = [*((number, owns) for number, owns in enumerate(joined.owns)), *((None, [own]) for own in joined.loose)]
    for number, owns in everyone:
        names = _identities(owns)
        for own in owns:
            name, parent = names[id(own)]
            key: object = (name, own.event.size) if name else id(own)
            about.setdefault(key, (name, own.event.size, parent))
            members = groups.setdefault(key, {})
            if own.event.rank in members:
                twice += 1
                continue
            members[own.event.rank] = Member(
                own.event.rank, number, own.started, own.completed, own.ended, calls.get(id(own), ())
            )
    if any(not name for name, size, _ in about.values() if size > 1):
        gaps.say("", "communicators without a commId (NCCL before 2.16) cannot be joined across processes")
    if twice:
        gaps.say("", f"{twice} ranks of communicators are claimed by several processes: the first counts")
    return tuple(
        Communicator(about[key][0], about[key][1], tuple(members[rank] for rank in sorted(members)), about[key][2])
        for key, members in groups.items()
    )


def _identities(owns: list[Own]) -> dict[int, tuple[str, str]]:
    """(identity, parent's identity) of one process's communicators, by ``id``; "" where nothing says it."""
    latest: dict[str, str] = {}
    found: dict[int, tuple[str, str]] = {}
    for own in owns:  # as they came up: a parent before its children
        event = own.event
        parent = latest.get(event.parent, "") if event.parent else ""
        name = event.comm_id
        if not name and event.split and parent:
            name = f"{parent}/{event.split}"
        latest[event.comm] = name
        found[id(own)] = (name, parent)
    return found
