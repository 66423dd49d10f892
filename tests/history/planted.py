"""Trainings of several ranks with what happens to them known, through the writer of the collectors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tests.long_run import LongRun, S

BEGIN_NS = 1_764_000_000 * S
MS = 1_000_000


class Training:
    """A step takes ``step_ms``, with noise. ``at``: see ``LongRun``."""

    def __init__(
        self, folder: Path, ranks: int = 4, byte_budget: int = 50_000_000, step_ms: int = 200, **at: int
    ) -> None:
        self._ranks = [
            LongRun(
                folder, byte_budget, 4, rank, ranks, step_ms * MS, begin_ns=at.get("begin_ns", BEGIN_NS),
                first_step=at.get("first_step", 0), host=f"node{rank // 2}",
            )
            for rank in range(ranks)
        ]  # fmt: skip
        self._random = np.random.default_rng(0)

    def train(self, steps: int, slow: Iterable[int] = (), slow_ms: int = 0) -> Training:
        """Steps in which the ranks ``slow`` compute longer by ``slow_ms``, and the others wait for them."""
        noise = np.abs(self._random.normal(0, 4 * MS, steps)).astype(int).tolist()
        late = set(slow)
        for extra in noise:
            for rank, of_rank in enumerate(self._ranks):
                waited = slow_ms * MS if late and rank not in late else 0
                of_rank.train(1, extra + slow_ms * MS, waited)
        return self

    def pause(self, ms: int) -> Training:
        """Time in which no step runs."""
        for of_rank in self._ranks:
            of_rank.pause(ms * MS)
        return self

    def close(self) -> None:
        for of_rank in self._ranks:
            of_rank.close()
