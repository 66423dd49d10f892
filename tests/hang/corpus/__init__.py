"""Logs and dumps of jobs that never ran, with the truth: what went wrong, and who was to blame.

Half of the cases are worded from what NCCL's and PyTorch's sources print, half from messages that public threads show
(``real_wordings``). Even seeds are for development, odd seeds are held out: a rule that was tuned on a case must be
judged on others.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator

from .classes import BUILDERS
from .model import CLASSES, WORDINGS, Blame, Case
from .real_wordings import Dice, Words
from .writing import write

__all__ = ["BUILDERS", "CLASSES", "WORDINGS", "Blame", "Case", "case", "cases"]


def real_half(seed: int, fault_class: str, index: int) -> bool:
    """Whether a case speaks real words: one of each two neighbours does, the seed says which."""
    return bool((zlib.crc32(f"words {seed}/{fault_class}/{index // 2}".encode()) >> 7 ^ index) & 1)


def case(seed: int, fault_class: str, index: int, wordings: str = "both") -> Case:
    """One case; equal arguments give equal bytes. ``wordings``: "own", "real", or "both" for what the seed says."""
    name = f"{seed}/{fault_class}/{index}"
    real = real_half(seed, fault_class, index) if wordings == "both" else wordings == "real"
    rng = Dice(zlib.crc32(name.encode()))
    rng.words = Words(real, random.Random(zlib.crc32(f"words {name}".encode())))
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
        wordings="real" if real else "own",
        kinds=rng.words.spoken,
    )


def cases(seed: int, per_class: int, classes: tuple[str, ...] = CLASSES, wordings: str = "both") -> Iterator[Case]:
    """``per_class`` cases of every class, always the same for a seed."""
    for fault_class in classes:
        for index in range(per_class):
            yield case(seed, fault_class, index, wordings)
