"""A job as its logs tell it: who printed which line, which host has which address, what came before what."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar, cast

from diag.hang.model import Communicator, Culprit, Line, Logs, Process, Speaker
from diag.hang.signatures import hits_of
from diag.hang.signatures.base import Hit

# Clocks of two hosts: NTP keeps milliseconds, but nobody promises it, and log lines are written late.
CLOCKS_NS = 2_000_000_000

_INTERFACE = re.compile(r"(?P<name>[\w.@-]+):(?P<address>[0-9a-fA-F.:]+(?:%\w+)?)<\d+>")
_ADDRESS = re.compile(r"^(?P<host>.+?)<(?P<port>\d+)>$")


_BLOCK_HOST = re.compile(r"^\s{1,6}host\s*: ?(\S+)\s*$")  # of torchrun's last block


Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Interface:
    """An interface that a host said it uses."""

    host: str
    name: str
    address: str
    line: Line


@dataclass(frozen=True)
class Case:
    """``logs`` with what can be looked up in them."""

    logs: Logs

    @cached_property
    def _answers(self) -> dict[object, object]:
        return {}

    def once(self, question: Callable[[Case], Answer]) -> Answer:
        """What a function says of this case, asked once: several rules look at the same time-outs."""
        if question not in self._answers:
            self._answers[question] = question(self)
        return cast(Answer, self._answers[question])

    @cached_property
    def hits(self) -> tuple[Hit, ...]:
        return tuple(hits_of(self.logs.lines))

    @cached_property
    def _by_signature(self) -> dict[str, list[Hit]]:
        found: dict[str, list[Hit]] = defaultdict(list)
        for hit in self.hits:
            found[hit.signature.name].append(hit)
        return found

    def named(self, *names: str) -> list[Hit]:
        """The hits of these signatures, by file and number."""
        found = [hit for name in names for hit in self._by_signature.get(name, ())]
        return sorted(found, key=lambda hit: (hit.line.path, hit.line.number)) if len(names) > 1 else found

    def of_class(self, *ids: str) -> list[Hit]:
        return [hit for hit in self.hits if hit.fault_class.id in ids]

    @cached_property
    def communicators(self) -> tuple[Communicator, ...]:
        """As they were read; before NCCL 2.16, where nothing names a communicator, what must be the ends of one joined.

        That is the k-th of a size that each process made, where the ranks are all of it, once each. Where several
        groups of a size exist side by side, those of one host."""
        nth: Counter[tuple[int | None, int]] = Counter()
        alike: dict[tuple[int, int], list[Communicator]] = defaultdict(list)
        for one in self.logs.communicators:
            if one.comm_id or len(one.members) != 1 or one.size < 2 or one.members[0].process is None:
                continue
            made = one.members[0].process, one.size
            alike[one.size, nth[made]].append(one)
            nth[made] += 1
        joined: list[Communicator] = []
        gone: set[int] = set()
        for ends in alike.values():
            for group in (ends, *self._by_host(ends)):
                members = sorted((one.members[0] for one in group), key=lambda member: member.group_rank)
                whole = [member.group_rank for member in members] == list(range(group[0].size))
                if whole and not gone & {id(one) for one in group}:
                    joined.append(Communicator("", group[0].size, tuple(members)))
                    gone |= {id(one) for one in group}
        return (*joined, *(one for one in self.logs.communicators if id(one) not in gone))

    def _by_host(self, ends: list[Communicator]) -> list[list[Communicator]]:
        found: dict[str, list[Communicator]] = defaultdict(list)
        for one in ends:
            process = one.members[0].process
            found[self.logs.processes[process].host if process is not None else ""].append(one)
        return [group for host, group in found.items() if host]

    # Who

    @cached_property
    def _by_path(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for index, process in enumerate(self.logs.processes):
            for path in process.paths:
                found[path].append(index)
        return found

    @cached_property
    def by_rank(self) -> dict[int, Process]:
        """The first process of each global rank."""
        found: dict[int, Process] = {}
        for process in self.logs.processes:
            if process.rank is not None:
                found.setdefault(process.rank, process)
        return found

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(process.host for process in self.logs.processes if process.host))

    def process_of(self, line: Line) -> Process | None:
        """The process that printed a line; None where several could have."""
        speaker = line.speaker
        if speaker.rank is not None and speaker.rank in self.by_rank:
            return self.by_rank[speaker.rank]
        found = self.find_process(host=speaker.host, pid=speaker.pid, path=line.path)
        if found is None and speaker.local_rank is not None:
            found = self.find_process(host=speaker.host or self.host_of_path(line.path), local_rank=speaker.local_rank)
        alone = self._by_path.get(line.path, [])
        if found is None and speaker == Speaker() and len(alone) == 1 and line.path not in self._launchers:
            found = self.logs.processes[alone[0]] if line.source not in ("launcher", "kernel") else None
        return found

    @cached_property
    def _launchers(self) -> set[str]:
        """Files that a launcher writes to, with all that it started: that one process of them names itself does not
        mean that it is alone."""
        return {line.path for line in self.logs.lines if line.source == "launcher"}

    def find_process(
        self, host: str = "", pid: int | None = None, local_rank: int | None = None, path: str = ""
    ) -> Process | None:
        """The one process with this pid, else with this local rank. Pids repeat between containers and hosts."""
        found = [process for process in self.logs.processes if not host or not process.host or process.host == host]
        if pid is not None:
            found = [process for process in found if process.pid == pid]
        elif local_rank is not None:
            found = [process for process in found if process.local_rank == local_rank]
        else:
            return None
        if len(found) > 1:
            found = [process for process in found if path in process.paths]
        return found[0] if len(found) == 1 else None

    def host_of_path(self, path: str) -> str:
        """The host of all processes that wrote to a file, and that its launchers name; "" where they are several."""
        hosts = {self.logs.processes[index].host for index in self._by_path.get(path, ())} - {""}
        hosts |= self._launched_hosts.get(path, set())
        hosts = hosts or set(self._spoken_hosts.get(path, ()))
        return hosts.pop() if len(hosts) == 1 else ""

    @cached_property
    def _spoken_hosts(self) -> dict[str, set[str]]:
        """By file the hosts that its lines bear."""
        found: dict[str, set[str]] = defaultdict(set)
        for line in self.logs.lines:
            if line.speaker.host:
                found[line.path].add(line.speaker.host)
        return found

    @cached_property
    def _launched_hosts(self) -> dict[str, set[str]]:
        """By file the hosts in the last blocks of launchers."""
        found: dict[str, set[str]] = defaultdict(set)
        for line in self.logs.lines:
            if match := _BLOCK_HOST.match(line.text):
                found[line.path].add(match[1].partition(".")[0])
        return found

    def culprit(self, line: Line, peer: str = "") -> Culprit:
        """Who printed a line."""
        process = self.process_of(line)
        host = line.speaker.host or self.host_of_path(line.path) or self._host_in_name(line.path)
        if process is not None:
            found = culprit_of(process, peer=peer)
            return found if found.host else replace(found, host=host)
        return Culprit(rank=line.speaker.rank, host=host, peer=peer)

    def rank_of(self, line: Line) -> int | None:
        return self.culprit(line).rank

    @cached_property
    def _known_hosts(self) -> frozenset[str]:
        spoken = {line.speaker.host for line in self.logs.lines}
        stems = {Path(path).name.partition(".")[0] for path in self.logs.paths}
        return frozenset({*self.hosts, *spoken, *stems} - {""})

    def _host_in_name(self, path: str) -> str:
        """The host that the name of a file bears besides a word: ``journal-node7.txt``, where node7 is known."""
        name = Path(path).name
        words = re.split(r"[^A-Za-z0-9-]+|(?<=dmesg)-|(?<=journal)-|(?<=kern)-|(?<=messages)-|(?<=syslog)-", name)
        found = {word for word in words if word in self._known_hosts and word != name.partition(".")[0]}
        return found.pop() if len(found) == 1 else ""

    @cached_property
    def _host_of_rank(self) -> dict[int, str]:
        """From what lines say of themselves, for ranks without a communicator."""
        found: dict[int, str] = {}
        for line in self.logs.lines:
            if line.speaker.rank is not None and line.speaker.host:
                found.setdefault(line.speaker.rank, line.speaker.host)
        return found

    def of_rank(self, rank: int) -> Culprit:
        process = self.by_rank.get(rank)
        found = culprit_of(process) if process is not None else Culprit(rank=rank)
        return found if found.host else replace(found, host=self._host_of_rank.get(rank, ""))

    def address_of(self, rank: int | None) -> str:
        """The address that the process of a rank said it uses; "" where it did not."""
        process = self.by_rank.get(rank) if rank is not None else None
        if process is None:
            return ""
        own = [one.address for one in self.interfaces if self.process_of(one.line) is process]
        return own[0] if own else ""

    def on_host(self, host: str) -> list[Process]:
        return [process for process in self.logs.processes if process.host == host]

    def of_host(self, host: str, peer: str = "") -> Culprit:
        """A host, with its rank if it runs a single one."""
        processes = self.on_host(host)
        return culprit_of(processes[0], peer=peer) if len(processes) == 1 else Culprit(host=host, peer=peer)

    def global_rank(self, communicator: Communicator, group_rank: int) -> int | None:
        """The global rank of a member: from its process, or the same where the communicator is the whole job."""
        for member in communicator.members:
            if member.group_rank == group_rank and member.process is not None:
                rank = self.logs.processes[member.process].rank
                if rank is not None:
                    return rank
        return group_rank if communicator.size == self.logs.world_size else None

    # Where

    @cached_property
    def interfaces(self) -> tuple[Interface, ...]:
        found = []
        for hit in self.named("bootstrap-using", "socket-using", "ib-oob", "interface-using"):
            host = self.culprit(hit.line).host
            for match in _INTERFACE.finditer(hit.groups["interfaces"]):
                found.append(Interface(host, match["name"].removeprefix("[0]"), match["address"], hit.line))
        return tuple(found)

    @cached_property
    def _hosts_of_address(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for interface in self.interfaces:
            if interface.host and interface.host != interface.address:
                found[interface.address].add(interface.host)
        return found

    def resolve(self, peer: str) -> str:
        """The host behind ``10.0.0.2<40123>`` or ``node2.cluster<40123>``; "" where nothing ties it to one."""
        match = _ADDRESS.match(peer)
        name = match["host"] if match else peer
        hosts = self._hosts_of_address.get(name, set())
        if len(hosts) == 1:
            return next(iter(hosts))
        known = [host for host in self.hosts if host in (name, name.partition(".")[0])]
        return known[0] if known and not hosts else ""

    # When

    def first_timeout(self) -> Line | None:
        """The earliest report of a collective that timed out, by clock where there is one."""
        lines = [hit.line for hit in self.named("watchdog", "blocking-wait")]
        timed = [line for line in lines if line.time_ns is not None]
        return min(timed, key=lambda line: line.time_ns or 0) if timed else lines[0] if lines else None

    def before(self, first: Line, second: Line) -> bool | None:
        """Whether a line was printed before another one; None where nothing tells."""
        if first.time_ns is not None and second.time_ns is not None:
            same = self.culprit(first).host == self.culprit(second).host != ""
            apart = second.time_ns - first.time_ns
            return apart > 0 if same or abs(apart) > CLOCKS_NS else None
        return first.number < second.number if first.path == second.path else None


def culprit_of(process: Process, peer: str = "") -> Culprit:
    return Culprit(rank=process.rank, host=process.host, gpu=process.gpu, peer=peer)


def distinct(culprits: list[Culprit]) -> tuple[Culprit, ...]:
    """Without repetitions, in order of rank, then host."""
    found = dict.fromkeys(culprits)
    return tuple(sorted(found, key=lambda c: (c.rank is None, c.rank or 0, c.host, c.peer)))


def bus_number(text: str) -> int | None:
    """A PCI address as NCCL prints it (``1b000``) or the driver does (``0000:1B:00.0``), as a number."""
    try:
        if ":" not in text:
            return int(text, 16)
        *domain, bus, rest = text.split(":")
        device, _, function = rest.partition(".")
        return (
            (int(domain[-1] if domain else "0", 16) << 20)
            | (int(bus, 16) << 12)
            | (int(device, 16) << 4)
            | int(function or "0", 16)
        )
    except ValueError:
        return None
