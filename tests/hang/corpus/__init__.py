"""Logs and dumps of jobs that never ran, with the truth: what went wrong, and who was to blame.

Written from what NCCL's and PyTorch's sources print; no line is taken from anybody's log. Even seeds are for
development, odd seeds are held out: a rule that was tuned on a case must be judged on others.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator

from .classes import BUILDERS
from .model import CLASSES, Blame, Case
from .writing import write

__all__ = ["BUILDERS", "CLASSES", "Blame", "Case", "case", "cases"]


def case(seed: int, fault_class: str, index: int) -> Case:
    """One case; equal arguments give equal bytes."""
    rng = random.Random(zlib.crc32(f"{seed}/{fault_class}/{index}".encode()))
    story = BUILDERS[fault_class](rng, index)
    job = story.job
    return Case(
        id=f"{fault_class}-{seed}-{index}",
        fault_class=fault_class,
        blames=story.blames,
        grammar=job.grammar,
        files=write(story),
        notes=" ".join(story.notes),
        owners={rank.rank: rank.host.name for rank in job.ranks},
        aliases={host.address: host.name for host in job.hosts},
        accept=story.accept,
    )


def cases(seed: int, per_class: int, classes: tuple[str, ...] = CLASSES) -> Iterator[Case]:
    """``per_class`` cases of every class, always the same for a seed."""
    for fault_class in classes:
        for index in range(per_class):
            yield case(seed, fault_class, index)
