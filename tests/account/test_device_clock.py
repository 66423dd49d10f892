"""Steps on the device's clock: where they lie on the host's, what is exposed, and how long the device was idle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diag.account import intervals as iv
from diag.account.device_clock import DeviceClocked, on_device_clocks
from diag.api import Result, open_run
from diag.collectors.records import (
    CollectiveRow,
    DeviceCall,
    DeviceRecord,
    DeviceStepRecord,
    PhaseRow,
    RankRecord,
    StepRecord,
)
from diag.model.steps import Bottleneck, Detail, Kind, Severity
from diag.rundir.columns import Rows
from diag.rundir.tables import RankTables, Tables
from tests.bench.grid.cases import NOT_KEPT
from tests.bench.grid.device_rows import tuned, write_device_run
from tests.bench.grid.gpu.simulate import simulate
from tests.copies import replace
from tests.examples import examples

MS = 1_000_000
DEVICE = "NVIDIA H100 80GB HBM3"


def host_step(number: int, begin_ms: float, end_ms: float, *phases: tuple[str, float, float]) -> StepRecord:
    rows = [PhaseRow(name, round(a * MS), round(b * MS)) for name, a, b in phases]
    return StepRecord(number, round(begin_ms * MS), round(end_ms * MS), rows)


def device_step(
    number: int, dur_ms: float, *phases: tuple[str, float, float], calls: Sequence[DeviceCall] = ()
) -> DeviceStepRecord:
    rows = [PhaseRow(name, round(a * MS), round(b * MS)) for name, a, b in phases]
    return DeviceStepRecord(number, round(dur_ms * MS), rows, list(calls))


def rank_of(
    steps: Sequence[StepRecord],
    device_steps: Sequence[DeviceStepRecord],
    rows: Sequence[CollectiveRow] = (),
    row_steps: Sequence[int] = (),
    utilization: Sequence[tuple[float, int]] = (),
    rank: int = 0,
    world: int = 1,
) -> RankTables:
    samples = tuple(DeviceRecord(round(at * MS), utilization_percent=busy) for at, busy in utilization)
    identity = RankRecord(rank, rank, world, "node", 100 + rank, "boot", 0, 0, DEVICE, rank)
    return RankTables(
        rank, identity, tuple(steps), Rows.of(rows, row_steps), {"0": list(range(world))}, samples,
        device_steps=tuple(device_steps),
    )  # fmt: skip


def clocked(own: RankTables, world: int = 1) -> DeviceClocked | None:
    return on_device_clocks(Tables(Path("run"), None, world, {own.rank: own}, ())).get(own.rank)


def alone(own: RankTables) -> DeviceClocked:
    found = clocked(own)
    assert found is not None
    return found


def test_a_step_begins_where_the_device_has_ended_the_one_before() -> None:
    """The host is ahead: it has launched both steps when the device is at the end of the first."""
    steps = [host_step(0, 0, 10), host_step(1, 10, 20)]
    own = alone(rank_of(steps, [device_step(0, 50), device_step(1, 50)]))
    first, second = own.tables.steps
    assert (first.begin_ns, first.end_ns) == (0, second.begin_ns)
    assert second.begin_ns == pytest.approx(50 * MS, abs=0.01 * MS)


def test_no_event_is_passed_before_the_host_has_recorded_it() -> None:
    """The device lags by 30 ms already when the recording begins: the end of the data phase says so."""
    steps = [host_step(0, 0, 100, ("data", 0, 80))]
    own = alone(rank_of(steps, [device_step(0, 90, ("data", 20, 50))]))
    (step,) = own.tables.steps
    assert step.begin_ns == 30 * MS
    assert [tuple(row) for row in step.phases] == [("data", 50 * MS, 80 * MS)]


def test_a_device_s_clock_that_is_fast_moves_nothing_away() -> None:
    """By 20 parts in a million over 1000 s it would seem to lag by 20 ms."""
    steps = [host_step(n, 1000 * n, 1000 * n + 1000) for n in range(1000)]
    own = alone(rank_of(steps, [device_step(n, 1000 * (1 + 20e-6)) for n in range(1000)]))
    lag = [step.begin_ns - host.begin_ns for step, host in zip(own.tables.steps, steps, strict=True)]
    assert max(lag) < 0.1 * MS


def test_a_pause_of_the_host_is_one_of_the_device_when_that_has_nothing_left_to_do() -> None:
    steps = [host_step(0, 0, 100, ("forward", 0, 60))]
    steps[0].gc = [(20 * MS, 50 * MS)]
    own = alone(rank_of(steps, [device_step(0, 100, ("forward", 0, 60))]))
    assert own.tables.steps[0].gc == [(20 * MS, 50 * MS)]
    ahead = [
        host_step(0, 0, 60, ("data", 0, 0), ("forward", 0, 60)),
        host_step(1, 60, 70, ("data", 60, 60), ("forward", 60, 70)),
    ]
    ahead[1].gc = [(61 * MS, 66 * MS)]
    lagging = [
        device_step(0, 160, ("data", 0, 0), ("forward", 0, 160)),
        device_step(1, 100, ("data", 0, 0), ("forward", 0, 100)),
    ]
    assert alone(rank_of(ahead, lagging)).tables.steps[1].gc == []


def steps_of(count: int, host_ms: float, device_ms: float) -> tuple[list[StepRecord], list[DeviceStepRecord]]:
    """A host that prepares each step in ``host_ms`` and then waits for the device."""
    hosts = [
        host_step(n, device_ms * n, device_ms * (n + 1), ("forward", device_ms * n, device_ms * n + host_ms))
        for n in range(count)
    ]
    return hosts, [device_step(n, device_ms, ("forward", 0, device_ms - 1)) for n in range(count)]


def test_idle_time_lies_where_the_host_had_not_launched_everything() -> None:
    hosts, devices = steps_of(10, 80, 100)
    own = alone(rank_of(hosts, devices, utilization=[(100 * n + 50, 60) for n in range(10)]))
    assert own.idle_known
    assert set(own.idle) == {Detail.LAUNCH}
    assert iv.total(own.idle[Detail.LAUNCH]) == pytest.approx(10 * 40 * MS, rel=0.01)


def test_idle_time_after_all_was_launched_has_no_known_reason() -> None:
    hosts, devices = steps_of(10, 10, 100)
    own = alone(rank_of(hosts, devices, utilization=[(100 * n + 50, 60) for n in range(10)]))
    assert iv.total(own.idle[Detail.LAUNCH]) == pytest.approx(10 * 10 * MS, rel=0.15)
    assert iv.total(own.idle[Detail.OTHER]) == pytest.approx(10 * 30 * MS, rel=0.05)


def test_a_busy_device_is_not_idle() -> None:
    hosts, devices = steps_of(10, 80, 100)
    own = alone(rank_of(hosts, devices, utilization=[(100 * n + 50, 99) for n in range(10)]))
    assert own.idle_known
    assert own.idle == {}


def test_without_samples_it_is_not_known_whether_it_was() -> None:
    hosts, devices = steps_of(10, 80, 100)
    own = alone(rank_of(hosts, devices))
    assert not own.idle_known


def called(seq: int, op: str = "all_gather", group: str = "0") -> CollectiveRow:
    return CollectiveRow(group, seq, op, 1000, "bfloat16", 0, None, None, None)


def waited(seq: int, wait: tuple[int, int] | None = (2, 5)) -> DeviceCall:
    call = DeviceCall("0", seq, 1 * MS, 5 * MS, own_stream=True)
    return call if wait is None else call._replace(wait_start_ns=wait[0] * MS, wait_end_ns=wait[1] * MS)


@pytest.mark.parametrize(
    ("rows", "calls", "known"),
    [
        ([called(0), called(1)], [waited(0), waited(1)], True),
        ([called(0, "reduce_scatter"), called(1, "all_reduce")], [waited(0, None), waited(1)], True),
        ([called(0), called(1, "all_reduce")], [waited(0), waited(1, None)], False),
        ([called(0)], [], False),
        ([], [], False),
        ([called(0, "send", "p2p 0>1")], [DeviceCall("p2p 0>1", 0, 0, MS)], False),
    ],
    ids=["each", "the second of two", "a kind never", "none", "no call", "sends"],
)
def test_a_kind_of_call_that_is_never_waited_for_is_not_seen(
    rows: list[CollectiveRow], calls: list[DeviceCall], known: bool
) -> None:
    own = rank_of([host_step(0, 0, 10)], [device_step(0, 10, calls=calls)], rows, [0] * len(rows), world=2)
    assert (clocked(own, world=2) is not None) == known


def test_calls_of_a_group_run_one_after_the_other() -> None:
    """The second was reached while the first still ran; what it took begins there."""
    calls = [
        DeviceCall("0", 0, 1 * MS, 5 * MS, own_stream=True, wait_start_ns=5 * MS, wait_end_ns=5 * MS),
        DeviceCall("0", 1, 2 * MS, 8 * MS, own_stream=True, wait_start_ns=6 * MS, wait_end_ns=8 * MS),
    ]
    own = clocked(
        rank_of([host_step(0, 0, 10)], [device_step(0, 10, calls=calls)], [called(0), called(1)], [0, 0], world=2), 2
    )
    assert own is not None
    assert [(row.start_ns // MS, (row.end_ns or 0) // MS) for row in own.tables.rows] == [(1, 5), (5, 8)]
    assert all(row.whole for row in own.tables.rows)


@pytest.mark.parametrize("own_stream", [True, False])
def test_a_call_begins_before_its_step_on_another_stream_only(own_stream: bool) -> None:
    """TorchRec sends the next batch's indices while the training's stream still computes the step before."""
    call = DeviceCall("0", 0, -2 * MS, 1 * MS, own_stream=own_stream, wait_start_ns=0, wait_end_ns=1 * MS)
    own = clocked(rank_of([host_step(0, 0, 10)], [device_step(0, 10, calls=[call])], [called(0)], [0], world=2), 2)
    assert (own is not None) == own_stream
    if own is not None:
        (row,) = own.tables.rows
        assert (row.wait_start_ns, row.wait_end_ns) == (0, 1 * MS)
        assert row.start_ns == -2 * MS


NUMBERS = st.integers(-(10**12), 10**12)
PHASES = st.lists(
    st.builds(PhaseRow, st.sampled_from(["data", "forward", "backward", "what"]), NUMBERS, NUMBERS), max_size=4
)


@settings(max_examples=examples(25, thorough=60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), NUMBERS, PHASES), max_size=6),
    st.lists(st.tuples(st.integers(0, 3), NUMBERS, NUMBERS, st.none() | NUMBERS, st.booleans()), max_size=6),
    st.lists(st.tuples(NUMBERS, st.integers(-5, 300)), max_size=4),
)
@example([(0, 25850001, []), (1, 1, []), (2, 4150000, [])], [], [])
def test_any_numbers_leave_steps_that_add_up(
    own: list[tuple[int, int, list[PhaseRow]]],
    calls: list[tuple[int, int, int, int | None, bool]],
    samples: list[tuple[int, int]],
) -> None:
    hosts = [host_step(n, 10 * n, 10 * n + 10, ("forward", 10 * n, 10 * n + 5)) for n in range(6)]
    made = [DeviceCall("0", seq, a, b, wait, wait, stream) for seq, a, b, wait, stream in calls]
    devices = [DeviceStepRecord(step, dur, phases, made) for step, dur, phases in own]
    tables = rank_of(hosts, devices, [called(n) for n in range(4)], [0, 1, 2, 3], [(a / MS, b) for a, b in samples])
    result = _analyzed(tables)
    for step in result.attribution.rank_steps:
        assert sum(step.segments.total(kind) for kind in Kind) == step.dur_ns


def _analyzed(tables: RankTables) -> Result:
    from diag.api import analyze

    return analyze(Tables(Path("run"), None, 1, {0: tables}, ()))


def answer(row: str, folder: Path, share: float = 0.4, utilization: bool = True) -> Result:
    """What is said of a simulated job without any window."""
    job = tuned(row, share)
    write_device_run(job, simulate(job, keep=True).ranks, folder, Random(row))
    if not utilization:
        for path in folder.glob("ranks/*/device.jsonl"):
            path.write_text("")
    return open_run(folder, reading=NOT_KEPT)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("dev-N1-network", Bottleneck.COMMUNICATION),
        ("dev-D1-data-all", Bottleneck.DATA),
        ("dev-S1-forward", Bottleneck.COMPUTE),
        ("dev-L1-launch-bound", Bottleneck.HOST),
    ],
)
def test_a_run_without_a_window_gets_its_class(tmp_path: Path, row: str, expected: Bottleneck) -> None:
    verdict = answer(row, tmp_path).verdict
    assert verdict.bottleneck == expected
    assert verdict.severity != Severity.HEALTHY


@pytest.mark.parametrize("row", ["dev-H0-fsdp2", "dev-L1-launch-bound"])
def test_without_utilization_nothing_is_called_healthy(tmp_path: Path, row: str) -> None:
    verdict = answer(row, tmp_path, utilization=False).verdict
    assert verdict.bottleneck == Bottleneck.UNDETERMINED
    assert "idle was not recorded" in verdict.headline


def test_without_utilization_other_causes_are_named_less_surely(tmp_path: Path) -> None:
    verdict = answer("dev-D1-data-all", tmp_path, utilization=False).verdict
    assert (verdict.bottleneck, verdict.cause) == (Bottleneck.DATA, "slow-data-all-ranks")
    assert verdict.confidence <= 0.6


def test_a_window_tells_more(tmp_path: Path) -> None:
    own = alone(rank_of(*steps_of(4, 80, 100)))
    with_trace = replace(own.tables, traces=("a trace",))
    assert clocked(with_trace) is None
