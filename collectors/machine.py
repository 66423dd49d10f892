"""What a machine knows of itself: ports, links, pressure, memory. Read once a minute by one rank of each node.

`readings` reads everything once, and needs nothing else of this package: any process of the node may call it. The
kernel's names are kept, below a prefix for each thing that was read:

    rdma.mlx5_0:1.port_xmit_wait         a port of InfiniBand or RoCE
    net.eth0.rx_dropped                  a network interface with a device behind it
    pcie.0000:3b:00.0.link_width         a GPU or a network card on PCIe
    pressure.cpu.some_us                 pressure stall information
    cpu.steal_ns                         time that the hypervisor gave to others
    memory.oom_kills                     of the whole host
    cgroup.cpu.throttled_us              the control group of this process
    gpu.GPU-<uuid>.memory_used           an NVIDIA GPU, with all of its processes
    dcgm.GPU-<uuid>.sm_active_ppm        the same, as DCGM knows it

Counters run since the machine or the driver started: only their growth belongs to the run. What cannot be read is left
out, and so not known.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from .budget import LineFile
from .dcgm import Exporter
from .device_sampler import value_of
from .fence import Fence
from .layout import MOST_NS
from .node_lock import NodeLock
from .policy import RECORDING
from .records import MachineRecord


def _holds(lock: NodeLock) -> bool:
    try:
        return lock.hold()
    except OSError:  # it cannot be made here: what the machine knows is not known then
        return False


class MachineSampler:
    """Writes what the machine knows now and then, if this rank is the node's that does. In a thread of its own: a
    driver that hangs must not delay heartbeats."""

    def __init__(
        self, file: LineFile, lock: Callable[[], NodeLock], interval_s: float, nvml: bool, fence: Fence
    ) -> None:
        """``lock``: the node's, called when the run directory is there."""
        self._file, self._lock_of_node, self._interval_s = file, lock, interval_s
        self._gpus = Gpus() if nvml else None
        self._exporter = Exporter()
        self._before: dict[str, int] = {}
        self._written = 0
        self._stop = threading.Event()
        self._fence = fence
        self._thread = threading.Thread(target=fence.hook(self._run), name="diag-machine", daemon=True)

    def start(self) -> None:
        if self._interval_s > 0:
            self._thread.start()

    def stop(self) -> None:
        """After a last reading."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(RECORDING.patience_s)

    def _run(self) -> None:
        lock = self._lock_of_node()
        try:
            while not self._fence.off:
                stopping = self._stop.is_set()
                if _holds(lock):
                    if not self._written:
                        lock.remove_left_over()
                    self._file.write(self._record())
                if stopping:
                    return
                self._stop.wait(self._interval_s)
        finally:
            if self._gpus is not None:
                self._gpus.close()
            lock.release()

    def _record(self) -> MachineRecord:
        now_ns, values = time.monotonic_ns(), readings(gpus=self._gpus, exporter=self._exporter)
        before, self._before = self._before, values
        whole = self._written % RECORDING.machine_lines_to_a_whole == 0
        self._written += 1
        if whole:
            return MachineRecord(now_ns, dict(values))
        changed = {name: value for name, value in values.items() if before.get(name) != value}
        return MachineRecord(now_ns, changed | dict.fromkeys(before.keys() - values.keys()), whole=False)


def readings(root: Path = Path("/"), gpus: Gpus | None = None, exporter: Exporter | None = None) -> dict[str, int]:
    """Everything that can be read now, by name. ``root``: the folder in which proc and sys are. ``exporter``: asked for
    the GPUs that NVML shows, and no others: where it answers for another node, all that it says is left out."""
    parts = (_rdma, _interfaces, _pcie, _pressure, _cpu, _host_memory, _cgroup)
    found: dict[str, int] = {}
    for part in parts:
        found.update(part(root))
    if gpus is not None:
        found.update(gpus.read())
        if exporter is not None:
            found.update(exporter.read(gpus.uuids))
    # No limit is 2**63 and the like, and a counter that a driver lost is all ones: readers refuse a line with them.
    return {name: value for name, value in found.items() if 0 <= value < MOST_NS}


# Of InfiniBand's ports, and of RoCE and EFA among their hw_counters.
_PORT_COUNTERS = (
    "port_xmit_wait", "port_xmit_discards", "port_rcv_errors", "symbol_error", "link_error_recovery", "link_downed",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors", "port_xmit_data", "port_rcv_data",
)  # fmt: skip
_HW_COUNTERS = (
    "out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err",
    "out_of_buffer", "np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets", "roce_adp_retrans",
    "roce_adp_retrans_to", "roce_slow_restart", "rx_icrc_encapsulated",
    "retrans_bytes", "retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events",
)  # fmt: skip


def _rdma(root: Path) -> Iterator[tuple[str, int]]:
    for device in _folders(root / "sys/class/infiniband"):
        for port in _folders(device / "ports"):
            prefix = f"rdma.{device.name}:{port.name}."
            for folder, counters in (("counters", _PORT_COUNTERS), ("hw_counters", _HW_COUNTERS)):
                yield from _numbers(prefix, ((name, port / folder / name) for name in counters))
            state = re.match(r"(\d+):", _text(port / "state"))  # "4: ACTIVE"
            if state is not None:
                yield f"{prefix}active", int(state[1] == "4")
            rate = re.match(r"([\d.]+) Gb/sec", _text(port / "rate"))  # "200 Gb/sec (4X HDR)"
            if rate is not None:
                yield f"{prefix}rate_mbit", round(1000 * float(rate[1]))


_INTERFACE_COUNTERS = (
    "rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors", "rx_missed_errors", "tx_carrier_errors",
    "rx_bytes", "tx_bytes",
)  # fmt: skip


def _interfaces(root: Path) -> Iterator[tuple[str, int]]:
    for interface in _folders(root / "sys/class/net"):
        if not (interface / "device").exists():  # loopback, bridges, tunnels
            continue
        prefix = f"net.{interface.name}."
        yield from _numbers(prefix, ((name, interface / "statistics" / name) for name in _INTERFACE_COUNTERS))
        yield from _numbers(prefix, [("carrier_changes", interface / "carrier_changes")])
        for name, value in _numbers(prefix, [("speed_mbit", interface / "speed")]):
            if value > 0:  # -1: not known
                yield name, value
        state = _text(interface / "operstate")
        if state in ("up", "down"):
            yield f"{prefix}up", int(state == "up")


# Classes of PCI devices: graphics, accelerators, Ethernet, InfiniBand.
_PCI_CLASSES = ("0x03", "0x12", "0x0200", "0x0207")


def _pcie(root: Path) -> Iterator[tuple[str, int]]:
    for device in _folders(root / "sys/bus/pci/devices"):
        if not _text(device / "class").startswith(_PCI_CLASSES):
            continue
        prefix = f"pcie.{device.name}."
        ends = (("", "current"), ("max_", "max"))
        yield from _numbers(prefix, ((f"link_{most}width", device / f"{file}_link_width") for most, file in ends))
        for most, file in ends:
            speed = re.match(r"([\d.]+) GT/s", _text(device / f"{file}_link_speed"))  # "16.0 GT/s PCIe"
            if speed is not None:
                yield f"{prefix}link_{most}speed_mt", round(1000 * float(speed[1]))
        for kind, total in (("correctable", "COR"), ("nonfatal", "NONFATAL"), ("fatal", "FATAL")):
            count = _fields(device / f"aer_dev_{kind}").get(f"TOTAL_ERR_{total}")
            if count is not None:
                yield f"{prefix}aer_{kind}", count


def _pressure(root: Path) -> Iterator[tuple[str, int]]:
    for kind in ("cpu", "memory", "io"):
        for who, total in re.findall(r"^(some|full) .*total=(\d+)$", _text(root / "proc/pressure" / kind), re.M):
            yield f"pressure.{kind}.{who}_us", int(total)


def _cpu(root: Path) -> Iterator[tuple[str, int]]:
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    name, *ticks = _text(root / "proc/stat").partition("\n")[0].split() or [""]
    if name == "cpu" and len(ticks) >= len(names) and all(count.isdecimal() for count in ticks):
        tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
        spent_ns = {name: int(count) * tick_ns for name, count in zip(names, ticks, strict=False)}
        yield "cpu.steal_ns", spent_ns["steal"]
        yield "cpu.idle_ns", spent_ns["idle"] + spent_ns["iowait"]


def _host_memory(root: Path) -> Iterator[tuple[str, int]]:
    killed = _fields(root / "proc/vmstat").get("oom_kill")
    if killed is not None:
        yield "memory.oom_kills", killed
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", _text(root / "proc/meminfo"), re.M)
    if found is not None:
        yield "memory.available", int(found[1]) << 10


def _cgroup(root: Path) -> Iterator[tuple[str, int]]:
    """Of the second version, or of the first, in which each controller has a tree of its own."""
    paths = dict(re.findall(r"^\d+:([^:]*):(.*)$", _text(root / "proc/self/cgroup"), re.M))
    base = root / "sys/fs/cgroup"
    if _text(base / "cgroup.controllers"):
        folder = _of_group(base, paths.get("", "/"), "cpu.stat")
        cpu, memory = _fields(folder / "cpu.stat"), _fields(folder / "memory.events")
        found = {
            "cpu.throttled": cpu.get("nr_throttled"),
            "cpu.throttled_us": cpu.get("throttled_usec"),
            "memory.oom_kills": memory.get("oom_kill"),
            "memory.at_limit": memory.get("max"),
            "memory.used": _number(folder / "memory.current"),
            "memory.limit": _number(folder / "memory.max"),
        }
    else:
        by_controller = {name: path for names, path in paths.items() for name in names.split(",")}
        cpu_folder, memory_folder = (
            _of_group(base / controller, by_controller.get(controller, "/"), file)
            for controller, file in (("cpu", "cpu.stat"), ("memory", "memory.failcnt"))
        )
        cpu = _fields(cpu_folder / "cpu.stat")
        throttled_ns = cpu.get("throttled_time")
        found = {
            "cpu.throttled": cpu.get("nr_throttled"),
            "cpu.throttled_us": throttled_ns // 1000 if throttled_ns is not None else None,
            "memory.oom_kills": _fields(memory_folder / "memory.oom_control").get("oom_kill"),
            "memory.at_limit": _number(memory_folder / "memory.failcnt"),
            "memory.used": _number(memory_folder / "memory.usage_in_bytes"),
            "memory.limit": _number(memory_folder / "memory.limit_in_bytes"),
        }
    for name, value in found.items():
        if value is not None:
            yield f"cgroup.{name}", value


def _of_group(tree: Path, path: str, file: str) -> Path:
    """The folder of a control group. In a container its path may be that outside, and the tree begins with it."""
    folder = tree / path.lstrip("/")
    return folder if (folder / file).exists() else tree


# -- NVIDIA's GPUs -----------------------------------------------------------------------------------------------------

# Fields of NVML since NVLink 5, by the name that they get here: each summed over the links that have it.
_LINK_FIELDS = {
    "nvlink_rcv_errors": "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS",
    "nvlink_xmit_discards": "NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS",
    "nvlink_effective_errors": "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS",
    "nvlink_symbol_errors": "NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS",
    "nvlink_recoveries": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS",
    "nvlink_failed_recoveries": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
}
# Why the clocks were lowered, and for how long in all.
_VIOLATIONS = {
    "power_violation_ns": "NVML_PERF_POLICY_POWER",
    "thermal_violation_ns": "NVML_PERF_POLICY_THERMAL",
    "sync_boost_violation_ns": "NVML_PERF_POLICY_SYNC_BOOST",
    "board_limit_violation_ns": "NVML_PERF_POLICY_BOARD_LIMIT",
    "reliability_violation_ns": "NVML_PERF_POLICY_RELIABILITY",
}
# By the type that NVML gives a value: the member of the union that holds it.
_INTEGERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal"}


class Gpus:
    """All GPUs that NVML shows this process: memory in use, and by how many processes; for how long the clocks were
    lowered; errors of NVLink 5."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[str, Any] | None = None  # by uuid; None: not yet looked for

    @property
    def uuids(self) -> Collection[str]:
        """Of the GPUs that were read."""
        return (self._handles or {}).keys()

    def read(self) -> Iterator[tuple[str, int]]:
        if self._handles is None:
            self._handles = value_of(self._found) or {}
        for uuid, handle in self._handles.items():
            prefix = f"gpu.{uuid}."
            memory = self._call("MemoryInfo", handle)
            if memory is not None:
                yield f"{prefix}memory_used", int(memory.used)
                yield f"{prefix}memory_total", int(memory.total)
            processes = self._call("ComputeRunningProcesses", handle)
            if processes is not None:
                yield f"{prefix}processes", len(processes)
                held = [process.usedGpuMemory for process in processes]
                if held and None not in held:
                    yield f"{prefix}memory_of_processes", sum(held)
            for name, policy in _VIOLATIONS.items():
                value = self._violation(handle, policy)
                if value is not None:
                    yield f"{prefix}{name}", value
            for name, field in _LINK_FIELDS.items():
                value = self._of_links(handle, field)
                if value is not None:
                    yield f"{prefix}{name}", value

    def close(self) -> None:
        if self._nvml is not None:
            value_of(self._nvml.nvmlShutdown)
        self._nvml, self._handles = None, {}

    def _found(self) -> dict[str, Any]:
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return {str(pynvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}

    def _call(self, name: str, handle: Any) -> Any:
        return value_of(lambda: getattr(self._nvml, f"nvmlDeviceGet{name}")(handle))

    def _violation(self, handle: Any, policy: str) -> int | None:
        number = getattr(self._nvml, policy, None)
        if number is None:
            return None
        answer = value_of(lambda: self._nvml.nvmlDeviceGetViolationStatus(handle, number))
        return int(answer.violationTime) if answer is not None else None

    def _of_links(self, handle: Any, field: str) -> int | None:
        """The sum over the links whose value is read; None where none is."""
        nvml = self._nvml
        links = range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 0))
        number = getattr(nvml, field, None)
        if number is None or not links:
            return None
        answers = value_of(lambda: nvml.nvmlDeviceGetFieldValues(handle, [(number, link) for link in links]))
        known = [
            int(getattr(answer.value, _INTEGERS[answer.valueType]))
            for answer in answers or ()
            if answer.nvmlReturn == 0 and answer.valueType in _INTEGERS
        ]
        return sum(known) if known else None


# -- files of the kernel -----------------------------------------------------------------------------------------------


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[: RECORDING.most_machine_devices]
    except OSError:
        return []


def _text(path: Path) -> str:
    """ "" where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(1 << 16).decode(errors="replace").strip()
    except (OSError, ValueError):
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if re.fullmatch(r"-?\d{1,20}", text) else None


def _numbers(prefix: str, files: Iterable[tuple[str, Path]]) -> Iterator[tuple[str, int]]:
    for name, path in files:
        value = _number(path)
        if value is not None:
            yield prefix + name, value


def _fields(path: Path) -> dict[str, int]:
    """Of a file with a name and a number on each line."""
    return {name: int(value) for name, value in re.findall(r"^(\S+) (\d{1,20})$", _text(path), re.M)}
