"""What is the cause of what: cascades are never roots, the earlier one wins, blame that is mutual is nobody's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import diag.hang.api
from diag.ended.model import Clue, Culprit, Source
from diag.hang.api import triage
from diag.hang.classes import CLASSES, NEVER_ROOTS, PATTERNS, anchors, hits_of
from diag.hang.flight import FlightFindings
from diag.hang.model import Communicator, Member, Role, Stack
from diag.hang.policy import HANG_EVIDENCE
from diag.hang.reason import reason
from tests.hang.reason.builders import Job, call


def ranks(triage: object) -> list[int | None]:
    return [culprit.rank for culprit in triage.culprits]  # type: ignore[attr-defined]


def dump_clue(name: str, *culprits: int, confidence: float = 0.8) -> Clue:
    evidence = (Source("fr_0", 0, "entry 7"),)
    return Clue(name, tuple(Culprit(rank) for rank in culprits), evidence, confidence, "Seen.", from_dumps=True)


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


def test_absence_means_nothing_where_lines_were_left_out() -> None:
    job = Job(deduplicated=True)
    for rank in (0, 1, 2):
        job.timeout(rank)
    job.info(3, "anything")
    triage = reason(job.logs())
    assert triage.fault_class == "undetermined"
    assert any("RAY_DEDUP_LOGS=0" in step for step in triage.next_steps)


def test_absence_means_nothing_where_the_world_is_not_known() -> None:
    job = Job(known_world=False)
    for rank in (0, 1, 2):
        job.timeout(rank)
    job.info(3, "anything")
    assert reason(job.logs()).fault_class == "undetermined"


def test_an_absent_rank_without_a_log_is_less_sure() -> None:
    read, unread = Job(), Job(unread={3})
    for job in (read, unread):
        for rank in (0, 1, 2):
            job.timeout(rank)
    read.info(3, "anything")
    assert ranks(reason(read.logs())) == ranks(reason(unread.logs())) == [3]
    assert reason(unread.logs()).confidence < reason(read.logs()).confidence
    assert any("Give the logs of rank 3" in step for step in reason(unread.logs()).next_steps)


def test_one_ranks_log_of_many_names_nobody() -> None:
    job = Job(world=8, per_host=8, unread=set(range(1, 8)))
    job.timeout(0)
    triage = reason(job.logs())
    assert (triage.fault_class, triage.culprits) == ("undetermined", ())
    assert any("ranks 1, 2, 3, 4, 5, 6, 7" in step for step in triage.next_steps)


def test_the_rank_within_a_group_is_not_the_global_one() -> None:
    """Tensor-parallel group of ranks 2 and 3: its rank 0 is rank 2, and rank 3 did not come."""
    job = Job()
    job.communicate()
    job.communicate([2, 3])
    job.timeout(2, group="[PG ID 1 PG GUID 5(tp) Rank {}] ", group_rank=0)
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("missing_rank", [3])
    assert triage.culprits[0].process_group == "tp"


@pytest.mark.parametrize("apart", [True, False])
def test_a_number_that_two_processes_print_is_of_a_part_of_the_job(tmp_path: Path, apart: bool) -> None:
    """Expert-parallel groups of two in a job of four, by a torch that prints no group. A second copy of one log, with
    the same times, is no second process."""
    for host in (0, 1):
        lines = [
            f"gpu-{host}:{100 + 2 * host + at}:9 [{at}] NCCL INFO comm 0x7f{host}{at} rank {2 * host + at} nranks 4 "
            f"cudaDev {at} busId {at + 1}000 - Init COMPLETE"
            for at in (0, 1)
        ]
        lines += [
            f"[E ProcessGroupNCCL.cpp:475] [Rank {at}] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=57, OpType=ALLTOALL_BASE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) "
            f"ran for {600040 + at + 7 * host * apart} milliseconds before timing out."
            for at in (0, 1)
        ]
        (tmp_path / f"n{host}.log").write_text("\n".join(lines) + "\n")
    found = triage([str(tmp_path)])
    assert (found.fault_class, ranks(found)) == (("undetermined", []) if apart else ("missing_rank", [2, 3]))
    assert found.victims == (() if apart else (0, 1))


def test_numbers_of_different_groups_do_not_compare() -> None:
    job = Job()
    job.timeout(0, seq=7, group="[PG ID 1 PG GUID 5(dp0) Rank {}] ")
    job.timeout(1, seq=9, group="[PG ID 1 PG GUID 6(dp1) Rank {}] ")
    assert reason(job.logs()).fault_class == "undetermined"


def test_a_rank_that_waits_in_another_group_is_not_the_missing_one() -> None:
    """Rank 1 did not come to the world's all-reduce because it waits for rank 3 in its own group."""
    job = Job()
    job.communicate()
    job.communicate([1, 3])
    for rank in (0, 2):
        job.timeout(rank)
    job.timeout(1, group="[PG ID 1 PG GUID 5(tp) Rank {}] ", group_rank=0)
    job.info(3, "anything")
    assert ranks(reason(job.logs())) == [3]


