"""A training that has not ended and makes no progress is said to make none, however alive one of its ranks is."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from diag.api import RunState, state_of
from diag.app.views.live import progress_line
from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.living import boot_id
from diag.collectors.manifest import update_manifest
from diag.collectors.records import CollectiveLine, CollectiveRow, Heartbeat
from diag.ended.clues import clues_of_standstill
from diag.ended.read import read_run
from diag.hang.api import Triage, triage, with_steps_while_stuck
from diag.rundir.curves import Progress
from tests.app.runs import write_run

NOW = 2_000_000_000 * 10**9
S = 10**9
LAST_END_NS = 793_000_000  # of write_run


def training(run: Path, beats: dict[int, tuple[float, float, str]], steps: int | None = None) -> RunState:
    """The state of a run of which each rank's last heartbeat came some seconds ago and some seconds after its last
    step, in a phase."""
    layout = RunLayout(write_run(run, ranks=len(beats)))
    update_manifest(layout, exit_code=None, **({"trainer": {"steps": steps}} if steps else {}))
    for rank, (age_s, after_s, phase) in beats.items():
        written = NOW - round(age_s * S)
        file = layout.rank(rank).heartbeat
        beat = Heartbeat(written, LAST_END_NS + round(after_s * S), 11, phase, done=phase == "done")
        file.write_text(json.dumps(asdict(beat)))
        os.utime(file, ns=(written, written))
    return state_of(run, NOW)


@contextmanager
def stopped_process(files: RankLayout) -> Iterator[int]:
    """A process of this host that a signal has stopped, and that is the rank's."""
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        try:
            os.kill(process.pid, signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            identity = json.loads(files.identity.read_text())
            here = {"host": socket.gethostname(), "boot_id": boot_id(), "monotonic_ns": time.monotonic_ns()}
            files.identity.write_text(json.dumps(identity | {"pid": process.pid, **here}))
            yield process.pid
        finally:
            process.kill()


def words(state: RunState) -> str:
    assert state.standstill is not None
    return state.standstill.words.replace("\u00a0", " ")


def test_steps_that_end_are_progress(tmp_path: Path) -> None:
    state = training(tmp_path / "run", {0: (1, 0.1, "forward"), 1: (2, 0.1, "backward")})
    assert (state.state, state.standstill) == ("training", None)


def test_a_rank_that_is_silent_is_not_covered_by_one_that_lives(tmp_path: Path) -> None:
    """As after SIGSTOP: the others wait in a collective and send heartbeats."""
    state = training(tmp_path / "run", {0: (1, 40, "backward"), 1: (42, 0, "forward")}, steps=3000)
    assert state.live
    assert state.state == "stuck"
    assert words(state) == "no step for 41 s (rank 1 silent for 42 s)"
    line = progress_line(Progress(12, 3000, 180e9, 19.0, None), state.standstill).replace("\u00a0", " ")
    assert line == "12 of 3,000 steps · no step for 41 s (rank 1 silent for 42 s)"


def test_of_a_stopped_process_triage_says_how_it_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    training(run, {0: (1, 40, "backward"), 1: (42, 0, "forward")})
    layout = RunLayout(run)
    waits_in(layout.rank(0), 7)
    with stopped_process(layout.rank(1)) as pid:
        stood = read_run(layout, state_of(run, NOW))
        (clue,) = clues_of_standstill(stood)
    assert f"kill -CONT {pid}" in clue.note
    # How long it lasts is said by the state of the run alone: what is cached would differ from it.
    assert "Rank 1 is silent, its last heartbeat came from " in clue.note
    assert " s)" not in clue.note.replace("\u00a0", " ")
    answer = Triage("missing_rank", 0.9, "", culprits=clue.culprits, next_steps=("Look.",))
    first, second, last = with_steps_while_stuck(answer, [stood]).next_steps
    assert f"Let rank 1 go on: `kill -CONT {pid}` on " in first.replace("\u00a0", " ")
    assert "--stacks" in second
    assert last == "Look."
    assert [culprit.rank for culprit in clue.culprits] == [1]


def test_calls_of_the_ranks_are_read_if_one_of_them_is_in_a_step(tmp_path: Path) -> None:
    run = tmp_path / "run"
    state = training(run, {0: (1, 40, "backward"), 1: (42, 0, "forward")})
    layout = RunLayout(run)
    layout.rank(1).collectives.unlink()
    layout.rank(1).collectives.mkdir()
    idle = read_run(layout, state)
    assert not any(rank.steps for rank in idle.ranks.values())
    waits_in(layout.rank(0), 7, calls=[["0", 7, "all_reduce", 4, "float32", NOW, None, None, None, True, None]])
    waiting = read_run(layout, state)
    assert len(waiting.ranks[0].steps) > 1
    for read in (idle, waiting):
        assert [path for path, _ in read.gaps if path.endswith("collectives.jsonl")]


def test_a_rank_that_is_silent_while_steps_end(tmp_path: Path) -> None:
    state = training(tmp_path / "run", {0: (1, 0.1, "forward"), 1: (42, 0, "forward")})
    assert (state.state, words(state)) == ("training", "rank 1 silent for 42 s")


def test_the_first_rank_may_be_the_silent_one(tmp_path: Path) -> None:
    state = training(tmp_path / "run", {0: (60, 0, "forward"), 1: (1, 59, "backward")})
    assert words(state) == "no step for 1 min (rank 0 silent for 1 min)"


def test_nobody_is_silent_but_no_step_ends(tmp_path: Path) -> None:
    state = training(tmp_path / "run", {0: (1, 40, "forward"), 1: (1, 40, "backward")})
    assert state.state == "slow"  # no rank waits for another: they may all evaluate, which nothing announces
    state = training(tmp_path / "later", {0: (1, 140, "forward"), 1: (1, 140, "backward")})
    assert (state.state, words(state)) == ("stuck", "no step for 2 min")


def test_a_rank_that_raised(tmp_path: Path) -> None:
    state = training(tmp_path / "run", {0: (1, 40, "backward"), 1: (42, 0, "failed: RuntimeError")})
    assert (state.state, words(state)) == ("stuck", "no step for 41 s (rank 1 raised RuntimeError)")


@pytest.mark.parametrize(("still_s", "expected"), [(40, "training"), (70, "stuck")])
def test_a_training_in_which_all_have_raised_gets_time_to_end(tmp_path: Path, still_s: int, expected: str) -> None:
    """As after Ctrl-C, on a busy machine."""
    phases = {rank: (1.0, float(still_s), "failed: KeyboardInterrupt") for rank in (0, 1)}
    assert training(tmp_path / "run", phases).state == expected


def test_no_next_step_asks_for_what_the_recorder_has_done_or_can_do(tmp_path: Path) -> None:
    run = tmp_path / "run"
    training(run, {0: (1, 40, "backward"), 1: (1, 40, "forward")})
    waits_in(RunLayout(run).rank(0), 7)
    answer = triage([run])
    assert [culprit.rank for culprit in answer.culprits] == [1]
    text = " ".join(answer.next_steps)
    assert "--stacks" in text
    assert not any(word in text for word in ("py-spy", "faulthandler", "TORCH_FR_BUFFER_SIZE"))


def test_stacks_of_an_earlier_standstill_are_not_those_of_this_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    state = training(run, {0: (1, 40, "backward"), 1: (42, 0, "forward")})
    assert state.standstill is not None
    since = state.standstill.since_unix_ns
    stacks = RunLayout(run).rank(1).stacks
    stacks.write_text('Thread 0x1 (most recent call first):\n  File "train.py", line 9 in load\n')
    for written, expected in ((since - S, (0, 1)), (since + S, (1, 0))):
        os.utime(stacks, ns=(written, written))
        taken, early = read_run(RunLayout(run), state).stack_files()
        assert (len(taken), len(early)) == expected


def test_an_announced_evaluation_is_named_and_no_stall(tmp_path: Path) -> None:
    state = training(tmp_path / "run", {0: (1, 40, "evaluation"), 1: (1, 40, "backward")})
    assert (state.state, words(state)) == ("evaluating", "no step for 41 s (rank 0 in its evaluation)")


def test_a_rank_that_is_done_is_not_silent(tmp_path: Path) -> None:
    assert training(tmp_path / "run", {0: (50, 0, "done"), 1: (1, 0.1, "forward")}).standstill is None


def test_after_the_last_planned_step_nothing_stalls(tmp_path: Path) -> None:
    assert training(tmp_path / "run", {0: (1, 40, "backward")}, steps=12).state == "training"


@pytest.mark.parametrize("broken", [b"", b"{", b'{"unix_ns": "x"}'])
def test_a_damaged_heartbeat_says_nothing(tmp_path: Path, broken: bytes) -> None:
    training(tmp_path / "run", {0: (1, 0.1, "forward"), 1: (42, 0, "forward")})
    file = RunLayout(tmp_path / "run").rank(1).heartbeat
    file.write_bytes(broken)
    assert state_of(tmp_path / "run", NOW).standstill is None


def waits_in(files: RankLayout, number: int, **fields: object) -> None:
    """Its last heartbeat says that the rank waits in a collective of this number."""
    beat = json.loads(files.heartbeat.read_text())
    beat |= {"last_started": {"0": number}, "last_finished": {"0": number - 1}, **fields}
    files.heartbeat.write_text(json.dumps(beat))
    os.utime(files.heartbeat, ns=(NOW - S, NOW - S))


# -- The state of a run ------------------------------------------------------------------------------------------------


def test_what_a_stuck_training_waits_for(tmp_path: Path) -> None:
    """As a rank in an endless loop: its heartbeats go on."""
    run = tmp_path / "run"
    training(run, {0: (1, 40, "backward"), 1: (1, 40, "forward")})
    for rank, finished in ((0, 6), (1, 6)):
        file = RunLayout(run).rank(rank).heartbeat
        beat = json.loads(file.read_text())
        beat |= {"last_started": {"0": 7 - rank}, "last_finished": {"0": finished}, "last_op": "all_reduce"}
        file.write_text(json.dumps(beat))
        os.utime(file, ns=(NOW - S, NOW - S))
    state = state_of(run, NOW)
    assert [rank.state for rank in state.by_rank] == ["waiting", "training"]
    assert state.by_rank[0].waits_for == (1,)
    assert state.headline.replace("\u00a0", " ").endswith(
        "in step 12; rank 1 is in forward of step 11; rank 0 waits for it in all_reduce #7."
    )


@pytest.mark.parametrize(("own_s", "expected"), [(0.0, "stuck"), (45.0, "training")])
def test_a_pause_as_long_as_earlier_ones_is_none(tmp_path: Path, own_s: float, expected: str) -> None:
    """An evaluation that the training does not announce takes as long as the one before."""
    run = tmp_path / "run"
    training(run, {0: (1, 40, "between steps"), 1: (1, 40, "between steps")})
    for files in RunLayout(run).ranks().values():
        waits_in(files, 7)
        steps = [json.loads(line) for line in files.steps.read_text().splitlines()]
        for step in steps[:2]:  # long before the last ones
            step["begin_ns"] -= round(own_s * S)
        steps[0]["end_ns"] -= round(own_s * S)
        files.steps.write_text("".join(json.dumps(step) + "\n" for step in steps))
    assert state_of(run, NOW).state == expected


def test_a_long_evaluation_in_which_collectives_go_on_is_none(tmp_path: Path) -> None:
    run = tmp_path / "run"
    training(run, {0: (1, 40, "forward"), 1: (1, 40, "forward")})
    for files in RunLayout(run).ranks().values():
        waits_in(files, 7, unmoved_since_ns=LAST_END_NS + 38 * S)
    assert state_of(run, NOW).state == "slow"


def test_a_file_of_steps_that_ends_is_no_standstill(tmp_path: Path) -> None:
    """At the end of its budget a rank records no more steps; its heartbeat goes on."""
    run = tmp_path / "run"
    training(run, {0: (1, 400, "backward"), 1: (1, 400, "backward")})
    for files in RunLayout(run).ranks().values():
        beat = json.loads(files.heartbeat.read_text())
        beat |= {"step": 900, "phase_since_ns": beat["monotonic_ns"] - S}
        files.heartbeat.write_text(json.dumps(beat))
        os.utime(files.heartbeat, ns=(NOW - S, NOW - S))
    assert state_of(run, NOW).state == "training"


@pytest.mark.parametrize("off_s", [-600, 600])
def test_a_clock_that_is_late_or_ahead_neither_ends_a_rank_nor_keeps_it_alive(off_s: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    training(run, {0: (1, 40, "backward"), 1: (60, 0, "forward")})
    for files in RunLayout(run).ranks().values():
        beat, identity = json.loads(files.heartbeat.read_text()), json.loads(files.identity.read_text())
        written, began = files.heartbeat.stat().st_mtime_ns, NOW - 9000 * S
        files.heartbeat.write_text(json.dumps(beat | {"unix_ns": beat["unix_ns"] + off_s * S}))
        files.identity.write_text(json.dumps(identity | {"unix_ns": began + off_s * S}))
        os.utime(files.heartbeat, ns=(written, written))
        os.utime(files.identity, ns=(began, began))
    state = state_of(run, NOW)
    assert state.state == "stuck"
    assert "rank 1 silent for 1 min" in words(state)
    assert "rank 0" not in words(state)


def test_a_copy_is_judged_by_the_clock_of_its_files(tmp_path: Path) -> None:
    """Its files were written when it was copied; as of its last heartbeat, rank 1 had been silent for a minute."""
    run = tmp_path / "run"
    training(run, {0: (7200, 60, "backward"), 1: (7260, 0, "forward")})
    for files in RunLayout(run).ranks().values():
        identity = json.loads(files.identity.read_text())
        files.identity.write_text(json.dumps(identity | {"unix_ns": NOW - 9000 * S}))
    for file in run.rglob("*"):
        os.utime(file, ns=(NOW - S, NOW - S))
    old = NOW - 7200 * S
    for file in (RunLayout(run).manifest, *(files.steps for files in RunLayout(run).ranks().values())):
        os.utime(file, ns=(old, old))
    state = state_of(run, NOW)
    assert (state.state, state.was, state.as_of_ns) == ("ended, not closed", "stuck", old)
    assert "rank 1 is silent for 1 min" in state.headline.replace("\u00a0", " ")


def test_an_attached_training_ends_without_a_launcher(tmp_path: Path) -> None:
    state = training(tmp_path / "run", {0: (50, 0, "done"), 1: (50, 0, "done")})
    assert state.state == "finished" or state.live  # its records have just been written
    assert state_of(tmp_path / "run", NOW + 10**15).state == "finished"


def test_how_it_ended(tmp_path: Path) -> None:
    layout = RunLayout(write_run(tmp_path / "run"))
    fields: dict[str, object]
    for fields, expected in (
        ({"exit_code": 1}, "failed"),
        ({"exit_code": 143, "ended_by": {"signal": "SIGTERM", "unix_ns": 1}}, "stopped"),
        ({"exit_code": 5, "hang": {"ended_by_diag": True}}, "hung"),
    ):
        update_manifest(layout, **fields)
        assert state_of(layout.root).state == expected


def test_two_groups_that_wait_for_each_other_name_nobody(tmp_path: Path) -> None:
    """Rank 0 is in the first call of a group, the other in one of the world: none of them is at fault alone."""
    run = tmp_path / "run"
    training(run, {0: (1, 40, "backward"), 1: (1, 40, "backward")})
    calls = ({"0": 5, "1": 0}, {"0": 6})
    for rank in range(2):
        file = RunLayout(run).rank(rank).heartbeat
        beat = json.loads(file.read_text())
        beat |= {"last_started": calls[rank], "last_finished": {"0": 5}, "recorder": {"0": [6 + rank, 5]}}
        file.write_text(json.dumps(beat))
        os.utime(file, ns=(NOW - S, NOW - S))
    state = state_of(run, NOW)
    assert [rank.state for rank in state.by_rank] == ["waiting", "waiting"]
    assert "is in" not in state.headline


def of_two_groups(run: Path, orders: list[str], ranks_in: list[str]) -> RunState:
    """Ranks that called groups "a" and "b" in these orders, step by step, and then each wait in one group."""
    training(run, dict.fromkeys(range(len(ranks_in)), (1, 40, "forward")))
    for rank, group in enumerate(ranks_in):
        files, made, lines = RunLayout(run).rank(rank), Counter[str](), list[CollectiveLine]()
        for step, order in enumerate(orders):
            rows = []
            for at, name in enumerate(order):
                rows.append(
                    CollectiveRow(name, made[name], "all_reduce", 4, "float32", 10 * step + at, None, None, None)
                )
                made[name] += 1
            lines.append(CollectiveLine(step, rows))
        files.collectives.write_text("".join(f"{json.dumps(asdict(line))}\n" for line in lines))
        finished = {name: count - 1 for name, count in made.items()}
        beat = json.loads(files.heartbeat.read_text())
        beat |= {"last_started": finished | {group: made[group]}, "last_finished": finished, "step": len(orders)}
        files.heartbeat.write_text(json.dumps(beat))
        os.utime(files.heartbeat, ns=(NOW - S, NOW - S))
    return state_of(run, NOW)


@pytest.mark.parametrize("ranks_in", [["a", "b"], ["b", "a", "a"], ["a", "b", "a", "a"]])
@pytest.mark.parametrize("orders", [["ab"] * 5, ["abab"] * 4, ["ab", "aabb", "ab", "ab"]])
def test_of_ranks_that_wait_for_each_other_the_one_that_left_its_order(
    tmp_path: Path, orders: list[str], ranks_in: list[str]
) -> None:
    state = of_two_groups(tmp_path / "run", orders, ranks_in)
    odd = ranks_in.index("b")
    assert [rank.rank for rank in state.behind] == [odd]
    assert f"rank {odd} has called group b without #" in state.headline
    answer = triage([tmp_path / "run"])
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("desync", [odd])


@pytest.mark.parametrize("orders", [["ab", "ba", "ab", "ba"], ["ab"], ["a", "b", "a", "b"], ["b"] * 4])
def test_no_rank_is_named_where_the_order_is_not_known(tmp_path: Path, orders: list[str]) -> None:
    """The calls came in both orders, in too few steps, or never both in one."""
    state = of_two_groups(tmp_path / "run", orders, ["a", "b"])
    assert state.behind == []
    assert not any(rank.skipped for rank in state.by_rank)


def test_the_calls_that_only_the_recorder_sees_lead_to_the_rank(tmp_path: Path) -> None:
    """DDP calls its all-reduces in C++."""
    run = tmp_path / "run"
    training(run, {0: (1, 40, "backward"), 1: (1, 40, "between steps")})
    for rank, recorder in enumerate(([106, 105], [105, 105])):
        file = RunLayout(run).rank(rank).heartbeat
        beat = json.loads(file.read_text()) | {"recorder": {"0": recorder}}
        file.write_text(json.dumps(beat))
        os.utime(file, ns=(NOW - S, NOW - S))
    state = state_of(run, NOW)
    assert (state.by_rank[0].waits_in, state.by_rank[0].waits_for) == ("collective #106", (1,))


def blocked(files: RankLayout, **fields: object) -> None:
    """Its last heartbeat says that the training's thread has waited for a lock since the last step."""
    beat = json.loads(files.heartbeat.read_text())
    beat |= {
        "call": "flock /data/lock",
        "line": "train.py:9 in load",
        "missing": True,
        "idle_since_ns": LAST_END_NS + 1,
    }
    files.heartbeat.write_text(json.dumps(beat | fields))
    os.utime(files.heartbeat, ns=(NOW - S, NOW - S))


def test_a_run_whose_ranks_wait_in_a_queue_starts(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "run")
    layout.root.mkdir()
    layout.manifest.write_text(json.dumps({"world_size": 2}))
    written = layout.manifest.stat().st_mtime_ns
    assert state_of(layout.root, written + 7200 * S).state == "starting"
    assert state_of(layout.root, written + 100_000 * S).state == "ended, not closed"


@pytest.mark.parametrize(
    ("still_s", "silent_s", "outside", "expected"),
    [
        (100, 60, False, "starting"),  # a rank imports libraries on a busy host, and holds the GIL
        (130, 130, False, "stuck"),
        (400, 1, False, "starting"),  # it reads a checkpoint, for which the others wait in a barrier
        (1900, 1, False, "stuck"),
        (200, 1, True, "starting"),
        (400, 1, True, "stuck"),
    ],
)
def test_what_may_take_long_before_the_first_step(
    tmp_path: Path, still_s: float, silent_s: float, outside: bool, expected: str
) -> None:
    """Rank 0 waits in a barrier; rank 1 has set up the training for an hour, and nothing has happened for a while."""
    state = before_the_first_step(tmp_path / "run", still_s, silent_s, outside)
    assert state.state == expected
    assert not state.stuck or [rank.rank for rank in state.behind] == [1]


def test_a_stopped_process_is_not_taken_to_import_libraries(tmp_path: Path) -> None:
    state = before_the_first_step(tmp_path / "run", 15, 15)
    assert state.state == "starting"
    with stopped_process(RunLayout(tmp_path / "run").rank(1)):
        assert state_of(tmp_path / "run", NOW - 6 * S).state == "starting"  # 9 s: a signal may let it go on at once
        state = state_of(tmp_path / "run", NOW)
    assert state.state == "stuck"
    assert [rank.rank for rank in state.behind] == [1]


def before_the_first_step(folder: Path, still_s: float, silent_s: float, outside: bool = False) -> RunState:
    run = RunLayout(write_run(folder, ranks=2))
    update_manifest(run, exit_code=None)
    for rank, age_s in ((0, 1), (1, silent_s)):
        files = run.rank(rank)
        files.steps.unlink()
        sent, moved = NOW - round(age_s * S), NOW - round(still_s * S)
        beat = Heartbeat(
            sent, sent, 0, "setup", phase_since_ns=NOW - 3600 * S, unmoved_since_ns=moved,
            last_started={"0": 1 - rank}, last_finished={"0": 0}, idle_since_ns=moved, missing=outside and rank == 1,
        )  # fmt: skip
        files.heartbeat.write_text(json.dumps(asdict(beat)))
        os.utime(files.heartbeat, ns=(sent, sent))
    return state_of(run.root, NOW)


def test_all_ranks_that_wait_for_one_lock_are_stuck_at_once(tmp_path: Path) -> None:
    """No collective is under way, so a training whose thread runs could evaluate or save."""
    run = tmp_path / "run"
    training(run, {0: (1, 12, "between steps"), 1: (1, 12, "between steps")})
    for files in RunLayout(run).ranks().values():
        blocked(files)
    state = state_of(run, NOW)
    assert state.state == "stuck"
    assert state.headline.replace("\u00a0", " ").endswith("ranks 0, 1 wait in flock /data/lock, at train.py:9 in load.")


def test_a_rank_in_a_lock_waits_in_no_collective(tmp_path: Path) -> None:
    """Two calls that ended in another order than they began: the Flight Recorder counts the first as the last one."""
    run = tmp_path / "run"
    training(run, {0: (1, 12, "between steps"), 1: (1, 12, "between steps")})
    for rank, files in RunLayout(run).ranks().items():
        blocked(files, recorder={"0": (67, 67 - rank)})
    state = state_of(run, NOW)
    assert state.stuck
    assert [rank.rank for rank in state.behind] == []
    assert state.headline.replace("\u00a0", " ").endswith("ranks 0, 1 wait in flock /data/lock, at train.py:9 in load.")


def test_triage_of_ranks_in_one_lock_says_since_when_and_in_what(tmp_path: Path) -> None:
    """Their stacks add that none of them is behind; they do not show what the call waits for."""
    run = tmp_path / "run"
    training(run, {0: (1, 12, "between steps"), 1: (1, 12, "between steps")})
    for files in RunLayout(run).ranks().values():
        blocked(files)
        files.stacks.write_text(
            'Current thread 0x1 (most recent call first):\n  File "/data/train.py", line 9 in load\n'
            '  File "/data/train.py", line 30 in <module>\n'
        )
        os.utime(files.stacks, ns=(NOW, NOW))
    text = triage([run]).headline.replace("\u00a0", " ")
    assert "in step 12; ranks 0, 1 wait in flock /data/lock, at train.py:9 in load. Ranks 0, 1 are all in" in text


@pytest.mark.parametrize(
    "fields",
    [{"missing": False}, {"idle_since_ns": 0}, {"phase": "evaluation"}, {"idle_since_ns": LAST_END_NS + 9 * S}],
)
def test_a_lock_of_a_rank_that_works_takes_its_time(tmp_path: Path, fields: dict[str, object]) -> None:
    """One prepares data and holds the lock, the others wait for it."""
    run = tmp_path / "run"
    training(run, {0: (1, 12, "between steps"), 1: (1, 12, "between steps")})
    blocked(RunLayout(run).rank(0))
    blocked(RunLayout(run).rank(1), **fields)
    assert not state_of(run, NOW).stuck
