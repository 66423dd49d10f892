"""What stands in front of a message is stripped, in any order, and what it tells is kept apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.ended.model import short_host
from diag.hang.text.prefixes import ParsedLine, file_prefix, read_line

# Prefix, and what it tells. Those with a text of their own end in one, for the message follows directly.
TABLE: dict[str, tuple[str, dict[str, object]]] = {
    "torch": ("[rank3]: ", {"rank": 3}),
    "mpirun": ("[1,5]<stdout>:", {"rank": 5}),
    "ray": ("(RayTrainWorker pid=619, ip=10.72.2.6) ", {}),
    "pdsh": ("gpu004: ", {}),
    "pdsh address": ("10.10.23.10: ", {}),
    "srun": ("11: ", {"rank": 11}),
    "tee": ("[default2]:", {"local_rank": 2}),
    "role": ("[trainer3]:", {"local_rank": 3}),
    "role and local rank": ("[trainer0|1]:", {"local_rank": 1}),
    "launcher": ("rdma-test-gpu-worker-1: ", {}),
    "milabench": ("dinov2-giant-nodes.cn-d004 [stderr] ", {}),
    "Zulu time": ("2019-06-02T16:13:44.884Z: ", {"time_ns": 1559492024_884000000}),
    "zone": ("2025-11-09 15:39:31.043 +08:00 ", {"time_ns": 1762673971_043000000}),
    "ctime": ("Fri Aug 11 12:31:45 2023 ", {"time_ns": 1691757105_000000000}),
    "Kubernetes": ("2025-11-09T07:39:31.043000000Z stderr F ", {"time_ns": 1762673971_043000000}),
    "Open MPI": ("[cn-01:4811] ", {}),
    "pod": ("[pod/job-7-worker-0/pytorch] ", {}),
    "pasted": ("[80746] ", {}),
    "colour": ("\x1b[36m\x1b[0m", {}),
    "progress": ("Epoch 3:  10%|█▏ | 1/10 [00:01<00:02,  4.2it/s, loss=2.1]", {}),
}
TIMES = ("Zulu time", "zone", "ctime", "Kubernetes")
RANKS = ("torch", "mpirun", "srun")
MESSAGE = "gpu7:4711:4812 [6] NCCL INFO Using network IB"


def one(text: str) -> ParsedLine:
    said, *bars = read_line(text.encode(), year=2025)
    assert all("%|" in bar.text or "it [" in bar.text for bar in bars)
    return said


@pytest.mark.parametrize("name", TABLE)
def test_each_prefix_is_stripped_and_understood(name: str) -> None:
    prefix, tells = TABLE[name]
    said = one(prefix + MESSAGE)
    assert (said.text, said.source, said.host, said.pid, said.device) == ("Using network IB", "nccl", "gpu7", 4711, 6)
    for key, value in tells.items():
        assert getattr(said, key) == value
    if name not in RANKS:
        assert said.rank is None


@given(st.lists(st.sampled_from(sorted(TABLE)), max_size=6, unique=True))
def test_prefixes_stack_in_any_order(names: list[str]) -> None:
    said = one("".join(TABLE[name][0] for name in names) + MESSAGE)
    assert (said.text, said.source, said.host, said.pid, said.device) == ("Using network IB", "nccl", "gpu7", 4711, 6)
    times = [TABLE[name][1]["time_ns"] for name in names if name in TIMES]
    assert said.time_ns == (times[0] if times else None)  # the outermost
    if "torch" in names:
        assert said.rank == 3  # surer than a launcher's number
    elif not set(names) & set(RANKS):
        assert said.rank is None
    local = [TABLE[name][1]["local_rank"] for name in names if "local_rank" in TABLE[name][1]]
    assert said.local_rank == (local[-1] if local else None)  # the innermost


@given(st.lists(st.sampled_from(sorted(set(TABLE) - {"progress"})), max_size=5, unique=True))
def test_indented_text_behind_prefixes_keeps_its_indentation(names: list[str]) -> None:
    said = one("".join(TABLE[name][0] for name in names) + '  File "/app/train.py", line 3, in <module>')
    assert said.text.lstrip(" ") == 'File "/app/train.py", line 3, in <module>'
    assert said.text.startswith(" ")
    assert said.source == ""


@pytest.mark.parametrize(
    ("line", "level", "code", "text"),
    [
        ("gpu7:1:2 [0] INFO NET : Using interface eth0", "INFO", "", "NET : Using interface eth0"),
        ("gpu7:1:2 [0] misc/ibvwrap.cu:61 WARN Failed to open", "WARN", "misc/ibvwrap.cu:61", "Failed to open"),
        ("gpu7:1:2 [0] NCCL INFO Using network IB", "INFO", "", "Using network IB"),
        ("gpu7:1:2 [0] init.cc:42 NCCL WARN Duplicate GPU", "WARN", "init.cc:42", "Duplicate GPU"),
        ("gpu7:1:2 [0] transport/net_ib.cc:42 NCCL WARN X", "WARN", "transport/net_ib.cc:42", "X"),
        ("[2025-11-09 15:39:31] gpu7:1:2 [0] init.cc:42 NCCL WARN X", "WARN", "init.cc:42", "X"),
        ("[2025-11-09 15:39:31.043] gpu7:1:2 [0] NCCL INFO X", "INFO", "", "X"),
        ("gpu7:1:2 [0] 12.345678 init.cc:42 NCCL TRACE X", "TRACE", "init.cc:42", "X"),
        ("gpu7:1:2 NCCL CALL ncclAllReduce(0x1)", "CALL", "", "ncclAllReduce(0x1)"),
        ("[0] NCCL INFO X", "INFO", "", "X"),
        ("transport/nvls.cc:251 NCCL WARN X", "WARN", "transport/nvls.cc:251", "X"),
    ],
)
def test_nccl_prefix_of_every_version(line: str, level: str, code: str, text: str) -> None:
    said = one(line)
    assert (said.source, said.level, said.code, said.text) == ("nccl", level, code, text)


@pytest.mark.parametrize(
    "line",
    [
        "the log says: gpu7:1:2 [0] NCCL WARN Cuda failure",
        "print: gpu7:1:2 [0] NCCL WARN Cuda failure",
        "'gpu7:1:2 [0] NCCL WARN Cuda failure'",
        "RuntimeError: gpu7:1:2 [0] NCCL WARN Cuda failure",
        '    raise ValueError("gpu7:1:2 [0] NCCL WARN Cuda failure")',
        "step done transport/nvls.cc:251 NCCL WARN Cuda failure",
    ],
)
def test_text_that_only_looks_like_nccl_is_not_of_nccl(line: str) -> None:
    said = one(line)
    assert said.source != "nccl"
    assert (said.host, said.pid) == ("", None)
    assert "NCCL WARN" in said.text


def test_watchdog_lines_keep_the_rank_in_the_group_apart_from_the_global_rank() -> None:
    said = one("[rank15]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective")
    assert (said.rank, said.group_rank, said.source, said.level) == (15, 1, "torch", "ERROR")
    assert said.code == "ProcessGroupNCCL.cpp:607"
    assert said.time_ns == 1742522828_408271257  # 21 March of the given year
    assert said.text.startswith("[Rank 1] Watchdog")
    said = one("[rank4]:[E1109 02:07:08.4 ProcessGroupNCCL.cpp:9] [PG ID 0 PG GUID 0(default_pg) Rank 12] Timeout")
    assert (said.rank, said.group_rank) == (4, 12)
    assert one("[E ProcessGroupNCCL.cpp:475] [Rank 2] Watchdog").group_rank == 2


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("E1109 15:39:31.043000 4711 torch/distributed/elastic/multiprocessing/api.py:869] failed", "launcher"),
        ("ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9)", "launcher"),
        ("srun: error: gpu004: task 3: Killed", "launcher"),
        ("[12345.678901] NVRM: Xid (PCI:0000:03:00): 79", "kernel"),
        ("Nov  9 15:39:31 gpu004 kernel: [12345.678901] NVRM: Xid (PCI:0000:03:00): 79", "kernel"),
        ("2025-11-09T15:39:31+0800 gpu004 kernel: Out of memory: Killed process 4711 (python)", "kernel"),
    ],
)
def test_launchers_and_the_kernel_are_told_by_their_prefixes(line: str, source: str) -> None:
    assert one(line).source == source


@pytest.mark.parametrize(
    ("line", "host", "pid", "rank"),
    [
        ("2026-02-08T00:40:07.136582+00:00 gpu004 systemd[1]: user.slice: killed", "gpu004", None, None),
        ("2026-02-08T00:40:07.136582+00:00 ERROR trainer: no domain", "", None, None),
        ("[cn00010:43172] Error: no domain", "cn00010", 43172, None),
        ("[cn00010:43172] *** Process received signal ***", "cn00010", 43172, None),
        ("2025-01-02 10:12 [rank13]: lost", "", None, 13),
        ("[2025/01/02 10:12] [rank13]: lost", "", None, 13),
        ("02-Jan-2025 10:12: [rank13]: lost", "", None, 13),
        ("[step:1200] loss 3.1", "", None, None),
        ("[cuda:0] 12 GiB", "", None, None),
        ("[run2.py:12] started", "", None, None),
    ],
)
def test_processes_and_dates_before_a_message(line: str, host: str, pid: int | None, rank: int | None) -> None:
    said = one(line)
    assert (said.host, said.pid, said.rank) == (host, pid, rank)


def test_messages_that_begin_like_prefixes_stay_whole() -> None:
    for text in (
        "[3] joined but didn't finish collective #2 (count from 1)",
        "[Rank 0]: Ranks 4, 5 failed to pass monitoredBarrier in 30000 ms",
        "[2] is setting up NCCL communicator",
        "RuntimeError: expected 3",
        "torch.cuda.OutOfMemoryError: CUDA out of memory",
    ):
        assert one(text).text == text


def test_messages_glued_to_one_another_are_told_apart() -> None:
    first, second = read_line(b"gpu7:1:2 [0] NCCL INFO Using network IB gpu8:3:4 [1] NCCL INFO Connected all rings")
    assert (first.text, first.host, first.pid) == ("Using network IB", "gpu7", 1)
    assert (second.text, second.host, second.pid, second.source) == ("Connected all rings", "gpu8", 3, "nccl")


def test_a_carriage_return_begins_the_line_anew() -> None:
    said = one(f"[1,5]<stderr>:  1%|  | 1/99 [00:01<?]\r  2%|  | 2/99 [00:01<?]\r{MESSAGE}\r")
    assert (said.text, said.source, said.rank) == ("Using network IB", "nccl", 5)


def test_control_characters_stay_out_of_hosts_and_texts() -> None:
    said = one("gpu\x1b]0;title\x07\x1b[31m7\u202e:1:2 [0] NCCL INFO ok\x00\x1b[2J!")
    assert (said.host, said.text) == ("gpu7", "ok!")


def test_a_line_of_docker_is_unpacked() -> None:
    said = one('{"log":"[rank1]: hello\\n","stream":"stderr","time":"2025-11-09T07:39:31.043Z"}')
    assert (said.text, said.rank, said.time_ns) == ("hello", 1, 1762673971_043000000)


def test_ray_names_process_and_address_and_repetitions_are_no_text() -> None:
    said = one("(RayTrainWorker pid=619, ip=10.72.2.6) boom [repeated 3x across cluster] (Ray deduplicates logs)")
    assert (said.text, said.host, said.pid) == ("boom", "10.72.2.6", 619)


@pytest.mark.parametrize(
    ("line", "rank", "pid"),
    [
        ("(VllmWorker rank=3 pid=310) boom", 3, 310),
        ("(VllmWorker rank=3 pid=310, ip=10.72.2.6) [rank1]: boom", 1, 310),
        ("3ef1a0c2 [rank=5] || boom", 5, None),
        ("(Worker_TP0 pid=131) boom", 0, 131),
        ("(Worker_PP1_TP0 pid=131) boom", None, 131),
    ],
)
def test_a_rank_in_a_frameworks_prefix_is_the_lines(line: str, rank: int | None, pid: int | None) -> None:
    said = one(line)
    assert (said.text, said.rank, said.pid) == ("boom", rank, pid)


def test_nccl_is_known_by_host_and_device_without_a_pid() -> None:
    said = one("[2026-08-24 02:12:12] node [2] /app/src/transport/p2p.cc:256 NCCL WARN hipIpcGetMemHandle failed")
    assert (said.host, said.pid, said.device, said.source, said.level) == ("node", None, 2, "nccl", "WARN")
    assert (said.text, said.code) == ("hipIpcGetMemHandle failed", "/app/src/transport/p2p.cc:256")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("gpu7.cluster.local", "gpu7"),
        ("gpu7", "gpu7"),
        ("10.20.31.2", "10.20.31.2"),
        ("10.20.31.2.nip.io", "10"),
        ("fe80::1%eth0.7", "fe80::1%eth0.7"),
        ("::ffff:10.0.0.2", "::ffff:10.0.0.2"),
        ("", ""),
    ],
)
def test_a_hosts_domain_is_cut_off_and_an_address_is_not(name: str, short: str) -> None:
    assert short_host(name) == short


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    for said in read_line(text.encode("utf-8", "surrogatepass")):
        assert said.host.isprintable()


@given(st.binary(max_size=300))
def test_any_bytes_are_read(raw: bytes) -> None:
    assert read_line(raw)


@pytest.mark.parametrize("doubtful", ["[0] ", "a1: ", "> ", "| ", "[0] a1: ", "`", "    [rank0]:"])
def test_prefixes_without_end_are_no_recursion(doubtful: str) -> None:
    assert read_line((doubtful * 4000 + "Error").encode())


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank: 3] ",
        "[Rank 3] ",
        "[RANK 3] ",
        "rank 3: ",
        "Rank 3: ",
        "rank=3 ",
        "[R3] ",
        "(rank 3) ",
        "[global_rank 3] ",
    ],
)
@pytest.mark.parametrize(
    "piece", ["Traceback (most recent call last):", '  File "/app/train.py", line 3, in step', "OSError: full"]
)
def test_a_rank_before_a_piece_of_a_traceback_is_the_rank_that_prints(prefix: str, piece: str) -> None:
    said = one(prefix + piece)
    assert (said.rank, said.text) == (3, piece)


@pytest.mark.parametrize(
    "text",
    [
        "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",  # of a group
        "[Rank 0]: Ranks 4, 5 failed to pass monitoredBarrier in 30000 ms",
        "Rank 3 crashed with exit code -11.",
        "[3] joined but didn't finish collective #12 (count from 1)",
        "[local_rank 3] Traceback (most recent call last):",
    ],
)
def test_a_rank_that_a_message_speaks_of_is_not_the_rank_that_prints(text: str) -> None:
    said = one(text)
    assert (said.rank, said.text) == (None, text)


def test_numbers_before_all_lines_of_a_file_are_ranks_unless_each_is_on_one_line() -> None:
    tagged = b"".join(b"[%d] step %d\n" % (rank, step) for step in range(6) for rank in range(2))
    pasted = b"".join(b"[%d] step %d\n" % (80746 + step, step) for step in range(12))
    (said,) = read_line(b"[1] OSError: full", of_file=file_prefix(tagged))
    assert (said.rank, said.text) == (1, "OSError: full")
    (said,) = read_line(b"[80750] OSError: full", of_file=file_prefix(pasted))
    assert said.rank is None


def test_a_host_and_a_rank_are_read_as_mpiexec_of_pals_writes_them() -> None:
    said = one("x1922c6s5b0n0 34: OSError: full")
    assert (said.host, said.rank, said.text) == ("x1922c6s5b0n0", 34, "OSError: full")


def test_a_month_of_another_language_leaves_the_time_open() -> None:
    said = one("kvě 25 19:29:48 node7 kernel: amdgpu 0000:01:00.0: Starting sdma0 ring reset")
    assert (said.host, said.source, said.time_ns) == ("node7", "kernel", None)
    assert said.text == "amdgpu 0000:01:00.0: Starting sdma0 ring reset"


@pytest.mark.parametrize(
    ("column", "host"),
    [("gpu-pod-1 trainer ", "gpu-pod-1"), ("worker-3 \u203a main ", "worker-3"), ("trainer/3 ", "")],
)
def test_a_column_before_every_line_is_taken_off(column: str, host: str) -> None:
    """stern's pod and container; torchx's role and replica."""
    lines = ["Traceback (most recent call last):", '  File "/a.py", line 1, in f', "    f()", "ValueError: x"]
    prefix = file_prefix("\n".join(column + line for line in lines).encode())
    read = [read_line((column + line).encode(), of_file=prefix)[0] for line in lines]
    assert [(one.text, one.host) for one in read] == [(line, host) for line in lines]


@pytest.mark.parametrize("word", ["epoch", "Step-1 done", "a/b", "node1"])
def test_words_that_begin_every_line_are_no_column(word: str) -> None:
    text = "\n".join(f"{word} loss {number}" for number in range(8))
    (said,) = read_line(f"{word} loss 1".encode(), of_file=file_prefix(text.encode()))
    assert said.text == f"{word} loss 1"


@pytest.mark.parametrize("prefix", ["12:31 worker-{} stderr | ", "[job-{}/trainer] ", "task-{}> ", "    "])
def test_what_all_lines_of_a_file_begin_with_is_a_prefix_of_no_known_kind(prefix: str) -> None:
    lines = ["starting", "  a list of things", "Loading data", "[rank3]: Traceback (most recent call last):"]
    lines += ["[rank3]: KeyError: 'lr'", "stopping", "the end", "bye"]
    head = "\n".join(prefix.format(at) + line for at, line in enumerate(lines)).encode()
    (said,) = read_line(f"{prefix.format(7)}[rank3]: KeyError: 'lr'".encode(), of_file=file_prefix(head))
    assert (said.rank, said.text) == (3, "KeyError: 'lr'")
    (other,) = read_line(b"node: [rank3]: KeyError", of_file=file_prefix(head))
    assert other.text == "node: [rank3]: KeyError"


@pytest.mark.parametrize("line", ["step {} loss: 3.{}", "Epoch: [0] - {} of 900 in {} s", "card {}: fan at {} %"])
def test_what_all_lines_say_is_no_prefix(line: str) -> None:
    head = "\n".join(line.format(at, at) for at in range(20)).encode()
    (said,) = read_line(line.format(3, 3).encode(), of_file=file_prefix(head))
    assert said.text == line.format(3, 3)


@pytest.mark.parametrize(
    ("line", "host", "rank", "text"),
    [
        ('{"ts":"2025-11-09T15:39:31.043Z","level":"info","msg":"[rank3]: KeyError: \'lr\'"}', "", 3, "KeyError: 'lr'"),
        ('{"level": "error", "message": "disk \\"a\\" is full", "host": "n7"}', "n7", None, 'disk "a" is full'),
        ('{"message": "lost", "rank": 5, "pod": "w-1"}', "w-1", 5, "lost"),
        ('time=2025-11-09T15:39:31.043Z level=info msg="[rank3]: it \\"ended\\""', "", 3, 'it "ended"'),
        ('level=error component=store msg="lost', "", None, "lost"),
    ],
)
def test_lines_of_loggers_that_write_objects(line: str, host: str, rank: int | None, text: str) -> None:
    said = one(line)
    assert (said.host, said.rank, said.text) == (host, rank, text)
    assert said.time_ns == (1762702771_043000000 if "2025-11-09" in line else None)


@pytest.mark.parametrize(
    "line", ['{"loss": 3.1, "step": 7}', '{"message": 7}', '{"message": {"a": 1}}', "{'msg': 'x'}"]
)
def test_an_object_without_a_message_stays_as_it_is(line: str) -> None:
    assert one(line).text == line
