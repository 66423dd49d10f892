"""A training job that never ran: hosts, ranks, process ids, addresses, versions, and how it was launched."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from .real_wordings import OWN, Dice, Words

Version = tuple[int, int, int]

# torch and the NCCL that it ships, as far as wheels tell; the last one is a build from source.
PAIRS: tuple[tuple[Version, Version], ...] = (
    ((1, 12, 1), (2, 10, 3)), ((1, 13, 1), (2, 14, 3)), ((2, 0, 1), (2, 14, 3)), ((2, 1, 2), (2, 18, 5)),
    ((2, 3, 1), (2, 20, 5)), ((2, 4, 1), (2, 20, 5)), ((2, 5, 1), (2, 21, 5)), ((2, 6, 0), (2, 21, 5)),
    ((2, 7, 1), (2, 26, 2)), ((2, 8, 0), (2, 27, 3)), ((2, 9, 1), (2, 27, 5)), ((2, 13, 0), (2, 29, 7)),
)  # fmt: skip

# Older ones, which only the cases that speak real words may have.
OLD_PAIRS: tuple[tuple[Version, Version], ...] = (
    ((1, 5, 1), (2, 4, 8)), ((1, 6, 0), (2, 4, 8)), ((1, 7, 1), (2, 7, 8)), ((1, 8, 1), (2, 7, 8)),
    ((1, 9, 1), (2, 7, 8)), ((1, 10, 2), (2, 10, 3)), ((1, 11, 0), (2, 10, 3)), ((2, 2, 2), (2, 19, 3)),
)  # fmt: skip

LAUNCHERS = ("torchrun", "torchrun", "tee", "mpirun", "srun", "pdsh", "kubernetes", "ray")
_ELASTIC = ("torchrun", "tee", "pdsh", "kubernetes")
_HOST_STEMS = ("gpu{:03d}", "node-{:02d}", "dgx-a{:d}", "worker-{:d}", "cn{:04d}", "h100-rack2-{:d}", "ip-10-0-3-{:d}")
_BUS = (0x7000, 0xF000, 0x47000, 0x4E000, 0x87000, 0x90000, 0xB7000, 0xBD000)


@dataclass(frozen=True)
class Host:
    name: str
    address: str
    skew_s: float
    interface: str


@dataclass(frozen=True)
class Rank:
    rank: int
    local: int
    host: Host
    pid: int
    bus: int
    comm: int  # address of the communicator, of this process only


@dataclass(frozen=True)
class Job:
    torch: Version
    nccl: Version
    hosts: tuple[Host, ...]
    ranks: tuple[Rank, ...]
    start: datetime
    level: str  # NCCL_DEBUG
    launcher: str
    layout: str  # one, rank, host
    comm_id: int
    script: str
    timeout_ms: int
    words: Words = OWN
    agent: str = "torchrun"  # what starts the ranks of a host: accelerate, deepspeed, launch, spawn; openmpi or hydra

    @property
    def world(self) -> int:
        return len(self.ranks)

    @property
    def grammar(self) -> str:
        return f"torch {'.'.join(map(str, self.torch))}, NCCL {'.'.join(map(str, self.nccl))}"

    @property
    def elastic(self) -> bool:
        """Whether torchrun's agent runs on each host."""
        return self.launcher in _ELASTIC

    @property
    def end_names_rank(self) -> bool:
        """Whether what started the ranks says which of them ended: some name the last one whatever happened."""
        if self.launcher == "mpirun":
            return self.agent != "hydra" or self.level == "INFO"  # Hydra names a process, NCCL its rank
        return self.launcher == "srun" or (self.elastic and self.agent in ("torchrun", "accelerate"))

    @property
    def prefix_names_rank(self) -> bool:
        return self.launcher in ("mpirun", "srun")

    @property
    def python_names_rank(self) -> bool:
        """torch's excepthook writes [rankN]: before a traceback since 2.4."""
        return self.torch >= (2, 4, 0) or self.prefix_names_rank

    @property
    def nccl_names_rank(self) -> bool:
        """NCCL's lines name a rank through the initialisation lines of the same process, or the prefix."""
        return self.level == "INFO" or self.prefix_names_rank

    def of(self, host: Host) -> tuple[Rank, ...]:
        return tuple(rank for rank in self.ranks if rank.host is host)

    def clock(self, host: Host, t: float) -> datetime:
        """What the host's clock shows ``t`` seconds after the start."""
        return self.start + timedelta(seconds=t + host.skew_s)


