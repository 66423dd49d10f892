"""What a long run leaves at its byte budget: the newest in full, older steps at a coarser resolution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diag.collectors.layout import RankLayout, RunLayout, part_of, parts_of
from diag.collectors.records import RESTART, STALLED, VERDICT, CollectiveLine, KeptLine, StepRecord, SumLine
from diag.collectors.step_places import complete_from
from diag.rundir import lines as reading
from diag.rundir.lines import last_steps, read_lines
from diag.rundir.step_lines import CollectiveLines
from diag.rundir.summaries import read_summaries
from diag.rundir.tail import RestartedError, Tail
from diag.watch.keeping import ask_to_keep
from tests.long_run import LongRun, S

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


def test_streams_that_are_there_have_the_number_of_their_oldest_part(tmp_path: Path) -> None:
    files = RankLayout(tmp_path / "00000")
    assert files.streams() == {}
    files.folder.mkdir()
    for path in (files.steps, part_of(files.steps, 2), part_of(files.collectives, 12), part_of(files.collectives, 3)):
        path.touch()
    for name in ("steps.txt", "log.1.jsonl", "heartbeat.json"):
        files.at(name).touch()
    assert files.streams() == {"steps": 0, "collectives": 3}


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
        part_of(stream, number).write_text("".join(map(step_line, steps)))
    assert [record.step for record in last_steps(stream)] == list(range(12, 32))


def step_line(step: int) -> str:
    return f'{{"step": {step}, "begin_ns": {step}, "end_ns": {step + 1}}}\n'


@pytest.mark.parametrize("steps", [0, 1, 19, 20, 21, 300])
@pytest.mark.parametrize("damaged", [(), (1,), (2, 5)])  # lines, counted from the end
@pytest.mark.parametrize("end", ["", '{"step": 9'])
def test_the_last_steps_are_those_that_can_be_read(
    tmp_path: Path, steps: int, damaged: tuple[int, ...], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = tmp_path / "ranks" / "00000" / "steps.jsonl"
    stream.parent.mkdir(parents=True)
    bad = {steps - at for at in damaged}
    stream.write_text("".join("{]\n" if step in bad else step_line(step) for step in range(steps)) + end)
    decoded: list[int] = []
    whole = reading._all_records

    def counting(piece: bytes, *given: Any) -> Any:
        decoded.append(piece.count(b"\n"))
        return whole(piece, *given)

    monkeypatch.setattr(reading, "_all_records", counting)
    assert [record.step for record in last_steps(stream)] == [at for at in range(steps) if at not in bad][-20:]
    if steps == 300 and len(damaged) < 2 and not (damaged and end):
        assert sum(decoded) <= 21


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


# -- incidents ---------------------------------------------------------------------------------------------------------


def kept_of(files: RankLayout) -> list[KeptLine]:
    return read_lines(files.kept, KeptLine)[0]


@pytest.mark.parametrize("on_device", [False, True])
def test_the_steps_around_a_stall_are_kept_in_full(on_device: bool, tmp_path: Path) -> None:
    run = LongRun(tmp_path, byte_budget=6_000_000, calls=CALLS, on_device=on_device)
    run.train(400)
    run.train(1, longer_ns=30 * S)
    run.train(2_000)
    run.close()
    files = RunLayout(tmp_path).rank(0)
    assert (complete_from(files) or 0) > 500
    (line,) = kept_of(files)
    assert (line.first, line.last, line.why) == (380, 420, STALLED)
    assert [record.step for record in line.steps] == list(range(380, 421))
    assert {each.step: len(each.rows) for each in line.collectives} == dict.fromkeys(range(380, 421), CALLS)
    assert [record.step for record in line.device_steps] == (list(range(380, 421)) if on_device else [])


def test_the_steps_that_the_watcher_asks_for_are_kept_once(tmp_path: Path) -> None:
    run = LongRun(tmp_path, byte_budget=4_000_000, calls=CALLS)
    files = RunLayout(tmp_path).rank(0)
    run.train(100)
    for first in (70, 80, 2_050):
        ask_to_keep(RunLayout(tmp_path), first, first + 30, VERDICT)
        run.train(1_000)
    run.close()
    assert [(line.first, line.last, line.why) for line in kept_of(files)] == [
        (70, 100, VERDICT),
        (2_050, 2_080, VERDICT),
    ]


def test_the_first_steps_after_a_restart_are_kept(tmp_path: Path) -> None:
    run = LongRun(tmp_path, byte_budget=200_000, calls=1)
    run.train(10)
    again = LongRun(RunLayout(tmp_path).restart(1).root, byte_budget=4_000_000, calls=1, first_step=5)
    again.train(100)
    assert not kept_of(RunLayout(tmp_path).rank(0))
    (line,) = kept_of(RunLayout(tmp_path).restart(1).rank(0))
    assert (line.first, line.last, line.why) == (5, 45, RESTART)


def test_evaluations_checkpoints_and_slow_first_steps_are_no_incidents(tmp_path: Path) -> None:
    run = LongRun(tmp_path, byte_budget=500_000, calls=1)
    run.train(5, longer_ns=60 * S)
    run.train(300)
    run.train(1, saved_ns=60 * S)
    run.train(300)
    run.close()
    assert not kept_of(RunLayout(tmp_path).rank(0))


def test_what_incidents_take_stays_in_its_share_and_the_oldest_goes(tmp_path: Path) -> None:
    run = LongRun(tmp_path, byte_budget=500_000, calls=CALLS)
    for _ in range(12):
        run.train(1_000)
        run.train(1, longer_ns=30 * S)
    run.train(100)
    run.close()
    files = RunLayout(tmp_path).rank(0)
    assert sum(part.stat().st_size for part in parts_of(files.kept)) <= 500_000 * 7 // 98
    lines = kept_of(files)
    assert 2 <= len(lines) < 12
    assert lines[-1].first < 12_011 < lines[-1].last
    assert len(list(files.folder.iterdir())) < 40


def test_repeated_stalls_do_not_displace_other_incidents(tmp_path: Path) -> None:
    run = LongRun(tmp_path, byte_budget=1_500_000, calls=1)
    for _ in range(30):
        run.train(60)
        run.train(1, longer_ns=30 * S)
    run.train(100)
    assert len(kept_of(RunLayout(tmp_path).rank(0))) == 2
