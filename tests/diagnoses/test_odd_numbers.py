"""The first loss or gradient norm that is not finite is said with its rank and step, by every front end."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from diag.api import Result, open_run, state_of
from diag.collectors.layout import RunLayout
from diag.collectors.numbers import GRADIENT_NORM, LOSS, REPORTED_LOSS
from diag.collectors.records import NumberRecord
from diag.diagnoses.odd_numbers import JUMP, NOT_FINITE
from diag.export.definitions import NOT_FINITE as METRIC
from diag.export.run_metrics import RunMetrics
from diag.rundir.numbers import first_odd, numbers_of
from diag.watch.events import Events
from tests.app.runs import write_run
from tests.samples import opened_sample

NAN_OF_1 = {
    0: [NumberRecord(30, GRADIENT_NORM, "29.1", 0.7), NumberRecord(40, GRADIENT_NORM, "nan", 0.7),
        NumberRecord(41, LOSS, "nan", 0.3)],
    1: [NumberRecord(40, LOSS, "nan", 0.3), NumberRecord(40, GRADIENT_NORM, "nan", 0.7)],
}  # fmt: skip


def test_a_rank_s_own_loss_names_it() -> None:
    odd = first_odd(NAN_OF_1, finite=False)
    assert odd is not None
    assert (odd.step, odd.what, odd.ranks) == (40, LOSS, (1,))
    assert odd.words.replace("\u00a0", " ") == (
        "The loss of rank 1 is nan in step 40, the first that is not finite; before, it was 0.3"
    )


@pytest.mark.parametrize(
    "numbers",
    [
        {0: [NumberRecord(4, GRADIENT_NORM, "inf")], 1: [NumberRecord(4, GRADIENT_NORM, "inf")]},  # reduced already
        {0: [NumberRecord(4, LOSS, "nan")], 1: [NumberRecord(4, LOSS, "nan")]},
        {0: [NumberRecord(4, REPORTED_LOSS, "nan")], 1: []},  # rank 0 reports that of all
    ],
)
def test_what_all_ranks_have_names_none(numbers: dict[int, list[NumberRecord]]) -> None:
    odd = first_odd(numbers, finite=False)
    assert odd is not None
    assert (odd.step, odd.ranks) == (4, ())


def test_a_jump_is_another_matter() -> None:
    jump = first_odd(NAN_OF_1, finite=True)
    assert jump is not None
    assert jump.words == "The gradient norm jumps to 29.1 in step 30, usually 0.7"
    assert first_odd({0: [NumberRecord(1, LOSS, "what")]}, finite=False) is None


def with_numbers(folder: Path) -> RunLayout:
    layout = RunLayout(write_run(folder, ranks=2))
    for rank, records in NAN_OF_1.items():
        lines = [json.dumps(asdict(record) | {"step": record.step - 30}) for record in records]
        layout.rank(rank).numbers.write_text("".join(f"{line}\n" for line in lines))
    return layout


def test_a_run_with_one_is_told_once_exported_and_found(tmp_path: Path) -> None:
    layout = with_numbers(tmp_path / "run")
    found = {finding.id: finding for finding in open_run(layout.root).examination.findings}
    assert found[NOT_FINITE].ranks == (1,)
    assert found[JUMP].ranks == ()
    samples = [sample for sample in RunMetrics(layout.root).read() if sample.metric == METRIC]
    assert [(sample.value, sample.labels["culprit_ranks"]) for sample in samples] == [(10, "1")]
    events, state = Events("run"), state_of(layout.root)
    told = [events.look_at_numbers(numbers_of(layout.ranks()), state) for _ in range(2)]
    assert [(event.kind, event.ranks) for event in told[0]] == [("not-finite", (1,))]
    assert told[1] == []


def _why_not_looked(result: Result) -> str:
    return {each.diagnosis: each.reason for each in result.examination.not_looked}[NOT_FINITE]


def test_a_run_without_numbers_could_not_be_looked_at(tmp_path: Path) -> None:
    result = open_run(write_run(tmp_path / "run", ranks=2))
    assert _why_not_looked(result) == "no loss and no gradient norm was recorded"


def test_why_losses_were_not_looked_at_is_what_is_true_of_the_run() -> None:
    """On a CPU each sample has the loss of each step, and its curve is drawn."""
    assert _why_not_looked(opened_sample("ddp-healthy")).startswith("losses were recorded, but")
    assert "wait for the device" in _why_not_looked(opened_sample("gpu-memory-nearly-full"))
