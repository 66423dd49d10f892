"""What a training process says of itself while its own thread hangs: a process of its own, a group of one rank."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import HANG, Asked
from tests.forked import forked_python
from tests.patience import PATIENCE_S
from tests.recorders import GLOO_IS_RECORDED

TRAINING = """
import ctypes, faulthandler, os, signal, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from diag.collectors.session import Collector
from diag.collectors.settings import CollectorSettings

def stands_here():
    if sys.argv[2] == "locked":
        while True:  # a signal ends C's sleep
            ctypes.PyDLL(None).sleep(600)  # PyDLL keeps the interpreter's lock
    elif sys.argv[2] == "raises":
        raise ValueError("so it ends")
    elif sys.argv[2] == "ends after a request":
        while collector._background.answered == 0:
            time.sleep(0.05)
    elif sys.argv[2] == "crashes":
        ctypes.string_at(0)
    else:
        time.sleep(600)

if sys.argv[2] == "own handler":
    # Not print(): the signal may come while the print of the training still holds the buffer.
    signal.signal(signal.SIGUSR2, lambda number, frame: os.write(1, b"mine\\n"))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with Collector(Path(sys.argv[1]), CollectorSettings(trace=False, interval_s=0.1)) as collector:
    for step in range(2):
        with collector.step(step):
            dist.all_reduce(torch.ones(3))
            if step:
                dist.all_reduce(torch.ones(5))
                with collector.phase("checkpoint"):
                    print("there", flush=True)
                    if sys.argv[2] != "ends":
                        stands_here()
