"""What is the cause of what: cascades are never roots, the earlier one wins, blame that is mutual is nobody's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diag.hang.api import triage
from diag.hang.policy import HANG_EVIDENCE
from diag.hang.reason import reason
from tests.hang.reason.builders import Job, ranks


def test_cascade_lines_alone_are_never_a_root() -> None:
    job = Job()
    job.say("Sending process 1001 closing signal SIGTERM", source="launcher")
    job.exit(1, -6)
    job.exit(2, -15)
    job.warn(0, "Socket recv failed while polling for opId=0x7f")
    triage = reason(job.logs())
    assert (triage.fault_class, triage.culprits) == ("undetermined", ())
    assert triage.next_steps


def test_an_exception_after_the_watchdog_is_a_victims() -> None:
    """The ranks that timed out raise as well; the one that did not come is the cause."""
    job = Job()
    for rank in (0, 1, 2):
        job.timeout(rank, at=600)
        job.traceback(rank, "RuntimeError: something after the abort", at=601)
    job.info(3, "ncclCommInitRank comm 0x1 - Init COMPLETE")
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("missing_rank", [3])
    assert triage.victims == (0, 1, 2)


def test_an_exception_long_after_the_time_outs_elsewhere_is_no_cause() -> None:
    job = Job()
    for rank in (0, 1, 2):
        job.timeout(rank, at=600)
    job.traceback(3, "ValueError: late", at=700)
    assert reason(job.logs()).fault_class == "missing_rank"


def test_an_exception_before_the_time_outs_is_the_cause() -> None:
    job = Job()
    for rank in (0, 1, 2):
        job.timeout(rank, at=600)
    job.traceback(3, "ValueError: early", at=10)
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("rank_killed_exception", [3])
    assert "ValueError: early" in triage.headline


def test_of_two_exceptions_the_earlier_one_counts() -> None:
    job = Job()
    job.traceback(0, "KeyError: 'second'", at=50)
    job.traceback(2, "ValueError: first", at=10)
    assert ranks(reason(job.logs())) == [2]


def test_without_clocks_the_launchers_first_failure_decides_between_exceptions() -> None:
    job = Job()
    job.traceback(0, "KeyError: 'second'")
    job.traceback(2, "ValueError: first")
    for text in (
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-01-01_00:00:00",
        "  host      : node1.cluster",
        "  rank      : 2 (local_rank: 0)",
        "  exitcode  : 1 (pid: 1002)",
    ):
        job.say(text, source="launcher")
    assert ranks(reason(job.logs())) == [2]


def test_two_exceptions_that_nothing_orders_are_both_named_less_surely() -> None:
    one, two = Job(), Job()
    one.traceback(2, "ValueError: first")
    two.traceback(2, "ValueError: first")
    two.traceback(0, "KeyError: 'second'")
    assert ranks(reason(two.logs())) == [0, 2]
    assert "different exceptions (rank 0 KeyError, rank 2 ValueError)" in reason(two.logs()).headline
    assert (reason(two.logs()).culprit_confidence or 1) < (reason(one.logs()).culprit_confidence or 0)


@pytest.mark.parametrize(("later", "ordered"), [(11, False), (30, True)])
def test_which_victim_raised_first_is_said_only_where_clocks_tell(later: int, ordered: bool) -> None:
    job = Job(world=2, per_host=1)
    job.traceback(0, "RuntimeError: Connection closed by peer [10.0.0.2]:5862", at=later)
    job.traceback(1, "RuntimeError: Connection closed by peer [10.0.0.3]:5863", at=10)
    found = reason(job.logs())
    assert (found.fault_class, ranks(found)) == ("undetermined", [])
    assert ("Rank 1 raised first" in found.headline.replace("\N{NO-BREAK SPACE}", " ")) is ordered


def test_of_two_exceptions_in_one_file_the_upper_one_is_named_as_one_of_two(tmp_path: Path) -> None:
    """Lines of several processes run into each other: their order is no order of time."""
    first, second = "[rank0]: ValueError: bad shape\n", "[rank1]: KeyError: 7\n"
    begin = '[rank{}]: Traceback (most recent call last):\n[rank{}]:   File "/w/a.py", line 3, in f\n'
    (tmp_path / "one.log").write_text(begin.format(0, 0) + first)
    (tmp_path / "two.log").write_text(begin.format(0, 0) + first + begin.format(1, 1) + second)
    one, two = triage([str(tmp_path / "one.log")]), triage([str(tmp_path / "two.log")])
    assert ranks(two) == ranks(one) == [0]
    assert max(two.confidence, two.culprit_confidence or 1) <= HANG_EVIDENCE.with_a_rival < one.confidence
    assert "rank 1 raised KeyError, and no line shows which was first" in two.headline.replace(
        "\N{NO-BREAK SPACE}", " "
    )


def test_the_process_that_said_why_did_not_merely_crash() -> None:
    job = Job()
    job.warn(1, "Error while creating shared memory segment /dev/shm/nccl-x (size 9)", "misc/shmutils.cc:132")
    job.exit(1, -11)
    triage = reason(job.logs())
    assert triage.fault_class == "shm_exhausted"
    assert "rank_killed_sigsegv" in [one.fault_class for one in triage.ruled_out]


def test_a_bus_error_beside_full_shared_memory_is_that() -> None:
    job = Job()
    job.warn(1, "Error: failed to extend /dev/shm/nccl-x to 9 bytes", "misc/shmutils.cc:88")
    job.exit(0, -7)
    assert reason(job.logs()).fault_class == "shm_exhausted"


def test_a_rank_killed_after_its_own_time_out_waited_like_the_others() -> None:
    job = Job()
    for rank in (0, 1, 3):
        job.timeout(rank)
        job.exit(rank, -9)
    job.info(2, "anything")
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("missing_rank", [2])


def test_a_bare_sigkill_is_less_sure_than_one_that_the_kernel_reports() -> None:
    bare, reported = Job(), Job()
    bare.exit(3, -9)
    reported.exit(3, -9)
    reported.say("Out of memory: Killed process 1003 (python)", host="node1", source="kernel")
    assert (reason(bare.logs()).by_rules or (1, 1)) < (reason(reported.logs()).by_rules or (0, 0))


def test_the_kernels_victim_that_is_no_rank_is_not_taken_for_one() -> None:
    job = Job()
    job.say("Out of memory: Killed process 77777 (chrome)", host="node1", source="kernel")
    triage = reason(job.logs())
    assert ranks(triage) in ([], [None])
    assert triage.confidence <= 0.5


def test_the_end_of_a_chain_of_complaints_is_named() -> None:
    """0 lost 1, 1 lost 2, 2 says nothing."""
    job = Job(world=3, per_host=1)
    for rank in range(3):
        job.using(rank, f"eth0:10.0.0.{rank + 1}")
    job.warn(0, "socketProgress: Connection closed by remote peer 10.0.0.2<4000>")
    job.warn(1, "socketProgress: Connection closed by remote peer 10.0.0.3<4000>")
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("net_connection_lost", [2])


def test_mutual_blame_is_a_common_cause() -> None:
    job = Job(world=2, per_host=1)
    for rank in range(2):
        job.using(rank, f"eth0:10.0.0.{rank + 1}")
        job.warn(rank, f"socketProgress: Connection closed by remote peer 10.0.0.{2 - rank}<4000>")
    triage = reason(job.logs())
    assert triage.fault_class == "net_connection_lost"
    assert {culprit.host for culprit in triage.culprits} == {"node0", "node1"}
    assert all(culprit.peer for culprit in triage.culprits)
    assert triage.culprit_confidence == 0.5


def test_a_link_between_two_hosts_is_neither_of_them() -> None:
    job = Job(world=2, per_host=1)
    for rank in range(2):
        job.using(rank, f"eth0:10.0.0.{rank + 1}")
        job.warn(
            rank,
            f"NET/IB : Got completion from peer 10.0.0.{2 - rank}<4> with error 12, opcode 0, len 0, vendor err 129",
        )
    triage = reason(job.logs())
    assert triage.fault_class == "ib_completion_error"
    assert {culprit.rank for culprit in triage.culprits} == {0, 1}
    assert "the link between" in triage.headline


def test_flushed_completions_are_never_a_cause() -> None:
    job = Job()
    job.warn(0, "NET/IB : Got completion from peer 10.0.0.2<4> with error 5, opcode 0, len 0, vendor err 249")
    assert reason(job.logs()).fault_class == "undetermined"


def test_connections_that_end_after_the_time_outs_are_what_follows() -> None:
    job = Job()
    job.using(2, "eth0:10.0.0.2")
    for rank in (0, 1, 2):
        job.timeout(rank, at=600)
    job.warn(0, "socketProgress: Connection closed by remote peer 10.0.0.2<4000>", at=610)
    job.info(3, "anything")
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("missing_rank", [3])
    assert "net_connection_lost" in [one.fault_class for one in triage.ruled_out]


def test_a_rank_that_ends_without_a_word_is_the_cause() -> None:
    job = Job()
    for text in (
        "Root Cause (first observed failure):",
        "  host      : node0",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : 3 (pid: 1001)",
    ):
        job.say(text, source="launcher")
    job.say("step 7", 1)
    job.traceback(0, "RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.2]:1234")
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("rank_killed_exception", [1])
    assert "exit code 3" in triage.headline


def test_the_first_failure_that_a_launcher_saw_can_be_a_victims() -> None:
    """Seven of sixteen: the rank that raised that it waited is what torchrun calls the root cause."""
    job = Job(world=3, per_host=3)
    job.say("Root Cause (first observed failure):", source="launcher")
    job.say("  rank      : 0 (local_rank: 0)", source="launcher")
    job.say("  exitcode  : 1 (pid: 1000)", source="launcher")
    for rank in (0, 1):
        job.traceback(rank, "RuntimeError: [buffer.cc:81] Timed out waiting 30000ms for recv operation to complete")
    job.say("step 7", 2)
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage), triage.victims) == ("missing_rank", [2], (0, 1))


def block(job: Job, *failures: tuple[int, int, str], path: str = "") -> None:
    """torchrun's last block on a host; the last of ``failures`` (rank, exit code, time) is the first that it saw."""
    job.say("Failures:", source="launcher", path=path)
    for number, (rank, code, time) in enumerate(failures):
        if number == len(failures) - 1:
            job.say("Root Cause (first observed failure):", source="launcher", path=path)
        for text in (
            f"[{number}]:",
            f"  time      : 2026-01-01_{time}",
            f"  host      : {job.host(rank)}",
            f"  rank      : {rank} (local_rank: {rank % job.per_host})",
            f"  exitcode  : {code} (pid: {1000 + rank})",
            f"  traceback : Signal {-code} (SIG) received by PID {1000 + rank}",
        ):
            job.say(text, source="launcher", path=path)