def test_a_member_that_never_began_the_initialisation_is_the_suspect() -> None:
    job = Job()
    job.communicate(started=[0, 1, 3], completed=[])
    job.info(2, "Bootstrap : Using eth0:10.0.0.2<0>")
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage), triage.victims) == ("missing_rank", [2], (0, 1, 3))


def test_two_ranks_that_disagree_are_both_named() -> None:
    job = Job(world=2)
    job.communicate(calls={0: [call(7, count=100)], 1: [call(7, count=64)]})
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("mismatch_shape", [0, 1])
    assert triage.confidence <= 0.6


@pytest.mark.parametrize(
    ("odd", "name"),
    [
        ({"op": "BROADCAST"}, "mismatch_op"),
        ({"numel": 7}, "mismatch_shape"),
        ({"seq": 99}, "desync"),
    ],
)
def test_the_minority_of_the_watchdogs_is_named(odd: dict[str, object], name: str) -> None:
    job = Job()
    for rank in range(4):
        job.timeout(rank, **(odd if rank == 2 else {}))  # type: ignore[arg-type]
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage), triage.victims) == (name, [2], (0, 1, 3))


WATCHDOG = (
    "[E ProcessGroupNCCL.cpp:467] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
    "OpType=_ALLGATHER_BASE, NumelIn={numel}, NumelOut={out}, Timeout(ms)=600000) ran for 600376 milliseconds before "
    "timing out.\n"
)


@pytest.mark.parametrize(("members", "expected"), [(8, ("mismatch_shape", [0])), (4, ("undetermined", []))])
def test_some_ranks_of_a_group_that_their_sizes_show_are_enough_for_a_vote(
    members: int, expected: tuple[str, list[int]], tmp_path: Path
) -> None:
    """In a group of four rank 6 is in another one, so nothing shows that these four met."""
    numels = {6: 100, 1: 100, 2: 100, 0: 25}
    text = "".join(WATCHDOG.format(rank=rank, numel=n, out=n * members) for rank, n in numels.items())
    (tmp_path / "train.log").write_text(text)
    found = diag.hang.api.triage([str(tmp_path)])
    assert (found.fault_class, ranks(found)) == expected


def test_uneven_all_to_alls_are_no_mismatch() -> None:
    job = Job()
    for rank in range(4):
        job.timeout(rank, op="ALLTOALL_BASE", numel=100 + rank)
    assert reason(job.logs()).fault_class == "undetermined"


def test_the_monitored_barrier_names_who_is_missing() -> None:
    job = Job(world=6, per_host=6)
    job.traceback(0, "RuntimeError: [Rank 0]: Ranks 4, 5 failed to pass monitoredBarrier in 2000 ms")
    job.traceback(
        1,
        "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv "
        "from rank 0. Please check rank 0 logs for faulty rank.",
    )
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage), triage.victims) == ("missing_rank", [4, 5], (0, 1))


def test_multicast_memory_is_not_gpu_memory() -> None:
    job = Job()
    job.warn(0, "Cuda failure 2 'out of memory'", "transport/nvls.cc:251")
    assert reason(job.logs()).fault_class == "nvls_multicast"


