"""A training as a user writes one, that leaves the times of its own steps behind: see ``attach_overhead``."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# Layers, width, sequence, batch of a rank.
SHAPES = {"small": (2, 128, 64, 8), "large": (4, 256, 128, 8)}
TOKENS = 512  # the vocabulary
WARM_UP = 5  # steps
EPOCH = 5000  # steps, more than anybody waits for
LOOK = 10  # steps between two looks at the time


class Model(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.embed(tokens)))
        return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SHAPES, default="small")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--times", type=Path, required=True, help="folder for the times of every rank's steps")
    options = parser.parse_args()
    layers, width, length, batch = SHAPES[options.size]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(layers, width))
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randint(TOKENS, (EPOCH * batch * dist.get_world_size(), length + 1)))
    loader = DataLoader(data, batch_size=batch, sampler=DistributedSampler(data), num_workers=1)
    at_s, cpu_s = [], []
    last = torch.zeros(1)
    for step, (tokens,) in enumerate(loader):
        if step >= WARM_UP:
            at_s.append(time.monotonic())
            cpu_s.append(time.process_time())
        if step % LOOK == 0:  # the ranks end together
            last.fill_(float(bool(at_s) and at_s[-1] > at_s[0] + options.seconds))
            dist.broadcast(last, 0)
            if last.item():
                break
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    told = {"at_s": at_s, "cpu_s": cpu_s}
    (options.times / f"{dist.get_rank()}.json").write_text(json.dumps(told))
    time.sleep(0.3)  # until gloo's thread has let go of the last tensors
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
