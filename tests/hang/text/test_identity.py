"""Host, pid, pointer, commId and ranks are joined as far as they can be, and what cannot is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.collectors.files import encode
from diag.collectors.records import RankRecord
from diag.hang.text import read_logs

from .logs import call, init, nccl, read, write

HEAD = "gpu0:100:150 [0] NCCL INFO "
# An Init line of every version, its commId and whether it says that initialisation ended.
VERSIONS = {
    "2.10": ("comm 0x5500 rank 1 nranks 4 cudaDev 2 busId 3b000 - Init COMPLETE", "", True),
    "2.16": ("comm 0x5500 rank 1 nranks 4 cudaDev 2 busId 3b000 commId 0xabc - Init COMPLETE", "0xabc", True),
    "2.18": (
        "comm 0x5500 rank 1 nranks 4 cudaDev 2 nvmlDev 2 busId 3b000 commId 0xabc - Init START",
        "0xabc",
        False,
    ),
    "2.21": (
        "ncclCommInitRank comm 0x5500 rank 1 nranks 4 cudaDev 2 nvmlDev 2 busId 3b000 commId 0xabc - Init COMPLETE",
        "0xabc",
        True,
    ),
    "2.22 split": (
        "ncclCommSplit comm 0x5500 rank 1 nranks 4 cudaDev 2 nvmlDev 2 busId 3b000 parent 0x11 color 0 key 1 "
        "commId 0xabc - Init COMPLETE",
        "0xabc",
        True,
    ),
    "2.23": (
        "ncclCommInitRankConfig comm 0x5500 rank 1 nranks 4 cudaDev 2 nvmlDev 2 busId 3b000 commId 0xabc - Init START",
        "0xabc",
        False,
    ),
    "2.29": (
        "[Rank 1] ncclCommInitRank comm 0x5500 rank 1 nranks 4 cudaDev 2 nvmlDev 2 busId 3b000 commId 0xabc "
        "- Init START",
        "0xabc",
        False,
    ),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_init_lines_of_every_version(tmp_path: Path, version: str) -> None:
    text, name, completed = VERSIONS[version]
    logs = read(tmp_path, [HEAD + text])
    (communicator,), (process,) = logs.communicators, logs.processes
    (member,) = communicator.members
    assert (communicator.comm_id, communicator.size) == (name, 4)
    assert (member.group_rank, member.process, member.started, member.completed) == (1, 0, True, completed)
    assert (process.host, process.pid, process.rank, process.gpu, process.bus_id) == ("gpu0", 100, 1, 2, "3b000")
    assert logs.world_size == 4


def test_the_same_commid_is_one_communicator_and_the_missing_ranks_show(tmp_path: Path) -> None:
    logs = read(tmp_path, [nccl(rank, init(rank, 4, stage="START")) for rank in (0, 1, 3)] + [nccl(0, init(0, 4))])
    (communicator,) = logs.communicators
    assert [(member.group_rank, member.completed) for member in communicator.members] == [
        (0, True),
        (1, False),
        (3, False),
    ]
    assert [logs.processes[member.process or 0].rank for member in communicator.members] == [0, 1, 3]


def test_before_commid_processes_are_not_joined_and_that_is_said(tmp_path: Path) -> None:
    same = "comm 0x5500 rank {0} nranks 2 cudaDev {0} busId {0}b000 - Init COMPLETE"
    logs = read(tmp_path, [nccl(rank, same.format(rank)) for rank in (0, 1)])
    assert [(one.comm_id, len(one.members)) for one in logs.communicators] == [("", 1), ("", 1)]
    assert any("before 2.16" in reason for _, reason in logs.gaps)


def test_calls_are_joined_by_pointer_within_their_process_only(tmp_path: Path) -> None:
    lines = [nccl(rank, init(rank, 2, comm="0x5500")) for rank in (0, 1)]  # the same address in two processes
    lines += [nccl(0, call("AllReduce", 16, "0x5500", 7)), nccl(1, call("Broadcast", 17, "0x5500", 8))]
    (communicator,) = read(tmp_path, lines).communicators
    assert [
        [(one.op, one.op_count, one.count, one.datatype) for one in member.calls] for member in communicator.members
    ] == [[("AllReduce", 16, 7, 9)], [("Broadcast", 17, 8, 9)]]
    assert communicator.members[1].calls[0].evidence.line == 4


def test_calls_without_init_lines_have_no_rank_and_that_is_said(tmp_path: Path) -> None:
    logs = read(tmp_path, [nccl(0, call("AllReduce", 1, "0x5500"))])
    assert logs.communicators == ()
    assert any("of 1 process without Init lines" in reason for _, reason in logs.gaps)
    assert [line.text.split(":")[0] for line in logs.lines] == ["AllReduce"]


def test_an_address_that_is_used_again_is_another_communicator(tmp_path: Path) -> None:
    lines = [
        nccl(0, init(0, 1, comm="0x5500", name="0x1")),
        nccl(0, call("AllReduce", 1, "0x5500")),
        nccl(0, "comm 0x5500 rank 0 nranks 1 cudaDev 0 busId 0b000 - Destroy COMPLETE"),
        nccl(0, init(0, 1, comm="0x5500", name="0x2")),
        nccl(0, call("AllGather", 1, "0x5500")),
    ]
    by_name = {one.comm_id: one.members[0] for one in read(tmp_path, lines).communicators}
    assert by_name["0x1"].ended == "destroyed"
    assert (by_name["0x2"].ended, [one.op for one in by_name["0x2"].calls]) == ("", ["AllGather"])


def test_splits_without_commid_are_named_after_their_parent(tmp_path: Path) -> None:
    lines = []
    for rank in range(4):
        lines.append(nccl(rank, init(rank, 4, comm=f"0xa{rank}")))
        lines.append(
            nccl(
                rank,
                f"ncclCommSplit comm 0xb{rank} rank {rank // 2} nranks 2 cudaDev {rank} nvmlDev {rank} busId 1b000 "
                f"parent 0xa{rank} splitCount 1 color {rank % 2} key {rank}- Init START",
            )
        )
    parent, *splits = sorted(read(tmp_path, lines).communicators, key=lambda one: -one.size)
    assert {one.parent for one in splits} == {parent.comm_id} == {"0xabc"}
    assert sorted(tuple(member.process for member in one.members) for one in splits) == [(0, 2), (1, 3)]


def test_abort_is_told_from_destroy(tmp_path: Path) -> None:
    lines = [nccl(0, init(0, 2)), nccl(0, "comm 0x550000 rank 0 nranks 2 cudaDev 0 busId 0b000 - Abort COMPLETE")]
    assert read(tmp_path, lines).communicators[0].members[0].ended == "aborted"


def collided(*prefixes: str) -> list[str]:
    """Two containers with one host name in which the training has pid 7 and GPU 0."""
    return [
        f"{prefix}worker:7:9 [0] NCCL INFO {init(rank, 2, comm=f'0x{rank}a', device=0)}"
        for rank, prefix in enumerate(prefixes)
    ]


def test_pids_that_repeat_between_containers_are_told_apart_by_rank(tmp_path: Path) -> None:
    logs = read(tmp_path, collided("[1,0]<stdout>:", "[1,1]<stdout>:"))
    assert [(process.pid, process.rank) for process in logs.processes] == [(7, 0), (7, 1)]
    (communicator,) = logs.communicators
    assert [member.process for member in communicator.members] == [0, 1]


def test_pids_that_repeat_are_told_apart_by_the_files_name(tmp_path: Path) -> None:
    for rank, line in enumerate(collided("", "")):
        write(tmp_path, [line, f"worker:7:9 [0] NCCL INFO {call('AllReduce', rank, f'0x{rank}a')}"], f"rank{rank}.log")
    logs = read_logs([tmp_path])
    assert [(process.pid, process.rank) for process in logs.processes] == [(7, 0), (7, 1)]
    assert [[one.op_count for one in member.calls] for member in logs.communicators[0].members] == [[0], [1]]


def test_pids_that_repeat_and_nothing_tells_apart_are_said(tmp_path: Path) -> None:
    logs = read(tmp_path, [*collided("", ""), "worker:7:9 [0] misc.cc:1 NCCL WARN boom"])
    assert any("containers" in reason for _, reason in logs.gaps)
    assert logs.lines[-1].speaker.rank is None  # whose warning it is cannot be known


def test_a_process_with_several_gpus_counts_once_a_gpu(tmp_path: Path) -> None:
    lines = [nccl(rank, init(rank, 4), host="box", pid=7) for rank in range(4)]
    lines.append(nccl(2, call("AllReduce", 5, "0x550002"), host="box", pid=7))
    logs = read(tmp_path, lines)
    assert [(process.pid, process.gpu, process.rank) for process in logs.processes] == [(7, i, i) for i in range(4)]
    assert [len(member.calls) for member in logs.communicators[0].members] == [0, 0, 1, 0]


def test_the_device_of_a_line_is_no_rank(tmp_path: Path) -> None:
    logs = read(tmp_path, [nccl(3, init(3, 4)), "gpu0:1003:1099 [0] misc.cc:1 NCCL WARN boom"])
    assert (logs.lines[-1].speaker.device, logs.lines[-1].speaker.rank) == (0, 3)


def test_lines_with_a_rank_get_host_and_pid_of_its_process(tmp_path: Path) -> None:
    watchdog = (
        "[rank1]:[E1109 15:39:31.04 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation timeout"
    )
    logs = read(tmp_path, [nccl(0, init(0, 2)), nccl(1, init(1, 2)), watchdog])
    speaker = logs.lines[-1].speaker
    assert (speaker.rank, speaker.group_rank, speaker.host, speaker.pid) == (1, 0, "gpu0", 1001)
    assert logs.processes[1].last_time_ns is not None


def test_ranks_without_any_nccl_are_processes_too(tmp_path: Path) -> None:
    logs = read(tmp_path, [f"[rank{rank}]: RuntimeError: Connection closed by peer" for rank in (0, 2)], "closed by")
    assert [(process.rank, process.pid) for process in logs.processes] == [(0, None), (2, None)]
    assert logs.world_size is None


def test_tasks_of_srun_that_number_nodes_are_no_ranks(tmp_path: Path) -> None:
    logs = read(tmp_path, [f"{rank // 2}: {nccl(rank, init(rank, 4), each=2)}" for rank in range(4)])
    assert [process.rank for process in logs.processes] == [0, 1, 2, 3]
    assert any("srun" in reason for _, reason in logs.gaps)
    assert [line.speaker.rank for line in logs.lines] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "rank", "local"),
    [
        ("rank3.log", 3, None),
        ("log_3", 3, None),
        ("ranks/00003/log.txt", 3, None),
        ("rank_3/stderr.txt", 3, None),
        ("attempt_0/3/stderr.log", None, 3),
        ("node_rank3.log", None, None),
        ("job-3.log", None, None),
    ],
)
def test_the_name_of_a_file_tells_the_rank(tmp_path: Path, name: str, rank: int | None, local: int | None) -> None:
    path = write(tmp_path, ["RuntimeError: boom"], name)
    (line,) = read_logs([path], ["boom"]).lines
    assert (line.speaker.rank, line.speaker.local_rank) == (rank, local)


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("WORLD_SIZE=16", 16),
        ("Initialized with world size: 16", 16),
        ("GLOBAL_RANK: 0, MEMBER: 1/16", 16),
        ("| distributed init (rank 0, world 16): env://", 16),
        ("  role_world_sizes=[8, 8]  global_world_sizes=[16, 16]", 16),
        ("torchrun --nnodes=2 --nproc_per_node=8 train.py", 16),
        ("torchrun --nnodes 2 --nproc-per-node 8 train.py", 16),
        ("tensor-model-parallel world size: 16", None),
        ("LOCAL_WORLD_SIZE=8", None),
        ("group_world_size=2", None),
        ("hello", None),
    ],
)
def test_world_size_as_printed(tmp_path: Path, line: str, size: int | None) -> None:
    assert read(tmp_path, [line]).world_size == size


def test_a_printed_world_size_below_the_ranks_seen_is_not_believed(tmp_path: Path) -> None:
    logs = read(tmp_path, ["world_size=1", *(nccl(rank, init(rank, 4)) for rank in range(4))])
    assert logs.world_size == 4
    assert any("ignored" in reason for _, reason in logs.gaps)


def test_communicators_smaller_than_the_world_tell_no_world_size(tmp_path: Path) -> None:
    logs = read(tmp_path, [f"[rank{8 + rank}]: {nccl(rank, init(rank, 2))}" for rank in range(2)])
    assert logs.world_size is None
    assert [process.rank for process in logs.processes] == [8, 9]


def test_variables_and_versions_belong_to_their_processes(tmp_path: Path) -> None:
    lines = [
        nccl(0, "NCCL version 2.27.5+cuda12.9"),
        nccl(0, "NCCL_IB_HCA set by environment to mlx5_0,mlx5_1."),
        nccl(1, "NCCL version 2.21.5+cuda12.4"),
    ]
    first, second = read(tmp_path, lines).processes
    assert (first.nccl_version, first.env) == ("2.27.5+cuda12.9", {"NCCL_IB_HCA": "mlx5_0,mlx5_1"})
    assert second.nccl_version == "2.21.5+cuda12.4"


def test_addresses_of_ray_are_joined_with_the_hosts_that_nccl_names(tmp_path: Path) -> None:
    ray = "(RayTrainWorker pid=7, ip=10.0.0.3) "
    logs = read(tmp_path, [f"{ray}box:7:9 [0] NCCL INFO {init(1, 2)}", f"{ray}RuntimeError: boom"], "boom")
    assert (logs.lines[-1].speaker.host, logs.lines[-1].speaker.rank) == ("box", 1)
    assert not logs.deduplicated
    assert read(tmp_path, [f"{ray}boom [repeated 3x across cluster]"], "boom").deduplicated


def test_a_run_directory_tells_world_size_hosts_and_ranks(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for rank in range(2):
        write(run, ["RuntimeError: boom"], f"ranks/{rank:05d}/log.txt")
        record = RankRecord(rank, rank, 4, "box.example", 70 + rank, "", 0, 0, "cuda", device_index=rank)
        (run / f"ranks/{rank:05d}/rank.json").write_bytes(encode(record))
    (run / "manifest.json").write_text(json.dumps({"world_size": 4}))
    logs = read_logs([run], ["boom"])
    assert logs.world_size == 4
    assert [(one.host, one.pid, one.rank, one.gpu) for one in logs.processes] == [("box", 70, 0, 0), ("box", 71, 1, 1)]
    assert [(line.speaker.rank, line.speaker.host) for line in logs.lines] == [(0, "box"), (1, "box")]


def test_a_restart_is_said(tmp_path: Path) -> None:
    lines = [nccl(0, init(0, 1, name="0x1"), pid=10), nccl(0, init(0, 1, name="0x2"), pid=20)]
    logs = read(tmp_path, lines)
    assert [(process.pid, process.rank) for process in logs.processes] == [(10, 0), (20, 0)]
    assert any("same rank" in reason for _, reason in logs.gaps)


@pytest.mark.parametrize("at", [40, 70, 100, 125])
def test_an_init_line_that_a_terminal_wrapped_is_read(tmp_path: Path, at: int) -> None:
    whole = nccl(1, init(1, 2))
    logs = read(tmp_path, [whole[:at], whole[at:]])
    assert [(member.group_rank, member.completed) for member in logs.communicators[0].members] == [(1, True)]


def test_init_lines_that_ranks_wrote_into_each_other_are_said(tmp_path: Path) -> None:
    line = "gpu0:1:2 [0] NCCL INFO comm gpu0:3:4 [1] NCCL INFO comm 0x1 0x2 rank nranks - Init COMPLETE"
    logs = read(tmp_path, [line])
    assert logs.communicators == ()
    assert any("damaged" in reason for _, reason in logs.gaps)