@pytest.mark.parametrize(
    "text",
    [
        "Failed to open libibverbs.so[.1]",
        "Could not find a path for pattern 4, falling back to simple order",
        "P2P is disabled between connected GPUs 0 and 1.",
    ],
)
@pytest.mark.parametrize("trains", [True, False])
def test_what_looks_alarming_is_healthy_with_a_training_step_behind_it(text: str, trains: bool) -> None:
    """Without a step nothing shows that the job goes on: undetermined, and nobody is blamed."""
    job = Job()
    job.communicate()
    job.warn(0, text)
    if trains:
        job.say("step 120 loss 2.31", 0)
        job.say("step 121 loss 2.29", 0)
        job.say("step 122 loss 2.30", 0)
    triage = reason(job.logs())
    assert (triage.fault_class, triage.culprits) == ("healthy" if trains else "undetermined", ())


def test_steps_of_a_group_that_is_not_whole_are_no_sign_of_health() -> None:
    """Three of four ranks are initialised: the step may be of the run before."""
    job = Job()
    job.communicate(started=[0, 1, 2])
    job.say("step 120 loss 2.31", 0)
    triage = reason(job.logs())
    assert (triage.fault_class, triage.culprits) == ("undetermined", ())


def test_only_harmless_lines_are_undetermined() -> None:
    job = Job()
    job.info(0, "Failed to open libibverbs.so[.1]")
    triage = reason(job.logs())
    assert (triage.fault_class, triage.culprits) == ("undetermined", ())
    assert triage.next_steps


def test_one_failed_read_of_the_store_before_an_orderly_end_is_healthy() -> None:
    job = Job()
    job.say("recvValue failed on SocketImpl(fd=3, addr=[a]:1, remote=[b]:2): Connection reset by peer", 1)
    job.communicate(ended="destroyed")
    assert reason(job.logs()).fault_class == "healthy"


def test_an_unknown_warning_is_not_healthy() -> None:
    job = Job()
    job.communicate()
    job.warn(1, "Something that no version is known to print")
    triage = reason(job.logs())
    assert triage.fault_class == "undetermined"
    assert "Something that no version is known to print" in triage.evidence[0].text


def test_stacks_tell_who_is_not_in_the_collective() -> None:
    job = Job()
    for rank in range(4):
        job.say(f'Thread {1000 + rank} (idle): "MainThread"', rank, source="stack")
        where = "all_reduce (torch/distributed/distributed_c10d.py:2500)"
        job.say(f"    {'read (loader.py:7)' if rank == 1 else where}", rank, source="stack")
        job.say("    main (train.py:3)", rank, source="stack")
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage), triage.victims) == ("missing_rank", [1], (0, 2, 3))
    assert [(stack.rank, stack.what) for stack in triage.stacks] == [(1, "culprit"), (0, "a typical victim")]
    assert triage.stacks[0].frames == ("read (loader.py:7)", "main (train.py:3)")


def test_dumps_and_logs_that_agree_are_surer_than_each() -> None:
    job = Job()
    for rank in (0, 1, 3):
        job.timeout(rank)
    job.info(2, "anything")
    alone = reason(job.logs())
    both = reason(job.logs(), FlightFindings(clues=(dump_clue("missing_rank", 2),), coverage=("4 dumps.",)))
    assert ranks(both) == [2]
    assert both.culprits[0].host == "node1"
    assert both.confidence > alone.confidence
    assert any(line.path == "fr_0" for line in both.evidence)


def test_dumps_that_contradict_make_it_less_sure() -> None:
    job = Job()
    job.exit(3, -9)
    contradicted = reason(job.logs(), FlightFindings(clues=(dump_clue("missing_rank", 1),)))
    assert contradicted.fault_class == "rank_killed_sigkill"
    assert contradicted.confidence < reason(job.logs()).confidence
    assert "missing_rank" in [one.fault_class for one in contradicted.ruled_out]


def test_the_stacks_of_dumps_are_shown() -> None:
    stack = Stack(2, "culprit", ("f (a.py:1)",), Source("fr_2", 0, ""))
    found = reason(Job().logs(), FlightFindings(clues=(dump_clue("mismatch_op", 2),), stacks=(stack,)))
    assert (found.fault_class, found.stacks) == ("mismatch_op", (stack,))


