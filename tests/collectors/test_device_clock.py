"""CUDA-event timing with a device made of a number: marks pass when it says so, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diag.collectors.device_clock import DeviceClock
from diag.collectors.records import PhaseRow


class FakeDevice:
    """``now_ms`` is where the device's streams are; an event recorded at t has passed once the device got there."""

    def __init__(self) -> None:
        self.next_ms = 0.0  # when work that is recorded now will run
        self.now_ms = 0.0
        self.events = 0

    def event(self) -> FakeEvent:
        self.events += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.at_ms = -1.0

    def record(self) -> None:
        self.at_ms = self._device.next_ms

    def query(self) -> bool:
        return self.at_ms <= self._device.now_ms

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.query()
        assert end.query(), "elapsed_time of an event that has not passed would wait for the device"
        return end.at_ms - self.at_ms


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    return FakeDevice()


def run_step(device: FakeDevice, clock: DeviceClock, step: int, forward_ms: float) -> None:
    clock.begin_step(step)
    start = clock.mark()
    device.next_ms += forward_ms
    clock.phase("forward", start, clock.mark())
    before, after = clock.mark(), clock.mark(later=True)
    device.next_ms += 2
    after.record()
    clock.end_step([("0", 4, before, after), ("0", 5, clock.mark(), clock.mark(later=True))])


def test_a_step_is_read_when_the_device_got_there(device: FakeDevice) -> None:
    clock = DeviceClock(device.event)
    run_step(device, clock, step=7, forward_ms=10)
    assert list(clock.passed()) == []
    device.now_ms = 12
    (record,) = clock.passed()
    assert (record.step, record.dur_ns) == (7, 12_000_000)
    assert record.phases == [PhaseRow("forward", 0, 10_000_000)]
    assert record.collectives == [("0", 4, 10_000_000, 12_000_000)], "a call whose end nobody marked is left out"


def test_events_are_used_again(device: FakeDevice) -> None:
    clock = DeviceClock(device.event)
    for step in range(50):
        run_step(device, clock, step, forward_ms=1)
        device.now_ms = device.next_ms
        assert [r.step for r in clock.passed()] == [step]
    assert device.events == 8


def test_a_device_that_never_gets_there_costs_bounded_memory(device: FakeDevice) -> None:
    clock = DeviceClock(device.event)
    device.now_ms = -1
    for step in range(3 * DeviceClock.MAX_PENDING):
        run_step(device, clock, step, forward_ms=1)
    assert list(clock.passed()) == []
    device.now_ms = device.next_ms
    assert len(list(clock.passed())) == DeviceClock.MAX_PENDING
