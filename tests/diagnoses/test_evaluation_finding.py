"""Evaluation is in no cost, as its steps do not count: where it is much of the time, that is a finding of its own."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from pathlib import Path

import pytest

from diag.api import Result, analyze, open_run
from diag.collectors.records import CHECKPOINT, EVALUATION, FORWARD, REST
from diag.model.steps import Severity
from diag.rundir.tables import Tables
from diag.summaries import open_summaries
from tests.copies import replace
from tests.simulate import MS, Plan, simulate, without_collectives, write_run


def evaluating(ms: int, every: int = 5, count: int = 20) -> Tables:
    """Steps of 100 ms; so long an evaluation lies in one step of so many."""
    plan = Plan(steps=count, extra=lambda step, rank: {CHECKPOINT: ms * MS} if step % every == every - 1 else {})
    tables = simulate(plan)
    ranks = {}
    for rank, of_rank in tables.ranks.items():
        steps = tuple(
            replace(
                step, phases=[row._replace(phase=EVALUATION) if row.phase == CHECKPOINT else row for row in step.phases]
            )
            for step in of_rank.steps
        )
        ranks[rank] = replace(of_rank, steps=steps)
    return replace(tables, ranks=ranks)


def evaluated(ms: int, every: int = 5) -> Result:
    return analyze(evaluating(ms, every))


@pytest.mark.parametrize(("ms", "share", "level"), [(80, "14%", Severity.HEALTHY), (500, "50%", Severity.CRITICAL)])
def test_evaluation_is_told_with_its_part_of_the_time(ms: int, share: str, level: Severity) -> None:
    result = evaluated(ms)
    (finding,) = [one for one in result.examination.findings if one.id == "long-evaluation"]
    assert finding.title.startswith(
        f"Evaluation takes {share} of the recorded time, {ms * 4 / 1000:.3g} s on each rank"
    )
    assert "the 4 steps that it lies in do not count" in finding.title
    assert finding.severity == level
    assert result.verdict.severity == Severity.HEALTHY, "the training is"
    assert result.verdict.cause == ""


def test_a_short_evaluation_is_no_finding() -> None:
    assert "long evaluation" in evaluated(40).examination.not_found
    assert "long evaluation" in analyze(without_collectives(simulate(Plan()))).examination.not_found


def test_an_evaluation_in_every_step_is_part_of_the_step() -> None:
    result = evaluated(80, every=1)
    (finding,) = [one for one in result.examination.findings if one.id == "long-evaluation"]
    assert "of the counted steps contain one" in finding.title
    assert len(result.attribution.usable) > 10


def test_evaluation_is_told_from_summaries_as_from_the_records(tmp_path: Path) -> None:
    layout = write_run(evaluating(500, count=60), tmp_path)
    full, short = open_run(layout.root), open_summaries(layout.root)
    told = [next(one for one in result.examination.findings if one.id == "long-evaluation") for result in (full, short)]
    assert told[0].title == told[1].title
    assert told[0].severity == told[1].severity == Severity.CRITICAL
    assert short.attribution.usable.step.tolist() == full.attribution.usable.step.tolist()
    assert short.verdict.severity == Severity.HEALTHY, "the training is"


def test_an_evaluation_whose_time_an_older_version_left_out_is_not_denied(tmp_path: Path) -> None:
    layout = write_run(evaluating(500, count=60), tmp_path)
    for files in layout.ranks().values():
        lines = [json.loads(line) for line in files.summary.read_text().splitlines()]
        for line in lines:
            values, at = b64decode(line["values"]), line["columns"].index(EVALUATION)
            width = 4 * line["count"]
            line["values"] = b64encode(values[: at * width] + values[(at + 1) * width :]).decode()
            del line["columns"][at]
        files.summary.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (unseen,) = [
        one for one in open_summaries(layout.root).examination.not_looked if one.diagnosis == "long-evaluation"
    ]
    assert "do not say how long an evaluation took" in unseen.reason


@pytest.mark.parametrize("phase", [FORWARD, REST])
def test_an_evaluation_that_was_not_recognized_is_not_denied(phase: str) -> None:
    """It makes one step in five longer, in forward or between the phases."""
    plan = Plan(steps=40, extra=lambda step, rank: {phase: 600 * MS} if step % 5 == 4 else {})
    examination = analyze(simulate(plan)).examination
    assert "long evaluation" not in examination.not_found
    (unseen,) = [one for one in examination.not_looked if one.diagnosis == "long-evaluation"]
    assert "a few steps spend" in unseen.reason
