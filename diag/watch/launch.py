"""Starts a training under torchrun's own API with the collectors attached, and keeps its run directory in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import make_manifest, read_fields, update_manifest
from diag.collectors.reading import LOG_TAIL_BYTES, read_json, read_tail
from diag.collectors.records import RankExit
from diag.collectors.settings import (
    COLLECT_VARIABLE,
    RUN_DIR_VARIABLE,
    SETTINGS_VARIABLE,
    CollectorSettings,
    attached,
    python_path,
)
from diag.collectors.text import option_of_mask
from diag.collectors.trainer.options import OPTIONS_ENV, TrainerOptions
from diag.errors import DiagError, ExitCode
from diag.words.terminal import say

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from .hang_monitor import Hang
    from .logs import RunLogs

# -- launch ends -------------------------------------------------------------------------------------------------------
#
# How torchrun's workers end: a last look at the living before torchrun ends them, and a record of every exit code.


@contextmanager
def before_others_end(hook: Callable[[], None]) -> Iterator[list[int]]:
    """Calls ``hook`` when some workers have failed and others live, before torchrun ends those. Yields a list that then
    holds the ranks that had failed: any of them may be the cause, no rank that ends later is.

    torchrun has no interface for this. It ends workers through ``PContext.close``, which still does what it did; with
    a torch that ends them otherwise, the hook is not called and the list stays empty.
    """
    from torch.distributed.elastic.multiprocessing.api import PContext

    first: list[int] = []
    original = PContext.close

    def close(context: Any, *args: Any, **kwargs: Any) -> None:
        codes = _exit_codes(context)
        failed = [rank for rank, code in codes.items() if code]
        try:
            if failed and not first:
                first.extend(sorted(failed))
                if None in codes.values():
                    hook()
        finally:
            original(context, *args, **kwargs)

    PContext.close = close  # type: ignore[method-assign, assignment]
    try:
        yield first
    finally:
        PContext.close = original  # type: ignore[method-assign]


def _exit_codes(context: Any) -> dict[int, int | None]:
    """Exit codes by rank, None of processes that live; empty where this torch keeps them elsewhere."""
    try:
        return {
            int(context.envs[local_rank]["RANK"]): handler.proc.poll()
            for local_rank, handler in context.subprocess_handlers.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def exits_of(error: ChildFailedError, first: Collection[int], by_launcher: bool) -> list[RankExit]:
    """What torchrun says of its workers. ``first``: those that had failed before it ended the others."""
    return [
        RankExit(rank, failure.exitcode, first=rank in first and not by_launcher, by_launcher=by_launcher)
        for rank, failure in sorted(error.failures.items())
    ]


def write_exits(layout: RunLayout, exits: Sequence[RankExit]) -> None:
    """exits.json: what the triage needs and no log says. On shared storage another node's ranks may be there already.
    Nothing where the disk is full: the logs remain."""
    ranks = {one.rank for one in exits}
    before = read_json(layout.exits, layout.root)
    try:
        others = [one for one in before if one["rank"] not in ranks]  # type: ignore[attr-defined]
    except (KeyError, TypeError):
        others = []
    with suppress(OSError):
        replace_file(layout.exits, encode([*others, *(asdict(one) for one in exits)]))


TRAINER_MODULE = "diag.collectors.trainer"


@dataclass(frozen=True)
class Launch:
    """Where and how many: what torchrun calls by the same names. ``rdzv_endpoint`` is host:port of the first node."""

    nproc: int
    nnodes: int = 1
    node_rank: int | None = None
    rdzv_backend: str = "c10d"
    rdzv_endpoint: str = ""
    rdzv_id: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    hang_timeout_s: float = 0  # without progress, before the training is called hung; 0: it never is
    ends_hung: bool = True  # a training that is called hung; else it is only said, and evidence gathered
    say: Callable[[str], None] = say  # what the monitor has to tell while the training runs

    @property
    def rendezvous(self) -> str:
        """What the nodes of one job have in common; "" on a single node."""
        return f"{self.rdzv_id}@{self.rdzv_endpoint}" if self.nnodes > 1 else ""


@dataclass(frozen=True)
class Outcome:
    """How the training ended. ``exit_code`` is its own, 128 + N for a process that signal N ended, or
    ``ExitCode.HANG``. ``interrupted``: from outside, so there is nothing to find out."""

    exit_code: int
    failed_rank: int | None = None
    reason: str = ""
    hang: Hang | None = None
    interrupted: bool = False


@contextmanager
def after_training(say: Callable[[str], None]) -> Iterator[None]:
    """Around what ``diag run`` does when the training has ended. Whatever fails there is printed in one line, with its
    place in our code, and changes neither the exit code of the training nor what follows. Ctrl-C ends it early."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = error.message if isinstance(error, DiagError) else f"{type(error).__name__} {error}".strip()
        place = "" if isinstance(error, DiagError) else f" ({Path(where.filename).name}:{where.lineno})"
        with suppress(OSError, ValueError):  # standard error may be closed, or its disk full
            say(f"after the training: {what}{place}; its exit code is passed on all the same")


