"""Messages of MPI, UCX, gloo, JAX, TensorFlow, the kernel and torchrun's error file, in the words of their sources, and
lines beside them that mean something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.hang.api import triage
from diag.hang.classes import PATTERNS
from diag.hang.model import Triage


def of(folder: Path, text: str) -> Triage:
    (folder / "job.log").write_text(text)
    return triage([str(folder)])


MPICH = "Fatal error in PMPI_Send: Unknown error class, error stack:\n{}: Communication error with rank 1{}\n"
BTL = (
    "[n1][[4123,1],0][btl_tcp_endpoint.c:626:mca_btl_tcp_endpoint_complete_connect] connect() to 10.1.2.3 failed: {}\n"
)
SOCK = "[1612.1] [n1:1234 :0]   sock.c:325  UCX  ERROR connect(fd=30, dest_addr=10.1.2.3:4123) failed: {}\n"
GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [10.1.2.3]:4123: {}\n"
REFUSED, SILENT = "Connection refused", "Connection timed out"


@pytest.mark.parametrize(("why", "fault"), [(REFUSED, "net_connect_refused"), (SILENT, "net_connect_timeout")])
def test_mpich_names_the_rank_that_it_cannot_reach(tmp_path: Path, why: str, fault: str) -> None:
    answer = of(tmp_path, MPICH.format("MPID_nem_tcp_connpoll(1845)", f": {why}"))
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == (fault, [1])


@pytest.mark.parametrize("form", [BTL, SOCK, GLOO])
@pytest.mark.parametrize(("why", "fault"), [(REFUSED, "net_connect_refused"), (SILENT, "net_connect_timeout")])
def test_a_connection_of_another_library_failed(tmp_path: Path, form: str, why: str, fault: str) -> None:
    answer = of(tmp_path, form.format(why))
    assert (answer.fault_class, [culprit.peer for culprit in answer.culprits]) == (fault, ["10.1.2.3"])


def test_mpich_lost_a_rank(tmp_path: Path) -> None:
    answer = of(tmp_path, MPICH.format("dequeue_and_set_error(596)", ""))
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("net_connection_lost", [1])


def test_oneflow_lost_a_process(tmp_path: Path) -> None:
    line = (
        "F20220301 16:13:39.021886 42842 ctrl_client.cpp:54] Check failed: rpc_client_.GetStubAt(i)->CallMethod<"
        "CtrlMethod::kLoadServer>( &client_ctx, request, &response).error_code() == grpc::StatusCode::OK (14 vs. 0) "
        "Machine {} lost\n"
    )
    answer = of(tmp_path, line.format(3) + "*** Check failure stack trace: ***\n")
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("net_connection_lost", [3])


MORE = (
    ("net_failure", "At least one pair of MPI processes are unable to reach each other for\nMPI communications.\n"),
    ("net_failure", "ORTE was unable to reliably start one or more daemons.\nThis usually is caused by:\n"),
    ("net_failure", "An ORTE daemon has unexpectedly failed after launch and before\ncommunicating back to mpirun.\n"),
    ("net_failure", "A process or daemon was unable to complete a TCP connection\nto another process:\n"),
    ("net_failure", "[n1:12 :0]  select.c:514  UCX  ERROR no active messages transport to n2:5678: self/memory - x\n"),
    ("shm_exhausted", "[n1:12 :0]  mm_posix.c:200  UCX  ERROR Not enough memory to write total of 4292720 bytes. "
                      "Please check that /dev/shm or the directory you specified has more available memory.\n"),
    ("shm_exhausted", "It appears as if there is not enough space for /dev/shm/vader_segment.n1.0 (the shared-memory "
                      "backing\nfile). It is likely that your MPI job will now either abort or experience\n"),
    ("shm_exhausted", "OSError: [Errno 28] No space left on device: '/psm_3f2a'\n"),
    ("storage", "OSError: [Errno 28] No space left on device: '/data/psm_3f2a'\n"),
    ("storage", "OSError: Unable to write (errno = 28, error message = 'No space left on device')\n"),
    ("storage", "OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/lustre/x'\n"),
    ("missing_rank", "0/8 nodes are available: 8 Insufficient nvidia.com/gpu. preemption: no victims found.\n"),
    ("missing_rank", "DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0. This usually "
                     "happens because a task triggered the barrier too early or too slowly.\n"),
    ("net_connect_timeout", "Additional GRPC error information from remote target leader while calling "
                            "/tensorflow.CoordinationService/RegisterTask:\n"),
    ("gpu_hardware", "Jan  5 10:00:00 n7 kernel: nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 31\n"),
    ("mismatch_shape", "HorovodInternalError: Mismatched allreduce tensor shapes: One rank sent a tensor of shape [1], "
                       "but another rank sent a tensor of shape [12].\n"),
    ("mismatch_shape", "ValueError: Mismatched data types: One rank had type half, but another rank had type int8.\n"),
    ("mismatch_op", "HorovodInternalError: Mismatched MPI operations: One rank did an allreduce, but another rank did "
                    "an allgather.\n"),
    ("net_bind_failed", "ERROR: [Errno 98] error while attempting to bind on address ('::', 80): address in use\n"),
    ("net_bind_failed", "RuntimeError: Port 29500 is already in use\n"),
    ("net_bind_failed", "ConnectionError: Tried to launch distributed communication on port `29500`, but another "
                        "process is utilizing it.\n"),
    ("ib_link_down", "Jan  5 10:00:00 n7 kernel: bnxt_en 0000:3b:00.0 ens1f0np0: NIC Link is Down\n"),
    ("ib_link_down", "Jan  5 10:00:00 n7 kernel: i40e 0000:3b:00.0 eth2: NIC Link is Down\n"),
    ("rank_killed_sigkill", "Command terminated by signal 9\n"),
    ("cuda_failure", "nvidia-smi has failed because it couldn't communicate with the NVIDIA driver.\n"),
    ("gpu_hardware", "rtDeviceSynchronize execute failed, reason=[hbm Multi-bit ECC error]\n"),
    ("cuda_oom", "EL0004: Failed to allocate memory.\nPossible Cause: Available memory is insufficient.\n"),
    ("cuda_failure", "RuntimeError: No HIP GPUs are available\n"),
    ("cuda_failure", "docker: could not select device driver \"\" with capabilities: [[gpu]].\n"),
    ("topology_error", "global comm (2) has less channels than this replica group (4) :likely not enough EFA devices\n"
                       "python3: /opt/tdrv/encd.c:4147: prep_metaring: Assertion `spe != NULL' failed.\n"),
    ("storage", "Warning  FailedMount  10s  kubelet  MountVolume.SetUp failed for volume \"pvc-1\" : mount failed\n"),
    ("missing_rank", "(autoscaler +1m2s) Error: No available node types can fulfill resource request {'GPU': 8.0}.\n"),
    ("watchdog_blocked", "[rank3]:[F105 10:00:00.000000000 ProcessGroupNCCL.cpp:1554] [PG ID 0 PG GUID 0 Rank 3] "
                         "Terminating the process, due to ProcessGroupNCCL watchdog hang.\n"),
    ("rank_killed_sigkill", "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
                            "proc(s): {'EngineCore_0': -9}\n"),
    ("undetermined", "TimeoutError: RPC call to execute_model timed out.\n"),
    ("gpu_hardware", "Jan  5 10:00:00 n7 kernel: habanalabs 0000:19:00.0: Device heartbeat failed!\n"),
    ("rank_killed_sigkill", "[10.123456] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0\n"),
    ("rank_killed_sigkill", "[10.123456] Memory cgroup out of memory: Kill process 42 (python) score 9 or sacrifice\n"),
    ("rank_killed_sigkill", "[10.123456] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,"
                            "oom_memcg=/a,task_memcg=/a/b,task=pt_main_thread,pid=4242,uid=0\n"),
)  # fmt: skip


@pytest.mark.parametrize(("fault", "text"), MORE)
def test_a_line_names_its_fault(tmp_path: Path, fault: str, text: str) -> None:
    assert of(tmp_path, text).fault_class == fault


@pytest.mark.parametrize(("words", "number"), [("Segmentation fault", 11), ("Bus error", 7)])
def test_mvapich_names_the_rank_that_crashed(tmp_path: Path, words: str, number: int) -> None:
    answer = of(tmp_path, f"[n1:mpi_rank_3][error_sighandler] Caught error: {words} (signal {number})\n")
    assert answer.fault_class == {11: "rank_killed_sigsegv", 7: "rank_killed_sigbus"}[number]
    assert [(culprit.rank, culprit.host) for culprit in answer.culprits] == [(3, "n1")]


@pytest.mark.parametrize("words", ["seems down, retrying 1/3", "is down, aborting collectives: x"])
def test_tensorflow_names_a_task_that_is_down(tmp_path: Path, words: str) -> None:
    answer = of(tmp_path, f"WARNING:tensorflow:/job:worker/replica:0/task:3 {words}\n")
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("missing_rank", [3])


ABORTED_BY = (
    'Traceback (most recent call last):\n  File "t.py", line 9, in <module>\n'
    "tensorflow.python.framework.errors_impl.{}: Collective ops is aborted by: {}\n"
    "The error could be from a previous operation. Restart your program to reset. [Op:CollectiveReduceV2]\n"
)
TASK = "/job:worker/replica:0/task:2"


@pytest.mark.parametrize(
    ("error", "why", "fault", "ranks", "words"),
    [
        ("UnavailableError", f"cluster check alive failed, {TASK} is down", "missing_rank", [2], "Task 2 sends no"),
        (
            "FailedPreconditionError",
            f"Device {TASK}/device:CPU:0 current incarnation doesn't match with one in the group. This usually means",
            "undetermined",
            [],
            "Task 2 has restarted",
        ),
        (
            "DeadlineExceededError",
            "Collective has timed out waiting for other workers.",
            "undetermined",
            [],
            "waited too long for other workers",
        ),
        (
            "InvalidArgumentError",
            f"Shape mismatch in the collective instance 100. Op at device {TASK}/device:GPU:0 expected shape [10,4] "
            "but another member in the group expected shape [12,4]. This is likely due to different input shapes at",
            "mismatch_shape",
            [],
            "GPU:0 of task 2 has shape [10,4], another member [12,4]",
        ),
    ],
)
def test_tensorflow_tells_every_task_why_collectives_are_aborted(
    tmp_path: Path, error: str, why: str, fault: str, ranks: list[int], words: str
) -> None:
    """The task that raises this only heard of it."""
    answer = of(tmp_path, ABORTED_BY.format(error, why))
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == (fault, ranks)
    assert words in answer.headline.replace("\N{NO-BREAK SPACE}", " ")


ERROR_FILE = (
    'ERROR:torch.distributed.elastic.multiprocessing.errors.error_handler:{\n  "message": {\n    "message": "%s",\n    '
    '"extraInfo": {\n'
)


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("RendezvousTimeoutError: ", "missing_rank"),
        ("KeyError: 'tokens'", "rank_killed_exception"),
        ("RuntimeError: CUDA error: misaligned address\\nCUDA kernel errors might be", "cuda_failure"),
        ("OSError: [Errno 122] Disk quota exceeded: '/data'", "storage"),
    ],
)
@pytest.mark.parametrize("form", [ERROR_FILE, '{"message": {"message": "%s", "extraInfo": {"py_callstack": "x"}}}\n'])
def test_the_error_file_of_torchrun_is_read(tmp_path: Path, form: str, message: str, fault: str) -> None:
    assert of(tmp_path, form % message).fault_class == fault


def test_a_program_that_logs_messages_as_json_is_no_error_file(tmp_path: Path) -> None:
    text = '{"level": "info", "message": "KeyError: none so far"}\nstep 1 loss 2.0\nstep 2 loss 1.9\n'
    assert of(tmp_path, text).fault_class in ("healthy", "undetermined")


ENDS = (
    "train.py: error: unrecognized arguments: --local-rank=3",
    "/usr/bin/python: can't open file '/w/train.py': [Errno 2] No such file or directory",
    "C:\\envs\\python.exe: Error while finding module specification for '__main__' (ValueError: __spec__ is None)",
    "bash: torchrun: command not found",
    "python: symbol lookup error: /usr/lib/libtorch_cuda.so: undefined symbol: ncclCommSplit",
    "thread 'main' panicked at src/main.rs:3:5:",
    "F0101 10:00:00.123456 12345 foo.cc:71] Check failed: x == y (2 vs. 3) ",
    "[TensorRT-LLM][ERROR] Assertion failed: bad thing (/src/x.cpp:100)",
    "python: /src/foo.cpp:31: void f(): Assertion `x > 0' failed.",
)


@pytest.mark.parametrize("line", ENDS)
def test_programs_end_without_an_exception_of_python(tmp_path: Path, line: str) -> None:
    answer = of(tmp_path, f"{line}\n")
    assert answer.fault_class == "rank_killed_exception"
    assert "It ended with: " in answer.headline


@pytest.mark.parametrize(
    "refused",
    [
        "unrecognized arguments: --local-rank=1",
        "the following arguments are required: --data, --out",
        "argument --precision: invalid choice: 'fp7' (choose from 'fp32', 'bf16')",
        "argument --epochs: expected one argument",
        "one of the arguments --train --eval is required",
    ],
)
def test_arguments_that_argparse_refuses_end_the_program_before_its_launcher(tmp_path: Path, refused: str) -> None:
    """Lib/argparse.py: the usage, the error, exit code 2. The launcher's own traceback follows, and may be cut off."""
    launcher = (
        'Traceback (most recent call last):\n  File "/e/runpy.py", line 193, in _run_module_as_main\n    "__main__"'
    )
    answer = of(tmp_path, f"usage: pretrain.py [-h]\npretrain.py: error: {refused}\n{launcher}\n")
    assert answer.fault_class == "rank_killed_exception"
    assert refused[:20] in answer.headline


