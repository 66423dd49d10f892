"""Starts a training that knows nothing of ``diag``, with the collectors attached: a script, or a launcher's command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType

from diag.collectors.attach.environment import attached, python_path
from diag.collectors.layout import RunLayout
from diag.collectors.records import RankExit
from diag.collectors.settings import COLLECT_VARIABLE, CollectorSettings
from diag.errors import DiagError, ExitCode

from .launch import Launch, Outcome, after_training, close, torchrun

# Asking a training's launcher to end, or whatever it makes of them. SIGINT reaches it by itself from a terminal.
_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def environment_of(layout: RunLayout, settings: CollectorSettings, collect: bool = True) -> dict[str, str]:
    """What the training's processes need in their environment, PYTHONPATH included; without ``collect`` nothing."""
    if not collect:
        return {COLLECT_VARIABLE: "off"}
    return {**attached(layout.root, settings), "PYTHONPATH": python_path()}


def run_script(
    layout: RunLayout, launch: Launch, settings: CollectorSettings, script: Sequence[str], module: bool
) -> Outcome:
    """Runs the script (or module) with its arguments under torchrun, once for every rank."""
    from .launch_logs import RunLogs

    command = [sys.executable, "-u", *(["-m"] if module else []), *script]
    logs = RunLogs(layout, launch.say, everything=True)
    outcome = torchrun(layout, launch, command, launch.environment, settings, logs, float("inf"))
    return close(layout, launch, outcome)


def run_command(layout: RunLayout, launch: Launch, settings: CollectorSettings, command: Sequence[str]) -> Outcome:
    """Runs the command, which starts the training's processes itself; signals go on to it, its output is left alone."""
    from .hang_exits import ExitWatch
    from .hang_monitor import Monitor
    from .hang_rules import Limits
    from .launch_ends import write_exits
    from .trace_auto import AutoTrace
    from .workers import recorded_workers_of

    try:
        process = subprocess.Popen(command, env={**os.environ, **launch.environment})
    except OSError as error:
        raise DiagError(
            f"cannot start {command[0]}: {error.strerror}",
            hint="name a script (*.py), or a command as you would type it without `diag run --`",
            exit_code=ExitCode.USAGE,
        ) from error
    monitor = None
    workers = partial(recorded_workers_of, layout)
    if launch.hang_timeout_s:
        limits = Limits.of(launch.hang_timeout_s, float("inf"))
        monitor = Monitor(layout, limits, launch.say, expected=workers, ends=launch.ends_hung)
        monitor.start()
    auto = AutoTrace(layout, settings, launch.say, workers)
    auto.start()
    watch = ExitWatch(layout)
    watch.start()
    code = 1
    failed: list[tuple[RunLayout, list[RankExit]]] = []
    try:
        with _signals_to(process) as passed:
            code = process.wait()
    finally:
        with after_training(launch.say):
            auto.stop()
        with after_training(launch.say):
            if monitor is not None:
                monitor.stop(ended_well=code == 0)
        with after_training(launch.say):
            failed = watch.stop()
    hang = monitor.hang if monitor is not None else None
    if hang is not None and hang.ended_by_diag:
        return close(
            layout, launch, Outcome(ExitCode.HANG, reason=f"hung: no progress for {hang.still_s:.0f} s", hang=hang)
        )
    with after_training(launch.say):
        for attempt, exits in failed if not passed else ():
            if code or attempt.root != layout.newest().root:  # else its launcher thinks nothing of it
                write_exits(attempt, exits)
    reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}" if code else ""
    ended = Outcome(128 - code if code < 0 else code, reason=reason, interrupted=bool(passed))
    return close(layout, launch, ended)


@contextmanager
def _signals_to(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Passes signals on instead of dying of them; yields those that came."""
    came: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        # A terminal sends SIGINT and SIGQUIT to all processes in its foreground, so the command has it already.
        if number not in (signal.SIGINT, signal.SIGQUIT) or not sys.stdin.isatty():
            process.send_signal(number)

    numbers = [getattr(signal, name) for name in _PASSED_ON if hasattr(signal, name)]
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
