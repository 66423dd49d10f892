"""Nothing of the recorder keeps a training, or its end, waiting without a limit."""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diag.collectors import window
from diag.collectors.attach.events import Events
from diag.collectors.attach.leaving import Leaving
from diag.collectors.background import Background
from diag.collectors.budget import Budget, Complaints, LineFile
from diag.collectors.calls import RecordedCall
from diag.collectors.collectives import CollectiveTimer
from diag.collectors.device_sampler import DeviceSampler
from diag.collectors.ends import Ends
from diag.collectors.fence import Fence
from diag.collectors.layout import RunLayout
from diag.collectors.policy import RECORDING
from diag.collectors.records import DeviceHealth, DeviceRecord, Heartbeat
from diag.collectors.session import Collector
from diag.collectors.settings import CollectorSettings
from diag.collectors.window import TraceWindows


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """What a stuck thread waits for."""
    free = threading.Event()
    yield free
    free.set()


def limited(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.setitem(vars(RECORDING), name, 0.01)


def ends(action: Callable[[], object]) -> bool:
    """Whether it ends, in a thread that would not keep this process."""
    over = threading.Event()
    _thread.start_new_thread(lambda: (action(), over.set()), ())
    return over.wait(60)


def test_a_trace_that_cannot_be_compressed_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: threading.Event
) -> None:
    monkeypatch.setattr(window, "_pack", lambda *_: stuck.wait(60))
    complaints = Complaints(0)
    files = RunLayout(tmp_path).rank(0)
    files.folder.mkdir(parents=True)
    windows = TraceWindows(CollectorSettings(trace=False), files, Budget(1 << 30), complaints, dict)
    profiler = SimpleNamespace(add_metadata_json=lambda *_: None, export_chrome_trace=lambda _path: None)
    windows._export(profiler)
    limited(monkeypatch, "dead_disk_s")
    windows.close()
    assert ["a trace is lost" in message for message in complaints.messages] == [True]


def test_an_event_does_not_wait_for_a_stuck_thread(monkeypatch: pytest.MonkeyPatch, stuck: threading.Event) -> None:
    events = Events(lambda *_: None, lambda: None, lambda _error: None)
    holds = threading.Event()

    def hold() -> None:
        with events._telling:
            holds.set()
            stuck.wait(60)

    threading.Thread(target=hold, daemon=True).start()
    holds.wait(60)
    limited(monkeypatch, "dead_disk_s")
    with pytest.raises(TimeoutError, match="stuck"):
        events.hear("backward_begins", (0,))


def test_a_signal_handler_that_leaves_takes_no_lock_that_it_may_have_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limited(monkeypatch, "longest_leaving_s")
    leaving = Leaving(Fence(), lambda _failure: None, lambda: 0)
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        assert ends(lambda: leaving._close(1))


class Hangs(DeviceSampler):
    """A device whose driver does not answer."""

    def __init__(self, free: threading.Event) -> None:
        super().__init__()
        self.free, self.asked, self.closed = free, threading.Event(), False

    def _read(self, _record: DeviceRecord) -> None:
        self.asked.set()
        self.free.wait(60)

    def _read_seldom(self, _record: DeviceRecord, _health: DeviceHealth) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def test_a_driver_that_hangs_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: threading.Event
) -> None:
    layout, complaints = RunLayout(tmp_path).rank(0), Complaints(0)
    file, sampler = LineFile(layout.device, Budget(1 << 20), complaints), Hangs(stuck)
    background = Background(layout, 60.0, lambda: Heartbeat(0, 0, 0, ""), sampler, file, complaints)
    background.start()
    sampler.asked.wait(60)
    limited(monkeypatch, "patience_s")
    background.stop()
    assert not sampler.closed


def test_a_fork_leaves_the_records_to_its_parent(tmp_path: Path) -> None:
    with Collector(tmp_path, CollectorSettings(trace=False), torch.device("cpu")) as collector:
        if (child := os.fork()) == 0:
            collector.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        assert collector._background._thread.is_alive()
        heartbeat = RunLayout(tmp_path).rank(0).heartbeat
        assert not heartbeat.exists() or b'"done":true' not in heartbeat.read_bytes()


# -- ends of collectives -----------------------------------------------------------------------------------------------


def work_of(future: Any) -> Any:
    return SimpleNamespace(get_future=lambda: future)


def call() -> RecordedCall:
    return RecordedCall(0, "0", 0, "all_reduce", 4, "float32", 1, False)


def test_the_end_of_a_collective_is_told_while_the_training_runs() -> None:
    told: list[RecordedCall] = []
    collective, followed, future = call(), Ends(told.append, Fence()), torch.futures.Future[int]()
    assert followed.follow(work_of(future), collective)
    assert told == []
    future.set_result(1)
    assert told == [collective]
    assert not followed._followed


def test_a_collective_that_ends_after_the_training_calls_nothing() -> None:
    told: list[RecordedCall] = []
    followed, future = Ends(told.append, Fence()), torch.futures.Future[int]()
    followed.follow(work_of(future), call())
    followed.let_go()
    future.set_result(1)
    assert told == []
    again, later = call(), torch.futures.Future[int]()
    followed.follow(work_of(later), again)  # of a training that goes on
    later.set_result(1)
    assert told == [again]


def test_a_backend_without_futures_ends_with_the_wait() -> None:
    def get_future() -> None:
        raise RuntimeError("not implemented")

    timer = CollectiveTimer(10)
    collective, work = timer.begin("all_reduce", "0", 4, "float32", False), SimpleNamespace(wait=lambda: True)
    work.get_future = get_future
    timer._launched(collective, work)
    assert collective.end_ns is None
    work.wait()
    assert collective.end_ns == collective.wait_end_ns is not None
    assert timer.last_finished == {"0": 0}