@pytest.mark.parametrize(
    ("message", "rank"),
    [
        ("AssertionError: rank 3: found NaN in local grad norm for bucket #0. Device: 3, node: n7", 3),
        ("RuntimeError: Rank 3, node n7, device 3, iteration 5: Unexpected result nan", 3),
        ("RuntimeError: bad input on rank 3", 3),
        ("RuntimeError: ranks 3 and 4 differ on rank 3 and of rank 4", None),
    ],
)
def test_an_exception_says_on_which_rank(tmp_path: Path, message: str, rank: int | None) -> None:
    answer = of(tmp_path, f'Traceback (most recent call last):\n  File "/w.py", line 3, in main\n{message}\n')
    assert answer.fault_class == "rank_killed_exception"
    assert answer.culprits[0].rank == rank


def test_a_pod_that_failed_is_named(tmp_path: Path) -> None:
    answer = of(tmp_path, "pod-0   1/1     Running   0          5m\npod-1   0/1     Error     0          5m\n")
    assert [culprit.host for culprit in answer.culprits] == ["pod-1"]


@pytest.mark.parametrize(
    "line",
    [
        "The port 8888 is already in use, trying another port.",
        "WARNING: Port 8265 is already in use, using port 8266 instead.",
        "eth0: NIC Link is Up 25000 Mbps full duplex",
    ],
)
def test_another_port_or_a_link_that_comes_up_stops_nothing(tmp_path: Path, line: str) -> None:
    answer = of(tmp_path, f"{line}\nstep 1 loss 2.0\nstep 2 loss 1.9\n")
    assert answer.fault_class in ("healthy", "undetermined")


