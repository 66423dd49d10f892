"""Profiler windows that somebody asks for while a training runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from diag.collectors import window
from diag.collectors.background import TraceRequests
from diag.collectors.budget import Budget, Complaints
from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import TRACE_PENDING, TRACE_RECORDED, TraceAsked
from diag.collectors.settings import CollectorSettings
from diag.collectors.window import TraceWindows

OFF = CollectorSettings(trace=False)
LETTERS = {"": ".", "warmup": "w", "active": "a", "after": "x"}


class Training:
    """Steps of a rank with real profiler windows, one letter each."""

    def __init__(self, folder: Path, settings: CollectorSettings = OFF, budget: int = 1 << 30) -> None:
        self.files = RunLayout(folder).rank(0)
        self.files.folder.mkdir(parents=True)
        self.windows = TraceWindows(settings, self.files, Budget(budget), Complaints(0), dict)
        self.step = 0
        self.seen = ""

    def train(self, until: int) -> str:
        while self.step < until:
            self.seen += LETTERS[self.windows.before_step(self.step, self.step)]
            self.windows.after_step()
            self.step += 1
        self.windows.wait_until_packed()
        return self.seen

    def traces(self) -> list[str]:
        return [path.name for path in self.files.traces()]


def test_the_window_comes_at_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.train(2)
    training.windows.ask(TraceAsked(1, 5, 2))
    assert training.windows.answer == (1, TRACE_PENDING)
    assert training.train(7) == "....waa"
    assert training.windows.answer == (1, TRACE_RECORDED)
    training.windows.ask(TraceAsked(2, 12, 1))
    assert training.train(15) == "....waax...wax."
    assert training.windows.answer == (2, TRACE_RECORDED)
    assert training.traces() == ["trace-step000005.json.gz", "trace-step000012.json.gz"]


def test_the_training_goes_on_while_a_window_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_pack, pack = threading.Event(), window._pack

    def slowly(*args: Any) -> None:
        may_pack.wait(60)
        pack(*args)

    monkeypatch.setattr(window, "_pack", slowly)
    training = Training(tmp_path)
    training.windows.ask(TraceAsked(1, 2, 1))
    for step in range(9):
        training.windows.before_step(step, step)
        training.windows.after_step()
    assert training.windows.answer == (1, TRACE_PENDING)
    training.windows.ask(TraceAsked(2, 50, 1))
    may_pack.set()
    training.windows.close()
    assert training.windows.answer == (2, "the training ended first"), "not that the first was recorded"
    assert [path.name for path in training.files.folder.iterdir()] == ["trace-step000002.json.gz"]


def test_a_rank_that_reads_too_late_records_no_other_steps(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.train(5)
    training.windows.ask(TraceAsked(1, 5, 2))
    assert training.train(10) == "." * 10
    assert training.windows.answer == (1, "step 5 had begun when the request was read")
    assert training.traces() == []


def test_the_scheduled_window_goes_before_one_that_is_asked_for_in_it(tmp_path: Path) -> None:
    training = Training(tmp_path, CollectorSettings(trace_skip=2, trace_warmup=1, trace_active=2))
    training.windows.ask(TraceAsked(1, 5, 2))
    assert training.train(9) == "..waax..."
    assert training.windows.answer == (1, "the scheduled window was being recorded")


def test_a_scheduled_window_whose_begin_was_taken_is_left_out(tmp_path: Path) -> None:
    training = Training(tmp_path, CollectorSettings(trace_skip=4, trace_warmup=1, trace_active=4))
    training.windows.ask(TraceAsked(1, 3, 2))
    assert training.train(12).rstrip("x.") == "..waa"
    assert training.traces() == ["trace-step000003.json.gz"]


def test_a_second_request_waits_for_the_first(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.windows.ask(TraceAsked(1, 2, 3))
    training.train(3)
    training.windows.ask(TraceAsked(2, 9, 1))
    assert training.windows.answer[0] == 2
    assert "the window requested before was still being recorded" in training.windows.answer[1]
    training.train(8)
    assert training.traces() == ["trace-step000002.json.gz"]


def test_without_room_on_the_disk_the_answer_says_so(tmp_path: Path) -> None:
    training = Training(tmp_path, budget=10)
    training.windows.ask(TraceAsked(1, 2, 1))
    training.train(5)
    number, answer = training.windows.answer
    assert (number, answer.partition(":")[0]) == (1, "the window is not kept")
    assert training.traces() == []


def test_the_newest_window_is_kept_at_the_budget(tmp_path: Path) -> None:
    first = Training(tmp_path / "first")
    first.windows.ask(TraceAsked(1, 2, 1))
    first.train(5)
    size = (first.files.folder / first.traces()[0]).stat().st_size
    training = Training(tmp_path / "second", budget=3 * size // 2)
    training.windows.ask(TraceAsked(1, 2, 1))
    training.train(6)
    training.windows.ask(TraceAsked(2, 9, 1))
    training.train(12)
    assert training.windows.answer == (2, TRACE_RECORDED)
    assert training.traces() == ["trace-step000009.json.gz"]


@pytest.mark.parametrize("written", ['{"traceEvents": [', None])
def test_a_trace_that_the_profiler_could_not_write_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], written: str | None
) -> None:
    """It raises nothing then: a part is there, or only the file that it writes first."""

    def export(_profiler: object, path: str) -> None:
        Path(path if written else f"{path}.tmp").write_text(written or "{")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", export)
    training = Training(tmp_path)
    training.windows.ask(TraceAsked(1, 2, 1))
    training.train(5)
    assert "is the disk full?" in training.windows.answer[1]
    assert capsys.readouterr().err.count("\n") == 1
    assert list(training.files.folder.iterdir()) == []


def test_a_training_that_ends_first_says_so(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.windows.ask(TraceAsked(1, 50, 1))
    training.train(5)
    training.windows.close()
    assert training.windows.answer == (1, "the training ended first")


def test_requests_are_handed_on_once_and_only_to_those_that_are_asked(tmp_path: Path) -> None:
    path, taken = tmp_path / "trace_asked.json", {0: [], 1: []}  # type: ignore[var-annotated]
    requests = [TraceRequests(path, rank, taken[rank].append) for rank in taken]

    def look(content: bytes | None) -> list[list[int]]:
        if content is not None:
            replace_file(path, content)
        for each in (*requests, *requests):
            each.look()
        return [[asked.number for asked in own] for own in taken.values()]

    assert look(None) == [[], []]
    assert look(encode(TraceAsked(1, 7, 3, [1], "why"))) == [[], [1]]
    assert look(b'{"number": ') == [[], [1]]
    assert look(encode(TraceAsked(2, 20, 3))) == [[2], [1, 2]]
    assert look(encode(TraceAsked(3, 20, 0))) == [[2], [1, 2]], "no step is nothing to record"
