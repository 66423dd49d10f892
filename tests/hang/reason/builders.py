"""Small jobs to reason about: what each rank says, with or without times, as the reader of logs would hand it on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from diag.ended.model import Source
from diag.hang.model import Communicator, Line, Logs, Member, NcclCall, Process, Speaker, Triage

LAUNCHER = "launcher.log"


@dataclass
class Job:
    """``world`` ranks, ``per_host`` on each of node0, node1, ...; a log file a rank, pids from 1000."""

    world: int = 4
    per_host: int = 2
    known_world: bool = True
    lines: list[Line] = field(default_factory=list)
    communicators: list[Communicator] = field(default_factory=list)
    changed: dict[int, dict[str, object]] = field(default_factory=dict)
    unread: set[int] = field(default_factory=set)
    deduplicated: bool = False
    gaps: tuple[tuple[str, str], ...] = ()

    def host(self, rank: int) -> str:
        return f"node{rank // self.per_host}"

    def process(self, rank: int) -> Process:
        found = Process(
            self.host(rank), 1000 + rank, rank, rank % self.per_host, rank % self.per_host, f"{rank + 1:x}b000"
        )
        return replace(found, paths=(self.path(rank),), **self.changed.get(rank, {}))  # type: ignore[arg-type]

    def path(self, rank: int) -> str:
        return f"rank{rank}.log"

    def say(
        self,
        text: str,
        rank: int | None = None,
        *,
        host: str = "",
        path: str = "",
        source: str = "",
        level: str = "",
        raw: str = "",
        at: float | None = None,
        tagged: bool = True,
    ) -> None:
        """``at``: seconds on the clock of its host. ``tagged``: the line bears host and rank."""
        path = path or (self.path(rank) if rank is not None else LAUNCHER)
        speaker = Speaker(host=host)
        if rank is not None and tagged:
            speaker = Speaker(host=self.host(rank), pid=1000 + rank, rank=rank)
        number = 1 + sum(line.path == path for line in self.lines)
        time_ns = None if at is None else round(at * 1e9)
        self.lines.append(Line(path, number, raw or text, text, speaker, source, level, time_ns=time_ns))

    def warn(self, rank: int, text: str, code: str = "misc/file.cc:1", at: float | None = None) -> None:
        raw = f"{self.host(rank)}:{1000 + rank}:{2000 + rank} [0] {code} NCCL WARN {text}"
        self.say(text, rank, source="nccl", level="WARN", raw=raw, at=at)

    def info(self, rank: int, text: str) -> None:
        raw = f"{self.host(rank)}:{1000 + rank}:{2000 + rank} [0] NCCL INFO {text}"
        self.say(text, rank, source="nccl", level="INFO", raw=raw)

    def using(self, rank: int, interface: str) -> None:
        self.info(rank, f"Bootstrap : Using {interface}<0>")

    def timeout(
        self,
        rank: int,
        seq: int = 100,
        op: str = "ALLREDUCE",
        numel: int = 1000,
        *,
        group: str = "[PG ID 0 PG GUID 0(default_pg) Rank {}] ",
        group_rank: int | None = None,
        at: float | None = None,
        ran: int = 600_010,
    ) -> None:
        prefix = group.format(rank if group_rank is None else group_rank)
        text = (
            f"[Rank {rank if group_rank is None else group_rank}] Watchdog caught collective operation timeout: "
            f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for {ran} "
            "milliseconds before timing out."
        )
        raw = f"[rank{rank}]:[E ProcessGroupNCCL.cpp:607] {prefix}{text}"
        self.say(prefix + text, rank, source="torch", level="ERROR", raw=raw, at=at)

    def traceback(self, rank: int | None, last: str, at: float | None = None) -> None:
        self.say("Traceback (most recent call last):", rank, source="python", at=at)
        self.say('  File "train.py", line 10, in <module>', rank, source="python", at=at)
        self.say(last, rank, source="python", at=at)

    def exit(self, rank: int, code: int, at: float | None = None) -> None:
        self.say(
            f"failed (exitcode: {code}) local_rank: {rank % self.per_host} (pid: {1000 + rank}) of binary: python",
            host=self.host(rank),
            source="launcher",
            level="ERROR",
            at=at,
        )

    def communicate(
        self,
        ranks: list[int] | None = None,
        *,
        started: list[int] | None = None,
        completed: list[int] | None = None,
        ended: str = "",
        calls: dict[int, list[NcclCall]] | None = None,
        size: int | None = None,
    ) -> None:
        """A communicator of these global ranks; by default of all, complete."""
        ranks = list(range(self.world)) if ranks is None else ranks
        started = ranks if started is None else started
        completed = started if completed is None else completed
        members = tuple(
            Member(
                number,
                rank if rank not in self.unread else None,
                rank in started,
                rank in completed,
                ended,
                tuple((calls or {}).get(rank, ())),
            )
            for number, rank in enumerate(ranks)
            if rank in started
        )
        comm_id = f"0x{len(self.communicators) + 1:x}abc"
        for member in members:
            rank = ranks[member.group_rank]
            self.info(rank, f"ncclCommInitRank comm 0x1 rank {member.group_rank} commId {comm_id} - Init START")
        self.communicators.append(Communicator(comm_id, size or len(ranks), members))

    def logs(self) -> Logs:
        processes = []
        for rank in range(self.world):
            process = self.process(rank)
            processes.append(replace(process, rank=None, paths=()) if rank in self.unread else process)
        lines = tuple(sorted(self.lines, key=lambda line: (line.path, line.number)))
        paths = tuple(dict.fromkeys(line.path for line in lines))
        known = [p for p in processes if p.paths]
        index = {p.pid: number for number, p in enumerate(known)}
        communicators = tuple(
            replace(
                c,
                members=tuple(
                    replace(m, process=index.get(processes[m.process].pid)) if m.process is not None else m
                    for m in c.members
                ),
            )
            for c in self.communicators
        )
        world = self.world if self.known_world else None
        return Logs(lines, tuple(known), communicators, world, paths, self.gaps, self.deduplicated)


def call(number: int, op: str = "AllReduce", count: int = 100, datatype: int = 7, root: int = 0) -> NcclCall:
    text = f"{op}: opCount {number:x} count {count} datatype {datatype} root {root}"
    return NcclCall(op, number, count, datatype, root, Source("coll.log", number + 1, text))


def ranks(answer: Triage) -> list[int | None]:
    """Of the culprits."""
    return [culprit.rank for culprit in answer.culprits]
