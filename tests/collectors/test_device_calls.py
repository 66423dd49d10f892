"""Exposed communication on a device whose streams are numbers: what the training's stream waited for, and of which
collective."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from diag.collectors.accelerator import DeviceClock, _unpatched
from diag.collectors.attach.hooks import Reducers
from diag.collectors.calls import Patches
from diag.collectors.collectives import CollectiveTimer
from diag.collectors.records import DeviceCall, DeviceStepRecord

MS = 1_000_000
TRAINING, NETWORK, COPIES = 0, 1, 2


class Device:
    """Streams that have done all that they were given at ``free`` milliseconds."""

    def __init__(self) -> None:
        self.free = {TRAINING: 0.0, NETWORK: 0.0, COPIES: 0.0}
        self.current = TRAINING
        self.capturing = False
        device = self

        class Event:
            def __init__(self) -> None:
                self.at = 0.0

            def record(self, stream: Any = None) -> None:
                assert not device.capturing, "an event that is captured cannot be timed"
                self.at = device.free[stream.stream_id if stream else device.current]

            def wait(self, stream: Any = None) -> None:
                number = stream.stream_id if stream else device.current
                device.free[number] = max(device.free[number], self.at)

            def query(self) -> bool:
                return True

            def elapsed_time(self, end: Event) -> float:
                return end.at - self.at

        self.event_type = Event

    @contextmanager
    def stream(self, number: int) -> Iterator[None]:
        before, self.current = self.current, number
        yield
        self.current = before

    def works(self, ms: float) -> None:
        self.free[self.current] += ms


class Training:
    """Collectives as the timer sees them, on such a device."""

    def __init__(self) -> None:
        self.device, self.patches = Device(), Patches()
        self.clock = DeviceClock(
            _unpatched(self.device.event_type), lambda: self.device.current, lambda: self.device.capturing
        )
        self.timer = CollectiveTimer(1000, self.clock)
        self.timer.install_streams(self.device.event_type)
        self.steps = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        self.timer.step = self.steps
        self.clock.begin_step(self.steps)
        yield
        self.clock.end_step(self.timer.take_marks(self.steps))
        self.steps += 1

    def call(self, ms: float, stream: int, work: Any = None) -> Any:
        """A collective that takes so long, called on this stream: an event behind it."""
        with self.device.stream(stream):
            call = self.timer.begin("all_gather", "0", 100, "float32", on_device=True, marked=True)
            self.device.works(ms)
            self.timer._launched(call, work)
            event = self.device.event_type()
            event.record()
        return event

    def record(self) -> DeviceStepRecord:
        (record,) = self.clock.passed()
        return record


def stream(number: int) -> Any:
    return SimpleNamespace(stream_id=number)


def test_the_training_waits_for_an_event_behind_a_collective() -> None:
    training = Training()
    with training.step():
        event = training.call(5, NETWORK)
        training.device.works(2)
        event.wait(stream(TRAINING))
        event.wait(stream(TRAINING))  # there is nothing left to wait for
        training.device.works(1)
    record = training.record()
    assert record.collectives == [DeviceCall("0", 0, 0, 5 * MS, 2 * MS, 5 * MS, own_stream=True)]
    assert record.dur_ns == 6 * MS


def test_hidden_communication_is_waited_for_in_no_time() -> None:
    training = Training()
    with training.step():
        event = training.call(5, NETWORK)
        training.device.works(9)
        event.wait(stream(TRAINING))
    assert training.record().collectives == [DeviceCall("0", 0, 0, 5 * MS, 9 * MS, 9 * MS, own_stream=True)]


def test_only_the_training_stream_stands_still() -> None:
    """A stream of copies waits for the collective, and the training's for that: the collective ended before."""
    training = Training()
    with training.step():
        event = training.call(5, NETWORK)
        event.wait(stream(COPIES))
        with training.device.stream(COPIES):
            training.device.works(7)
            copied = training.device.event_type()
            copied.record()
        copied.wait(stream(TRAINING))
    assert training.record().collectives == [DeviceCall("0", 0, 0, 5 * MS, 0, 12 * MS, own_stream=True)]


def test_another_stream_waits_for_work_and_the_training_for_that_stream() -> None:
    training = Training()

    class Work:
        def wait(self) -> None:
            training.device.free[COPIES] = max(training.device.free.values())

    work = Work()
    with training.step():
        call = training.timer.begin("all_to_all", "0", 100, "float32", on_device=True, marked=True)
        training.device.free[NETWORK] += 5
        training.timer._launched(call, work)
        early = training.device.event_type()
        early.record()  # behind the call, not behind the collective
        early.wait(stream(COPIES))
        with training.device.stream(COPIES):
            work.wait()
            training.device.works(7)
            copied = training.device.event_type()
            copied.record()
        training.device.works(1)
        copied.wait(stream(TRAINING))
    assert training.record().collectives == [DeviceCall("0", 0, 0, 5 * MS, 1 * MS, 12 * MS, own_stream=True)]


