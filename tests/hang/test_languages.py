"""What programs print of their processes, each in its own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.hang.api import triage
from diag.hang.model import Triage

_EVENT = (
    '{"name": "torchelastic.worker.status.%s", "source": "WORKER", "metadata": {"global_rank": 7, "role": "default", '
    '"hostname": "n7.example", "state": "%s", "raw_error": null}}'
)


def _answer(tmp_path: Path, *lines: str) -> Triage:
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    return triage([str(tmp_path)])


@pytest.mark.parametrize(
    ("line", "fault_class", "rank"),
    [
        ("x1922c6s5b0n0-hsn0: rank 34 died from signal 11 and dumped core", "rank_killed_sigsegv", 34),  # PALS
        ("x1922c6s5b0n0-hsn0: rank 34 exited with code 3", "rank_killed_exception", 34),
        ("ERROR:  One or more process (first noticed rank 3) terminated with signal 9", "rank_killed_sigkill", 3),
        (_EVENT % ("FAILED", "FAILED"), "rank_killed_exception", 7),
        (_EVENT % ("SUCCEEDED", "SUCCEEDED"), "healthy", None),
    ],
)
def test_how_a_process_ended_is_read_in_the_words_of_its_launcher(
    tmp_path: Path, line: str, fault_class: str, rank: int | None
) -> None:
    answer = _answer(tmp_path, line)
    assert answer.fault_class == fault_class
    assert [culprit.rank for culprit in answer.culprits] == ([] if rank is None else [rank])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[   49.261458] NVRM: GPU at 0000:01:00.0 has fallen off the bus.", "0000:01:00.0"),
        ("[  127.1234567] amdgpu 0000:c2:00.0: ring sdma0 timeout, signaled seq=309, emitted seq=313", "0000:c2:00.0"),
        ("drmn0: GPU reset begin!", "GPU 0"),
    ],
)
def test_a_gpu_that_a_driver_gives_up_is_named(tmp_path: Path, line: str, words: str) -> None:
    answer = _answer(tmp_path, line)
    assert answer.fault_class == "gpu_hardware"
    assert words in answer.headline


def test_a_call_of_the_neuron_runtime_that_failed_is_told(tmp_path: Path) -> None:
    answer = _answer(
        tmp_path, "2026-Jan-05 10:00:00 71:71 ERROR   NRT:nrt_init        Failed to initialize devices, error:1"
    )
    assert answer.fault_class == "cuda_failure"
    assert "nrt_init" in answer.headline


def test_an_exception_behind_a_local_rank_is_of_that_rank_on_one_host_only(tmp_path: Path) -> None:
    raised = ["Traceback (most recent call last):", '  File "/app/train.py", line 3, in step', "OSError: broken"]
    tagged = [f"[default3]:{line}" for line in raised]
    assert [culprit.rank for culprit in _answer(tmp_path, *tagged).culprits] == [3]
    of_many = [f"gpu-{i // 8}:{i}:{i} [{i % 8}] NCCL INFO comm 0x7a rank {i} nranks 16 - Init COMPLETE" for i in (0, 9)]
    assert not [c for c in _answer(tmp_path, *of_many, *tagged).culprits if c.rank is not None]


STEPS = tuple(f"iter {step}: loss 3.{9 - step}, time 120.11ms" for step in range(4))


@pytest.mark.parametrize(
    "after",
    [
        ("waiting for the other ranks",),
        ("saving", "saved", "next"),  # work ended before the end of the log
        ("[rank0]: OSError: [Errno 5] Input/output error",),
        ("iter 4: loss nan, time 120.11ms",),
    ],
)
def test_steps_that_something_follows_are_not(tmp_path: Path, after: tuple[str, ...]) -> None:
    assert _answer(tmp_path, *STEPS, *after).fault_class != "healthy"


def test_one_step_alone_shows_no_progress(tmp_path: Path) -> None:
    assert _answer(tmp_path, STEPS[0]).fault_class == "undetermined"


def test_what_all_ranks_launched_and_none_finished_points_to_the_devices(tmp_path: Path) -> None:
    whole = [
        f"gpu-0:{rank}:{rank} [{rank}] NCCL INFO comm 0x7a rank {rank} nranks 2 cudaDev {rank} busId {rank + 1}000 "
        "commId 0xabc - Init COMPLETE"
        for rank in range(2)
    ]
    timed_out = [
        f"[rank{rank}]:[E602 11:17:52.399340160 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=28, OpType=ALLREDUCE, NumelIn=19, NumelOut=19, Timeout(ms)=600000) ran for "
        "600080 milliseconds before timing out."
        for rank in range(2)
    ]
    answer = _answer(tmp_path, *whole, *timed_out)
    assert answer.fault_class == "undetermined"
    assert "none finished it" in answer.headline
    assert "dmesg" in answer.next_steps[0]
    assert not answer.culprits


@pytest.mark.parametrize(
    ("line", "fault_class"),
    [
        ("已杀死", "rank_killed_sigkill"),
        ("run.sh: Zeile 2:   911 Getötet                python train.py", "rank_killed_sigkill"),
        ("run.sh: 第 3 行:   911 段错误               (核心已转储) python train.py", "rank_killed_sigsegv"),
        ("run.sh: line 3:   911 Segmentation fault      (core dumped) python train.py", "rank_killed_sigsegv"),
        ("Der Prozess wurde Getötet, sagt er", ""),
    ],
)
def test_a_shell_says_in_the_users_language_how_a_command_ended(tmp_path: Path, line: str, fault_class: str) -> None:
    assert _answer(tmp_path, "loading the model", line).fault_class == (fault_class or "undetermined")


def test_torchruns_summary_shows_the_code_where_the_rest_is_cut(tmp_path: Path) -> None:
    answer = _answer(
        tmp_path,
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2025-01-01_09:36:56",
        "  host      : n3.example",
        "  rank      : 7 (local_rank: 7)",
        "  exitcode  : -9 (pid: 4127)",
        "  error_file: <N/A>",
    )
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("rank_killed_sigkill", [7])


def test_the_summary_of_torch_1_9_lists_the_other_failures_below_the_cause(tmp_path: Path) -> None:
    rank = ("  time: 2023-03-04_19:17:38", "  rank: {0} (local_rank: {0})", "  exitcode: {1} (pid: {2})",
            "  error_file: <N/A>", '  msg: "Signal {3} received by PID {2}"')  # fmt: skip
    answer = _answer(
        tmp_path,
        "***************************************",
        "          tools/train.py FAILED          ",
        "=======================================",
        "Root Cause:",
        "[0]:",
        *(line.format(3, -11, 4127, "11 (SIGSEGV)") for line in rank),
        "=======================================",
        "Other Failures:",
        "[1]:",
        *(line.format(1, -15, 4125, "15 (SIGTERM)") for line in rank),
        "***************************************",
    )
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("rank_killed_sigsegv", [3])


@pytest.mark.parametrize(
    ("original", "fault_class"),
    [("KeyError: 'image'", "rank_killed_exception"), ("", "net_connection_lost")],
)
def test_what_a_worker_raised_comes_before_the_connections_that_end_with_its_rank(
    tmp_path: Path, original: str, fault_class: str
) -> None:
    """The DataLoader passes it on; where the paste ends above it, it may have been about a peer."""
    quoted = ("[rank1]: Original Traceback (most recent call last):", '[rank1]:   File "a.py", line 6, in f')
    answer = _answer(
        tmp_path,
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "train.py", line 5, in <module>',
        "[rank1]: KeyError: Caught KeyError in DataLoader worker process 0.",
        *((*quoted, f"[rank1]: {original}") if original else ()),
        "n1:53:54 [2] include/socket.h:408 NCCL WARN Call to recv from 10.0.0.1<41900> failed : Connection reset by "
        "peer",
    )
    assert answer.fault_class == fault_class


def test_a_rank_that_its_watchdogs_monitor_ends_did_not_end_by_itself(tmp_path: Path) -> None:
    answer = _answer(
        tmp_path,
        "[rank3]:[E1001 16:15:25.776748098 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 3] "
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued "
        "collectives.",
        "mpirun noticed that process rank 3 with PID 5628 on node n4 exited on signal 6 (Aborted).",
    )
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("watchdog_blocked", [3])


def test_an_exit_behind_a_system_error_of_nccl_accuses_nobody(tmp_path: Path) -> None:
    """NCCL's own log alone says which call failed, and a peer that left is such a failure."""
    agent = "torch.distributed.elastic.multiprocessing.api: [ERROR] "
    ended = f"{agent}failed (exitcode: 1) local_rank: 0 (pid: 41) of binary: /bin/python"
    said = "NCCL error in: ../ProcessGroupNCCL.cpp:911, unhandled system error, NCCL version 2.7.8"
    raised = ("Traceback (most recent call last):", '  File "train.py", line 8, in <module>', f"RuntimeError: {said}")
    assert _answer(tmp_path, *raised, ended).culprits == ()
    assert [culprit.rank for culprit in _answer(tmp_path, ended).culprits] == [0]


