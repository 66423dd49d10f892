"""Whom programs name: the rank, the host or the GPU, each in the form in which a program prints it."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.ended.model import Culprit
from diag.hang.api import triage
from diag.hang.model import Triage


def _answer(tmp_path: Path, text: str) -> Triage:
    (tmp_path / "job.log").write_text(text)
    return triage([str(tmp_path)])


KILLED, CRASHED, RAISED = "rank_killed_sigkill", "rank_killed_sigsegv", "rank_killed_exception"
_OF_SHELL = "bash: line 1: 4127 Killed                  python train.py"


@pytest.mark.parametrize(
    ("lines", "fault_class", "culprit"),
    [
        (("[1,0]<stdout>:epoch 1", f"[1,3]<stderr>:{_OF_SHELL}", "[1,1]<stdout>:epoch 1"), KILLED, Culprit(3)),
        (("[rank3]: Segmentation fault (core dumped)",), CRASHED, Culprit(3)),
        (("[1,3][n5:4127]<stderr>: Segmentation fault (core dumped)",), CRASHED, Culprit(3, "n5")),
        ((_OF_SHELL,), KILLED, Culprit()),  # a shell alone knows no rank
        (
            ("mpirun noticed that process rank 2 with PID 4127 on node n5", "exited on signal 9 (Killed)."),
            KILLED,
            Culprit(2, "n5"),
        ),
        (
            ("The first process to do so was:", "", "   Process name: [prterun-n5-4127@1,3]", "   Exit code:    137"),
            KILLED,
            Culprit(3),
        ),
        (
            (
                "[2025-01-01 10:00:00] Rank 2 scheduler is dead. Please check if there are relevant logs.",
                "[2025-01-01 10:00:01] Exit code: -9",
            ),
            KILLED,
            Culprit(2),
        ),
        (
            (
                "[2025-01-01 10:00:00] Rank 2 scheduler is dead. Please check if there are relevant logs.",
                "[2025-01-01 10:00:01] Exit code: 1",
            ),
            RAISED,
            Culprit(2),
        ),
    ],
)
def test_what_ends_a_process_is_of_the_rank_that_it_prints_for(
    tmp_path: Path, lines: tuple[str, ...], fault_class: str, culprit: Culprit
) -> None:
    answer = _answer(tmp_path, "\n".join(lines) + "\n")
    assert (answer.fault_class, answer.culprits) == (fault_class, (culprit,))


_COLUMNS = "LAST SEEN   TYPE      REASON    OBJECT               MESSAGE\n"


@pytest.mark.parametrize(
    ("text", "host"),
    [
        (f"{_COLUMNS}5m   Warning   Evicted   pod/train-2   The node was low on resource: memory.", "train-2"),
        ("ml  2m37s (x2 over 5m)   Warning   OOMKilling   node/gke-3   Memory cgroup out of memory: Killed process "
         "41 (python)", "gke-3"),
        ("  Warning  SystemOOM  5m  kubelet, gke-3  System OOM encountered, victim process: python, pid: 41", "gke-3"),
        ("  Warning  SystemOOM  5m  kubelet  System OOM encountered, victim process: python, pid: 41", ""),
    ],
)  # fmt: skip
def test_an_event_of_kubernetes_is_of_its_object(tmp_path: Path, text: str, host: str) -> None:
    answer = _answer(tmp_path, f"{text}\n")
    assert (answer.fault_class, [culprit.host for culprit in answer.culprits]) == (KILLED, [host])


@pytest.mark.parametrize(
    ("line", "fault_class"),
    [
        ("123.0          train OUT_OF_ME+      0:125", KILLED),
        ("123.0|OUT_OF_MEMORY|0:125|n7", KILLED),
        ("   JobState=OUT_OF_MEMORY Reason=OutOfMemory Dependency=(null)", KILLED),
        ("State: OUT_OF_MEMORY (exit code 0)", KILLED),
        ('"State": {"Status": "exited", "OOMKilled": true, "ExitCode": 137}', KILLED),
        ('"State": {"Status": "exited", "OOMKilled": false, "ExitCode": 0}', "undetermined"),
        ("123.0          train    TIMEOUT      0:0", "job_cancelled"),
        ("State: CANCELLED (exit code 0)", "job_cancelled"),
        ("the watchdog's TIMEOUT is 30 s", "undetermined"),
    ],
)
def test_states_of_slurm_and_docker(tmp_path: Path, line: str, fault_class: str) -> None:
    assert _answer(tmp_path, f"{line}\n").fault_class == fault_class


_STARTED = (
    "(TorchTrainer pid=1) - (node_id=a{0}, ip=10.0.0.{0}, pid=61{0}) world_rank={1}, local_rank=0, node_rank={1}\n"
)
_PASSED_ON = (
    "ray.exceptions.RayTaskError(ValueError): ray::_RayTrainWorker__execute.get_next() (pid=613, ip=10.0.0.3, "
    'actor_id=8b)\n  File "train.py", line 3, in step\n    work()\nValueError: bad\n'
)
_TAGGED = "".join(
    f"(RayTrainWorker pid=613, ip=10.0.0.3) {line}\n"
    for line in ("Traceback (most recent call last):", '  File "train.py", line 3, in step', "ValueError: bad")
)


@pytest.mark.parametrize("raised", [_PASSED_ON, _TAGGED])
def test_an_exception_in_ray_is_of_the_process_that_raised_it(tmp_path: Path, raised: str) -> None:
    assert _answer(tmp_path, raised).culprits == (Culprit(host="10.0.0.3"),)
    started = "".join(_STARTED.format(host, rank) for host, rank in ((2, 0), (3, 1)))
    assert _answer(tmp_path, f"{started}{raised}").culprits == (Culprit(1, "10.0.0.3"),)


def test_what_the_driver_raises_below_is_not_of_rays_task(tmp_path: Path) -> None:
    driver = 'Traceback (most recent call last):\n  File "main.py", line 9, in main\nKeyError: 1\n'
    passed_on = _PASSED_ON.replace("ValueError: bad\n", "")
    assert not [c for c in _answer(tmp_path, f"{passed_on}{driver}").culprits if c.host == "10.0.0.3"]


_HCCL = "Cluster Exception Location[IP/ID]:[{}], Arrival Time:[x], Discoverer:[{}], ExceptionType:[{} Occurred], P"


@pytest.mark.parametrize(
    ("lines", "devices"),
    [
        ((_HCCL.format("10.0.0.1/3", "10.0.0.2/1", "Heartbeat Lost"),), [("10.0.0.1", 3)]),
        (
            (
                _HCCL.format("10.0.0.1/3", "10.0.0.2/1", "Heartbeat Lost"),
                _HCCL.format("10.0.0.4/0", "10.0.0.2/1", "Stuck"),
            ),
            [("10.0.0.4", 0)],
        ),
        (
            (  # each misses the other: the network between them may have failed
                _HCCL.format("10.0.0.1/3", "10.0.0.2/1", "Heartbeat Lost"),
                _HCCL.format("10.0.0.2/1", "10.0.0.1/3", "Heartbeat Lost"),
            ),
            [],
        ),
        (
            ("[HeartbeatAbnormal]local rank [10.0.0.1/1]: crimer rank [10.0.0.2/2] status[LOST] by informer rank "
             "[10.0.0.3/3]",),
            [("10.0.0.2", 2)],
        ),
    ],
)  # fmt: skip
def test_hccl_names_the_device_whose_process_is_gone(
    tmp_path: Path, lines: tuple[str, ...], devices: list[tuple[str, int]]
) -> None:
    answer = _answer(tmp_path, "\n".join(lines) + "\n")
    assert answer.fault_class == "missing_rank"
    assert [(culprit.host, culprit.gpu) for culprit in answer.culprits] == devices


@pytest.mark.parametrize(
    ("line", "fault_class", "culprit"),
    [
        (
            "|                           | Fail - GPU: 3                                  |",
            "gpu_hardware",
            Culprit(gpu=3),
        ),
        (
            "Mar  4 10:00:00 n7 kernel: amdgpu 0000:c1:00.0: amdgpu: socket: 0, die: 1, 2 new uncorrectable hardware "
            "errors detected in gfx block",
            "gpu_hardware",
            Culprit(host="n7", bus_id="0000:c1:00.0"),
        ),
        (
            "Mar  4 10:00:00 n7 kernel: mlx5_core 0000:3b:00.0: Port module event: module 0, Cable unplugged",
            "ib_link_down",
            Culprit(host="n7", nic="0000:3b:00.0"),
        ),
    ],
)
def test_drivers_and_diagnoses_name_the_device(tmp_path: Path, line: str, fault_class: str, culprit: Culprit) -> None:
    answer = _answer(tmp_path, f"{line}\n")
    assert (answer.fault_class, answer.culprits) == (fault_class, (culprit,))


def test_a_cable_that_is_plugged_in_is_no_fault(tmp_path: Path) -> None:
    line = "Mar  4 10:00:00 n7 kernel: mlx5_core 0000:3b:00.0: Port module event: module 0, Cable plugged\n"
    assert _answer(tmp_path, line).fault_class == "undetermined"


@pytest.mark.parametrize(
    ("line", "fault_class", "rank"),
    [
        ("ERROR:composer.cli.launcher:Global rank 3 (PID 4130) exited with code -11", CRASHED, 3),
        ("ERROR:composer.cli.launcher:Global rank 3 (PID 4130) exited with code 1", RAISED, 3),
        ("_pmiu_daemon(SIGCHLD): [NID 00123] [c0-0c0s1n3] PE RANK 3 exit signal Killed", KILLED, 3),
        ("job 12.1 died through signal KILL (9)", KILLED, None),
        ("\t(0) Abnormal termination (signal 9)", KILLED, None),
        ("\tError from slot1@n7: Job has gone over memory limit of 2048 megabytes.", KILLED, None),
        ("INFO exited: trainer-3 (terminated by SIGKILL; not expected)", KILLED, None),
        ("The node: 3 is timed out. It may exit with exception, please check this", "missing_rank", 3),
        ("RuntimeError: ACL stream synchronize failed, error code:507018", "cuda_failure", None),
        ("2024-03-04 10:00:00 - ERROR - rank 3 - CUDA out of memory. Tried to allocate 2.00 GiB", "cuda_oom", 3),
    ],
)  # fmt: skip
def test_launchers_schedulers_and_loggers_name_the_rank(
    tmp_path: Path, line: str, fault_class: str, rank: int | None
) -> None:
    answer = _answer(tmp_path, f"{line}\n")
    assert answer.fault_class == fault_class
    assert {culprit.rank for culprit in answer.culprits} - {None} == ({rank} - {None})


_CHECKPOINT = (
    "Traceback (most recent call last):",
    '  File "train.py", line 9, in save',
    "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([3])",
    "Traceback (most recent call last): (RANK 3)",
    '  File "filesystem.py", line 5, in write',
    "{}",
)


@pytest.mark.parametrize("marks", [("",), ("[rank0]: ",), ("[rank0]: ", "[rank1]: ", "[rank3]: ")])
@pytest.mark.parametrize(
    ("raised", "fault_class"),
    [("KeyError: 'step'", RAISED), ("OSError: [Errno 28] No space left on device", "storage")],
)
def test_what_each_rank_prints_of_a_checkpoint_is_of_the_rank_that_failed(
    tmp_path: Path, marks: tuple[str, ...], raised: str, fault_class: str
) -> None:
    lines = (f"{mark}{line.format(raised)}\n" for mark in marks for line in _CHECKPOINT)
    answer = _answer(tmp_path, "".join(lines))
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == (fault_class, [3])


def test_spark_names_the_host_of_the_executor_that_it_lost(tmp_path: Path) -> None:
    line = "ERROR TaskSchedulerImpl: Lost executor 3 on n7: Remote RPC client disassociated.\n"
    answer = _answer(tmp_path, line)
    assert (answer.fault_class, answer.culprits) == ("missing_rank", (Culprit(host="n7"),))


def test_who_does_not_answer_grpc_is_in_the_other_lines_of_its_message(tmp_path: Path) -> None:
    lines = (
        "UnavailableError: Collective ops is aborted by: failed to connect to all addresses",
        "Additional GRPC error information from remote target /job:worker/replica:0/task:1:",
    )
    answer = _answer(tmp_path, "\n".join(lines) + "\n")
    assert (answer.fault_class, answer.culprits) == ("net_failure", (Culprit(1),))
    assert not [c for c in _answer(tmp_path, f"{lines[0]}\n").culprits if c != Culprit()]


def test_a_name_that_is_not_resolved_is_named(tmp_path: Path) -> None:
    failed = "OSError: Timed out trying to connect to 'tcp://scheduler.default:8786' after 10 s: [Errno -2] "
    frames = '  File "core.py", line 205, in _raise\n    raise IOError(msg)\n'
    answer = _answer(tmp_path, f"{frames}{failed}Name or service not known\n")
    assert (answer.fault_class, [culprit.peer for culprit in answer.culprits]) == ("net_failure", ["scheduler.default"])
    told = "INFO Rank 1 will conenct to TCPStore server at store-z2b7s:47279\n"
    answer = _answer(tmp_path, f"{told}Detailed message: host not found: Name or service not known\n")
    assert (answer.fault_class, [culprit.peer for culprit in answer.culprits]) == ("net_failure", ["store-z2b7s"])


@pytest.mark.parametrize(
    "message", ["_kgspIsHeartbeatTimedOut: Heartbeat timed out, timeout 5200", "*** GSP Timeout ***"]
)
def test_a_gpu_whose_own_processor_is_silent_is_named(tmp_path: Path, message: str) -> None:
    answer = _answer(tmp_path, f"[   24.302465] NVRM: GPU6 {message}\n")
    assert (answer.fault_class, [culprit.gpu for culprit in answer.culprits]) == ("gpu_hardware", [6])


_ABORTS = "".join(f"application called MPI_Abort(MPI_COMM_WORLD, 1) - process {rank}\n" for rank in (2, 3))


def test_the_rank_that_a_program_says_failed_is_at_fault_for_those_that_abort(tmp_path: Path) -> None:
    assert _answer(tmp_path, f"Error occurred on rank 14.\n{_ABORTS}").culprits == (Culprit(14),)
    twice = "Error occurred on rank 14.\nError occurred on rank 2.\n"
    assert {c.rank for c in _answer(tmp_path, f"{twice}{_ABORTS}").culprits} != {14}


@pytest.mark.parametrize(
    ("line", "fault_class"),
    [
        ("Message from rank 4 and tag 11 truncated; 40 bytes received but buffer size is 20", "mismatch_shape"),
        ("[ring] Receiving from socket 51 failed with errno 14", "net_failure"),
        ("[ring] Too many send/recv errors. Aborting...", "net_failure"),
    ],
)
def test_words_of_mpich_and_mlx(tmp_path: Path, line: str, fault_class: str) -> None:
    assert _answer(tmp_path, f"{line}\n").fault_class == fault_class


def test_hydras_line_with_the_process_is_shown(tmp_path: Path) -> None:
    lines = "=   PID 2124 RUNNING AT n7\n=   EXIT CODE: 11\nEXIT STRING: Segmentation fault (signal 11)\n"
    assert any("PID 2124" in source.text for source in _answer(tmp_path, lines).evidence)


_HELLO = "Hello world from processor n{0}, rank {0} out of 3 processors\n"


@pytest.mark.parametrize(
    ("text", "fault_class"),
    [
        ("".join(map(_HELLO.format, (0, 2, 1))), "undetermined"),  # a hang in MPI_Finalize prints the same
        ("100 images/sec: 204.8 +/- 0.0\ntotal images/sec: 204.75\n----\n", "healthy"),
        ("[METRIC] train_au_meet_expectation: success\n[METRIC] ====\n", "undetermined"),  # above DLIO's barriers
        ("[OUTPUT] outputs saved in RANKID_output.json\n", "healthy"),
    ],
)
def test_results_at_the_end_of_a_program(tmp_path: Path, text: str, fault_class: str) -> None:
    assert _answer(tmp_path, text).fault_class == fault_class