def make_job(
    rng: random.Random,
    *,
    nodes: tuple[int, ...] = (1, 1, 2, 4, 8),
    per_node: tuple[int, ...] = (2, 4, 8),
    level: str | None = None,
    torch: tuple[Version, Version] = ((1, 12, 0), (9, 0, 0)),
    nccl: tuple[Version, Version] = ((2, 10, 0), (9, 0, 0)),
    launchers: tuple[str, ...] = LAUNCHERS,
    layouts: tuple[str, ...] = ("one", "rank", "host"),
    world: tuple[int, int] = (2, 64),
    oldest: Version | None = None,
    agents: tuple[str, ...] = ("torchrun", "accelerate"),
) -> Job:
    """A random job within the bounds. Upper bounds of versions are exclusive.

    ``oldest`` NCCL, and ``agents``: what a case with real words may have instead; the builder says
    what can be told then.
    """
    pairs = [pair for pair in PAIRS if torch[0] <= pair[0] < torch[1] and nccl[0] <= pair[1] < nccl[1]]
    chosen_torch, chosen_nccl = rng.choice(pairs)
    sizes = [(n, p) for n in nodes for p in per_node if world[0] <= n * p <= world[1]]
    n_nodes, n_ranks = rng.choice(sizes)
    launcher = rng.choice([name for name in launchers if name != "ray" or n_nodes * n_ranks <= 16])
    stem, first = rng.choice(_HOST_STEMS), rng.randrange(1, 90)
    if launcher == "kubernetes":
        stem, first = rng.choice(("train-7f9c-worker-{:d}", "llm-sft-worker-{:d}")), 0
    subnet = f"10.{rng.randrange(256)}.{rng.randrange(256)}"
    skewed = rng.random() < 0.4
    interface = rng.choice(("eth0", "bond0", "ens5", "enp1s0f0", "ib0"))
    hosts = tuple(
        Host(
            stem.format(first + i),
            f"{subnet}.{11 + first + i}",
            rng.uniform(-90, 90) if skewed else rng.uniform(-0.002, 0.002),
            interface,
        )
        for i in range(n_nodes)
    )
    ranks = []
    for index, host in enumerate(hosts):
        pid = rng.randrange(200, 4_000_000) if launcher != "kubernetes" else rng.randrange(40, 90)
        for local in range(n_ranks):
            pid += rng.choice((1, 1, 1, 2))
            comm = 0x55_0000_000000 + rng.randrange(1 << 36) * 16
            ranks.append(Rank(index * n_ranks + local, local, host, pid, _BUS[local], comm))
    words = rng.words if isinstance(rng, Dice) else OWN
    agent = "torchrun"
    if words.real:
        chosen_torch, chosen_nccl = _older(words, (chosen_torch, chosen_nccl), torch[0], torch[1], nccl, oldest)
        agent = _agent(words, launcher, chosen_torch, agents, n_nodes)
        if chosen_torch < (1, 9, 0) and launcher in _ELASTIC and agent in ("torchrun", "accelerate"):
            chosen_torch, chosen_nccl = (1, 12, 1), (2, 10, 3)  # elastic is younger
    start = datetime(2023 + rng.randrange(3), rng.randrange(1, 13), rng.randrange(1, 28), rng.randrange(24), tzinfo=UTC)
    return Job(
        torch=chosen_torch,
        nccl=chosen_nccl,
        hosts=hosts,
        ranks=tuple(ranks),
        start=start + timedelta(seconds=rng.uniform(0, 3600)),
        level=level or rng.choice(("INFO", "INFO", "WARN")),
        launcher=launcher,
        layout=rng.choice(layouts),
        comm_id=rng.getrandbits(64),
        script=rng.choice(("train.py", "finetune.py", "pretrain_gpt.py", "run_clm.py", "main.py")),
        timeout_ms=rng.choice((600_000, 1_800_000, 600_000, 120_000)),
        words=words,
        agent=agent,
    )


def _older(
    words: Words,
    pair: tuple[Version, Version],
    torch_from: Version,
    torch_until: Version,
    nccl: tuple[Version, Version],
    oldest: Version | None,
) -> tuple[Version, Version]:
    """Now and then versions that no case with its own words has."""
    lowest = (oldest, (1, 4, 0)) if oldest else (nccl[0], torch_from)
    found = [old for old in OLD_PAIRS if lowest[0] <= old[1] < nccl[1] and lowest[1] <= old[0] < torch_until]
    return words.rng.choice(found) if found and words.rng.random() < 0.35 else pair


def _agent(words: Words, launcher: str, torch: Version, agents: tuple[str, ...], nodes: int) -> str:
    """What starts the ranks of a host, as far as the launcher leaves that open."""
    if launcher == "mpirun":
        return words.rng.choice(("openmpi", "openmpi", "hydra")) if "deepspeed" in agents else "openmpi"
    if launcher not in _ELASTIC:
        return "torchrun"
    possible = [name for name in agents if (name != "spawn" or nodes == 1) and (name != "launch" or torch < (1, 9, 0))]
    if torch < (1, 9, 0) and any(name in ("deepspeed", "launch", "spawn") for name in possible):
        possible = [name for name in possible if name in ("deepspeed", "launch", "spawn")]
    return words.rng.choice(possible)