def open_run_directory(out: Path | None, launch: Launch, argv: Sequence[str], name: str, **described: Any) -> RunLayout:
    """A fresh run directory, or on shared storage the one that another node of this job has just made. Any other run is
    refused: records are never mixed or lost. The manifest comes into being first and whole, so that of nodes that start
    in the same moment one makes it and the others find it. ``name``: of the folder, where ``out`` is None;
    ``described``: what the manifest can tell already."""
    option = option_of_mask(argv)
    if option:
        raise DiagError(
            f"the value of {option} is masked in this command line",
            hint="it comes from a record, which holds no secrets; give the real value",
            exit_code=ExitCode.USAGE,
        )
    root = out if out is not None else Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    layout = RunLayout(root)
    if layout.is_run() and not _is_of_this_job(layout, launch):
        raise _taken(root)
    try:
        made = make_manifest(
            layout,
            argv=list(argv),
            nnodes=launch.nnodes,
            rendezvous=launch.rendezvous,
            **described,
        )
        if not made and not _is_of_this_job(layout, launch):
            raise _taken(root)
        layout.ranks_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiagError(f"cannot make the run directory: {error.strerror}", path=root) from error
    return layout


def _taken(root: Path) -> DiagError:
    return DiagError(
        "this folder already holds a run", path=root, hint="give another folder with --out, or remove this one"
    )


def _is_of_this_job(layout: RunLayout, launch: Launch) -> bool:
    manifest = read_fields(layout)
    return bool(launch.rendezvous) and (manifest.get("rendezvous"), manifest.get("exit_code")) == (
        launch.rendezvous,
        None,
    )


def run_trainer(layout: RunLayout, launch: Launch, options: TrainerOptions, settings: CollectorSettings) -> Outcome:
    """Trains with the bundled trainer; returns when all ranks have ended."""
    from .logs import RunLogs

    environment = {
        RUN_DIR_VARIABLE: str(layout.root.resolve()),
        SETTINGS_VARIABLE: settings.to_json(),
        OPTIONS_ENV: options.to_json(),
        **launch.environment,
    }
    command = [sys.executable, "-u", "-m", TRAINER_MODULE]
    logs = RunLogs(layout, launch.say)
    return close(layout, launch, torchrun(layout, launch, command, environment, settings, logs, options.timeout_s))


def close(layout: RunLayout, launch: Launch, outcome: Outcome) -> Outcome:
    """The outcome, put into the manifest. Of several nodes the one that failed has the last word."""
    with after_training(launch.say):
        code = outcome.exit_code or read_fields(layout).get("exit_code") or 0
        hang = asdict(outcome.hang) if outcome.hang is not None else {}
        try:
            for run in (layout, *layout.restarts()):
                update_manifest(run, exit_code=code, hang=hang if run == layout.newest() else {})
        except OSError as error:
            launch.say(f"the end of the training is not on record: {error}")
    return outcome