@pytest.mark.parametrize("mark", ["[rank1]:", ""])
def test_a_line_without_a_mark_is_of_nobody_where_lines_are_marked(tmp_path: Path, mark: str) -> None:
    answer = _answer(
        tmp_path,
        f"{mark}Bootstrap : no socket interface found",
        "[rank1]:[W1102 00:39:34.733273667 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=96, "
        "addr=[localhost]:10006, remote=[localhost]:10197): failed to recv, got 0 bytes",
    )
    assert answer.fault_class == "net_no_interface"
    assert {culprit.rank for culprit in answer.culprits} - {None} == ({1} if mark else set())


def test_a_rank_that_waits_in_a_collective_is_not_slow_to_start(tmp_path: Path) -> None:
    answer = _answer(
        tmp_path,
        "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
        "store by key '1', but store->get('1') got error: Socket Timeout.",
        "[E ProcessGroupNCCL.cpp:474] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1132, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800188 milliseconds before timing out.",
    )
    assert (answer.fault_class, answer.culprits) == ("desync", ())


@pytest.mark.parametrize(
    ("line", "fault_class"),
    [
        ("DistStoreError: 5/12 clients joined", "missing_rank"),
        ("  what():  only 5 of 12 workers have joined", "missing_rank"),
        ("the rendezvous timed out after 90 s: 5/12 nodes registered", "missing_rank"),
        ("5/12 workers joined", "undetermined"),  # so far
        ("DistStoreError: 12/12 clients joined", "undetermined"),
        ("OSError: [WinError 10048] while a server was started", "net_bind_failed"),
        ("RuntimeError: The requested address is not valid in its context.", "net_bind_failed"),
        ("ConnectionResetError: [WinError 10054] by the other side", "net_connection_lost"),
        ('Error: Os { code: 10060, kind: TimedOut, message: "x" } (os error 10060)', "net_connect_timeout"),
        ("bind: Winsock error 10013", "net_bind_failed"),
        ("recv failed with WSAECONNABORTED", "net_connection_lost"),
        (
            "dial tcp 10.0.0.7:29500: connectex: No connection could be made because the target machine actively "
            "refused it.",
            "net_connect_refused",
        ),
        (
            "[W socket.cpp:601] [c10d] The client socket has failed to connect to [kubernetes.docker.internal]:29500 "
            "(system error: 10049 - The requested address is not valid in its context.).",
            "undetermined",  # the next address is tried
        ),
        ("step 10054 of 10060 | loss 2.2", "undetermined"),
    ],
)
def test_counts_of_who_came_and_words_of_windows(tmp_path: Path, line: str, fault_class: str) -> None:
    answer = _answer(tmp_path, line)
    assert answer.fault_class == fault_class
    assert answer.confidence < 0.9


