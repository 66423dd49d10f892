"""A job as its logs show it: the process that printed a line, the addresses of hosts, the order of lines."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar, cast

from diag.ended.model import Culprit, short_host
from diag.hang.classes import hits_of
from diag.hang.classes.base import Hit
from diag.hang.model import Communicator, Line, Logs, Process, Speaker, grouped
from diag.hang.policy import HANG_EVIDENCE

_INTERFACE = re.compile(r"(?P<name>[\w.@-]+):(?P<address>[0-9a-fA-F.:]+(?:%\w+)?)<\d+>")
_ADDRESS = re.compile(r"^(?P<host>.+?)<(?P<port>\d+)>$")

_BLOCK_HOST = re.compile(r"^\s{1,6}host\s*: ?(\S+)\s*$")  # of torchrun's last block

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Interface:
    """An interface that a host reports to use."""

    host: str
    name: str
    address: str
    line: Line


@dataclass(frozen=True)
class JobLogs:
    """A job's logs, with lookups."""

    logs: Logs

    @cached_property
    def _answers(self) -> dict[object, object]:
        return {}

    def once(self, question: Callable[[JobLogs], Answer]) -> Answer:
        """A function's result for this job, computed once: several rules look at the same time-outs."""
        if question not in self._answers:
            self._answers[question] = question(self)
        return cast(Answer, self._answers[question])

    @cached_property
    def hits(self) -> tuple[Hit, ...]:
        return tuple(hits_of(self.logs.lines))

    @cached_property
    def _by_pattern(self) -> dict[str, list[Hit]]:
        by_pattern: dict[str, list[Hit]] = defaultdict(list)
        for hit in self.hits:
            by_pattern[hit.name].append(hit)
        return by_pattern

    def named(self, *names: str) -> list[Hit]:
        """The hits of these patterns, by file and line."""
        hits = [hit for name in names for hit in self._by_pattern.get(name, ())]
        return sorted(hits, key=lambda hit: (hit.line.path, hit.line.number)) if len(names) > 1 else hits

    def of_class(self, *ids: str) -> list[Hit]:
        return [hit for hit in self.hits if hit.fault_class.id in ids]

    @cached_property
    def communicators(self) -> tuple[Communicator, ...]:
        """The communicators. NCCL before 2.16 prints no commId: there, single members that must form one are joined.

        These are the k-th communicators of one size that each process made, if every rank occurs once. Where several
        groups of a size exist at once, those of one host are joined.
        """
        nth: Counter[tuple[int | None, int]] = Counter()
        alike: dict[tuple[int, int], list[Communicator]] = defaultdict(list)
        for communicator in self.logs.communicators:
            if (
                communicator.comm_id
                or len(communicator.members) != 1
                or communicator.size < 2
                or communicator.members[0].process is None
            ):
                continue
            made = communicator.members[0].process, communicator.size
            alike[communicator.size, nth[made]].append(communicator)
            nth[made] += 1
        joined: list[Communicator] = []
        gone: set[int] = set()
        for ends in alike.values():
            for group in (ends, *self._by_host(ends)):
                members = sorted(
                    (communicator.members[0] for communicator in group), key=lambda member: member.group_rank
                )
                size = group[0].size
                whole = len(members) == size and all(m.group_rank == at for at, m in enumerate(members))
                if whole and not gone & {id(communicator) for communicator in group}:
                    joined.append(Communicator("", group[0].size, tuple(members)))
                    gone |= {id(communicator) for communicator in group}
        return (*joined, *(communicator for communicator in self.logs.communicators if id(communicator) not in gone))

    def _by_host(self, ends: list[Communicator]) -> list[list[Communicator]]:
        by_host: dict[str, list[Communicator]] = defaultdict(list)
        for communicator in ends:
            process = communicator.members[0].process
            by_host[self.logs.processes[process].host if process is not None else ""].append(communicator)
        return [group for host, group in by_host.items() if host]

    # Processes and culprits

    @cached_property
    def _by_path(self) -> dict[str, list[int]]:
        by_path: dict[str, list[int]] = defaultdict(list)
        for index, process in enumerate(self.logs.processes):
            for path in process.paths:
                by_path[path].append(index)
        return by_path

    @cached_property
    def by_rank(self) -> dict[int, Process]:
        """The first process of each global rank."""
        return {process.rank: process for process in reversed(self.logs.processes) if process.rank is not None}

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(process.host for process in self.logs.processes if process.host))

    @cached_property
    def hosts_shown(self) -> set[str]:
        """The hosts of the processes, and those of lines without a known process."""
        return set(self.hosts).union(*self._spoken_hosts.values())

    def process_of(self, line: Line) -> Process | None:
        """The process that printed a line; None where several could have."""
        speaker = line.speaker
        if speaker.rank is not None and speaker.rank in self.by_rank:
            return self.by_rank[speaker.rank]
        process = self.find_process(host=speaker.host, pid=speaker.pid, path=line.path)
        if process is None and speaker.local_rank is not None:
            process = self.find_process(
                host=speaker.host or self.host_of_path(line.path), local_rank=speaker.local_rank
            )
        alone = self._by_path.get(line.path, [])
        shared = line.path in self._launchers or line.path in self._marked
        if process is None and speaker == Speaker() and len(alone) == 1 and not shared:
            process = self.logs.processes[alone[0]] if line.source not in ("launcher", "kernel") else None
        return process

    @cached_property
    def _launchers(self) -> set[str]:
        """Files that a launcher shares with all processes that it started: a process that is named there need not be
        the only one."""
        return {line.path for line in self.logs.lines if line.source == "launcher"}

    @cached_property
    def _marked(self) -> set[str]:
        """Files in which a rank other than 0 marks its lines: who printed a line without its mark is not known."""
        return {line.path for line in self.logs.lines if line.speaker.rank}

    def find_process(
        self, host: str = "", pid: int | None = None, local_rank: int | None = None, path: str = ""
    ) -> Process | None:
        """The only process with this pid, else with this local rank. Pids repeat between containers and hosts."""
        kind, number = ("pid", pid) if pid is not None else ("local rank", local_rank)
        if number is None:
            return None
        places = [("host", host), ("host", "")] if host else [("", "")]
        matches = [process for place in places for process in self._processes.get((kind, number, *place), ())]
        if len(matches) > 1:
            wrote = self._processes.get((kind, number, "path", path), ())
            matches = [process for process in wrote if not host or process.host in ("", host)]
        return matches[0] if len(matches) == 1 else None

    @cached_property
    def _processes(self) -> dict[tuple[str, int, str, str], list[Process]]:
        """The processes by pid and by local rank, each also by host and by path: a job has many of both."""
        found: dict[tuple[str, int, str, str], list[Process]] = defaultdict(list)
        for process in self.logs.processes:
            for kind, number in (("pid", process.pid), ("local rank", process.local_rank)):
                if number is not None:
                    found[kind, number, "", ""].append(process)
                    found[kind, number, "host", process.host].append(process)
                    for path in dict.fromkeys(process.paths):
                        found[kind, number, "path", path].append(process)
        return found

    def host_of_path(self, path: str) -> str:
        """The only host of the processes that wrote to a file and that its launchers name; "" where there are
        several."""
        if path not in self._host_of_paths:
            hosts = {self.logs.processes[index].host for index in self._by_path.get(path, ())} - {""}
            hosts |= self._launched_hosts.get(path, set())
            hosts = hosts or set(self._spoken_hosts.get(path, ())) or set(self._told_hosts.get(path, ()))
            self._host_of_paths[path] = hosts.pop() if len(hosts) == 1 else ""
        return self._host_of_paths[path]

    @cached_property
    def _host_of_paths(self) -> dict[str, str]:
        return {}

    @cached_property
    def _spoken_hosts(self) -> dict[str, set[str]]:
        """Hosts that lines name, by file."""
        return grouped((line.path, line.speaker.host) for line in self.logs.lines if line.speaker.host)

    @cached_property
    def _told_hosts(self) -> dict[str, set[str]]:
        """Hosts that prompts and job scripts tell, by file."""
        told = ((hit.line.path, name) for hit in self.named("host-told") for name in hit.groups.values())
        return grouped((path, short_host(name)) for path, name in told if name != "localhost")

    @cached_property
    def _launched_hosts(self) -> dict[str, set[str]]:
        """Hosts in the launchers' last blocks, by file."""
        matches = ((line.path, match) for line in self.logs.lines if (match := _BLOCK_HOST.match(line.text)))
        return grouped((path, short_host(match[1])) for path, match in matches)

    def culprit(self, line: Line, peer: str = "") -> Culprit:
        """The culprit that printed a line."""
        process = self.process_of(line)
        host = line.speaker.host or self.host_of_path(line.path) or self._host_in_name(line.path)
        if process is not None:
            culprit = culprit_of(process, peer=peer)
            return culprit if culprit.host else replace(culprit, host=host)
        worker = f"worker {line.speaker.worker}" if line.speaker.worker else ""
        return Culprit(rank=line.speaker.rank, host=host, peer=peer or worker)

    def rank_of(self, line: Line) -> int | None:
        return self.culprit(line).rank

    @cached_property
    def _known_hosts(self) -> frozenset[str]:
        spoken = {line.speaker.host for line in self.logs.lines}
        stems = {Path(path).name.partition(".")[0] for path in self.logs.paths}
        return frozenset({*self.hosts, *spoken, *stems} - {""})

    def _host_in_name(self, path: str) -> str:
        """A known host in a file's name, as in ``journal-node7.txt``."""
        name = Path(path).name
        words = re.split(r"[^A-Za-z0-9-]+|(?<=dmesg)-|(?<=journal)-|(?<=kern)-|(?<=messages)-|(?<=syslog)-", name)
        hosts = {word for word in words if word in self._known_hosts and word != name.partition(".")[0]}
        return hosts.pop() if len(hosts) == 1 else ""

    @cached_property
    def _host_of_rank(self) -> dict[int, str]:
        """Hosts of ranks without a communicator, from their lines."""
        speakers = (line.speaker for line in reversed(self.logs.lines))
        return {speaker.rank: speaker.host for speaker in speakers if speaker.rank is not None and speaker.host}

    def of_rank(self, rank: int, host: str = "") -> Culprit:
        """The culprit for a rank. ``host``: the fallback where its host is unknown."""
        process = self.by_rank.get(rank)
        culprit = culprit_of(process) if process is not None else Culprit(rank=rank)
        return culprit if culprit.host else replace(culprit, host=self._host_of_rank.get(rank, host))

    def of_member(self, communicator: Communicator, group_rank: int) -> Culprit:
        """The culprit for a communicator's rank, in the communicator's numbering where the global rank is unknown."""
        rank = self.global_rank(communicator, group_rank)
        if rank is not None:
            return self.of_rank(rank)
        return Culprit(process_group=communicator.comm_id, peer=f"rank {group_rank} of the communicator")

    @cached_property
    def is_initialising(self) -> bool:
        """Whether a member began a communicator's initialisation and did not complete it."""
        return any(m.started and not m.completed for c in self.communicators for m in c.members)

    def address_of(self, rank: int | None) -> str:
        """The address that a rank's process printed as its own; "" where it did not."""
        process = self.by_rank.get(rank) if rank is not None else None
        if process is None:
            return ""
        addresses = [interface.address for interface in self.interfaces if self.process_of(interface.line) is process]
        return addresses[0] if addresses else ""

    def on_host(self, host: str) -> list[Process]:
        return [process for process in self.logs.processes if process.host == host]

    def of_host(self, host: str, peer: str = "") -> Culprit:
        """The culprit for a host, with its rank if it runs only one."""
        processes = self.on_host(host)
        return culprit_of(processes[0], peer=peer) if len(processes) == 1 else Culprit(host=host, peer=peer)

    def global_rank(self, communicator: Communicator, group_rank: int) -> int | None:
        """The global rank of a member: from its process, or the same number where the communicator is the whole job."""
        rank = self._global_ranks(communicator).get(group_rank)
        return group_rank if rank is None and communicator.size == self.logs.world_size else rank

    def global_ranks(self, communicator: Communicator) -> tuple[int, ...] | None:
        """The global ranks of all members, sorted; None where some are not known."""
        known = self._global_ranks(communicator)
        return tuple(sorted(known.values())) if len(known) == communicator.size else None

    def _global_ranks(self, communicator: Communicator) -> dict[int, int]:
        """The global rank of each member whose process has one."""
        cached = self._ranks_of.get(id(communicator))
        if cached is None:
            known: dict[int, int] = {}
            for member in communicator.members:
                rank = self.logs.processes[member.process].rank if member.process is not None else None
                if rank is not None:
                    known.setdefault(member.group_rank, rank)
            cached = self._ranks_of[id(communicator)] = communicator, known
        return cached[1]

    @cached_property
    def _ranks_of(self) -> dict[int, tuple[Communicator, dict[int, int]]]:
        return {}

    # Interfaces and addresses

    @cached_property
    def interfaces(self) -> tuple[Interface, ...]:
        interfaces = []
        for hit in self.named("bootstrap-using", "socket-using", "ib-oob", "interface-using"):
            host = self.culprit(hit.line).host
            for match in _INTERFACE.finditer(hit.groups["interfaces"]):
                interfaces.append(Interface(host, match["name"].removeprefix("[0]"), match["address"], hit.line))
        return tuple(interfaces)

    @cached_property
    def _hosts_of_address(self) -> dict[str, set[str]]:
        return grouped(
            (interface.address, interface.host)
            for interface in self.interfaces
            if interface.host not in ("", interface.address)
        )

    def resolve(self, peer: str) -> str:
        """The host of ``10.0.0.2<40123>`` or ``node2.cluster<40123>``; "" where it is unknown."""
        match = _ADDRESS.match(peer)
        name = match["host"] if match else peer
        hosts = self._hosts_of_address.get(name, set())
        if len(hosts) == 1:
            return next(iter(hosts))
        known = [host for host in self.hosts if host in (name, short_host(name))]
        return known[0] if known and not hosts else ""

    # Order in time

    def first_timeout(self) -> Line | None:
        """The earliest report of a collective that timed out, by clock where there is one."""
        lines = [hit.line for hit in self.named("watchdog", "blocking-wait")]
        timed = [line for line in lines if line.time_ns is not None]
        return min(timed, key=lambda line: line.time_ns or 0) if timed else lines[0] if lines else None

    def before(self, first: Line, second: Line) -> bool | None:
        """Whether one line was printed before another; None where that is unknown."""
        if first.time_ns is not None and second.time_ns is not None:
            same = self.culprit(first).host == self.culprit(second).host != ""
            apart = second.time_ns - first.time_ns
            return apart > 0 if same or abs(apart) > HANG_EVIDENCE.clocks_of_hosts_ns else None
        return first.number < second.number if first.path == second.path else None


