"""Steps that wait to be written: for how long, and that none is lost between two threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from diag.collectors.budget import Budget, Complaints, LineFile
from diag.collectors.calls import RecordedCall
from diag.collectors.policy import RECORDING
from diag.collectors.records import CollectiveLine, RankRecord, StepRecord, SummaryLine
from diag.collectors.step_lines import StepLines, StepSummary, TimerRecords
from diag.rundir.lines import read_lines

MS = 1_000_000
WHO = RankRecord(0, 0, 1, "host-a", 1, "boot", 0, 0, "cpu")
NOTHING = TimerRecords([], {}, 0)
FIRST = 20  # steps that do not wait


class Written:
    """The three files of a rank that has steps of ``length_ms``, from the first that may wait on unless ``early``."""

    def __init__(self, folder: Path, length_ms: int, early: bool = False) -> None:
        self.paths = [folder / name for name in ("steps.jsonl", "collectives.jsonl", "summary.jsonl")]
        complaints, budget = Complaints(0), Budget(1 << 30)
        steps, collectives, summary = (LineFile(path, budget, complaints) for path in self.paths)
        self.lines = StepLines(steps, collectives, StepSummary(summary, WHO, 10))
        self.length_ns = length_ms * MS
        for number in range(0 if early else FIRST):
            self.add(number - FIRST)
        self.before = [path.stat().st_size if path.exists() else 0 for path in self.paths]

    def add(self, number: int, taken: TimerRecords = NOTHING, **fields: Any) -> None:
        begin = (1 + FIRST + number) * self.length_ns
        self.lines.add(StepRecord(number, begin, begin + self.length_ns, [], **fields), taken)

    def steps(self) -> list[int]:
        path = self.paths[0]
        return [step.step for step in read_lines(path, StepRecord)[0] if step.step >= 0] if path.exists() else []


def call(step: int, seq: int) -> tuple[int, list[RecordedCall]]:
    return step, [RecordedCall(step, "0", seq, "all_reduce", 4, "float32", 5, False, end_ns=9)]


def test_short_steps_wait_for_each_other(tmp_path: Path) -> None:
    written = Written(tmp_path, 450)
    for number in range(3):
        written.add(number)
    assert written.steps() == []
    written.add(3)  # which makes 24, a multiple of the 4 that last 1,800 ms
    assert written.steps() == [0, 1, 2, 3]


def test_ranks_of_which_one_is_a_little_slower_write_after_the_same_steps(tmp_path: Path) -> None:
    """Of 16 and of 32 steps together."""
    ranks = [Written(tmp_path / str(rank), length) for rank, length in enumerate([62, 63])]
    written: list[set[int]] = [set(), set()]
    for number in range(200):
        for found, rank in zip(written, ranks, strict=True):
            rank.add(number)
            if rank.steps()[-1:] == [number]:
                found.add(number + FIRST + 1)
    assert written == [set(range(32, FIRST + 201, 32)), set(range(32, FIRST + 201, 16))]


def test_a_step_that_is_much_longer_does_not_wait(tmp_path: Path) -> None:
    written = Written(tmp_path, 100)
    written.add(0)
    written.length_ns = 3000 * MS
    written.add(1)
    assert written.steps() == [0, 1]


def test_the_first_steps_do_not_wait(tmp_path: Path) -> None:
    written = Written(tmp_path, 10, early=True)
    for number in range(FIRST + 1):
        written.add(number)
        assert written.steps() == list(range(min(number + 1, FIRST)))


def test_long_steps_do_not_wait(tmp_path: Path) -> None:
    written = Written(tmp_path, 1001)
    for number in range(3):
        written.add(number)
        assert written.steps() == list(range(number + 1))


def test_one_write_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written(tmp_path, 10)
    sizes = []
    original = os.write

    def write(fd: int, data: bytes) -> int:
        sizes.append(len(data))
        return original(fd, data)

    monkeypatch.setattr(os, "write", write)
    for number in range(5):
        written.add(number, TimerRecords([call(number, number)], {"0": [0]} if number == 0 else {}, 0))
    written.lines.write()
    steps, collectives, summary = (
        path.stat().st_size - size for path, size in zip(written.paths, written.before, strict=True)
    )
    assert sizes == [collectives, steps, summary]  # a step is there only with its collectives
    lines, _ = read_lines(written.paths[1], CollectiveLine)
    assert [(line.step, line.rows[0].seq, line.groups) for line in lines] == [
        (number, number, {"0": [0]} if number == 0 else {}) for number in range(5)
    ]


def test_a_step_whose_collectives_found_no_room_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be all computation. What is known of a group comes with the next line."""
    written = Written(tmp_path, 10)
    for number in range(5):
        calls = [call(number, number)] if number != 3 else []
        written.add(number, TimerRecords(calls, {"ab"[number // 2]: [0]} if number in (0, 2) else {}, 1))
    original = os.write

    def write(fd: int, data: bytes) -> int:
        return original(fd, data[: 2 * len(data) // 3] if b'"rows"' in data else data)

    monkeypatch.setattr(os, "write", write)
    written.lines.write()
    monkeypatch.undo()
    assert written.steps() == [0, 1, 3]
    written.add(5, TimerRecords([call(5, 5)], {}, 1))
    written.lines.write()
    assert written.steps() == [0, 1, 3, 5]
    lines, gaps = read_lines(written.paths[1], CollectiveLine)
    assert gaps == []
    assert [(line.step, line.groups, line.dropped) for line in lines] == [
        (0, {"a": [0]}, 1), (1, {}, 1), (5, {"b": [0]}, 4),
    ]  # fmt: skip


def test_groups_and_what_was_dropped_wait_for_a_call(tmp_path: Path) -> None:
    written = Written(tmp_path, 10)
    written.add(0, TimerRecords([], {"a": [0]}, 2))
    written.lines.write()
    written.add(1, TimerRecords([], {"b": [0]}, 1))
    written.add(2, TimerRecords([call(1, 0), call(2, 1)], {}, 0))
    written.lines.write()
    lines, _ = read_lines(written.paths[1], CollectiveLine)
    assert [(line.step, line.groups, line.dropped) for line in lines] == [(1, {"a": [0], "b": [0]}, 3), (2, {}, 0)]


def test_a_forked_child_does_not_wait_for_its_parent_s_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(RECORDING), "patience_s", 0.01)
    written = Written(tmp_path, 10)
    written.lines._writing.acquire()
    written.lines.close(NOTHING)


def test_a_step_that_is_no_json_costs_no_other(tmp_path: Path) -> None:
    written = Written(tmp_path, 10)
    for number in range(3):
        written.add(number, loss=object() if number == 1 else None)
    written.lines.write()
    assert written.steps() == [0, 2]


def test_the_end_writes_everything(tmp_path: Path) -> None:
    written = Written(tmp_path, 10)
    for number in range(12):
        written.add(number, TimerRecords([call(number, number)], {}, 0))
    written.lines.close(TimerRecords([call(12, 12)], {}, 3))
    assert written.steps() == list(range(12))
    lines, _ = read_lines(written.paths[1], CollectiveLine)
    assert [line.rows[0].seq for line in lines] == list(range(13))
    assert lines[-1].dropped == 3
    summary, _ = read_lines(written.paths[2], SummaryLine)
    assert [(line.first, line.count) for line in summary] == [(-20, 10), (-10, 10), (0, 10), (10, 2)]


def test_two_threads_write_every_step_once_and_in_order(tmp_path: Path) -> None:
    written = Written(tmp_path, 10)
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            written.lines.write()

    other = threading.Thread(target=write)
    other.start()
    for number in range(5000):
        written.add(number, TimerRecords([call(number, number)], {}, 0))
    over.set()
    other.join()
    written.lines.close(NOTHING)
    assert written.steps() == list(range(5000))
    lines, _ = read_lines(written.paths[1], CollectiveLine)
    assert [line.rows[0].seq for line in lines] == list(range(5000))
    summary, _ = read_lines(written.paths[2], SummaryLine)
    assert sum(line.count for line in summary) == FIRST + 5000
