"""Why a process ends is known however it leaves: the exception that it handled, not the code that it passes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from diag.collectors.attach.leaving import Failure, Leaving, failure_of
from diag.collectors.fence import Fence
from diag.collectors.layout import RunLayout
from diag.collectors.reading import read_object
from diag.hang.api import triage
from tests.command import diag

TRAINS = """
import os, sys, threading, torch
def train():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    raise ValueError("boom")
def leave():
    try:
        train()
    except ValueError:
        sys.stdout.flush()
        {leave}
{start}
"""


def handling(error: BaseException, status: object) -> Failure | None:
    try:
        raise error
    except BaseException as caught:
        return failure_of(status, caught)


@pytest.mark.parametrize(
    ("error", "status", "kind", "message"),
    [
        (ValueError("boom"), 1, ValueError, "ValueError: boom"),
        (ValueError("boom"), "see the log", ValueError, "ValueError: boom"),
        (KeyboardInterrupt(), 130, KeyboardInterrupt, "KeyboardInterrupt: "),
        (SystemExit(3), 3, SystemExit, "SystemExit: 3"),
    ],
)
def test_what_was_handled_is_why(error: BaseException, status: object, kind: type, message: str) -> None:
    failure = handling(error, status)
    assert failure is not None
    assert (failure.kind, failure.message) == (kind, message)


def test_an_exception_that_cannot_be_printed_is_named() -> None:
    class NoTextError(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    failure = handling(NoTextError(), 1)
    assert failure is not None
    assert failure.message == "NoTextError"
    assert "NoTextError" in failure.text


@pytest.mark.parametrize("status", [None, 0, False])
def test_an_exit_without_an_error_is_none(status: object) -> None:
    assert handling(ValueError("handled"), status) is None
    assert failure_of(status, None) is None


def test_an_exception_behind_an_exit_is_found() -> None:
    try:
        try:
            raise ValueError("boom")
        except ValueError:
            raise SystemExit(2)  # noqa: B904 -- as command lines do
    except SystemExit as caught:
        failure = failure_of(2, caught)
    assert failure is not None
    assert failure.kind is ValueError


def test_a_program_that_goes_on_after_an_exit_has_not_left() -> None:
    steps = [4]
    leaving = Leaving(Fence(), lambda _: None, lambda: steps[0])
    leaving._note(3)
    assert leaving.failure is not None
    steps[0] = 5
    assert leaving.failure is None


@pytest.mark.parametrize(
    ("leave", "start", "code"),
    [
        ("os._exit(1)", "leave()", 1),
        pytest.param("", "sys.excepthook = lambda *_: None\ntrain()", 1, marks=pytest.mark.matrix),
        pytest.param(
            "", "thread = threading.Thread(target=train)\nthread.start()\nthread.join()", 0, marks=pytest.mark.matrix
        ),
    ],
    ids=["os._exit", "a hook of its own", "a thread"],
)
def test_the_exception_is_in_the_run(tmp_path: Path, leave: str, start: str, code: int) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(TRAINS.format(leave=leave or "raise", start=start))
    ended = diag("run", "--no-trace", "--out", run, "--", sys.executable, script)
    assert ended.returncode == code, ended.stderr
    assert "raised ValueError: boom" in " ".join(ended.stderr.split())
    files = RunLayout(run).rank(0)
    assert json.loads(files.error.read_bytes())["message"]["message"] == "ValueError: boom"
    assert files.error.stat().st_mode & 0o077 == 0
    answer = triage([str(run)])
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == ("rank_killed_exception", [0])


def test_an_exit_in_the_middle_of_a_step_is_a_failure(tmp_path: Path) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(
        "import sys, torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(40):\n"
        "    loss = model(torch.ones(2, 4)).sum()\n"
        "    if step == 30:\n"
        "        loss.register_hook(lambda _gradient: sys.exit(7))\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    ended = diag("run", "--no-trace", "--out", run, "--", sys.executable, script)
    assert ended.returncode == 7
    assert read_object(RunLayout(run).rank(0).heartbeat, None)["phase"] == "failed: SystemExit"