def test_a_command_that_is_not_there_need_not_end_a_job(tmp_path: Path) -> None:
    text = "job.sh: line 3: nvidia-smi: command not found\nstep 1 loss 2.0\nstep 2 loss 1.9\n"
    assert of(tmp_path, text).fault_class in ("healthy", "undetermined")


@pytest.mark.parametrize(
    ("before", "complain", "named"),
    [
        ("world_size=4\n", {2: 10}, [2]),
        ("", {2: 10}, [2]),  # rank 1 is there, and agrees with rank 0
        ("", {1: 10}, [0, 1]),  # of two, either
        ("", {1: 10, 2: 10}, [0]),
        ("", {1: 10, 2: 11}, [0, 1, 2]),  # each has other parameters
        ("world_size=4\n", {1: 10, 2: 10}, [0, 1, 2, 3]),  # two against two
        ("world_size=4\n", {1: 10, 2: 11}, [1, 2]),  # rank 3 agrees with rank 0
        ("world_size=8\n", dict.fromkeys(range(1, 7), 10), [0, 7]),
        ("", {1_000_000_000: 10}, [1_000_000_000]),
    ],
)
def test_parameters_that_differ_from_those_of_the_first_rank(
    tmp_path: Path, before: str, complain: dict[int, int], named: list[int]
) -> None:
    line = "RuntimeError: [{}]: params[0] in this process with sizes [{}, 4] appears not to match sizes of x\n"
    answer = of(tmp_path, before + "".join(line.format(rank, size) for rank, size in complain.items()))
    assert answer.fault_class == "mismatch_shape"
    assert [culprit.rank for culprit in answer.culprits] == named


