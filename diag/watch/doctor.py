"""What works on this machine, of what diag can use, and what to do about the rest."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from diag import processes
from diag.collectors.dcgm import ADDRESS_VARIABLE, Exporter
from diag.collectors.settings import SITE
from diag.errors import install_command, is_installed
from diag.version import version
from diag.watch.launch import OLDEST_TORCH
from diag.watch.policy import WATCHING
from diag.watch.probing import path_python
from diag.words.formatting import counted, size

Status = Literal["works", "limited", "missing"]

# Runs in the Python of the training, which may be another one than ours.
_PROGRAM = """
import importlib.util, json, os, sys
about = {"python": sys.version.split()[0], "executable": sys.executable}
try:
    import torch
    about["torch"] = torch.__version__
    about["gpus"] = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    about["distributed"] = torch.distributed.is_available()
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        about["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    folder = sys.argv[1]
    spec = importlib.util.spec_from_file_location(
        "_diag_collectors", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
    sys.modules["_diag_collectors"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["_diag_collectors"])
    from _diag_collectors.identity import inspector_plugin
    plugin = inspector_plugin()
    about["plugin"] = str(plugin) if plugin else None
except Exception as error:
    about["error"] = "%s: %s" % (type(error).__name__, error)
print("diag-doctor: " + json.dumps(about))
"""


class Check(Struct, frozen=True):
    """One thing that was looked at. ``do``: what helps, "" where nothing is to be done."""

    name: str
    status: Status
    found: str
    do: str = ""


def training_python() -> str:
    """The Python that trains, as far as we can guess: ours if it has torch, else the one on PATH."""
    return processes.users_python()[0] if is_installed("torch") else path_python()


def examine(folder: Path, python: str) -> list[Check]:
    """Every check, in the order in which a user needs them. ``folder``: where runs will be recorded; ``python``: the
    training's. An error of one check is its result."""
    training = _of_training(python)
    checks: list[Callable[[], Check]] = [
        lambda: Check(
            "diag", "works", f"{version()} under Python {platform.python_version()} ({processes.users_python()[0]})"
        ),
        lambda: _torch(training),
        *(partial(_of_torch, training, name, look) for name, look in _OF_TORCH),
        _nvml,
        _py_spy,
        _ptrace,
        _node,
        _dcgm,
        lambda: _storage(folder),
        _shared_memory,
        _extras,
    ]
    return [_safely(check) for check in checks]


def _safely(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:  # a driver, or a file system: the others are looked at all the same
        name = getattr(check, "__name__", "").strip("_<>").replace("_", " ") or "check"
        return Check(name, "limited", f"could not look: {type(error).__name__}: {error}")


def _of_training(python: str) -> dict[str, Any]:
    """What the training's Python says of torch; with the key "error" where it cannot be asked."""
    collectors = str(SITE.parent.parent)
    try:
        process = processes.start_training(
            [python, "-c", _PROGRAM, collectors],
            {"DIAG_COLLECT": "off"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        return {"error": f"{python}: {error.strerror or error}"}
    try:
        printed = process.communicate(timeout=WATCHING.check_s)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"error": f"`import torch` takes more than {WATCHING.check_s:.0f} s"}
    for line in printed.splitlines():
        if line.startswith("diag-doctor: "):
            about: dict[str, Any] = json.loads(line.partition(" ")[2])
            return about
    return {"error": f"{python} ended with exit code {process.returncode}"}


def _torch(training: dict[str, Any]) -> Check:
    oldest = ".".join(map(str, OLDEST_TORCH))
    where = f"Python {training.get('python', '?')} ({training.get('executable', '?')})"
    if "torch" not in training:
        do = f"{install_command('torch>=' + oldest)}, or name the Python that trains with --python"
        return Check("torch", "missing", f"{training['error']} in {where}", do)
    found = f"{training['torch']} in {where}"
    if tuple(int(number) for number in re.findall(r"\d+", training["torch"])[:2]) < OLDEST_TORCH:
        return Check("torch", "missing", found, f"recording needs torch {oldest} or newer")
    if "error" in training:
        return Check(
            "torch", "missing", f"{found}; the recorder cannot be imported: {training['error']}", "Python 3.11 or newer"
        )
    return Check("torch", "works", found)


def _gpus(training: dict[str, Any]) -> Check:
    gpus = training.get("gpus") or []
    if gpus:
        names = sorted(set(gpus))
        return Check("GPUs", "works", ", ".join(f"{gpus.count(name)} x {name}" for name in names))
    return Check(
        "GPUs", "limited", "torch sees none; trainings run on CPUs over gloo", "for GPUs: a driver, and torch for it"
    )


def _nccl(training: dict[str, Any]) -> Check:
    if nccl := training.get("nccl"):
        ras = tuple(map(int, nccl.split(".")[:2])) >= (2, 24)
        return Check(
            "NCCL", "works", nccl + (", with RAS (diag triage --ras)" if ras else ", without RAS (2.24 has it)")
        )
    return Check("NCCL", "limited", "not in this torch", "only GPUs need it")


def _inspector(training: dict[str, Any]) -> Check:
    if plugin := training.get("plugin"):
        return Check("NCCL Inspector", "works", plugin)
    return Check(
        "NCCL Inspector", "limited", "no plugin found: collectives on GPUs have no durations outside of windows",
        "put its folder on LD_LIBRARY_PATH, or record with --collective-timing recorder",
    )  # fmt: skip


def _of_torch(training: dict[str, Any], name: str, look: Callable[[dict[str, Any]], Check]) -> Check:
    return look(training) if "torch" in training else Check(name, "limited", "could not look without torch")


_OF_TORCH = (("GPUs", _gpus), ("NCCL", _nccl), ("NCCL Inspector", _inspector))


def _nvml() -> Check:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Check(
            "NVML", "limited", f"{error}: no clocks, power and errors of NVIDIA GPUs", "only NVIDIA GPUs need it"
        )
    with contextlib.suppress(pynvml.NVMLError):
        found = f"driver {pynvml.nvmlSystemGetDriverVersion()}, {pynvml.nvmlDeviceGetCount()} devices"
        pynvml.nvmlShutdown()
        return Check("NVML", "works", found)
    return Check("NVML", "limited", "the driver does not answer")


def _py_spy() -> Check:
    if found := processes.find_program("py-spy"):
        return Check("py-spy", "works", found)
    return Check(
        "py-spy", "limited", "not installed: a hang has the recorder's own stacks alone", install_command("py-spy")
    )


_SCOPES = {
    0: "any process of this user",
    1: "descendants alone",
    2: "administrators alone",
    3: "nobody",
}


def _ptrace() -> Check:
    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return Check("ptrace", "works", "not restricted by Yama; a container may still forbid it (SYS_PTRACE)")
    allowed = _SCOPES.get(scope, "not known")
    if scope == 0 or (scope <= 2 and os.geteuid() == 0):
        return Check("ptrace", "works", f"scope {scope}: py-spy may look at {allowed}")
    do = "diag run is the parent of its ranks; elsewhere: sysctl kernel.yama.ptrace_scope=0, or run py-spy as root"
    return Check("ptrace", "limited", f"scope {scope}: py-spy may look at {allowed}", do)


def _node() -> Check:
    there = [name for name in ("cpu", "memory", "io") if os.access(f"/proc/pressure/{name}", os.R_OK)]
    ports = len(os.listdir("/sys/class/infiniband")) if Path("/sys/class/infiniband").is_dir() else 0  # noqa: PTH208
    rdma = f"{ports} RDMA devices" if ports else "no RDMA device"
    if there:
        return Check("the node's counters", "works", f"pressure of {', '.join(there)}; {rdma}")
    return Check("the node's counters", "limited", f"/proc/pressure cannot be read; {rdma}", "the kernel needs psi=1")


def _dcgm() -> Check:
    exporter, name = Exporter(), "DCGM's exporter"
    if exporter.off:
        return Check(name, "limited", f"not asked: {ADDRESS_VARIABLE} is off")
    do = f"only NVIDIA GPUs need it: run dcgm-exporter on the node, or say in {ADDRESS_VARIABLE} where it answers"
    try:
        told = len(exporter.names())
    except Exception as error:
        return Check(name, "limited", f"{exporter.address} does not answer: {error}", do)
    if not told:
        return Check(name, "limited", f"{exporter.address} tells nothing that is recorded", do)
    return Check(name, "works", f"{exporter.address} tells {counted(told, 'value')} of those that are recorded")


def _storage(folder: Path) -> Check:
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.is_dir())
    try:
        with tempfile.TemporaryDirectory(prefix=".diag-doctor-", dir=there) as place:
            began_s = time.perf_counter()
            with Path(place, "data").open("wb") as file:
                file.write(bytes(WATCHING.doctor_bytes))
                file.flush()
                os.fsync(file.fileno())
            write_s = time.perf_counter() - began_s
            began_s = time.perf_counter()
            for _ in range(WATCHING.doctor_replaces):
                Path(place, "new").write_bytes(b"heartbeat")
                Path(place, "new").replace(Path(place, "heartbeat"))
            replace_s = (time.perf_counter() - began_s) / WATCHING.doctor_replaces
    except OSError as error:
        return Check(
            "storage", "missing", f"{there} cannot be written: {error.strerror}", "name another folder with --out"
        )
    room = shutil.disk_usage(there).free
    found = (
        f"{there}: {size(room)} free, writes {size(WATCHING.doctor_bytes / write_s)}/s, "
        f"replaces a file in {replace_s * 1e3:.2g} ms"
    )
    if room < WATCHING.doctor_room_bytes:
        return Check("storage", "limited", found, "a rank may write 1 GB: less with --byte-budget-mb")
    if replace_s > WATCHING.doctor_slow_replace_s:
        return Check(
            "storage", "limited", found, "each rank replaces a file a second: --pack writes by one process a node"
        )
    return Check("storage", "works", found)


def _shared_memory() -> Check:
    if not Path("/dev/shm").is_dir():
        return Check("/dev/shm", "limited", "not there", "workers of a DataLoader may need it")
    room = shutil.disk_usage("/dev/shm").free
    if room < WATCHING.doctor_shm_bytes:
        return Check(
            "/dev/shm", "limited", f"{size(room)} free", "DataLoader workers need more: docker run --shm-size 8g"
        )
    return Check("/dev/shm", "works", f"{size(room)} free")


_MODULES = {
    "dashboard": "streamlit",
    "notify": "apprise",
    "cluster": "distributed",
    "otel": "opentelemetry.sdk",
    "hta": "hta",
    "s3": "s3fs",
    "gs": "gcsfs",
    "sftp": "paramiko",
}


def _extras() -> Check:
    there = [name for name, module in _MODULES.items() if is_installed(module)]
    others = [name for name in _MODULES if name not in there]
    found = f"installed: {', '.join(there) or 'none'}" + (f"; not: {', '.join(others)}" if others else "")
    return Check("extras", "works", found, "a command that needs one prints how to install it" if others else "")


def lines(checks: list[Check]) -> Iterator[str]:
    """A line for each check, and what to do about it behind an arrow."""
    widest = max(len(check.name) for check in checks)
    for check in checks:
        yield f"{check.status:<8} {check.name:<{widest}}  {check.found}" + (f" -> {check.do}" if check.do else "")
