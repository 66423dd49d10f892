"""Who is in a group and did not come: ranks, communicators, stores and hosts that only some lines name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import diag.hang.api
from diag.hang.api import triage
from diag.hang.model import Communicator, Member
from diag.hang.reason import reason
from tests.hang.reason.builders import Job, call, ranks


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
    """All ranks have one of the job's size: they are one, and all are initialised."""
    job = Job()
    old_communicators(job, [0, 1, 2, 3])
    job.warn(0, "Could not find a path for pattern 4, falling back to simple order")
    for step in (120, 121, 122):
        job.say(f"step {step} loss 2.31", 0)
    triage = reason(job.logs())
    assert triage.culprits == ()
    assert triage.headline.startswith("All 4 ranks are initialised")


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


def test_memory_that_cuda_cannot_open_because_it_is_on_another_host() -> None:
    job = Job(world=4, per_host=4)
    channels(job, (0, 1), (1, 2), (2, 3), (3, 0), devices=2)
    job.warn(1, "failed to open CUDA IPC handle : 30 unknown error", "transport/p2p.cc:238")
    triage = reason(job.logs())
    assert triage.fault_class == "same_host_identity"
    assert "cuda_failure" in [one.fault_class for one in triage.ruled_out]


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


STORE = "Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 "


@pytest.mark.parametrize(("joined", "name"), [(3, "missing_rank"), (4, "undetermined"), (8, "stale_store")])
def test_workers_at_the_stores_barrier_are_compared_with_the_world(joined: int, name: str) -> None:
    job = Job()
    for _ in range(2):
        job.say(f"{STORE}(world_size=4, worker_count={joined}, timeout=0:30:00)", 0)
    triage = reason(job.logs())
    assert (triage.fault_class, triage.culprits) == (name, ())


@pytest.mark.parametrize(("key", "name"), [(1, "undetermined"), (2, "missing_rank")])
def test_a_barrier_that_was_completed_lacks_nobody(key: int, name: str) -> None:
    job = Job()
    job.say(f"{STORE}(world_size=4, worker_count=3, timeout=0:30:00)", 0)
    job.say(f"Rank 1: Completed store-based barrier for key:store_based_barrier_key:{key} with 4 nodes.", 1)
    assert reason(job.logs()).fault_class == name


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