"""

Train = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path / "run")


@pytest.fixture
def train(layout: RunLayout) -> Iterator[Train]:
    """A training that has come to where it stands still."""
    started: list[subprocess.Popen[str]] = []

    def start(mode: str) -> subprocess.Popen[str]:
        command = [*forked_python(), "-c", TRAINING, str(layout.root), mode]
        environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "2000"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        assert process.stdout is not None
        before = iter(process.stdout.readline, "")  # torch 2.8 prints a line about gloo
        assert "there\n" in before, process.communicate()[1]
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def beat(layout: RunLayout) -> dict[str, object]:
    content: dict[str, object] = json.loads(layout.rank(0).heartbeat.read_text())
    return content


def completed(layout: RunLayout) -> list[int]:
    """The last collective of each group that was completed, by the Flight Recorder."""
    recorder = beat(layout)["recorder"]
    assert isinstance(recorder, dict)
    return [last for _, last in recorder.values()]


def calls_in(path: Path) -> list[list[list[int]]]:
    return [entry["input_sizes"] for entry in pickle.loads(path.read_bytes())["entries"]]


@GLOO_IS_RECORDED
def test_a_request_is_answered_while_the_training_hangs(layout: RunLayout, train: Train) -> None:
    train("hangs")
    wait_for(layout.rank(0).heartbeat.is_file)
    replace_file(layout.asked, encode(Asked(1, HANG, time.time_ns())))
    wait_for(lambda: beat(layout)["answered"] == 1)
    # gloo's threads say so after the call has returned, and of two calls in any order.
    wait_for(lambda: completed(layout) in ([2], [3]))
    said = beat(layout)
    assert (said["step"], said["steps"], said["phase"], said["groups"]) == (1, 1, "checkpoint", {"0": [0]})
    calls = said["calls"]
    assert isinstance(calls, list)
    assert [row[2:5] for row in calls] == [["all_reduce", 12, "float32"], ["all_reduce", 20, "float32"]]
    assert calls_in(layout.rank(0).flight_recorder_asked(0)) == [[[3]], [[3]], [[5]]]
    assert "in stands_here" in layout.rank(0).stacks.read_text()  # no signal was sent, as from another host
    layout.asked.unlink()
    wait_for(lambda: beat(layout)["calls"] == [])


@pytest.mark.parametrize("mode", ["hangs", "locked"])
def test_stacks_come_also_while_the_interpreter_is_locked(layout: RunLayout, train: Train, mode: str) -> None:
    process = train(mode)
    identity = json.loads(layout.rank(0).identity.read_text())
    assert identity["stack_signal"] == signal.SIGUSR2
    time.sleep(0.2)  # into the sleep
    process.send_signal(signal.SIGUSR2)
    wait_for(lambda: "in stands_here" in layout.rank(0).stacks.read_text())
    assert process.poll() is None


def test_a_training_s_own_handler_is_left_to_it(layout: RunLayout, train: Train) -> None:
    process = train("own handler")
    assert json.loads(layout.rank(0).identity.read_text())["stack_signal"] is None
    process.send_signal(signal.SIGUSR2)
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"


@GLOO_IS_RECORDED
def test_a_training_that_raises_leaves_its_dump_and_where(layout: RunLayout, train: Train) -> None:
    assert train("raises").wait(PATIENCE_S) == 1
    assert (beat(layout)["phase"], beat(layout)["failed_in"]) == ("failed: ValueError", "checkpoint")
    assert calls_in(layout.rank(0).flight_recorder_asked(0)) == [[[3]], [[3]], [[5]]]


def test_a_crash_in_c_leaves_stacks(layout: RunLayout, train: Train) -> None:
    assert train("crashes").wait(PATIENCE_S) == -signal.SIGSEGV
    assert "in stands_here" in layout.rank(0).stacks.read_text()


def test_a_training_that_ends_well_leaves_nothing_of_all_this(layout: RunLayout, train: Train) -> None:
    assert train("ends").wait(PATIENCE_S) == 0
    assert not layout.rank(0).stacks.exists()
    assert not list(layout.rank(0).folder.glob("flight_recorder*"))
    assert beat(layout)["calls"] == []


def test_answers_to_a_doubt_that_passed_are_gone_at_a_good_end(layout: RunLayout, train: Train) -> None:
    process = train("ends after a request")
    replace_file(layout.asked, encode(Asked(1, HANG, time.time_ns())))
    process.send_signal(signal.SIGUSR2)
    assert process.wait(PATIENCE_S) == 0
    assert beat(layout)["answered"] == 1
    assert not layout.rank(0).stacks.exists()
    assert not layout.rank(0).flight_recorder_asked(0).exists()


def test_a_request_that_comes_while_the_interpreter_ends_does_not_end_the_process(tmp_path: Path) -> None:
    """Finalising, Python takes faulthandler's handlers away: what was there before comes back."""
    code = """
import faulthandler, os, signal, sys
from pathlib import Path
from diag.collectors.dumps import Stacks
from diag.collectors.budget import Complaints
assert Stacks().install(Path(sys.argv[1]), Complaints(0)) == signal.SIGUSR2
faulthandler.unregister(signal.SIGUSR2)  # as its finalisation does
os.kill(os.getpid(), signal.SIGUSR2)
print("alive")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "stacks.txt"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_a_process_may_be_recorded_twice_and_its_children_then(tmp_path: Path) -> None:
    """A recording leaves the signal ignored, and children inherit that: it is nobody's own handler."""
    code = """
import os, signal, subprocess, sys
from pathlib import Path
from diag.collectors.dumps import Stacks
from diag.collectors.budget import Complaints
for name in sys.argv[1:]:
    stacks, path = Stacks(), Path(name)
    assert stacks.install(path, Complaints(0)) == signal.SIGUSR2
    os.kill(os.getpid(), signal.SIGUSR2)
    stacks.uninstall(path, keep=True)
if len(sys.argv) > 2:
    subprocess.run([sys.executable, "-c", CODE, sys.argv[1] + "-child"], check=True)
"""
    code = code.replace("CODE", repr(code))
    names = [str(tmp_path / name) for name in ("first", "second")]
    subprocess.run([*forked_python(), "-c", code, *names], check=True, timeout=PATIENCE_S)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "first-child", "second"]
    for path in tmp_path.iterdir():
        assert "most recent call first" in path.read_text()


@pytest.mark.parametrize("handler", ["SIG_DFL", "default_int_handler"])
def test_every_recording_of_a_process_closes_its_file(tmp_path: Path, handler: str) -> None:
    """A training that shows warnings showed that it was not closed; with a handler of its own, nothing is installed.
    Whether Python warns at its end depends on what else it has to clear: no file object may be left."""
    code = """
import gc, io, signal, sys, warnings
from pathlib import Path
from diag.collectors.dumps import Stacks
from diag.collectors.budget import Complaints
warnings.simplefilter("always", ResourceWarning)
signal.signal(signal.SIGUSR2, signal.HANDLER)
for name in sys.argv[1:]:
    stacks = Stacks()
    stacks.install(Path(name), Complaints(0))
    stacks.uninstall(Path(name), keep=False)
print([file for file in gc.get_objects() if type(file) is io.FileIO and str(file.name) in sys.argv])
"""
    names = [tmp_path / name for name in ("first", "second")]
    command = [*forked_python(), "-c", code.replace("HANDLER", handler), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
