"""A training that has not ended and makes no progress is said to make none, however alive one of its ranks is."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from diag.api import RunState, state_of
from diag.app.views.live import progress_line
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from diag.collectors.records import Heartbeat
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


def words(state: RunState) -> str:
    assert state.standstill is not None
    return state.standstill.words.replace("\u00a0", " ")


def test_steps_that_end_are_progress(tmp_path: Path) -> None:
    state = training(tmp_path / "run", {0: (1, 0.1, "forward"), 1: (2, 0.1, "backward")})
    assert (state.label, state.standstill) == ("training", None)


def test_a_rank_that_is_silent_is_not_covered_by_one_that_lives(tmp_path: Path) -> None:
    """As after SIGSTOP: the others wait in a collective and send heartbeats."""
    state = training(tmp_path / "run", {0: (1, 40, "backward"), 1: (42, 0, "forward")}, steps=3000)
    assert state.live
    assert state.label == "stalled"
    assert words(state) == "no step for 41 s (rank 1 silent for 42 s)"
    line = progress_line(Progress(12, 3000, 180e9, 19.0, None), state.standstill).replace("\u00a0", " ")
    assert line == "step 12 of 3,000 · no step for 41 s (rank 1 silent for 42 s)"


def test_a_rank_that_is_silent_while_steps_end(tmp_path: Path) -> None:
    state = training(tmp_path / "run", {0: (1, 0.1, "forward"), 1: (42, 0, "forward")})
    assert (state.label, words(state)) == ("stalled", "rank 1 silent for 42 s")


def test_the_first_rank_may_be_the_silent_one(tmp_path: Path) -> None:
    state = training(tmp_path / "run", {0: (60, 0, "forward"), 1: (1, 59, "backward")})
    assert words(state) == "no step for 1 min (rank 0 silent for 1 min)"


def test_nobody_is_silent_but_no_step_ends(tmp_path: Path) -> None:
    state = training(tmp_path / "run", {0: (1, 40, "forward"), 1: (1, 40, "backward")})
    assert (state.label, words(state)) == ("stalled", "no step for 41 s")


def test_a_rank_that_raised(tmp_path: Path) -> None:
    state = training(tmp_path / "run", {0: (1, 40, "backward"), 1: (42, 0, "failed: RuntimeError")})
    assert (state.label, words(state)) == ("stalled", "no step for 41 s (rank 1 raised RuntimeError)")


def test_an_announced_evaluation_is_named_and_no_stall(tmp_path: Path) -> None:
    state = training(tmp_path / "run", {0: (1, 40, "evaluation"), 1: (1, 40, "backward")})
    assert (state.label, words(state)) == ("training", "no step for 41 s (rank 0 in its evaluation)")


def test_a_rank_that_is_done_is_not_silent(tmp_path: Path) -> None:
    assert training(tmp_path / "run", {0: (50, 0, "done"), 1: (1, 0.1, "forward")}).standstill is None


def test_after_the_last_planned_step_nothing_stalls(tmp_path: Path) -> None:
    assert training(tmp_path / "run", {0: (1, 40, "backward")}, steps=12).label == "training"


@pytest.mark.parametrize("broken", [b"", b"{", b'{"unix_ns": "x"}'])
def test_a_damaged_heartbeat_says_nothing(tmp_path: Path, broken: bytes) -> None:
    training(tmp_path / "run", {0: (1, 0.1, "forward"), 1: (42, 0, "forward")})
    file = RunLayout(tmp_path / "run").rank(1).heartbeat
    file.write_bytes(broken)
    assert state_of(tmp_path / "run", NOW).standstill is None
