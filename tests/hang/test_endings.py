"""What programs print at their end, and what schedulers, tools of devices and containers record of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.hang.api import triage
from diag.hang.model import Triage
from diag.hang.policy import HANG_EVIDENCE


def _answer(tmp_path: Path, *lines: str) -> Triage:
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    return triage([str(tmp_path)])


_RAISES = "rank_killed_exception"
_AT = "{0}        {1}        2022-06-20T23:23:36Z"
_CONDOR = "005 (12.000.000) 05/06 08:01:02 Job terminated."
_SACCT = "1234.batch   batch    projx    32  {0}      {1} "
_RAISED = ("Traceback (most recent call last):", '  File "train.py", line 3, in step', "ValueError: bad")


@pytest.mark.parametrize(
    "line",
    [
        "Test is a success! You are ready for your distributed training!",
        "LAUNCH INFO 2026-05-06 08:01:02,345 Exit code 0",
        "100% tests passed, 0 tests failed out of 12",
        "======================== 12 passed, 1 skipped in 3.21s ========================",
        "[OUTPUT] 2026-05-06T08:01:02.123456 outputs saved in RANKID_output.json",
        "# Out of bounds values : 0 OK",
        "total images/sec: 204.75",
    ],
)
def test_a_program_that_prints_its_end_is_well(tmp_path: Path, line: str) -> None:
    assert _answer(tmp_path, "start", line).fault_class == "healthy"
    assert _answer(tmp_path, "start", line, *_RAISED).fault_class != "healthy"


@pytest.mark.parametrize(
    "line",
    [
        "*** Best metric: 61.2 (epoch 9)",  # timm prints it after Ctrl-C as well
        "Training time 0:02:10",
        "2026-05-06 08:01:12 | INFO | fairseq_cli.train | done training in 1234.5 seconds",
        "[node1] 2026-05-06 08:01:02,345 (trainer:487) INFO: The training was finished at 50 epochs",
        "[05/06 08:01:02 d2.engine.hooks]: Total training time: 0:11:00 (0:01:00 on hooks)",
        "Total img/sec on 4 GPU(s): 819.2 +-8.4",
        ':::MLLOG {"event_type": "INTERVAL_END", "key": "run_stop", "value": null, "metadata": {"status": "success"}}',
        "              0 tests completed and failed residual checks,",
        " [exiting program at iteration 100] datetime: 2026-05-06 08:01:02",
        "[  PASSED  ] 12 tests.",
        "Result = PASS",
        "	GPU 0: OK",
        "Total wall time: 0:01:02",
        "[METRIC] train_au_meet_expectation: success",
        "LAUNCH INFO 2026-05-06 08:01:02,345 Pod completed",
        "	Exit status: 0",  # of one process
        "LAUNCH INFO 2026-05-06 08:01:02,345 Exit code 1",
        "100% tests passed, 0 tests failed out of 0",
        "# Out of bounds values : 2 FAILED",
    ],
)
def test_lines_like_an_end_are_none(tmp_path: Path, line: str) -> None:
    assert _answer(tmp_path, "start", line).fault_class != "healthy"


@pytest.mark.parametrize(
    ("lines", "fault_class"),
    [
        ((_SACCT.format("COMPLETED", "0:0"),), "healthy"),
        (("JobID|JobName|State|ExitCode", "1234|train|COMPLETED|0:0"), "healthy"),
        ((_SACCT.format("COMPLETED", "0:0"), _SACCT.format("RUNNING", "0:0")), "undetermined"),
        ((_SACCT.format("FAILED", "1:0"),), "undetermined"),
        ((_SACCT.format("FAILED", "0:11"),), "rank_killed_sigsegv"),
        ((_SACCT.format("FAILED", "0:9"),), "rank_killed_sigkill"),
        (("    Exit_status = 0",), "healthy"),
        (("    Exit_status = 1",), "undetermined"),
        (("    Exit_status = 271",), "job_cancelled"),
        (("    Exit_status = 137",), "rank_killed_sigkill"),
        (("Successfully completed.", "Resource usage summary:"), "healthy"),
        (("TERM_ADMIN: job killed by root or LSF administrator.",), "job_cancelled"),
        ((_CONDOR, "	(1) Normal termination (return value 0)"), "healthy"),
        ((_CONDOR, "	(1) Normal termination (return value 1)"), "undetermined"),
        (("004 (12.000.000) 05/06 08:01:02 Job was evicted.",), "job_cancelled"),
        (("failed       0", "exit_status  0"), "healthy"),
        (("failed       100 : assumedly after job", "exit_status  137"), "rank_killed_sigkill"),
        (("    State:          Terminated", "      Reason:       Completed", "      Exit Code:    0"), "healthy"),
        (("    State:          Running", "    Last State:     Terminated", "      Exit Code:    0"), "undetermined"),
        (("NAME  STATUS  COMPLETIONS  DURATION  AGE", "train  Complete   2/2  45s  2m"), "healthy"),
        (("NAME  STATUS  COMPLETIONS  DURATION  AGE", "train  Running   1/2  45s  2m"), "undetermined"),
        (("NAME      STATE       AGE", "train     Succeeded   5m"), "healthy"),
        (("NAME      STATE       AGE", "train     Running   5m"), "undetermined"),
        (("3aa   t:1   python  2 min     Exited (0) 5 seconds ago     train",), "healthy"),
        (("3aa   t:1   python  2 min     Exited (137) 5 seconds ago     train",), "rank_killed_sigkill"),
        (("3aa   t:1   python   Exited (0) 5 s", "3ab   t:1   python  2 min   Up 2 minutes   b"), "undetermined"),
        (("Job 'raysubmit_abc' succeeded",), "healthy"),
        (("Job 'raysubmit_abc' failed",), "undetermined"),
        (("toolkit INFO Reporting training SUCCESS",), "healthy"),
        (("Orted process exited", "toolkit INFO Reporting training SUCCESS"), "undetermined"),
        (("Host EC2 (instance i-0abc) terminated.",), "job_cancelled"),
        (("Instance 'train-1' was preempted.",), "job_cancelled"),
    ],
)  # fmt: skip
def test_what_is_recorded_of_a_job(tmp_path: Path, lines: tuple[str, ...], fault_class: str) -> None:
    assert _answer(tmp_path, *lines).fault_class == fault_class


_IBSTAT = (
    "CA '{0}'", "	CA type: MT4129", "	Port 1:", "		State: {1}", "		Physical state: {2}", "		Rate: 400",
)  # fmt: skip


def _ibstat(adapter: str, state: str, physical: str) -> tuple[str, ...]:
    return tuple(line.format(adapter, state, physical) for line in _IBSTAT)


@pytest.mark.parametrize(
    "lines",
    [
        (*_ibstat("mlx5_0", "Active", "LinkUp"), *_ibstat("mlx5_1", "Down", "Polling")),
        (
            "Infiniband device 'mlx5_0' port 1 status:", "	state:		 4: ACTIVE", "	phys state:	 5: LinkUp",
            "Infiniband device 'mlx5_1' port 1 status:", "	state:		 1: DOWN", "	phys state:	 2: Polling",
        ),
        (
            "hca_id:	mlx5_0", "		port:	1", "			state:			PORT_ACTIVE (4)",
            "hca_id:	mlx5_1", "		port:	1", "			state:			PORT_DOWN (1)",
        ),
    ],
)  # fmt: skip
def test_a_port_that_is_down_is_one_of_the_adapter_above_it(tmp_path: Path, lines: tuple[str, ...]) -> None:
    answer = _answer(tmp_path, *lines)
    assert answer.fault_class == "ib_link_down"
    assert [culprit.nic for culprit in answer.culprits] == ["mlx5_1"]
    assert _answer(tmp_path, *_ibstat("mlx5_0", "Active", "LinkUp")).fault_class == "undetermined"


@pytest.mark.parametrize(
    ("lines", "fault_class", "bus_id"),
    [
        (("Unable to determine the device handle for GPU2: 0000:81:00.0: x",), "gpu_hardware", "0000:81:00.0"),
        (("| ERR!   31C    P0     62W /  400W |       4MiB /  81920MiB |      0%      Default |",), "undetermined", ""),
        (("Failed to initialize NVML: Unknown Error",), "cuda_failure", ""),
        (("No devices were found",), "cuda_failure", ""),
        (("NVRM: API mismatch: the client has the version 535.161.08, but",), "cuda_failure", ""),
        (
            ("nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",),
            "gpu_hardware",
            "0000:3b:00.0",
        ),
        (("nvidia 0000:3b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",), "undetermined", ""),
        (("mlx5_core 0000:5e:00.0: poll_health:739:(pid 0): Fatal error 1 detected",), "ib_device_fatal", ""),
        (("LustreError: 167-0: s-OST3-osc: This client was evicted by s-OST3; in progress",), "storage", ""),
        (("traps: python[4011] trap invalid opcode ip:7f0000 sp:7ffc0000 error:0",), "rank_killed_sigsegv", ""),
        (
            (
                "libfabric:4011:1708520807::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 113, message: "
                "Unresponsive receiver (reachable by EFA device but handshake failed) My EFA addr: fi_addr_efa://[fe80::1]:0:1",
            ),
            "net_failure",
            "",
        ),
        (
            ("from n1 to: n2 error polling LP CQ with status RETRY EXCEEDED ERROR status number 12 for wr_id 2",),
            "ib_completion_error",
            "",
        ),
        (
            ("n1 to: n2 error polling HP CQ with status RECEIVER NOT READY RETRY EXCEEDED ERROR status number 13",),
            "ib_completion_error",
            "",
        ),
        (("oom_reaper: reaped process 4011 (python), now anon-rss:0kB",), "rank_killed_sigkill", ""),
    ],
)  # fmt: skip
def test_tools_and_kernels(tmp_path: Path, lines: tuple[str, ...], fault_class: str, bus_id: str) -> None:
    answer = _answer(tmp_path, *lines)
    assert answer.fault_class == fault_class
    assert [culprit.bus_id for culprit in answer.culprits if culprit.bus_id] == [bus_id] * bool(bus_id)


@pytest.mark.parametrize(
    ("lines", "fault_class"),
    [
        (("AMReX (22.03-16-gdfb0e098df46) finalized",), "healthy"),
        (("AMReX (22.03-16-gdfb0e098df46) initialized",), "undetermined"),
        (("Finished on: Mon, 20 Jan 2025 12:33:10 +0100", "Duration:    6 seconds"), "healthy"),
        (("\t final status: UNDEFINED", "\t final status: SUCCEEDED"), "healthy"),
        (("\t final status: SUCCEEDED", "\t final status: UNDEFINED"), "undetermined"),
        (("\t final status: FAILED",), "undetermined"),
        (("	Final-State : SUCCEEDED",), "healthy"),
        (("26/05/06 08:01:02 INFO mapreduce.Job: Job job_17_0001 completed successfully",), "healthy"),
        (("Status for job 'raysubmit_abc': SUCCEEDED",), "healthy"),
        (("Status for job 'raysubmit_abc': RUNNING",), "undetermined"),
        (("Job finished (status: SUCCEEDED).",), "healthy"),
        (("Job finished (status: FAILED).",), "undetermined"),
        (("  phase: Succeeded",), "healthy"),
        (("  phase: Succeeded", "  phase: Running"), "undetermined"),
        (("  phase: Running", "  phase: Succeeded"), "undetermined"),
        (("    reason: AllJobsCompleted",), "healthy"),
        ((_AT.format("train", "Running"), _AT.format("train", "Succeeded")), "healthy"),
        ((_AT.format("train", "Running"), _AT.format("other", "Succeeded")), "undetermined"),
        ((_AT.format("train", "Succeeded"), _AT.format("train", "Running")), "undetermined"),
    ],
)  # fmt: skip
def test_the_last_record_of_a_job_counts(tmp_path: Path, lines: tuple[str, ...], fault_class: str) -> None:
    assert _answer(tmp_path, *lines).fault_class == fault_class


@pytest.mark.parametrize(
    "line",
    [
        "STOP: FDS completed successfully (CHID: plume)",  # main.f90 prints it above MPI_FINALIZE
        "Finished            : Mon Jul  7 14:50:28 2025",  # so does IOR (PrintTestEnds)
        "`Trainer.fit` stopped: `max_epochs=1` reached.",  # Lightning prints it above on_train_end and the teardown
        "================    End of simulation     ===============",  # OPM Flow, above its cleanup
    ],
)
def test_what_is_printed_before_the_teardown_is_no_end(tmp_path: Path, line: str) -> None:
    assert _answer(tmp_path, "start", line).fault_class == "undetermined"


@pytest.mark.parametrize(
    ("lines", "fault_class", "ranks"),
    [
        (("[57] --> FOAM FATAL ERROR: (openfoam-2306)", "[57] Cannot find file", "FOAM exiting"), _RAISES, [57]),
        (("[3] --> FOAM FATAL IO ERROR: ", "[1] --> FOAM FATAL IO ERROR: "), _RAISES, [1, 3]),
        (("--> FOAM FATAL ERROR : ", "FOAM exiting"), _RAISES, []),
        (("Fatal error:", "There is no domain decomposition for 54 ranks"), _RAISES, []),
        (("Inconsistency in user input:", "Cannot find a cut-off"), _RAISES, []),
        (("train.py: error: unrecognized arguments: \u2013local_rank=19",), _RAISES, []),
        (("Error: unrecognized arguments: \u2013local_rank=19",), _RAISES, []),
        (("Fatal error: cannot be read by this rule in a line", "step 7: 3.1 s"), "undetermined", []),
        (("ERROR - container_support.training - uncaught exception during training: no file",), _RAISES, []),
        (("failed (exitcode: -9) local_rank: 7",), "rank_killed_sigkill", [7]),
        (("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",), "job_cancelled", []),
        # dmlc-core, TVM, glog with the year, BytePS
        (("[17:12:01] src/kvstore/kvstore_dist.h:95: Check failed: n == 2 (1 vs. 2) ",), _RAISES, []),
        (("[17:12:01] /opt/disco/nccl.cc:99: InternalError: Check failed: (size == 4) is false: ",), _RAISES, []),
        (("[17:12:01] /m/dmlc/logging.h:304: [17:12:01] src/storage.cc:113: Compile with USE_CUDA=1",), _RAISES, []),
        (("[17:12:01] src/storage/storage.cc:113: Using Pooled (Naive) StorageManager for GPU",), "undetermined", []),
        (("F20240322 17:35:26.604753 23810 trainer.cpp:276] Check failed: n == world (3 vs. 4) ",), _RAISES, []),
        (("[2026-11-02 03:12:51.983028: F byteps/common/a.cc:12] Check failed: size > 0",), _RAISES, []),
    ],
)  # fmt: skip
def test_what_programs_print_as_they_end_themselves(
    tmp_path: Path, lines: tuple[str, ...], fault_class: str, ranks: list[int]
) -> None:
    answer = _answer(tmp_path, *lines)
    assert answer.fault_class == fault_class
    assert sorted(culprit.rank for culprit in answer.culprits if culprit.rank is not None) == ranks


def test_a_step_that_srun_breaks_off_may_have_failed_before(tmp_path: Path) -> None:
    aborted = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish."
    failed = "srun: error: n1: task 3: Exited with exit code 1"
    assert _answer(tmp_path, failed, aborted).fault_class == "rank_killed_exception"
    assert _answer(tmp_path, "srun: error: n1: task 3: Killed", aborted).fault_class == "rank_killed_sigkill"
    cancelled = _answer(tmp_path, "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-05T10:00:00 ***", aborted)
    assert _answer(tmp_path, aborted).confidence <= HANG_EVIDENCE.with_a_rival < cancelled.confidence


def test_a_failed_check_about_a_peer_is_no_exception_of_its_own(tmp_path: Path) -> None:
    check = (
        "F20220301 16:13:39.023948 42841 ctrl_client.cpp:54] Check failed: rpc_client_.GetStubAt(i)"
        "->CallMethod<CtrlMethod::kLoadServer>( &context, request, &response).error_code() == grpc::StatusCode::OK "
        "(14 vs. 0) Machine 3 lost"
    )
    answer = _answer(tmp_path, check)
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("net_connection_lost", [3])


_SUMMARY = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
fit.py FAILED
Failures:
{}
Root Cause (first observed failure):
[0]:
  time      : 2026-01-05_10:00:00
  host      : n1
  rank      : 5 (local_rank: 5)
  exitcode  : -6 (pid: 700)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 700"""


