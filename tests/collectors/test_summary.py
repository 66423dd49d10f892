"""What a rank's steps are condensed to, and when."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.collectors.budget import Budget, Complaints, LineFile
from diag.collectors.records import (
    BACKWARD,
    DATA,
    EVALUATION,
    FORWARD,
    OPTIMIZER,
    PHASES_AND_REST,
    REST,
    STILL,
    CollectiveRow,
    MemoryRecord,
    PhaseRow,
    RankRecord,
    StepRecord,
)
from diag.collectors.step_lines import StepSummary, phase_times

US = 1_000
WHO = RankRecord(3, 3, 8, "host-a", 1, "boot", 0, 0, "cpu")


def wait(start_us: int, end_us: int, group: str = "0", seq: int = 0) -> CollectiveRow:
    start, end = start_us * US, end_us * US
    return CollectiveRow(group, seq, "all_reduce", 4, "float32", start, end, start, end)


def step(
    number: int, begin_us: int = 0, phases: tuple[tuple[str, int, int], ...] = (), dur_us: int = 100
) -> StepRecord:
    rows = [PhaseRow(name, (begin_us + a) * US, (begin_us + b) * US) for name, a, b in phases]
    return StepRecord(number, begin_us * US, (begin_us + dur_us) * US, rows, tokens=512, memory=MemoryRecord(rss=7))


class Written:
    """The lines of a summary that was told of some steps."""

    def __init__(self, folder: Path, length: int = 3) -> None:
        self.path = folder / "summary.jsonl"
        self.summary = StepSummary(LineFile(self.path, Budget(1 << 20), Complaints(3)), WHO, length)

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def columns(self, line: int = 0) -> dict[str, list[int]]:
        told = self.lines()[line]
        values = np.frombuffer(b64decode(str(told["values"])), dtype="<u4").reshape(-1, int(str(told["count"])))
        names = told["columns"]
        assert isinstance(names, list)
        return dict(zip(names, values.tolist(), strict=True))


def test_waiting_is_taken_out_of_the_stage_that_it_is_in() -> None:
    record = step(0, phases=((DATA, 5, 15), (FORWARD, 15, 45), (BACKWARD, 45, 80), (OPTIMIZER, 80, 98)))
    waits = [(20_000, 30_000, True), (40_000, 50_000, True), (52_000, 55_000, False)]
    assert phase_times(record, waits) == {
        REST: 5_000 + 2_000,
        DATA: 10_000,
        FORWARD: 30_000 - 10_000 - 5_000,
        f"{FORWARD}{STILL}": 15_000,
        BACKWARD: 35_000 - 5_000 - 3_000,
        f"{BACKWARD}{STILL}": 5_000,
        OPTIMIZER: 18_000,
    }, "waiting for a message (52 to 55) is neither work nor a collective"


def test_micro_batches_are_added_up_and_phases_of_one_s_own_are_the_rest() -> None:
    record = step(
        0, phases=((FORWARD, 0, 10), (BACKWARD, 10, 30), (FORWARD, 30, 40), (BACKWARD, 40, 60), ("mine", 60, 90))
    )
    assert phase_times(record, []) == {FORWARD: 20_000, BACKWARD: 40_000, REST: 40_000}


@given(
    st.lists(
        st.tuples(st.sampled_from([*PHASES_AND_REST[:6], "mine"]), st.integers(-5, 110), st.integers(-5, 110)),
        max_size=8,
    ),
    st.lists(st.tuples(st.integers(-50, 150), st.integers(0, 60)), max_size=8),
)
def test_the_phases_are_the_step(phases: list[tuple[str, int, int]], waits: list[tuple[int, int]]) -> None:
    """Whatever overlaps whatever: no nanosecond is told twice, and none is lost."""
    record = step(0, phases=tuple((name, min(a, b), max(a, b)) for name, a, b in phases))
    told = phase_times(record, sorted((a * US, (a + length) * US, True) for a, length in waits))
    assert sum(told.values()) == record.end_ns - record.begin_ns
    assert min(told.values(), default=0) >= 0


def test_a_line_comes_when_the_window_is_full_and_its_waits_are_known(tmp_path: Path) -> None:
    written = Written(tmp_path)
    for number in range(4):
        written.summary.add(step(number, 100 * number, ((FORWARD, 0, 100),)), [])
    assert written.lines() == [], "the last steps' collectives may be under way"
    written.summary.add(step(4, 400, ((FORWARD, 0, 100),)), [wait(210, 230), wait(310, 350)])
    (line,) = written.lines()
    assert (line["first"], line["count"], line["waits"]) == (0, 3, 1)
    assert written.columns() == {
        "begin": [0, 100, 100],
        "step": [100, 100, 100],
        FORWARD: [100, 100, 80],
        f"{FORWARD}{STILL}": [0, 0, 20],
        "tokens": [512, 512, 512],
    }
    written.summary.close()
    assert [(line["first"], line["count"]) for line in written.lines()] == [(0, 3), (3, 2)]
    assert written.columns(1)[f"{FORWARD}{STILL}"] == [40, 0]


def test_a_wait_over_the_end_of_a_step_belongs_to_both(tmp_path: Path) -> None:
    written = Written(tmp_path)
    for number in range(3):
        written.summary.add(step(number, 100 * number, ((FORWARD, 0, 100),)), [wait(90, 120)] if number == 1 else [])
    written.summary.close()
    assert written.columns()[f"{FORWARD}{STILL}"] == [10, 20, 0]


def test_numbers_that_jump_begin_a_line(tmp_path: Path) -> None:
    written = Written(tmp_path)
    for number in (0, 1, 7, 8):
        written.summary.add(step(number, 100 * number), [])
    written.summary.close()
    assert [(line["first"], line["count"]) for line in written.lines()] == [(0, 2), (7, 2)]
    assert written.columns(1)["begin"] == [0, 100]


def test_what_steps_are_marked_with_and_the_highest_memory(tmp_path: Path) -> None:
    written = Written(tmp_path, length=4)
    for number in range(4):
        record = step(number, 100 * number, (("evaluation", 0, 50),) if number == 2 else ())
        record.window = "active" if number < 2 else ""
        record.memory = MemoryRecord(rss=100 - number, allocated=number, alloc_retries=2)
        written.summary.add(record, [])
    written.summary.close()
    (line,) = written.lines()
    assert line["marked"] == {"active": [0, 1], EVALUATION: [2]}
    memory = line["memory"]
    assert isinstance(memory, dict)
    assert (memory["rss"], memory["allocated"], memory["reserved"], memory["alloc_retries"]) == (100, 3, None, 2)


def test_fifty_steps_take_kilobytes(tmp_path: Path) -> None:
    """Of a training with all phases, and waiting in each."""
    written = Written(tmp_path, length=50)
    names = PHASES_AND_REST[:6]
    for number in range(50):
        begin = 10**9 * number
        phases = tuple((name, 10**8 * at, 10**8 * (at + 1)) for at, name in enumerate(names))
        rows = [wait(begin + 10**8 * at + 7, begin + 10**8 * at + 10**7) for at in range(len(names))]
        written.summary.add(step(number, begin, phases, dur_us=10**9), rows)
    written.summary.close()
    assert written.path.stat().st_size < 5_000


@pytest.mark.parametrize("record", [step(0, dur_us=10**10), step(0)])
def test_values_stay_in_their_range(tmp_path: Path, record: StepRecord) -> None:
    """Hours in one step, and steps whose clock went backwards."""
    written = Written(tmp_path)
    written.summary.add(record, [])
    written.summary.add(step(1, -(10**6)), [])
    written.summary.close()
    assert all(0 <= value < 1 << 32 for column in written.columns().values() for value in column)


@pytest.mark.parametrize("tokens", [1.5, "many", None, np.int64(7)])
def test_tokens_that_are_no_number_of_tokens_are_left_out(tmp_path: Path, tokens: object) -> None:
    written = Written(tmp_path)
    record = step(0)
    record.tokens = tokens  # type: ignore[assignment]
    written.summary.add(record, [])
    written.summary.close()
    assert "tokens" not in written.columns()


def test_zero_steps_a_line_write_none(tmp_path: Path) -> None:
    written = Written(tmp_path, length=0)
    written.summary.add(step(0), [])
    written.summary.close()
    assert not written.path.exists()
