"""Ranks are killed (SIGKILL) at a random moment: the steps that they recorded are true, and the rest is a stated gap.

What a kill does to the training and to the launcher is tested in tests/attach/test_kills.py.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from diag.api import Result, open_run
from diag.collectors.layout import RunLayout
from diag.collectors.session import Collector
from diag.collectors.settings import CollectorSettings
from diag.errors import DiagError
from tests.command import diag
from tests.forked import fork_server
from tests.matrix import matrix
from tests.patience import PATIENCE_S
from tests.ports import rendezvous

KILLS = 50
RANKS = (0, 1)
LONGEST_S = 1.5  # from the first step to the kill; a rank holds back lines of up to two seconds


def train(rank: int, rendezvous: str, run_dir: str, truth: str, seed: int) -> None:
    """Steps of 2 to 12 ms without end. Each is written to ``truth`` just before it ends."""
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=len(RANKS))
    settings = CollectorSettings(
        trace=seed % 3 == 0, trace_skip=2, trace_warmup=1, trace_active=2, trace_every=10, interval_s=0.2, nvml=False
    )
    pause = random.Random(seed)
    steps = os.open(truth, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Collector(Path(run_dir), settings) as collector:
        collector.describe(world_size=len(RANKS), backend="gloo")
        number = 0
        while True:
            with collector.step(number):
                with collector.phase("forward"):
                    time.sleep(pause.uniform(0.001, 0.005))
                with collector.phase("backward"):
                    dist.all_reduce(torch.ones(1000))
                os.write(steps, b"%d\n" % number)
            number += 1


@contextmanager
def training(folder: Path, seed: int) -> Iterator[list[BaseProcess]]:
    where = rendezvous(folder / "run")
    ranks = [
        fork_server().Process(
            target=train, args=(rank, where, str(folder / "run"), str(folder / f"truth_{rank}"), seed)
        )
        for rank in RANKS
    ]
    for process in ranks:
        process.start()
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.join()


def steps_in(folder: Path, rank: int) -> list[int]:
    """The steps that a rank really did."""
    path = folder / f"truth_{rank}"
    return list(map(int, path.read_text().split())) if path.exists() else []


def kill_some(folder: Path, seed: int) -> None:
    """Trains, and kills one rank or both at a moment that the seed chooses; the survivor fails or is killed later."""
    chance = random.Random(seed)
    victims = chance.choice([(0,), (1,), RANKS])
    with training(folder, seed) as ranks:
        deadline = time.monotonic() + PATIENCE_S
        while not all(steps_in(folder, rank) for rank in RANKS):
            assert time.monotonic() < deadline
            assert all(process.is_alive() for process in ranks)
            time.sleep(0.005)
        time.sleep(chance.uniform(0, LONGEST_S))
        for rank in victims:
            assert ranks[rank].pid is not None
            os.kill(ranks[rank].pid, signal.SIGKILL)
        for process in ranks:
            process.join(10)


def opened(run: Path) -> Result | None:
    try:
        return open_run(run)
    except DiagError as error:
        if "recorded no step" in error.message:
            return None
        raise


@pytest.mark.parametrize("seed", matrix(range(KILLS), range(3)))
def test_recorded_steps_are_true_and_the_rest_is_a_gap(tmp_path: Path, seed: int) -> None:
    kill_some(tmp_path, seed)
    result = opened(tmp_path / "run")
    if result is None:
        assert not any(RunLayout(tmp_path / "run").rank(rank).steps.exists() for rank in RANKS)
        return
    recorded = {rank: [record.step for record in own.steps] for rank, own in result.tables.ranks.items()}
    for rank, steps in recorded.items():
        true = steps_in(tmp_path, rank)
        assert steps == true[: len(steps)], f"rank {rank}"
    every, common = set().union(*recorded.values()), set(recorded[0]) & set(recorded.get(1, ()))
    assert {step.step for step in result.attribution.steps} == every
    if set(result.attribution.ranks) == set(RANKS):
        assert {step.step for step in result.attribution.usable} <= common
    # Which steps were lost is known where another rank, or the rank's last heartbeat, counts more of them.
    incomplete = {gap.path for gap in result.coverage.skipped}
    for rank, steps in recorded.items():
        beat = result.tables.ranks[rank].heartbeat
        known = max(len(every) - 1, beat.steps if beat is not None else 0)
        if rank in result.attribution.ranks:
            assert (str(RunLayout(tmp_path / "run").rank(rank).steps) in incomplete) == (known > len(steps)), rank
        if beat is not None and len(steps) < len(steps_in(tmp_path, rank)) - 1:
            assert incomplete or any("steps of the last seconds may be missing" in n for n in result.coverage.notes)


def test_different_numbers_of_steps_are_printed_and_end_with_4(tmp_path: Path) -> None:
    """As a rank leaves them that was killed before it wrote the last hundred."""
    with training(tmp_path, seed=1):
        while len(steps_in(tmp_path, 0)) < 130:
            time.sleep(0.02)
    run = tmp_path / "run"
    lines = [RunLayout(run).rank(rank).steps.read_bytes().splitlines(keepends=True) for rank in RANKS]
    assert min(map(len, lines)) > 24
    RunLayout(run).rank(1).steps.write_bytes(b"".join(lines[1][:24]))
    ended = diag("analyze", run)
    assert ended.returncode == 4, ended.stdout
    text = " ".join(ended.stdout.split())
    assert f"22 of {len(lines[0])} steps counted" in text
    assert "holds 24 of " in text