@pytest.mark.parametrize("code", [-9, -11])
def test_an_end_after_the_first_time_out_is_a_consequence(code: int) -> None:
    """With clocks: the job's watchdogs gave up first, then somebody ended the rest."""
    job = Job()
    for rank in (0, 1, 3):
        job.timeout(rank, at=600)
    job.info(2, "anything")
    job.exit(2, code, at=640)
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("missing_rank", [2])
    assert any("after the first collective had timed out" in one.because for one in triage.ruled_out)


def test_an_end_before_the_first_time_out_is_the_cause() -> None:
    job = Job()
    for rank in (0, 1, 3):
        job.timeout(rank, at=600)
    job.exit(2, -9, at=10)
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("rank_killed_sigkill", [2])


def test_a_rank_that_the_launcher_ended_half_a_minute_later_is_not_the_culprit() -> None:
    """torchrun waits 30 s for who does not stop at SIGTERM, and kills it: the block has the times."""
    job = Job(world=4, per_host=4)
    job.exit(3, -11)
    block(job, (1, -9, "00:00:31"), (3, -11, "00:00:01"))
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("rank_killed_sigsegv", [3])


def test_two_ranks_that_were_killed_at_once_are_both_named() -> None:
    job = Job(world=8, per_host=8)
    block(job, (1, -9, "00:00:01"), (3, -9, "00:00:01"))
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("rank_killed_sigkill", [1, 3])


