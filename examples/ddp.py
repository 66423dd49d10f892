"""DistributedDataParallel on all ranks of a node, with a DataLoader, without a framework.

    torchrun --nproc-per-node 2 examples/ddp.py
    diag run --nproc 2 --out runs/ddp examples/ddp.py

The second line trains the same, and records where the time of each step goes.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, BATCH, WIDTH = 30, 32, 256


def main() -> None:
    on_gpu = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    torch.manual_seed(0)

    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10)).to(device)
    ddp = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)

    # Your own data goes here.
    samples = STEPS * BATCH * dist.get_world_size()
    data = TensorDataset(torch.randn(samples, WIDTH), torch.randint(0, 10, (samples,)))
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data), num_workers=1, pin_memory=on_gpu)

    for step, (inputs, labels) in enumerate(loader):
        logits = ddp(inputs.to(device, non_blocking=True))
        loss = nn.functional.cross_entropy(logits, labels.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step}  loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
