"""Which lines are kept, how many, and that messages of many lines stay whole."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from diag.hang.policy import HANG_READING

from .logs import call, init, nccl, read

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 3, in main',
    "    step(batch)",
    '  File "/app/train.py", line 9, in step',
    "    raise ValueError(batch)",
    "ValueError: bad batch",
]
CHAIN = [
    *TRACEBACK,
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 1, in <module>',
    "RuntimeError: step failed",
]
PY_SPY = [
    "Process 4711: python train.py",
    "Python v3.11.7 (/usr/bin/python3.11)",
    "",
    'Thread 4711 (idle): "MainThread"',
    "    all_reduce (torch/distributed/distributed_c10d.py:2501)",
    "    main (train.py:30)",
    'Thread 4800 (active): "Thread-1"',
    "    run (threading.py:975)",
]
FAULT = [
    "Fatal Python error: Segmentation fault",
    "",
    "Current thread 0x00007f1 (most recent call first):",
    '  File "/app/train.py", line 30 in main',
    '  File "/app/train.py", line 40 in <module>',
]
ELASTIC = [
    "Failures:",
    "[1]:",
    "  time      : 2025-11-09_15:39:31",
    "  host      : gpu1",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : -9 (pid: 4711)",
    "------------------------------------------------------------",
    "Root Cause (first observed failure):",
    "[0]:",
    "  rank      : 3 (local_rank: 3)",
    "============================================================",
]


@pytest.mark.parametrize(
    ("block", "source"),
    [(TRACEBACK, "python"), (CHAIN, "python"), (PY_SPY, "stack"), (FAULT, "stack"), (ELASTIC, "launcher")],
)
def test_a_message_of_many_lines_is_kept_whole(tmp_path: Path, block: list[str], source: str) -> None:
    logs = read(tmp_path, ["step 1", *block, "[rank0]: step 2"])
    assert [line.text for line in logs.lines] == block
    assert {(line.source, line.block) for line in logs.lines} == {(source, 1)}
    assert [line.number for line in logs.lines] == list(range(2, len(block) + 2))


def test_tracebacks_that_ranks_wrote_into_each_other_are_told_apart(tmp_path: Path) -> None:
    queues = {rank: [f"[rank{rank}]: {line}" for line in TRACEBACK] for rank in range(4)}
    dice = random.Random(1)
    lines = []
    while queues:
        rank = dice.choice(sorted(queues))
        lines.append(queues[rank].pop(0))
        if not queues[rank]:
            del queues[rank]
    logs = read(tmp_path, lines)
    for rank in range(4):
        own = [line for line in logs.lines if line.speaker.rank == rank]
        assert [line.text for line in own] == TRACEBACK
        assert len({line.block for line in own}) == 1
    assert {line.block for line in logs.lines} == {1, 2, 3, 4}


def test_the_message_behind_an_exception_is_kept(tmp_path: Path) -> None:
    lines = [
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "a.py", line 1, in f',
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2021",
        "[rank0]: ncclSystemError: System call failed or device error",
        "[rank0]: Last error:",
        "[rank0]: Error while creating shared memory segment",
    ]
    assert len(read(tmp_path, lines).lines) == 6


def test_the_line_below_last_error_is_kept_without_the_traceback(tmp_path: Path) -> None:
    lines = ["[rank0]: Last error:", "[rank0]: Something that NCCL says", "[rank0]: and the program"]
    assert [line.text for line in read(tmp_path, lines).lines] == ["Last error:", "Something that NCCL says"]


@pytest.mark.parametrize("stamp", ["[ 1943.308145] ", "Nov 26 02:00:01 gpu7 kernel: "])
def test_a_message_of_the_kernel_with_several_lines_is_one(tmp_path: Path, stamp: str) -> None:
    """dmesg and journalctl indent the further lines below the driver's name, which the driver repeats."""
    lines = [
        f"{stamp}NVRM: The NVIDIA GPU 0000:b3:00.0",
        f"{' ' * len(stamp)}NVRM: (PCI ID: 10de:26b5) installed in this system has",
        f"{' ' * len(stamp)}NVRM: fallen off the bus and is not responding to commands.",
        f"{stamp}NVRM: The NVIDIA probe routine failed for 1 device(s).",
        f"{' ' * len(stamp)}mlx5_core: of another driver, NVRM: it says",
    ]
    first, second, third = read(tmp_path, lines, "NVRM:").lines
    assert first.text == (
        "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b5) installed in this system has fallen off the bus and is "
        "not responding to commands."
    )
    assert [line.number for line in (first, second, third)] == [1, 4, 5]


def test_messages_of_the_kernel_without_indentation_stay_apart(tmp_path: Path) -> None:
    lines = [f"kernel: NVRM: Xid (PCI:0000:{bus}:00): 45, pid=7" for bus in ("dc", "ed", "ba")]
    assert len(read(tmp_path, lines).lines) == 3


