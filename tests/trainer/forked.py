"""Ranks that are forked from one process which has imported PyTorch and the trainer: importing takes each rank of
torchrun 2.5 s, and torchrun 2 s, more than most trainings of the tests do.

What torchrun does about its ranks is not tested with this.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from tests.ports import free_port

_GRACE_S = 10  # for ranks to end when one of them has failed


def launch_forked(
    target: list[str], environment: dict[str, str], ranks: int, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Runs a script, or ``-m`` and a module, on so many ranks: 0, or the exit code of the rank that failed first.

    subprocess.TimeoutExpired when they take longer; no rank is left then.
    """
    with TemporaryDirectory() as folder:
        said = [Path(folder, name) for name in ("stdout", "stderr")]
        asked = {
            "target": target,
            "environment": environment,
            "ranks": ranks,
            "port": free_port(),
            "outputs": list(map(str, said)),
            "timeout_s": timeout,
        }
        parent = _parent(os.getpid())
        assert parent.stdin is not None
        assert parent.stdout is not None
        print(json.dumps(asked), file=parent.stdin, flush=True)
        codes = json.loads(parent.stdout.readline())
        if codes is None:
            raise subprocess.TimeoutExpired(target, timeout, *(path.read_bytes() for path in said))
        failed = [f"rank {rank} exitcode: {code}" for rank, code in codes]
        return subprocess.CompletedProcess(
            target,
            codes[0][1] if codes else 0,
            said[0].read_text(),
            "\n".join([said[1].read_text(), *failed]),
        )


@cache
def _parent(_of: int) -> subprocess.Popen[str]:
    """The process that forks; one for each process of the tests. Ends when its standard input does."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # read when libgomp is loaded
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.terminate)
    return process


def _serve() -> None:
    """Trains as each line asks. Answers with [rank, exit code] of those that failed, the first one first, or null for
    a training that took too long."""
    import diag.collectors.trainer.loop  # noqa: F401

    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(_train(asked)), flush=True)


def _train(asked: dict[str, Any]) -> list[tuple[int, int]] | None:
    running = {_fork(asked, rank): rank for rank in range(asked["ranks"])}
    deadline = time.monotonic() + asked["timeout_s"]
    failed: list[tuple[int, int]] = []
    late = False
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in running:
            rank, code = running.pop(pid), os.waitstatus_to_exitcode(status)
            if code != 0:
                if not failed:
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
                    _signal(running, signal.SIGTERM)
                failed.append((rank, code))
        elif time.monotonic() > deadline:
            late = late or not failed
            _signal(running, signal.SIGKILL)
            deadline = float("inf")
        else:
            time.sleep(0.01)
    return None if late else failed


def _signal(running: dict[int, int], number: signal.Signals) -> None:
    for pid in running:
        os.kill(pid, number)


def _fork(asked: dict[str, Any], rank: int) -> int:
    """Becomes a rank and the process that forked it, which gets the process id."""
    pid = os.fork()
    return pid if pid else _be(asked, rank)


def _be(asked: dict[str, Any], rank: int) -> NoReturn:
    code = 1
    try:
        for number, path in enumerate(asked["outputs"], start=1):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(asked["environment"])
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": asked["ranks"], "LOCAL_WORLD_SIZE": asked["ranks"]}
        os.environ.update({name: str(number) for name, number in numbers.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(asked["port"])})
        code = _run(asked["target"])
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


if __name__ == "__main__":
    _serve()