def test_the_training_does_not_wait_again_for_its_own_synchronous_call() -> None:
    training = Training()
    with training.step():
        behind = training.call(5, TRAINING)
        behind.wait(stream(COPIES))
        with training.device.stream(COPIES):
            training.device.works(7)
            copied = training.device.event_type()
            copied.record()
        copied.wait(stream(TRAINING))
    assert training.record().collectives == [DeviceCall("0", 0, 0, 5 * MS)]


def test_an_event_that_is_used_again_forgets_its_collective() -> None:
    training = Training()
    with training.step():
        event = training.call(5, NETWORK)
    with training.step():
        event.record()
        event.wait()
    first, second = training.clock.passed()
    assert (first.collectives, second.collectives) == ([DeviceCall("0", 0, 0, 5 * MS, own_stream=True)], [])


def test_a_synchronous_call_is_exposed_as_a_whole() -> None:
    training = Training()
    with training.step():
        training.call(5, TRAINING)
    assert training.record().collectives == [DeviceCall("0", 0, 0, 5 * MS)]


def test_a_wait_for_work_is_marked() -> None:
    training = Training()

    class Work:
        def wait(self) -> str:
            training.device.free[TRAINING] = max(training.device.free.values())
            return "done"

    work = Work()
    with training.step():
        training.call(5, NETWORK, work)
        training.device.works(1)
        assert work.wait() == "done"
    with training.step():
        work.wait()  # again, in another step
    first, second = training.clock.passed()
    assert first.collectives == [DeviceCall("0", 0, 0, 5 * MS, 1 * MS, 5 * MS)]
    assert second.collectives == []


def test_nothing_is_marked_while_a_graph_is_captured() -> None:
    training = Training()
    with training.step():
        training.device.capturing = True
        call = training.timer.begin("all_reduce", "0", 4, "float32", on_device=True, marked=True)
        training.timer._launched(call, None)
        training.timer.backward_computed()
        training.device.capturing = False
    assert training.record().collectives == []


def test_without_the_collector_events_are_as_before() -> None:
    training = Training()
    record, wait = training.device.event_type.record, training.device.event_type.wait
    assert {record.__name__, wait.__name__} == {"record", "wait"}
    training.timer.uninstall()
    assert not hasattr(training.device.event_type.record, "__wrapped__")
    training.timer.install_streams(training.device.event_type)
    assert hasattr(training.device.event_type.record, "__wrapped__")


def test_events_that_hold_nothing_stay_as_they_are() -> None:
    class Event:
        __slots__ = ()

        def record(self) -> None: ...

    training = Training()
    timer = CollectiveTimer(10, training.clock)
    timer.install_streams(Event)
    assert not hasattr(Event.record, "__wrapped__")


def test_ddp_waits_from_the_last_gradient_to_the_end_of_backward() -> None:
    training = Training()
    with training.step():
        training.device.works(10)
        training.timer.backward_computed()
        training.device.works(4)  # what the reducer adds
        training.timer.reduced("0", 100, "float32", True, 0, 1)
        training.timer.reduced("0", 100, "float32", True, 0, 1)  # of another module, whose end was not marked
    assert training.record().collectives == [DeviceCall("0", 0, 10 * MS, 14 * MS)]


def test_the_wait_for_ddp_s_last_bucket_is_the_wait_for_all_buckets() -> None:
    training = Training()
    with training.step():
        training.device.works(5)
        for _ in range(3):  # the hook launches an asynchronous all-reduce for each bucket, and the device goes on
            training.timer._in_bucket = True
            training.timer.begin("all_reduce", "0", 100, "float32", on_device=True, marked=True)
            training.timer._in_bucket = False
            training.device.works(2)
        training.device.works(4)  # what the reducer waits for
        training.timer.end_backward(0)
    first, second, last = training.record().collectives
    assert last == DeviceCall("0", 2, 9 * MS, 15 * MS)
    assert first == DeviceCall("0", 0, 5 * MS, 15 * MS, 15 * MS, 15 * MS), "nothing waited for it alone"
    assert second == DeviceCall("0", 1, 7 * MS, 15 * MS, 15 * MS, 15 * MS)


def test_the_mark_before_the_reducer_s_end_comes_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own order of callbacks, with a reduction that takes 0.3 s."""
    monkeypatch.setattr("diag.collectors.attach.hooks.describe", lambda owned: (4 * len(owned), "float32", True))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        timer, times = CollectiveTimer(10), []
        monkeypatch.setattr(timer, "backward_computed", lambda: times.append(time.monotonic()))
        reducers = Reducers(timer, timer.fence)
        module = DistributedDataParallel(torch.nn.Linear(4, 4))
        reducers._add(module)

        # Without annotations: DDP compares those of a hook with its own classes.
        def slowly(_state, bucket):  # type: ignore[no-untyped-def]
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            threading.Timer(0.3, lambda: future.set_result(bucket.buffer())).start()
            return future

        module.register_comm_hook(None, slowly)
        module(torch.ones(2, 4)).sum().backward()
        assert len(times) == 1
        assert time.monotonic() - times[0] >= 0.25
    finally:
        dist.destroy_process_group()