def test_a_desync_report_has_the_speaker_of_its_first_line(tmp_path: Path) -> None:
    lines = [
        "[rank2]:[E1109 15:39:31.04 ProcessGroupNCCL.cpp:1] Timeout at collective: ALLREDUCE, #4",
        "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:",
        "\t   - [0] joined but didn't finish collective #4 (count from 1)",
        "\t - Snapshot of ranks' latest states:",
        "\t   #4 started ranks:",
    ]
    logs = read(tmp_path, lines)
    assert [line.number for line in logs.lines][-4:] == [2, 3, 4, 5]
    assert all(line.source == "torch" for line in logs.lines)


def test_a_log_of_user_text_about_tracebacks_opens_none(tmp_path: Path) -> None:
    assert not read(tmp_path, ["Process finished", "Failures: none so far", "Process 3 of 4 started"]).lines


def test_the_last_progress_bar_is_kept(tmp_path: Path) -> None:
    bars = "\r".join(f"eval: {i}%|█| {i}/100 [00:01<00:02, 3.1it/s]" for i in range(100))
    (line,) = read(tmp_path, ["start", bars, "end"]).lines
    assert "99/100" in line.raw
    assert line.number == 2


def test_a_message_behind_a_progress_bar_is_read(tmp_path: Path) -> None:
    logs = read(tmp_path, [f"eval:  3%|▎ | 3/100 [00:01<00:02, 3.1it/s]{nccl(1, init(1, 2))}"])
    assert [process.rank for process in logs.processes] == [1]


def test_anchors_are_found_wherever_they_stand_and_all_of_them(tmp_path: Path) -> None:
    lines = ["übergröße Fehler", "nothing", "abc", "bcd", "xabcdx"]
    logs = read(tmp_path, lines, "größe", "abc", "bcd", "ß")
    assert [line.number for line in logs.lines] == [1, 3, 4, 5]


def test_bytes_that_only_look_like_an_anchor_without_their_eighth_bit_are_none(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(byte | 0x80 for byte in b"Cuda failure") + b"\n")
    from diag.hang.text import read_logs

    assert not read_logs([path], ["Cuda failure"]).lines


def test_of_each_process_the_first_and_the_last_are_kept_and_the_rest_is_counted(tmp_path: Path) -> None:
    lines = [nccl(rank, f"boom {step}") for step in range(1000) for rank in range(3)]
    logs = read(tmp_path, lines, "boom")
    share = HANG_READING.first_share
    for rank in range(3):
        steps = [int(line.text.split()[1]) for line in logs.lines if line.speaker.pid == 1000 + rank]
        assert steps == [*range(share), *range(1000 - share, 1000)]
    (gap,) = logs.gaps
    assert f"{3 * (1000 - 2 * share):,} with 'boom'" in gap[1]


def test_a_rare_anchor_is_kept_beside_a_frequent_one(tmp_path: Path) -> None:
    lines = [nccl(0, "boom rare" if step == 500 else "boom") for step in range(1000)]
    logs = read(tmp_path, lines, "boom", "rare")
    assert [line.number for line in logs.lines if "rare" in line.text] == [501]


def test_many_processes_share_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(HANG_READING), "most_lines", 400)
    lines = [nccl(rank, f"boom {step}") for step in range(40) for rank in range(100)]
    logs = read(tmp_path, lines, "boom")
    assert len(logs.lines) <= 400
    assert {line.speaker.pid for line in logs.lines} == {1000 + rank for rank in range(100)}
    assert {line.text for line in logs.lines} >= {"boom 0", "boom 39"}


def test_more_processes_than_can_be_kept_are_bounded_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(HANG_READING), "most_lines", 200)
    logs = read(tmp_path, [nccl(rank, "boom") for rank in range(5000)], "boom")
    assert len(logs.lines) <= 300
    assert any("left out" in reason for _, reason in logs.gaps)


def test_the_last_calls_are_kept_in_order(tmp_path: Path) -> None:
    lines = [nccl(0, init(0, 1))] + [nccl(0, call("AllReduce", step, "0x550000")) for step in range(1000)]
    (member,) = read(tmp_path, lines).communicators[0].members
    assert [one.op_count for one in member.calls] == list(range(1000 - HANG_READING.calls_of_each, 1000))


def test_calls_of_many_processes_are_fewer_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(HANG_READING), "most_calls", 640)
    lines = [nccl(rank, init(rank, 64)) for rank in range(64)]
    lines += [nccl(rank, call("AllReduce", step, f"0x55{rank:04x}")) for step in range(50) for rank in range(64)]
    (communicator,) = read(tmp_path, lines).communicators
    kept = {tuple(one.op_count for one in member.calls) for member in communicator.members}
    assert max(map(len, kept)) <= 16
    assert {calls[-1] for calls in kept} == {49}
