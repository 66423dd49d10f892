"""A training with expert parallelism as a user writes one: each rank holds one expert, the router sends most tokens to
one of them, and an all-to-all carries the tokens there and back."""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn

WIDTH, HIDDEN, TOKENS = 256, 1024, 1024


class Exchange(torch.autograd.Function):
    """Rows to the ranks by ``sent``; the gradients go back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        ctx.sent, ctx.received = sent, received
        out = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        out = gradient.new_empty(sum(ctx.sent), gradient.shape[1])
        dist.all_to_all_single(out, gradient.contiguous(), ctx.sent, ctx.received)
        return out, None, None


class Experts(nn.Module):
    """``popular``: how often a token goes to each rank. ``repeat``: how often this rank computes its expert."""

    def __init__(self, popular: list[float], repeat: int, functional: bool) -> None:
        super().__init__()
        self.popular, self.repeat, self.functional = torch.tensor(popular), repeat, functional
        self.attention = nn.Linear(WIDTH, WIDTH)
        self.expert = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x)
        weights = self.popular * (0.2 + torch.rand(len(self.popular)))  # what a router prefers changes
        rank = torch.multinomial(weights, len(x), replacement=True)
        order = rank.argsort()
        counts = torch.bincount(rank, minlength=dist.get_world_size())
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        sent, received = counts.tolist(), arriving.tolist()
        tokens = self._exchange(x[order], sent, received)
        out = sum((self.expert(tokens) for _ in range(self.repeat)), start=torch.zeros_like(tokens))
        back = self._exchange(out, received, sent)
        return x + back[order.argsort()]

    def _exchange(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        if self.functional:
            group = dist.group.WORLD
            return functional.wait_tensor(functional.all_to_all_single_autograd(rows, received, sent, group))
        out: Tensor = Exchange.apply(rows, sent, received)
        return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--popular", type=int, default=-1, help="the rank whose expert gets most tokens")
    parser.add_argument("--slow", type=int, default=-1, help="the rank that computes its expert three times")
    parser.add_argument("--functional", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    popular = [4.0 if each == options.popular else 1.0 for each in range(world)]
    model = nn.Sequential(*[Experts(popular, 3 if rank == options.slow else 1, options.functional) for _ in range(2)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(options.steps):
        loss = model(torch.randn(TOKENS, WIDTH)).square().mean()
        loss.backward()
        for layer in model:
            dist.all_reduce(layer.attention.weight.grad)
        optimizer.step()
        optimizer.zero_grad()
    print("the training is over")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