def test_a_clue_that_is_hardly_believed_is_a_suspicion() -> None:
    found = reason(Job().logs(), FlightFindings(clues=(dump_clue("missing_rank", 2, confidence=0.2),)))
    assert (found.fault_class, found.culprits) == ("undetermined", ())
    assert [(one.fault_class, one.confidence) for one in found.guesses] == [("missing_rank", 0.2)]


def test_gaps_of_both_readers_are_handed_on() -> None:
    found = reason(Job(gaps=(("a.log", "cut"),)).logs(), FlightFindings(gaps=(("b.pt", "is empty"),)))
    assert found.gaps == (("a.log", "cut"), ("b.pt", "is empty"))


def test_every_signature_is_found_by_its_anchors() -> None:
    """Each signature's own pattern must need one of its anchors: the evidence is that it names what it anchors."""
    wanted = anchors()
    assert len(wanted) == len(set(wanted))
    for fault_class, name, pattern in PATTERNS:
        assert set(pattern.anchors) <= set(wanted), (fault_class.id, name)
        assert pattern.printed_by
    names = [name for _, name, _ in PATTERNS]
    assert len(names) == len(set(names))


def test_what_never_is_a_root_has_no_root_signature() -> None:
    for fault_class in NEVER_ROOTS:
        assert {pattern.role for pattern in fault_class.patterns.values()} <= {Role.CASCADE, Role.HARMLESS}
    assert all(name in CLASSES for found in CLASSES.values() for name in found.rules_out)


def test_a_line_without_meaning_has_no_hits() -> None:
    job = Job()
    job.say("step 12 loss 2.31 time 0.4", 0)
    assert hits_of([job.lines[0]]) == []
    assert hits_of([replace(job.lines[0], text="", raw="")]) == []


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


def test_the_group_is_told_by_the_watchdogs_next_line() -> None:
    """The message of the collective bears "[Rank 0]" alone: rank 0 of the group, which is rank 2."""
    job = Job()
    job.communicate()
    job.communicate([2, 3])
    job.timeout(2, group="", group_rank=0)
    prefix = "[PG ID 1 PG GUID 5(tp) Rank 0]"
    for seq in (99, 100):
        job.say(
            f"{prefix}  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {seq}, "
            f"last completed work: {seq - 1}",
            2,
        )
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("missing_rank", [3])
    assert triage.culprits[0].process_group == "tp"


def test_without_a_group_the_answer_is_less_sure() -> None:
    job, named = Job(), Job()
    for rank in (0, 1, 2):
        job.timeout(rank, group="")
        named.timeout(rank)
    job.info(3, "anything")
    named.info(3, "anything")
    assert ranks(reason(job.logs())) == ranks(reason(named.logs())) == [3]
    assert reason(job.logs()).confidence < reason(named.logs()).confidence
    assert "does not name" in reason(job.logs()).headline


def test_the_host_of_a_rank_without_a_communicator_is_what_its_lines_say() -> None:
    job = Job()
    job.communicate(started=[0, 1, 3], completed=[])
    job.info(2, "Bootstrap : Using eth0:10.0.0.2<0>")
    job.changed[2] = {"host": "", "pid": None, "gpu": None}
    assert [(c.rank, c.host) for c in reason(job.logs()).culprits] == [(2, "node1")]


def test_an_error_that_is_only_mentioned_is_no_exception() -> None:
    job = Job()
    job.communicate()
    job.say("ValueError: skipped a bad sample", 2)
    assert reason(job.logs()).culprits == ()


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


def no_key(job: Job, rank: int, error: str, writer: int = 0) -> None:
    job.traceback(
        rank,
        f"torch.distributed.DistBackendError: [{rank}] is setting up NCCL communicator and retrieving ncclUniqueId "
        f"from [{writer}] via c10d key-value store by key '0', but store->get('0') got error: {error}",
    )


