"""Whether the process that wrote a record lives: one answer for recorder, packers, watchers and readers."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.collectors.layout import RankLayout
from diag.collectors.living import (
    boot_id,
    has_ended,
    last_sign_ns,
    process_is_stopped,
    process_runs,
    recorded_has_ended,
)
from diag.collectors.policy import RECORDING
from diag.collectors.records import RankRecord
from tests.patience import PATIENCE_S

S = 10**9


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def record(pid: int) -> RankRecord:
    return RankRecord(0, 0, 1, socket.gethostname(), pid, boot_id(), time.monotonic_ns(), time.time_ns(), "cpu")


def test_a_process_lives_until_it_ends_also_while_it_is_stopped(child: subprocess.Popen[bytes]) -> None:
    about = record(child.pid)
    assert (process_runs(about), process_is_stopped(about)) == (True, False)
    child.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE_S
    while not process_is_stopped(about):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process_runs(about) is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie, as nobody has waited for it
    assert process_runs(about) is False
    child.wait()
    assert process_runs(about) is False


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"monotonic_ns": 1}, False),  # a process that started since has its number
        ({"boot_id": "", "unix_ns": time.time_ns() - 3600 * S}, False),
        ({"boot_id": ""}, True),
        ({"host": "another"}, None),
        ({"pid_namespace": "pid:[1]"}, None),  # of a container with the host's name, where its number means another one
        ({"boot_id": "of another start of this host"}, None),
        ({"pid": 0}, False),
        ({"pid": 2**70}, False),
    ],
)
def test_another_process_of_its_number_and_what_cannot_be_seen(
    child: subprocess.Popen[bytes], change: dict[str, object], expected: bool | None
) -> None:
    assert process_runs(dataclasses.replace(record(child.pid), **change)) is expected  # type: ignore[arg-type]


def test_what_wrote_before_the_host_started_again_is_gone(child: subprocess.Popen[bytes]) -> None:
    """A young sign is of another host with the same name."""
    about = dataclasses.replace(record(child.pid), boot_id="of another start of this host")
    now, old = time.time_ns(), round((RECORDING.gone_s + 5) * S)
    assert [process_runs(about, now), process_runs(about, now - old)] == [None, False]
    for elsewhere in ({"host": "another"}, {"pid_namespace": "pid:[1]"}):
        assert process_runs(dataclasses.replace(about, **elsewhere), now - old) is None


def test_a_process_that_began_after_the_host_had_slept_is_no_other_one(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time since boot, in which starts are counted, goes on while a host sleeps; the monotonic clock does not."""
    clock = time.clock_gettime_ns
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock(time.CLOCK_MONOTONIC) - 5 * 3600 * S)
    assert process_runs(record(child.pid)) is True


def test_who_cannot_be_seen_has_ended_when_its_signs_are_old(tmp_path: Path) -> None:
    now, old = time.time_ns(), round((RECORDING.gone_s + 5) * S)
    assert [has_ended(False, None, now), has_ended(False, None, now - old)] == [False, True]
    assert has_ended(False, None, now - old, late_ns=old) is False
    assert [has_ended(True, True, now), has_ended(False, False, now), has_ended(False, True, 0)] == [True, True, False]
    files = RankLayout(tmp_path)
    assert recorded_has_ended(files, {"pid": "x", "host": None}, {}) is True
    assert recorded_has_ended(files, {}, {"unix_ns": now}) is False


def written(folder: Path, sent_ns: int, began_ns: int) -> RankLayout:
    """A rank whose heartbeat and rank.json were written at these times, by the storage."""
    files = RankLayout(folder)
    for path, at_ns in ((files.heartbeat, sent_ns), (files.identity, began_ns)):
        path.touch()
        os.utime(path, ns=(at_ns, at_ns))
    return files


@pytest.mark.parametrize("off_s", [-600, 600])
def test_the_clock_of_another_node_decides_nothing(off_s: int, tmp_path: Path) -> None:
    """A run that trains, and ones that ended an hour or a minute ago, of a node whose clock is minutes late or ahead;
    asked by the fields of its records, as a packer and the next attempt do, and by its last sign, as readers do."""
    now, off, hour = time.time_ns(), off_s * S, 3600 * S
    began = now - 2 * hour
    for age, ended in ((0, False), (hour, True), (60 * S, True)):
        files = written(tmp_path, now - age, began)
        sign = last_sign_ns(files, now - age + off, began + off)
        assert has_ended(False, None, sign) is ended
        assert sign == now - age
        identity = {"pid": 1, "host": "another", "unix_ns": began + off}
        assert recorded_has_ended(files, identity, {"unix_ns": now - age + off}) is ended


def test_the_time_of_a_copy_is_no_sign_of_life(tmp_path: Path) -> None:
    now, hour = time.time_ns(), 3600 * S
    files = written(tmp_path, now, now)
    assert has_ended(False, None, last_sign_ns(files, now - hour, now - 2 * hour)) is True
    identity = {"pid": 1, "host": "another", "unix_ns": now - 2 * hour}
    assert recorded_has_ended(files, identity, {"unix_ns": now - hour}) is True
    assert last_sign_ns(RankLayout(tmp_path / "nothing"), 5, 1) == 5


def test_no_other_place_asks_the_system_whether_a_recorded_process_lives() -> None:
    """Processes that a launcher has started itself are asked through their handles (``diag.watch.workers``)."""
    asks = re.compile(r"os\.kill\(\w+, 0\)|pid_exists|create_time\(")
    root = Path(__file__).parents[2]
    found = [
        str(file.relative_to(root))
        for room in ("collectors", "diag", "app")
        for file in sorted((root / room).rglob("*.py"))
        if not file.is_relative_to(root / "diag" / "collectors") and asks.search(file.read_text())
    ]
    assert found == ["collectors/living.py"]
