"""What the trainings beside this have in common: data, and where they are slow."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

BATCH, LENGTH, WIDTH, STEPS = 4, 16, 64, 20
# For DeepSpeed's configuration: with torch's optimizer, since its own would have to be compiled.
TORCH_OPTIMIZER = {"zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True}


class Samples(Dataset[Tensor]):
    """Numbers from 0 to WIDTH - 1; each sample takes ``seconds`` to read."""

    def __init__(self, count: int, seconds: float = 0) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        if index >= self.count:
            raise IndexError(index)
        time.sleep(self.seconds)
        return (torch.arange(LENGTH) + index) % WIDTH


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser()
    options.add_argument("--slow-loader", type=float, default=0, help="seconds a batch")
    options.add_argument("--slow-loader-rank", type=int, default=-1, help="-1: all")
    options.add_argument("--slow-rank", type=int, default=-1)
    options.add_argument("--slow-seconds", type=float, default=0.2, help="a forward of that rank")
    options.add_argument("--accumulate", type=int, default=1)
    options.add_argument("--evaluate-every", type=int, default=0, help="steps")
    options.add_argument("--save-every", type=int, default=0, help="steps")
    options.add_argument("--folder", default="", help="for what is saved")
    return options


def seconds_a_sample(options: argparse.Namespace) -> float:
    everywhere = options.slow_loader_rank < 0
    return options.slow_loader / BATCH if everywhere or rank() == options.slow_loader_rank else 0


def compile_nothing(deepspeed: Any) -> None:
    """DeepSpeed would compile its collectives in shared memory at first use, for two minutes."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def rank() -> int:
    """On this host, which is the only one."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def slow_down(model: nn.Module, options: argparse.Namespace) -> None:
    """Lets the forward of the slow rank begin with a sleep, where it trains."""

    def sleep(module: nn.Module, _args: object) -> None:
        if module.training:
            time.sleep(options.slow_seconds)

    if rank() == options.slow_rank:
        model.register_forward_pre_hook(sleep)
