"""What a case of the corpus is: files as a user has them, and the truth."""

from __future__ import annotations

from dataclasses import dataclass, field

CLASSES = (
    "gpu_hardware", "ib_device_fatal", "ib_link_down", "rank_killed_sigkill", "rank_killed_sigbus",
    "rank_killed_sigsegv", "rank_killed_exception", "shm_exhausted", "duplicate_gpu", "cuda_oom", "nvls_multicast",
    "net_no_interface", "net_wrong_interface", "net_connect_timeout", "net_connect_refused", "net_connection_lost",
    "nccl_version_mismatch", "env_mismatch", "ib_completion_error", "gdr_acs", "ib_unreachable_rail", "memlock_limit",
    "mismatch_shape", "mismatch_op", "desync", "ddp_unused_parameters", "missing_rank", "slow_rank_preprocess",
    "slow_rank_eval", "slow_rank_checkpoint", "slow_rank_init", "watchdog_blocked", "p2p_iommu_acs", "cuda_failure",
    "topology_error", "same_host_identity", "net_bind_failed", "net_failure", "storage", "job_cancelled",
    "cascade_store_lost", "healthy", "undetermined",
)  # fmt: skip

WORDINGS = ("own", "real")  # whose words a case speaks: this package's, or those of real_wordings


@dataclass(frozen=True)
class Blame:
    """A right answer to "who": exactly these ranks, or where there are none, exactly these hosts.

    ``also``: ranks that may stand for their host. An empty blame means: naming nobody is right.
    """

    ranks: frozenset[int] = frozenset()
    hosts: frozenset[str] = frozenset()
    also: frozenset[int] = frozenset()

    @property
    def names_someone(self) -> bool:
        return bool(self.ranks or self.hosts)


@dataclass(frozen=True)
class Case:
    """``blames``: the right answers to "who"; without any, that question is not scored.

    ``accept``: other classes that are right too, each with its reason in ``notes``. ``grammar``: whose lines these are.
    ``owners``: host by rank; ``aliases``: host by address. ``kinds``: the kinds of messages that were said, and whether
    in a real wording.
    """

    id: str
    fault_class: str
    blames: tuple[Blame, ...]
    grammar: str
    files: dict[str, bytes]
    notes: str
    owners: dict[int, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    accept: tuple[str, ...] = ()
    wordings: str = "own"
    kinds: dict[str, bool] = field(default_factory=dict)

    @property
    def names_culprit(self) -> bool:
        return bool(self.blames) and all(blame.names_someone for blame in self.blames)

    @property
    def culprits(self) -> str:
        """For people: "rank 3", "host gpu01", or "nobody"."""
        first = self.blames[0] if self.blames else Blame()
        named = [f"rank {rank}" for rank in sorted(first.ranks)]
        named += [f"host {host}" for host in sorted(first.hosts)] if not named else []
        return ", ".join(named) or "nobody"