_FELL_BACK = "[rank{}] Unable to resolve hostname to a (local) address. Using the loopback address as fallback."
_TO_ITSELF = "[rank{}] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:4400"


def test_who_falls_back_to_the_loopback_seeks_its_peers_at_home(tmp_path: Path) -> None:
    answer = _answer(tmp_path, _FELL_BACK.format(19), _TO_ITSELF.format(19))
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("net_wrong_interface", [19])
    assert answer.confidence < 0.9


@pytest.mark.parametrize(
    "lines",
    [
        (_FELL_BACK.format(1), _TO_ITSELF.format(1)),  # all may be on one host
        (_FELL_BACK.format(19), "[rank19] step 3 | loss 2.2"),
        (_TO_ITSELF.format(19),),
    ],
)
def test_the_loopback_alone_is_no_wrong_interface(tmp_path: Path, lines: tuple[str, ...]) -> None:
    assert _answer(tmp_path, *lines).fault_class != "net_wrong_interface"


_LOGGED = "Test:  [ {0}/10010]  eta: 1:53:32  loss: 0.5 (0.6)  time: 0.8568  data: 0.0001  max mem: 14135"
_WATCHDOG = (
    "[E ProcessGroupNCCL.cpp:587] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLGATHER, "
    "Timeout(ms)=1800000) ran for 1800172 milliseconds before timing out."
)


