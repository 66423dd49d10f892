"""Who this process is: rank, host, device, and how its monotonic clock maps to the wall clock."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from .layout import RankLayout
from .records import RankRecord

# Before torch 2.9 it had another name, of which later ones complain.
_RECORDED_CALLS = (
    "TORCH_FR_BUFFER_SIZE"
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)
    else "TORCH_NCCL_TRACE_BUFFER_SIZE"
)


def rank_and_world(environ: Mapping[str, str] = os.environ) -> tuple[int, int, int]:
    """(rank, local rank, world size): the process group's where there is one, else torchrun's or Slurm's variables."""
    local = int(environ.get("LOCAL_RANK", environ.get("SLURM_LOCALID", "0")))
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), local, dist.get_world_size()
    rank = int(environ.get("RANK", environ.get("SLURM_PROCID", "0")))
    return rank, local, int(environ.get("WORLD_SIZE", environ.get("SLURM_NTASKS", "1")))


def boot_id() -> str:
    """Equal in all processes that share one monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def identify(device: torch.device) -> RankRecord:
    rank, local_rank, world_size = rank_and_world()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return RankRecord(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        boot_id=boot_id(),
        monotonic_ns=time.monotonic_ns(),
        unix_ns=time.time_ns(),
        device=name,
        device_index=device.index if device.type == "cuda" else None,
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    )


def prepare_environment(layout: RankLayout, nccl_log: bool = True) -> None:
    """Sends NCCL's log and the Flight Recorder's dumps into the run directory, unless the user sent them elsewhere.

    Must run before ``init_process_group``: both libraries read these variables once.
    """
    layout.folder.mkdir(parents=True, exist_ok=True)
    prefix = str(layout.flight_recorder_prefix)
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(layout.nccl_log)} if nccl_log else {}
    for name, value in {
        **log,
        _RECORDED_CALLS: "2000",
        "TORCH_FR_DUMP_TEMP_FILE": prefix,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }.items():
        os.environ.setdefault(name, value)