def test_the_only_rank_that_torchrun_saw_abort_is_named(tmp_path: Path) -> None:
    answer = _answer(tmp_path, _SUMMARY.format("  <NO_OTHER_FAILURES>"))
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == (_RAISES, [5])
    assert answer.confidence < 0.5  # what it printed is not there
    others = _SUMMARY.partition("[0]:")[2].replace("5 (local_rank: 5)", "3 (local_rank: 3)")
    assert _answer(tmp_path, _SUMMARY.format(f"[1]:{others}")).fault_class == "undetermined"


def test_of_the_summaries_of_two_agents_the_earlier_names_the_first(tmp_path: Path) -> None:
    late = _SUMMARY.format("  <NO_OTHER_FAILURES>").replace("-6", "1").rpartition("\n")[0]
    early = late.replace("10:00:00", "09:59:09").replace("rank      : 5", "rank      : 12")
    for lines in ((late, early), (early, late)):
        answer = _answer(tmp_path, *lines)
        assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == (_RAISES, [12])


def test_a_bar_that_an_exception_closes_is_no_further_step(tmp_path: Path) -> None:
    """tqdm draws it once more as the loop ends."""
    bar = " 38%|███▊      | {}/13 [01:{}<02:07, 15.99s/it]"
    answer = _answer(tmp_path, bar.format(5, 28) + _RAISED[0], *_RAISED[1:], bar.format(5, 50))
    assert answer.fault_class == _RAISES
    answer = _answer(tmp_path, bar.format(5, 28) + _RAISED[0], *_RAISED[1:], bar.format(6, 50))
    assert answer.fault_class == "undetermined"


