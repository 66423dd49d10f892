"""Ranks are killed (SIGKILL) at a random moment: the steps that they recorded are true, and the rest is a stated gap.
So it is where each rank is a node of its own with a packer, and packers and whole nodes are killed too.

What a kill does to the training and to the launcher is tested in tests/attach/test_kills.py.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from diag.api import Result, open_run
from diag.collectors.layout import RunLayout
from diag.collectors.packing import MODULE, PACK_VARIABLE, Packing
from diag.collectors.session import Collector
from diag.collectors.settings import CollectorSettings
from diag.errors import DiagError
from diag.rundir.delays import interval_s
from diag.rundir.local import copies_folder, local_path
from diag.store.packer import ENDS
from diag.watch.packing import held_back
from diag.words.places import shown
from tests.command import diag
from tests.forked import Forked, call_forked
from tests.matrix import matrix
from tests.patience import PATIENCE_S
from tests.ports import rendezvous

KILLS = 50
RANKS = (0, 1)
INTERVAL_S = 0.3  # of the packers
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
def training(folder: Path, seed: int, packed: bool = False) -> Iterator[list[Forked]]:
    """``packed``: each rank writes into a folder of its own, as on a node."""
    where = rendezvous(folder / "run")
    runs = [folder / (f"node-{rank}" if packed else "run") for rank in RANKS]
    ranks = [
        call_forked(train, rank, where, str(run), str(folder / f"truth_{rank}"), seed)
        for rank, run in zip(RANKS, runs, strict=True)
    ]
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()


def steps_in(folder: Path, rank: int) -> list[int]:
    """The steps that a rank really did."""
    path = folder / f"truth_{rank}"
    return list(map(int, path.read_text().split())) if path.exists() else []


class Packer:
    """Of a rank's node. The test stands for its launcher, which starts another one if it is killed."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._command = [sys.executable, "-m", MODULE, str(folder / f"node-{rank}"), str(os.getpid())]
        packing = Packing(f"file://{folder}/out", INTERVAL_S)
        self._variables = {**os.environ, PACK_VARIABLE: packing.to_json()}
        self.start()

    def start(self) -> None:
        with held_back(ENDS):
            self._process = subprocess.Popen(self._command, env=self._variables)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self._process.terminate()
        assert self._process.wait(PATIENCE_S) == 0


def kill_some(folder: Path, seed: int, packed: bool = False) -> None:
    """Trains, and kills one rank or both at a moment that the seed chooses; the survivor fails or is killed later. If
    packed, some of the packers as well: those of the victims, so that these nodes are lost, or of the others."""
    chance = random.Random(seed)
    victims = chance.choice([(0,), (1,), RANKS])
    with training(folder, seed, packed) as ranks, ExitStack() as stack:
        packers = [Packer(folder, rank) for rank in RANKS] if packed else []
        for packer in packers:
            stack.callback(packer.kill)
        deadline = time.monotonic() + PATIENCE_S
        while not all(steps_in(folder, rank) for rank in RANKS):
            assert time.monotonic() < deadline
            assert all(process.wait(0) is None for process in ranks)
            time.sleep(0.005)
        time.sleep(chance.uniform(0, LONGEST_S))
        lost = chance.choice([(), (), victims]) if packed else ()
        for rank in victims:
            ranks[rank].kill()
            if rank in lost:
                packers[rank].kill()
        for rank, packer in enumerate(packers):
            if rank not in lost and chance.random() < 0.5:
                packer.kill()
                packer.start()
        for process in ranks:
            process.wait(10)
            process.kill()
        for rank, packer in enumerate(packers):
            if rank not in lost:
                packer.end()


def opened(run: Path) -> Result | None:
    try:
        return open_run(run)
    except DiagError as error:
        # Or a node was lost within its first interval, and the other one wrote no step.
        if "recorded no step" in error.message or "manifest.json: is missing" in error.message:
            return None
        raise


@pytest.mark.parametrize("seed", matrix(range(KILLS), range(3)))
def test_recorded_steps_are_true_and_the_rest_is_a_gap(tmp_path: Path, seed: int) -> None:
    kill_some(tmp_path, seed)
    check(tmp_path, tmp_path / "run")


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(KILLS))
def test_so_it_is_at_the_store_of_nodes_packers_and_ranks_that_are_killed(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path / "cache"))
    copies_folder.cache_clear()
    kill_some(tmp_path, seed, packed=True)
    stored = local_path(f"file://{tmp_path}/out")
    if stored.is_dir():
        check(tmp_path, stored)
    else:  # the nodes were lost before their first interval ended
        assert not list(tmp_path.rglob("*.seg"))


def check(tmp_path: Path, run: Path) -> None:
    result = opened(run)
    if result is None:
        assert not any(RunLayout(run).rank(rank).steps.exists() for rank in RANKS)
        return
    recorded = {rank: [record.step for record in own.steps] for rank, own in result.tables.ranks.items()}
    for rank, steps in recorded.items():
        true = steps_in(tmp_path, rank)
        assert steps == true[: len(steps)], f"rank {rank}"
    every, common = set().union(*recorded.values()), set(recorded.get(0, ())) & set(recorded.get(1, ()))
    assert {step.step for step in result.attribution.steps} == every
    if set(result.attribution.ranks) == set(RANKS):
        assert {step.step for step in result.attribution.usable} <= common
    # Which steps were lost is known where another rank, or the rank's last heartbeat, counts more of them.
    incomplete = {gap.path for gap in result.coverage.skipped}
    for rank, steps in recorded.items():
        beat = result.tables.ranks[rank].heartbeat
        known = max(len(every) - 1, beat.steps if beat is not None else 0)
        if rank in result.attribution.ranks:
            assert (shown(str(RunLayout(run).rank(rank).steps)) in incomplete) == (known > len(steps)), rank
        if beat is not None and len(steps) < len(steps_in(tmp_path, rank)) - 1:
            last = (
                f"{INTERVAL_S:g} seconds, the interval of their packers," if interval_s(RunLayout(run)) else "seconds"
            )
            assert incomplete or any(f"steps of the last {last} may be missing" in n for n in result.coverage.notes)


def test_different_numbers_of_steps_are_printed_and_end_with_4(tmp_path: Path) -> None:
    """As a rank leaves them that was killed before it wrote the last hundred."""
    with training(tmp_path, seed=1):
        while len(steps_in(tmp_path, 0)) < 130:
            time.sleep(0.02)
    run = tmp_path / "run"
    lines = [RunLayout(run).rank(rank).steps.read_bytes().splitlines(keepends=True) for rank in RANKS]
    assert min(map(len, lines)) > 24
    RunLayout(run).rank(1).steps.write_bytes(b"".join(lines[1][:24]))
    ended = diag("analyze", run, "--checked")  # a busy machine leaves further gaps, for which ten lines have no room
    assert ended.returncode == 4, ended.stdout
    text = " ".join(ended.stdout.split())
    assert f"22 of {len(lines[0])} steps counted" in text
    assert "holds 24 of " in text