def torchrun(
    layout: RunLayout,
    launch: Launch,
    command: list[str],
    environment: dict[str, str],
    settings: CollectorSettings,
    logs: RunLogs,
    collective_timeout_s: float,
) -> Outcome:
    """Runs the command once for every rank; returns when all have ended. ``close`` puts the outcome on record."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from .hang_monitor import Limits, Monitor
    from .trace_auto import AutoTrace
    from .workers import workers_of

    os.environ.update(environment)  # torchrun hands its own environment to the workers
    if launch.nproc > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun's command line does
    config = LaunchConfig(
        min_nodes=launch.nnodes,
        max_nodes=launch.nnodes,
        nproc_per_node=launch.nproc,
        run_id=launch.rdzv_id or uuid.uuid4().hex[:12],
        rdzv_backend=launch.rdzv_backend,
        rdzv_endpoint=launch.rdzv_endpoint or "localhost:0",
        rdzv_configs={"rank": launch.node_rank} if launch.rdzv_backend == "static" else {},
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=logs,
    )
    monitor, ended_well = None, False
    if launch.hang_timeout_s:
        limits = Limits.of(launch.hang_timeout_s, collective_timeout_s)
        monitor = Monitor(layout, limits, launch.say, ends=launch.ends_hung)
        monitor.start()
    auto = AutoTrace(layout, settings, launch.say, partial(workers_of, layout))
    auto.start()
    try:
        with logs, before_others_end(monitor.others_die) if monitor is not None else nullcontext() as failed_first:
            elastic_launch(config, command[0])(*command[1:])
        ended_well = True
    except ChildFailedError as error:
        hang = None
        with after_training(launch.say):
            hang = monitor.failed() if monitor is not None and launch.ends_hung else None
        with after_training(launch.say):
            by_launcher = hang is not None and hang.ended_by_diag
            write_exits(layout, exits_of(error, failed_first or (), by_launcher))
        return _failure(layout, launch, error, hang)
    except SignalException as error:
        name = signal.Signals(error.sigval).name
        return Outcome(128 + int(error.sigval), reason=f"ended by {name}", interrupted=True)
    except KeyboardInterrupt:
        return Outcome(128 + signal.SIGINT, reason="interrupted", interrupted=True)
    finally:
        with after_training(launch.say):
            auto.stop()
        with after_training(launch.say):
            if monitor is not None:
                monitor.stop(ended_well=ended_well)
    return Outcome(ExitCode.OK)


def _failure(layout: RunLayout, launch: Launch, error: ChildFailedError, hang: Hang | None) -> Outcome:
    """The failure to report. A hang has no failed rank: those that ended were ended. Else torchrun's first is often a
    victim: a process that was killed goes before one that raised, that before one that aborted or says nothing; one
    that lost its connection to another goes after these, and SIGTERM, which torchrun sends, goes last."""
    from diag.hang.rundir import RAISED_ITSELF, culprit_order

    if hang is not None:
        return Outcome(ExitCode.HANG, reason=f"hung: no progress for {hang.still_s:.0f} s", hang=hang)
    order: dict[int, int] = {}
    with after_training(launch.say):
        order = culprit_order(layout, {rank: failure.exitcode for rank, failure in error.failures.items()})
    rank, failure = min(error.failures.items(), key=lambda item: (order.get(item[0], 0), item[1].timestamp))
    code = failure.exitcode
    if code == -signal.SIGTERM and order.get(rank) == RAISED_ITSELF:
        return Outcome(1, failed_rank=rank, reason="an exception")  # its victims had ended before it had
    reason = f"killed by {failure.signal_name()}" if code < 0 else f"exit code {code}"
    return Outcome(128 - code if code < 0 else code, failed_rank=rank, reason=reason)


def log_tail(layout: RunLayout, rank: int, lines: int = 15) -> list[str]:
    """The last lines that a rank wrote on standard error."""
    try:
        tail, _ = read_tail(layout.rank(rank).log, LOG_TAIL_BYTES, layout.root)
    except OSError:
        return []
    return tail.decode(errors="replace").splitlines()[-lines:]


# -- launch script -----------------------------------------------------------------------------------------------------
#
# Starts a training that knows nothing of ``diag``, with the collectors attached: a script, or a launcher's command.

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
    from .logs import RunLogs

    command = [sys.executable, "-u", *(["-m"] if module else []), *script]
    logs = RunLogs(layout, launch.say, everything=True)
    outcome = torchrun(layout, launch, command, launch.environment, settings, logs, float("inf"))
    return close(layout, launch, outcome)


def run_command(layout: RunLayout, launch: Launch, settings: CollectorSettings, command: Sequence[str]) -> Outcome:
    """Runs the command, which starts the training's processes itself; signals go on to it, its output is left alone."""
    from .hang_monitor import Limits, Monitor
    from .trace_auto import AutoTrace
    from .workers import ExitWatch, recorded_workers_of

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
