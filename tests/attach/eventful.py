"""A training as a user writes one, in which a rank is killed or stops for ever. It knows nothing of what it tests."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WIDTH, BATCH, BATCHES = 32, 4, 64


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--until", type=Path, help="train no further than this file is there, however many steps")
    parser.add_argument("--seconds", type=float, default=0, help="that a step takes at least")
    parser.add_argument("--kill", type=int, default=-1, help="the rank that is killed, while the others wait for it")
    parser.add_argument("--hang", type=int, default=-1, help="the rank that stops, while the others wait for it")
    parser.add_argument("--at", type=int, default=6, help="the step in which that happens")
    parser.add_argument("--without-recorder", action="store_true", help="as a torch without a Flight Recorder of gloo")
    parser.add_argument("--once", action="store_true", help="only until torchrun has restarted the training")
    return parser.parse_args()


def take_recorder() -> None:
    for name in ("_dump_fr_trace", "_dump_fr_trace_json"):
        if hasattr(torch._C._distributed_c10d, name):
            delattr(torch._C._distributed_c10d, name)


def endless(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[list[Tensor]]:
    while True:
        yield from loader


def all_see(file: Path) -> bool:
    there = torch.tensor(float(file.exists()))
    dist.all_reduce(there, dist.ReduceOp.MIN)
    return bool(there)


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    if options.without_recorder:
        take_recorder()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(BATCHES * BATCH * world_size, WIDTH))
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))
    happens = not options.once or os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for step, (batch,) in zip(range(options.steps), endless(loader), strict=False):
        loss = model(batch).square().mean()
        if happens and step == options.at and rank == options.kill:
            time.sleep(2)  # on a busy machine the others have yet to print the step before
            os.kill(os.getpid(), signal.SIGKILL)
        if happens and step == options.at and rank == options.hang:
            time.sleep(10_000)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(options.seconds)
        if rank == 0:
            sys.stdout.write(f"step {step} loss {loss.item().hex()}\n")
            sys.stdout.flush()
        if options.until is not None and all_see(options.until):
            break
    time.sleep(0.3)  # until gloo's thread has let go of the last tensors: see train.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
