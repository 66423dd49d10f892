"""Whatever a command is started in, it ends with one message and an exit code, never with a traceback."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from diag.cli.main import COMMANDS
from diag.errors import ExitCode
from tests.examples import examples

# A copy, as analysing a run writes its verdict there.
_FOLDER = tempfile.TemporaryDirectory()
SAMPLE = str(shutil.copytree(Path(__file__).parents[2] / "sample_traces/ddp-healthy", Path(_FOLDER.name, "sample")))
# Each command prints its help on its own way, and two print results: text through rich, and data.
PRINTING = [
    ["analyze", SAMPLE],
    ["help", "traces"],
    *([name, "--help"] for name in COMMANDS if name not in ("run", "tune", "demo", "dashboard")),
]
# The two that print results, and one that prints its help.
SOME = PRINTING[: examples(3, thorough=len(PRINTING))]
LONG = "a" * 5000
# Commands that take a path.
AT = [["analyze", "{}"], ["triage", "{}"], ["compare", "{}", "{}"], ["plan", "{}"], ["trace", "{}"], ["metrics", "{}"]]
AT += [["export", "{}", "--format", "jsonl"], ["check", "{}", "--max-data-wait", "5%"], ["open", "{}", "--rank", "0"]]
AT += [["report", SAMPLE, "-o", "{}"], ["attach", "--out", "{}"]]


def at(path: str) -> list[list[str]]:
    return [[word.format(path) for word in command] for command in AT]


BUGS = {"ENOENT": "open('/usr/lib/nothing', 0)", "EBADF": "read(12345, 1)", "EINVAL": "lseek(0, -5, 9)"}
# Situations: what makes them, and the commands that are started in them.
SITUATIONS: dict[str, tuple[str, list[list[str]]]] = {
    "closed": ("os.close(1); sys.stdout = None", SOME),
    "full": ("os.dup2(os.open('/dev/full', os.O_WRONLY), 1)", PRINTING),
    "read enough": ("r, w = os.pipe(); os.close(r); os.dup2(w, 1); sys.stdout = open(1, 'w')", SOME),
    "removed": ("os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')", at(".")),
    "long": ("pass", at(LONG)),
    "loop": ("os.path.lexists('loop') or os.symlink('loop', 'loop')", at("loop")),
    **{
        f"bug {reason}": (f"diag.by_size.open_by_size = lambda *_, **__: os.{call}", [["analyze", SAMPLE]])
        for reason, call in BUGS.items()
    },
    "named": ("diag.by_size.open_by_size = lambda *_, **__: os.open(sys.argv[2] + '/x', 0)", [["analyze", SAMPLE]]),
    "no input": ("os.close(0); sys.stdin = None", [["triage", "-"]]),
    "no error": ("os.close(2); sys.stderr = None", [["analyze", "/nowhere"], ["help", "run"]]),
    **{
        f"columns {columns}": (
            f"os.environ['COLUMNS'] = '{columns}'; os.dup2(os.open('out', os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)",
            [["analyze", "--help"], ["help", "traces"]],
        )
        for columns in ("0", "-5", "99999999")
    },
}  # fmt: skip
RUN_ALL = """
import json, os, sys
import diag.api, diag.summaries
import diag.cli.main, diag.cli.analyze, diag.cli.triage, diag.cli.report, diag.cli.export, diag.show.text
for name, (before, commands) in json.loads(sys.argv[1]).items():
    for arguments in commands:
        with open("error", "w+") as error:
            if not os.fork():
                os.dup2(error.fileno(), 2)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                sys.argv = ["diag", *arguments]
                exec(before)
                diag.cli.main.main()
            code = os.waitstatus_to_exitcode(os.wait()[1])
            print(json.dumps([name, arguments[0], code, open("error").read()]), flush=True)