@pytest.mark.parametrize(
    ("step", "fault_class"), [(2090, "slow_rank_eval"), (100, "undetermined"), (10010, "undetermined")]
)
def test_a_loop_of_metric_logger_is_as_long_as_its_steps(tmp_path: Path, step: int, fault_class: str) -> None:
    assert _answer(tmp_path, _LOGGED.format(step), *map(_WATCHDOG.format, (12, 15))).fault_class == fault_class


_CREATED = 'error={{"created":"@1535578772.097710816","description":"Failed to connect to remote host: OS Error"{}'


@pytest.mark.parametrize(
    ("line", "fault_class", "words"),
    [
        ("E distributed_runtime/master.cc:269] Master init: Unavailable: OS Error", "net_failure", "gRPC"),
        (_CREATED.format(""), "net_failure", "Failed to connect to remote host"),  # cut
        (
            _CREATED.format(
                ',"errno":111,"file":"tcp_client_posix.cc","file_line":198,"os_error":"Connection refused",'
                '"syscall":"connect","target_address":"ipv4:10.0.0.7:2222"'
            ),
            "net_connect_refused",
            "10.0.0.7, port 2222",
        ),
        ("W framework/op_kernel.cc:1] Unavailable: shutting down", "undetermined", ""),
        ("E0322 17:35:26.604753 23810 socket.cpp:276] ERROR: No peer by name [n7]", "net_failure", "The name n7"),
        (
            "[10:00:00] /w/src/collective/comm.cu:95: Check failed: n_uniques == root.World() (1 vs. 2) : Multiple "
            "processes within communication group running on same CUDA device is not supported. 7f",
            "duplicate_gpu",
            "2 of them have 1",
        ),
    ],
)
def test_what_tensorflow_caffe_and_xgboost_print_of_connections_and_devices(
    tmp_path: Path, line: str, fault_class: str, words: str
) -> None:
    answer = _answer(tmp_path, line)
    assert answer.fault_class == fault_class
    assert words in answer.headline
    assert answer.confidence < 0.9


_CTRAN = (
    "[E320 18:40:32 CtranGpe.cc:538] Encountered exception: Exception: comm aborted due to timeout, rank: {}, "
    "commHash: 4028d, desc: {} for peer {}, result: commRemoteError (commRemoteError); setting async error flag"
)


