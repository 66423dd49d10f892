"""Ranks that are forked from a process which has imported PyTorch and the trainer: importing takes each rank of
torchrun 2.5 s, and torchrun 2 s, more than most trainings of the tests do.

What torchrun does about its ranks is not tested with this.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from functools import cache
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn
from unittest.mock import patch

from tests.ports import free_port

_GRACE_S = 10  # for the other ranks to end when one has failed


@cache
def fork_server() -> ForkServerContext:
    """For processes that need PyTorch: its server has it. ``start_method="forkserver"`` finds the same one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["diag.collectors.trainer.loop"])
    with patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}):  # read when libgomp is loaded
        ensure_running()
    return context


def launch_forked(
    target: list[str], environment: dict[str, str], ranks: int, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Runs a script, or ``-m`` and a module, on so many ranks. The exit code is 0, or that of the rank that failed
    first. AssertionError when they take longer; no rank is left then."""
    port = free_port()
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "stdout"), Path(folder, "stderr")
        rest = (target, environment, ranks, port, (out, err))
        processes = [fork_server().Process(target=_be, args=(rank, *rest)) for rank in range(ranks)]
        for process in processes:
            process.start()
        try:
            failed = _first_to_fail(processes, time.monotonic() + timeout)
        finally:
            _end(processes)
        assert not isinstance(failed, str), f"{failed} after {timeout} s: {err.read_text()[-5000:]}"
        codes = [f"rank {rank} exitcode: {process.exitcode}" for rank, process in enumerate(processes)]
        said = "\n".join([err.read_text(), *codes])
        return subprocess.CompletedProcess(target, failed, out.read_text(), said)


def _first_to_fail(processes: Sequence[BaseProcess], deadline: float) -> int | str:
    """Its exit code, 0 when all ended well, or that some do not end."""
    running = {process.sentinel: process for process in processes}
    while running:
        ended = wait(list(running), max(0.0, deadline - time.monotonic()))
        if not ended:
            return f"{len(running)} ranks still run"
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


def _be(
    rank: int, target: list[str], environment: dict[str, str], ranks: int, port: int, outputs: tuple[Path, Path]
) -> NoReturn:
    """A rank, as torchrun would have started it."""
    code = 1
    try:
        for number, path in enumerate(outputs, start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ.clear()
        os.environ.update(environment | {name: str(number) for name, number in numbers.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
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