@pytest.mark.parametrize(
    ("pairs", "named"),
    [
        ([(0, 1)], ["node0", "node1"]),  # of two ends, either
        ([(0, 1), (1, 0)], ["node0", "node1"]),
        ([(1, 0), (2, 1)], ["node1"]),  # it got another size than it asked for, and its neighbour did as well
        ([(0, 1), (2, 1)], ["node1"]),
    ],
)
def test_of_several_pairs_whose_sizes_differ_the_end_that_most_share_is_named(
    tmp_path: Path, pairs: list[tuple[int, int]], named: list[str]
) -> None:
    bootstrap = "node{0}:7{0}:7{0} [0] NCCL INFO Bootstrap : Using eth0:10.0.0.{1}<0>\n"
    line = "node{0}:7{0}:7{0} [0] net_socket.cc:569 NCCL WARN NET/Socket : peer 10.0.0.{1}<51{1}> message truncated : "
    line += "receiving 8 bytes instead of 4\n"
    text = "".join(bootstrap.format(host, host + 1) for host in range(3))
    answer = of(tmp_path, text + "".join(line.format(host, peer + 1) for host, peer in pairs))
    assert answer.fault_class == "mismatch_shape"
    assert sorted(culprit.host or culprit.peer for culprit in answer.culprits) == named


def test_the_first_stage_has_the_numbers_of_its_ranks(tmp_path: Path) -> None:
    raised = "Traceback (most recent call last):\n  File \"/s.py\", line 7, in turn\nKeyError: 'x'\n"
    first = of(tmp_path, "".join(f"[2026-03-01 09:00:00 TP3 PP0] {line}\n" for line in raised.splitlines()))
    assert [culprit.rank for culprit in first.culprits] == [3]


def test_no_anchor_is_so_short_that_it_slows_the_search() -> None:
    assert not [
        (name, anchor) for _, name, pattern in PATTERNS for anchor in pattern.anchors if len(anchor.encode()) < 4
    ]