def culprit_of(process: Process, peer: str = "") -> Culprit:
    return Culprit(rank=process.rank, host=process.host, gpu=process.gpu, peer=peer)


def distinct(culprits: list[Culprit]) -> tuple[Culprit, ...]:
    """The culprits without repetitions, by rank, then host. The driver prints a GPU's address in several ways. A
    rank of which another line says more is one culprit."""
    unique: dict[Culprit, Culprit] = {}
    for culprit in culprits:
        number = bus_number(culprit.bus_id)
        unique.setdefault(culprit if number is None else replace(culprit, bus_id=f"{number:x}"), culprit)
    found = [one for one in unique.values() if not any(_is_told_by(one, other) for other in unique.values())]
    return tuple(sorted(found, key=lambda c: (c.rank is None, c.rank or 0, c.host, c.peer)))


def _is_told_by(culprit: Culprit, other: Culprit) -> bool:
    """Whether the other is of the same rank, and has all that is known of this one, and more."""
    if culprit.rank is None or culprit.rank != other.rank or culprit == other:
        return False
    known = ((name, value) for name, value in asdict(culprit).items() if value not in (None, ""))
    return all(getattr(other, name) == value for name, value in known)


def bus_number(text: str) -> int | None:
    """A PCI address as NCCL (``1b000``) or the driver (``0000:1B:00.0``) prints it, as a number."""
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
