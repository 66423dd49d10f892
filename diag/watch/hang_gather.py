"""Evidence of a training that hangs or dies, taken while its processes live: stacks, dumps, the driver's view."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from diag.collectors.files import encode, open_private, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.reading import read_object
from diag.collectors.records import HANG, Asked
from diag.collectors.text import masked
from diag.errors import DiagError
from diag.hang.ras import client as ras

from .workers import Worker

ANSWER_S = 10.0  # a second until the collectors look, and up to six for the first dump of a process on a busy host
TOOL_S = 10.0  # nvidia-smi took 1 to 3 s on hosts with 8 GPUs; on a GPU that fell off the bus it never ends
RAS_S = 12.0  # a report: RAS waits 5 s, and at most 10 s, for ranks that do not answer
_POLL_S = 0.1
_PID = re.compile(rb'"pid": (\d{1,10})')


def gather(layout: RunLayout, workers: Iterable[Worker], why: str, number: int = 1, answer_s: float = ANSWER_S) -> None:
    """Asks every rank for its stacks, its Flight Recorder and a last heartbeat; py-spy and nvidia-smi run meanwhile,
    where they are installed, and NCCL RAS is asked where it listens. Waits until the living have answered, ``answer_s``
    seconds at most, and for a second report of NCCL RAS where there was a first. Never raises.
    ``number``: another one than of any request before in this run."""
    workers = tuple(workers)
    with contextlib.suppress(OSError):  # no request on a full disk: the signal below needs no space
        replace_file(layout.asked, encode(Asked(number, why, time.time_ns())))
    with ExitStack() as tools:
        for worker in workers:
            tools.enter_context(_tool(["py-spy", "dump", "--pid", str(worker.pid)], layout.rank(worker.rank).pyspy))
        tools.enter_context(_tool(["nvidia-smi", "-q"], layout.nvidia_smi(_host())))
        tools.enter_context(_reports_of_ras(layout, workers, twice=why == HANG, number=number))
        for worker in workers:
            _ask_for_stacks(layout, worker)
        _wait(lambda: all(not w.alive or _answered(layout, w, number) for w in workers), answer_s)


def _ask_for_stacks(layout: RunLayout, worker: Worker) -> None:
    """Only where the process itself said that it takes this signal: any other process would be ended by it."""
    record = read_object(layout.rank(worker.rank).identity, layout.root)
    number = record.get("stack_signal")
    if record.get("pid") == worker.pid and isinstance(number, int):
        worker.send(number)


def _answered(layout: RunLayout, worker: Worker, number: int) -> bool:
    """A rank without a heartbeat has no collectors, and nobody to answer."""
    content = read_object(layout.rank(worker.rank).heartbeat, layout.root)
    return not content or content.get("answered") == number


def take_back(layout: RunLayout) -> None:
    """The training goes on: no more requests, and nothing is left that a later triage would take for a hang. Without a
    request the ranks' heartbeats are short again. stacks.txt is emptied: the processes have it open."""
    paths = [layout.asked, layout.nvidia_smi(_host()), *layout.all_nccl_ras(_host())]
    for rank, files in layout.ranks().items():
        paths += [files.flight_recorder_asked(rank), files.pyspy]
        with contextlib.suppress(OSError):
            os.truncate(files.stacks, 0)
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _host() -> str:
    return socket.gethostname().partition(".")[0]


@contextmanager
def _tool(command: list[str], output: Path) -> Iterator[None]:
    """Runs a program beside the block, at most ``TOOL_S`` seconds after it, its output into a file. What is not
    installed, not allowed or too slow leaves no file."""
    if shutil.which(command[0]) is None:
        yield
        return
    partial = output.with_name(f".{output.name}.part")
    try:
        with open_private(partial) as file:
            running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL)
    except OSError:
        yield
        return
    try:
        yield
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            if running.wait(TOOL_S) == 0:
                # py-spy begins with the command line of the process.
                printed = masked(partial.read_text(errors="surrogateescape"))
                replace_file(output, printed.encode(errors="surrogateescape"), private=True)
    finally:
        if running.poll() is None:
            running.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(1)
        with contextlib.suppress(OSError):
            partial.unlink()


@contextmanager
def _reports_of_ras(layout: RunLayout, workers: Iterable[Worker], twice: bool, number: int) -> Iterator[None]:
    """Asks the job's NCCL RAS beside the block. ``twice``: two reports tell a hang from a snapshot; a crash has no time
    for a second one."""

    def keep() -> None:
        pids = {worker.pid for worker in workers}
        for turn in range(2 if twice else 1):
            if turn:
                time.sleep(ras.APART_S)
            try:
                report = ras.ask(answer_s=RAS_S).data
            except DiagError:  # no NCCL, an older one, or RAS is switched off
                return
            # Several jobs of a host may listen on one port; the one that answers may be another one.
            named = {int(pid) for pid in _PID.findall(report)}
            if not named or not pids or named & pids:
                with contextlib.suppress(OSError):
                    replace_file(layout.nccl_ras(_host(), 2 * number - 1 + turn), report, private=True)

    asking = threading.Thread(target=keep, name="diag-ras", daemon=True)
    asking.start()
    try:
        yield
    finally:
        asking.join(2 * RAS_S + ras.APART_S)


def _wait(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