@pytest.mark.parametrize(
    ("waits", "fault_class", "ranks"),
    [
        (((0, 3),), "missing_rank", [3]),
        (((0, 3), (3, 2)), "missing_rank", [2]),  # 3 waits itself
        (((0, 3), (1, 3)), "missing_rank", [3]),
        (((0, 1), (1, 0)), "undetermined", []),
    ],
)
def test_the_peer_that_torchcomms_waits_for_is_named_unless_it_waits_too(
    tmp_path: Path, waits: tuple[tuple[int, int], ...], fault_class: str, ranks: list[int]
) -> None:
    answer = _answer(tmp_path, *(_CTRAN.format(rank, "waitRequest", peer) for rank, peer in waits))
    assert answer.fault_class == fault_class
    assert [culprit.rank for culprit in answer.culprits] == ranks


_ETCD = "torch.distributed.elastic.rendezvous.etcd_rendezvous: [INFO] "


@pytest.mark.parametrize(
    ("above", "fault_class"),
    [
        ("Attempting to join next rendezvous", "stale_store"),
        ("Joined rendezvous version 1 as rank 0. Full state: {'status': 'joinable', 'version': '1'}", "undetermined"),
    ],
)
def test_a_closed_rendezvous_is_old_only_to_who_never_joined_it(tmp_path: Path, above: str, fault_class: str) -> None:
    closed = f"[2026-05-22 00:31:47,512] {_ETCD}Rendezvous for run_id=a1 was observed to be closed"
    error = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError"
    assert _answer(tmp_path, f"[2026-05-22 00:31:47,503] {_ETCD}{above}", closed, error).fault_class == fault_class


_LAUNCH = (
    "Traceback (most recent call last):",
    '  File "/opt/torch/distributed/launch.py", line 242, in main',
    "    cmd=cmd)",
    "subprocess.CalledProcessError: Command '['python', '-u', 'train.py', '--local_rank={}']' returned non-zero exit "
    "status 1.",
)


@pytest.mark.parametrize(("last", "rank"), [(0, 0), (1, None)])
def test_the_launcher_prints_the_last_command_and_not_the_one_that_failed(
    tmp_path: Path, last: int, rank: int | None
) -> None:
    answer = _answer(tmp_path, *(line.format(last) for line in _LAUNCH))
    assert answer.fault_class == "rank_killed_exception"
    assert [culprit.rank for culprit in answer.culprits] == [rank]
    assert answer.confidence < 0.5


def test_the_launcher_says_nothing_where_a_process_does(tmp_path: Path) -> None:
    lost = "RuntimeError: [/w/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.7]:7777"
    answer = _answer(tmp_path, lost, *(line.format(1) for line in _LAUNCH))
    assert answer.fault_class != "rank_killed_exception"


@pytest.mark.parametrize(("code", "fault_class"), [(-9, "rank_killed_sigkill"), (-11, "rank_killed_sigsegv")])
def test_nvflare_prints_the_code_of_its_process(tmp_path: Path, code: int, fault_class: str) -> None:
    line = "2022-08-05 19:09:20,619 - ClientExecutor - INFO - {}process finished with execution code: {}"
    assert _answer(tmp_path, line.format("run (a): child worker ", code)).fault_class == fault_class
    assert _answer(tmp_path, line.format("", 0)).fault_class == "undetermined"


def test_gloos_checks_of_a_socket_are_read(tmp_path: Path) -> None:
    check = "RuntimeError: [enforce fail at /w/gloo/gloo/transport/tcp/socket.cc:142] rv != -1. -1 vs -1. {}"
    answer = _answer(tmp_path, check.format("connect: Network is unreachable"))
    assert answer.fault_class == "net_failure"
    assert "connect() failed: Network is unreachable" in answer.headline
    assert _answer(tmp_path, check.format("bind: Address already in use")).fault_class == "net_bind_failed"


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: RPCErr:1:RPC ran for more than set timeout (60000 ms) and will now be marked with an error",
        "xgboost.core.XGBoostError: [10:00:00] /w/rabit/include/rabit/internal/socket.h:170: Poll timeout",
    ],
)
def test_an_exception_about_a_wait_accuses_nobody(tmp_path: Path, message: str) -> None:
    trace = ("Traceback (most recent call last):", '  File "train.py", line 9, in train', "    y = get(n)")
    answer = _answer(tmp_path, *trace, message)
    assert (answer.fault_class, answer.culprits) == ("undetermined", ())


