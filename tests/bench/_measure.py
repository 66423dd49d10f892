"""A command in a fresh process: wall time, CPU time with all its children, and peak memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

_EVERY_S = 0.02
_CHECKOUT = Path(__file__).resolve().parents[2]
_MB = 1e6


@dataclass(frozen=True)
class Cost:
    """``rss_mb``: the largest process's peak, as the kernel counts it. Of the whole tree nobody keeps count:
    ``tree_mb`` is the largest sum that was sampled, ``tree_most_mb`` the sum of every process's own peak, which it
    cannot exceed. Pages that processes share count in each. The kernel counts what the calling process held when it
    started the command, too, so whoever measures must be small."""

    wall_s: float
    cpu_s: float
    rss_mb: float
    tree_mb: float
    tree_most_mb: float
    failed: str = ""


def measured(
    command: Sequence[str | Path], environment: Mapping[str, str] | None = None, ok: Sequence[int] = (0,)
) -> Cost:
    """Runs it once. Its output is shown only where it ends with another code than ``ok``."""
    with tempfile.TemporaryFile() as output:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=_CHECKOUT,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
        )
        watch = _Watch(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        watch.stop()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read().decode(errors="replace").strip()
    failed = "" if process.returncode in ok else f"ended with {process.returncode}: {said[-2000:]}"
    rss = usage.ru_maxrss * 1024 / _MB
    return Cost(
        wall, usage.ru_utime + usage.ru_stime, rss, max(watch.most, rss), max(sum(watch.peaks.values()), rss), failed
    )


def repeated(times: int, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> Cost:
    """The median of each figure over several runs."""
    costs = [measured(command, environment) for _ in range(times)]
    if broken := next((cost for cost in costs if cost.failed), None):
        return broken
    return median_of(costs)


def median_of(costs: Sequence[Cost]) -> Cost:
    keys = ("wall_s", "cpu_s", "rss_mb", "tree_mb", "tree_most_mb")
    return Cost(**{key: median(getattr(cost, key) for cost in costs) for key in keys})


def python(*arguments: str | Path) -> list[str]:
    return [sys.executable, *map(str, arguments)]


class _Watch:
    """Samples the memory of a process and its descendants until it is stopped. All in MB."""

    def __init__(self, pid: int) -> None:
        self.most = 0.0
        self.peaks: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(pid,))
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self, pid: int) -> None:
        while not self._over.wait(_EVERY_S):
            try:
                root = psutil.Process(pid)
                family = [root, *root.children(recursive=True)]
            except psutil.Error:
                continue
            now = 0.0
            for process in family:
                status = _status(process.pid)
                now += status.get("VmRSS", 0.0)
                self.peaks[process.pid] = max(self.peaks.get(process.pid, 0.0), status.get("VmHWM", 0.0))
            self.most = max(self.most, now)


def _status(pid: int) -> dict[str, float]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS:", "VmHWM:")))
    return {key: int(value.split()[0]) * 1024 / _MB for key, value in fields.items()}
