"""Messages of launchers, schedulers, networks, devices and storage that no public log has shown yet, in the words of
their programs' sources; and lines beside them that mean something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.hang.api import triage
from diag.hang.model import Triage


def of(folder: Path, text: str) -> Triage:
    (folder / "job.log").write_text(f"{text}\n")
    return triage([str(folder)])


KUBELET = "  Warning  {}  2m  kubelet  {}"
UCX = "[n1:71 :0] {} UCX  {}"
ENDS = (
    ("rank_killed_sigkill", "ERROR multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 71 died, exit code: -9"),
    ("rank_killed_sigkill", "[2026-01-05 10:00:00] Child process unexpectedly failed with exitcode=-9. pid=71"),
    ("rank_killed_sigkill", "distributed.nanny - WARNING - Worker process 71 was killed by signal 9"),
    ("rank_killed_sigkill", "ExecutorLostFailure: Container from a bad node: c_1 on host: w3. Exit status: 137. D:"),
    ("rank_killed_sigsegv", "Signal (11) received."),
    ("rank_killed_sigsegv", "!!!!!!! Segfault encountered !!!!!!!"),
    ("rank_killed_sigkill", "slurmstepd: error: Exceeded step memory limit at some point."),
    ("rank_killed_sigkill", KUBELET.format("SystemOOM", "System OOM encountered, victim process: python, pid: 71")),
    ("rank_killed_sigkill", "systemd[1]: fit.service: Failed with result 'oom-kill'."),
    ("rank_killed_sigkill", "     Active: failed (Result: oom-kill) since Fri 2025-11-14 10:46:52 UTC; 3min ago"),
    ("rank_killed_sigkill", "systemd-oomd[8]: Killed /user.slice/x due to memory pressure for /user.slice being 71%"),
    ("rank_killed_sigkill", 'earlyoom[7]: sending SIGKILL to process 71 uid 1000 "python": badness 900, VmRSS 9 MiB'),
    ("rank_killed_exception", "[n1:71] *** MPI_ERR_COMM: invalid communicator"),
    ("rank_killed_exception", "There are not enough slots available in the system to satisfy the 8"),
    ("job_cancelled", "srun: Force Terminated job 812"),
    ("job_cancelled", KUBELET.format("DeadlineExceeded", "Job was active longer than specified deadline")),
)
CRASHES = (
    ("rank_killed_sigsegv", "[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x1]"),
    ("rank_killed_sigsegv", "#  SIGSEGV (0xb) at pc=0x00007f, pid=71, tid=72"),
    ("rank_killed_sigsegv", "Windows fatal exception: access violation"),
    ("rank_killed_sigsegv", "forrtl: severe (174): SIGSEGV, segmentation fault occurred"),
    ("rank_killed_sigsegv", 'Thread 1 "python" received signal SIGSEGV, Segmentation fault.'),
    ("rank_killed_sigkill", "Container killed on request. Exit code is 137"),
    ("rank_killed_sigkill", "OutOfMemoryError: Container killed due to memory usage"),
    ("rank_killed_exception", "panic: runtime error: invalid memory address or nil pointer dereference"),
    ("rank_killed_exception", 'exec: "torchrun": executable file not found in $PATH: unknown'),
    ("rank_killed_exception", "exec /usr/bin/python: exec format error"),
    ("rank_killed_exception", "F external/xla/a.cc:516] Check failed: size == 3 (4 vs. 3)"),
    ("ddp_unused_parameters", "RuntimeError: It looks like your LightningModule has parameters that were not used in "
                              "producing the loss returned by training_step."),
    ("shm_exhausted", "OSError: [Errno 28] No space left on device: '/dev/shm/sem.mp-abc'"),
    ("net_bind_failed", "RuntimeError: Port 29500 already in use"),
    ("net_bind_failed", "listen tcp :6379: bind: address already in use"),
    ("net_connect_timeout", "TimeoutError: [Errno 110] Connection timed out"),
    ("net_connect_timeout", "RuntimeError: No route to host"),
    ("cuda_failure", "pycuda._driver.LogicError: cuModuleLoadDataEx failed: device kernel image is invalid"),
    ("cuda_failure", "hipErrorNoBinaryForGpu: Unable to find code object for all current devices!"),
    ("cuda_failure", "rocBLAS error: Cannot read TensileLibrary.dat: Illegal seek for GPU arch : gfx1032"),
    ("cuda_failure", "Check failed: cudnnSetTensorNdDescriptor(h) == CUDNN_STATUS_SUCCESS (3 vs. 0)"),
)  # fmt: skip
STORAGE = (
    ("storage", KUBELET.format("Evicted", "The node was low on resource: ephemeral-storage. Container t was using 5G")),
    ("storage", KUBELET.format("Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers")),
    ("storage", KUBELET.format("Evicted", 'Usage of EmptyDir volume "scratch" exceeds the limit "8Gi".')),
    ("shm_exhausted", KUBELET.format("Evicted", 'Usage of EmptyDir volume "dshm" exceeds the limit "8Gi".')),
    (
        "storage",
        "safetensors_rust.SafetensorError: Error while serializing: I/O error: Operation not supported (os 95)",
    ),
    ("storage", "SafetensorError:\nError while serializing: I/O error:\nOperation not supported (os error 95)"),
    ("storage", 'SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "x" })'),
    ("storage", "ray.exceptions.OutOfDiskError: Local disk is full"),
    ("storage", "OSError: Unable to open file (unable to lock file, errno = 11, error message = 'Resource')"),
    ("storage", "OSError: [Errno 37] No locks available: '/home/u/cache.lock'"),
    ("storage", "OSError: [Errno 95] Operation not supported: '/mnt/x'"),
    ("storage", "kernel: nfs: server 10.0.0.9 not responding, timed out"),
    ("storage", "kernel: EXT4-fs error (device sda1): ext4_find_entry: reading directory lblock 0"),
    ("storage", 'kernel: XFS (dm-0): metadata I/O error in "xfs_buf_iodone" at daddr 0x1 len 8 error 5'),
    ("storage", "kernel: nvme nvme0: I/O 12 QID 3 timeout, aborting"),
    ("storage", "kernel: ceph: mds0 hung"),
    ("storage", "Lustre: s-OST1-osc-ff: Connection to s-OST1 (at 10.0.0.2@o2ib) was lost; in progress operations wait"),
)
NETWORK = (
    ("net_failure", "pdsh@head: n2: connect: timed out"),
    ("net_failure", "pdsh@head: n2: mcmd: connect failed: Connection refused"),
    ("net_failure", "kex_exchange_identification: read: Connection reset by peer"),
    ("net_failure", "Connection closed by 10.1.2.3 port 22"),
    ("net_failure", "Timeout, server n2 not responding."),
    (
        "net_failure",
        "subprocess.CalledProcessError: Command '['ssh n2 hostname']' returned non-zero exit status 255.",
    ),
    ("net_failure", "srun: error: Unable to confirm allocation for job 812: Connection timed out"),
    ("net_failure", "xgboost.core.XGBoostError: \n- [tracker.cc:286|10:00:00]: Failed to accept connection."),
    ("net_failure", '[mpiexec@n1] HYDU_sock_connect (s.c:1): unable to connect from "n1" to "n2" (Connection refused)'),
    ("net_failure", "PMIX ERROR: UNREACHABLE in file client/pmix_client.c at line 120"),
    ("net_connect_timeout", "RuntimeError: Connection timed out"),
    ("net_connect_timeout", "OSError: Timed out trying to connect to tcp://10.0.0.2:8786 after 30 s"),
    ("net_connect_timeout", "[LightGBM] [Fatal] Connecting to rank 3 failed"),
    ("net_bind_failed", "RuntimeError: [enforce fail at gloo/x.cc:127] rp != nullptr. Unable to find address for: n1"),
    ("net_no_interface", "RuntimeError: [enforce fail at x.cc:84] ifa != nullptr. Unable to find address for: eno1"),
    ("net_bind_failed", "[LightGBM] [Fatal] Binding port 12400 failed"),
    (
        "net_bind_failed",
        "[ERROR] HCCL(71,python3):2026-03-01-09:00:00.070.463 [hccl_socket.cc:100] [71]"
        "[HcclSocket][Listen] socket type[1], listen on ip[10.0.0.2] and specific port[16666] fail.",
    ),
    ("net_connection_lost", "[LightGBM] [Fatal] Socket recv error, Connection reset by peer (code: 104)"),
    ("net_connection_lost", UCX.format("tcp_ep.c:1200", "DIAG  tcp_ep 0x7f: recv(4) failed: Connection reset by peer")),
    ("net_connection_lost", UCX.format("ucp_worker.c:581", "ERROR Error Endpoint timeout was not handled for ep 0x7f")),
    ("ib_completion_error", "[n1:71 :0:71] ib_mlx5_log.c:177  Local protection on mlx5_0:1/IB (synd 0x4 vend 0x33)"),
    ("memlock_limit", "n1:71:99 [0] r:1 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 4. RC: -12,"),
    ("shm_exhausted", UCX.format("mm_sysv.c:59", "ERROR failed to allocate 8447 bytes with mm for mm_recv_desc")),
)
DEVICES = (
    ("gpu_hardware", "RuntimeError: NPU error, error code is 507054, HBM multi-bit ECC error"),
    ("gpu_hardware", "kernel: i915 0000:4d:00.0: [drm] GPU HANG: ecode 12:1:85dcfdfb, in python [71]"),
    ("gpu_hardware", "[ 12.345678] i915 0000:4d:00.0: Resetting rcs0 after gpu hang"),
    ("gpu_hardware", "kernel: i915 0000:4d:00.0: [drm] *ERROR* GT0: Resetting chip for stopped heartbeat on rcs0"),
    ("ib_device_fatal", "kernel: NETDEV WATCHDOG: ens5f0 (ice): transmit queue 3 timed out"),
    ("ib_device_fatal", "kernel: NETDEV WATCHDOG: ens5f0 (ice): CPU: 7: transmit queue 3 timed out 5120 ms"),
    ("ib_device_fatal", "kernel: igc 0000:56:00.0 eth1: PCIe link lost, device now detached"),
    ("gpu_hardware", "kernel: xe 0000:4d:00.0: [drm] GT0: Timedout job: seqno=1, lrc_seqno=1, guc_id=1, flags=0x0"),
    ("ib_device_fatal", "mlx5_core 0000:5e:00.0: wait_func:1140:(pid 1): CREATE_CQ(0x400) timeout. Will cause a leak "
                        "of a command resource"),
    ("cuda_oom", "ERROR  TDRV:dmem_alloc_internal  Failed to alloc DEVICE memory: 536870912"),
    ("cuda_oom", "RuntimeError: FATAL ERROR :: MODULE:PT_SYNHELPER workspace Allocation of size ::1234 failed!"),
    ("cuda_oom", "RuntimeError: level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)"),
    ("cuda_failure", "ERROR   NMGR:dlr_infer  Inference completed with err: 1200"),
    ("cuda_failure", "EZ9999: The error from device(chipId:2, dieId:0), there is an aivec error exception, core 3"),
)  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "03/01/2026 09:00:00;0008;PBS_Server.71;Job;812.sched1;Job deleted at request of root@sched1",
        "03/01/2026 09:00:00;0008;Server@sched1;Job;812.sched1;Job to be deleted at request of ada@login1",
    ],
)
def test_who_deleted_a_job_of_pbs(tmp_path: Path, line: str) -> None:
    answer = of(tmp_path, line)
    assert answer.fault_class == "job_cancelled"
    assert line.rpartition(" ")[2] in answer.headline


def test_who_can_no_longer_send(tmp_path: Path) -> None:
    line = "2026-03-01T09:00:00.136582+00:00 gpu7 kernel: NETDEV WATCHDOG: ens5f0 (ice): transmit queue 3 timed out"
    answer = of(tmp_path, line)
    assert [(culprit.host, culprit.nic) for culprit in answer.culprits] == [("gpu7", "ens5f0")]


@pytest.mark.parametrize(("fault", "text"), [*ENDS, *CRASHES, *STORAGE, *NETWORK, *DEVICES])
def test_a_line_names_its_fault(tmp_path: Path, fault: str, text: str) -> None:
    assert of(tmp_path, text).fault_class == fault


def test_mpt_names_the_rank_that_a_signal_ended(tmp_path: Path) -> None:
    answer = of(tmp_path, "MPT ERROR: Rank 3(g:3) received signal SIGSEGV(11).\n\tProcess ID: 71, Host: n1")
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("rank_killed_sigsegv", [3])


@pytest.mark.parametrize(
    "raised",
    [
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore.",
        "google.api_core.exceptions.ServiceUnavailable: 503 GET https://storage.example/x",
        "triton.runtime.autotuner.OutOfResources: out of resource: shared memory, Required: 262144",
        "subprocess.TimeoutExpired: Command 'nvidia-smi' timed out after 30 seconds",
    ],
)
def test_an_exception_need_not_be_called_an_error(tmp_path: Path, raised: str) -> None:
    answer = of(tmp_path, f'Traceback (most recent call last):\n  File "/app/t.py", line 3, in step\n{raised}')
    assert answer.fault_class == "rank_killed_exception"
    assert raised[:40] in answer.headline


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (KUBELET.format("Failed", "Error: ImagePullBackOff"), "ImagePullBackOff"),
        ("[LightGBM] [Warning] Connecting to rank 3 failed, waiting for 200 milliseconds", "rank 3"),
        (KUBELET.format("FailedCreatePodSandBox", "Failed to create pod sandbox: rpc error"), "pod sandbox"),
        ("watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python:71]", "22 s"),
    ],
)
def test_a_state_is_told_where_no_cause_is_known(tmp_path: Path, text: str, words: str) -> None:
    answer = of(tmp_path, text)
    assert (answer.fault_class, words in answer.headline) == ("undetermined", True)


@pytest.mark.parametrize(
    "text",
    [
        "n1:71:99 [0] misc/socket.cc:123 NCCL WARN socketFinalizeAccept: wrong magic 1234 != 5678",  # any port scan
        "distributed.nanny - WARNING - Worker process 71 was killed by signal 15",
        "Worker VllmWorkerProcess pid 71 died, exit code: -15",
        'nfs: server 10.0.0.9 OK',
        "Connection closed by the server after 3 requests",
        "java.lang.OutOfMemoryError: Java heap space",  # not of a GPU
        "[LightGBM] [Warning] Connecting to rank 3 failed, waiting for 200 milliseconds",  # usual at the start
        "Windows fatal exception: code 0x8001010d",  # faulthandler's word for what a program handles
        "rpc error: code = DeadlineExceeded desc = context deadline exceeded",
    ],
)  # fmt: skip
def test_another_line_in_such_words_names_nothing(tmp_path: Path, text: str) -> None:
    assert of(tmp_path, text).fault_class == "undetermined"


@pytest.mark.parametrize(("cut", "fault"), [("ALLREDU", "mismatch_shape"), ("ALL", "mismatch_op")])
def test_the_name_of_an_operation_that_is_cut_is_no_other_operation(tmp_path: Path, cut: str, fault: str) -> None:
    answer = of(
        tmp_path,
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        "CollectiveFingerPrint(OpType=ALLREDUCE, TensorShape=[8], TensorDtypes=Float), but Rank 0 is running "
        f"collective: CollectiveFingerPrint(OpType={cut}",
    )
    assert answer.fault_class == fault
    assert f"{cut}." not in answer.headline


def test_gloo_names_the_host_whose_own_name_leads_elsewhere(tmp_path: Path) -> None:
    answer = of(tmp_path, "RuntimeError: [enforce fail at x.cc:127] rp != nullptr. Unable to find address for: n1.lab")
    assert [culprit.host for culprit in answer.culprits] == ["n1"]
