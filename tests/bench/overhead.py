"""What the always-on collectors cost: steps with them against steps without, in turn, in one run of two gloo ranks.

    python -m tests.bench.overhead [--strategy fsdp2] [--preset tiny] [--rounds 15] [--steps 6]

Each round trains some steps with the collectors on (profiler windows off) and as many without, in an order that
alternates, on models that start equal. Prints the median over the rounds of the ratio of the rounds' median step times,
with its 95 % bootstrap interval, the same for CPU time, and for comparison the ratio of two halves that both run
without: the noise of this machine. Goal: 1.01 or less. In a fourth mode the collectors are on and a packer stores what
they write every second, thirty times as often as by default; in the others it is stopped.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from diag.collectors.packing import MODULE, PACK_VARIABLE, Packing
from diag.collectors.records import PHASES
from diag.collectors.session import Collector
from diag.collectors.settings import CollectorSettings
from diag.collectors.trainer.data import Batches, ByteCorpus, ShardedSampler, build_loader, documents
from diag.collectors.trainer.inject import Injector
from diag.collectors.trainer.loop import NullCollector, Trainer
from diag.collectors.trainer.options import TrainerOptions
from diag.collectors.trainer.strategies import create
from tests.bench._paired import paired_ratio
from tests.ports import rendezvous

RANKS = 2
MODES = ("with", "without", "without again", "packed")
RECORDED = ("with", "packed")


def trainer_of(options: TrainerOptions, batches: Batches, watched: Collector | None) -> Trainer:
    """A trainer with a model of its own. DDP's hook stays on its module, so the bare modes need a bare module."""
    strategy = create(options, torch.device("cpu"))
    strategy.build()
    if watched is not None and isinstance(strategy.model, DistributedDataParallel):
        watched.watch_ddp(strategy.model)
    injector = Injector((), dist.get_rank(), RANKS, torch.device("cpu"))
    return Trainer(options, strategy, batches, injector, watched or NullCollector(), torch.device("cpu"))


def steps_of(trainer: Trainer, first: int, count: int) -> tuple[float, float]:
    """Median step time of this rank, and CPU time a step, both in seconds."""
    walls = []
    cpu = time.process_time()
    for step in range(first, first + count):
        begin = time.perf_counter()
        with trainer.collector.step(step) as record:
            trainer.step(step, record)
        walls.append(time.perf_counter() - begin)
    return median(walls), (time.process_time() - cpu) / count


def rank_main(rank: int, rendezvous: str, options: TrainerOptions, rounds: int, steps: int, folder: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=RANKS)
    shape = options.shape()
    corpus = ByteCorpus(documents(None), shape.seq_len)
    sampler = ShardedSampler(len(corpus), shape.batch_size, rank, RANKS, options.seed)
    loader = build_loader(corpus, sampler, num_workers=1, prefetch_factor=2, pin_memory=False)
    batches = Batches(loader, sampler)
    collector = Collector(Path(folder) / "run", CollectorSettings(trace=False))
    trainers = {mode: trainer_of(options, batches, collector if mode in RECORDED else None) for mode in MODES}
    for trainer in trainers.values():
        trainer.collector, kept = NullCollector(), trainer.collector
        steps_of(trainer, 0, 4)  # warm-up
        trainer.collector = kept
    measured: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    packer = start_packer(folder) if rank == 0 else None
    for turn in range(rounds):
        first = turn % len(MODES)
        for mode in MODES[first:] + MODES[:first]:
            if packer is not None:
                packer.send_signal(signal.SIGCONT if mode == "packed" else signal.SIGSTOP)
            dist.barrier()
            if mode in RECORDED:
                with Collector(Path(folder) / "run", CollectorSettings(trace=False)) as collector:
                    trainers[mode].collector = collector
                    measured[mode].append(steps_of(trainers[mode], turn * steps, steps))
            else:
                measured[mode].append(steps_of(trainers[mode], turn * steps, steps))
    batches.close()
    if packer is not None:
        packer.kill()
        packer.wait()
        report(options, measured, rounds * steps)
    dist.barrier()
    dist.destroy_process_group()


def start_packer(folder: str) -> subprocess.Popen[bytes]:
    packing = Packing(f"file://{folder}/out", 1.0)
    command = [sys.executable, "-m", MODULE, f"{folder}/run", str(os.getpid())]
    return subprocess.Popen(command, env={**os.environ, PACK_VARIABLE: packing.to_json()})


def report(options: TrainerOptions, measured: dict[str, list[tuple[float, float]]], steps: int) -> None:
    base = 1000 * median(wall for wall, _ in measured["without"])
    print(f"{options.strategy}, {options.preset}, {RANKS} ranks, {steps} steps a mode, {base:.1f} ms a step without")
    pairs = (("with / without", "with"), ("with, packed / without", "packed"), ("noise", "without again"))
    for name, mode in pairs:
        for what, column in (("step time", 0), ("CPU time", 1)):
            ones, others = ([round_[column] for round_ in measured[key]] for key in (mode, "without"))
            print(f"  {name}, {what}: {paired_ratio(ones, others)}")


def counted_work(collectives: int = 12, steps: int = 1000, turns: int = 7) -> None:
    """What one step's recording costs by itself: CPU time of a step that does nothing but call collectives of one rank,
    with the collectors less without, in turn. Free of the noise of a training, so the figure to trust below a percent.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(64)

    def bare(_step: int) -> None:
        for _ in range(collectives):
            dist.all_reduce(tensor)

    def microseconds(step_of: Callable[[int], None]) -> float:
        begin = time.process_time()
        for step in range(steps):
            step_of(step)
        return (time.process_time() - begin) / steps * 1e6

    extra = []
    for _ in range(turns):
        without = microseconds(bare)
        with (
            tempfile.TemporaryDirectory() as folder,
            Collector(Path(folder), CollectorSettings(trace=False)) as collector,
        ):

            def recorded(step: int, collector: Collector = collector) -> None:
                with collector.step(step):
                    for phase in PHASES[:5]:
                        with collector.phase(phase):
                            if phase == PHASES[2]:
                                bare(step)

            extra.append(microseconds(recorded) - without)
    dist.destroy_process_group()
    low, high = min(extra), max(extra)
    print(f"recording alone, {collectives} collectives a step: {median(extra):.0f} us of CPU [{low:.0f}, {high:.0f}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", action="append", choices=["ddp", "fsdp2"])
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    for strategy in arguments.strategy or ["fsdp2", "ddp"]:
        with tempfile.TemporaryDirectory() as folder:
            options = TrainerOptions(strategy=strategy, preset=arguments.preset)
            where = rendezvous(f"{folder}/group")
            mp.spawn(rank_main, (where, options, arguments.rounds, arguments.steps, folder), nprocs=RANKS)
    counted_work()


if __name__ == "__main__":
    main()