def test_a_store_that_answers_means_a_late_peer() -> None:
    job = Job()
    for rank in (0, 1, 3):
        no_key(job, rank, "Socket Timeout", writer=2)
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage), triage.victims) == ("slow_rank_init", [2], (0, 1, 3))
    assert "rank 2" in triage.headline


def test_the_writer_is_read_from_what_torch_before_2_1_misspells() -> None:
    """As in NVIDIA/nccl 845."""
    job = Job()
    text = "RuntimeError: [3] is setting up NCCL communicator and retreiving ncclUniqueId from [2] via c10d "
    job.traceback(3, f"{text}key-value store by key '1', but store->get('1') got error: Socket Timeout")
    assert (reason(job.logs()).fault_class, ranks(reason(job.logs()))) == ("slow_rank_init", [2])


def test_a_store_that_resets_is_gone() -> None:
    job = Job(unread={0})
    for rank in (1, 2, 3):
        no_key(job, rank, "Connection reset by peer")
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("cascade_store_lost", [0])


def test_reports_with_and_without_the_group_of_one_call_are_one_group() -> None:
    """Some messages of one version bear "[PG ...]" and some do not: nobody but rank 3 is absent."""
    job = Job()
    job.timeout(0)
    job.timeout(1, group="")
    job.timeout(2, group="")
    job.info(3, "anything")
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("missing_rank", [3])
    assert triage.culprits[0].process_group == "default_pg"


def test_reports_without_a_group_of_another_call_are_not_put_into_it() -> None:
    """Ranks 1 and 2 wait elsewhere, in a group that nothing names: they are not the ones who are absent."""
    job = Job()
    job.timeout(0)
    for rank in (1, 2):
        job.timeout(rank, seq=7, op="BROADCAST", group="")
    job.info(3, "anything")
    assert set(ranks(reason(job.logs()))) <= {3}


@pytest.mark.parametrize("group", ["", "[PG ID 0 PG GUID 0(default_pg) Rank {}] "])
def test_the_absent_are_not_named_where_nothing_says_how_many_there_are(group: str) -> None:
    """Ranks 0, 1 and 3 wait. That 2 exists is known, that 4 does not is not."""
    job = Job(known_world=False)
    for rank in (0, 1, 3):
        job.timeout(rank, group=group)
    triage = reason(job.logs())
    assert (triage.fault_class, triage.culprits) == ("undetermined", ())
    assert "The size of the group is unknown" in triage.headline


def test_an_all_gather_says_how_many_there_are() -> None:
    """It makes of each rank's part as many as there are ranks."""
    job = Job(known_world=False)
    for rank in (0, 1, 3):
        job.timeout(rank, op="_ALLGATHER_BASE", numel=1000)
    job.lines = [
        replace(line, raw=line.raw.replace("Out=1000", "Out=4000"), text=line.text.replace("Out=1000", "Out=4000"))
        for line in job.lines
    ]
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("missing_rank", [2])


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


def channels(job: Job, *pairs: tuple[int, int], devices: int) -> None:
    """P2P channels between ranks of one host, as the first rank of each pair prints them."""
    for one, other in pairs:
        text = f"Channel 00/0 : {one}[{one % devices}] -> {other}[{other % devices}] via P2P/IPC"
        job.info(one, text)


def test_one_host_name_for_two_machines() -> None:
    """Ranks 1 and 3 both have GPU 1 of what looks like one host, and 2 -> 3 is joined as within it."""
    job = Job(world=4, per_host=4)
    channels(job, (0, 1), (1, 2), (2, 3), (3, 0), devices=2)
    job.traceback(0, "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:260, unhandled cuda error")
    triage = reason(job.logs())
    assert (triage.fault_class, [c.host for c in triage.culprits]) == ("same_host_identity", ["node0"])