@pytest.mark.parametrize(
    ("line", "fault_class"),
    [
        ("node ERROR - Cannot upload: ('Connection aborted.', RemoteDisconnected('Remote end closed'))", "lost"),
        ("node ERROR - Cannot upload: BrokenPipeError(32, 'x')", "lost"),
        ("node WARNING - RemoteDisconnected('Remote end closed'), will retry in 5 s", ""),
    ],
)
def test_pythons_names_of_errors_of_connections_are_words(tmp_path: Path, line: str, fault_class: str) -> None:
    expected = "net_connection_lost" if fault_class else "undetermined"
    assert _answer(tmp_path, f"2021-10-19 10:13:12,456 {line}").fault_class == expected


_EVALUATES = "I1103 16:06:29.9 workload.py:130] Evaluating on the validation set"
_STEP = "I1103 16:14:11.7 runner.py:345] Step: 1, loss: 10.9, bleu: 1.7"
_TIMES_OUT = (
    "[E ProcessGroupNCCL.cpp:737] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=471, "
    "OpType=BROADCAST, Timeout(ms)=3600000) ran for 3605361 milliseconds before timing out."
)


@pytest.mark.parametrize(
    ("above", "fault_class"), [((_EVALUATES,), "slow_rank_eval"), ((_EVALUATES, _STEP), "undetermined")]
)
def test_an_evaluation_that_a_step_follows_is_over(tmp_path: Path, above: tuple[str, ...], fault_class: str) -> None:
    assert _answer(tmp_path, *above, *map(_TIMES_OUT.format, (6, 2))).fault_class == fault_class


def test_modernmt_ends_its_training_alone(tmp_path: Path) -> None:
    step = "2017-11-12 06:37:25,340 [INFO] - Step 710000 (epoch: 4.17): [acc: 66.46; ppl: 5.19]"
    end = "2017-11-12 06:37:27,920 [INFO] - Train model END 189635.83s"
    assert _answer(tmp_path, step, end).fault_class == "healthy"
    error = ("Traceback (most recent call last):", '  File "a.py", line 1, in f', "ValueError: no checkpoint")
    assert _answer(tmp_path, step, end, *error).fault_class == "rank_killed_exception"


_FRAMES = ("Traceback (most recent call last):", '  File "train.py", line 8, in <module>')


@pytest.mark.parametrize(
    "raised",
    [
        "RuntimeError: DataLoader timed out after 120 seconds",
        "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.",
        "RuntimeError: DeepEP error: timeout (dispatch CPU)",
        "RuntimeError: CNCL error in: /src/ProcessGroupCNCL.cpp:555, unhandled mlu error",
        "RuntimeError: Synchronize: NPU function error: SUSPECT REMOTE ERROR, error code is 507057",
        "UnexpectedStatusException: Error for Training job a: Failed. Reason: CapacityError: Unable to provision.",
    ],
)
def test_who_raises_that_a_wait_ran_out_is_not_the_cause(tmp_path: Path, raised: str) -> None:
    answer = _answer(tmp_path, *_FRAMES, raised)
    assert answer.fault_class == "undetermined"
    assert not answer.culprits


def test_a_command_that_took_too_long_is_the_ranks_own(tmp_path: Path) -> None:
    raised = "subprocess.TimeoutExpired: Command '['make', 'ops']' timed out after 600 seconds"
    assert _answer(tmp_path, *_FRAMES, raised).fault_class == "rank_killed_exception"


