"""A training as a user writes one, that records itself in some blocks of steps and not in others: see
``attach_overhead``."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from diag.collectors.layout import RunLayout
from diag.collectors.recording import record
from diag.collectors.settings import CollectorSettings

# Layers, width, sequence, batch of a rank.
SHAPES = {"small": (2, 128, 64, 8), "large": (4, 256, 128, 8)}
VOCABULARY = 512
WARM_UP = 3  # steps of a block, while DDP builds its buckets
BATCHES = 2000  # of an epoch
BARE, AGAIN, ALWAYS, WINDOW = "bare", "bare again", "always on", "with a window"
SETTINGS = {
    ALWAYS: CollectorSettings(trace=False),
    WINDOW: CollectorSettings(trace_skip=WARM_UP + 1),
}
MODES = (BARE, AGAIN, ALWAYS, WINDOW)


class Model(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.embed(tokens)))
        return out


class Training:
    """The same model, optimizer and loader through all blocks. DDP keeps a communication hook for as long as it lives:
    it is made anew for every block, around the same model."""

    def __init__(self, size: str) -> None:
        layers, width, length, batch = SHAPES[size]
        torch.manual_seed(0)
        self.model = Model(layers, width)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        data = TensorDataset(torch.randint(VOCABULARY, (BATCHES * batch * dist.get_world_size(), length + 1)))
        sampler = DistributedSampler(data)
        self.batches = endless(DataLoader(data, batch, sampler=sampler, num_workers=1, persistent_workers=True))

    def block(self, mode: str, steps: int, run: Path) -> tuple[float, float]:
        """Seconds of a mean step, and of CPU time a step of this process, after the warm-up of the block."""
        dist.barrier()
        settings = SETTINGS.get(mode)
        with record(run, settings) if settings is not None else contextlib.nullcontext():
            module = DistributedDataParallel(self.model)
            for _ in range(WARM_UP):
                self.step(module)
            begin, cpu = time.monotonic(), time.process_time()
            for _ in range(steps):
                self.step(module)
            found = (time.monotonic() - begin) / steps, (time.process_time() - cpu) / steps
        del module
        gc.collect()
        return found

    def step(self, module: nn.Module) -> None:
        (tokens,) = next(self.batches)
        logits = module(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def endless(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
    while True:
        yield from loader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SHAPES, default="small")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=8, help="that a block measures")
    parser.add_argument("--out", type=Path, required=True, help="folder for the times, and for what is recorded")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    training = Training(options.size)
    training.block(BARE, 10, options.out)
    found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    for turn in range(options.rounds):
        first = turn % len(MODES)
        for mode in MODES[first:] + MODES[:first]:
            run = options.out / f"run-{turn}-{mode}"
            found[mode].append(training.block(mode, options.steps, run))
            own = RunLayout(run).rank(rank)
            assert own.steps.exists() == (mode in SETTINGS)
            assert len(own.traces()) == (mode == WINDOW)
    (options.out / f"{rank}.json").write_text(json.dumps(found))
    time.sleep(0.3)  # until gloo's thread has let go of the last tensors
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
