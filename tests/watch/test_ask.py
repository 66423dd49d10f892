"""What is asked of a running job, when nothing is, and what its ranks answer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import read_fields, update_manifest
from diag.collectors.records import TRACE_PENDING, TRACE_RECORDED, RankRecord, TraceAsked
from diag.collectors.settings import CollectorSettings
from diag.errors import DiagError
from diag.rundir.lines import read_record
from diag.watch.traces import answers, ask, ask_for_memory, wait
from tests.command import diag_process
from tests.watch.running_job import beat, running_job


def test_the_window_begins_when_all_ranks_have_read_of_it(tmp_path: Path) -> None:
    """Three seconds ahead, of steps of a tenth of one, one step of warm-up, and that of the fastest rank."""
    layout = running_job(tmp_path, step=100, step_ms=100)
    beat(layout, 1, 102)
    asked = ask(layout, 3, why="to see")
    assert 102 + 30 + 2 <= asked.first_step <= 102 + 30 + 2 + 5
    assert (asked.number, asked.count, asked.ranks) == (1, 3, None)
    assert read_record(layout.trace_asked, TraceAsked)[0] == asked
    (told,) = read_fields(layout)["windows"]
    assert (told["first_step"], told["count"], told["why"]) == (asked.first_step, 3, "to see")


def test_slow_steps_and_settings_move_the_window(tmp_path: Path) -> None:
    slow = running_job(tmp_path / "slow", step=100, step_ms=60_000)
    assert ask(slow, 1).first_step == 103
    patient = running_job(tmp_path / "patient", settings=CollectorSettings(interval_s=10, trace_warmup=2))
    assert 100 + 210 + 3 <= ask(patient, 1).first_step <= 100 + 210 + 3 + 5
    far = running_job(tmp_path / "far")
    assert 100 + 600 + 2 <= ask(far, 1, ahead_s=60).first_step <= 100 + 600 + 2 + 5


def test_one_window_at_a_time(tmp_path: Path) -> None:
    layout = running_job(tmp_path)
    first = ask(layout, 3, [1])
    assert first.ranks == [1]
    with pytest.raises(DiagError, match="has already been requested"):
        ask(layout, 3)
    for rank in (0, 1):
        beat(layout, rank, first.first_step + 3)
    second = ask(layout, 1)
    assert second.number == 2
    assert [told["number"] for told in read_fields(layout)["windows"]] == [1, 2]


def test_a_request_from_before_a_requeue_does_not_stand_in_the_way(tmp_path: Path) -> None:
    """Packers hand on to the next attempt what was asked of the one before."""
    layout = running_job(tmp_path)
    first = ask(layout, 3)
    for others_ns in (-1, 1):  # rank 1 began before the request, and after it
        for rank, begun_ns in ((0, 1), (1, others_ns)):
            identity = RankRecord(rank, rank, 2, "host", 1, "", 0, first.unix_ns + begun_ns, "cpu")
            replace_file(layout.rank(rank).identity, encode(identity))
        if others_ns < 0:
            with pytest.raises(DiagError, match="has already been requested"):
                ask(layout, 3)
    assert ask(layout, 1).number == 2


def test_a_window_that_all_have_delivered_is_over_though_heartbeats_are_behind(tmp_path: Path) -> None:
    layout = running_job(tmp_path)
    first = ask(layout, 3)
    layout.rank(0).trace(first.first_step).touch()
    with pytest.raises(DiagError, match="has already been requested"):
        ask(layout, 3)
    beat(layout, 1, 100, trace_number=first.number, trace_answer="the profiler refused")
    assert ask(layout, 3).number == 2


def over(layout: RunLayout) -> None:
    update_manifest(layout, exit_code=0)


def done(layout: RunLayout) -> None:
    for rank in (0, 1):
        beat(layout, rank, 100, done=True)


def silent(layout: RunLayout) -> None:
    for rank in (0, 1):
        beat(layout, rank, 100, age_s=300)
        os.utime(layout.rank(rank).heartbeat, (0, 0))


def no_collectors(layout: RunLayout) -> None:
    for rank in (0, 1):
        layout.rank(rank).heartbeat.unlink()


def no_step(layout: RunLayout) -> None:
    for rank in (0, 1):
        layout.rank(rank).steps.unlink()


def stuck(layout: RunLayout) -> None:
    """The last steps ended long before the heartbeats, and rank 1 raised."""
    for rank, phase in ((0, "backward"), (1, "failed: ValueError")):
        file = layout.rank(rank).heartbeat
        about = json.loads(file.read_text()) | {"phase": phase, "monotonic_ns": 10**12}
        file.write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (stuck, "no step begins that a window could record. The training is stuck"),
        (over, "the run is over"),
        (done, "the training is over"),
        (silent, "not reachable"),
        (no_collectors, "no collectors"),
        (no_step, "no rank has finished a step"),
    ],
)
def test_what_cannot_be_asked_is_said(tmp_path: Path, harm: object, message: str) -> None:
    layout = running_job(tmp_path)
    assert callable(harm)
    harm(layout)
    with pytest.raises(DiagError, match=message):
        ask(layout, 3)
    assert not layout.trace_asked.exists()


def test_ranks_and_folders_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="the run has no rank 7, only ranks 0-1"):
        ask(running_job(tmp_path), 3, [1, 7])
    ended = diag_process("trace", tmp_path / "nothing")
    assert ended.returncode == 1
    assert "no diag run found" in ended.stderr
    ended = diag_process("trace", tmp_path, "--ranks", "0,x")
    assert ended.returncode == 2
    assert "for example --ranks 0,17-19" in ended.stderr


def test_the_answers_of_the_ranks(tmp_path: Path) -> None:
    layout = running_job(tmp_path, ranks=5)
    asked = ask(layout, 3)
    beat(layout, 0, 120, trace_number=1, trace_answer=TRACE_PENDING)
    beat(layout, 1, 120, trace_number=1, trace_answer="step 120 had begun when the request was read")
    beat(layout, 2, 120, trace_number=1, trace_answer=TRACE_RECORDED)
    beat(layout, 3, 120, done=True)
    found = answers(layout, asked)
    assert [answer.open for answer in found] == [True, False, False, False, True]
    assert found[1].why_not == "step 120 had begun when the request was read"
    assert found[2].path == layout.rank(2).trace(asked.first_step)
    assert found[3].why_not == "the training ended first"
    shown: list[tuple[int, int]] = []
    waited = wait(layout, asked, lambda n, total, text: shown.append((n, total)), interval_s=0.01, patience_s=0.1)
    assert shown[0] == (3, 5)
    assert [answer.why_not for answer in waited][::4] == ["has not answered, and no rank has begun a step for 0 s"] * 2
    update_manifest(layout, exit_code=0)
    assert not any(answer.open for answer in answers(layout, asked))


def test_a_request_without_waiting(tmp_path: Path) -> None:
    layout = running_job(tmp_path)
    ended = diag_process("trace", tmp_path, "--ranks", "0-1", "--steps", "2", "--no-wait", "--json")
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["asked"]["ranks"] == [0, 1]
    assert told["asked"]["count"] == 2
    assert told["ranks"] == []
    assert layout.trace_asked.exists()


def test_a_memory_snapshot_is_asked_for_at_once(tmp_path: Path) -> None:
    layout = running_job(tmp_path)
    old = layout.rank(0).memory_snapshot("asked", 40)
    old.touch()
    asked = ask_for_memory(layout, why="to see")
    assert (asked.number, asked.first_step, asked.count, asked.memory, asked.ranks) == (1, 100, 0, True, None)
    assert read_record(layout.trace_asked, TraceAsked)[0] == asked
    assert read_fields(layout)["windows"] == [], "no step is slower for it"
    assert all(answer.open for answer in answers(layout, asked)), "that of step 40 was for another request"
    with pytest.raises(DiagError, match="a memory snapshot has already been requested"):
        ask(layout, 3)
    layout.rank(0).memory_snapshot("asked", 101).touch()
    beat(layout, 0, 102, trace_number=1, trace_answer=TRACE_RECORDED)
    beat(layout, 1, 102, trace_number=1, trace_answer="this rank computes on the CPU")
    first, second = answers(layout, asked)
    assert (first.path, second.why_not) == (
        layout.rank(0).memory_snapshot("asked", 101), "this rank computes on the CPU",
    )  # fmt: skip
    assert ask(layout, 3).number == 2


def test_the_command_that_asks_for_memory(tmp_path: Path) -> None:
    layout = running_job(tmp_path)
    ended = diag_process("trace", layout.root, "--memory", "--no-wait", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["asked"]["memory"] is True
    assert read_record(layout.trace_asked, TraceAsked)[0].memory  # type: ignore[union-attr]
