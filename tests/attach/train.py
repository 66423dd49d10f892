"""A training as a user writes one: it knows nothing of what it is used to test."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WIDTH, BATCH = 64, 8


class Noise(Dataset[Tensor]):
    """Vectors, of which each takes ``seconds`` to read, and number ``stall`` one second more."""

    def __init__(self, length: int, seconds: float, stall: int = -1) -> None:
        self.length, self.seconds, self.stall = length, seconds, stall

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.seconds + (index == self.stall))
        return torch.full((WIDTH,), index / self.length)


class Net(nn.Module):
    """Four layers; the forward sleeps first."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        if self.seconds and self.training:
            pause(self.seconds)
        out: Tensor = self.layers(x)
        return out


@torch.compiler.disable
def pause(seconds: float) -> None:
    time.sleep(seconds)


def wrapped(net: Net, options: argparse.Namespace) -> nn.Module:
    model: nn.Module = net
    if options.strategy == "ddp":
        model = DistributedDataParallel(net)
    elif options.strategy == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        policy = ModuleWrapPolicy({nn.Linear})
        model = FullyShardedDataParallel(net, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    elif options.strategy == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in net.layers:
            fully_shard(layer)
        fully_shard(net)
    return torch.compile(model, backend=options.compile) if options.compile else model  # type: ignore[return-value]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=["none", "ddp", "fsdp1", "fsdp2"], default="ddp")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--compile", nargs="?", const="inductor", help="by which backend")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--slow-loader", type=float, default=0, help="seconds a batch")
    parser.add_argument("--workers", type=int, default=0, help="processes of the loader")
    parser.add_argument("--stall-rank", type=int, default=-1, help="its loader takes a second more for its first batch")
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-seconds", type=float, default=0.1, help="a forward of that rank")
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--crash-at", type=int, default=-1)
    parser.add_argument("--children", action="store_true", help="forks, and starts a Python of its own")
    parser.add_argument("--profile", action="store_true", help="with torch.profiler")
    return parser.parse_args()


def start_children(step: int) -> None:
    if step != 1:
        return
    pid = os.fork()
    if pid == 0:
        if dist.is_initialized():
            os._exit(0)  # its backward hangs, and so does its end, whether the training is recorded or not
        torch.ones(1, requires_grad=True).sum().backward()
        sys.exit(0)
    os.waitpid(pid, 0)
    work = "import torch; w = torch.ones(1, requires_grad=True); w.sum().backward(); torch.optim.SGD([w]).step()"
    subprocess.run([sys.executable, "-c", work], check=True)


def evaluate(model: nn.Module, loader: DataLoader[Tensor]) -> None:
    model.eval()
    with torch.no_grad():
        for batch in loader:
            model(batch)
    model.train()


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    rank = 0
    if options.strategy != "none":
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    torch.manual_seed(0)
    model = wrapped(Net(options.slow_seconds if rank == options.slow_rank else 0), options)
    optimizer = torch.optim.AdamW(model.parameters())
    data = Noise(options.steps * options.accumulate * BATCH * max(1, int(os.environ.get("WORLD_SIZE", "1"))), 0)
    data.seconds = options.slow_loader / BATCH
    data.stall = rank if rank == options.stall_rank else -1  # its sampler begins with that number
    sampler = DistributedSampler(data, shuffle=False) if options.strategy != "none" else None
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=options.workers)
    validation = DataLoader(Noise(4 * BATCH, 0.005), batch_size=BATCH)
    profiler = torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=2))
    if options.profile:
        profiler.start()
    step = 0
    for count, batch in enumerate(loader, 1):
        loss = model(batch).square().mean() / options.accumulate
        loss.backward()
        if count % options.accumulate:
            continue
        if step == options.crash_at:
            raise ValueError(f"planted in step {step}")
        optimizer.step()
        optimizer.zero_grad()
        if options.profile:
            profiler.step()
        step += 1
        if options.children:
            start_children(step)
        if options.evaluate_every and step % options.evaluate_every == 0:
            evaluate(model, validation)
        if options.save_every and step % options.save_every == 0 and rank == 0:
            torch.save(model.state_dict(), os.environ["SAVE_TO"])
        if step == 1:
            print("training", flush=True)
    if options.profile:
        profiler.stop()
    print(f"loss {loss.item().hex()}")
    if dist.is_initialized():
        # gloo's thread lets go of the last tensors some time after they were waited for, and needs the interpreter's
        # lock for it, which this call holds: one of ten runs on a busy host never ended, without any collector.
        time.sleep(0.3)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
