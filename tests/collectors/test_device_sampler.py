"""When a device is sampled: what changes seldom is read every half minute, and twice at the end."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from diag.collectors.background import Background
from diag.collectors.budget import Budget, Complaints, LineFile
from diag.collectors.device_sampler import DeviceSampler
from diag.collectors.layout import RunLayout
from diag.collectors.records import DeviceHealth, DeviceRecord, Heartbeat


class FakeSampler(DeviceSampler):
    def _read(self, record: DeviceRecord) -> None:
        record.sm_clock_mhz = 1980

    def _read_seldom(self, record: DeviceRecord, health: DeviceHealth) -> None:
        health.source, record.ecc_corrected = "fake", 3


def test_what_changes_seldom_is_read_every_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic_ns", lambda: int(now_s * 1e9))
    sampler, read = FakeSampler(), []
    for _ in range(95):
        read.append(sampler.sample())
        now_s += 1
    assert [at for at, record in enumerate(read) if record.health is not None] == [0, 30, 60, 90]
    assert {record.sm_clock_mhz for record in read} == {1980}
    assert {record.ecc_corrected for record in read} == {3, None}
    assert sampler.sample(everything=True).health == DeviceHealth("fake")


def test_a_run_ends_with_two_readings_of_everything(tmp_path: Path) -> None:
    layout, complaints = RunLayout(tmp_path).rank(0), Complaints(0)
    layout.folder.mkdir(parents=True)
    file = LineFile(layout.device, Budget(1 << 20), complaints)
    background = Background(layout, 60.0, lambda: Heartbeat(0, 0, 0, ""), FakeSampler(), file, complaints)
    background.start()
    background.stop()
    file.close()
    lines = [json.loads(line) for line in layout.device.read_text().splitlines()]
    assert [line["health"]["source"] for line in lines] == ["fake"] * 3, "at the start, and at the end"
    assert complaints.messages == []
