"""Steps that not all of the ranks recorded which record: one was killed, or its disk was full."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Container
from pathlib import Path

import pytest
from msgspec.structs import replace

from diag.api import Result, analyze, open_run
from diag.collectors.layout import RunLayout
from diag.collectors.records import DATA
from diag.diagnoses.costs import Cost
from diag.model.steps import Bottleneck
from tests.pieces import edit
from tests.simulate import MS, Plan, simulate

STEPS = 40
SAMPLES = Path(__file__).parents[2] / "sample_traces"


def without(steps: Container[int], ranks: Container[int]) -> Result:
    """Of a run in which rank 1 is waited for, without what these ranks recorded of these steps."""
    slow = Plan(ranks=4, steps=STEPS, extra=lambda _, rank: {DATA: 60 * MS} if rank == 1 else {})
    tables = simulate(slow)
    cut = {
        rank: replace(own, steps=tuple(step for step in own.steps if step.step not in steps)) if rank in ranks else own
        for rank, own in tables.ranks.items()
    }
    return analyze(replace(tables, ranks=cut))


@pytest.mark.parametrize(
    ("steps", "ranks", "note"),
    [
        (range(30, STEPS), (1,), "rank 1 did not record it"),
        (range(20, STEPS), (0, 1, 3), "ranks 0-1, 3 did not record it"),
        (range(10, 17), (2,), "rank 2 did not record it"),
    ],
)
def test_they_do_not_count(steps: range, ranks: tuple[int, ...], note: str) -> None:
    result = without(steps, ranks)
    assert {step.step: step.note for step in result.attribution.steps if step.step in steps} == dict.fromkeys(
        steps, note
    )
    assert {step.step for step in result.attribution.usable}.isdisjoint(steps)
    assert (result.verdict.bottleneck, result.verdict.culprit_ranks) == (Bottleneck.DATA, (1,))
    assert result.verdict.cause == "slow-data-one-rank"
    shares, whole = result.examination.shares, without((), ()).examination.shares
    for cost in (Cost.DATA, Cost.COMM):
        assert shares.share(cost) == pytest.approx(whole.share(cost), abs=0.02)


def test_of_a_rank_that_recorded_a_few_only_the_common_steps_count() -> None:
    result = without(range(12, STEPS), (2,))
    assert {step.step for step in result.attribution.usable} == set(range(2, 12))
    assert result.verdict.culprit_ranks == (1,)


def test_a_rank_that_recorded_hardly_any_does_not_take_the_others_steps_away() -> None:
    result = without(range(5, STEPS), (2,))
    assert len(result.attribution.usable) > STEPS - 5
    assert result.verdict.culprit_ranks == (1,)
    assert result.coverage.ranks_missing == (2,)
    assert [gap.reason for gap in result.coverage.skipped] == [
        "rank 2 recorded 5 steps, too few in common with the other ranks; left out"
    ]


@pytest.mark.parametrize(
    ("beat", "why"),
    [
        (16, "the others were never written"),
        (12, "it ended before the others were trained, or before they were written"),
    ],
)
def test_a_rank_that_ended_early_did_not_train_what_the_others_did(tmp_path: Path, beat: int, why: str) -> None:
    run = RunLayout(tmp_path / "run")
    shutil.copytree(SAMPLES / "ddp-healthy", run.root)
    files = run.rank(1)
    lines = files.steps.read_text().splitlines(keepends=True)
    assert len(lines) == 16
    files.steps.write_text("".join(lines[:10]))
    last = json.loads(files.heartbeat.read_bytes())
    files.heartbeat.write_text(json.dumps({**last, "done": False, "steps": beat}))
    gaps = {gap.path: gap.reason for gap in open_run(run.root).coverage.skipped}
    finished = max(beat, 15)  # the others' last step may have begun alone
    assert gaps[str(files.steps)] == f"holds 10 of {finished} steps: {why}"


@pytest.mark.parametrize("off_s", [-600, 600])
@pytest.mark.parametrize(("silent_s", "said"), [(1, False), (120, True)])
def test_whether_a_rank_writes_its_steps_later_is_by_the_clock_of_the_storage(
    tmp_path: Path, off_s: int, silent_s: int, said: bool
) -> None:
    """A rank on another node, whose clock is ten minutes late or ahead."""
    run = RunLayout(tmp_path / "run")
    shutil.copytree(SAMPLES / "ddp-healthy", run.root)
    edit(run.manifest, exit_code=None)
    files, now = run.rank(1), time.time_ns()
    files.steps.write_text("".join(files.steps.read_text().splitlines(keepends=True)[:10]))
    for path, at, fields in (
        (files.identity, now - 3600 * 10**9, {"host": "another"}),
        (files.heartbeat, now - silent_s * 10**9, {"done": False}),
    ):
        edit(path, unix_ns=at + off_s * 10**9, **fields)
        os.utime(path, ns=(at, at))
    reasons = [gap.reason for gap in open_run(run.root).coverage.skipped if gap.path == str(files.steps)]
    assert any("steps: " in reason for reason in reasons) is said