def test_a_bar_glued_in_front_of_the_time_out_that_ran_as_long_as_it() -> None:
    """A reader parts the two; the bar, which names nobody, ran for ten minutes when the watchdogs gave up."""
    job = Job()
    for rank in (1, 2, 3):
        job.timeout(rank, seq=1, numel=1)
    job.lines = [replace(line, path="train.log", number=number) for number, line in enumerate(job.lines, 1)]
    job.say("Filter:  37%|███▋      | 37/100 [09:58<17:00, 16.2s/it]", path="train.log")
    job.lines[-1] = replace(job.lines[-1], number=2)
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("slow_rank_preprocess", [0])


def test_a_bar_that_began_just_now_explains_nothing() -> None:
    job = Job()
    for rank in (1, 2, 3):
        job.timeout(rank, seq=900, numel=1000)
    job.say(" 37%|███▋      | 37/100 [00:08<00:12, 4.2it/s]", 0)
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("missing_rank", [0])


@pytest.mark.parametrize(
    "event",
    [
        "NET/IB : mlx5_0:1 async fatal event on QP (0x7f): local work queue catastrophic error",
        "NET/IB : mlx5_0:1 async fatal event on CQ (0x7f): CQ error",
        "NET/IB : mlx5_0:1 Got async error event: local access violation work queue error",
        "NET/IB : mlx5_0:1 async fatal event: SRQ catastrophic error",
    ],
)
def test_an_error_of_a_queue_is_not_a_dead_adapter(event: str) -> None:
    job = Job()
    job.warn(2, event)
    triage = reason(job.logs())
    assert triage.fault_class == "ib_completion_error"
    assert [(c.rank, c.nic) for c in triage.culprits] == [(2, "mlx5_0")]