def test_channels_of_several_communicators_are_not_two_machines() -> None:
    """Each process has a rank in each of its communicators: in the job, in its tensor group, in its data group."""
    job = Job(world=4, per_host=4)
    job.communicate()
    for rank in range(4):
        for own, other, device in (
            (rank, (rank + 1) % 4, (rank + 1) % 4),
            (rank % 2, 1 - rank % 2, rank ^ 1),
            (rank // 2, 1 - rank // 2, (rank + 2) % 4),
        ):
            job.info(rank, f"Channel 00/0 : {own}[{rank}] -> {other}[{device}] via P2P/IPC")
    for rank in (0, 1, 3):
        job.timeout(rank)
    assert (reason(job.logs()).fault_class, ranks(reason(job.logs()))) == ("missing_rank", [2])


def test_one_identity_is_not_two_processes_of_one_host() -> None:
    """Both say the same address: the GPU is taken twice indeed."""
    job = Job()
    for rank in (0, 1):
        job.using(rank, "eth0:10.0.0.1")
        job.warn(
            rank, f"Duplicate GPU detected : rank {rank} and rank {1 - rank} both on CUDA device 1b000", "init.cc:974"
        )
    assert reason(job.logs()).fault_class == "duplicate_gpu"


def old_communicators(job: Job, known: list[int]) -> None:
    """As NCCL before 2.16 leaves them: no id, so each process has one of its own."""
    for rank in known:
        job.communicate()
        communicator = job.communicators.pop()
        member = next(member for member in communicator.members if member.group_rank == rank)
        job.communicators.append(replace(communicator, comm_id="", members=(member,)))


def test_before_nccl_2_16_the_ends_of_the_jobs_communicator_are_joined() -> None:
    """All ranks have one of the job's size: they are one, all are initialised, and the job trains."""
    job = Job()
    old_communicators(job, [0, 1, 2, 3])
    job.warn(0, "Could not find a path for pattern 4, falling back to simple order")
    for step in (120, 121, 122):
        job.say(f"step {step} loss 2.31", 0)
    triage = reason(job.logs())
    assert (triage.fault_class, triage.culprits) == ("healthy", ())


def test_before_nccl_2_16_calls_are_compared_only_where_all_ranks_are_known() -> None:
    def job(known: list[int]) -> Job:
        made = Job()
        for rank in known:
            made.communicate(calls={one: [call(7, count=64 if one == 3 else 100)] for one in range(4)})
            communicator = made.communicators.pop()
            member = next(member for member in communicator.members if member.group_rank == rank)
            made.communicators.append(replace(communicator, comm_id="", members=(member,)))
        return made

    whole = reason(job([0, 1, 2, 3]).logs())
    assert (whole.fault_class, ranks(whole)) == ("mismatch_shape", [3])
    assert reason(job([0, 1, 3]).logs()).culprits == ()


def test_before_nccl_2_16_groups_of_one_size_are_told_apart_by_their_hosts() -> None:
    """Two pairs, one on each host: the one whose sizes differ is named, the other one is not mixed with it."""
    job = Job(world=4, per_host=2)
    for rank in range(4):
        counts = {0: 100, 1: 64, 2: 300, 3: 300}
        member = Member(rank % 2, rank, True, True, "", (call(7, count=counts[rank]),))
        job.communicators.append(Communicator("", 2, (member,)))
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("mismatch_shape", [0, 1])


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


def test_memory_that_cuda_cannot_open_because_it_is_on_another_host() -> None:
    job = Job(world=4, per_host=4)
    channels(job, (0, 1), (1, 2), (2, 3), (3, 0), devices=2)
    job.warn(1, "failed to open CUDA IPC handle : 30 unknown error", "transport/p2p.cc:238")
    triage = reason(job.logs())
    assert triage.fault_class == "same_host_identity"
    assert "cuda_failure" in [one.fault_class for one in triage.ruled_out]


def test_a_rank_that_loads_explains_that_it_is_missing() -> None:
    """A bar that names nobody is weaker than the absence that it explains, and says more."""
    job = Job()
    for rank in (1, 2, 3):
        job.timeout(rank, seq=1, numel=1)
    job.info(0, "anything")
    job.say("Loading safetensors checkpoint shards:  47% Completed | 8/17 [10:00<11:15, 75.00s/it]", path="train.log")
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage)) == ("slow_rank_init", [0])


