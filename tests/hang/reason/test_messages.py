"""Messages of launchers, libraries and tools, as text: what they lead to, and what looks like them and must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.hang.api import triage
from diag.hang.model import Triage

RAY = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker ID: fead Node "
    "ID: 201f Worker IP address: 10.0.14.57 Worker port: 10046 Worker PID: 71513 Worker exit type: SYSTEM_ERROR Worker "
    "exit detail: Worker unexpectedly exits with a connection error code 2. End of file. "
)
TIMEOUT = (
    "[E ProcessGroupNCCL.cpp:737] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=56693, "
    "OpType=BROADCAST, Timeout(ms)={}) ran for {} milliseconds before timing out.\n"
)
ANALYSED = "error msg: " + "{}\n"
CULPRIT = "Culprit rank {}; Error type: {}, Expected input sizes: '[[8]]' does not match found input sizes: '[[{}]]'"
STALL = (
    "[1,0]<stderr>:[[1,0]<stderr>:2020-01-15 22:51:33[1,0]<stderr>:.[1,0]<stderr>:214399[1,0]<stderr>:: W "
    "horovod/common/stall_inspector.cc:105] One or more tensors were submitted to be reduced\n"
)


def of(folder: Path, text: str) -> Triage:
    (folder / "job.log").write_text(text)
    return triage([str(folder)])


def ranks(answer: Triage) -> list[int | None]:
    return [culprit.rank for culprit in answer.culprits]


def watchdogs(*numbers: int, limit: int = 1_800_000) -> str:
    return "".join(TIMEOUT.format(rank, limit, limit + 90) for rank in numbers)


@pytest.mark.parametrize(
    ("text", "peer", "fault_class"),
    [
        ("ssh: Could not resolve hostname node-b: Name or service not known", "node-b", "net_failure"),
        ("ssh: connect to host 10.0.0.7 port 2222: Connection refused", "10.0.0.7", "net_connect_refused"),
        ("ssh: connect to host 10.0.0.7 port 2222: No route to host", "10.0.0.7", "net_connect_timeout"),
        ("ssh: connect to host 10.0.0.7 port 22: Permission denied", "10.0.0.7", "net_failure"),
        ("RuntimeError: Using hostfile at h but host=node-b was not reachable via ssh. Remove h", "node-b",
         "net_failure"),
    ],
)  # fmt: skip
def test_a_host_that_ssh_does_not_reach(tmp_path: Path, text: str, peer: str, fault_class: str) -> None:
    answer = of(tmp_path, f"{text}\n")
    assert answer.fault_class == fault_class
    assert answer.culprits[0].peer == peer
    assert "ssh -o PasswordAuthentication=no" in answer.next_steps[0]
    assert not any("NCCL_DEBUG" in step for step in answer.next_steps), "a line says what failed"


def test_localhost_without_ipv6_is_usual(tmp_path: Path) -> None:
    line = (
        "[W socket.cpp:601] [c10d] The IPv{} network addresses of ({}, 5) cannot be retrieved (gai error: -2 - Name or "
    )
    line += "service not known).\n"
    assert of(tmp_path, line.format(6, "localhost")).fault_class == "undetermined"
    assert of(tmp_path, line.format(4, "localhost")).fault_class == "net_failure"
    assert of(tmp_path, line.format(6, "node-b")).fault_class == "net_failure"


@pytest.mark.parametrize(
    "causes",
    [
        "There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory",
        "Some common causes include: (1) the process was killed by the OOM killer due to high memory usage",
    ],
)
def test_causes_that_ray_only_lists_are_no_evidence(tmp_path: Path, causes: str) -> None:
    answer = of(tmp_path, f"{RAY}{causes}\n")
    assert (answer.fault_class, answer.culprits) == ("undetermined", ())
    assert "10.0.14.57 (pid 71513)" in answer.headline
    assert "dmesg" in answer.next_steps[0]


@pytest.mark.parametrize(("signal", "name"), [("SIGBUS", "rank_killed_sigbus"), ("SIGSEGV", "rank_killed_sigsegv")])
def test_glogs_handler(tmp_path: Path, signal: str, name: str) -> None:
    text = (
        f"W1128 08:53:27.594719 3 init.cc:234] *** {signal} (@0x7f82) received by PID 3 (TID 0x7f) from PID 1; stack\n"
    )
    assert of(tmp_path, text).fault_class == name
    assert of(tmp_path, text.replace(signal, "SIGTERM")).fault_class == "undetermined"


def test_an_error_of_rust_is_not_a_quoted_one(tmp_path: Path) -> None:
    error = 'SafetensorError: IoError(Os {{ code: 28, {} "No space left on device" }})\n'
    assert of(tmp_path, error.format("kind: StorageFull, message:")).fault_class == "storage"
    assert of(tmp_path, error.format("sample:")).fault_class != "storage"


def test_launchers_that_saw_their_workers_succeed(tmp_path: Path) -> None:
    said = "INFO:torch.distributed.elastic.agent.server.api:Local worker group finished ({}). Waiting 300 seconds\n"
    assert of(tmp_path, said.format("SUCCEEDED")).fault_class == "healthy"
    assert of(tmp_path, said.format("WorkerState.SUCCEEDED")).fault_class == "healthy"
    assert of(tmp_path, said.format("FAILED")).fault_class == "undetermined"


def test_open_files_are_used_up(tmp_path: Path) -> None:
    """Few programs get over a limit of the system: the exception counts without its traceback."""
    answer = of(tmp_path, "gpu004: OSError: [Errno 24] Too many open files\n" * 4)
    assert answer.fault_class == "rank_killed_exception"
    assert answer.headline.startswith("A process on host gpu004 raised OSError")
    assert "ulimit -n" in answer.next_steps[0]
    went_on = "gpu004: OSError: [Errno 2] No such file\n" * 4 + "gpu004: reading the next file\n"
    assert of(tmp_path, went_on).fault_class == "undetermined"


def test_a_port_of_root(tmp_path: Path) -> None:
    text = (
        "The server socket has failed to listen on any local network address. The server socket has failed to bind to "
    )
    answer = of(tmp_path, f"{text}[::]:98 (errno: 13 - Permission denied).\n")
    assert answer.fault_class == "net_bind_failed"
    assert "[::]:98" in answer.headline
    assert "below 1024" in answer.next_steps[0]


def test_horovods_ranks_at_different_tensors(tmp_path: Path) -> None:
    text = "Stalled ops: loss_0 [ready ranks: 3], grad_1 [ready ranks: 2, 0, 1], grad_2 [ready ranks: 2, 0, 1]\n"
    answer = of(tmp_path, text)
    assert (answer.fault_class, ranks(answer), answer.victims) == ("desync", [3], (0, 1, 2))
    assert "Rank 3 submitted loss_0, the others grad_1" in answer.headline
    two = of(tmp_path, "Stalled ops: loss_0 [ready ranks: 1], grad_1 [ready ranks: 0]\n")
    assert (two.fault_class, ranks(two)) == ("desync", [0, 1]), "of two ranks nothing shows which one is wrong"


def test_horovods_list_with_mpiruns_tag_before_each_piece(tmp_path: Path) -> None:
    text = f"{STALL}[1,0]<stderr>:Stalled ranks:\n\n[1,0]<stderr>:2: [HorovodAllreduce.x, HorovodAllreduce.y]\n"
    for prefix in ("", "2020-01-15 22:51:33 UTC master.0 -- "):
        answer = of(tmp_path, "".join(f"{prefix}{line}\n" for line in text.splitlines()))
        assert (answer.fault_class, ranks(answer)) == ("missing_rank", [2]), prefix
        assert "to submit HorovodAllreduce.x" in answer.headline


def analysed(members: int, culprits: tuple[int, ...], kind: str = "SIZE_OR_SYNTAX_MISMATCH") -> str:
    listed = ", ".join(CULPRIT.format(rank, kind, 4) for rank in culprits)
    expected = ", ".join(map(str, range(members)))
    return f"Collective sequence number: 9 has errors\nexpected ranks: {{{expected}}}\n{ANALYSED.format(listed)}"


def test_what_torchfrtrace_lists(tmp_path: Path) -> None:
    few = of(tmp_path, analysed(8, (2, 5)))
    assert (few.fault_class, ranks(few)) == ("mismatch_shape", [2, 5])
    most = of(tmp_path, analysed(4, (1, 2, 3)))
    assert ranks(most) == [0], "all others differ from the rank that it compares with"
    other = of(tmp_path, analysed(4, (3,), "COLLECTIVE_TYPE_MISMATCH"))
    assert (other.fault_class, ranks(other)) == ("mismatch_op", [3])
    late = of(tmp_path, analysed(4, (3,), "COLLECTIVE_STATE_MISMATCH"))
    assert late.fault_class == "undetermined"


def test_what_torchfrtrace_misses(tmp_path: Path) -> None:
    answer = of(tmp_path, "Not all ranks joining collective, sequence number: 3\nmissing ranks: {1, 6}\n")
    assert (answer.fault_class, ranks(answer)) == ("missing_rank", [1, 6])
    assert answer.confidence <= 0.6, "perhaps only their dumps are missing"


def test_the_first_rank_alone_is_missing_below_those_that_wait(tmp_path: Path) -> None:
    answer = of(tmp_path, watchdogs(3, 1, 2))
    assert (answer.fault_class, ranks(answer), answer.victims) == ("missing_rank", [0], (1, 2, 3))
    assert answer.confidence <= 0.5
    for few in ((1, 2), (0, 1, 3), (2, 3, 4), (1, 2, 4)):
        assert of(tmp_path, watchdogs(*few)).fault_class == "undetermined", few


def test_a_timeout_that_nothing_can_meet(tmp_path: Path) -> None:
    answer = of(tmp_path, watchdogs(1, 2, limit=1))
    assert answer.fault_class == "undetermined"
    assert "only 1 ms" in answer.headline
    assert "watchdog itself" not in answer.headline
    assert "only" not in of(tmp_path, watchdogs(1, 2)).headline


def test_ranks_that_do_not_register(tmp_path: Path) -> None:
    def members(numbers: range, size: int) -> str:
        return "".join(f"initializing ddp: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/{size}\n" for rank in numbers)

    answer = of(tmp_path, members(range(4), 8))
    assert (answer.fault_class, ranks(answer)) == ("missing_rank", [4, 5, 6, 7])
    assert "srun" in answer.next_steps[0]
    registered = "All distributed processes registered. Starting with 8 processes\n"
    assert of(tmp_path, members(range(4), 8) + registered).fault_class == "undetermined"
    assert of(tmp_path, members(range(4), 16)).fault_class == "undetermined", "one node's log has its own ranks only"
    assert of(tmp_path, members(range(8), 8)).fault_class == "undetermined"


def test_a_rendezvous_that_too_few_came_to(tmp_path: Path) -> None:
    answer = of(tmp_path, "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n")
    assert (answer.fault_class, answer.culprits) == ("missing_rank", ())
    assert "--rdzv-endpoint" in answer.next_steps[0]
    assert of(tmp_path, "    raise RendezvousTimeoutError()\n").fault_class == "undetermined"


def test_mpiruns_first_process_counts_where_the_others_only_lost_it(tmp_path: Path) -> None:
    box = "The first process to do so was:\n\n  Process name: [[29973,1],0]\n  Exit code:    1\n"
    lost = "[1,1]<stderr>:errors_impl.UnknownError: Horovod has been shut down. This was caused by an exception\n"
    answer = of(tmp_path, lost + box)
    assert (answer.fault_class, ranks(answer)) == ("rank_killed_exception", [0])
    assert answer.confidence < 0.5
    assert of(tmp_path, box).confidence < 0.5, "of processes that fail together any may be seen first"
    others = "[1,2]<stderr>:n1: Test NCCL failure all_reduce.cu:44 'unhandled cuda error'\n"
    failed = of(tmp_path, others + box)
    assert (failed.fault_class, ranks(failed)) == ("cuda_failure", [2]), "the failed call of a process is its own"


def test_memory_that_another_process_cannot_open(tmp_path: Path) -> None:
    answer = of(
        tmp_path,
        "node1:41:42 [2] /rccl/src/transport/p2p.cc:256 NCCL WARN hipIpcGetMemHandle failed : invalid argument\n",
    )
    assert answer.fault_class == "cuda_failure"
    assert "--ipc=host" in answer.next_steps[0]


RPC = "[W tensorpipe_agent.cpp:641] RPC agent for {} encountered error when {} {}: {}\n"
REQUEST = "sending outgoing request #4 to"


@pytest.mark.parametrize(
    ("name", "fault_class"),
    [
        ("ECONNREFUSED", "net_connect_refused"),
        ("ECONNRESET", "net_connection_lost"),
        ("EPIPE", "net_connection_lost"),
        ("ETIMEDOUT", "net_connect_timeout"),
        ("EHOSTUNREACH", "net_connect_timeout"),
        ("EADDRINUSE", "net_bind_failed"),
        ("EADDRNOTAVAIL", "net_bind_failed"),
        ("ENOSPC", "storage"),
        ("EIO", "storage"),
        ("ENOENT", "rank_killed_exception"),
    ],
)
def test_an_exception_that_is_the_error_of_a_call(tmp_path: Path, name: str, fault_class: str) -> None:
    traceback = 'Traceback (most recent call last):\n  File "go.py", line 4, in <module>\n    go()\n'
    answer = of(tmp_path, f"{traceback}RuntimeError: {name}: no luck\n")
    assert answer.fault_class == fault_class
    assert name in answer.headline or fault_class == "net_connect_refused"


@pytest.mark.parametrize(
    ("asks", "peer", "named"),
    [("Test0", "Test3", [3]), ("Test3", "Test0", [None]), ("trainer_0", "server_1", [None]), ("a", "b", [None])],
)
def test_a_worker_of_an_rpc_that_is_not_reached(tmp_path: Path, asks: str, peer: str, named: list[int | None]) -> None:
    line = RPC.format(asks, REQUEST, peer, "ECONNREFUSED: connection refused")
    (tmp_path / "rank0.log").write_text(f"{line}RuntimeError: ECONNREFUSED: connection refused\n")
    answer = triage([str(tmp_path)])
    assert answer.fault_class == "net_connect_refused"
    assert [culprit.rank for culprit in answer.culprits] == named, "who asks is a witness"
    assert answer.culprits[0].peer == peer


def test_a_worker_of_an_rpc_that_left(tmp_path: Path) -> None:
    end = "EOF: end of file"
    lost = of(tmp_path, RPC.format("worker0", "reading incoming response from", "worker1", end))
    assert (lost.fault_class, lost.culprits[0].peer) == ("net_connection_lost", "worker1")
    ended = of(tmp_path, RPC.format("worker0", "reading incoming request from", "worker1", end))
    assert ended.fault_class == "undetermined", "so ends every run"


TARGET = "Additional GRPC error information from remote target /job:{}/replica:0/task:{}:\n"
PEER = (
    ':{{"created":"@1.2","description":"Error received from peer ipv4:10.0.0.{}:912","file_line":1056,'
    '"grpc_message":"Socket closed","grpc_status":14}}\n'
)
CLOSED = "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed\n"


def test_a_connection_of_grpc_that_closed(tmp_path: Path) -> None:
    answer = of(tmp_path, CLOSED + TARGET.format("worker", 2) + PEER.format(7))
    assert answer.fault_class == "net_connection_lost"
    assert [(culprit.rank, culprit.peer) for culprit in answer.culprits] == [(2, "10.0.0.7")]
    assert "first error on rank 2" in answer.next_steps[0]
    assert not any("NCCL" in step for step in answer.next_steps)
    answer = of(tmp_path, CLOSED + TARGET.format("ps", 1))
    assert [(culprit.rank, culprit.peer) for culprit in answer.culprits] == [(None, "task 1 of ps")]
    beside = TARGET.format("chief", 0) + "retries\n" * 9
    answer = of(tmp_path, beside + CLOSED + TARGET.format("worker", 2))
    assert [(culprit.rank, culprit.peer) for culprit in answer.culprits] == [(None, "task 2 of worker")], "3 of ranks"
    answer = of(tmp_path, CLOSED)
    assert (answer.fault_class, ranks(answer)) == ("net_connection_lost", [])
    status = (
        'W grpc_remote_master.cc:159] RPC failed with status = "Unavailable: Socket closed" and grpc_error_string = "'
    )
    answer = of(tmp_path, status + PEER.format(7)[1:])
    assert (answer.fault_class, answer.culprits[0].peer) == ("net_connection_lost", "10.0.0.7")
    steps = "".join(f"step {at} loss 3.{at}\n" for at in range(4))
    assert of(tmp_path, status + PEER.format(7)[1:] + steps).fault_class == "undetermined", "it was tried again"


@pytest.mark.parametrize("field", ["details", "debug_error_string"])
def test_an_error_of_grpc_for_python_is_not_a_quoted_one(tmp_path: Path, field: str) -> None:
    """It writes its fields in quotation marks, and the address is in both."""
    error = (
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.7:912: Failed to connect to remote host"
    )
    answer = of(tmp_path, f'\tstatus = StatusCode.UNAVAILABLE\n\t{field} = "{error}: Connection refused"\n')
    assert (answer.fault_class, [culprit.peer for culprit in answer.culprits]) == ("net_connect_refused", ["10.0.0.7"])
    said = of(tmp_path, f'log.info("see {error}: Connection refused")\n')
    assert said.fault_class == "undetermined"


RPC_ERROR = (
    'Traceback (most recent call last):\n  File "/srv/loop.py", line 7, in turn\n    stub.join()\n'
    "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\n"
    '\tstatus = StatusCode.{0}\n\tdetails = "{1}"\n\tdebug_error_string = "UNKNOWN:{1}"\n>\n'
)
TO_ALL = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.7:912: {}"


@pytest.mark.parametrize(
    ("said", "fault_class"),
    [
        ("Failed to connect to remote host: connect: No route to host (113)", "net_connect_timeout"),
        ("Failed to connect to remote host: getsockopt(SO_ERROR): Connection refused (111)", "net_connect_refused"),
        ("connection attempt timed out before receiving SETTINGS frame", "net_connect_timeout"),
    ],
)
def test_who_calls_by_grpc_is_not_at_fault_that_nobody_answers(tmp_path: Path, said: str, fault_class: str) -> None:
    text = RPC_ERROR.format("UNAVAILABLE", TO_ALL.format(said))
    answer = of(tmp_path, "".join(f"[rank2]: {line}\n" for line in text.splitlines()))
    assert answer.fault_class == fault_class
    assert [(culprit.rank, culprit.peer) for culprit in answer.culprits] == [(None, "10.0.0.7")]


@pytest.mark.parametrize(
    ("status", "fault_class", "accused"),
    [
        ("UNAVAILABLE", "undetermined", []),
        ("DEADLINE_EXCEEDED", "net_connect_timeout", [None]),
        ("INVALID_ARGUMENT", "rank_killed_exception", [2]),
    ],
)
def test_the_status_of_a_call_tells_whose_the_error_is(
    tmp_path: Path, status: str, fault_class: str, accused: list[int | None]
) -> None:
    text = RPC_ERROR.format(status, "see the log of the service")
    answer = of(tmp_path, "".join(f"[rank2]: {line}\n" for line in text.splitlines()))
    assert (answer.fault_class, ranks(answer)) == (fault_class, accused)


def _torn(rank: int, count: int, torn: str = "opera[rank1]: UserWarning: x is deprecatedtion") -> str:
    return (
        f"[rank{rank}]:[E616 13:41:10.909476913 ProcessGroupNCCL.cpp:565] [Rank {rank}] Watchdog caught collective "
        f"{torn} timeout: WorkNCCL(SeqNum=2109, OpType=_ALLGATHER_BASE, NumelIn={count}, NumelOut={2 * count}, "
        "Timeout(ms)=1800000) ran for 1800007 milliseconds before timing out.\n"
    )


def test_a_watchdogs_line_into_which_another_process_prints(tmp_path: Path) -> None:
    answer = of(tmp_path, _torn(0, 40) + _torn(1, 64))
    assert answer.fault_class == "mismatch_shape"
    assert answer.confidence < 0.65, "the two may be of two groups, as none is named"
    whole = of(tmp_path, _torn(0, 40, "operation") + _torn(1, 64, "operation"))
    assert whole.headline == answer.headline


def test_two_ranks_of_more_than_their_group_holds_need_not_be_of_one_group(tmp_path: Path) -> None:
    """Ranks 0 and 2 cannot be the two members that input and output tell of unless the group is a part of the job."""
    assert of(tmp_path, _torn(0, 40) + _torn(2, 64)).fault_class == "undetermined"


def test_two_ranks_of_one_size_do_not_differ(tmp_path: Path) -> None:
    assert of(tmp_path, _torn(0, 40) + _torn(1, 40)).fault_class == "undetermined"
