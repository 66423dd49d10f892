"""What programs print, in the words of their own sources: launchers, engines, shells, kernels, other backends."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.hang.api import triage
from diag.hang.model import Triage
from diag.words.formatting import NBSP
from tests.hang.reason.builders import ranks

RAISED = "rank_killed_exception"
TRACEBACK = ("Traceback (most recent call last):", '  File "/srv/loop.py", line 7, in turn', "KeyError: 'tokens'")
GONE = (
    "[rank0]:[W301 09:00:02.000000000 ProcessGroupNCCL.cpp:1771] [PG ID 0 PG GUID 0 Rank 0] Failed to check the "
    '"should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe\n'
)
BLOCK = "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are"
BAR = "[default{}]:Grouping documents:  12%|#  | 900/7500 [01:{}<{}, 10.1 examples/s]\n"
LATE = (
    "[default{}]:[E ProcessGroupNCCL.cpp:475] [Rank {}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=2, OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600400 "
    "milliseconds before timing out.\n"
)
CALL = (
    "node-2:{0}:{0} [{1}] NCCL INFO AllGather: opCount 1f sendbuff 0x7f00 recvbuff 0x7f00 count {2} datatype 9 op 0 "
    "root 0 comm 0x7a0{1} [nranks={3}] stream 0x1\n"
)


def of(folder: Path, text: str) -> Triage:
    (folder / "job.log").write_text(text)
    return triage([str(folder)])


@pytest.mark.parametrize(
    ("prefix", "named"),
    [
        ("(Worker_TP2 pid=811) ERROR 03-01 09:00:00 [multiproc_executor.py:640] ", [2]),
        ("(Worker_PP1_TP2 pid=811) ERROR 03-01 09:00:00 [multiproc_executor.py:640] ", ["worker PP1 TP2"]),
        ("(EngineCore_DP0 pid=811) ERROR 03-01 09:00:00 [core.py:640] ", [0]),
        ("[2026-03-01 09:00:00 TP3] ", [3]),
        ("[2026-03-01 09:00:00 DP1 TP3] ", ["worker DP1 TP3"]),  # two axes: no rank
    ],
)
def test_an_exception_behind_a_prefix(tmp_path: Path, prefix: str, named: list[int | str]) -> None:
    answer = of(tmp_path, "".join(f"{prefix}{line}\n" for line in TRACEBACK) + GONE)
    assert answer.fault_class == "rank_killed_exception"
    assert [culprit.peer if culprit.rank is None else culprit.rank for culprit in answer.culprits] == named
    assert "KeyError: 'tokens'" in answer.headline


@pytest.mark.parametrize("prefix", ["2026-03-01 09:00:00.12{} | CRITICAL | loop:turn:7 - ", "ERR!! step 1{} >> "])
def test_an_exception_behind_a_prefix_of_a_program_that_is_not_known(tmp_path: Path, prefix: str) -> None:
    answer = of(tmp_path, "".join(f"{prefix.format(at)}{line}\n" for at, line in enumerate(TRACEBACK)))
    assert answer.fault_class == "rank_killed_exception"
    assert "KeyError: 'tokens'" in answer.headline


def test_a_prefix_before_the_first_line_of_a_message_only(tmp_path: Path) -> None:
    first, *others = TRACEBACK
    text = "\n".join((f"[2026-03-01 09:00:00 TP1] The scheduler raised: {first}", *others, "", ""))
    assert ranks(of(tmp_path, text + GONE)) == [1]
    between = "\n".join((f"[2026-03-01 09:00:00 TP1] {first}", "step 3 of another process", *others, ""))
    assert ranks(of(tmp_path, between)) != [1]


def test_an_engine_that_waits(tmp_path: Path) -> None:
    lines = (f"(EngineCore pid=41) INFO 03-01 09:0{at}:00 [shm_broadcast.py:705] {BLOCK}\n" for at in (1, 2, 5))
    answer = of(tmp_path, "".join(lines))
    assert answer.fault_class == "undetermined"
    assert "waits for a worker" in answer.headline
    assert "4\N{NO-BREAK SPACE}minutes" in answer.headline
    assert answer.evidence
    assert "py-spy" in answer.next_steps[0]
    assert not any("NCCL" in step for step in answer.next_steps)


def test_a_device_of_another_backend_that_waited(tmp_path: Path) -> None:
    said = (
        "RuntimeError: ACL stream synchronize failed, error code:507048\n"
        "EI0002: 2026-03-01-09:00:00 The wait execution of the Notify register times out. Reason: hccl timeout\n"
    )
    answer = of(tmp_path, "\n".join(TRACEBACK[:2]) + f"\n{said}")
    assert answer.fault_class == "undetermined"
    assert "waited" in answer.headline
    assert "plog" in answer.next_steps[0]
    assert not any("NCCL_" in step for step in answer.next_steps)


@pytest.mark.parametrize("limit", ["timeout:30min(default)", "timeout=30min(default)"])
def test_the_limit_of_a_collective_of_hccl_is_in_the_headline(tmp_path: Path, limit: str) -> None:
    """Two versions of the runtime write it differently."""
    said = f"device(chipId:2, dieId:0), hccl fftsplus task timeout occurred, stream_id:5, stuck notify num:1, {limit}."
    answer = of(tmp_path, "\n".join(TRACEBACK[:2]) + f"\nEI9999: The error from {said}\n")
    assert answer.headline.startswith("A device (2) waited 30min for other devices in a collective of HCCL.")


def test_tasks_that_a_coordinator_misses(tmp_path: Path) -> None:
    job = "/job:jax_worker/replica:0/task:{}"
    error = "jaxlib.xla_extension.XlaRuntimeError: {}\n"
    barrier = error.format("DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out tasks:")
    begin = "\n".join((*TRACEBACK[:2], ""))
    answer = of(tmp_path, f"{begin}{barrier}{job.format(6)}\n{job.format(4)}\n")
    assert (answer.fault_class, ranks(answer)) == ("missing_rank", [4, 6])
    answer = of(tmp_path, error.format(f"UNAVAILABLE: Task {job.format(5)} heartbeat timeout. This indicates that"))
    assert (answer.fault_class, ranks(answer)) == ("missing_rank", [5])
    answer = of(tmp_path, error.format("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 268435456 bytes."))
    assert answer.fault_class == "cuda_oom"
    assert "268 MB" in answer.headline.replace(NBSP, " ")


@pytest.mark.parametrize(
    "end", ["on node big-7 exited on\nsignal 9 (Killed).", "on node\nbig-7 exited on signal 9 (K)."]
)
def test_a_help_text_that_is_wrapped(tmp_path: Path, end: str) -> None:
    answer = of(tmp_path, f"prterun noticed that process rank 11 with PID 90 {end}\n")
    assert (answer.fault_class, ranks(answer)) == ("rank_killed_sigkill", [11])
    assert answer.culprits[0].host == "big-7"


def test_a_daemon_that_mpirun_lost(tmp_path: Path) -> None:
    text = (
        "{} has lost communication with a remote daemon.\n\n  HNP daemon   : {} on node head\n"
        "  Remote daemon: {} on node big-7\n"
    )
    for name, daemon in (("ORTE", "[[3,0],0]"), ("PRTE", "[prterun-head-8@0,3]")):
        answer = of(tmp_path, text.format(name, daemon, daemon))
        assert (answer.fault_class, answer.culprits[0].host) == ("net_connection_lost", "big-7")
        answer = of(tmp_path, text.format(name, daemon, daemon) + "command terminated with exit code 137\n")
        assert (answer.fault_class, answer.culprits[0].host) == ("rank_killed_sigkill", "big-7")


@pytest.mark.parametrize(
    "text",
    [
        "MPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD\nwith errorcode 3.\n",
        "Abort(3) on node 5 (rank 5 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 3) - process 5\n",
    ],
)
def test_a_rank_that_aborts_all(tmp_path: Path, text: str) -> None:
    answer = of(tmp_path, text)
    assert (answer.fault_class, ranks(answer)) == ("rank_killed_exception", [5])
    assert "MPI_Abort with 3" in answer.headline


def test_the_first_that_ended_is_named_although_it_is_not_sure(tmp_path: Path) -> None:
    answer = of(tmp_path, "   Process name: [prterun-head-8@1,6]\n   Exit code:    2\n")
    assert answer.confidence < 0.5
    assert answer.headline.startswith("Rank 6 ended with exit code 2")


def test_a_launcher_that_names_no_rank(tmp_path: Path) -> None:
    command = "['/usr/bin/python', '-u', 'go.py', '--local_rank=6']"
    answer = of(tmp_path, f"[2026-03-01 09:00:00,1] [ERROR] [launch.py:3:x] {command} exits with return code = 3\n")
    assert not ranks(answer)
    assert "exit code 3" in answer.headline
    assert answer.evidence


def test_a_rank_that_aborted(tmp_path: Path) -> None:
    block = "Root Cause (first observed failure):\n[0]:\n  host      : big-7\n  rank      : 6 (local_rank: 6)\n"
    answer = of(tmp_path, f"{block}  exitcode  : -6 (pid: 70)\n  error_file: <N/A>\n")
    assert ranks(answer) == [6]
    assert "SIGABRT" in answer.headline


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("go.sh: line 4: 811 Aborted                 (core dumped) python go.py", "undetermined"),
        ("zsh: abort (core dumped)  python go.py", "undetermined"),
        ("zsh: killed     python go.py", "rank_killed_sigkill"),
        ("./go.sh: line 31: 811 Killed ./solve --steps 9", "rank_killed_sigkill"),
        ("./go.sh: Zeile 31: 811 Getötet                 ./solve --steps 9", "rank_killed_sigkill"),
        ("./go.sh[31]: 811: Killed", "rank_killed_sigkill"),
        ("[1]+  Killed                  ./solve --steps 9", "rank_killed_sigkill"),
        ("[2]  - 811 killed     ./solve --steps 9", "rank_killed_sigkill"),
        ("[1]+  Segmentation fault      (core dumped) ./solve --steps 9", "rank_killed_sigsegv"),
        ("Killed4, iteration 310/9000, loss 2.2", "rank_killed_sigkill"),
        ("Killed 3 of 4 stale workers at step 310/9000", "undetermined"),
        ("Killed/alive: 3/4", "undetermined"),
        ("zsh: segmentation fault (core dumped)  python go.py", "rank_killed_sigsegv"),
        ("fish: Job 1, 'python go.py' terminated by signal SIGKILL (Forced quit)", "rank_killed_sigkill"),
        ("fish: Job 1, 'python go.py' terminated by signal SIGABRT (Abort)", "undetermined"),
    ],
)
def test_words_of_shells_for_signals(tmp_path: Path, text: str, name: str) -> None:
    answer = of(tmp_path, f"{text}\n")
    assert answer.fault_class == name
    assert answer.evidence[0].text == text
    assert "bort" not in text or "aborted" in answer.headline


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("killed, status=9/KILL", "rank_killed_sigkill"),
        ("dumped, status=11/SEGV", "rank_killed_sigsegv"),
        ("exited, status=1/FAILURE", "rank_killed_exception"),
        ("killed, status=15/TERM", "undetermined"),
    ],
)
def test_how_the_process_of_a_service_ended(tmp_path: Path, how: str, name: str) -> None:
    answer = of(tmp_path, f"Nov 20 10:00:00 n7 systemd[1]: fit.service: Main process exited, code={how}\n")
    assert answer.fault_class == name
    assert [culprit.host for culprit in answer.culprits] == ["n7"] * (name != "undetermined")


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=4, emitted seq=6", ""),
        ("amdgpu 0000:83:00.0: amdgpu: GPU reset begin!", "0000:83:00.0"),
        ("amdgpu 0000:83:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block", "0000:83:00.0"),
        ("amdgpu 0000:83:00.0: GPU reset", "0000:83:00.0"),
        ("[drm:amdgpu_device_gpu_recover [amdgpu]] *ERROR* VRAM is lost!", ""),
        ("[drm:gfx_v9_0_ring_test_ring [amdgpu]] *ERROR* amdgpu: ring 2 test failed (scratch(0xC040)=0xCAFE)", ""),
    ],
)
def test_the_kernel_about_a_gpu_of_amd(tmp_path: Path, text: str, gpu: str) -> None:
    answer = of(tmp_path, f"Mar  1 09:00:00 big-7 kernel: {text}\n")
    assert (answer.fault_class, answer.culprits[0].host) == ("gpu_hardware", "big-7")
    assert answer.culprits[0].bus_id == gpu


def test_the_other_gpus_of_a_hive_are_only_reset_with_it(tmp_path: Path) -> None:
    line = "[7691.2] amdgpu 0000:{}:00.0: amdgpu: {}\n"
    text = "".join(line.format(at, "MODE1 reset") for at in ("1b", "3d", "4e"))
    answer = of(tmp_path, line.format("dd", "GPU reset begin!") + text + line.format("1b", "GPU reset(2) succeeded!"))
    assert [culprit.bus_id for culprit in answer.culprits] == ["0000:dd:00.0"]


def test_workers_and_clients_of_torch(tmp_path: Path) -> None:
    bus = of(tmp_path, "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shm.\n")
    assert bus.fault_class == "rank_killed_sigbus"
    came = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. {}/4 clients joined.\n"
    late = of(tmp_path, came.format(3))
    assert (late.fault_class, ranks(late)) == ("missing_rank", [])
    assert "3 of 4" in late.headline


def test_a_bar_that_would_outlast_the_time_out(tmp_path: Path) -> None:
    answer = of(tmp_path, BAR.format(1, "30", "12:40") + LATE.format(3, 3))
    assert (answer.fault_class, ranks(answer)) == ("slow_rank_preprocess", [1])
    assert answer.confidence <= 0.7
    second = of(tmp_path, BAR.format(1, "30", "12:40") + LATE.format(3, 11))  # ranks 8 to 15 are on this host
    assert ranks(second) == [9]
    assert of(tmp_path, BAR.format(1, "30", "01:40") + LATE.format(3, 3)).fault_class == "undetermined"


@pytest.mark.parametrize(
    ("label", "fault_class"),
    [
        (
            "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): ",
            "slow_rank_eval",
        ),
        ("               Class     Images     Labels          P          R     mAP@.5 mAP@.5:.95: ", "slow_rank_eval"),
        ("              classes   top1_acc   top5_acc: ", "slow_rank_eval"),
        ("Validation DataLoader 0: ", "slow_rank_eval"),
        ("Sanity Checking DataLoader 0: ", "slow_rank_eval"),
        ("val epoch 3: ", "slow_rank_eval"),
        ("Caching images: ", "slow_rank_preprocess"),
        ("interval cache: ", "slow_rank_preprocess"),
    ],
)
def test_what_a_bar_shows_that_ran_as_long_as_the_others_waited(tmp_path: Path, label: str, fault_class: str) -> None:
    bar = f"{label} 45%|####     | 806/1809 [10:07<12:29,  1.34it/s]\n"
    assert of(tmp_path, LATE.format(1, 1) + bar).fault_class == fault_class


@pytest.mark.parametrize(
    "words", ["loss train: {}", "loss_val: {}", "loss/train {}", "loss: {}", "losses {}", "loss validation = {}"]
)
def test_steps_that_go_on_in_the_words_of_trainers(tmp_path: Path, words: str) -> None:
    steps = "".join(f"Epoch 0 | iter {at} | {words.format(3.5 - at / 9)}\n" for at in range(4))
    answer = of(tmp_path, steps)
    assert "Work goes on up to the last line" in answer.headline
    assert answer.fault_class == "undetermined", "a log of a hang ends just so"
    answer = of(tmp_path, f"{steps}Epoch 0 | iter 4 | {words.format('nan')}\n")
    assert "Work goes on" not in answer.headline


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("python run.py $(echo ${ARGS}) --cuda-id 0 --rank 2", 2),
        ("python run.py --rank=2 --world-size 4", 2),
        ("RANK=2 LOCAL_RANK=0 python run.py", 2),
        ("python run.py --local_rank=1 --cfg a.yaml", 1),
        ("torchrun --nnodes 4 --nproc_per_node 1 --node_rank 3 run.py", 3),
        ("torchrun --nnodes 4 --nproc_per_node 8 --node_rank 3 run.py", None),
        ("python run.py --rank $i --world-size 4", None),
        ("python finetune.py --rank=32", None),  # of a matrix
        ("accelerate launch train_dreambooth.py --rank=32 --gpu_ids 0,1", None),
        ("python train_lora.py --rank 32 --world_size 4", None),
        ("python run.py --lora_rank 8 --rank-order 1", None),
    ],
)
def test_a_shell_quotes_the_command_of_the_rank_that_died(tmp_path: Path, command: str, named: int | None) -> None:
    answer = of(tmp_path, f"./go.sh: line 30: 40291 Bus error               (core dumped) {command}\n")
    assert answer.fault_class == "rank_killed_sigbus"
    assert ranks(answer) == [named]


def test_calls_of_processes_without_initialisation(tmp_path: Path) -> None:
    three = "".join(CALL.format(70 + gpu, gpu, 8 if gpu == 1 else 16, 3) for gpu in range(3))
    answer = of(tmp_path, three)
    assert (answer.fault_class, [culprit.gpu for culprit in answer.culprits]) == ("mismatch_shape", [1])
    assert "8 elements of type 9, the others 16" in answer.headline
    assert answer.confidence <= 0.5
    assert of(tmp_path, three.replace("nranks=3", "nranks=8")).fault_class == "undetermined"


def test_a_queue_pair_that_is_not_connected(tmp_path: Path) -> None:
    assert of(tmp_path, "Failed to modify QP to RTR: No route to host\n").fault_class == "ib_unreachable_rail"


@pytest.mark.parametrize("reason", ["(errno: 98 - Address already in use).", "useIpv6: 0, code: -98, name: EADDRINUSE"])
def test_the_port_is_named(tmp_path: Path, reason: str) -> None:
    said = "The server socket has failed to listen on any local network address. "
    text = f"{said}{reason}, message: [::]:29433 (errno: 98 - Address already in use)\n"
    answer = of(tmp_path, text)
    assert answer.fault_class == "net_bind_failed"
    assert "29433" in answer.headline
    assert "29433" in answer.next_steps[0]


def test_a_run_whose_last_step_is_its_last_ends_with_what_it_prints_then(tmp_path: Path) -> None:
    """It may stand still as it saves or evaluates."""
    step = "[2026-03-01 09:00:0{0}] iteration  {0}/ {1} | elapsed (ms):  95.6 | lm loss: 5.54 | grad norm: 0.7\n"
    last = step.format(3, 4) + step.format(4, 4)
    assert of(tmp_path, last).fault_class == "undetermined"
    ended = of(tmp_path, f"{last}[smoke] PASSED: 4 steps completed.\n")
    assert ended.fault_class == "healthy"
    assert "nccl-tests" not in ended.headline
    assert of(tmp_path, step.format(3, 9) + step.format(4, 9)).fault_class == "undetermined"


@pytest.mark.parametrize(
    "text",
    [
        "rank 0: NCCL allreduce test passed\nrank 1: NCCL allreduce test passed\nLoading checkpoint shards: 0%\n",
        "Connectivity test passed\nn1:10:20 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n",
        "{'train_runtime': 119.8, 'train_loss': 1.23}\n100%|###| 9/9 [01:54<00:00, 12.76s/it]\n",
        "`Trainer.fit` stopped: `max_epochs=1` reached.\n",
        "Training complete!\ndestroying process group...\n",
        "stopping_early: wallclock_cap train_time:599279ms step:9195/20000\npeak memory allocated: 10119 MiB\n",
        "3 epochs completed in 0.021 hours.\nOptimizer stripped from runs/exp/weights/last.pt, 14.8MB\n",
        "3 epochs completed in 0.021 hours.\nResults saved to runs/exp\nDestroying process group... \n",
        "1 failed, 4 passed in 3.21s\n",
        "tests/test_a.py 4 passed\n",
        "final_eval val_loss:2.09\n",
        "Warm-up training done, starting the evaluation\n",
        "Stage 1 training completed.\nEpoch 0:   0%|          | 0/100 [00:00<?, ?it/s]\n",
        "# nThread 1\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.17\n# nThread 1 nGpus 8\n",
        " iteration 2/ 2 | consumed samples: 16 | lm loss: 5.54E+00 |\nsaving checkpoint at iteration 2\n",
        "[rank0]: step 9 loss 1\n[rank0]: Training completed\n[rank1]: step 9 loss 1\n[rank1]: Training completed\n"
        "[rank2]: step 9 loss 1\n",
        'Training finished\nTraceback (most recent call last):\n  File "/w/a.py", line 1, in main\nKeyError: 3\nbye\n',
    ],
)
def test_no_end_but_a_part_that_is_done(text: str, tmp_path: Path) -> None:
    """A test before the training, its last step, one of several parts: what comes then may hang."""
    assert of(tmp_path, text).fault_class in ("undetermined", "rank_killed_exception")


@pytest.mark.parametrize(
    "text",
    [
        "stopping_early: wallclock_cap step:9195/20000\nSerialized model: 67 bytes\nfinal_int8_exact val_loss:2.096\n",
        "3 epochs completed in 0.021 hours.\nOptimizer stripped from runs/exp/best.pt\nResults saved to runs/exp\n",
        "{'train_runtime': 119.8, 'train_loss': 1.23}\n***** train metrics *****\n  train_loss = 1.2\n",
        "test_ddp.py ....    [100%]\n====== 4 passed, 2 warnings in 3.21s ======\n",
        "4 passed in 63.21s (0:01:03)\n",
    ],
)
def test_results_behind_the_last_step_end_a_job(text: str, tmp_path: Path) -> None:
    assert of(tmp_path, text).fault_class == "healthy"
    assert of(tmp_path, text + "epoch 1 step 7 loss: 0.3\n").fault_class != "healthy"


def test_a_group_that_is_destroyed_says_below_an_exception_whose_it_is(tmp_path: Path) -> None:
    what = (
        "THCudaCheck FAIL file=a.cpp line=280 error=710 : device-side assert triggered\n"
        "terminate called after throwing an instance of 'c10::Error'\n"
        "  what():  NCCL error in: NCCLUtils.hpp:181, unhandled cuda error, NCCL version 21.0.3\n"
    )
    below = "Process Group destroyed on rank {}\n"
    assert ranks(of(tmp_path, what + below.format(5))) == [5]
    two = of(tmp_path, what + below.format(5) + below.format(6))
    assert [culprit for culprit in two.culprits if culprit.rank is not None] == []


def test_an_open_answer_quotes_the_last_telling_line(tmp_path: Path) -> None:
    answer = of(tmp_path, "[rank3]: the shuffle is stuck since 40 s\n[rank3]: see you\n")
    assert answer.fault_class == "undetermined"
    assert 'rank 3: "the shuffle is stuck since 40 s".' in answer.headline
    assert len(answer.next_steps) <= 3
    last = of(tmp_path, "[rank3]: see you\n[rank3]: the shuffle is stuck since 40 s\n")
    assert "nothing was printed after it" in last.headline


STACK = (
    'Thread 0x7f00 (most recent call first):\n  File "/srv/{}", line 7 in {}\n  File "/srv/loop.py", line 40 in turn\n'
)


def test_stacks_that_are_all_in_one_call_accuse_nobody(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank{rank}.txt").write_text(STACK.format("reader.py", "read_chunk"))
    answer = triage([str(tmp_path)])
    assert (answer.fault_class, answer.culprits) == ("undetermined", ())
    assert "all in read_chunk" in answer.headline
    assert not any("py-spy" in step for step in answer.next_steps), "the stacks are there"
    (tmp_path / "rank2.txt").write_text(STACK.format("writer.py", "flush"))
    assert "all in" not in triage([str(tmp_path)]).headline


def test_a_test_of_bandwidth_is_no_training(tmp_path: Path) -> None:
    row = "    33554432       8388608     float     sum      -1    900.1   37.28   65.24      0\n"
    answer = of(tmp_path, f"{row}# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 65.2\n")
    assert "no training" in answer.headline
    assert "65.2 GB/s" in answer.headline
    assert "no training" not in of(tmp_path, "training finished\n").headline


@pytest.mark.parametrize(
    ("said", "headline", "step"),
    [
        ("runtime result = 507046.[FUNC:ReportCallError]", "A device waited too long for a task", "plog"),
        ("EI0006: [PID: 9] Getting socket times out. The timeout interval is 120 s.", "within 120 s (HCCL)", "plog"),
        (
            "EJ0001: Failed to initialize the HCCP process. Reason: Maybe the last training process is running.",
            "perhaps a process of the training before still runs",
            "npu-smi info",
        ),
        ("[2026-03-01 09:00:00 TP2] Watchdog timeout (self.watchdog_timeout=300)", "no progress for 300 s", "py-spy"),
        ("Exception: WorkerProc initialization failed due to an exception", "A worker raised", "from its beginning"),
        ("sagemaker-training-toolkit INFO     Orted process exited", "only ran the daemon of mpirun", "first host"),
    ],
)
def test_programs_that_say_in_what_state_they_are(tmp_path: Path, said: str, headline: str, step: str) -> None:
    answer = of(tmp_path, f"{said}\n")
    assert answer.fault_class == "undetermined"
    assert headline in answer.headline
    assert step in answer.next_steps[0]


def test_a_device_that_waits_has_not_raised(tmp_path: Path) -> None:
    said = "RuntimeError: npuSynchronizeDevice NPU function error: aclrtSynchronizeDevice, error code is 507046"
    answer = of(tmp_path, "".join(f"[rank7]: {line}\n" for line in (*TRACEBACK[:2], said)))
    assert (answer.fault_class, answer.culprits) == ("undetermined", ())


def test_a_process_that_open_mpi_lost(tmp_path: Path) -> None:
    answer = of(
        tmp_path,
        "An MPI communication peer process has unexpectedly disconnected.\n\n"
        "  Local host: big-3\n  Local PID:  70\n  Peer host:  big-7\n",
    )
    assert answer.fault_class == "net_connection_lost"
    assert [culprit.host for culprit in answer.culprits] == ["big-7"]


def test_an_interpreter_that_finds_no_module(tmp_path: Path) -> None:
    answer = of(tmp_path, "[1,mpirank:5,algo-3]<stderr>:/opt/venv/bin/python3: No module named tokens\n")
    assert (answer.fault_class, ranks(answer)) == ("rank_killed_exception", [5])
    assert answer.culprits[0].host == "algo-3"


def test_an_actor_of_ray_that_died_is_described(tmp_path: Path) -> None:
    answer = of(
        tmp_path,
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        "\tclass_name: Trainer\n\tpid: 7021\n\tname: trainer_3\n\tip: 10.9.3.21\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: x\n",
    )
    assert "(trainer_3, pid 7021, 10.9.3.21)" in answer.headline


def test_a_worker_that_was_killed_before_a_traceback_that_is_cut(tmp_path: Path) -> None:
    killed = "RuntimeError: DataLoader worker (pid 88) is killed by signal: Killed. \n"
    chain = "\nThe above exception was the direct cause of the following exception:\n\n"
    answer = of(tmp_path, killed + chain + TRACEBACK[0] + "\n" + TRACEBACK[1] + "\n    step()\n")
    assert answer.fault_class == "rank_killed_sigkill"
    assert "DataLoader worker (pid 88)" in answer.headline


@pytest.mark.parametrize(
    ("above", "below", "fault_class"),
    [
        ('  File "/srv/loop.py", line 7, in turn\n    step()\n    ^^^^^^\n', "next: see the summary\n" * 2, RAISED),
        ("", "\nDuring handling of the above exception, another exception occurred:\n\nbye\n", RAISED),
        ("", "next: see the summary\n" * 2, "undetermined"),
        ('  File "/srv/loop.py", line 7, in turn\n' + "loading a shard\n" * 9, "bye\n", "undetermined"),
    ],
)
def test_a_traceback_without_its_beginning(tmp_path: Path, above: str, below: str, fault_class: str) -> None:
    assert of(tmp_path, f"{above}KeyError: 'tokens'\n{below}").fault_class == fault_class


def test_a_fault_in_the_traceback_of_a_spawned_process_is_of_that_process(tmp_path: Path) -> None:
    text = (
        "-- Process 2 terminated with the following error:\n"
        + TRACEBACK[0]
        + '\n  File "/srv/save.py", line 3, in _save'
        "\nOSError: [Errno 28] No space left on device: '/out/last.pt'\n"
    )
    answer = of(tmp_path, text)
    assert (answer.fault_class, ranks(answer)) == ("storage", [2])


@pytest.mark.parametrize(
    ("size", "named"),
    [
        ("RANK and WORLD_SIZE in environ: 0/1", [0]),
        ("$ torchrun --nproc_per_node=1 fit.py", [0]),
        ("$ torchrun --nnodes=2 --nproc_per_node=1 fit.py", [None]),
        ("$ torchrun --nproc_per_node=4 fit.py", [None]),
    ],
)
def test_the_only_rank_of_a_job_is_named(tmp_path: Path, size: str, named: list[int | None]) -> None:
    answer = of(tmp_path, f"{size}\nLast error:\nBootstrap : no socket interface found\n")
    assert (answer.fault_class, ranks(answer)) == ("net_no_interface", named)


@pytest.mark.parametrize(("failed", "named"), [("0, 1", [0]), ("1", [None])])
def test_paddle_shows_the_log_of_its_first_trainer(tmp_path: Path, failed: str, named: list[int | None]) -> None:
    text = (
        "PreconditionNotMetError: an optimizer without parameters.\n  [Hint: expected at least one]\n"
        "ERROR 2022-05-05 03:05:04,049 launch_utils.py:604] ABORT!!! Out of all 2 trainers, the trainer process with "
        f"rank=[{failed}] was aborted. Please check its log.\n"
    )
    answer = of(tmp_path, text)
    assert (answer.fault_class, ranks(answer)) == (RAISED, named)


def test_torch_npu_says_below_an_exception_whose_it_is(tmp_path: Path) -> None:
    error = (
        f"{TRACEBACK[0]}\n{TRACEBACK[1]}\n"
        "RuntimeError: call:build/x.cpp:64 NPU function error: aclnnAdd, error code is 561103\n"
        "[ERROR] 2025-04-08-18:07:20 (PID:1292363, Device:1, RankID:5) ERR00100 PTA call acl api failed.\n"
    )
    answer = of(tmp_path, error)
    assert (answer.fault_class, ranks(answer)) == (RAISED, [5])
    held = (
        "EJ0001: [PID: 12] Failed to initialize the HCCP process. Reason: Maybe the last training process is running\n"
    )
    assert (of(tmp_path, error + held).fault_class, of(tmp_path, error + held).culprits) == ("undetermined", ())


def test_a_node_of_ray_that_died_has_the_address_of_its_actor(tmp_path: Path) -> None:
    text = (
        "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n\tclass_name: Loop\n"
        "\tpid: 64\n\tip: 10.72.5.3\nThe actor is dead because its node has died. Node Id: 677df2a9\n"
    )
    answer = of(tmp_path, text)
    assert (answer.fault_class, [culprit.host for culprit in answer.culprits]) == ("missing_rank", ["10.72.5.3"])


@pytest.mark.parametrize(
    ("text", "fault_class"),
    [
        ("RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)\n", "cuda_failure"),
        ("oneCCL: ze_call.cpp:28 do_call: EXCEPTION: ze error at zeCommandQueueExecuteCommandLists, code: "
         "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY\n", "cuda_oom"),
        ("*** SIGSEGV (@(nil)), see gl__41#s15 received by PID 117 (TID 123) on cpu 17; stack trace: ***\n",
         "rank_killed_sigsegv"),
        ("*** SIGTERM received by PID 714 (TID 714) on cpu 80 from PID 711; stack trace: ***\n", "undetermined"),
        ("*** SIGABRT received by PID 9361 (TID 9361) on cpu 40 from PID 9361; stack trace: ***\n", "undetermined"),
        ("Process finished with exit code -1073741795 (0xC000001D)\n", "rank_killed_sigsegv"),
        ("Process finished with exit code 0\n", "undetermined"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED\n", "cuda_failure"),
        ("Instance t1v-n-12-w-0 was preempted\n", "job_cancelled"),
        ("WARN EC2 spot instance interruption notice received, terminating in 2 minutes\n", "job_cancelled"),
        ("Your session crashed after using all available RAM.\n", "rank_killed_sigkill"),
        ('AlgorithmError: ExecuteUserScriptError: ExitCode -9 ErrorMessage ""\n', "rank_killed_sigkill"),
        ("RuntimeError: mesh_service.cc:364 : Failed to meet rendezvous 'save': Socket closed (14)\n", "undetermined"),
        ("XlaRuntimeError: UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.5:8476: "
         "Failed to connect to remote host: Connection refused\n", "net_connect_refused"),
        ("failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.5:8476: Failed to connect to remote "
         "host: No route to host\n", "net_connect_timeout"),
        ("RuntimeError: unable to mmap 1024 bytes from file </torch_12_45>: Cannot allocate memory (12)\n",
         "shm_exhausted"),
        ("RuntimeError: unable to write to file </torch_12_45>: No space left on device (28)\n", "shm_exhausted"),
        ("distributed.nanny - WARNING - Worker tcp://10.0.0.5:41 (pid=7) exceeded 95% memory budget. Restarting...\n",
         "rank_killed_sigkill"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousClosedError\n", "undetermined"),
        ("RuntimeError: Connection reset by peer\n", "net_connection_lost"),
    ],
)  # fmt: skip
def test_words_of_runtimes_and_handlers(tmp_path: Path, text: str, fault_class: str) -> None:
    answer = of(tmp_path, text)
    assert answer.fault_class == fault_class
    assert "NCCL" not in answer.headline


@pytest.mark.parametrize(
    "text",
    [
        "Name:         fit-worker-3\nState: Waiting\n  Last State:     Terminated\n      Reason:       OOMKilled\n",
        "fit-worker-2   1/1   Running     0   9m\nfit-worker-3   0/1   OOMKilled   2   9m\n",
    ],
)
def test_kubectl_names_the_pod(tmp_path: Path, text: str) -> None:
    answer = of(tmp_path, text)
    assert [culprit.host for culprit in answer.culprits] == ["fit-worker-3"]


def test_a_pod_of_a_table_that_fails_each_time(tmp_path: Path) -> None:
    answer = of(tmp_path, "fit-master-0   0/2   CrashLoopBackOff   8   2m\nfit-worker-0   0/1   Init:1/2   0   2m\n")
    assert "fit-master-0" in answer.headline


def test_the_words_of_c_exceptions_that_run_into_each_other(tmp_path: Path) -> None:
    line = "(Trainer pid={0}, ip=10.0.0.{0}) {1}\n"
    thrown = "terminate called after throwing an instance of 'std::runtime_error'"
    said = "  what():  NCCL error: remote process exited or there was a network error"
    text = "".join(line.format(at, words) for words in (thrown, said) for at in (4, 5, 6))
    assert of(tmp_path, text).culprits == ()


@pytest.mark.parametrize(
    ("text", "fault_class", "who"),
    [
        ("['/usr/bin/python3', '-u', 'fit.py', '--local_rank=0', '--x', '2'] exits with return code = -9\n",
         "rank_killed_sigkill", 0),
        ("['/usr/bin/python3', '-u', 'fit.py', '--local_rank=3', '--x', '2'] exits with return code = -9\n",
         "rank_killed_sigkill", None),
        ("fit-1 exited with code 137\n", "rank_killed_sigkill", "fit-1"),
        (f"{TRACEBACK[0]}\n{TRACEBACK[1]}\n{TRACEBACK[2]}\nERROR:torch.distributed.elastic.multiprocessing.api:failed "
         "(exitcode: 1) local_rank: 1 (pid: 77) of binary: /usr/bin/python\n", RAISED, 1),
        ("subprocess.CalledProcessError: Command '['python', '-u', 'fit.py', '--local_rank=0']' returned non-zero exit "
         "status 1.\n", RAISED, 0),
        ("I tensorflow/core/distributed_runtime/master.cc:268] CreateSession still waiting for response from worker: "
         "/job:worker/replica:0/task:2\n", "missing_rank", 2),
        ("ERROR YarnScheduler: Lost executor 5 on big-7: Container killed by YARN for exceeding memory limits.\n",
         "rank_killed_sigkill", "big-7"),
    ],
)  # fmt: skip
def test_launchers_and_services_that_name_one(
    tmp_path: Path, text: str, fault_class: str, who: int | str | None
) -> None:
    answer = of(tmp_path, text)
    assert answer.fault_class == fault_class
    assert [culprit.host if isinstance(who, str) else culprit.rank for culprit in answer.culprits] == [who]


def test_a_launcher_that_loses_its_store_while_its_processes_run(tmp_path: Path) -> None:
    failed = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has "
    failed += "failed. See inner exception for details.\n"
    frames = TRACEBACK[0] + '\n  File "/x/agent/server/api.py", line 893, in _invoke_run\n'
    later = frames + "    num_nodes_waiting = rdzv_handler.num_nodes_waiting()\n" + failed
    assert of(tmp_path, later).fault_class == "cascade_store_lost"
    assert of(tmp_path, frames + "    self._rendezvous(self._worker_group)\n" + failed).fault_class == "net_failure"


@pytest.mark.parametrize(
    ("told", "host"),
    [
        ("(venv) me@big-17:~/run$ torchrun --nproc_per_node=4 fit.py", "big-17"),
        ("[me@big-17 run]$ python fit.py", "big-17"),
        ("me@head:~/run$ mpirun -np 16 --hostfile hosts python fit.py", ""),
        ("me@head:~/run$ torchrun --nnodes=2 fit.py", ""),
        ("Running on node big-17", "big-17"),
        ("Running on node big-17\nRunning on node big-18", ""),
        ("Hostname: big-17.cluster", "big-17"),
        ("Job was executed on host(s) <8*big-17>, in queue <gpu>", "big-17"),
        ("mail me@big-17 about it", ""),
    ],
)
def test_the_host_that_a_prompt_or_a_job_script_tells(tmp_path: Path, told: str, host: str) -> None:
    answer = of(tmp_path, f"{told}\nOSError: [Errno 28] No space left on device: '/out/last.pt'\n")
    assert (answer.fault_class, [culprit.host for culprit in answer.culprits]) == ("storage", [host])


@pytest.mark.parametrize(
    ("xid", "fault_class"),
    [
        ("79, pid=0, GPU has fallen off the bus.", "gpu_hardware"),
        ("31, pid=2211, name=python, Ch 00000008, MMU Fault: ENGINE GRAPHICS faulted @ 0x7f", "cuda_failure"),
        ("43, pid=2211, name=python, Ch 00000008", "cuda_failure"),
        ("45, pid=2211, name=python, Ch 00000001 caused by previous Xid 149", "gpu_hardware"),
        ("45, pid=2211, name=python, Ch 00000001", "undetermined"),
    ],
)
def test_whose_fault_an_xid_is(tmp_path: Path, xid: str, fault_class: str) -> None:
    answer = of(tmp_path, f"[Mon Jan  1 10:00:00 2024] NVRM: Xid (PCI:0000:c1:00): {xid}\n")
    assert answer.fault_class == fault_class
    assert [culprit.bus_id for culprit in answer.culprits] == ["0000:c1:00"] * (fault_class != "undetermined")


def test_the_host_that_pdsh_cannot_log_in_to_is_named(tmp_path: Path) -> None:
    answer = of(tmp_path, "pdsh@head: n3: ssh exited with exit code 255\n")
    assert "log in to n3." in answer.headline
    assert [culprit.peer for culprit in answer.culprits] == ["n3"]


def test_a_peer_of_gloo_that_closed_the_connection_is_named(tmp_path: Path) -> None:
    closed = (
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.1.2.3]:371\n"
    )
    answer = of(tmp_path, closed)
    assert (answer.fault_class, [culprit.peer for culprit in answer.culprits]) == ("net_connection_lost", ["10.1.2.3"])


def test_what_a_launcher_repeats_names_nobody_beside_the_rank(tmp_path: Path) -> None:
    lines = "\n".join(TRACEBACK) + "\n"
    (tmp_path / "rank1.log").write_text(lines)
    assert ranks(of(tmp_path, f"{TRACEBACK[1]}\n{TRACEBACK[2]}\nbye\n")) == [1]


@pytest.mark.parametrize(
    ("text", "fault_class"),
    [
        ("CUDA error 217 at ggml-cuda.cu:62: peer access is not supported between these two devices\n", "cuda_failure"),
        ("Failed: CUDA error /w/deep_ep.cpp:20\n'peer access is not supported between these two devices'\n",
         "cuda_failure"),
        ("warning: no p2p on gpu #0: peer access is not supported between these two devices\n", "undetermined"),
        ("RuntimeError: cuda runtime error (802) : system not yet initialized at THC.cpp:50\n", "cuda_failure"),
        ("RuntimeError: operation cuInit(0) failed: CUDA_ERROR_SYSTEM_NOT_READY\n", "cuda_failure"),
        ("Error (gpu_burn-drv.cpp:29): OS call failed or operation not supported on this OS\n", "cuda_failure"),
        ("OSError: (External) NCCL error(1), unhandled cuda error.\n", "cuda_failure"),
        ("  what():  NCCL Error 1: unhandled cuda error\n", "cuda_failure"),
        ("nccl.NcclError: NCCL_ERROR_UNHANDLED_CUDA_ERROR: unhandled cuda error\n", "cuda_failure"),
        ("RuntimeError: synStatus=20 [Device already acquired] Device acquire failed.\n", "cuda_failure"),
        ("In function initDevice(): synDeviceAcquire(&d, nullptr) failed with synapse error: 20\n", "cuda_failure"),
        ("graph/xml.cc:332 NCCL WARN Could not find real path of /sys/class/pci_bus/0000:01/../0000:01:00.0\n",
         "topology_error"),
        ("misc/topo.cc:22 NCCL WARN Could not find real path of /sys/class/pci_bus/0000:01/../0000:01:00.0\n",
         "topology_error"),
        ("INTERNAL ASSERT FAILED. unable to open shared memory object </torch_33_19> in read-write mode\n",
         "shm_exhausted"),
        ("RuntimeError: unable to open shared memory object </torch_33_19> in read-write mode: Too many open files "
         "(24)\n", "rank_killed_exception"),
        ("Reason: 'RuntimeError('unable to open shared memory object </torch_33_19> in read-write mode')'\n",
         "shm_exhausted"),
        ("poll till completion error: 12 transport retry counter exceeded\n", "ib_completion_error"),
        ("Msg from 13: wc.status=12 (transport retry counter exceeded), wc.wr_id=0x55d1\n", "ib_completion_error"),
        (" Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n", "ib_completion_error"),
        ("  what():  a work item failed: status 12 (Ib failure: Cannot allocate memory)\n", "ib_completion_error"),
        ("ibv_reg_mr(address=0x15, length=6, access=0xf) failed: Cannot allocate memory\n", "memlock_limit"),
        ("ibv_reg_mr(address=0x15, length=6, access=0xf) failed: Bad address\n", "undetermined"),
        ("rdma_context.cpp:77] Failed to register memory 0x7f: Cannot allocate memory [12]\n", "memlock_limit"),
        ("NCCL WARN NET/IB : collective mismatch error local size 131072 remote 0 addr 7f rkey 8 seq 2/2\n",
         "mismatch_shape"),
        ("[W socket.cpp:6] [c10d] The client socket has failed to connect to [PC]:5 (system error: 10060 - A "
         "connection attempt failed).\n", "net_connect_timeout"),
        ("NCCL WARN socketStartConnect: Connect to 10.0.0.5<48213> failed : Software caused connection abort\n",
         "net_failure"),
        ("/w/uid/bootstrap_uid.cpp:bootstrap_net_init:160: No socket interface found\n", "net_no_interface"),
        ("/w/uid/bootstrap_uid.cpp:bootstrap_net_init:146: No usable listening interface found\n",
         "net_no_interface"),
        ("[09:00:00] /b/rpc/network/tcp_socket.cc:76: Failed bind on 10.0.0.7:30050 , error: Address already in use\n",
         "net_bind_failed"),
        ('        details = "failed to connect to all addresses"\n', "net_failure"),
        ('details = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.7:8080: Failed to connect to '
         'remote host: Connection refused"\n', "net_connect_refused"),
        ("slurmstepd: error: execve(): train: Permission denied\n", RAISED),
        ("Error in barrier wait xferbench/barrier/start/0/ rank 1 completed 2/3 ranks)\n", "missing_rank"),
        ("Error in barrier wait xferbench/barrier/start/0/ rank 1 completed 0/3 ranks)\n", "undetermined"),
    ],
)  # fmt: skip
def test_words_of_libraries_about_devices_and_adapters(tmp_path: Path, text: str, fault_class: str) -> None:
    assert of(tmp_path, text).fault_class == fault_class


@pytest.mark.parametrize(
    "text",
    [
        "failed initializing StreamExecutor for CUDA device ordinal 3: CUDA_ERROR_ECC_UNCORRECTABLE\n",
        "unable to create StreamExecutor for CUDA:3: uncorrectable ECC error encountered\n",
    ],
)
def test_the_gpu_that_an_error_numbers_is_named(tmp_path: Path, text: str) -> None:
    answer = of(tmp_path, text)
    assert (answer.fault_class, [culprit.gpu for culprit in answer.culprits]) == ("gpu_hardware", [3])


def test_a_failed_call_that_several_processes_report_names_nobody(tmp_path: Path) -> None:
    failed = "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n"
    answer = of(tmp_path, f"[rank0]: {failed}[rank1]: {failed}")
    assert (answer.fault_class, answer.culprits) == ("cuda_failure", ())


def test_an_adapter_without_locked_memory_is_of_the_host_that_ucx_names(tmp_path: Path) -> None:
    answer = of(tmp_path, "[1652739463.05] [n22:4071:0] ib_iface.c:1035 UCX  ERROR ibv_create_cq(cqe=4096) failed: "
                          "Cannot allocate memory\n")  # fmt: skip
    assert (answer.fault_class, [culprit.host for culprit in answer.culprits]) == ("memlock_limit", ["n22"])


def test_a_traceback_inside_of_a_message_is_read_to_its_own_exception(tmp_path: Path) -> None:
    inner = 'Traceback (most recent call last):\n  File "/x/worker.py", line 57, in _worker_loop\n    f()\n'
    outer = inner.replace("worker", "loader")
    answer = of(tmp_path, f"{outer}RuntimeError: {inner}KeyError: 'image'\n")
    assert answer.fault_class == "rank_killed_exception"
    assert "KeyError: 'image'" in answer.headline


def test_an_exception_that_points_to_the_cause_above_it_is_none(tmp_path: Path) -> None:
    above = 'Traceback (most recent call last):\n  File "/x/core.py", line 5, in run\n    f()\n'
    wrapped = f"{above}RuntimeError: Engine core initialization failed. See root cause above.\n"
    bind = "transport/nvls.cc:28 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory\n"
    assert of(tmp_path, f"{bind} of size 2 : CUDA error 401\n{wrapped}").fault_class == "nvls_multicast"


def test_a_later_error_of_cuda_is_not_the_first_ones_twin(tmp_path: Path) -> None:
    """A rank that is left in a collective reports an error of CUDA as well, when that is broken off."""
    line = (
        "[rank{0}]:[E105 10:00:{1}.000000000 ProcessGroupNCCL.cpp:1595] [PG ID 0 PG GUID 0(default_pg) Rank {0}] "
        "Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was "
        "encountered\n"
    )
    assert [c.rank for c in of(tmp_path, line.format(2, "00") + line.format(0, "20")).culprits] == [2]
    assert [c.rank for c in of(tmp_path, line.format(2, "00") + line.format(0, "01")).culprits] == [0, 2]


def test_of_different_exceptions_the_first_in_the_file_is_named(tmp_path: Path) -> None:
    raised = (
        '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "/w/a.py", line 1, in main\n[rank{0}]: {1}\n'
    )
    other = of(tmp_path, raised.format(1, "ValueError: bad") + raised.format(0, "RuntimeError: a worker failed"))
    assert [c.rank for c in other.culprits] == [1]
    same = of(tmp_path, raised.format(1, "ValueError: bad") + raised.format(0, "ValueError: bad"))
    assert [c.rank for c in same.culprits] == [0, 1]


def test_who_reports_that_gloos_mesh_failed_is_no_culprit(tmp_path: Path) -> None:
    line = "[rank{}]: RuntimeError: Gloo connectFullMesh failed with [../context.cc:44] no error\n"
    answer = of(tmp_path, line.format(1) + line.format(3))
    assert (answer.fault_class, answer.culprits) == ("net_failure", ())


def test_adapters_that_are_not_opened_beside_others_that_are_used(tmp_path: Path) -> None:
    closed = "n1:7:7 [0] transport/net_ib.cc:149 NCCL WARN NET/IB : Unable to open device mlx5_8\n"
    used = "n1:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_1:1/RoCE ; OOB eth0:10.0.0.1<0>\n"
    assert of(tmp_path, closed).fault_class == "net_failure"
    assert of(tmp_path, closed + used).fault_class == "undetermined"


def test_cuda_that_shuts_down_as_a_program_ends_is_no_failure(tmp_path: Path) -> None:
    line = (
        "[I628 20:15:42.000370615 ProcessGroupNCCL.cpp:1501] [PG  Rank 1] main process destroyed cuda before watchdog "
    )
    line += "loop exited, terminating watchdog. (Watchdog caught exception: CUDA error: driver shutting down\n"
    assert of(tmp_path, line).fault_class == "undetermined"


def test_a_rank_whose_pid_is_masked(tmp_path: Path) -> None:
    line = "mpirun noticed that process rank 1 with PID xxxxx on node xxxxx exited on signal 9 (Killed).\n"
    answer = of(tmp_path, line)
    assert (answer.fault_class, [c.rank for c in answer.culprits]) == ("rank_killed_sigkill", [1])


def test_a_connection_over_loopback_that_was_lost_had_been_there(tmp_path: Path) -> None:
    """That the loopback reaches no other host explains no end of a connection within the host."""
    using = "ws1:7:7 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n"
    lost = "ws1:7:8 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer {}<56086>\n"
    assert of(tmp_path, using + lost.format("localhost")).fault_class == "net_connection_lost"
    assert of(tmp_path, using + lost.format("10.0.0.9")).fault_class == "net_wrong_interface"


MPICH = "MPIDI_OFI_handle_cq_error({}): OFI poll failed ({})\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            MPICH.format(941, "ofi_events.c:943:MPIDI_OFI_handle_cq_error:Input/output error - UNREACHABLE"),
            "UNREACHABLE",
        ),
        (MPICH.format(594, "default nic=hsn2: Connection reset by peer"), "Connection reset by peer"),
        (
            "libfabric:71:gni:ep_ctrl:gnix_nic_alloc():1069<warn> GNI_CdmAttach returned GNI_RC_ERROR_NOMEM\n",
            "CdmAttach",
        ),
        ("W0301 09:00:00 71 rdma_endpoint.cpp:952] Fail to ibv_post_send: Invalid argument, window=3\n", "Invalid arg"),
    ],
)
def test_a_fabric_that_refuses_a_transfer(tmp_path: Path, line: str, told: str) -> None:
    """The process that reports it is not the one at fault."""
    answer = of(tmp_path, f"step 71\nMPICH ERROR [Rank 5] - Abort(1) (rank 5 in comm 0): error stack:\n{line}")
    assert answer.fault_class == "net_failure"
    assert told in answer.headline
    assert ranks(answer) in ([], [None])


@pytest.mark.parametrize("error", ["Message too long - OK", "Cannot allocate memory"])
def test_an_error_of_mpich_that_is_not_one_of_the_fabric(tmp_path: Path, error: str) -> None:
    text = MPICH.format(941, f"ofi_events.c:943:MPIDI_OFI_handle_cq_error:{error}")
    assert of(tmp_path, text).fault_class == "undetermined"


CHECKPOINT = (
    "[rank{0}]: tensor at position 71:\n[rank{0}]: saved metadata: {{'shape': torch.Size([7, 9])}}\n"
    "[rank{0}]: recomputed metadata: {{'shape': torch.Size([0])}}\n"
)


def test_the_end_of_an_error_of_activation_checkpointing(tmp_path: Path) -> None:
    """The name of the exception stands above a list that may fill the log."""
    answer = of(tmp_path, CHECKPOINT.format(3) + "W0301 09:00:00.000000 71 torch/distributed/elastic/multiprocessing/"
                "api.py:900] Sending process 72 closing signal SIGTERM\n")  # fmt: skip
    assert (answer.fault_class, ranks(answer)) == (RAISED, [3])
    assert "ran the forward pass again on rank 3" in answer.next_steps[0]
    named = "[rank3]: torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values differ.\n"
    whole = of(tmp_path, f"[rank3]: {TRACEBACK[0]}\n{named}{CHECKPOINT.format(3)}")
    assert (whole.fault_class, ranks(whole)) == (RAISED, [3])
    assert "raised torch.utils.checkpoint.CheckpointError" in whole.headline


@pytest.mark.parametrize(
    ("line", "fault_class"),
    [
        ('Magick: abort due to signal 11 (SIGSEGV) "Segmentation Fault"...', "rank_killed_sigsegv"),
        ('Magick: abort due to signal 7 (SIGBUS) "Bus Error"...', "rank_killed_sigbus"),
        ("distributed.nanny - WARNING - Worker exceeded 91% memory budget.  Restarting", "rank_killed_sigkill"),
        ("Worker tcp://10.0.0.7:91 (pid=71) exceeded 91% memory budget. Restarting...", "rank_killed_sigkill"),
        ("Worker is at 91% memory usage. Pausing worker.", "undetermined"),
    ],
)
def test_a_library_or_a_nanny_says_how_a_process_ended(tmp_path: Path, line: str, fault_class: str) -> None:
    assert of(tmp_path, f"step 71\n{line}\n").fault_class == fault_class
