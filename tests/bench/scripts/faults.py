"""Faults planted from outside: the script, its options and its data stay as they are.

Some are set up before the run by its environment (a library that slows reads, a hook that raises), some act on the
processes of the ranks while it trains (signals, processors).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .cases import Case

HERE = Path(__file__).parent
PULSE_S, PERIOD_S = 0.12, 0.3
FAILING_STEP = 15
_SAMPLE_S = 0.25
_SPIN = "while True: pass"


@dataclass(frozen=True)
class Fault:
    """``environment`` of the training, ``during``: what acts on the ranks, ``world``: on a rank or on all alike."""

    name: str
    about: str
    all_ranks: bool = False
    crash: bool = False
    environment: Callable[[Case, int, Path], dict[str, str]] = lambda case, rank, tools: {}
    during: Callable[[dict[int, int], int, threading.Event], None] | None = None


# -- before ------------------------------------------------------------------------------------------------------------


def built(tools: Path) -> Path:
    """The library that slows reads, compiled once."""
    library = tools / "shim.so"
    if not library.exists():
        command = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / "shim.c"), "-ldl"]
        subprocess.run(command, check=True)
    return library


def _shim(case: Case, tools: Path, **settings: str) -> dict[str, str]:
    return {"LD_PRELOAD": str(built(tools)), "SHIM_FOLDER": case.data, "SHIM_AFTER": str(case.opens), **settings}


def _slow(case: Case, rank: str, tools: Path) -> dict[str, str]:
    reads = {"SHIM_READS": "1"} if case.reads else {}
    return _shim(case, tools, SHIM_RANK=rank, SHIM_MS=str(case.slow_ms), **reads) | {"SHIM_AFTER": "0"}


def _failing(case: Case, rank: int, tools: Path) -> dict[str, str]:
    return _shim(case, tools, SHIM_RANK=str(rank), SHIM_FAIL="1")


def _raising(case: Case, rank: int, tools: Path) -> dict[str, str]:
    return {"PLANTED_RANK": str(rank), "PLANTED_STEP": str(FAILING_STEP), "PYTHONPATH": str(HERE / "outside")}


def _slow_call(case: Case, rank: int, tools: Path) -> dict[str, str]:
    planted = {"SLOW_RANK": str(rank), "SLOW_CALL": case.slow_call, "SLOW_MS": str(case.slow_ms)}
    return {**planted, "PYTHONPATH": str(HERE / "outside")}


# -- while it trains ---------------------------------------------------------------------------------------------------


def tree(pid: int) -> list[int]:
    """The process and what it has started, as far as they are there."""
    found = [pid]
    for process in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{process}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _threads(pid: int) -> Iterator[int]:
    for process in tree(pid):
        with contextlib.suppress(OSError):
            yield from (int(task.name) for task in Path(f"/proc/{process}/task").iterdir())


def _pin(pid: int, cores: set[int]) -> None:
    for thread in _threads(pid):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, cores)


@contextlib.contextmanager
def burners(cores: list[int]) -> Iterator[None]:
    """Busy processes, one for each number of a core."""
    processes = []
    try:
        for core in cores:
            processes.append(process := subprocess.Popen([sys.executable, "-c", _SPIN]))
            os.sched_setaffinity(process.pid, {core})
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _pulses(ranks: dict[int, int], rank: int, over: threading.Event) -> None:
    pid = ranks[rank]
    try:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(PULSE_S)
            os.kill(pid, signal.SIGCONT)
            over.wait(PERIOD_S - PULSE_S)
    except ProcessLookupError:
        return
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _core_taken(ranks: dict[int, int], rank: int, over: threading.Event) -> None:
    taken, *others = sorted(os.sched_getaffinity(0))
    with burners([taken, taken]):
        while not over.wait(0.5):  # threads and workers that come later are pinned, too
            for number, pid in ranks.items():
                _pin(pid, {taken} if number == rank else set(others or [taken]))


def _cores_taken(ranks: dict[int, int], rank: int, over: threading.Event) -> None:
    with burners(sorted(os.sched_getaffinity(0)) * 2):
        over.wait()


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("slow-read", "opening a file of the data is slow on one rank",
              environment=lambda case, rank, tools: _slow(case, str(rank), tools)),
        Fault("slow-read-all", "the same on all ranks", all_ranks=True,
              environment=lambda case, rank, tools: _slow(case, "all", tools)),
        Fault("slow-call", "a call outside torch (a step of an environment) waits longer on one rank",
              environment=_slow_call),
        Fault("stop-pulses", "one rank is stopped for 120 ms of every 300 ms (SIGSTOP)", during=_pulses),
        Fault("core-taken", "one rank has one core together with two busy processes, the others the other cores",
              during=_core_taken),
        Fault("cores-taken", "two busy processes on each core, all ranks alike", all_ranks=True, during=_cores_taken),
        Fault("exception", f"step {FAILING_STEP} of one rank's optimizer raises", crash=True, environment=_raising),
        Fault("missing-file", "after some steps no file of the data can be opened on one rank (EIO)", crash=True,
              environment=_failing),
    )
}  # fmt: skip


def pids(run: Path) -> dict[int, int]:
    """The processes of the ranks that have said where they are."""
    found = {}
    for path in sorted(run.glob("ranks/*/rank.json")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            found[int(path.parent.name)] = int(json.loads(path.read_text())["pid"])
    return found


@contextlib.contextmanager
def acting(fault: Fault | None, run: Path, rank: int, ranks: int) -> Iterator[dict[int, float]]:
    """Lets the fault act on the ranks of a run, from when all of them are there until the block ends. After the block
    what it yields holds the part of that time in which each rank's threads were queued for a core, their sum."""
    over = threading.Event()
    queued: dict[int, float] = {}
    during = (fault.during if fault is not None else None) or (lambda ranks, rank, over: over.wait())

    def act() -> None:
        while not over.wait(0.1):
            if len(processes := pids(run)) >= ranks:
                watch = threading.Thread(target=_watch, args=(processes, queued, over))
                watch.start()
                during(processes, rank, over)
                watch.join()
                return

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield queued
    finally:
        over.set()
        thread.join()


def _watch(ranks: dict[int, int], queued: dict[int, float], over: threading.Event) -> None:
    """What the kernel says of the ranks' threads and of those of their workers, whatever diag recorded."""
    first: dict[int, int] = {}
    last: dict[int, dict[int, int]] = {rank: {} for rank in ranks}
    begin = end = time.monotonic_ns()
    while not over.wait(_SAMPLE_S):
        alive = False
        for rank, pid in ranks.items():
            for thread in _threads(pid):
                with contextlib.suppress(OSError, IndexError):
                    queued_ns = int(Path(f"/proc/{thread}/schedstat").read_text().split()[1])
                    first.setdefault(thread, queued_ns)
                    last[rank][thread], alive = queued_ns, True
        end = time.monotonic_ns() if alive else end
    for rank, threads in last.items():
        queued[rank] = round(sum(ns - first[thread] for thread, ns in threads.items()) / max(1, end - begin), 3)
