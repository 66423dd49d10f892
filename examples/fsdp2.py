"""FSDP2 (fully_shard): a small transformer, one shard group a layer.

    torchrun --nproc-per-node 2 examples/fsdp2.py
    diag run --nproc 2 --out runs/fsdp2 examples/fsdp2.py

The second line trains the same, and records where the time of each step goes. On CPUs it takes torch 2.8 or newer.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, BATCH, TOKENS, WORDS, WIDTH, LAYERS = 30, 4, 64, 512, 128, 4


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        layers = [nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True) for _ in range(LAYERS)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden.flatten(0, 1))


def main() -> None:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    torch.manual_seed(0)
    model = Transformer().to(device)
    for part in (*model.layers, model):
        fully_shard(part)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # Your own tokens go here.
    data = TensorDataset(torch.randint(0, WORDS, (STEPS * BATCH * dist.get_world_size(), TOKENS + 1)))
    for step, (batch,) in enumerate(DataLoader(data, BATCH, sampler=DistributedSampler(data))):
        tokens = batch.to(device)
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step}  loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
