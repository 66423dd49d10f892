"""When a window is asked for by itself."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import Mock

import pytest
from psutil import Process

from diag.collectors.layout import RunLayout
from diag.collectors.manifest import read_fields
from diag.collectors.records import DATA, FORWARD
from diag.collectors.settings import CollectorSettings
from diag.summaries import open_summaries
from diag.watch.events import Event
from diag.watch.follow import Follower
from diag.watch.policy import WATCHING
from diag.watch.traces import AutoTrace, ranks_to_record
from diag.watch.workers import Worker
from tests.many_ranks import Job, write_summaries
from tests.watch.running_job import beat, running_job

RANKS = 4


class Watched:
    """A job whose ranks write further summaries while it is watched."""

    def __init__(self, folder: Path, most: int = 3, traced: bool = False, here: bool = True) -> None:
        self.layout = running_job(folder / "run", RANKS)
        self._spare = folder / "spare"
        self._steps = 0
        self.said: list[str] = []
        self.auto = AutoTrace(
            self.layout,
            CollectorSettings(trace=traced, auto_traces=most),
            self.said.append,
            lambda: [Worker(0 if here else 8, Process())],
        )

    def goes_on(self, extra: Mapping[int, Mapping[str, int]] | None = None, last: int = 50) -> str:
        """Another fifty steps with this planted in the last ones, and whether a window is asked for."""
        self.writes(extra, last)
        asked = self.auto.look()
        return asked.why if asked is not None else ""

    def writes(self, extra: Mapping[int, Mapping[str, int]] | None = None, last: int = 50) -> None:
        self._steps += 50
        job = Job(RANKS, self._steps, extra_us=extra or {}, extra_from=self._steps - last, seed=self._steps)
        written = write_summaries(job, self._spare / str(self._steps))
        for rank in range(RANKS):
            line = written.rank(rank).summary.read_bytes().splitlines(keepends=True)[-1]
            with self.layout.rank(rank).summary.open("ab") as file:
                file.write(line)
            beat(self.layout, rank, 1_000 * self._steps)  # so that the window before is over


def windows(layout: RunLayout) -> int:
    return len(read_fields(layout).get("windows", []))


def test_a_change_for_the_worse_asks_for_a_window_once(tmp_path: Path) -> None:
    job = Watched(tmp_path)
    assert job.auto.look() is None, "nothing is summed up yet"
    assert job.goes_on() == ""
    assert job.goes_on({2: {FORWARD: 90_000}}).startswith("automatic: Compute-bound")
    assert job.said[0].startswith("step 99: Compute-bound")
    assert "rank 2 is slower" in job.said[0]
    assert "A profiler window of steps" in job.said[0]
    assert job.goes_on({2: {FORWARD: 90_000}}) == "", "it is known"
    assert job.goes_on() == ""
    assert job.goes_on({1: {DATA: 90_000}}).startswith("automatic: Data-bound")
    assert windows(job.layout) == 2
    assert read_fields(job.layout)["windows"][0]["why"].startswith("automatic: Compute-bound")


def test_a_full_disk_asks_for_nothing_until_it_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Watched(tmp_path)
    full = OSError(errno.ENOSPC, "no space left")
    with monkeypatch.context() as patched:
        patched.setattr("diag.watch.traces.replace_file", Mock(side_effect=full))
        assert job.goes_on({2: {FORWARD: 90_000}}) == ""
    assert job.said == []
    assert job.goes_on({2: {FORWARD: 90_000}}).startswith("automatic: Compute-bound")


def test_an_analysis_that_fails_ends_the_watching_with_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Watched(tmp_path)
    job.goes_on()
    monkeypatch.setitem(vars(WATCHING), "trace_interval_s", 0.01)
    monkeypatch.setattr("diag.summaries.open_summaries", Mock(side_effect=IndexError("out of range")))
    job.writes({2: {FORWARD: 90_000}})
    job.auto.start()
    for thread in threading.enumerate():
        if thread.name == "diag-auto-trace":
            thread.join(60)
    assert job.said == ["Automatic profiler windows are off (IndexError: out of range); diag trace requests one."]


def test_a_step_that_stalled_asks_for_nothing(tmp_path: Path) -> None:
    """It is over before a window begins."""
    job = Watched(tmp_path)
    job.goes_on()
    assert job.goes_on({2: {FORWARD: 75_000_000}}, last=1) == ""
    verdict = open_summaries(job.layout.root, most_steps=50).verdict
    assert (verdict.culprit_ranks, verdict.confidence >= WATCHING.sure) == ((2,), True)
    assert job.goes_on({2: {FORWARD: 90_000}}).startswith("automatic: Compute-bound")


def test_an_event_has_the_last_step_of_its_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at all ranks before it is of another step: it may be older by seconds."""
    monkeypatch.setitem(vars(WATCHING), "verdict_every_s", 0.0)
    monkeypatch.setitem(vars(WATCHING), "most_load", 1e9)
    job, events = Watched(tmp_path), list[Event]()
    follower = Follower(job.layout, events.append)
    for extra in ({}, {2: {FORWARD: 90_000}}, {2: {FORWARD: 90_000}}):
        job.writes(extra)
        before_ns = time.time_ns()
        assert follower.look().last_step == 99
    (event,) = events
    assert (event.kind, event.step, event.ranks) == ("verdict", 149, (2,))
    assert event.unix_ns >= before_ns


def test_there_are_no_more_windows_than_allowed(tmp_path: Path) -> None:
    job = Watched(tmp_path, most=1)
    assert job.goes_on({2: {FORWARD: 90_000}})
    assert job.goes_on({1: {FORWARD: 90_000}}) == ""
    assert windows(job.layout) == 1


def test_what_the_scheduled_window_shows_is_not_recorded_again(tmp_path: Path) -> None:
    job = Watched(tmp_path, traced=True)
    assert job.goes_on({2: {FORWARD: 90_000}}) == ""
    assert job.goes_on({2: {FORWARD: 90_000}}) == ""
    assert job.goes_on({3: {DATA: 90_000}})


def test_another_launcher_of_the_job_keeps_still(tmp_path: Path) -> None:
    job = Watched(tmp_path, here=False)
    assert job.goes_on({2: {FORWARD: 90_000}}) == ""
    assert windows(job.layout) == 0


def test_of_a_large_job_the_culprits_and_some_others_are_recorded() -> None:
    assert ranks_to_record(range(16), [3]) is None
    chosen = ranks_to_record(range(24_576), list(range(8_000, 8_008)))
    assert chosen is not None
    assert set(range(8_000, 8_004)) < set(chosen)
    assert len(chosen) == 8
    everyone = ranks_to_record(range(17), range(17))
    assert everyone is not None
    assert 0 < len(everyone) <= 8
