"""What schedulers, operators, ports and kernels record of a job, without a word of the job itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.hang.api import triage
from diag.hang.model import Triage

KILLED, RAISED = "rank_killed_sigkill", "rank_killed_exception"


def _answer(tmp_path: Path, *lines: str) -> Triage:
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    return triage([str(tmp_path)])


_HEAD = "NAME             READY   STATUS             RESTARTS   AGE"


def _pods(*states: str) -> tuple[str, ...]:
    """What kubectl prints of pods train-0, train-1, ..."""
    return (_HEAD, *(f"train-{number:<10} 0/1     {state:<18} 0          5m" for number, state in enumerate(states)))


_MAIL = "Slurm Job_id=41 Name=train Ended, Run time 00:10:00, {0}, ExitCode 0"
_RAISED = ("Traceback (most recent call last):", '  File "train.py", line 3, in step', "ValueError: bad")


@pytest.mark.parametrize(
    "lines",
    [
        ("Job ID: 41", "State: COMPLETED (exit code 0)", "Nodes: 2"),
        ("   JobState=COMPLETED Reason=None Dependency=(null)", "   ExitCode=0:0"),
        (_MAIL.format("COMPLETED"),),
        _pods("Completed", "Completed"),
    ],
)
def test_a_job_that_its_scheduler_saw_end_with_0_is_well(tmp_path: Path, lines: tuple[str, ...]) -> None:
    assert _answer(tmp_path, *lines).fault_class == "healthy"
    # The script of a job ends with 0 as well where it ignores what its program raised.
    assert _answer(tmp_path, *_RAISED, *lines).fault_class != "healthy"


@pytest.mark.parametrize(
    ("lines", "fault_class", "host"),
    [
        (("State: RUNNING (exit code 0)",), "undetermined", ""),
        (("State: FAILED (exit code 1)",), "undetermined", ""),
        ((_MAIL.format("FAILED"),), "undetermined", ""),
        (("State: COMPLETED (exit code 0)", "State: FAILED (exit code 1)"), "undetermined", ""),
        (_pods("Completed", "Running"), "undetermined", ""),
        (_pods("Completed", "ImagePullBackOff"), "undetermined", ""),
        (_pods("CrashLoopBackOff"), RAISED, "train-0"),
        (_pods("Error"), RAISED, "train-0"),
        (_pods("OOMKilled"), KILLED, "train-0"),
        (_pods("Evicted"), "job_cancelled", ""),
        (('level=info msg="Pod: ns.train-worker-2 exited with code 1" job=ns.train',), RAISED, "train-worker-2"),
        (("INFO[0289] Pod: ns.train-worker-2 exited with code 1  job=ns.train uid=4a",), RAISED, "train-worker-2"),
        (("INFO[0289] Pod: ns.train-worker-2 exited with code 137  job=ns.train uid=4a",), KILLED, "train-worker-2"),
        (("INFO[0289] Pod: ns.train-worker-2 exited with code 0  job=ns.train uid=4a",), "undetermined", ""),
    ],
)  # fmt: skip
def test_states_of_jobs_and_pods(tmp_path: Path, lines: tuple[str, ...], fault_class: str, host: str) -> None:
    answer = _answer(tmp_path, *lines)
    assert answer.fault_class == fault_class
    assert [culprit.host for culprit in answer.culprits if culprit.host] == [host] * bool(host)


_KILLED = (
    "oom-kill:constraint={0},nodemask=(null),cpuset=a8,mems_allowed=0-3,oom_memcg={1},task_memcg={1}/a,task={2},pid=59,"
    "uid=0"
)


@pytest.mark.parametrize(
    ("line", "fault_class"),
    [
        (_KILLED.format("CONSTRAINT_MEMCG", "/kubepods/burstable/pod1", "server"), KILLED),
        (_KILLED.format("CONSTRAINT_MEMCG", "/slurm/uid_0/job_41", "lmp_mpi"), KILLED),
        ("Task in /slurm/uid_0/job_41/step_0 killed as a result of limit of /slurm/uid_0/job_41", KILLED),
        (_KILLED.format("CONSTRAINT_MEMCG", "/system.slice/cron.service", "backup"), "undetermined"),
        (_KILLED.format("CONSTRAINT_NONE", "/", "mysqld"), "undetermined"),
    ],
)
def test_a_limit_of_a_job_or_a_container_is_of_the_job(tmp_path: Path, line: str, fault_class: str) -> None:
    assert _answer(tmp_path, f"[44930.378129] {line}").fault_class == fault_class


@pytest.mark.parametrize(
    "line",
    [
        "node_manager.cc:2966: System memory low at node with IP 10.0.0.3. Used memory (54.90GB) / total capacity "
        "(57.60GB) (0.95) exceeds threshold 0.95, killing latest task with name f and task ID 1 to avoid running out",
        "Memory on the node (IP: 10.0.0.3, ID: 8b) where the task was running was 54.90GB / 57.60GB (0.95), which "
        "exceeds the memory usage threshold of 0.95.",
    ],
)
def test_rays_memory_monitor_names_the_node_in_either_wording(tmp_path: Path, line: str) -> None:
    answer = _answer(tmp_path, f"(raylet) {line}")
    assert (answer.fault_class, [culprit.host for culprit in answer.culprits]) == (KILLED, ["10.0.0.3"])


_DOWN = "link mlx5_7/1 subnet_prefix fe80:0000:0000:0000 lid 34 sm_lid 1 lmc 0 state {0} physical_state {1}"


@pytest.mark.parametrize("line", [_DOWN.format("DOWN", "POLLING"), "mlx5_7 port 1 ==> ib7 (Down)"])
def test_a_port_that_is_down_is_named_where_nothing_else_is_known(tmp_path: Path, line: str) -> None:
    answer = _answer(tmp_path, _DOWN.replace("mlx5_7", "mlx5_0").format("ACTIVE", "LINK_UP"), line)
    assert (answer.fault_class, [culprit.nic for culprit in answer.culprits]) == ("ib_link_down", ["mlx5_7"])
    killed = "srun: error: n3: task 3: Killed"
    assert _answer(tmp_path, line, killed).fault_class == KILLED  # a port that nobody uses is down as well


def test_a_port_that_is_up_is_no_fault(tmp_path: Path) -> None:
    assert _answer(tmp_path, _DOWN.format("ACTIVE", "LINK_UP")).fault_class == "undetermined"


_GLOG = "F0719 10:40:45.100778 266 a.cpp:397]"
_TARGET = (
    'Connect failed: {{"created":"@15","description":"Failed to connect to remote host: OS Error","errno":1,"file":'
    '"a.cc","file_line":198,"os_error":"{0}","syscall":"connect","target_address":"ipv4:10.0.1.4:14417"}}'
)


@pytest.mark.parametrize(
    ("line", "fault_class"),
    [
        (_TARGET.format("Connection refused"), "net_connect_refused"),
        (_TARGET.format("No route to host"), "net_connect_timeout"),
        (
            f"{_GLOG} Check failed: error >= 0 ERROR connecting to 10.0.1.4: Connection refused [111]",
            "net_connect_refused",
        ),
        (f"{_GLOG} Fail to connect to 10.0.1.4:8000: Connection refused [1014]", "net_connect_refused"),
    ],
)
def test_who_refuses_or_does_not_answer_is_in_the_programs_line(tmp_path: Path, line: str, fault_class: str) -> None:
    answer = _answer(tmp_path, line)
    assert (answer.fault_class, [culprit.peer for culprit in answer.culprits]) == (fault_class, ["10.0.1.4"])


def test_the_task_that_srun_saw_exit_is_before_the_end_that_srun_forced(tmp_path: Path) -> None:
    rest = (
        "srun: Terminating job step 41.0",
        "srun: error: n8: tasks 0-2: Terminated",
        "srun: Force Terminated job step 41.0",
    )
    for code in (1, 255):
        answer = _answer(tmp_path, f"srun: error: n8: task 3: Exited with exit code {code}", *rest)
        assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == (RAISED, [3])
    assert _answer(tmp_path, *rest).fault_class == "job_cancelled"


_BLOCK = ("Root Cause (first observed failure):", "[0]:", "  time      : 2024-07-26_10:59:45", "  host      : n5",
          "  rank      : {0} (local_rank: 2)", "  exitcode  : -6 (pid: 214)", "  error_file: <N/A>")  # fmt: skip


def test_an_abort_on_one_of_several_hosts_accuses_nobody(tmp_path: Path) -> None:
    """A launcher sees the ranks of its host alone: a watchdog aborts a rank that waited for another host's."""
    exited = "srun: error: n5: task 1: Exited with exit code 1"
    answer = _answer(tmp_path, *(line.format(10) for line in _BLOCK), exited)
    assert (answer.fault_class, answer.culprits) == ("undetermined", ())
    assert [c.rank for c in _answer(tmp_path, *(line.format(2) for line in _BLOCK)).culprits] == [2]


