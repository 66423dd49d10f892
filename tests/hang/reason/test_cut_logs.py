"""Logs that the end of a paste cuts, devices that a driver cannot use, and ends that only a supervisor reports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diag.hang.api import triage
from diag.hang.classes.base import cut_off
from diag.hang.model import Triage

FRAMES = (
    "Traceback (most recent call last):",
    '  File "/srv/fit.py", line 88, in <module>',
    "    fit(options)",
    '  File "/srv/fit.py", line 41, in fit',
    "    net = net.to(where)",
)
BARRIER = (
    '  File "/py/torch/distributed/distributed_c10d.py", line 4159, in barrier',
    "    work = group.barrier(opts=o)",
)
RAY = (
    "WARNING worker.py:1986 -- A worker died or was killed while executing a task by an unexpected system error. "
    "Worker IP address: 10.3.0.8 Worker port: 10004 Worker PID: 771 Worker exit type: SYSTEM_ERROR Worker exit detail: "
    "End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer.\n"
)
NO_THREAD_DATA = "cannot allocate memory for thread-local data: ABORT"


def of(folder: Path, text: str) -> Triage:
    (folder / "job.log").write_text(text)
    return triage([str(folder)])


def printed_by(rank: int, lines: tuple[str, ...]) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in lines)


def test_a_traceback_that_is_cut_above_its_exception(tmp_path: Path) -> None:
    answer = of(tmp_path, printed_by(5, FRAMES))
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("rank_killed_exception", [5])
    assert "cuts off" in answer.headline
    assert answer.confidence <= 0.5


@pytest.mark.parametrize(
    "text",
    [
        printed_by(5, (*FRAMES, *BARRIER)),  # its exception would be about others
        "".join(f"{line}\n" for line in FRAMES),  # of nobody
        "[rank2]: The store on rank 0 failed to answer\n" + printed_by(5, FRAMES),
        "[rank5]:[W301 09:00:02.0 socket.cpp:464] [c10d] waitForInput: poll for socket SocketImpl(fd=7, addr=[a]:4, "
        "remote=[b]:29500) returned 0, likely a timeout\n" + printed_by(5, FRAMES),
        printed_by(5, FRAMES) + "step 12 | loss 2.31\nstep 13 | loss 2.30\n",  # a handler printed it
        printed_by(5, tuple(f"WARNING retrying: {line}" if not at else line for at, line in enumerate(FRAMES))),
    ],
)
def test_a_cut_traceback_accuses_nobody_where_it_may_be_about_something_else(tmp_path: Path, text: str) -> None:
    answer = of(tmp_path, text)
    assert not answer.culprits
    assert answer.fault_class != "rank_killed_exception"


HABANA = "[   72.9] habanalabs {}\n"


@pytest.mark.parametrize(
    ("line", "bus_id"),
    [
        (HABANA.format("0000:1a:00.0: Failed to initialize hl2. Device is NOT usable !"), "0000:1a:00.0"),
        (
            HABANA.format("0000:1b:00.0: Failed to initialize accel3. Device 0000:1b:00.0 is NOT usable!"),
            "0000:1b:00.0",
        ),
        (HABANA.format("0000:cd:00.0: Failed to ini"), "0000:cd:00.0"),
        (HABANA.format("hl2: Failed to communicate with Device CPU (CPU-CP timeout)"), ""),
        ("[ 9.1] amdgpu 0000:43:00.0: amdgpu: Fatal error during GPU init\n", "0000:43:00.0"),
        ("[ 9.1] amdgpu: probe of 0000:43:00.0 failed with error -22\n", "0000:43:00.0"),
        ("[ 9.1] amdgpu 0000:43:00.0: probe with driver amdgpu failed with error -110\n", "0000:43:00.0"),
    ],
)
def test_a_device_that_its_driver_cannot_use(tmp_path: Path, line: str, bus_id: str) -> None:
    answer = of(tmp_path, line)
    assert answer.fault_class == "gpu_hardware"
    assert {culprit.bus_id for culprit in answer.culprits} == {bus_id}


@pytest.mark.parametrize(
    "line",
    [
        HABANA.format("hl1: Successfully loaded firmware to device"),
        HABANA.format("0000:1a:00.0: Failed to set the clock, will be tried again"),
        "[ 9.1] amdgpu 0000:43:00.0: probe with driver amdgpu failed with error -517\n",  # tried again later
        "[ 9.1] amdgpu 0000:43:00.0: amdgpu: SMU is initialized successfully!\n",
        "[ 9.1] mlx5_core 0000:3b:00.0: Port module event: module 0, Cable plugged\n",
    ],
)
def test_lines_of_drivers_that_are_harmless(tmp_path: Path, line: str) -> None:
    assert of(tmp_path, line).fault_class == "undetermined"


def test_several_devices_that_a_driver_cannot_use(tmp_path: Path) -> None:
    text = "".join(
        HABANA.format(f"hl{number}: failed to initialize the H/W")
        + HABANA.format(f"0000:{bus}:00.0: Failed to initialize hl{number}. Device is NOT usable !")
        for number, bus in enumerate(("1a", "33"))
    )
    assert [culprit.bus_id for culprit in of(tmp_path, text).culprits] == ["0000:1a:00.0", "0000:33:00.0"]


def test_an_adapter_that_its_driver_cannot_start(tmp_path: Path) -> None:
    line = "[ 9.1] mlx5_core 0000:3b:00.0: probe_one:1694:(pid 12): mlx5_init_one failed with error code -110\n"
    assert of(tmp_path, line).fault_class == "ib_device_fatal"


@pytest.mark.parametrize("line", ["2026-01-02 20:44:{:02} 10.7.0.{} [{}] Terminated\n", "n{1}: Terminated\n"])
def test_processes_of_all_hosts_that_were_told_to_end_at_once(tmp_path: Path, line: str) -> None:
    answer = of(tmp_path, "".join(line.format(18, host, host) for host in range(1, 6)))
    assert (answer.fault_class, answer.culprits) == ("job_cancelled", ())


def test_ends_at_other_times_are_no_cancellation(tmp_path: Path) -> None:
    line = "2026-01-02 20:{:02}:18 10.7.0.{} [{}] Terminated\n"
    assert of(tmp_path, "".join(line.format(5 * host, host, host) for host in range(1, 6))).fault_class != (
        "job_cancelled"
    )
    assert of(tmp_path, "n1: Terminated\nn2: Connection closed\n").fault_class == "undetermined"


def test_processes_that_were_told_to_end_after_another_failed(tmp_path: Path) -> None:
    failed = "n4: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total\n"
    assert of(tmp_path, failed + "".join(f"n{host}: Terminated\n" for host in range(1, 6))).fault_class == "cuda_oom"


@pytest.mark.parametrize(
    "error",
    [NO_THREAD_DATA, "free(): invalid pointer", "malloc(): corrupted top size", "double free or corruption (out)"],
)
def test_a_process_whose_end_ray_reports_aborted_itself(tmp_path: Path, error: str) -> None:
    answer = of(tmp_path, f"{RAY}(Runner pid=771) {error}\n")
    assert answer.fault_class == "rank_killed_sigsegv"
    assert [culprit.host for culprit in answer.culprits] == ["10.3.0.8"]


def test_another_process_than_the_one_whose_end_ray_reports(tmp_path: Path) -> None:
    answer = of(tmp_path, f"{RAY}(Runner pid=772) {NO_THREAD_DATA}\n")
    assert "10.3.0.8" not in {culprit.host for culprit in answer.culprits}


def test_large_allocations_are_no_aborts(tmp_path: Path) -> None:
    line = "tcmalloc: large alloc 8589934592 bytes == 0x7f00 @  0x7f01\n<jemalloc>: Invalid conf pair: a:b\n"
    assert of(tmp_path, line).fault_class == "undetermined"


def test_an_abort_that_only_torchruns_first_line_tells_of(tmp_path: Path) -> None:
    first = (
        "torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: -6) local_rank: 2 (pid: 9) of binary"
    )
    answer = of(tmp_path, f"E0806 10:11:47.450000 139 {first}: /usr/bin/python\n")
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("rank_killed_exception", [2])
    assert answer.confidence < 0.5


def test_rays_daemon_that_ended_is_named_and_not_accused(tmp_path: Path) -> None:
    answer = of(
        tmp_path, "Raylet is terminated: ip=10.3.0.9, id=c28c. Termination is unexpected. Possible reasons: (1)\n"
    )
    assert (answer.fault_class, answer.culprits) == ("undetermined", ())
    assert "10.3.0.9" in answer.headline
    assert "raylet.out" in answer.next_steps[0]


def test_the_device_on_which_an_engine_finds_too_little_memory(tmp_path: Path) -> None:
    free = (
        "ValueError: Free memory on device {}(12.0/139.8 GiB) on startup is less than desired GPU memory utilization "
    )
    assert [culprit.gpu for culprit in of(tmp_path, free.format("cuda:3 ")).culprits] == [3]
    assert of(tmp_path, free.format("")).fault_class == "cuda_oom"


@pytest.mark.parametrize("reason", ["No route to host", "No route to", "Connection tim", "Network is unr"])
def test_the_reason_of_a_failed_connect_is_cut(tmp_path: Path, reason: str) -> None:
    line = f"`n1:7:9 [0] include/socket.h:409 NCCL WARN Net : Connect to 10.6.1.9<54263> failed : {reason}\n"
    answer = of(tmp_path, line)
    assert answer.fault_class == "net_connect_timeout"
    assert [culprit.peer for culprit in answer.culprits] == ["10.6.1.9<54263>"]


def test_a_reason_that_may_be_another_one(tmp_path: Path) -> None:
    line = "n1:7:9 [0] include/socket.h:409 NCCL WARN Net : Connect to 10.6.1.9<54263> failed : Connection\n"
    assert of(tmp_path, line).fault_class != "net_connect_timeout"


def test_words_that_are_cut() -> None:
    cut = re.compile(cut_off("No route to host", len("No r")))
    assert [bool(cut.search(text)) for text in ("No r", "No route to", "No route to host", "No", "No road")] == [
        *(True, True, False, False, False)
    ]


SPAWN = (
    "Traceback (most recent call last):\n"
    '  File "/env/torch/multiprocessing/spawn.py", line 119, in join\n    raise {0}\n'
    "{1}:{2}\n\n{3}Process 3 terminated with the following error:\n"
    "Traceback (most recent call last):\n"
    '  File "/env/torch/multiprocessing/spawn.py", line 20, in _wrap\n    fn(i, *args)\n'
    '  File "/srv/loop.py", line 7, in turn\n    one()\n'
)


@pytest.mark.parametrize("name", ["Exception", "torch.multiprocessing.spawn.ProcessRaisedException"])
@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize("mark", ["-- ", ""])
def test_what_spawn_raises_is_the_exception_of_the_process_that_it_names(
    tmp_path: Path, name: str, blank: str, mark: str
) -> None:
    """torch before 1.8 raises a plain Exception."""
    cut = SPAWN.format("Exception(msg)", name, blank, mark)
    answer = of(tmp_path, cut)
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("rank_killed_exception", [3])
    assert "which the end of the log cuts off" in answer.headline
    assert answer.confidence < 0.5
    answer = of(tmp_path, cut + "KeyError: 'tokens'\n")
    assert [culprit.rank for culprit in answer.culprits] == [3]
    assert "KeyError: 'tokens'" in answer.headline


def test_an_exception_without_a_message_of_the_process_itself_counts(tmp_path: Path) -> None:
    text = (
        'Traceback (most recent call last):\n  File "/srv/loop.py", line 7, in turn\n    raise Exception\nException\n'
    )
    answer = of(tmp_path, text + "5 more lines\n" * 5 + "-- Process 3 terminated with the following error:\n")
    assert "raised Exception" in answer.headline


PASTED = "RuntimeError: the sizes overflow\n"
TAGGED = (
    '[1,{0}]<stderr>:  File "/srv/loop.py", line 9, in main\n[1,{0}]<stderr>:    turn()\n'
    '[1,{0}]<stderr>:  File "/srv/loop.py", line 7, in turn\n[1,{0}]<stderr>:    one()\n'
)


def test_an_exception_that_was_pasted_above_its_traceback(tmp_path: Path) -> None:
    answer = of(tmp_path, PASTED + TAGGED.format(6))
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("rank_killed_exception", [6])
    assert PASTED.strip() in answer.headline


@pytest.mark.parametrize(
    "text",
    [
        PASTED + TAGGED.format(6) + TAGGED.format(4),  # whose is it?
        PASTED + TAGGED.format(6) + "[1,6]<stderr>:KeyError: 'tokens'\n",  # the traceback of another one
        PASTED + "step 1\n" * 7 + TAGGED.format(6),
    ],
)
def test_an_exception_above_the_traceback_of_another_one(tmp_path: Path, text: str) -> None:
    answer = of(tmp_path, text)
    assert PASTED.strip() not in answer.headline or not answer.culprits


TIMED_OUT = (
    "[E ProcessGroupNCCL.cpp:475] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, "
    "OpType={}, NumelIn={}, NumelOut={}, Timeout(ms)=600000) ran for 600{} milliseconds before timing out.\n"
)


def gathers(rank: int, seq: int = 40) -> str:
    return TIMED_OUT.format(rank, seq, "ALLGATHER", 64, 256, 100 + rank)


@pytest.mark.parametrize("kept", [90, 150])
def test_behind_the_end_of_a_cut_file_a_rank_may_have_reported_too(tmp_path: Path, kept: int) -> None:
    whole = of(tmp_path, gathers(0) + gathers(1) + gathers(3))
    assert (whole.fault_class, [culprit.rank for culprit in whole.culprits]) == ("missing_rank", [2])
    cut = of(tmp_path, gathers(0) + gathers(1) + gathers(3)[:kept])
    assert not cut.culprits


def test_a_rank_with_a_file_of_its_own_would_be_seen_beside_a_cut_one(tmp_path: Path) -> None:
    (tmp_path / "rank_2.log").write_text("[rank2]: step 39 | loss 2.31\n[rank2]: saving the checkpoint\n")
    answer = of(tmp_path, gathers(0) + gathers(1) + gathers(3)[:150])
    assert [culprit.rank for culprit in answer.culprits] == [2]


def test_who_waits_elsewhere_says_more_than_who_says_nothing(tmp_path: Path) -> None:
    reduces = TIMED_OUT.format(3, 42, "ALLREDUCE", 9, 9, 100)
    answer = of(tmp_path, gathers(0) + gathers(1) + reduces)
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("desync", [3])
    assert answer.confidence <= 0.5
    few = TIMED_OUT.format(0, 42, "ALLREDUCE", 9, 9, 100) + TIMED_OUT.format(1, 42, "ALLREDUCE", 9, 9, 100)
    answer = of(tmp_path, few + gathers(3))
    assert (answer.fault_class, answer.culprits) == ("desync", ()), "most wait in a call that need not be of all"


def test_the_box_that_rich_draws_around_a_traceback_is_not_wrapped(tmp_path: Path) -> None:
    code = ("/app/train.py:20 in <module>", "", "  18     x = 1", "\u2771 20     main()")
    text = (
        "\u256d" + " Traceback (most recent call last) ".center(78, "\u2500") + "\u256e",
        *(f"\u2502 {line:76} \u2502" for line in code),
        "\u2570" + "\u2500" * 78 + "\u256f",
        "KeyError: 'labels'",
    )
    answer = of(tmp_path, "\n".join(text) + "\n")
    assert answer.fault_class == "rank_killed_exception"
    assert "KeyError" in answer.headline
