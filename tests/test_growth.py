"""What takes time by the size of the input, and not by its square: counted in CPU seconds at one size and at four times
as much, with room for the noise of a machine, or in operations of Python where these are all that it does."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import polars as pl
import pytest

from diag.account.match import closure
from diag.account.policy import CLOCKS
from diag.api import open_run
from diag.errors import DiagError
from diag.hang.api import triage
from diag.hang.text.work import STEP
from diag.linting.document import read
from diag.rundir.inspector import newest_job, read_inspector
from diag.rundir.jobs import sort_traces
from diag.tables.nesting import depths, enclosing
from diag.traces.reading import Reading, read_traces
from diag.traces.trace import Trace
from tests.growing_inputs import INPUTS

MOST_TIMES = 8  # as long, of four times as much
UNBOUNDED = (1 << 62) - 1


def seconds(work: Callable[[], Any]) -> float:
    """The least of three, with a floor where the clock says nothing."""
    taken = []
    for _ in range(3):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return max(min(taken), 0.02)


def operations(work: Callable[[], Any]) -> int:
    """The instructions of Python that the work executes, whatever else the machine does. Of calls of what is written in
    C only that they are made."""
    count = 0

    def counted(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return counted

    before = sys.gettrace()
    sys.settrace(counted)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


SHAPES = [
    "7",
    "1/",
    "1/1 [",
    "1/1 [=",
    "=",
    "step 1 ",
    "step[",
    "1%|",
    "'loss': ",
    " ",
    "1 ",
    "1 1 float x ",
    "a=",
    "[",
]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_long_line_is_searched_for_a_step_in_time(shape: str) -> None:
    line = (shape * 40_000)[:40_000]
    assert seconds(lambda: STEP.search(line)) < MOST_TIMES * seconds(lambda: STEP.search(line[:10_000]))


@pytest.mark.parametrize("shape", ["7", "[", "rank ", "a=", ",", "/", 'File "', "."])
def test_long_lines_beside_a_message_are_triaged_in_time(tmp_path: Path, shape: str) -> None:
    """A message of NCCL makes that all lines are looked at."""

    def read(count: int) -> float:
        line = "Training is done " + shape * (10_000 // len(shape))
        (tmp_path / "train.log").write_text("".join(f"{line}{n}\n" for n in range(count)))
        return seconds(lambda: triage([str(tmp_path)]))

    read(1)
    assert read(40) < MOST_TIMES * read(10)


# Those of ``growing_inputs`` that took far more time than their size, where a small one shows it.
# ``tests/bench/growth.py`` has all.
READ_IN_TIME: dict[str, tuple[int, Callable[[Path], Any]]] = {
    "log: huge communicators": (50, lambda folder: triage([str(folder)])),
    "log: huge communicators beside a timeout": (25, lambda folder: triage([str(folder)])),
    "log: exceptions of ranks": (150, lambda folder: triage([str(folder)])),
    "log: missing ranks in a barrier": (250, lambda folder: triage([str(folder)])),
    "log: timeouts of groups": (100, lambda folder: triage([str(folder)])),
    "Inspector: processes in one file": (600, lambda folder: newest_job(read_inspector(list(folder.iterdir())))),
    "YAML: depth in flow": (1_000, lambda folder: configured(folder / "c.yaml")),
    "YAML: sexagesimal digits": (5_000, lambda folder: configured(folder / "c.yaml")),
    "TOML: depth of a key": (4_000, lambda folder: configured(folder / "c.toml")),
}


def configured(path: Path) -> None:
    with suppress(DiagError):
        read(path)


@pytest.mark.parametrize("name", READ_IN_TIME)
def test_an_input_of_four_times_the_size_takes_about_four_times_as_long(tmp_path: Path, name: str) -> None:
    size, work = READ_IN_TIME[name]
    (growing,) = [growing for growing in INPUTS if growing.name == name]

    def taken(count: int) -> float:
        folder = tmp_path / str(count)
        folder.mkdir()
        growing.build(folder, count)
        return seconds(lambda: work(folder))

    taken(2)
    assert taken(4 * size) < MOST_TIMES * taken(size)


def test_ranges_in_each_other_take_time_by_their_number() -> None:
    """Ten thousand, each inside of the last, took 0.7 s, and twenty thousand 2.9."""

    def nested(count: int) -> float:
        chain = np.arange(count) - 1
        assert depths(chain).tolist() == list(range(count))
        return seconds(lambda: depths(chain))

    assert nested(40_000) < MOST_TIMES * nested(10_000)


def test_threads_with_a_few_ranges_each_take_time_by_their_number() -> None:
    def on_threads(count: int) -> float:
        starts = np.arange(2 * count)
        ranges = pl.DataFrame({"ts_ns": starts, "dur_ns": np.full(2 * count, 10), "thread": starts % count})
        assert (enclosing(ranges, starts + 1, starts % count) == starts).all()
        return seconds(lambda: enclosing(ranges, starts + 1, starts % count))

    assert on_threads(2_000) < MOST_TIMES * on_threads(500)


@pytest.mark.parametrize("kind", ["overlapping windows", "windows under different names", "processes without ranks"])
def test_many_traces_are_sorted_into_jobs_in_time(tmp_path: Path, kind: str) -> None:
    def written(at: int) -> Path:
        pid = at if kind == "processes without ranks" else 1
        begin, length = (at, 1e6) if kind == "overlapping windows" else (at * 100, 90)
        events = [
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "aten::mm",
                "pid": pid,
                "tid": 1,
                "ts": 1e15 + begin + by,
                "dur": length,
            }
            for by in range(5)
        ]
        words = (
            f"trace-{'abcdefgh'[at % 8] * 3}-{'x' * (at // 8)}" if kind == "windows under different names" else "trace"
        )
        path = tmp_path / f"{words}-{at}.json"
        ranks = {} if kind == "processes without ranks" else {"distributedInfo": {"rank": 0, "world_size": 1}}
        path.write_text(json.dumps({"traceEvents": events, **ranks}))
        return path

    read = read_traces([str(written(at)) for at in range(160)], Reading(jobs=1))
    traces = [trace for trace in read if isinstance(trace, Trace)]
    assert len(traces) == 160
    jobs = 1 if kind == "overlapping windows" else 160
    assert len(sort_traces(traces).groups) == jobs
    assert operations(lambda: sort_traces(traces)) < MOST_TIMES * operations(lambda: sort_traces(traces[:40]))


def test_a_part_of_a_trace_is_left_out_among_many_ranks(tmp_path: Path) -> None:
    def write(name: str, rank: int, count: int) -> str:
        event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 1, "dur": 90}
        events = [{**event, "pid": rank + 1, "ts": 1e15 + rank + (at + 6 - count) * 100} for at in range(count)]
        document = {"distributedInfo": {"rank": rank, "world_size": 80}, "traceEvents": events}
        (tmp_path / name).write_text(json.dumps(document))
        return str(tmp_path / name)

    paths = [write(f"rank{rank}.json", rank, 6) for rank in range(80)]
    read = read_traces([*paths, write("part.json", 0, 4)], Reading(jobs=1))
    found = sort_traces([trace for trace in read if isinstance(trace, Trace)])
    assert [len(group.processes) for group in found.groups] == [80]
    assert [gap.path for gap in found.gaps] == [str(tmp_path / "part.json")]


def test_clocks_that_never_met_take_no_time() -> None:
    """A thousand of them took 4 seconds, two thousand 35."""

    def alone(count: int) -> float:
        bounds = np.full((count, count), UNBOUNDED, dtype=np.int64)
        np.fill_diagonal(bounds, 0)
        return seconds(lambda: closure(bounds, bounds < UNBOUNDED))

    assert alone(1600) < 4 * MOST_TIMES * alone(400)  # the copy of the bounds goes with the square


def test_the_bounds_of_clocks_go_over_every_path() -> None:
    """Held against the definition, with few and with many pairs that have met."""
    draw = np.random.default_rng(1)
    for part in (0.02, 0.1, 0.5, 1.0) * 5:
        count = int(draw.integers(1, 25))
        known = (draw.random((count, count)) < part) | np.eye(count, dtype=bool)
        bounds = np.where(known, draw.integers(0, 1000, (count, count)), UNBOUNDED)
        np.fill_diagonal(bounds, 0)
        expected = bounds.astype(object)
        for via in range(count):
            for a in range(count):
                for b in range(count):
                    expected[a, b] = min(expected[a, b], expected[a, via] + expected[via, b])
        closed, reached = closure(bounds, known)
        assert (reached == (expected < UNBOUNDED)).all()
        assert (closed[reached] == expected[reached]).all()


def test_bounds_of_very_many_clocks_are_true_and_may_be_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(2)
    bounds = draw.integers(0, 1000, (40, 40))
    np.fill_diagonal(bounds, 0)
    known = np.ones((40, 40), dtype=bool)
    closest, _ = closure(bounds, known)
    monkeypatch.setitem(vars(CLOCKS), "most_sums_of_bounds", 10 * bounds.size)
    some, reached = closure(bounds, known)
    assert reached.all()
    assert (some >= closest).all()
    assert (some <= bounds).all()
    assert (some < bounds).any()


@pytest.mark.parametrize("kind", ["annotations", "ranks"])
def test_many_steps_and_many_ranks_are_analysed_in_time(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path / "cache"))

    def analysed(count: int) -> float:
        folder = tmp_path / str(count)
        folder.mkdir()
        ranks, steps = (1, count) if kind == "annotations" else (count, 1)
        for rank in range(ranks):
            event = {"ph": "X", "pid": 1, "tid": 1, "dur": 90}
            events = [
                {**event, "cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": n * 100} for n in range(steps)
            ]
            document = {"distributedInfo": {"rank": rank, "world_size": ranks}, "traceEvents": events}
            (folder / f"rank{rank}.json").write_text(json.dumps(document))
        begin = time.process_time()
        open_run(folder)
        return time.process_time() - begin

    small, large = (1500, 6000) if kind == "annotations" else (30, 120)
    analysed(2)
    assert analysed(large) < MOST_TIMES * analysed(small)