_TIMED_OUT = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:563] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut={4}, Timeout(ms)=600000) ran for 600010 milliseconds "
    "before timing out."
)
_GROUP = (
    "[rank0]:[E ProcessGroupNCCL.cpp:1537] [PG {0} Rank 0] Timeout at NCCL work: 315, last enqueued NCCL work: 315, "
    "last completed NCCL work: 314."
)


@pytest.mark.parametrize(
    ("group", "elements", "fault_class"), [("0", 16, "desync"), ("0", 64, "undetermined"), ("3", 16, "undetermined")]
)
def test_two_ranks_in_two_calls_of_both_are_out_of_step(
    tmp_path: Path, group: str, elements: int, fault_class: str
) -> None:
    """A call of eight ranks, or of another group, does not show that these two are to meet in it."""
    answer = _answer(
        tmp_path,
        _TIMED_OUT.format(1, 313, "_ALLGATHER_BASE", 8, elements),
        _TIMED_OUT.format(0, 315, "ALLREDUCE", 1, 1),
        _GROUP.format(group),
    )
    assert answer.fault_class == fault_class
    assert not answer.culprits


@pytest.mark.parametrize(
    ("address", "fault_class"), [("172.17.0.1", "net_wrong_interface"), ("172.17.0.9", "net_connect_timeout")]
)
def test_containers_of_a_host_reach_each_other(tmp_path: Path, address: str, fault_class: str) -> None:
    """Docker's bridge has its address on every host; those behind it are containers'."""
    line = f"The client socket has timed out after 600000ms while trying to connect to ({address}, 50437)."
    assert _answer(tmp_path, f"[E616 02:08:15.9 socket.cpp:1023] [c10d] {line}").fault_class == fault_class


@pytest.mark.parametrize(
    ("family", "fault_class"), [(33621, "net_failure"), (46, "net_failure"), (17, "net_no_interface")]
)
def test_a_family_that_no_address_has_is_no_address(tmp_path: Path, family: int, fault_class: str) -> None:
    line = f"Net : connecting to address  with family {family} is neither AF_INET(2) nor AF_INET6(10)"
    answer = _answer(tmp_path, f"n4:639790:639878 [4] misc/socket.cc:397 NCCL WARN {line}")
    assert answer.fault_class == fault_class
    assert bool(answer.culprits) == (fault_class == "net_no_interface")
