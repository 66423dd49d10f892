"""The identity of this process: rank, host, device, and the mapping of its monotonic clock to the wall clock."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from .accelerator import accelerator_of
from .durations import TIMING_VARIABLE, no_timing_because
from .flight_recorder import TORCH
from .launchers import LOCAL_RANK, RANK, WORLD_SIZE, attempt_key, digest, first_number, joins, torchrun_id
from .layout import RankLayout
from .living import boot_id, pid_namespace
from .records import RankRecord
from .settings import settings_from

# torch 2.8 renamed them, and prints a warning where it finds the old name.
_RENAMED_IN = (2, 8)
_OLD_NAMES = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_NEW_NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")


def rank_and_world(environ: Mapping[str, str] = os.environ) -> tuple[int, int, int]:
    """(rank, local rank, world size): from the process group where there is one, else from the launcher's variables."""
    local = first_number(environ, LOCAL_RANK, 0)
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), local, dist.get_world_size()
    return first_number(environ, RANK, 0), local, first_number(environ, WORLD_SIZE, 1)


def job_of(environ: Mapping[str, str] = os.environ, world_size: int = 1) -> str:
    """Equal on all ranks of an attempt of a job, and different in another job: a digest, as the id may name a host. ""
    where no variable names one: a port alone is used again by the next job."""
    run_id = torchrun_id(environ)
    key = attempt_key(world_size, environ) if joins(environ) else ""
    if not key and not run_id:
        return ""
    return digest(key or f"{run_id} {environ.get('MASTER_PORT', '')}")


def identify(device: torch.device) -> RankRecord:
    rank, local_rank, world_size = rank_and_world()
    accelerator = accelerator_of(device)
    return RankRecord(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        boot_id=boot_id(),
        monotonic_ns=time.monotonic_ns(),
        unix_ns=time.time_ns(),
        device=accelerator.name if accelerator is not None else "cpu",
        device_index=device.index if accelerator is not None else None,
        device_uuid=(accelerator.uuid or "") if accelerator is not None else "",
        pid_namespace=pid_namespace(),
        job=job_of(world_size=world_size),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    )


def prepare_environment(layout: RankLayout, nccl_log: bool = True) -> None:
    """Sends NCCL's log and the Flight Recorder's dumps to the run directory, unless the user sent them elsewhere, and
    makes either NCCL Inspector or the Flight Recorder record durations of collectives.

    Must run before ``init_process_group``: both libraries read these variables once.
    """
    layout.folder.mkdir(parents=True, exist_ok=True)
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(layout.nccl_log)} if nccl_log else {}
    for name, value in {**log, **_collective_timing(layout), "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}.items():
        os.environ.setdefault(name, value)
    values = "2000", str(layout.flight_recorder_prefix)
    for old, new, value in zip(_OLD_NAMES, _NEW_NAMES, values, strict=True):
        if old not in os.environ and new not in os.environ:  # else ours might outrank the user's
            os.environ[new if TORCH >= _RENAMED_IN else old] = value


# NCCL loads one profiler plugin. NCCL's and RCCL's are built with the library, and installed next to it or anywhere.
_PLUGINS = ("libnccl-profiler-inspector.so", "librccl-profiler-inspector.so")
_PLUGIN_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/opt/nccl/lib", "/opt/rocm/lib")
_DUMP_EVERY_US = 1_000_000


def _collective_timing(layout: RankLayout) -> dict[str, str]:
    """The variables that enable recording of collective durations: by NCCL Inspector if its plugin is found, else by
    PyTorch's Flight Recorder if the settings ask for it."""
    timing = settings_from().collective_timing
    inspector = _inspector(layout) if timing != "off" else {}
    return inspector or ({} if no_timing_because(timing == "recorder") else {TIMING_VARIABLE: "1"})


def _inspector(layout: RankLayout) -> dict[str, str]:
    """The variables that make NCCL Inspector write into the rank's folder; none where its plugin is not found, or the
    user has chosen a plugin."""
    if "NCCL_PROFILER_PLUGIN" in os.environ:
        return {}
    plugin = inspector_plugin()
    if plugin is None:
        return {}
    layout.inspector.mkdir(exist_ok=True)
    return {
        "NCCL_PROFILER_PLUGIN": str(plugin),
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_DUMP_DIR": str(layout.inspector),
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": str(_DUMP_EVERY_US),
    }


def inspector_plugin() -> Path | None:
    """The Inspector's library: on LD_LIBRARY_PATH, next to the NCCL that torch was installed with, or in the usual
    library folders."""
    beside_torch = Path(torch.__file__).parent
    folders: list[str | Path] = [
        *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)),
        beside_torch / "lib",
        beside_torch.parent / "nvidia" / "nccl" / "lib",
        *_PLUGIN_FOLDERS,
    ]
    candidates = (Path(folder, name) for folder in folders for name in _PLUGINS)
    return next((path for path in candidates if os.path.isfile(path)), None)  # noqa: PTH113  (no error without permission)