def test_an_error_of_the_adapter_is_one() -> None:
    job = Job()
    job.warn(2, "NET/IB : mlx5_0:1 async fatal event: local catastrophic error")
    assert reason(job.logs()).fault_class == "ib_device_fatal"


def test_a_crash_that_the_shell_saw_behind_a_warning_of_cuda() -> None:
    """The process had said why before it crashed."""
    job = Job(world=1, per_host=1, known_world=False)
    text = "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'"
    path = "stderr.txt"
    raw = f"node0:1000:1000 [32523] misc/cudawrap.cc:182 NCCL WARN {text}"
    job.say(text, path=path, raw=raw, host="node0", source="nccl", level="WARN")
    job.say("Segmentation fault (core dumped)", path=path)
    triage = reason(job.logs())
    assert triage.fault_class == "cuda_failure"
    assert [c.host for c in triage.culprits] == ["node0"]
    assert "rank_killed_sigsegv" in [one.fault_class for one in triage.ruled_out]


def test_a_heartbeat_beside_a_time_out_is_not_the_cause() -> None:
    """The collective says who was missing."""
    job = Job()
    for rank in (0, 1, 3):
        job.timeout(rank)
    job.say("ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress", 0, source="torch")
    job.info(2, "anything")
    assert (reason(job.logs()).fault_class, ranks(reason(job.logs()))) == ("missing_rank", [2])


def test_several_blocked_watchdogs_wait_for_the_same_thing() -> None:
    job = Job()
    for rank in (0, 2):
        job.say("ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress", rank, source="torch")
    triage = reason(job.logs())
    assert (triage.fault_class, triage.culprits, triage.victims) == ("watchdog_blocked", (), (0, 2))


def test_told_to_stop_is_said_only_where_nothing_else_is_known() -> None:
    """SIGTERM may come from a scheduler, a person, or another node that failed."""
    alone, beside = Job(), Job()
    for job in (alone, beside):
        job.say("Received 15 death signal, shutting down workers", host="node0", source="launcher")
    beside.exit(3, -9)
    assert reason(alone.logs()).fault_class == "undetermined"
    assert "job_cancelled" in [one.fault_class for one in reason(alone.logs()).guesses]
    assert reason(beside.logs()).fault_class == "rank_killed_sigkill"


def heartbeat(job: Job, rank: int, at: float | None = None) -> None:
    text = "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress"
    job.say(text, rank, source="torch", level="ERROR", at=at)


def test_connections_to_a_process_that_its_monitor_ended_are_what_follows() -> None:
    job = Job()
    job.using(2, "eth0:10.0.0.2")
    heartbeat(job, 2, at=100)
    job.warn(0, "socketProgress: Connection closed by remote peer 10.0.0.2<4000>", at=580)
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("watchdog_blocked", [2])
    assert "net_connection_lost" in [one.fault_class for one in triage.ruled_out]


@pytest.mark.parametrize("clocks", [True, False])
def test_a_watchdog_that_is_stuck_after_a_lost_connection_is_no_cause(clocks: bool) -> None:
    """The abort of a communicator may hang: with clocks by when, without by who it was that lost the connection."""
    job = Job()
    job.using(2, "eth0:10.0.0.2")
    lost = 0 if clocks else 1
    job.warn(lost, "socketProgress: Connection closed by remote peer 10.0.0.2<4000>", at=10 if clocks else None)
    heartbeat(job, 1, at=600 if clocks else None)
    triage = reason(job.logs())
    assert (triage.fault_class, {culprit.host for culprit in triage.culprits}) == ("net_connection_lost", {"node1"})


def test_a_rank_that_loads_explains_that_it_is_missing() -> None:
    """A bar that names nobody is weaker than the absence that it explains, and says more."""
    job = Job()
    for rank in (1, 2, 3):
        job.timeout(rank, seq=1, numel=1)
    job.info(0, "anything")
    job.say("Loading safetensors checkpoint shards:  47% Completed | 8/17 [10:00<11:15, 75.00s/it]", path="train.log")
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("slow_rank_init", [0])


def test_an_abort_of_the_c_library_is_of_the_rank_that_ended_with_sigabrt() -> None:
    job = Job(per_host=4)
    job.say("double free or corruption (!prev)")
    job.exit(2, -6)
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("rank_killed_sigsegv", [2])


def test_the_exit_code_in_mpiruns_box_is_the_one_that_is_reported() -> None:
    job = Job()
    job.say("step 7", 3)
    for text in ("  Process name: [[11292,1],3]", "  Exit code:    3"):
        job.say(text, source="launcher")
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("rank_killed_exception", [3])
    assert "exit code 3" in triage.headline
