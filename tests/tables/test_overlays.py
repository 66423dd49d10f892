"""What is drawn over the lanes of the timeline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec.structs import replace

from diag.api import Result, open_run
from diag.collectors.records import DeviceRecord, MemoryRecord
from diag.tables.overlays import PathLine, counters_of, filled, path_line, waited_for
from diag.tables.zoom import Category
from diag.timeline import timeline_of
from tests.app.runs import MS, TRANSFER_MS, write_run


def late_rank(root: Path, ranks: int = 3) -> Result:
    return open_run(write_run(root, ranks=ranks, slow_data_ms={1: 40}, memory=MemoryRecord(rss=5_000)))


def test_the_path_is_on_the_rank_that_the_others_wait_for(tmp_path: Path) -> None:
    result = late_rank(tmp_path / "run")
    timeline = timeline_of(result)
    step = timeline.steps[6]
    line, left_out = path_line(result.attribution, timeline).within(step.begin_ns + MS, step.end_ns - 6 * MS, 100)
    assert left_out == 0
    assert set(line.rank.tolist()) == {1}
    assert (line.start_ns[1:] >= line.end_ns[:-1]).all()


def test_of_a_long_path_the_longest_stretches_are_kept() -> None:
    start = np.arange(1000, dtype=np.int64) * 10
    line = PathLine(np.arange(1000) // 10 % 2, start, start + np.where(np.arange(1000) % 10 == 0, 9, 1))
    seen, left_out = line.within(0, 10_000, 100)
    assert (left_out, len(seen.rank)) == (900, 100)
    assert (seen.end_ns - seen.start_ns == 9).all()
    assert len(line.within(100, 200, 100)[0].rank) == 10


def test_a_run_of_one_rank_has_no_path(tmp_path: Path) -> None:
    result = open_run(write_run(tmp_path / "run", ranks=1))
    assert not len(path_line(result.attribution, timeline_of(result)).rank)


def test_who_was_waited_for_and_what_it_did(tmp_path: Path) -> None:
    result = late_rank(tmp_path / "run")
    timeline = timeline_of(result)
    step = timeline.steps[6]
    waited = waited_for(timeline, 0, step.begin_ns, step.end_ns)
    assert waited is not None
    assert (waited.rank, waited.op, round(waited.late_ns / MS)) == (1, "all_reduce", 39)
    assert waited.did[0].category == Category.COMPUTE
    assert waited_for(timeline, 1, step.begin_ns, step.end_ns) is None, "the last one waits for nobody"


def test_a_window_is_filled_to_the_last_nanosecond(tmp_path: Path) -> None:
    timeline = timeline_of(late_rank(tmp_path / "run"))
    step = timeline.steps[6]
    parts = filled(timeline.ranks[0], step.begin_ns, step.end_ns)
    assert sum(part.ns for part in parts) == step.end_ns - step.begin_ns


def test_counters_are_on_the_clock_of_the_timeline(tmp_path: Path) -> None:
    result = late_rank(tmp_path / "run")
    timeline = timeline_of(result)
    tables, account = result.tables.ranks[0], timeline.ranks[0]
    begins = tables.steps.begin_ns.tolist()
    samples = tuple(
        DeviceRecord(at, sm_clock_mhz=1000 + place, throttle_reasons=["power cap"] if place == 2 else [])
        for place, at in enumerate(begins)
    )
    counters = {each.name: each for each in counters_of(
        replace(tables, device=samples), account, result.attribution.collectives
    )}  # fmt: skip
    assert {"memory of the process", "SM clock", "throttled", "bus bandwidth"} <= set(counters)
    assert counters["SM clock"].start_ns.tolist() == [span.begin_ns for span in timeline.steps]
    assert (counters["SM clock"].lowest, counters["SM clock"].highest) == (1000, 1000 + len(begins) - 1)
    scattered = [replace(each, op="reduce_scatter") for each in result.attribution.collectives]
    nccl, gloo = (counters_of(tables, account, scattered, gloo=on)[-1] for on in (False, True))
    assert (gloo.name, gloo.highest) == ("bus bandwidth", 2 * nccl.highest)  # it is an all-reduce of the full input
    assert counters["throttled"].says == ("power cap",)
    assert counters["throttled"].start_ns.tolist() == [timeline.steps[2].begin_ns]
    rate = counters["bus bandwidth"].value
    assert np.allclose(rate, 4_000_000 * 4 / 3 / (TRANSFER_MS / 1000), rtol=0.05)
    few = counters["SM clock"].within(0, timeline.end_ns, 4)
    assert len(few.value) <= 4
    assert few.highest == counters["SM clock"].highest
