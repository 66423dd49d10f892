"""A run that failed or was cut off opens with that, in every front end; what bound it comes after."""

from __future__ import annotations

import json
import os
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from diag.api import Result, open_run
from diag.app.html_report.render import render
from diag.app.markup import plain
from diag.collectors.layout import RunLayout
from diag.show.json import to_dict
from diag.show.notebook import to_html
from diag.show.redact import Pseudonyms
from diag.show.text import print_report
from tests.app.runs import write_run
from tests.app.shown import shown, text
from tests.command import diag

RAISED = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
    raise ValueError("loss of tenant-7 is NaN")
ValueError: loss of tenant-7 is NaN
"""
FULL = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of \
which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.90 GiB memory in use. Of the allocated \
memory 70.11 GiB is allocated by PyTorch, and 5.11 GiB is reserved by PyTorch but unallocated.
"""
ENDED = "The training failed after 12 steps (exit code 1)"


def run_that(folder: Path, exit_code: int | None = 1, log: str = RAISED) -> Path:
    """Rank 1 has printed ``log``; if it failed, torchrun's error file has the exception."""
    run = write_run(folder / "run", slow_data_ms={0: 40, 1: 40})
    layout = RunLayout(run)
    manifest = json.loads(layout.manifest.read_text())
    layout.manifest.write_text(json.dumps({**manifest, "exit_code": exit_code}))
    layout.rank(0).log.write_text("epoch 1\n")
    layout.rank(1).log.write_text(log)
    if exit_code != 0 and log.startswith("Traceback"):
        error = {"message": log.splitlines()[-1], "extraInfo": {"py_callstack": log, "timestamp": "1000"}}
        layout.rank(1).error.write_text(json.dumps({"message": error}))
    return run


def printed(result: Result) -> str:
    screen = StringIO()
    print_report(result, Console(width=400, file=screen))
    return screen.getvalue()


def test_an_exception_comes_before_the_bottleneck(tmp_path: Path) -> None:
    result = open_run(run_that(tmp_path))
    outcome = result.outcome
    assert outcome is not None
    assert (outcome.exit_code, outcome.ranks) == (1, (1,))
    assert outcome.headline.startswith(f"{ENDED}. Rank 1")
    assert "ValueError: loss of tenant-7 is NaN" in outcome.headline
    report = printed(result)
    told = (ENDED, "diag triage", "The steps before that:", result.verdict.headline[:20])
    places = [report.index(part) for part in told]
    assert places == sorted(places)
    html = to_html(result)
    assert html.index(ENDED) < html.index("The steps before that") < html.index(result.verdict.headline[:20])
    said = to_dict(result)["outcome"]
    assert (said["exit_code"], said["ranks"], said["cause"]) == (1, [1], outcome.cause)


def test_it_is_first_on_the_overview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("overview", run_that(tmp_path), monkeypatch)
    (error,) = test.error
    assert "Rank 1" in error.value
    assert text(test).count("[Hang triage](hang?") == 1  # beside what to do
    assert "also reads its logs" not in text(test), "they are read here"
    assert "The steps before that:" in text(test)
    assert not [each for each in test.markdown if "steps counted" in str(each.value)], "one culprit: that of the end"


def test_an_allocation_that_ended_the_run_is_in_one_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended it, what was free, and what would have made room; not the exception's text once more."""
    run = run_that(tmp_path, log=FULL)
    outcome = open_run(run).outcome
    assert outcome is not None
    assert outcome.headline.endswith("… (train.py:12 in <module>)."), "cut, without a full stop behind"
    test = shown("overview", run, monkeypatch)
    (error,) = test.error
    assert plain(f"{ENDED}. Out of memory: an allocation of 2.15\u00a0GB failed on") in error.value
    assert "reserved but unallocated" in error.value
    assert "Tried to allocate" not in text(test)


def test_a_redacted_report_keeps_what_an_exception_says(tmp_path: Path) -> None:
    result = open_run(run_that(tmp_path))
    assert "tenant-7" in render(result, "diag report", "1")
    redacted = render(result, "diag report", "1", Pseudonyms(result))
    assert ENDED in redacted
    assert "tenant-7" not in redacted


def test_the_answer_of_a_triage_is_kept_until_the_run_goes_on(tmp_path: Path) -> None:
    """It has read the logs, here of an exception that the records do not show."""
    run = run_that(tmp_path)
    layout = RunLayout(run)
    layout.rank(1).error.unlink()
    before = open_run(run).outcome
    assert before is not None
    assert before.cause == ""
    assert "diag triage" in before.action
    assert diag("triage", run).returncode == 0
    kept = open_run(run).outcome
    assert kept is not None
    assert (kept.cause, kept.ranks) == ("rank_killed_exception", (1,))
    assert "ValueError: loss of tenant-7 is NaN" in kept.headline
    assert kept.action
    later_ns = layout.hang.stat().st_mtime_ns + 1
    os.utime(layout.rank(0).steps, ns=(later_ns, later_ns))
    assert open_run(run).outcome == before


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "[]",
        '{"verdict": {"fault_class": "healthy"}}',
        '{"verdict": {"fault_class": "a b", "confidence": 1, "headline": ""}}',
        '{"verdict": {"fault_class": "desync", "confidence": 1, "headline": ""}, "culprits": [{"rank": -1}]}',
        '{"verdict": {"fault_class": "desync", "confidence": 1, "headline": ""}, "culprits": [{"rank": 1e300}]}',
    ],
)
def test_a_damaged_answer_is_left_out(tmp_path: Path, answer: str) -> None:
    run = run_that(tmp_path)
    before = open_run(run).outcome
    assert before is not None
    RunLayout(run).hang.write_text(answer)
    assert open_run(run).outcome == before


def test_a_failure_that_nothing_explains(tmp_path: Path) -> None:
    outcome = open_run(run_that(tmp_path, exit_code=3, log="epoch 1\n")).outcome
    assert outcome is not None
    assert outcome.headline.startswith(f"{ENDED.replace('code 1', 'code 3')}. The cause is not known.")


def test_a_training_that_left_no_end_and_is_silent(tmp_path: Path) -> None:
    run = run_that(tmp_path, exit_code=None)
    assert open_run(run).outcome is None, "it may still train"
    for path in [run, *run.rglob("*")]:
        os.utime(path, (1_000_000, 1_000_000))
    outcome = open_run(run).outcome
    assert outcome is not None
    assert outcome.exit_code is None
    assert "without recording its end. Rank 1" in outcome.headline


def test_of_a_run_that_ended_well_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_that(tmp_path, exit_code=0)
    result = open_run(run)
    assert result.outcome is None
    assert to_dict(result)["outcome"] is None
    assert "The steps before that" not in printed(result)
    assert not shown("overview", run, monkeypatch).error