def test_who_a_process_of_multiprocessing_is_no_other_line_of_the_file_tells(tmp_path: Path) -> None:
    from_rank_0 = "[rank0]:[W618 10:22:41.3 ProcessGroupNCCL.cpp:4715] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0"
    answer = _answer(tmp_path, "Process Process-1:", *_RAISED, from_rank_0)
    assert (answer.fault_class, [c.rank for c in answer.culprits if c.rank is not None]) == (_RAISES, [])


def test_a_sigterm_in_the_words_of_paddle_is_no_exception(tmp_path: Path) -> None:
    asked = "  [SignalInfo: *** SIGTERM (@0x1f4) received by PID 7021 (TID 0x7f45) from PID 6976 ***]"
    said = "FatalError: `Termination signal` is detected by the operating system."
    assert _answer(tmp_path, "C++ Traceback (most recent call last):", said, asked).fault_class != _RAISES


def _of_accelerate(rank: int, local: int, device: str) -> tuple[str, ...]:
    return (f"Process index: {rank}", f"Local process index: {local}", f"Device: {device}", "")


def test_two_local_ranks_with_one_device(tmp_path: Path) -> None:
    answer = _answer(tmp_path, *_of_accelerate(0, 0, "cuda:0"), *_of_accelerate(1, 1, "cuda:0"))
    assert (answer.fault_class, [one.rank for one in answer.culprits]) == ("duplicate_gpu", [0, 1])
    on_two_hosts = _answer(tmp_path, *_of_accelerate(0, 0, "cuda:0"), *_of_accelerate(8, 0, "cuda:0"))
    assert on_two_hosts.fault_class == "undetermined"


@pytest.mark.parametrize(("shapes", "odd"), [(("[8]", "[9]", "[8]"), [1]), (("[8]", "[9]"), [])])
def test_shapes_that_accelerate_compared(tmp_path: Path, shapes: tuple[str, ...], odd: list[int]) -> None:
    raised = "accelerate.utils.operations.DistributedOperationException: Cannot apply desired operation due to shape "
    raised += "mismatches. All shapes across devices must be valid."
    rows = (f"  - Process {rank}: {shape}" for rank, shape in enumerate(shapes))
    answer = _answer(tmp_path, *_RAISED[:2], raised, "", "Operation: `accelerate.utils.operations.gather`", *rows)
    assert (answer.fault_class, [one.rank for one in answer.culprits]) == ("mismatch_shape", odd)