@pytest.mark.parametrize(
    ("raised", "fault_class"),
    [
        ("RuntimeError: MLU out of memory. Tried to allocate 2.00 GiB (MLU 0). To avoid it, read.", "cuda_oom"),
        ("RuntimeError: could not write: disk quota exceeded", "storage"),
        ("RuntimeError: the model was not found; out of memory on the GPU may follow", "rank_killed_exception"),
        ("ValueError: the peer's socket was closed", "rank_killed_exception"),
    ],
)
def test_an_exceptions_own_words_say_what_its_process_lacks(tmp_path: Path, raised: str, fault_class: str) -> None:
    answer = _answer(tmp_path, *(f"[rank3]: {line}" for line in (*_FRAMES, raised)))
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == (fault_class, [3])


@pytest.mark.parametrize(
    "line",
    [
        "torch.distributed.DistStoreError: use_libuv was requested but PyTorch was built without libuv support, run "
        "with USE_LIBUV=0 to disable it.",
        "Error: mkl-service + Intel(R) MKL: MKL_THREADING_LAYER=INTEL is incompatible with libgomp.so.1 library.",
        "OMP: Error #15: Initializing libiomp5.so, but found libomp.so already initialized.",
        "FAILED tests/test_tp.py::test_forward - RuntimeError: The size of tensor a (3) must match",
        'ErrorMessage "ValueError: the batch is empty',
    ],
)
def test_what_a_process_prints_of_its_own_setup_and_tests_is_the_cause(tmp_path: Path, line: str) -> None:
    answer = _answer(tmp_path, "loading", line)
    assert answer.fault_class == "rank_killed_exception"


def test_who_waited_in_vain_for_something_is_no_witness_against_the_other_rank(tmp_path: Path) -> None:
    whole = [
        f"{rank}: gpu-0:{rank}:{rank} [{rank}] NCCL INFO comm 0x7a rank {rank} nranks 2 cudaDev {rank} "
        f"busId {rank + 1}000 commId 0xabc - Init COMPLETE"
        for rank in range(2)
    ]
    answer = _answer(tmp_path, *whole, *(f"0: {line}" for line in (*_FRAMES, "TimeoutError: timed out")))
    assert not answer.culprits


_POOL = "HTTPSConnectionPool(host='hub.example', port=443)"


@pytest.mark.parametrize(
    ("raised", "fault_class"),
    [
        (f"requests.exceptions.ReadTimeout: {_POOL}: Read timed out. (read timeout=10)", "net_connect_timeout"),
        (
            f"requests.exceptions.ConnectTimeout: {_POOL}: Max retries exceeded with url: /a (Caused by "
            "ConnectTimeoutError(<x>, 'Connection to hub.example timed out. (connect timeout=10)'))",
            "net_connect_timeout",
        ),
        (
            f'requests.exceptions.ConnectionError: (MaxRetryError("{_POOL}: Max retries exceeded with url: /a (Caused '
            "by NewConnectionError('<x>: Failed to connect: [Errno 101] Network is unreachable'))\"))",
            "net_connect_timeout",
        ),
        (
            f"requests.exceptions.ConnectionError: {_POOL}: Max retries exceeded with url: /a (Caused by "
            "NameResolutionError(\"<x>: Failed to resolve 'hub.example' ([Errno -2] Name or service not known)\"))",
            "net_failure",
        ),
    ],
)
def test_the_server_of_an_http_client_is_named(tmp_path: Path, raised: str, fault_class: str) -> None:
    answer = _answer(tmp_path, *_FRAMES, raised)
    assert answer.fault_class == fault_class
    assert [culprit.peer for culprit in answer.culprits] == ["hub.example"]
    assert "curl" in answer.next_steps[0]


def test_a_request_that_is_made_again_is_no_failure(tmp_path: Path) -> None:
    again = f"'(ReadTimeoutError(\"{_POOL}: Read timed out. (read timeout=10)\"))' thrown while requesting HEAD /a"
    assert _answer(tmp_path, again, "Retrying in 1s [Retry 1/5].").fault_class == "undetermined"
