"""Runs HTA in a process of its own.

Why not in ours: HTA prints, logs, warns and reconfigures the logging of its process; it holds about five times the
file in memory and gives it back only at the end; and a trace that kills it must cost one line of the report, not the
report. One process reads all traces, one after the other (importing HTA takes a second); when it dies, the trace that
it died of has its answer, and another process goes on with the rest.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from diag.errors import not_installed

SCRIPT = Path(__file__).with_name("hta_process.py")
_ROUNDING_OFF = "HTA_DISABLE_NS_ROUNDING"


@dataclass(frozen=True)
class Answer:
    """What HTA found, or the exception that it raised."""

    found: dict[str, Any]
    error: str = ""


def hta_version() -> str:
    """The version of the installed HTA. DiagError where it is not installed."""
    try:
        return version("HolisticTraceAnalysis")
    except PackageNotFoundError as error:
        raise not_installed("HolisticTraceAnalysis", "hta") from error


def job(analysis: str, rank: int, path: Path, **settings: Any) -> dict[str, Any]:
    """One analysis of one file. The path is made absolute: HTA looks for a relative one in a folder of its own."""
    return {"job": analysis, "rank": rank, "path": str(path.absolute()), **settings}


def run_jobs(jobs: Sequence[dict[str, Any]], exact: bool = False, script: Path = SCRIPT) -> list[Answer]:
    """One answer per job, in order. ``exact``: HTA keeps nanoseconds, where it rounds to microseconds by default."""
    environment = {**os.environ, **({_ROUNDING_OFF: "1"} if exact else {})}
    answers: list[Answer] = []
    while len(answers) < len(jobs):
        rest = jobs[len(answers) :]
        # -P: the folder of the script stays off the path, so that no module of it can hide one of HTA's.
        done = subprocess.run(
            [sys.executable, "-P", str(script)],
            input=json.dumps(rest),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=environment,
        )
        whole = [line for line in done.stdout.splitlines(keepends=True) if line.endswith("\n")]
        answers.extend(_answer(line) for line in whole)
        if len(whole) < len(rest):
            answers.append(Answer({}, _death(done)))
    return answers


def _answer(line: str) -> Answer:
    content = json.loads(line)
    return Answer(content.get("found") or {}, content.get("error", ""))


def _death(done: subprocess.CompletedProcess[str]) -> str:
    last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "it said nothing")
    if done.returncode < 0:
        return f"HTA's process was ended by {signal.Signals(-done.returncode).name}: {last}"
    return f"HTA's process ended with exit code {done.returncode}: {last}"
