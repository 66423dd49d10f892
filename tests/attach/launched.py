"""A training whose ranks are not started by torchrun: each way that users start them, in one script."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from train import BATCH, Net, Noise

# The variables that a launcher tells a process its rank by, and how many there are.
VARIABLES = {
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "pmi": ("PMI_RANK", "PMI_SIZE"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS"),
    "torchrun": ("RANK", "WORLD_SIZE"),
}


def train(rank: int, ranks: int, given: argparse.Namespace) -> None:
    """A rank's training, in whatever process it was started."""
    torch.set_num_threads(1)
    if given.group:
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{given.port}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    net = Net(0.1 if rank == given.slow_rank else 0)
    model = DistributedDataParallel(net) if dist.is_initialized() else net
    optimizer = torch.optim.AdamW(model.parameters())
    data = Noise(given.steps * BATCH * ranks, given.slow_loader / BATCH)
    sampler = DistributedSampler(data, num_replicas=ranks, rank=rank, shuffle=False)
    for step, batch in enumerate(DataLoader(data, batch_size=BATCH, sampler=sampler)):
        if step == given.crash_at and rank == 1:
            raise ValueError(f"planted in step {step}")
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"rank {rank} loss {loss.item().hex()}", flush=True)
    if dist.is_initialized() and given.destroy:
        time.sleep(0.3)  # see train.py
        dist.destroy_process_group()


def of_notebook(given: argparse.Namespace) -> None:
    """As ``notebook_launcher`` calls it: ranks in the environment."""
    train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), given)


def of_ray(given: dict[str, Any]) -> None:
    """As Ray Train calls it, which has made the process group."""
    import ray.train

    context = ray.train.get_context()
    train(context.get_world_rank(), context.get_world_size(), argparse.Namespace(**given))


def by_ray(given: argparse.Namespace) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    environment = {name: os.environ[name] for name in given.environment}
    ray.init(
        address=given.address or None,
        num_cpus=None if given.address else 2,
        include_dashboard=False,
        runtime_env={"env_vars": environment} if environment else None,
    )
    config = {**vars(given), "group": False}  # Ray makes it
    trainer = TorchTrainer(
        of_ray,
        train_loop_config=config,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(storage_path=given.folder or str(Path("ray_results").resolve())),
    )
    trainer.fit()
    ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("by", choices=[*VARIABLES, "spawn", "fork", "forkserver", "notebook", "ray"])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--slow-loader", type=float, default=0, help="seconds a batch")
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--crash-at", type=int, default=-1)
    parser.add_argument("--no-group", dest="group", action="store_false", help="each rank trains by itself")
    parser.add_argument("--no-destroy", dest="destroy", action="store_false", help="leaves the group as it is")
    parser.add_argument("--address", default="", help="of a Ray cluster")
    parser.add_argument("--folder", default="", help="for Ray")
    parser.add_argument("--environment", nargs="*", default=[], help="variables that Ray's workers get")
    given = parser.parse_args()
    if given.by in VARIABLES:
        rank, ranks = (int(os.environ[name]) for name in VARIABLES[given.by])
        train(rank, ranks, given)
    elif given.by == "notebook":
        from accelerate import notebook_launcher

        notebook_launcher(of_notebook, (given,), num_processes=2, use_port=str(given.port))
    elif given.by == "ray":
        by_ray(given)
    else:
        start = torch.multiprocessing.start_processes
        start(train, args=(2, given), nprocs=2, start_method=given.by)


if __name__ == "__main__":
    main()
