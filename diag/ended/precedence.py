"""Which fault explains which: the graph by which the cause is chosen where several were seen.

Faults of a smaller priority come first. Within a priority, an edge says which fault explains which, and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Edges:
    """Each of the causes explains each of the effects."""

    causes: tuple[str, ...]
    effects: tuple[str, ...]
    because: str


# What one process reports about its device, its host or its settings before it ends.
OF_A_PROCESS = (
    *("cuda_failure", "cuda_oom", "duplicate_gpu", "env_mismatch", "gdr_acs", "ib_unreachable_rail", "memlock_limit"),
    *("nccl_version_mismatch", "net_bind_failed", "net_no_interface", "net_wrong_interface", "nvls_multicast"),
    *("shm_exhausted", "topology_error"),
)
_CONNECTING = ("net_connect_refused", "net_connect_timeout")
_BUSY = ("slow_rank_preprocess", "slow_rank_eval", "slow_rank_checkpoint", "slow_rank_init")

EXPLAINS = (
    Edges(("same_host_identity",), OF_A_PROCESS, "CUDA cannot open the memory of a GPU that is on another host"),
    Edges(OF_A_PROCESS, ("ib_completion_error",), "transfers fail whenever the other end does"),
    Edges(("ib_completion_error",), _CONNECTING, "a path that loses packets answers no connection"),
    Edges(_CONNECTING, ("net_failure",), "it is the finer word for the same error"),
    Edges(("net_failure",), ("net_connection_lost",), "connections end whenever a process at the other end does"),
    Edges(_BUSY, ("missing_rank",), "a rank that is busy explains that it is missing"),
    Edges(_BUSY, ("stale_store",), "work that a rank shows says more than the count of a barrier"),
)


def edges() -> Iterator[tuple[str, str, str]]:
    """Cause, effect and why, one by one."""
    for group in EXPLAINS:
        for cause in group.causes:
            for effect in group.effects:
                yield cause, effect, group.because


@cache
def level(fault: str) -> int:
    """How many faults of its priority can explain this one, one after the other."""
    return max((1 + level(cause) for cause, effect, _ in edges() if effect == fault), default=0)


@cache
def reason_of(cause: str, effect: str) -> str:
    """Why one fault explains another, along the edges; "" where it does not."""
    for its, explained, because in edges():
        if explained == effect and (its == cause or reason_of(cause, its)):
            return because
    return ""


class Rank(IntEnum):
    """The order within a priority."""

    SURE = 0
    WEAK = 1  # of the priority before, with weak evidence
    LAST = 2  # a process that ended, perhaps as a victim; or a fault that cannot be the cause


class Place(NamedTuple):
    """Of several clues, the one with the smallest place is the cause."""

    priority: int
    rank: Rank
    level: int


FIRST = Place(0, Rank.SURE, 0)  # records show that all else followed from it
DOUBTFUL_END = Place(4, Rank.LAST, 0)  # behind ranks that are missing
NEVER_FIRST = Place(6, Rank.LAST, 0)  # behind every fault that can be a cause


def place_of(fault: str, priority: int, weak: bool = False) -> Place:
    """Weak evidence gives way to all of the next priority."""
    return Place(priority + 1, Rank.WEAK, level(fault)) if weak else Place(priority, Rank.SURE, level(fault))
