"""Processes that are forked from one that has imported what most of them need: see tests/fork_server.py."""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile, gettempdir, mkdtemp
from typing import Literal

from tests.fork_client import FORKS, answer, ask
from tests.patience import PATIENCE_S

Kind = Literal["trainings", "commands", "dashboards"]  # of fork_server.PRELOADED
_GRACE_S = 10  # for the others to end when one has failed
_CALL = """
import pickle, sys
function, values = pickle.loads(bytes.fromhex(sys.argv[1]))
function(*values)
"""


@dataclass(frozen=True)
class Ended:
    """What came of processes: the exit code of the first that failed, or 0, that of each, and what all of them said."""

    exit_code: int
    exit_codes: tuple[int | None, ...]
    stdout: str
    stderr: str


@cache
def fork_server(kind: Kind = "trainings") -> str:
    """The address of the server that has imported what these need. All workers of pytest share it. It ends when they
    have."""
    if of_all := os.environ.get("PYTEST_XDIST_TESTRUNUID"):
        folder = Path(gettempdir(), f"forks-{kind}-{of_all[:12]}-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)  # the server removes it
    else:
        folder = Path(mkdtemp(prefix="forks-"))
    address = folder / "address"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            _start(address, kind)
        needed = socket.socket(socket.AF_UNIX)
        needed.connect(str(address))
        needed.sendall(b"user")
        _needed.append(needed)
    return str(address)


_needed: list[socket.socket] = []  # open as long as this process lives


def _start(address: Path, kind: Kind) -> None:
    command = [sys.executable, str(Path(__file__).with_name("fork_server.py")), str(address), kind]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # read when libgomp is loaded
    server = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    while not address.exists():
        assert server.poll() is None, "the server of forks has failed"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def forked_python(kind: Kind = "trainings") -> list[str]:
    """The beginning of a command that stands for ``sys.executable`` with ``diag`` imported, and PyTorch (Streamlit)."""
    return [sys.executable, "-IS", str(Path(__file__).with_name("fork_client.py")), fork_server(kind)]


def forking(kind: Kind = "trainings") -> dict[str, str]:
    """An environment in which a forked ``diag`` has its processes forked as well: the ranks of the bundled trainer, the
    server of the dashboard."""
    return {**os.environ, FORKS: fork_server(kind)}


class Forked:
    """A process that is forked from the server."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str] = os.environ,
        cwd: Path | None = None,
        stdout: int = 1,
        stderr: int = 2,
        kind: Kind = "trainings",
    ) -> None:
        with Path(os.devnull).open() as nothing:
            streams = [nothing.fileno(), stdout, stderr]
            self._connection = ask(fork_server(kind), list(words), dict(environment), str(cwd or Path.cwd()), streams)
        self.pid = answer(self._connection)
        self.exit_code: int | None = None

    def fileno(self) -> int:
        return self._connection.fileno()

    def wait(self, timeout: float) -> int | None:
        """The exit code, as of subprocess; None when the process does not end in so many seconds."""
        if self.exit_code is None and _ended([self], timeout):
            self.exit_code = os.waitstatus_to_exitcode(answer(self._connection))
            self._connection.close()
        return self.exit_code

    def send_signal(self, number: int) -> None:
        if self.wait(0) is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it, and waits for that."""
        self.send_signal(signal.SIGKILL)
        self.wait(PATIENCE_S)


def run_forked(
    target: list[str],
    environments: Sequence[Mapping[str, str]],
    timeout: float,
    cwd: Path | None = None,
    kind: Kind = "trainings",
) -> Ended:
    """Runs what Python would be given, a script or ``-m`` and a module or ``-c`` and code with its arguments, once with
    each of the environments, at once. ``cwd``: the current folder of the processes, where not that of the tests;
    ``kind``: of the server, "commands" for one that has not imported PyTorch, of which forks take a fifth of the time.
    AssertionError when that takes longer; no process is left then."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "stdout"), Path(folder, "stderr")
        with out.open("a") as stdout, err.open("a") as stderr:
            streams = (stdout.fileno(), stderr.fileno())
            processes = [Forked(target, own, cwd, *streams, kind) for own in environments]
        try:
            failed = _first_to_fail(processes, time.monotonic() + timeout)
        finally:
            _end(processes)
        assert not isinstance(failed, str), f"{failed} after {timeout} s: {err.read_text()[-5000:]}"
        return Ended(failed, tuple(process.exit_code for process in processes), out.read_text(), err.read_text())


def call_forked(function: Callable[..., object], *values: object, printed: int = 2) -> Forked:
    """A process that calls a function. ``printed``: where what it prints goes."""
    return Forked(["-c", _CALL, pickle.dumps((function, values)).hex()], stdout=printed, stderr=printed)


def call_ranks(function: Callable[..., object], *values: object, ranks: int = 2) -> None:
    """Calls a function in so many processes at once, with the rank and the values. AssertionError, with what they
    printed, when one fails."""
    with TemporaryFile("w+") as printed:
        processes = [call_forked(function, rank, *values, printed=printed.fileno()) for rank in range(ranks)]
        try:
            failed = _first_to_fail(processes, time.monotonic() + PATIENCE_S)
        finally:
            _end(processes)
        printed.seek(0)
        assert failed == 0, f"{failed}: {printed.read()[-5000:]}"


def _ended(processes: Sequence[Forked], timeout: float) -> list[Forked]:
    """Those that have ended, at the latest after so many seconds. Not by select, which refuses files of a number above
    1,023: a worker of the tests may have as many open."""
    by_number = {process.fileno(): process for process in processes}
    asked = select.poll()
    for number in by_number:
        asked.register(number, select.POLLIN)
    return [by_number[number] for number, _ in asked.poll(1000 * max(0.0, timeout))]


def _first_to_fail(processes: Sequence[Forked], deadline: float) -> int | str:
    """Its exit code, 0 when all ended well, or that some do not end."""
    running = list(processes)
    while running:
        ended = _ended(running, deadline - time.monotonic())
        if not ended:
            return f"{len(running)} of {len(processes)} processes still run"
        for process in ended:
            running.remove(process)
            if code := process.wait(PATIENCE_S):
                return code
    return 0


def _end(processes: Sequence[Forked]) -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    for process in processes:
        process.wait(deadline - time.monotonic())
        process.kill()
