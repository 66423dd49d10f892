"""A training as a user writes one, that records some of its steps and not the others: see ``attach_overhead``."""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _get_default_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from diag.collectors.accelerator import accelerator_of
from diag.collectors.attach import hooks
from diag.collectors.attach.life import Attachment
from diag.collectors.layout import RunLayout
from diag.collectors.policy import RECORDING
from diag.collectors.recording import record
from diag.collectors.settings import CollectorSettings
from diag.collectors.trainer.loop import Place, connect

# Layers, width, sequence, batch of a rank.
SHAPES = {"small": (2, 128, 64, 8), "medium": (3, 192, 96, 8), "large": (4, 256, 128, 8)}
FOR_GPU = {"gpu": (8, 512, 256, 16)}
VOCABULARY = 512
WARM_UP = 3  # steps, while DDP builds its buckets
BLOCK = 8  # steps that are measured of a block with a window, or without
BATCHES = 2000  # of an epoch
BARE, AGAIN, ALWAYS = TURNS = ("bare", "bare again", "always on")
WITHOUT, WINDOW = "a block without a window", "a block with a window"
ALWAYS_ON = CollectorSettings(trace=False)
BLOCKS = {WITHOUT: ALWAYS_ON, WINDOW: CollectorSettings(trace_skip=WARM_UP + 1)}

Times = tuple[float, float]  # seconds, and seconds of CPU of this process


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
    """One model, optimizer and loader through all steps, whatever is recorded."""

    def __init__(self, size: str, device: torch.device) -> None:
        layers, width, length, batch = (SHAPES | FOR_GPU)[size]
        torch.manual_seed(0)
        self.device = device
        self.model = Model(layers, width).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        data = TensorDataset(torch.randint(VOCABULARY, (BATCHES * batch * dist.get_world_size(), length + 1)))
        sampler = DistributedSampler(data)
        self.batches = endless(DataLoader(data, batch, sampler=sampler, num_workers=1, persistent_workers=True))

    def step(self, module: nn.Module) -> None:
        tokens = next(self.batches)[0].to(self.device)
        logits = module(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def alternating(self, turns: int, run: Path) -> dict[str, list[Times]]:
        """Every step of every mode, which take turns: all through one DDP wrapper, since the buckets of another lie
        elsewhere in the memory, which takes time of its own."""
        found: dict[str, list[Times]] = {mode: [] for mode in TURNS}
        module = DistributedDataParallel(self.model)
        for _ in range(WARM_UP):
            self.step(module)
        life = Attachment(run, ALWAYS_ON, explicit=True)
        life.begin()
        for _ in range(WARM_UP):
            self.step(module)
        stretch(len(TURNS))  # one step of so many is recorded
        hooks = _Hooks(life)
        barrier = _get_default_group().barrier  # that nobody records
        order = random.Random(0)  # the same on all ranks
        for _ in range(turns):
            for mode in order.sample(TURNS, len(TURNS)):
                hooks.place(mode == ALWAYS)
                barrier().wait()
                seconds, cpu = stopwatch(self.device), time.process_time()
                self.step(module)
                barrier().wait()
                found[mode].append((seconds(), time.process_time() - cpu))
        hooks.place(True)
        life.finish(None)
        stretch(1 / len(TURNS))
        recorded = RunLayout(run).rank(dist.get_rank()).steps.read_bytes().count(b"\n")
        assert turns <= recorded <= turns + 2 * WARM_UP
        return found

    def block(self, mode: str, run: Path) -> Times:
        """Means of its steps, after the warm-up of the block."""
        dist.barrier()
        with record(run, BLOCKS[mode]):
            module = DistributedDataParallel(self.model)
            for _ in range(WARM_UP):
                self.step(module)
            begin, cpu = time.monotonic(), time.process_time()
            for _ in range(BLOCK):
                self.step(module)
            found = (time.monotonic() - begin) / BLOCK, (time.process_time() - cpu) / BLOCK
        del module
        gc.collect()
        return found


class _Hooks:
    """Those of a recording: in place for some steps, and gone for the others, which run what they would without us."""

    def __init__(self, life: Attachment) -> None:
        self._life = life
        self._patched = [*life._hooks.patches._replaced, *life._timer._patches._replaced]

    def place(self, wanted: bool) -> None:
        """Python looks anew for the methods of a class that has been changed: before every step, of each mode alike."""
        self._put(False)
        self._put(wanted)

    def _put(self, ours: bool) -> None:
        for owner, name, original, value in self._patched:
            setattr(owner, name, value if ours else original)
        handles = self._life._handles
        while handles:
            handles.pop().remove()
        if ours:
            handles.extend(hooks.install_optimizers(self._life))


def stretch(factor: float) -> None:
    """Times after which a recording does more than to keep a step: those of a training whose every step is recorded."""
    for name in ("between_writes_ns", "cpu_times_from_ns", "queue_looked_at_from_ns"):
        vars(RECORDING)[name] = round(getattr(RECORDING, name) * factor)


def stopwatch(device: torch.device) -> Callable[[], float]:
    """Seconds since now: on the clock of the accelerator, between two of its events, where there is one."""
    accelerator = accelerator_of(device)
    if accelerator is None:
        begun = time.monotonic()
        return lambda: time.monotonic() - begun
    begin, end = accelerator.event(), accelerator.event()
    begin.record()

    def seconds() -> float:
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    return seconds


def endless(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
    while True:
        yield from loader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SHAPES | FOR_GPU, default="small")
    parser.add_argument("--turns", type=int, default=100, help="steps of each mode")
    parser.add_argument("--windows", type=int, default=10, help="blocks with one, and as many without")
    parser.add_argument("--out", type=Path, required=True, help="folder for the times, and for what is recorded")
    options = parser.parse_args()
    torch.set_num_threads(1)
    place = Place.from_env()
    connect(place, place.device(), 300)
    rank = dist.get_rank()
    training = Training(options.size, place.device())
    found = training.alternating(options.turns, options.out / "run")
    for mode in BLOCKS:
        found[mode] = []
    for turn in range(options.windows):
        for mode in sorted(BLOCKS, reverse=bool(turn % 2)):
            run = options.out / f"{mode} {turn}"
            found[mode].append(training.block(mode, run))
            assert len(RunLayout(run).rank(rank).traces()) == (mode == WINDOW)
    (options.out / f"{rank}.json").write_text(json.dumps(found))
    time.sleep(0.3)  # until gloo's thread has let go of the last tensors
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
