"""What runs in the ranks besides the bundled trainer: ``python -m tests.gpu.probe WHAT``. Needs torch alone.

``describe`` prints the accelerators as JSON. ``all-reduce``, under torchrun: whether these ranks can communicate.
``gloo``: whether they can with gloo, in the collectives of DDP and FSDP. ``train-by-gloo``: the bundled trainer, so.
``train``, under torchrun: the bundled trainer, recorded, that leaves in each rank's folder what torch itself says of
the same steps: the peaks of the allocator, and what the Flight Recorders hold (probe.json).
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from diag.collectors import flight_recorder
from diag.collectors.accelerator import accelerator_of, current_device
from diag.collectors.layout import RunLayout
from diag.collectors.settings import run_dir_from
from diag.collectors.trainer import loop
from diag.collectors.trainer.__main__ import leave
from diag.collectors.trainer.options import OPTIONS_ENV, TrainerOptions
from tests.gpu.plan import PROBED


def describe() -> None:
    """Of this process's accelerators, all taken to be alike."""
    device = current_device()
    accelerator = accelerator_of(device)
    # What fully_shard asks of a device's streams: those of CPUs lack it in torch 2.6.
    cpu_fsdp2 = hasattr(torch.cpu.Stream, "record_event")
    found: dict[str, Any] = {"gpus": 0, "torch": torch.__version__, "cpu_fsdp2": cpu_fsdp2}
    if accelerator is not None and accelerator.kind.backend == "nccl":
        found["gpus"] = torch.get_device_module(device).device_count()
        found["name"], found["memory"] = accelerator.name, accelerator.capacity
        found["vendor"] = "AMD" if torch.version.hip else "NVIDIA"
        version: Any = torch.cuda.nccl.version
        found["nccl"] = ".".join(map(str, version()))
    print(json.dumps(found))


def all_reduce() -> None:
    place = loop.Place.from_env()
    device = place.device()
    if device.type == "cpu":
        sys.exit("no accelerator for this rank")
    loop.connect(place, device, 30)
    value = torch.ones(8, device=device)
    dist.all_reduce(value)
    if value.sum().item() != 8 * place.world_size:
        sys.exit(f"the all-reduce gave {value.tolist()}")
    dist.destroy_process_group()


def gloo() -> None:
    """Every collective that DDP and FSDP need, on tensors of the accelerator."""
    place = loop.Place.from_env()
    device = place.device()
    _connect_by_gloo(place, device, 30)
    size = place.world_size
    value, whole = torch.ones(8, device=device), torch.empty(8 * size, device=device)
    calls = {
        "all_reduce": lambda: dist.all_reduce(value),
        "broadcast": lambda: dist.broadcast(value, 0),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, value),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(value, whole),
    }
    failed = []
    for name, call in calls.items():
        try:
            call()
            value.sum().item()
        except RuntimeError as error:
            failed.append(f"{name}: {str(error).splitlines()[0]}")
    dist.destroy_process_group()
    if failed:
        sys.exit("Error: gloo with tensors of the GPU: " + "; ".join(failed))


def _connect_by_gloo(place: loop.Place, device: torch.device, timeout_s: float) -> str:
    accelerator = accelerator_of(device)
    if accelerator is not None:
        accelerator.select()
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s), rank=place.rank, world_size=place.world_size)
    return "gloo"


def train_by_gloo() -> None:
    loop.connect, loop.backend_of = _connect_by_gloo, lambda device: "gloo"
    loop.train(TrainerOptions.from_json(os.environ[OPTIONS_ENV]))


def train() -> None:
    """As ``loop.train``; reads the allocator's peak inside of each step, just before the collectors do and reset it."""
    peaks: dict[int, int] = {}
    recorders: dict[str, int] = {}
    problems: list[str] = []
    take_step, leave_group = loop.Trainer.step, dist.destroy_process_group

    def step(trainer: loop.Trainer, number: int, record: Any) -> Any:
        loss = take_step(trainer, number, record)
        if trainer.device.type != "cpu":
            peaks[number] = torch.get_device_module(trainer.device).max_memory_allocated(trainer.device)
        return loss

    def destroy() -> None:
        dumps, complaints = flight_recorder.dumps(stacks=False)
        recorders.update({name: len(pickle.loads(dump)["entries"]) for name, dump in dumps.items()})
        problems.extend(complaints)
        leave_group()

    loop.Trainer.step, dist.destroy_process_group = step, destroy  # type: ignore[assignment, method-assign]
    loop.train(TrainerOptions.from_json(os.environ[OPTIONS_ENV]))
    run = run_dir_from()
    assert run is not None
    said = {"peaks": peaks, "flight_recorders": recorders, "problems": problems}
    RunLayout(run).rank(int(os.environ["RANK"])).at(PROBED).write_text(json.dumps(said))


if __name__ == "__main__":
    {
        "describe": describe, "all-reduce": all_reduce, "gloo": gloo, "train": train, "train-by-gloo": train_by_gloo,
    }[sys.argv[1]]()  # fmt: skip
    leave(0)
