"""The lanes of a run hold the numbers of its account, wherever they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diag.api import Result, open_run
from diag.model.breakdown import KernelKind
from diag.model.steps import Detail, Parts
from diag.tables.zoom import DETAILS, WORK, AllRanks, Category, event_lanes
from diag.timeline import events_of, timeline_of
from tests.account.kineto_builder import BASE_NS, KinetoBuilder
from tests.app.runs import MS, write_run, write_stalled_trace
from tests.copies import replace
from tests.samples import opened_sample
from tests.tables.lane_traces import LATE_US, STEPS, US, gpu_trace, write_gpu_traces


def expected(parts: Parts) -> dict[Category, int]:
    split, idle = parts.exposed_wait_ns is not None, parts.idle_parts
    found = {
        Category.COMPUTE: parts.compute_ns,
        Category.WAITING: parts.exposed_wait_ns or 0 if split else 0,
        Category.TRANSFER: parts.exposed_transfer_ns or 0 if split else 0,
        Category.COMMUNICATION: 0 if split else parts.exposed_comm_ns,
        Category.COPY: parts.exposed_copy_ns,
        Category.DATA: parts.data_wait_ns,
        Category.CHECKPOINT: parts.checkpoint_ns,
        Category.NOT_LAUNCHED: idle.not_launched_ns + idle.in_launch_ns + idle.host_call_ns,
        Category.QUEUED: idle.queued_ns,
        Category.IDLE: idle.outside_ns + idle.unknown_ns,
    }
    return {category: ns for category, ns in found.items() if ns}


def waiting_ns(timeline: AllRanks, rank: int) -> int:
    lane = timeline.ranks[rank].lane(Category.WAITING)
    return lane.busy_in(0, timeline.end_ns) if lane is not None else 0


def lanes_hold_the_account(result: Result) -> None:
    timeline = timeline_of(result)
    assert tuple(timeline.ranks) == result.attribution.ranks
    for account in result.attribution.steps:
        for parts in account.parts:
            of_rank = timeline.ranks[parts.rank]
            own = next(step for step in of_rank.steps if step.step == account.step)
            begin, end = own.begin_ns + of_rank.moved_ns, own.end_ns + of_rank.moved_ns
            assert {
                lane.category: ns for lane in of_rank.lanes if (ns := lane.busy_in(begin, end))
            } == expected(parts), (account.step, parts.rank)  # fmt: skip


@pytest.mark.parametrize("name", ["fsdp2-straggler-rank0", "ddp-slow-loader-all"])
def test_the_parts_of_every_step_of_recorded_runs(name: str) -> None:
    result = opened_sample(name)
    lanes_hold_the_account(result)
    timeline = timeline_of(result)
    edges = np.linspace(0, timeline.end_ns, 701).astype(np.int64)
    for rank in timeline.ranks.values():
        together = sum(lane.busy_ns(edges) for lane in rank.lanes)
        assert together.sum() == sum(step.dur_ns for step in rank.steps)
        assert (together <= np.diff(edges)).all(), "two categories at one moment"


def test_idle_time_of_a_device_is_named_by_its_cause(tmp_path: Path) -> None:
    result = open_run(write_stalled_trace(tmp_path / "traces"))
    lanes_hold_the_account(result)
    lanes = {lane.category: lane for lane in timeline_of(result).ranks[0].lanes}
    assert list(lanes) == [Category.COMPUTE, Category.NOT_LAUNCHED, Category.QUEUED]
    host = lanes[Category.NOT_LAUNCHED]
    first = [
        (host.names[int(code)], int(end - start))
        for code, start, end in zip(host.name, host.start_ns, host.end_ns, strict=True)
    ]
    assert first[:2] == [("not launched", 4 * MS), ("in the launch", 4 * MS // 10)]
    assert (DETAILS[Detail.OUTSIDE], DETAILS[Detail.LATENCY]) == ("before or after the device's work", "launch latency")


def test_who_is_waited_for_is_the_pale_stripe(tmp_path: Path) -> None:
    result = open_run(write_run(tmp_path / "run", ranks=3, slow_data_ms={1: 40}))
    lanes_hold_the_account(result)
    timeline = timeline_of(result)
    assert waiting_ns(timeline, 1) == 0
    assert min(waiting_ns(timeline, 0), waiting_ns(timeline, 2)) > 0
    assert [(span.begin_ns, span.end_ns) for span in timeline.steps[:2]] == [(0, 105 * MS), (105 * MS, 210 * MS)]
    assert not timeline.loose


def test_traces_lie_where_their_steps_do(tmp_path: Path) -> None:
    result = open_run(write_gpu_traces(tmp_path / "traces"))
    lanes_hold_the_account(result)
    for rank, of_rank in timeline_of(result).ranks.items():
        assert of_rank.traced == STEPS
        events = {lane.title: lane for lane in events_of(result, rank)}
        assert list(events) == [
            "kernels", "communication", "copies", "operators, main thread", "calls of the runtime", "ranges",
        ]  # fmt: skip
        for step in of_rank.steps:
            begin, end = step.begin_ns + of_rank.moved_ns, step.end_ns + of_rank.moved_ns
            compute = of_rank.lane(Category.COMPUTE)
            assert compute is not None
            assert events["kernels"].busy_in(begin, end) == compute.busy_in(begin, end) == (300 + rank * LATE_US) * US
            assert events["communication"].busy_in(begin, end) == (300 - rank * LATE_US) * US
        first = of_rank.steps[0].begin_ns + of_rank.moved_ns
        assert events["kernels"].start_ns[0] - first == 100 * US
        assert [events["kernels"].names[code] for code in events["kernels"].name] == ["gemm"] * 3
        works = {title: {WORK[code] for code in lane.work.tolist()} for title, lane in events.items()}
        assert works["kernels"] == {"gemm"}
        assert works["communication"] == {"all_reduce"}
        assert works["copies"] == {Category.COPY}
        assert KernelKind.COPY != Category.COPY, "a kernel that copies is no copy between host and device"
        assert works["calls of the runtime"] == {"runtime call"}


def test_a_trace_of_a_run_directory_is_on_the_clock_of_its_records() -> None:
    result = opened_sample("fsdp2-straggler-rank0")
    of_rank = timeline_of(result).ranks[0]
    ranges = next(lane for lane in events_of(result, 0) if lane.title == "ranges")
    marked = {ranges.names[code]: i for i, code in enumerate(ranges.name.tolist())}
    assert of_rank.traced
    for step in of_rank.steps:
        if step.step in of_rank.traced:
            i = marked[f"diag.step#{step.step}"]
            assert int(ranges.start_ns[i]) == step.begin_ns + of_rank.moved_ns
            assert int(ranges.end_ns[i]) == step.end_ns + of_rank.moved_ns


def test_events_drift_with_the_clock_of_their_steps(tmp_path: Path) -> None:
    """The second step is moved by 2 us and the third by 4: what lies between two ends is moved by something between."""
    result = open_run(write_gpu_traces(tmp_path / "traces"))
    of_rank = timeline_of(result).ranks[0]
    moved = replace(
        of_rank, steps=tuple(replace(step, end_ns=step.end_ns + 2 * US * i) for i, step in enumerate(of_rank.steps))
    )
    lanes = [{lane.title: lane for lane in event_lanes(result.tables.ranks[0], own)} for own in (of_rank, moved)]
    steps, later = (found["ranges"] for found in lanes)
    assert (later.end_ns - steps.end_ns).tolist() == [0, 2 * US, 4 * US]
    kernels, later = (found["kernels"] for found in lanes)
    assert (later.start_ns - kernels.start_ns).tolist() == [0, 200, 2200]


def test_two_traces_that_mark_no_step(tmp_path: Path) -> None:
    """Both are a step 0; each one's events lie in its own."""
    for number, (at, length) in enumerate(((0, 300 * US), (5000 * US, 700 * US))):
        made = KinetoBuilder(0, 1).op("aten::mm", at, at + length).kernel(at + 20 * US, at + length, launch=at + US)
        made.write(tmp_path, f"window{number}-rank-0.json")
    result = open_run(tmp_path)
    (kernels,) = [lane for lane in events_of(result, 0) if lane.title == "kernels"]
    assert (kernels.end_ns - kernels.start_ns).tolist() == [280 * US, 680 * US]
    assert kernels.start_ns.tolist() == [20 * US, 5020 * US]