"""


@dataclass
class Ends:
    """How the commands of one situation ended."""

    codes: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)  # what each printed on standard error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("current")


@pytest.fixture(scope="module")
def ends(folder: Path) -> dict[str, Ends]:
    """Of all situations: one process imports what the commands need, and each command runs in a fork of it."""
    ended = subprocess.run(
        [sys.executable, "-c", RUN_ALL, json.dumps(SITUATIONS)],
        stdout=subprocess.PIPE, text=True, timeout=600, cwd=folder, check=True, env={**os.environ, "DIAG_CACHE": "off"},
    )  # fmt: skip
    by_situation = {name: Ends() for name in SITUATIONS}
    for line in ended.stdout.splitlines():
        name, _, code, error = json.loads(line)
        by_situation[name].codes.add(code)
        by_situation[name].errors.append(error)
    return by_situation


@pytest.mark.parametrize(
    ("situation", "reason"), [("closed", "standard output is closed"), ("full", "No space left on device")]
)
def test_an_output_that_takes_nothing_is_one_line(ends: dict[str, Ends], situation: str, reason: str) -> None:
    assert set(ends[situation].errors) == {f"diag: the output cannot be written: {reason}\n"}
    assert ends[situation].codes == {ExitCode.ERROR}


def test_a_reader_that_has_enough_is_no_error(ends: dict[str, Ends]) -> None:
    assert (ends["read enough"].codes, set(ends["read enough"].errors)) == ({0}, {""})


@pytest.mark.parametrize("situation", ["removed", "long", "loop"])
def test_a_path_that_the_system_refuses_is_one_message(ends: dict[str, Ends], situation: str) -> None:
    for error in ends[situation].errors:
        message, *hint = error.splitlines()
        assert message.startswith("diag: "), error
        assert len(message) < 600
        assert len(hint) <= 1
    assert ends[situation].codes <= {ExitCode.ERROR, ExitCode.USAGE}


@pytest.mark.parametrize("reason", BUGS)
def test_a_mistake_of_ours_keeps_its_traceback(ends: dict[str, Ends], reason: str) -> None:
    (error,) = ends[f"bug {reason}"].errors
    assert "Traceback" in error
    assert "open_by_size" in error
    assert "standard output" not in error


def test_a_path_below_a_named_one_is_one_message(ends: dict[str, Ends]) -> None:
    assert ends["named"].errors == [f"diag: {SAMPLE}/x: No such file or directory\n"]


def test_closed_standard_input_and_error(ends: dict[str, Ends]) -> None:
    assert ends["no input"].codes == {ExitCode.ERROR}
    assert "cannot be read" in ends["no input"].errors[0]
    assert (ends["no error"].codes, set(ends["no error"].errors)) == ({ExitCode.ERROR, ExitCode.OK}, {""})


def test_a_width_that_nothing_fits_is_not_used(ends: dict[str, Ends], folder: Path) -> None:
    assert {code for name, end in ends.items() if name.startswith("columns") for code in end.codes} == {0}
    printed = (folder / "out").read_text()
    assert printed.lower().count("usage: diag analyze") == 3
    assert max(map(len, printed.splitlines())) <= 1100


def test_little_memory_is_one_line() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))

    command = [sys.executable, "-m", "diag", "analyze", SAMPLE]
    ended = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (ExitCode.ERROR, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("diag: memory is not enough: this process may use 210 MB of address space (ulimit -v)")


def test_a_command_with_enough_memory_under_a_limit_keeps_its_exit_code() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    command = [sys.executable, "-m", "diag", "check", SAMPLE, "--max-data-wait", "0.0001%"]
    ended = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (ExitCode.GATE_EXCEEDED, "")
    assert "memory" not in ended.stdout


def test_an_interrupted_command_ends_with_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    process = subprocess.Popen(
        [sys.executable, "-m", "diag", "triage", str(tmp_path / "log")], stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    writer = os.open(tmp_path / "log", os.O_WRONLY)  # returns when diag has opened the pipe
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    os.close(writer)
    assert (process.returncode, error) == (ExitCode.INTERRUPTED, "diag: interrupted\n")


def test_a_command_that_crashes_says_where(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    command = [sys.executable, "-m", "diag", "triage", str(tmp_path / "log")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    writer = os.open(tmp_path / "log", os.O_WRONLY)  # returns when diag has opened the pipe
    process.send_signal(signal.SIGSEGV)
    _, error = process.communicate(timeout=60)
    os.close(writer)
    assert process.returncode == -signal.SIGSEGV
    assert error.startswith("Fatal Python error: Segmentation fault")
    assert "in main" in error