def test_two_hosts_that_say_one_gpu_twice_are_told_apart_by_their_own_lines() -> None:
    """Without communicators the first rank of each message is the one that prints it."""
    job = Job(known_world=False)
    for one, other in ((0, 2), (2, 0)):
        text = f"Duplicate GPU detected : rank {one} and rank {other} both on CUDA device 1b000"
        raw = f"{job.host(one)}:{100 + one}:{200 + one} [0] init.cc:943 NCCL WARN {text}"
        job.say(text, path="train.log", raw=raw, host=job.host(one), source="nccl", level="WARN")
    triage = reason(job.logs())
    assert triage.fault_class == "same_host_identity"
    assert sorted((c.rank, c.host) for c in triage.culprits) == [(0, "node0"), (2, "node1")]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RuntimeError: write(): fd 29 failed with Input/output error", "storage"),
        ("slurmstepd: error: *** JOB 1 ON a CANCELLED AT 2022-08-12T02:06:12 DUE TO JOB REQUEUE ***", "job_cancelled"),
        (
            "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != nullptr. "
            "Unable to find address for: ib0",
            "net_no_interface",
        ),
        ("Failed: Cuda error /w/custom_all_reduce.cuh:307 'peer access is not supported'", "cuda_failure"),
        ("hipIpcGetMemHandle failed : invalid argument", "cuda_failure"),
        ("cudaEventCreate(&start) failed with error: driver shutting down", "cuda_failure"),
        ("CUDA runtime error in cudaDeviceSynchronize(): an illegal memory access was encountered", "cuda_failure"),
        ("Test CUDA failure common.cu:730 'unknown error'", "cuda_failure"),
        ("cudaMalloc failed: out of memory", "cuda_oom"),
        ("CUDA runtime error in cudaMallocAsync(&p, n, s): out of memory", "cuda_oom"),
        ("warning: Cuda API error detected: cudaDeviceEnablePeerAccess returned (0x2c0)", "undetermined"),
        ("HW Exception by GPU node-9 (Agent handle: 0x621351bb5a20) reason :GPU Hang", "gpu_hardware"),
        ("double free or corruption (!prev)", "rank_killed_sigsegv"),
        ("*** Error in `python': free(): invalid pointer: 0x00007f ***", "rank_killed_sigsegv"),
        ("realloc(): invalid next size", "rank_killed_sigsegv"),
        ("*** stack smashing detected ***: terminated", "rank_killed_sigsegv"),
        ("the allocator prints free(): invalid pointer when it aborts", "undetermined"),
        (
            "Memory on the node (IP: 10.0.0.7, ID: 7f) where the task was running was 27.3GB / 28.8GB (0.95), which "
            "exceeds the memory usage threshold of 0.95. Ray killed this worker because it was the newest.",
            "rank_killed_sigkill",
        ),
        ("node_manager.cc:3277: 0 Workers (tasks / actors) killed due to memory pressure (OOM)", "undetermined"),
    ],
)
def test_texts_of_real_threads(text: str, name: str) -> None:
    """pytorch 10577, submitit 1708, YOLOX 139, sglang 1509, rccl 2188, rocm 4021, nccl 258, training 770, wmpo 3."""
    job = Job()
    job.say("Traceback (most recent call last):", 1, source="python")
    job.say(text, 1, source="python")
    assert reason(job.logs()).fault_class == name


NOT_KNOWN = "No known log pattern matches. The last error in the logs: "


def test_an_error_that_no_pattern_knows_is_quoted() -> None:
    job = Job(known_world=False)
    job.say("mylib.errors.PoolError: 3 of 8 workers left", path="train.log")
    job.say("accelerate: error: unrecognized arguments: --turns", source="launcher")
    triage = reason(job.logs())
    assert (triage.fault_class, triage.culprits, triage.confidence) == ("undetermined", (), 0.3)
    assert triage.headline == f"{NOT_KNOWN}mylib.errors.PoolError: 3 of 8 workers left"
    assert {line.path for line in triage.evidence} == {"launcher.log", "train.log"}


def test_a_launchers_error_is_quoted_where_no_exception_was_read() -> None:
    job = Job()
    job.say("accelerate: error: unrecognized arguments: --turns", source="launcher")
    assert reason(job.logs()).headline == f"{NOT_KNOWN}accelerate: error: unrecognized arguments: --turns"


