"""The recorder never harms a training: whatever fails in it, losses, output and exit code are those of the bare one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diag.collectors.fence import Fence, Inside
from diag.collectors.settings import SETTINGS_VARIABLE, SITE, CollectorSettings, attached

SCRIPT = Path(__file__).with_name("fenced.py")
# One of them is run here, with functions from all over the recorder. `python tests/attach/fenced.py FOLDER SCENARIO`
# lets all of them fail, in one to three minutes a scenario.
PARTS = 64


def failing(folder: Path, scenario: str, part: int, parts: int) -> dict[str, Any]:
    command = [sys.executable, SCRIPT, folder, scenario, str(part), str(parts)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1500)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_functions_that_fail_cost_the_recording_and_no_more(tmp_path: Path) -> None:
    found = failing(tmp_path, "ddp", 5, PARTS)
    assert found["different"] == {}
    assert found["trainings"] > 4
    assert found["exit code"] == 0


def test_a_training_that_leaves_a_collective_keeps_its_exit_code(tmp_path: Path) -> None:
    """SIGABRT ended it: the collective ended with Python, and called a function of the recorder."""
    found = failing(tmp_path, "left", 0, 10_000)
    assert found["different"] == {}
    assert found["trainings"] > 0
    assert found["exit code"] == 1


def test_a_training_that_fails_in_a_profiler_window_keeps_its_exit_code(tmp_path: Path) -> None:
    """SIGSEGV ended it, as the profiler still recorded when Python ended."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "sgd = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(4):\n"
        "    model(torch.ones(2, 2)).sum().backward()\n"
        "    sgd.step()\n"
        "raise ValueError('in a window')\n"
    )
    window = CollectorSettings(trace_skip=1, trace_warmup=1, trace_active=9)
    settings = attached(tmp_path / "run", window) | {"PYTHONPATH": str(SITE)}
    done = subprocess.run([sys.executable, script], env=os.environ | settings, capture_output=True, check=False)
    assert b"ValueError: in a window" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("code", ["print(1)", "import torch; print(1)"], ids=["without torch", "with torch"])
def test_python_starts_where_nothing_can_be_printed(tmp_path: Path, code: str) -> None:
    """Standard error is closed, settings do not parse, and the current folder is gone where torch does not need one."""
    settings = attached(tmp_path, CollectorSettings()) | {"PYTHONPATH": str(SITE), SETTINGS_VARIABLE: "["}
    (tmp_path / "here").mkdir()
    leave = "" if "torch" in code else f"rmdir {tmp_path}/here &&"
    shell = f"cd {tmp_path}/here && {leave} exec {sys.executable} -c '{code}' 2>&-"
    done = subprocess.run(["sh", "-c", shell], env=os.environ | settings, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


# -- the fence itself --------------------------------------------------------------------------------------------------


class Told:
    """A fence, and why it switched the recording off."""

    def __init__(self) -> None:
        self.why: list[str] = []
        self.undone: list[str] = []
        self.fence = Fence()
        self.fence.say = self.why.append
        self.fence.undo += [self.fails, self.undone.append]

    def fails(self, why: str) -> None:
        raise OSError(why)


def fails(*_values: object) -> None:
    raise StopIteration("ours")


def test_a_failure_before_or_after_a_call_leaves_the_call_as_it_is() -> None:
    for begin, end in ((fails, fails), (lambda _args, _kwargs: 1, fails)):
        told = Told()
        double = told.fence.around(lambda number: 2 * number, begin, end)
        assert [double(2), double(3)] == [4, 6]
        assert told.why == told.undone == ["StopIteration('ours')"]
        assert told.fence.off


def test_the_exception_of_the_training_is_the_one_that_it_raised() -> None:
    told, inside, error = Told(), Inside(), StopIteration("theirs")

    def raises() -> None:
        raise error

    for _ in range(2):
        with pytest.raises(StopIteration) as caught:
            told.fence.around(raises, lambda _args, _kwargs: 1, raised=fails, inside=inside)()
        assert caught.value is error
        assert error.__context__ is None
        assert not inside.now
    assert told.why == ["StopIteration('ours')"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, TimeoutError], ids=lambda error: error.__name__)
def test_what_a_signal_handler_raises_while_our_code_runs_is_the_training_s(error: type[BaseException]) -> None:
    class Handler:
        def __call__(self, *_: object) -> None:
            raise error("theirs")

    told = Told()
    before = signal.signal(signal.SIGUSR1, Handler())
    try:
        with pytest.raises(error, match="theirs"):
            told.fence.call(lambda: os.kill(os.getpid(), signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (told.why, told.fence.off) == ([], False)


def test_a_fence_that_cannot_say_why_still_undoes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    told = Told()
    told.fence.say = fails
    assert told.fence.hook(fails)() is None
    assert told.undone == ["StopIteration('ours')"]