def test_ranks_whose_clocks_are_not_tied_begin_a_step_together(tmp_path: Path) -> None:
    for rank, base in ((0, BASE_NS), (1, BASE_NS - 10**18)):
        made = gpu_trace(rank, names=("gemm", "elementwise"), base_ns=base)
        made.header["host_name"] = f"node-{rank}"
        for event in made.events:
            if event["name"] == "elementwise":
                event["args"] = {key: value for key, value in event["args"].items() if key in ("stream", "device")}
        made.write(tmp_path, f"rank-{rank}.json")
    timeline = timeline_of(open_run(tmp_path))
    assert timeline.loose == (1,)
    begins = [rank.steps[0].begin_ns + rank.moved_ns for rank in timeline.ranks.values()]
    assert begins == [0, 0]
    assert timeline.end_ns < 10 * STEPS[-1] * 1000 * US


def test_a_rank_alone_does_not_say_that_it_waits(tmp_path: Path) -> None:
    gpu_trace(0).write(tmp_path, "rank-0.json")
    result = open_run(tmp_path)
    assert timeline_of(result).ranks[0].lane(Category.WAITING) is None
    assert timeline_of(result).ranks[0].lane(Category.COMMUNICATION) is not None
    lanes_hold_the_account(result)


def test_only_the_last_ranks_are_kept(tmp_path: Path) -> None:
    result = open_run(write_run(tmp_path / "run", ranks=4))
    first = events_of(result, 0)
    assert first == ()
    for rank in (1, 2, 3):
        events_of(result, rank)
    assert sorted(result._events) == [2, 3]


def test_each_stream_is_a_lane(tmp_path: Path) -> None:
    made = KinetoBuilder(0, 1).op("aten::mm", 0, 100 * US)
    made.kernel(20 * US, 50 * US, "gemm", launch=US).kernel(30 * US, 60 * US, "flash_fwd", launch=2 * US, stream=9)
    made.write(tmp_path, "rank-0.json")
    lanes = {lane.title: lane for lane in events_of(open_run(tmp_path), 0)}
    assert [title for title in lanes if "kernels" in title] == ["kernels, stream 7", "kernels, stream 9"]
    assert WORK[int(lanes["kernels, stream 9"].work[0])] == "attention"
