"""What a long run leaves at its byte budget: the newest in full, older steps at a coarser resolution."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.collectors.layout import RankLayout, RunLayout, part_of, parts_of
from diag.collectors.records import CollectiveLine, StepRecord, SumLine
from diag.rundir.lines import RestartedError, Tail, last_steps, read_lines
from diag.rundir.step_lines import CollectiveLines
from diag.rundir.summaries import read_summaries
from tests.long_run import LongRun

CALLS = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> RankLayout:
    run = LongRun(tmp_path_factory.mktemp("run"), byte_budget=500_000, calls=CALLS)
    run.train(3_000)
    run.close()
    return RunLayout(run.folder).rank(0)


def test_the_newest_steps_are_there_in_full(files: RankLayout) -> None:
    steps = [record.step for record in read_lines(files.steps, StepRecord)[0]]
    lines, _ = read_lines(files.collectives, CollectiveLine)
    assert steps == list(range(steps[0], 3_000))
    assert steps[0] > 0
    assert {len(line.rows) for line in lines} == {CALLS}
    assert lines[-1].step == 2_999
    assert len(lines) > 150


def test_each_step_is_known_at_some_resolution(files: RankLayout) -> None:
    summaries = read_summaries(RunLayout(files.run), most_steps=3_000)
    assert summaries.numbers[-1] == 2_999
    assert not summaries.from_start
    for steps, stream in files.sums.items():
        lines = read_lines(stream, SumLine)[0]
        assert lines[0].first == 0
        assert lines[-1].last == 2_999
        assert sum(line.count for line in lines) == 3_000
        assert all(line.count == steps for line in lines[:-1])
        assert sum(line.columns["step"] for line in lines) == pytest.approx(3_000 * 1e6)
        assert sum(line.losses for line in lines) == 3_000


def test_the_whole_stays_below_the_budget_in_few_files(files: RankLayout) -> None:
    there = list(files.folder.iterdir())
    assert sum(file.stat().st_size for file in there) < 500_000
    assert len(there) < 40


def test_groups_are_named_in_what_is_left(files: RankLayout) -> None:
    assert parts_of(files.collectives)[0] != files.collectives
    read = CollectiveLines(files.collectives, files.run).of_steps([(2_990, 3_000)])
    assert set(read.rows.step.tolist()) == set(range(2_990, 3_000))
    assert read.groups == {"0": [0, 1]}


def test_steps_of_two_parts_are_found(files: RankLayout) -> None:
    last = read_lines(parts_of(files.collectives)[-1], CollectiveLine)[0][0].step
    read = CollectiveLines(files.collectives, files.run).of_steps([(last - 5, last + 5)])
    assert sorted(set(read.rows.step.tolist())) == list(range(last - 5, last + 5))


def test_the_last_steps_are_read_where_the_newest_part_is_short(tmp_path: Path) -> None:
    stream = tmp_path / "ranks" / "00000" / "steps.jsonl"
    stream.parent.mkdir(parents=True)
    for number, steps in enumerate((range(30), range(30, 32))):
        text = "".join(f'{{"step": {step}, "begin_ns": {step}, "end_ns": {step + 1}}}\n' for step in steps)
        part_of(stream, number).write_text(text)
    assert [record.step for record in last_steps(stream)] == list(range(12, 32))


def test_a_follower_sees_each_step_once_while_parts_come_and_go(tmp_path: Path) -> None:
    run = LongRun(tmp_path, byte_budget=200_000, calls=2)
    tail = Tail(RunLayout(tmp_path).rank(0).steps, StepRecord)
    seen: list[int] = []
    for _ in range(400):
        run.train(5)
        seen += [record.step for record in tail.read()]
    run.close()
    seen += [record.step for record in tail.read()]
    assert seen == list(range(2_000))


def test_a_follower_that_was_left_behind_goes_on_with_what_is_there(tmp_path: Path) -> None:
    run = LongRun(tmp_path, byte_budget=200_000, calls=2)
    stream = RunLayout(tmp_path).rank(0).steps
    tail = Tail(stream, StepRecord)
    run.train(40)
    assert len(tail.read()) > 0
    run.train(1_000)
    run.close()
    kept = [record.step for record in read_lines(stream, StepRecord)[0]]
    assert [record.step for record in tail.read()] == kept


def test_a_follower_begins_near_the_end_of_a_large_stream(tmp_path: Path) -> None:
    stream = tmp_path / "ranks" / "00000" / "steps.jsonl"
    stream.parent.mkdir(parents=True)
    for number in range(3):
        text = "".join(
            f'{{"step": {step}, "begin_ns": 0, "end_ns": 1, "phases": []}}\n'
            for step in range(100 * number, 100 * number + 100)
        )
        part_of(stream, number).write_text(text)
    most = stream.stat().st_size * 3 // 2
    steps = [record.step for record in Tail(stream, StepRecord, most).read()]
    assert 100 < steps[0] < 200
    assert steps[-1] == 299


def test_a_follower_says_that_the_files_are_others(tmp_path: Path) -> None:
    stream = tmp_path / "ranks" / "00000" / "steps.jsonl"
    stream.parent.mkdir(parents=True)
    line = '{"step": 0, "begin_ns": 0, "end_ns": 1, "phases": []}\n'
    part_of(stream, 3).write_text(line)
    tail = Tail(stream, StepRecord)
    assert len(tail.read()) == 1
    part_of(stream, 3).unlink()
    stream.write_text(line)
    with pytest.raises(RestartedError):
        tail.read()
