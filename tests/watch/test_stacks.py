"""Stacks on request: of a training that is stuck, or that has not begun its steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from diag.collectors.layout import ABOUT_PACKER
from diag.errors import DiagError
from diag.hang.api import triage
from diag.watch import stacks
from diag.watch.reach import Reach
from tests.watch.running_job import beat, running_job


def test_a_training_before_its_first_step_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for data or for a file system for ever, and nothing else shows where."""
    monkeypatch.setattr(stacks, "WATCHING", SimpleNamespace(answer_s=0.1, poll_hang_s=0.05))
    run = running_job(tmp_path / "run", step=0)
    for rank in range(2):
        beat(run, rank, -1)
    assert stacks.take_stacks(Reach(str(run.root))) == [0, 1]  # nobody is there to answer
    assert run.asked.is_file()
    stacks.take_request_back(Reach(str(run.root)))
    assert not run.asked.exists()


def test_a_triage_before_the_first_step_advises_it(tmp_path: Path) -> None:
    run = running_job(tmp_path / "run", step=0)
    for rank in range(2):
        beat(run, rank, -1)
    assert f"`diag triage {run.root} --stacks` takes the stacks of all ranks." in triage([str(run.root)]).next_steps


def test_a_training_that_goes_on_is_not(tmp_path: Path) -> None:
    run = running_job(tmp_path / "run")
    with pytest.raises(DiagError, match="is not stuck") as refused:
        stacks.take_stacks(Reach(str(run.root)))
    assert "ask again" not in str(refused.value.hint)
    assert not run.asked.exists()


def test_what_packers_carry_may_have_stopped_since(tmp_path: Path) -> None:
    run = running_job(tmp_path / "run")
    (run.root / ABOUT_PACKER).write_text('{"interval_s": 30}')
    with pytest.raises(DiagError, match="is not stuck") as refused:
        stacks.take_stacks(Reach(str(run.root)))
    assert "its records may be 75 s old: ask again if it has stopped since" in str(refused.value.hint)
