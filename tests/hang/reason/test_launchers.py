"""What launchers, schedulers, kernels and other backends print about a process that ended, in their sources' words."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.ended.model import Culprit
from diag.hang.api import triage
from diag.hang.classes.launchers import ended_as
from diag.hang.model import Triage

RAISED, KILLED, CRASHED = "rank_killed_exception", "rank_killed_sigkill", "rank_killed_sigsegv"


def of(folder: Path, text: str) -> Triage:
    (folder / "job.log").write_text(text)
    return triage([str(folder)])


@pytest.mark.parametrize(
    ("text", "fault_class", "who"),
    [
        ("ERROR shard-manager: launcher: Shard process was signaled to shutdown with signal 11 rank=3\n", CRASHED, 3),
        ("[TRT-LLM] [E] [_torch][RANK 5] Executor loop crashed on this rank; hard-killing all 8 ranks\n", RAISED, 5),
        ("prterun has exited due to process rank 4 with PID 81 on node n7 exiting\nimproperly. There are", RAISED, 4),
        ("mpirun has exited due to process rank 1 with PID 0 on\nnode n3 exiting improperly. There are", RAISED, 1),
        ("=   RANK 6 PID 77 RUNNING AT n2\n=   KILLED BY SIGNAL: 11 (Segmentation fault)\n", CRASHED, 6),
        ("=   PID 77 RUNNING AT n2\n=   EXIT CODE: 2\n", RAISED, "n2"),
        ("srun: error: n8: task 5: Exited with exit code 3\nslurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2025-01-"
         "01T00:00:00 ***\n", RAISED, 5),
        ("Process 3 exit with status code 137.\nProcess 0 exit with status code 143.\n", KILLED, 3),
        ("Process 2 exit with status code 1.\nProcess 0 exit with status code 143.\n", RAISED, 2),
        ("[rank: 5] Child process with PID 9 terminated with code -9. Forcefully terminating all other\n", KILLED, 5),
        ("ERROR 2025-01-01 00:00:00,1 x.py:1] ABORT!!! Out of all 8 trainers, the trainer process with rank=[6] was "
         "aborted. Please check its log.\n", RAISED, 6),
        ("Container rank 3 status failed cmd ['python', 't.py'] code -11 log log/workerlog.3\n", CRASHED, 3),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with exit code 1\n", RAISED, 2),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 3221225477\n",
         CRASHED, 1),
        ("Rank 2 scheduler died during initialization (exit code: -9). If you see\n", KILLED, 2),
        ("ERROR 01-01 00:00:00 [x.py:1] Worker proc VllmWorker-1 died unexpectedly, shutting down executor.\n", RAISED,
         1),
        ("pdsh@head: n4: ssh exited with exit code 1\n", RAISED, "n4"),
        ("Pod: ml.train-worker-2 exited with code 1\n", RAISED, "train-worker-2"),
        ("n5 kernel: [ 12.500000] python[81]: segfault at 10 ip 00007f1e sp 00007ffd error 4 in libnccl.so.2\n",
         CRASHED, "n5"),
        ("n3 kernel: [ 12.500000] mlx5_core 0000:3b:00.0: poll_health:957:(pid 0): device's health compromised - "
         "reached miss count\n", "ib_device_fatal", "n3"),
        ("Child process 81 (local_rank 2) FAILED (exitcode 1)\nError msg: Process failed with exitcode 1\n", RAISED, 2),
        ("            Exit status of rank 3: killed by signal 9\n", KILLED, 3),
        ("mpiexec noticed that process rank 4 with PID 10 on node n1 exited on signal 6 (Aborted).\n", RAISED, 4),
        ("=   EXIT CODE: 9\n[proxy:0:0@n6] main (./pm/pmiserv/pmip.c:210): demux engine error\n", KILLED, "n6"),
        ("n7 kernel: [ 12.500000] mlx5_core 0000:3b:00.0: synd 0x7: irisc not responding\n", "ib_device_fatal", "n7"),
        ("n2 kernel: [ 12.500000] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:894)\n", "gpu_hardware",
         "n2"),
        ("ORTE has lost communication with its daemon located on node:\n\n  hostname:  n9\n", "net_connection_lost",
         "n9"),
        ("slurmstepd: error: Exceeded job memory limit\nslurmstepd: error: *** JOB 7 ON n4 CANCELLED AT 2025-01-01T00:"
         "00:00 ***\n", KILLED, "n4"),
        ("terminate called after throwing an instance of 'std::out_of_range'\n  what():  map::at\n\n=   PID 66 RUNNING "
         "AT n2\n=   EXIT CODE: 134\n", RAISED, "n2"),
        ('n1:4:4 [0] src/init.cc:179 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to hang!\n',
         "p2p_iommu_acs", "n1"),
        ("[n3:218] *** Process received signal ***\n[n3:218] Signal: Segmentation fault (11)\n", CRASHED, "n3"),
        ("[n3:218] Signal: Bus error (7)\n", "rank_killed_sigbus", "n3"),
        ("n4 kernel: [ 12.500000] mlx5_core 0000:3b:00.0 ens1f0: Link down\n", "ib_link_down", "n4"),
        ("srun: error: Node failure on n12\n", "missing_rank", "n12"),
        ("*** The MPI_Comm_size() function was called before MPI_INIT was invoked.\n*** Your MPI job will now abort.\n"
         "[n8:47] Local abort before MPI_INIT completed completed successfully, but am not able to aggregate\n",
         RAISED, "n8"),
        ("*** The MPI_Barrier() function was called after MPI_FINALIZE was invoked.\n[n8:47] Local abort after "
         "MPI_FINALIZE completed successfully; not able to aggregate error messages\n", RAISED, "n8"),
        ("[n7:12] *** An error occurred in MPI_Allreduce\n[n7:12] *** reported by process [31,2]\n[n7:12] *** on "
         "communicator MPI_COMM_WORLD\n[n7:12] *** MPI_ERR_TRUNCATE: message truncated\n", "mismatch_shape", 2),
    ],
)  # fmt: skip
def test_the_launcher_s_word_about_who_ended(tmp_path: Path, text: str, fault_class: str, who: int | str) -> None:
    answer = of(tmp_path, text)
    assert answer.fault_class == fault_class
    assert [culprit.host if isinstance(who, str) else culprit.rank for culprit in answer.culprits] == [who]


@pytest.mark.parametrize(
    ("text", "fault_class"),
    [
        ("  Warning  Evicted  2m  kubelet  The node was low on resource: ephemeral-storage. Threshold\n",
         "storage"),
        ("  Warning  Evicted  2m  kubelet  The node was low on resource: pids. Threshold\n", "job_cancelled"),
        ("  Warning  Evicted  2m  kubelet  The node was low on resource: memory. Threshold\n", KILLED),
        ("Warning  Preempted  3m12s  default-scheduler  Preempted by pod 1d5e on node n1\n", "job_cancelled"),
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\n", KILLED),
        ("=>> PBS: job killed: walltime 3621 exceeded limit 3600\n", "job_cancelled"),
        ("Out of memory error on GPU 1. Cannot allocate 384.0MB memory on GPU 1, 15.7GB memory has been\n", "cuda_oom"),
        ("SystemError: (Fatal) DataLoader process (pid 1104) exited is killed by signal: Killed. (at x.cc:181)\n",
         KILLED),
        ("RuntimeError: DataLoader worker (pid(s) <masked>) is killed by signal: Killed.\n", KILLED),
        ("RuntimeError: DataLoader worker (pid ) is killed by signal: Killed.\n", KILLED),
        ("Download process was signaled to shutdown with signal 9: \n", KILLED),
        ("Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout\n", "net_connect_timeout"),
        ("Unable to connect to the server: x509: certificate has expired\n", "net_failure"),
        ("Failed to send RPC to coordination service. Either the leader task was preempted/died/restarted\n",
         "cascade_store_lost"),
        ("Expected 8 threads to join the rendezvous, but only 7 of them arrived on time.\n", "missing_rank"),
        ("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Terminated (signal 15)\n", "job_cancelled"),
        ("  hostname:  n9\n", "undetermined"),
        ("[W reducer.cpp:1050] Warning: find_unused_parameters=True was specified, but did not find any unused "
         "parameters.\n", "undetermined"),
        ("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 3; 60.97 GiB total capacity)\n", "cuda_oom"),
        ("ResourceExhaustedError: OOM when allocating tensor with shape[64,3] and type float\n", "cuda_oom"),
        ("[n12:4711:0:4711] ib_mlx5_log.c:177  Transport retry count exceeded on mlx5_2:1/IB (synd 0x15)\n",
         "ib_completion_error"),
        ("pdsh@head: n3: ssh exited with exit code 255\n", "net_failure"),
        ("n3: Permission denied (publickey,password).\n", "net_failure"),
        ("ABORT!!! Out of all 2 trainers, the trainer process with rank=[0, 1] was aborted.\n", "undetermined"),
        ("node: mlx5_core 0000:3b:00.0: firmware version: 20.31.1014\n", "undetermined"),
    ],
)  # fmt: skip
def test_words_that_name_nobody(tmp_path: Path, text: str, fault_class: str) -> None:
    answer = of(tmp_path, text)
    assert answer.fault_class == fault_class
    assert [culprit for culprit in answer.culprits if culprit.rank not in (None, 0)] == []


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("Attempting to use an MPI routine before initializing MPICH", "Initialise MPI before"),
        ("Attempting to use an MPI routine after finalizing MPI", "after MPI_Finalize"),
    ],
)
def test_a_call_of_mpi_out_of_order(tmp_path: Path, said: str, step: str) -> None:
    answer = of(tmp_path, f"{said}\n")
    assert (answer.fault_class, answer.culprits) == (RAISED, (Culprit(),))
    assert said in answer.headline
    assert step in answer.next_steps[0]


def test_a_call_of_mpi_out_of_order_on_several_hosts_is_of_none_of_them(tmp_path: Path) -> None:
    said = "*** The MPI_Bcast() function was called after MPI_FINALIZE was invoked.\n"
    aborts = "".join(f"[n{at}:7] Local abort after MPI_FINALIZE completed successfully\n" for at in (1, 2))
    answer = of(tmp_path, said + said + aborts)
    assert (answer.fault_class, answer.culprits) == (RAISED, (Culprit(),))
    far = said + "step\n" * 20 + "[n1:7] Local abort after MPI_FINALIZE completed successfully\n"
    assert of(tmp_path, far).culprits == (Culprit(),), "of another process"


def test_the_traceback_of_a_spawned_process_is_of_that_process(tmp_path: Path) -> None:
    text = (
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 3 terminated with the following error:\n"
        "Traceback (most recent call last):\n  File \"/srv/loop.py\", line 7, in turn\nKeyError: 'tokens'\n"
    )
    answer = of(tmp_path, text)
    assert ([culprit.rank for culprit in answer.culprits], answer.fault_class) == ([3], RAISED)
    assert "KeyError: 'tokens'" in answer.headline


def test_a_task_that_ends_after_its_job_was_cancelled_is_no_cause(tmp_path: Path) -> None:
    text = (
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
        "srun: error: n2: task 3: Exited with exit code 1\n"
    )
    assert of(tmp_path, text).fault_class == "job_cancelled"


def test_the_last_words_of_a_log_count_as_raised_without_their_frames(tmp_path: Path) -> None:
    error = "RuntimeError: use_libuv was requested but PyTorch was build without libuv support\n"
    assert of(tmp_path, error).fault_class == RAISED
    assert of(tmp_path, error + "step 3, loss 0.5\n").fault_class == "undetermined"


@pytest.mark.parametrize(
    ("code", "fault_class"),
    [(None, RAISED), (1, RAISED), (-6, RAISED), (137, KILLED), (-11, CRASHED), (132, CRASHED), (-1073741819, CRASHED),
     (0, ""), (143, ""), (-2, ""), (-3, ""), (-10, ""), (3221225786, "")],
)  # fmt: skip
def test_the_class_of_an_exit_code(code: int | None, fault_class: str) -> None:
    assert ended_as(code) == fault_class


def test_the_launcher_names_who_crashed_where_their_own_lines_do_not(tmp_path: Path) -> None:
    text = (
        "W1212 04:02:33.403934 24044 init.cc:205] *** SIGSEGV (@0x0) received by PID 24044 (TID 0x7f64) from PID 0\n"
        "ABORT!!! Out of all 4 trainers, the trainer process with rank=[0, 2] was aborted. Please check its log.\n"
    )
    answer = of(tmp_path, text)
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == (CRASHED, [0, 2])


def test_ranks_that_ended_alike_are_all_named(tmp_path: Path) -> None:
    block = "[{0}]:\n  time      : 2025-01-01_00:00:00\n  host      : n1\n  rank      : {0} (local_rank: {0})\n"
    text = "Failures:\n" + "".join(f"{block.format(at)}  exitcode  : 1 (pid: 4{at})\n" for at in (1, 2))
    answer = of(tmp_path, text)
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == (RAISED, [1, 2])
    assert answer.confidence < 0.5


def test_members_of_an_aborted_communicator_on_one_gpu(tmp_path: Path) -> None:
    line = "n1:{0}:{0} [0] NCCL INFO comm 0x5{0} rank {1} nranks 2 cudaDev 0 busId {2} - Abort COMPLETE\n"
    assert of(tmp_path, line.format(70, 0, 86000) + line.format(71, 1, 86000)).fault_class == "duplicate_gpu"
    assert of(tmp_path, line.format(70, 0, 86000) + line.format(71, 1, 87000)).fault_class != "duplicate_gpu"


def test_a_rank_that_only_lost_the_store_did_not_serve_it(tmp_path: Path) -> None:
    lost = "[rank{}]:[W TCPStore.cpp:106] sendBytes failed on SocketImpl(fd=97, addr=[n]:50828, remote=[::1]:459)\n"
    alive, other = of(tmp_path, lost.format(0)), of(tmp_path, lost.format(7))
    assert (alive.fault_class, alive.culprits) == ("cascade_store_lost", ())
    assert [culprit.rank for culprit in other.culprits] == [0]
    assert "port 459" in alive.headline


def test_a_warning_about_speed_says_nothing_of_health(tmp_path: Path) -> None:
    """A job that hangs in the next step has printed as much."""
    warning = "UserWarning: Grad strides do not match bucket view strides. This is not an error\n"
    step = "epoch 1 step {} loss: 0.{}\n"
    alone = of(tmp_path, warning)
    assert alone.fault_class == "undetermined"
    assert "no error" in alone.headline
    assert of(tmp_path, warning + step.format(1, 4)).fault_class == "undetermined"
    assert "Work goes on" in of(tmp_path, warning + "".join(step.format(n, n) for n in (5, 6, 7))).headline
    assert of(tmp_path, "".join(step.format(n, n) for n in (5, 6, 7)) + warning).fault_class == "undetermined"


_DIALS = (
    "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: "
    "Connection refused, remote=[127.0.1.1]:20901 (rank=1, size={size}, local=[127.0.0.1]:4312)\n"
)


@pytest.mark.parametrize(("size", "far"), [(16, True), (8, False)])
def test_a_peer_at_the_loopback_is_none_in_a_job_that_is_larger_than_a_host(
    tmp_path: Path, size: int, far: bool
) -> None:
    """The socket that connects to the loopback is there itself, so its rank is not at fault."""
    answer = of(tmp_path, _DIALS.format(size=size))
    assert (answer.fault_class == "net_wrong_interface") is far
    assert not far or answer.culprits == ()


def test_a_fallback_to_the_loopback_counts_where_gloo_cannot_connect_several_hosts(tmp_path: Path) -> None:
    said = (
        "[rank{rank}]:[W ProcessGroupGloo.cpp:721] Warning: Unable to resolve hostname to a (local) address. Using the "
        "loopback address as fallback.\n[rank{rank}]:[E ProcessGroupGloo.cpp:144] Gloo connectFullMesh failed with "
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error\n"
    )
    answer = of(tmp_path, said.format(rank=9))
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("net_wrong_interface", [9])
    assert of(tmp_path, said.format(rank=3)).fault_class == "net_failure"


def test_what_a_replica_raised_outweighs_that_it_was_caught(tmp_path: Path) -> None:
    """The traceback that DataParallel quotes is cut, so nothing ties the two."""
    caught = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\n'
        "RuntimeError: Caught RuntimeError in replica 0 on device 0.\nOriginal Traceback (most recent call last):\n"
        "...\n{original}\n"
    )
    full = "RuntimeError: CUDA out of memory. Tried to allocate 24.00 MiB (GPU 0; 10.76 GiB total capacity)"
    assert of(tmp_path, caught.format(original=full)).fault_class == "cuda_oom"
    assert of(tmp_path, caught.format(original="...")).fault_class == RAISED
