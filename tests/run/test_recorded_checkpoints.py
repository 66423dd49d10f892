"""Checkpoints of recorded runs: their time is a phase and a line of their own, and no communication of a step."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from diag.api import analyze
from diag.collectors.layout import RunLayout
from diag.collectors.records import CHECKPOINT, CheckpointRecord, Manifest, StepRecord
from diag.rundir.lines import read_lines, read_record
from diag.rundir.run import open_paths
from tests.patience import PATIENCE_S
from tests.trainer.launching import launch

SCRIPT = str(Path(__file__).with_name("recorded_runs.py"))
RUN = {"steps": 9, "num_workers": 0, "batch_size": 2, "seq_len": 32, "checkpoint_every": 3}
PLACES = {"background": {}, "foreground": {"checkpoint_async": False}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunLayout]:
    root = tmp_path_factory.mktemp("runs")
    asked = [{"out": str(root / name), "options": {**RUN, **options}} for name, options in PLACES.items()]
    resumed = {**RUN, "resume": str(root / "background" / "checkpoints" / "step-00000003")}
    asked.append({"out": str(root / "resumed"), "options": resumed})
    ended = launch([SCRIPT, json.dumps(asked)], collect=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr[-5000:]
    return {path.name: RunLayout(path) for path in root.iterdir()}


@pytest.mark.parametrize("place", PLACES)
def test_every_rank_tells_what_each_checkpoint_cost(runs: dict[str, RunLayout], place: str) -> None:
    for rank in runs[place].ranks().values():
        saved, gaps = read_lines(rank.checkpoints, CheckpointRecord)
        steps = {step.step: step for step in read_lines(rank.steps, StepRecord)[0]}
        assert not gaps
        assert [(record.step, record.failed) for record in saved] == [(2, ""), (5, ""), (8, "")]
        for record in saved:
            (phase,) = [row for row in steps[record.step].phases if row.phase == CHECKPOINT]
            assert phase.start_ns <= record.start_ns
            assert record.start_ns + record.blocking_ns <= phase.end_ns
            assert record.bytes > 400_000
            assert record.asynchronous == (record.background_ns > 0) == (place == "background")
        assert {step for step, own in steps.items() if any(row.phase == CHECKPOINT for row in own.phases)} == {2, 5, 8}


def test_what_ranks_say_to_each_other_about_checkpoints_is_no_collective_of_a_step(runs: dict[str, RunLayout]) -> None:
    tables = open_paths([runs["background"].root])
    for own in tables.ranks.values():
        assert {row.op for row in own.rows} == {"all_gather", "reduce_scatter", "all_reduce"}
        assert len(own.checkpoints) == 3
    assert not tables.gaps


def test_a_resumed_run_goes_on_counting_and_says_from_where(runs: dict[str, RunLayout]) -> None:
    layout = runs["resumed"]
    steps = [step.step for step in read_lines(layout.rank(0).steps, StepRecord)[0]]
    assert steps == list(range(3, 9))
    manifest, _ = read_record(layout.manifest, Manifest)
    assert manifest is not None
    assert manifest.resumed_from.endswith("background/checkpoints/step-00000003")
    assert manifest.trainer["resumed"]["steps"] == 3
    assert manifest.trainer["resumed"]["differences"] == []
    assert manifest.trainer["resumed"]["load_ns"] > 0
    assert [step.step for step in analyze(open_paths([layout.root])).attribution.steps] == steps
    assert all(later - earlier == 1 for earlier, later in pairwise(steps))