def test_what_torch_quotes_of_nccl_says_more_than_its_exception() -> None:
    job = Job(known_world=False)
    for text in (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2615, unhandled system error",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "Last error:",
        "[Service thread] Error encountered progressing operation=Connect, res=3, closing connection",
    ):
        job.say(text, source="python")
    expected = f"{NOT_KNOWN}[Service thread] Error encountered progressing operation=Connect, res=3, closing connection"
    assert reason(job.logs()).headline == expected


def test_an_error_that_the_job_survived_is_not_quoted() -> None:
    job = Job(known_world=False)
    job.say("OSError: cannot read the cache", 0, source="python")
    job.say("step 120 loss 2.31", 0)
    assert NOT_KNOWN not in reason(job.logs()).headline


def test_notices_that_hung_runs_print_as_well_are_no_sign_of_health() -> None:
    for text in (
        "using GPU 0 as device used by this process is currently unknown. This can potentially cause a hang",
        "[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3",
    ):
        job = Job(known_world=False)
        job.say(text, 0)
        headline = "The logs hold only lines that healthy runs also print, and no training step or end of the job."
        assert reason(job.logs()).headline == headline
        job.say("step 120 loss 2.31", 0)
        assert reason(job.logs()).fault_class == "undetermined"


def test_fewer_peers_than_expected_are_not_harmless() -> None:
    job = Job()
    job.say("[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 13", 0)
    assert hits_of(job.lines) == []


STORE = "Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 "


@pytest.mark.parametrize(("joined", "name"), [(3, "missing_rank"), (4, "undetermined"), (8, "stale_store")])
def test_workers_at_the_stores_barrier_are_compared_with_the_world(joined: int, name: str) -> None:
    job = Job()
    for _ in range(2):
        job.say(f"{STORE}(world_size=4, worker_count={joined}, timeout=0:30:00)", 0)
    triage = reason(job.logs())
    assert (triage.fault_class, triage.culprits) == (name, ())


def test_the_stores_barrier_is_read_as_torch_2_1_words_it() -> None:
    job = Job()
    error = "torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on rank 2, "
    counts = "(world_size=4, num_workers_joined=8, timeout=0:30:00)"
    job.say(f"{error}for key: store_based_barrier_key:1 {counts}", source="python")
    assert reason(job.logs()).fault_class == "stale_store"


def test_a_cancelled_attempt_explains_what_the_store_still_counts() -> None:
    job = Job()
    job.say("slurmstepd: error: *** JOB 1 ON node0 CANCELLED AT 2021-03-16T06:00:46 DUE TO PREEMPTION ***")
    job.say(f"{STORE}(world_size=4, worker_count=8, timeout=0:30:00)")
    assert reason(job.logs()).fault_class == "job_cancelled"


def test_a_store_that_counts_too_many_and_a_job_that_trains_is_no_fault() -> None:
    job = Job()
    job.say(f"{STORE}(world_size=4, worker_count=8, timeout=0:30:00)", 0)
    job.say("step 120 loss 2.31", 0)
    assert reason(job.logs()).fault_class == "undetermined"


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


def test_a_host_that_is_known_by_its_address_is_named_by_all_of_it() -> None:
    end = "mpirun noticed that process rank {} with PID 2267 on node {} exited on signal 11 (Segmentation fault)."
    for node, host in (("10.20.31.2", "10.20.31.2"), ("fe80::1", "fe80::1"), ("gpu7.cluster.local", "gpu7")):
        job = Job(world=0)
        job.say(end.format(3, node), source="launcher")
        assert [(c.rank, c.host) for c in reason(job.logs()).culprits] == [(3, host)]


def test_one_gpu_that_the_driver_writes_in_two_ways_is_named_once() -> None:
    job = Job(world=0)
    job.say("NVRM: Xid (PCI:0000:09:00): 79, pid=0, GPU has fallen off the bus.", source="kernel")
    job.say("NVRM: GPU 0000:09:00.0: GPU has fallen off the bus.", source="kernel")
    assert [culprit.bus_id for culprit in reason(job.logs()).culprits] == ["0000:09:00"]
