"""Runs on GPUs without a profiler window: when the device's own clock tells enough, and how sure the answer is."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.account import intervals as iv
from diag.account.device_clock import on_device_clocks
from diag.api import analyze
from diag.collectors.records import (
    BACKWARD,
    FORWARD,
    CollectiveRow,
    DeviceCall,
    DeviceRecord,
    DeviceStepRecord,
    PhaseRow,
    RankRecord,
    StepRecord,
)
from diag.model.steps import Bottleneck, Severity
from diag.rundir.columns import Rows
from diag.rundir.tables import RankTables, Tables

MS = 1_000_000
STEP = 100 * MS
STEPS = 12

Call = tuple[int, tuple[int, int] | None]  # called at, and waited for from and to, in ms since the step began


def rank_tables(
    rank: int, world: int, calls: list[Call], busy: int, backward_ms: int = 90, lag_ms: int = 0
) -> RankTables:
    """A step of 100 ms: a forward until 40 and a backward until ``backward_ms``. The host records an edge so much
    before the device passes it."""
    steps, device_steps, rows, row_steps = [], [], [], []
    for number in range(STEPS):
        begin = STEP * (number + 1)
        lag = lag_ms * MS
        phases = [PhaseRow(FORWARD, 0, 40 * MS), PhaseRow(BACKWARD, 45 * MS, backward_ms * MS)]
        on_host = [PhaseRow(name, begin + max(0, a - lag), begin + max(0, b - lag)) for name, a, b in phases]
        steps.append(StepRecord(number, begin, begin + STEP, on_host))
        on_device = []
        for at, (called, waited) in enumerate(calls):
            seq = number * len(calls) + at
            rows.append(
                CollectiveRow("0", seq, "all_reduce", 1 << 20, "float32", begin + called * MS, None, None, None)
            )
            row_steps.append(number)
            if waited is not None:
                since, until = waited
                on_device.append(DeviceCall("0", seq, called * MS, until * MS, since * MS, until * MS))
        device_steps.append(DeviceStepRecord(number, STEP, phases, on_device))
    return RankTables(
        rank,
        identity=RankRecord(rank, rank, world, "a", rank, "boot", 0, 0, "NVIDIA H100"),
        steps=tuple(steps),
        rows=Rows.of(rows, row_steps),
        groups={"0": list(range(world))},
        device=tuple(DeviceRecord(step.end_ns - 1, utilization_percent=busy) for step in steps),
        device_steps=tuple(device_steps),
    )


def tables(*ranks: RankTables) -> Tables:
    return Tables(Path(), None, len(ranks), {own.rank: own for own in ranks}, ())


SEEN: Call = (50, (60, 70))


@pytest.mark.parametrize(
    ("calls", "known"),
    [
        ([SEEN, (71, (80, 85))], True),
        ([(20, None), SEEN], False),  # called in the forward: when that was waited for is not known
        ([(49, None), SEEN], True),  # one after the other in one phase
        ([SEEN, (71, None)], False),
    ],
)
def test_every_call_is_seen_to_be_waited_for(calls: list[Call], known: bool) -> None:
    both = tables(*(rank_tables(rank, 2, calls, 100) for rank in range(2)))
    assert [own.waits_known for own in on_device_clocks(both).values()] == [known, known]
    verdict = analyze(both).verdict
    assert (verdict.bottleneck == Bottleneck.UNDETERMINED) == (not known and verdict.cause == "")


def test_what_is_found_beside_computation_stands() -> None:
    """Half of the calls are not seen to be waited for; that the devices are idle is measured."""
    calls: list[Call] = [(20, None), SEEN]
    verdict = analyze(tables(*(rank_tables(rank, 2, calls, 40) for rank in range(2)))).verdict
    assert verdict.bottleneck == Bottleneck.HOST
    assert verdict.confidence <= 0.75


def test_too_few_calls_are_seen() -> None:
    both = tables(*(rank_tables(rank, 2, [(20, None), (30, None), SEEN], 100) for rank in range(2)))
    assert on_device_clocks(both) == {}
    assert analyze(both).verdict.bottleneck == Bottleneck.UNDETERMINED


@pytest.mark.parametrize(("busy", "sure"), [(82, False), (20, True)])
def test_copies_may_take_a_little_of_the_time_in_which_no_kernel_runs(busy: int, sure: bool) -> None:
    verdict = analyze(tables(rank_tables(0, 1, [], busy))).verdict
    assert verdict.bottleneck == Bottleneck.HOST
    assert (verdict.confidence >= 0.6) == sure


def test_a_late_host_is_not_taken_for_computation_where_phases_are_all_there_is() -> None:
    """No collective that both ranks waited for ties their clocks together; rank 1 is late, and its device was idle."""
    calls: list[Call] = [(50, (60, 60))]
    ranks = rank_tables(0, 2, calls, 60, backward_ms=70), rank_tables(1, 2, calls, 40)
    result = analyze(tables(*ranks))
    assert result.examination.phases is not None
    assert result.verdict.bottleneck == Bottleneck.HOST
    if result.examination.phases.alone:
        assert result.verdict.confidence <= 0.5


def test_idle_time_is_spread_over_all_steps() -> None:
    """The host is never ahead: what may be idle goes on from the first step to the last without a break."""
    (clocked,) = on_device_clocks(tables(rank_tables(0, 1, [], 80))).values()
    (spans,) = clocked.idle.values()
    in_steps = [iv.total(iv.clip(spans, s.begin_ns, s.end_ns)) for s in clocked.tables.steps]
    assert in_steps == [20 * MS] * STEPS


@pytest.mark.parametrize(("lag_ms", "sure"), [(0, False), (60, True)])
def test_a_collective_may_hide_that_nothing_was_launched(lag_ms: int, sure: bool) -> None:
    """A collective of 30 ms that is waited for in its last one: the driver counts the device as busy. Not where the
    host was ahead: then it had work."""
    both = tables(*(rank_tables(rank, 2, [(50, (79, 80))], 100, lag_ms=lag_ms) for rank in range(2)))
    result = analyze(both)
    assert result.verdict.severity == Severity.HEALTHY
    assert (result.verdict.confidence > 0.5) == sure
