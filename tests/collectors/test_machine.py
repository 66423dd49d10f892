"""What a machine knows, from a small tree of the kernel's files; and who of a node reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from diag.collectors.budget import Budget, Complaints, LineFile
from diag.collectors.fence import Fence
from diag.collectors.layout import RunLayout
from diag.collectors.machine import Gpus, MachineSampler, readings
from diag.collectors.node_lock import NodeLock
from diag.collectors.records import MachineRecord
from diag.rundir.lines import read_lines

PORT, CARD = "sys/class/infiniband/mlx5_0/ports/1", "sys/bus/pci/devices/0000:3b:00.0"
TREE = {
    f"{PORT}/counters/port_xmit_wait": "123\n",
    f"{PORT}/counters/link_downed": "2\n",
    f"{PORT}/hw_counters/np_cnp_sent": "7\n",
    f"{PORT}/counters/symbol_error": f"{2**64 - 1}\n",
    f"{PORT}/state": "4: ACTIVE\n",
    f"{PORT}/rate": "200 Gb/sec (4X HDR)\n",
    "sys/class/net/eth0/device/vendor": "",
    "sys/class/net/eth0/statistics/rx_dropped": "5\n",
    "sys/class/net/eth0/speed": "-1\n",
    "sys/class/net/eth0/operstate": "down\n",
    "sys/class/net/lo/statistics/rx_dropped": "9\n",
    f"{CARD}/class": "0x030200\n",
    f"{CARD}/current_link_width": "8\n",
    f"{CARD}/max_link_width": "16\n",
    f"{CARD}/current_link_speed": "16.0 GT/s PCIe\n",
    f"{CARD}/aer_dev_correctable": "RxErr 3\nBadTLP 1\nTOTAL_ERR_COR 4\n",
    "sys/bus/pci/devices/0000:00:1f.0/class": "0x060100\n",
    "sys/bus/pci/devices/0000:00:1f.0/current_link_width": "1\n",
    "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=4500\n",
    "proc/stat": "cpu  10 20 30 40 50 0 60 7 0 0\ncpu0 1 2 3 4 5 0 6 7 0 0\n",
    "proc/vmstat": "nr_free_pages 5\noom_kill 3\n",
    "proc/meminfo": "MemTotal: 100 kB\nMemAvailable:   64 kB\n",
}
SECOND = {
    "proc/self/cgroup": "0::/job\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    "sys/fs/cgroup/job/cpu.stat": "usage_usec 9\nnr_throttled 4\nthrottled_usec 700\n",
    "sys/fs/cgroup/job/memory.events": "low 0\nmax 6\noom_kill 1\n",
    "sys/fs/cgroup/job/memory.max": "max\n",
    "sys/fs/cgroup/job/memory.current": "4096\n",
}
FIRST = {
    "proc/self/cgroup": "4:memory:/outside/of/the/container\n1:cpu,cpuacct:/job\n",
    "sys/fs/cgroup/cpu/job/cpu.stat": "nr_throttled 4\nthrottled_time 700000\n",
    "sys/fs/cgroup/memory/memory.failcnt": "6\n",
    "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "4096\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",  # none
}


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_every_part_of_a_machine_is_read(tmp_path: Path) -> None:
    found = readings(tree(tmp_path, TREE))
    tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
    assert found == {
        "rdma.mlx5_0:1.port_xmit_wait": 123,
        "rdma.mlx5_0:1.link_downed": 2,
        "rdma.mlx5_0:1.np_cnp_sent": 7,
        "rdma.mlx5_0:1.active": 1,
        "rdma.mlx5_0:1.rate_mbit": 200_000,
        "net.eth0.rx_dropped": 5,
        "net.eth0.up": 0,
        "pcie.0000:3b:00.0.link_width": 8,
        "pcie.0000:3b:00.0.link_max_width": 16,
        "pcie.0000:3b:00.0.link_speed_mt": 16_000,
        "pcie.0000:3b:00.0.aer_correctable": 4,
        "pressure.cpu.some_us": 4500,
        "cpu.steal_ns": 7 * tick_ns,
        "cpu.idle_ns": 90 * tick_ns,
        "memory.oom_kills": 3,
        "memory.available": 65536,
    }


@pytest.mark.parametrize("files", [FIRST, SECOND], ids=["cgroup v1", "cgroup v2"])
def test_the_control_group_of_the_process_is_read(tmp_path: Path, files: dict[str, str]) -> None:
    assert readings(tree(tmp_path, files)) == {
        "cgroup.cpu.throttled": 4,
        "cgroup.cpu.throttled_us": 700,
        "cgroup.memory.oom_kills": 1,
        "cgroup.memory.at_limit": 6,
        "cgroup.memory.used": 4096,
    }


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    assert readings(tmp_path) == {}
    damaged = tree(tmp_path, dict.fromkeys(TREE | SECOND, "\x00 no number\n"))
    (damaged / PORT / "counters" / "link_downed").unlink()
    (damaged / PORT / "counters" / "link_downed").mkdir()
    assert readings(damaged) == {}


def test_memory_of_all_processes_and_errors_of_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(link: int) -> SimpleNamespace:
        return SimpleNamespace(
            nvmlReturn=int(link == 2), valueType=3, value=SimpleNamespace(uiVal=-1, ullVal=10 + link)
        )

    def no_processes(_handle: object) -> None:
        raise RuntimeError("Not Supported")

    module = ModuleType("pynvml")
    for name, value in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: "GPU-1",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=30, total=80),
        "nvmlDeviceGetComputeRunningProcesses": no_processes,
        "NVML_NVLINK_MAX_LINKS": 3,
        "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS": 5,
        "NVML_PERF_POLICY_POWER": 0,
        "nvmlDeviceGetViolationStatus": lambda handle, policy: SimpleNamespace(
            referenceTime=1, violationTime=5 + policy
        ),
        "nvmlDeviceGetFieldValues": lambda handle, asked: [answer(link) for _, link in asked],
    }.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert dict(Gpus().read()) == {
        "gpu.GPU-1.memory_used": 30,
        "gpu.GPU-1.memory_total": 80,
        "gpu.GPU-1.power_violation_ns": 5,
        "gpu.GPU-1.nvlink_rcv_errors": 21,
    }
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert dict(Gpus().read()) == {}


# -- who reads ---------------------------------------------------------------------------------------------------------

_HOLD = (
    "import sys, pathlib; from diag.collectors.node_lock import NodeLock; "
    "lock = NodeLock.of_run(pathlib.Path(sys.argv[1]), 'n')"
)


def test_another_process_takes_over_from_one_that_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"{_HOLD}; print(lock.hold(), flush=True); sys.stdin.read()", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        lock, elsewhere = NodeLock.of_run(tmp_path, "n"), NodeLock.of_run(tmp_path, "another node")
        assert not lock.hold()
        assert elsewhere.hold()
        holder.kill()
        holder.wait()
        assert lock.hold()
    for one in (lock, elsewhere):
        one.release()
        assert not one.path.exists()


def test_locks_of_processes_that_were_killed_are_removed_and_no_others(tmp_path: Path) -> None:
    names = ("diag-node-held.lock", "diag-node-killed.lock", "diag-node-own.lock", "diag-node-mine.lock", "other.lock")
    held, killed, own, mine, other = (tmp_path / name for name in names)
    made = _HOLD.replace("NodeLock.of_run(pathlib.Path(sys.argv[1]), 'n')", "NodeLock(pathlib.Path(sys.argv[1]))")
    command = [sys.executable, "-c", f"{made}; print(lock.hold(), flush=True); sys.stdin.read()"]
    with (
        subprocess.Popen([*command, str(held)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as living,
        subprocess.Popen([*command, str(killed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as dead,
    ):
        for process in (living, dead):
            assert process.stdout is not None
            assert process.stdout.readline() == "True\n"
        dead.kill()
        dead.wait()
        other.touch()
        lock, another = NodeLock(mine), NodeLock(own)
        assert lock.hold()
        assert another.hold()
        lock.remove_left_over()
        assert sorted(tmp_path.iterdir()) == sorted([held, own, mine, other])
        for path in (held, own, mine):  # the locks are still held, not their files alone there
            asked = subprocess.run([*command, str(path)], input="", capture_output=True, text=True, check=True)
            assert asked.stdout == "False\n", path
        living.kill()
    lock.release()
    another.release()


def test_the_rank_that_reads_the_counters_removes_what_killed_runs_left(tmp_path: Path) -> None:
    left = tmp_path / "diag-node-left.lock"
    left.touch()
    file = LineFile(RunLayout(tmp_path / "run").rank(0).machine, Budget(1 << 20), Complaints(0))
    sampler = MachineSampler(file, lambda: NodeLock(tmp_path / "diag-node-n.lock"), 60.0, nvml=False, fence=Fence())
    sampler.start()
    sampler.stop()
    assert list(tmp_path.glob("*.lock")) == []


def test_a_lock_whose_file_was_removed_is_taken_again_by_one_process_only(tmp_path: Path) -> None:
    """A clean-up of temporary folders removes it, and another process comes first."""
    lock = NodeLock(tmp_path / "lock")
    assert lock.hold()
    lock.path.unlink()
    made = _HOLD.replace("NodeLock.of_run(pathlib.Path(sys.argv[1]), 'n')", "NodeLock(pathlib.Path(sys.argv[1]))")
    command = [sys.executable, "-c", f"{made}; print(lock.hold(), flush=True); sys.stdin.read()", str(lock.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert not lock.hold()
        other.kill()
        other.wait()
    assert lock.hold()
    lock.release()
    assert not lock.path.exists()


def test_runs_at_one_path_in_containers_have_locks_of_their_own(tmp_path: Path) -> None:
    """They may share memory, where the locks are, and have another folder each at this path."""
    run = tmp_path / "run"
    run.mkdir()
    first = NodeLock.of_run(run, "n")
    run.rename(tmp_path / "elsewhere")
    run.mkdir()
    assert NodeLock.of_run(run, "n").path != first.path
    assert NodeLock.of_run(tmp_path / "elsewhere", "n").path != first.path


def test_a_lock_that_cannot_be_made_is_no_lock_that_is_held(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        NodeLock(tmp_path / "no folder" / "lock").hold()


def test_lines_have_what_changed_and_the_last_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 3}])
    path = RunLayout(tmp_path).rank(0).machine
    file = LineFile(path, Budget(1 << 20), Complaints(0))
    sampler = MachineSampler(file, lambda: NodeLock.of_run(tmp_path, "n"), 60.0, nvml=False, fence=Fence())
    monkeypatch.setattr("diag.collectors.machine.readings", lambda gpus, exporter: next(values))
    written = [sampler._record() for _ in range(2)]
    sampler.start()
    sampler.stop()
    read, gaps = read_lines(path, MachineRecord, tmp_path)
    assert not gaps
    assert [(line.values, line.whole) for line in [*written, *read[:1]]] == [
        ({"a": 1, "b": 1}, True),
        ({"b": 2}, False),
        ({"c": 3, "b": None}, False),
    ]
