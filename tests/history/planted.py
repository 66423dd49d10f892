"""Trainings of several ranks with what happens to them known, through the writer of the collectors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from tests.long_run import LongRun, S

BEGIN_NS = 1_764_000_000 * S
MS = 1_000_000


class Training:
    """A step takes ``step_ms``, with noise. ``at``: see ``LongRun``."""

    def __init__(
        self,
        folder: Path,
        ranks: int = 4,
        byte_budget: int = 50_000_000,
        step_ms: int = 200,
        on_device: bool = False,
        **at: int,
    ) -> None:
        self._ranks = [
            LongRun(
                folder, byte_budget, 4, rank, ranks, step_ms * MS, begin_ns=at.get("begin_ns", BEGIN_NS),
                first_step=at.get("first_step", 0), host=f"node{rank // 2}", on_device=on_device,
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

    def save(self, ms: int) -> Training:
        """A step with a checkpoint."""
        for of_rank in self._ranks:
            of_rank.train(1, saved_ns=ms * MS)
        return self

    def evaluate(self, ms: int) -> Training:
        """A step with an evaluation."""
        for of_rank in self._ranks:
            of_rank.train(1, saved_ns=ms * MS, last="evaluation")
        return self

    def stall(self, ms: int, rank: int) -> Training:
        """A step in which one rank computes longer."""
        for number, of_rank in enumerate(self._ranks):
            of_rank.train(1, ms * MS, 0 if number == rank else ms * MS)
        return self

    @property
    def end_ns(self) -> int:
        return self._ranks[0].end_ns

    def pause(self, ms: int) -> Training:
        """Time in which no step runs."""
        for of_rank in self._ranks:
            of_rank.pause(ms * MS)
        return self

    def close(self, exit_code: int | None = None) -> None:
        if exit_code is not None:
            update_manifest(RunLayout(self._ranks[0].folder), exit_code=exit_code)
        for of_rank in self._ranks:
            of_rank.close()
