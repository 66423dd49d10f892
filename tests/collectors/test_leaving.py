"""Why a process ends is known however it leaves: the exception that it handled, not the code that it passes on."""

from __future__ import annotations

import code
import ctypes
import json
import os
import subprocess
import sys
import threading
from _sitebuiltins import Quitter
from collections.abc import Callable
from pathlib import Path

import pytest

from diag.collectors.attach.leaving import Failure, Leaving, ended_by, failure_of
from diag.collectors.fence import Fence
from diag.collectors.layout import RunLayout
from diag.collectors.reading import read_object
from diag.hang.api import triage
from tests.command import diag_process

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
    ("stop", "failures"),
    [
        ("raise ValueError('boom')", ["ValueError: boom"]),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.exit(3)", ["ZeroDivisionError: division by zero"]),
        ("sys.exit(3)", ["SystemExit: 3"]),
        ("sys.exit(0)", []),
        ("sys.exit()", []),
    ],
)
def test_how_a_training_in_a_thread_ends(stop: str, failures: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in ((sys, "exit"), (os, "_exit"), (Quitter, "__call__")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # which are restored
    monkeypatch.setattr(threading, "excepthook", lambda _args: None)
    seen: list[Failure | None] = []
    thread = threading.Thread(target=exec, args=(stop, {"sys": sys}))
    Leaving(Fence(), seen.append, lambda: 0).install(lambda: thread.ident or 0)
    thread.start()
    thread.join()
    assert [failure.message for failure in seen if failure is not None] == failures
    assert None not in seen  # the process goes on


def test_a_signal_while_the_records_are_closed_does_not_keep_a_process() -> None:
    """``os._exit`` would have ended it before."""
    script = (
        "import os, signal, time\n"
        "from diag.collectors.attach.leaving import Leaving\n"
        "from diag.collectors.fence import Fence\n"
        "Leaving(Fence(), lambda _failure: os.kill(os.getpid(), signal.SIGINT) or time.sleep(60), lambda: 0)"
        ".install(lambda: 0)\n"
        "try:\n"
        "    os._exit(7)\n"
        "except KeyboardInterrupt:\n"
        "    print('goes on')\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "", "")


@pytest.mark.parametrize("started", ["script", "module", "code"])
def test_the_exception_that_has_ended_a_script(started: str, tmp_path: Path) -> None:
    script = (
        "import atexit, sys\n"
        "from diag.collectors.attach.leaving import ended_by\n"
        "atexit.register(lambda: print(repr(ended_by())))\n"
        "sys.excepthook = lambda *_: None\n"
        "raise ValueError('boom')\n"
    )
    (tmp_path / "ends.py").write_text(script)
    how = {"script": ["ends.py"], "module": ["-m", "ends"], "code": ["-c", script]}[started]
    ended = subprocess.run([sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.stdout == "ValueError('boom')\n", ended.stderr


@pytest.mark.parametrize(
    "show",
    [
        lambda: code.InteractiveInterpreter().runsource("1 / 0"),
        lambda: ctypes.pythonapi.PyRun_SimpleString(b"1 / 0"),
    ],
    ids=["a console", "C"],
)
def test_an_exception_that_was_printed_has_not_ended_the_script(
    show: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        monkeypatch.setattr(sys, name, None, raising=False)
    show()
    assert isinstance(sys.last_value, ZeroDivisionError)
    assert ended_by() is None


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
    ended = diag_process("run", "--no-trace", "--out", run, "--", sys.executable, script)
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
    ended = diag_process("run", "--no-trace", "--out", run, "--", sys.executable, script)
    assert ended.returncode == 7
    assert read_object(RunLayout(run).rank(0).heartbeat, None)["phase"] == "failed: SystemExit"
