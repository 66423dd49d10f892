"""Processes that are forked from one that has imported what most of them need: importing PyTorch takes a process two
seconds, what a training imports in its first step one more, and ``diag`` half a second, often longer than the rest."""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn
from unittest.mock import patch

_GRACE_S = 10  # for the others to end when one has failed
_PRELOADED = (
    "diag.collectors.trainer.loop",
    "torch._dynamo",  # by the first step of any optimizer
    "torch.distributed.fsdp",
    "torch.distributed.run",
    "diag.cli.main",
    "diag.api",
    "diag.replay.advice",
    "diag.hang.api",
    "diag.show.text",
    # What commands import when they are called: a triage took 0.25 s of CPU for that, and 0.05 s for a short log.
    "diag.cli.analyze",
    "diag.cli.check",
    "diag.cli.compare",
    "diag.cli.export",
    "diag.cli.open",
    "diag.cli.plan",
    "diag.cli.report",
    "diag.cli.run",
    "diag.cli.trace",
    "diag.cli.triage",
    "diag.app.html_report.render",
    "diag.export.formats",
    "diag.gate.check",
    "diag.hang.failures",
    "diag.hang.ras.clues",
    "diag.hang.reason",
    "diag.hang.rules",
    "diag.ended.outcome",
    "diag.perfetto",
    "diag.planning.measured",
    "diag.serve.server",
    "diag.show.compare",
    "diag.show.gate",
    "diag.show.json",
    "diag.show.plan",
    "diag.show.redact",
    "diag.show.triage",
    "diag.summaries",
    "diag.tables.breakdowns",
    "diag.watch.hang_monitor",
    "diag.watch.launch",
    "diag.watch.traces",
    "numpy.ma",
    "plotly.graph_objs._figure",
)


@dataclass(frozen=True)
class Ended:
    """What came of processes: the exit code of the first that failed, or 0, that of each, and what all of them said."""

    exit_code: int
    exit_codes: tuple[int | None, ...]
    stdout: str
    stderr: str


@cache
def fork_server() -> ForkServerContext:
    """For processes that need PyTorch: its server has it. ``start_method="forkserver"`` finds the same one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    with patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}):  # read when libgomp is loaded
        ensure_running()
    return context


def run_forked(
    target: list[str], environments: Sequence[Mapping[str, str]], timeout: float, cwd: Path | None = None
) -> Ended:
    """Runs a script, or ``-m`` and a module, with its arguments, once with each of the environments, at once.
    ``cwd``: the current folder of the processes, where not that of the tests. AssertionError when that takes longer; no
    process is left then."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "stdout"), Path(folder, "stderr")
        out.touch()
        err.touch()
        processes = [
            fork_server().Process(target=_be, args=(target, dict(own), (out, err), cwd)) for own in environments
        ]
        for process in processes:
            process.start()
        try:
            failed = _first_to_fail(processes, time.monotonic() + timeout)
        finally:
            _end(processes)
        assert not isinstance(failed, str), f"{failed} after {timeout} s: {err.read_text()[-5000:]}"
        return Ended(failed, tuple(process.exitcode for process in processes), out.read_text(), err.read_text())


def _first_to_fail(processes: Sequence[BaseProcess], deadline: float) -> int | str:
    """Its exit code, 0 when all ended well, or that some do not end."""
    running = {process.sentinel: process for process in processes}
    while running:
        ended = wait(list(running), max(0.0, deadline - time.monotonic()))
        if not ended:
            return f"{len(running)} of {len(processes)} processes still run"
        for sentinel in ended:
            process = running.pop(sentinel)
            process.join()
            if process.exitcode:
                return process.exitcode
    return 0


def _end(processes: Sequence[BaseProcess]) -> None:
    deadline = time.monotonic() + _GRACE_S
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.join()


def _be(target: list[str], environment: dict[str, str], outputs: tuple[Path, Path], cwd: Path | None) -> NoReturn:
    code = 1
    gc.freeze()  # what was imported stays, and its pages are the server's as long as nobody looks for garbage in them
    try:
        for number, path in enumerate(outputs, start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
        os.environ.clear()
        os.environ.update(environment)
        if cwd is not None:
            os.chdir(cwd)
        code = _run(target)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(target: list[str]) -> int:
    try:
        if target[0] == "-m":
            sys.argv = target[1:]
            runpy.run_module(target[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = target
            runpy.run_path(target[0], run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
