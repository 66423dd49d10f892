"""The stacks of all ranks as one tree: ranks in the same calls together, outliers first."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from diag.hang.api import triage
from diag.hang.model import of_training
from diag.show.triage import print_triage, to_dict

HUNG = Path(__file__).parent / "captured" / "h200-hang-before-collective-2-ranks"

WAITS = """Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/opt/diag/collectors/background.py", line 150 in _run

Current thread 0x00007f0000000000 (most recent call first):
  File "/opt/torch/distributed/distributed_c10d.py", line 3000 in all_reduce
  File "/opt/diag/collectors/collectives.py", line 500 in timed
  File "/home/me/train.py", line 40 in step
  File "/home/me/train.py", line 80 in <module>
"""
LOADS = WAITS.replace(
    '"/opt/torch/distributed/distributed_c10d.py", line 3000 in all_reduce', '"/home/me/data.py", line 7 in load'
)


def written(folder: Path, texts: dict[int, str]) -> str:
    for rank, text in texts.items():
        files = folder / "ranks" / f"{rank:05d}"
        files.mkdir(parents=True)
        (files / "stacks.txt").write_text(text)
    return str(folder)


def test_the_bundled_trainer_is_code_of_the_training() -> None:
    """Rank 0 of this run waits in the trainer: without its frames, it would seem to be in PyTorch's launcher."""
    merged = to_dict(triage([HUNG]))["merged_stacks"]
    innermost = {rank: group["frames"][0].partition(" (")[0] for group in merged for rank in group["ranks"]}
    assert innermost == {0: "clip_spread_gradients", 1: "_engine_run_backward"}


def test_ranks_in_the_same_calls_are_one_group_and_outliers_come_first(tmp_path: Path) -> None:
    path = written(tmp_path / "run", {rank: WAITS if rank != 2 else LOADS for rank in range(4)})
    merged = to_dict(triage([path]))["merged_stacks"]
    assert [group["ranks"] for group in merged] == [(2,), (0, 1, 3)]
    assert merged[0]["frames"][0] == "load (/home/me/data.py:7)"
    assert not any("collectors" in frame for group in merged for frame in group["frames"])


def _dumps(*commands: str) -> str:
    """What py-spy prints of several processes, into one file: the last one loads data."""
    places = ["all_reduce (torch/distributed/distributed_c10d.py:2501)"] * (len(commands) - 1) + ["load (data.py:7)"]
    return "\n".join(
        f"Process {4100 + at}: {command}\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
        f'Thread {4100 + at} (idle): "MainThread"\n    {place}\n    step (train.py:40)\n    <module> (train.py:80)\n'
        for at, (command, place) in enumerate(zip(commands, places, strict=True))
    )


def test_dumps_of_several_processes_in_one_file_are_told_apart(tmp_path: Path) -> None:
    commands = [f"python -u train.py --local_rank={rank} --lr 1" for rank in (2, 0, 1)]
    (tmp_path / "stacks.txt").write_text(_dumps(*commands))
    answer = triage([tmp_path])
    assert [stack.ranks for stack in answer.merged_stacks] == [(1,), (0, 2)]
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("missing_rank", [1])


def test_the_pids_in_logs_say_whose_the_dumps_are(tmp_path: Path) -> None:
    (tmp_path / "stacks.txt").write_text(_dumps("python train.py", "python train.py", "python train.py"))
    unnamed = triage([tmp_path])
    assert (unnamed.merged_stacks, unnamed.culprits) == ((), ())
    assert unnamed.headline.startswith("Process 4102 is in load (data.py:7), and 2 others are in a collective.")
    (tmp_path / "nccl.log").write_text(
        "".join(
            f"n1:{4100 + at}:{4200 + at} [{at}] NCCL INFO ncclCommInitRank comm 0x7f{at} rank {at} nranks 3 "
            f"cudaDev {at} nvmlDev {at} busId {at}000 commId 0xa - Init START\n"
            for at in range(3)
        )
    )
    assert [stack.ranks for stack in triage([tmp_path]).merged_stacks] == [(2,), (0, 1)]


def test_frames_of_the_training_are_never_taken_for_the_recorder_s() -> None:
    ours, theirs = "timed (/opt/diag/collectors/collectives.py:5)", "load (/home/me/sysdiag/collectors/load.py:7)"
    assert of_training((theirs, ours, "step (/home/me/train.py:4)")) == (theirs, "step (/home/me/train.py:4)")
    assert of_training((ours, theirs)) == (theirs,)


def test_a_stack_that_ends_in_an_injected_fault_shows_where_it_is(tmp_path: Path) -> None:
    """The answer names this place: the tree must not say that the rank is in no further call."""
    sleeps = WAITS.replace(
        '"/opt/torch/distributed/distributed_c10d.py", line 3000 in all_reduce',
        '"/opt/diag/collectors/trainer/inject.py", line 290 in _call',
    )
    path = written(tmp_path / "run", {0: WAITS, 1: sleeps})
    merged = {group["ranks"]: group["frames"] for group in to_dict(triage([path]))["merged_stacks"]}
    assert merged[(1,)][0] == "_call (/opt/diag/collectors/trainer/inject.py:290)"
    assert not any("collectors" in frame for frame in merged[(0,)])


def test_the_recorder_s_own_thread_is_not_the_training_s(tmp_path: Path) -> None:
    """It takes the stacks, and so is the current thread; or py-spy sees it at work."""
    background, training = WAITS.replace("Current thread", "Thread").split("\n\n")
    current = background.replace("Thread", "Current thread", 1)
    spied = (
        'Process 7: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 7 (active): "MainThread"\n'
        "    all_reduce (torch/distributed/distributed_c10d.py:3000)\n    <module> (train.py:80)\n"
        'Thread 8 (active+gil): "diag-background"\n    write (collectors/dumps.py:74)\n'
        "    _run (collectors/background.py:147)\n    run (threading.py:982)\n"
    )
    path = written(tmp_path / "run", {0: f"{current}\n\n{training}", 1: spied})
    merged = to_dict(triage([path]))["merged_stacks"]
    assert sorted(group["frames"][0].partition(" (")[0] for group in merged) == ["all_reduce", "all_reduce"]


def test_the_tree_has_the_ranks_at_its_leaves(tmp_path: Path) -> None:
    path = written(tmp_path / "run", {rank: WAITS if rank != 2 else LOADS for rank in range(4)})
    console = Console(width=120, record=True, file=(tmp_path / "out").open("w"))
    print_triage(triage([path]), console, tree=True)
    text = console.export_text().replace("\u00a0", " ")
    rows = [row.strip() for row in text.partition("outliers first\n")[2].splitlines()[:3]]
    assert rows == [
        "ranks 0, 1, 2, 3  <module> (train.py:80) > step (train.py:40)",
        "rank 2  load (data.py:7)",
        "ranks 0, 1, 3  all_reduce (distributed_c10d.py:3000)",
    ]


def test_an_answer_has_the_innermost_calls_of_each_group(tmp_path: Path) -> None:
    path = written(tmp_path / "run", {rank: WAITS if rank != 2 else LOADS for rank in range(4)})
    console = Console(width=120, record=True, file=(tmp_path / "out").open("w"))
    print_triage(triage([path]), console)
    rows = [row.strip() for row in console.export_text().partition("Stacks: ")[2].splitlines()[:2]]
    assert rows == [
        "rank 2  load (data.py:7) < step (train.py:40) < <module> (train.py:80)",
        "ranks 0-1, 3  all_reduce (distributed_c10d.py:3000) < step (train.py:40) < <module> (train.py:80)",
    ]
