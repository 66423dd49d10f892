"""What a run is doing, told from its files alone."""

import json
import os
import random
import shlex
import time
from pathlib import Path

import pytest

from diag.api import State, newest_change, open_run, state_of
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from diag.rundir.policy import SILENCE
from diag.show.json import save
from tests.app.runs import COMPUTE_MS, QUICK_DATA_MS, TRANSFER_MS, write_run
from tests.command import diag

STEP_NS = (QUICK_DATA_MS + COMPUTE_MS + TRANSFER_MS) * 1_000_000


def running(path: Path) -> Path:
    """A run without an end."""
    write_run(path)
    layout = RunLayout(path)
    content = json.loads(layout.manifest.read_text())
    layout.manifest.write_text(json.dumps({**content, "exit_code": None}))
    return path


def test_a_run_that_ended(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ranks=3)
    state = state_of(run)
    assert (state.state, state.ranks, state.world_size, state.strategy) == (State.FINISHED, 3, 3, "ddp")
    assert (state.last_step, state.step_ns, state.answer) == (11, STEP_NS, None)


def test_a_run_that_failed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    update_manifest(RunLayout(run), exit_code=137)
    assert (state_of(run).state, state_of(run).exit_code) == (State.FAILED, 137)


def test_a_run_lives_while_it_writes_or_its_heart_beats(tmp_path: Path) -> None:
    run = running(tmp_path / "run")
    written = newest_change(run)
    soon, late = written + 10**9, written + round((SILENCE.silent_s + 1) * 1e9)
    assert state_of(run, soon).state == State.TRAINING
    assert state_of(run, late).state == State.UNKNOWN  # on a host that cannot be seen
    assert state_of(run, written + 10**12).state == State.UNCLOSED
    beat = RunLayout(run).rank(1).heartbeat
    beat.write_text("{}")
    os.utime(beat, ns=(late, late))
    assert state_of(run, late).state == State.TRAINING
    assert newest_change(run) == written  # a heartbeat is no reason to analyse again


def test_ranks_that_import_their_libraries_are_starting(tmp_path: Path) -> None:
    run = running(tmp_path / "run")
    for files in RunLayout(run).ranks().values():
        files.steps.unlink()
    began = newest_change(run)
    for silent_s, expected in (
        (SILENCE.silent_s + 1, State.STARTING),
        (SILENCE.first_silent_s - 1, State.STARTING),
        (SILENCE.first_silent_s + 1, State.UNKNOWN),
    ):
        assert state_of(run, began + round(silent_s * 1e9)).state == expected


@pytest.mark.parametrize("name", ["steps.jsonl", "trace-step000100.json.gz"])
def test_a_new_record_is_a_change(tmp_path: Path, name: str) -> None:
    run = running(tmp_path / "run")
    before = newest_change(run)
    file = RunLayout(run).rank(1).folder / name
    with file.open("ab") as out:
        out.write(b"\n")
    os.utime(file, ns=(before + 1000, before + 1000))
    assert newest_change(run) == before + 1000


def test_a_line_that_is_being_written_is_not_a_step(tmp_path: Path) -> None:
    run = running(tmp_path / "run")
    with RunLayout(run).rank(0).steps.open("a") as out:
        out.write('{"step": 12, "begin_ns": 5')
    assert state_of(run).last_step == 11


def test_an_answer_counts_until_there_are_newer_records(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", slow_data_ms={1: 40})
    layout, result = RunLayout(run), open_run(run)
    assert state_of(run).answer is None
    save(result)
    later = newest_change(run) + 10**9
    os.utime(layout.verdict, ns=(later, later))
    assert state_of(run).answer == result.verdict
    assert result.verdict.culprit_ranks == (1,)
    os.utime(layout.rank(0).steps, ns=(later + 1, later + 1))
    assert state_of(run).answer is None


@pytest.mark.parametrize("content", [b"", b"{}", b'{"verdict": {"headline": "It is rank 1.", "severity": "bad"}}'])
def test_a_damaged_answer_is_none(tmp_path: Path, content: bytes) -> None:
    run = write_run(tmp_path / "run")
    later = newest_change(run) + 10**9
    RunLayout(run).verdict.write_bytes(content)
    os.utime(RunLayout(run).verdict, ns=(later, later))
    assert state_of(run).answer is None


def test_what_is_no_run_is_recorded_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{}")
    assert state_of(tmp_path).state == State.RECORDED
    assert state_of(tmp_path / "nothing").changed_ns == 0


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b'{"exit_code": "no", "world_size": true}'])
def test_a_damaged_manifest_says_nothing(tmp_path: Path, content: bytes) -> None:
    run = write_run(tmp_path / "run")
    RunLayout(run).manifest.write_bytes(content)
    state = state_of(run, time.time_ns())
    assert (state.world_size, state.exit_code, state.last_step) == (None, None, 11)


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_answer_is_not_shown(tmp_path: Path, seed: int) -> None:
    run = write_run(tmp_path / "run")
    save(open_run(run))
    file = RunLayout(run).verdict
    assert state_of(run).answer is not None
    content = bytearray(file.read_bytes())
    at = random.Random(seed).randrange(len(content))
    content[at] ^= 1  # a digit becomes another digit
    file.write_bytes(content)
    assert state_of(run).answer is None


def test_another_attempt_is_named_with_the_command_that_analyses_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "the run", ranks=2)
    again = write_run(RunLayout(run).restart(1).root, ranks=2)
    (note,) = [note for note in open_run(run).coverage.notes if "attempt" in note]
    words = shlex.split(note.removeprefix("to see attempt 1: ").partition("; ")[0])
    assert words == ["diag", "analyze", f"{run}/restart-0"]
    (note,) = [note for note in open_run(words[2]).coverage.notes if "attempt" in note]
    words = shlex.split(note.removeprefix("to see attempt 2: ").partition("; ")[0])
    assert words == ["diag", "analyze", str(again)]
    assert diag(*words[1:]).stdout.startswith("2 of 2 ranks")
