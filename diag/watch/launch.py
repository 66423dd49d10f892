"""Starts a training under torchrun's own API with the collectors attached, and manages its run directory."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from diag import processes
from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RUN_DIR_VARIABLE, RunLayout, is_regular
from diag.collectors.manifest import make_manifest, update_manifest
from diag.collectors.masking import option_of_mask
from diag.collectors.packing import PACK_VARIABLE, Packing
from diag.collectors.policy import RECORDED_FILES
from diag.collectors.reading import read_tail
from diag.collectors.records import RankExit
from diag.collectors.settings import (
    COLLECT_VARIABLE,
    SETTINGS_VARIABLE,
    CollectorSettings,
    attached,
    python_path,
)
from diag.collectors.trainer.options import OPTIONS_ENV, TrainerOptions
from diag.errors import DiagError, ExitCode, install_command, require
from diag.words.terminal import say

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from .events import Event
    from .hang_monitor import Hang
    from .notify import Notifier
    from .workers import Worker

TRAINER_MODULE = "diag.collectors.trainer"


@dataclass(frozen=True)
class Launch:
    """The number and place of processes, with torchrun's names. ``rdzv_endpoint`` is host:port of the first node."""

    nproc: int
    nnodes: int = 1
    node_rank: int | None = None
    rdzv_backend: str = "c10d"
    rdzv_endpoint: str = ""
    rdzv_id: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    hang_timeout_s: float = 0  # time without progress after which the training counts as hung; 0: never
    ends_hung: bool = True  # ends a hung training; otherwise the hang is only reported, and evidence gathered
    notifier: Notifier | None = None  # of people and programs that are told what happens
    packing: Packing | None = None  # how the records of its nodes are carried away
    say: Callable[[str], None] = say  # prints the monitor's messages while the training runs

    @property
    def world_size(self) -> int:
        return self.nproc * self.nnodes

    @property
    def rendezvous(self) -> str:
        """An identifier that the nodes of one job share; "" on a single node."""
        return f"{self.rdzv_id}@{self.rdzv_endpoint}" if self.nnodes > 1 else ""


@dataclass(frozen=True)
class Outcome:
    """How the training ended. ``exit_code``: the training's own, 128 + N for a process ended by signal N, or
    ``ExitCode.HANG``. ``ended_by``: the signal that asked the launcher to end the run, as its name and the Unix time in
    ns; None without one."""

    exit_code: int
    reason: str = ""
    failed_rank: int | None = None
    hang: Hang | None = None
    ended_by: tuple[str, int] | None = None


@contextmanager
def after_training(say: Callable[[str], None]) -> Iterator[None]:
    """Context of the work of ``diag run`` after the training has ended. An exception there is printed in one line, with
    its place in our code, and changes neither the training's exit code nor what follows. Ctrl-C ends it early."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        problem = error.message if isinstance(error, DiagError) else f"{type(error).__name__} {error}".strip()
        place = "" if isinstance(error, DiagError) else f" ({Path(where.filename).name}:{where.lineno})"
        with suppress(OSError, ValueError):  # standard error may be closed, or its disk full
            say(f"after the training: {problem}{place}; the training's exit code is returned unchanged")


OLDEST_TORCH = (2, 6)


def require_torch(otherwise: str = "") -> None:
    """DiagError where this Python has no torch, or one too old to be recorded. ``otherwise``: what does without it, for
    the hint. Imports nothing."""
    try:
        require("torch", "torch, which a training needs,", "record")
    except DiagError as error:
        raise DiagError(error.message, hint=f"{error.hint}{otherwise}", exit_code=error.exit_code) from error
    try:
        installed = version("torch")
    except PackageNotFoundError:  # a build that was never installed
        return
    if tuple(int(number) for number in re.findall(r"\d+", installed)[:2]) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise DiagError(
            f"torch {installed} is installed; recording needs torch {oldest} or newer",
            hint=install_command(f"torch>={oldest}"),
        )


def open_run_directory(out: Path | None, launch: Launch, argv: Sequence[str], name: str, **described: Any) -> RunLayout:
    """A new run directory, or on shared storage the one that another node of this job has just created. Any other run
    is refused: records are never mixed or lost. The manifest is created first and atomically, so if nodes start at the
    same moment, one creates it and the others find it. ``name``: of the folder, if ``out`` is None; ``described``:
    fields of the manifest that are known already."""
    _refuse_masks(argv)
    root = out if out is not None else Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    layout = RunLayout(root)
    if layout.is_run() and not _is_of_this_job(layout, launch):
        raise _taken(root)
    try:
        created = make_manifest(
            layout,
            argv=list(argv),
            nnodes=launch.nnodes,
            rendezvous=launch.rendezvous,
            **described,
        )
        if not created and not _is_of_this_job(layout, launch):
            raise _taken(root)
        layout.ranks_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiagError(f"cannot make the run directory: {error.strerror}", path=root) from error
    return layout


def _refuse_masks(argv: Sequence[str]) -> None:
    option = option_of_mask(argv)
    if option:
        raise DiagError(
            f"the value of {option} is masked in this command line",
            hint="it comes from a record, which holds no secrets; give the real value",
            exit_code=ExitCode.USAGE,
        )


_SHARED = "shared"  # of ``Manifest.collector``: `diag attach` made this run directory, which attempts share


def shared_run_directory(root: Path, argv: Sequence[str]) -> tuple[RunLayout, bool]:
    """The run directory that all attempts of a job share, new or already there; and whether something is recorded in
    it. The processes find the place of their attempt in it: see ``collectors.attempts``. DiagError where it holds a run
    of `diag run`, or cannot be made."""
    _refuse_masks(argv)
    layout = RunLayout(root)
    try:
        refuse_unshared(layout)
        if not layout.is_run() and not make_manifest(layout, argv=list(argv), collector={_SHARED: True}):
            refuse_unshared(layout)  # another process made it meanwhile
        layout.ranks_folder.mkdir(parents=True, exist_ok=True)
        return layout, bool(layout.ranks())
    except OSError as error:
        raise DiagError(f"cannot make the run directory: {error.strerror}", path=root) from error


def refuse_unshared(layout: RunLayout) -> None:
    """DiagError for a run directory that belongs to one training."""
    from diag.rundir.lines import read_manifest

    if not layout.is_run() or is_regular(layout.attempt):
        return
    manifest, _ = read_manifest(layout)
    if manifest is None or manifest.collector.get(_SHARED) is not True:
        raise _taken(layout.root)


def _taken(root: Path) -> DiagError:
    return DiagError(
        "this folder already holds a run", path=root, hint="give another folder with --out, or remove this one"
    )


def _is_of_this_job(layout: RunLayout, launch: Launch) -> bool:
    from diag.rundir.lines import read_manifest

    manifest, _ = read_manifest(layout)
    return (
        bool(launch.rendezvous)
        and manifest is not None
        and (manifest.rendezvous, manifest.exit_code) == (launch.rendezvous, None)
    )


def close(layout: RunLayout, launch: Launch, outcome: Outcome) -> Outcome:
    """Writes the outcome into the manifest, and returns it. Of several nodes, the one that failed decides the exit
    code."""
    from diag.rundir.lines import read_manifest

    with after_training(launch.say):
        manifest, _ = read_manifest(layout)
        code = outcome.exit_code or (manifest.exit_code if manifest is not None else None) or 0
        hang = asdict(outcome.hang) if outcome.hang is not None else {}
        if hang and manifest is not None:  # another node may have ended its ranks already
            hang["ended"] = sorted({*hang["ended"], *manifest.hang.get("ended", ())})
        ended_by = dict(zip(("signal", "unix_ns"), outcome.ended_by or (), strict=False))
        try:
            for run in layout.attempts():
                newest = run == layout.newest()
                update_manifest(run, exit_code=code, hang=hang if newest else {}, ended_by=ended_by if newest else {})
        except OSError as error:
            launch.say(f"the end of the training could not be recorded: {error}")
    if launch.notifier is not None:
        from diag.rundir.runs import state_of

        from .events import Events

        with after_training(launch.say):
            for event in Events(str(layout.root)).look(state_of(layout.newest().root, with_answer=False)):
                launch.notifier.tell(event)
            launch.notifier.stop()
    return outcome


def log_tail(layout: RunLayout, rank: int, lines: int = 15) -> list[str]:
    """The last lines that a rank wrote on standard error."""
    try:
        tail, _ = read_tail(layout.rank(rank).log, RECORDED_FILES.log_tail_bytes, layout.root)
    except OSError:
        return []
    return tail.decode(errors="replace").splitlines()[-lines:]


class Watch:
    """A context around a training, under any launcher: looks for hangs and requests profiler windows while it runs.
    ``workers``: the training's processes on this node. Set ``ended_well`` if the training succeeded."""

    def __init__(
        self,
        layout: RunLayout,
        launch: Launch,
        settings: CollectorSettings,
        workers: Callable[[], tuple[Worker, ...]],
        collective_timeout_s: float = math.inf,
    ) -> None:
        from .follow import FollowThread
        from .hang_monitor import Limits, Monitor
        from .keeping import keep_around
        from .traces import AutoTrace

        self._layout = layout
        self._launch = launch
        self._monitor = None
        if launch.hang_timeout_s:
            limits = Limits.of(launch.hang_timeout_s, collective_timeout_s)
            self._monitor = Monitor(layout, limits, launch.say, expected=workers, ends=launch.ends_hung)
        self._traces = AutoTrace(layout, settings, launch.say, workers)
        self._following = FollowThread(
            layout,
            self._tell,
            lambda: any(worker.rank == 0 for worker in workers()),
            lambda event, attempt: keep_around(event, attempt, launch.packing),
        )
        self.ended_well = False

    def __enter__(self) -> Self:
        if self._monitor is not None:
            self._monitor.start()
        self._traces.start()
        if self._launch.environment.get(COLLECT_VARIABLE) != "off":
            self._following.start()
        return self

    def _tell(self, event: Event) -> None:
        from .events import ENDED, line_of
        from .hang_monitor import take_back

        if event.goes_on:
            take_back(self._layout.newest())
        if event.kind == ENDED:  # told when the launcher has recorded how
            return
        self._launch.say(line_of(event))
        if self._launch.notifier is not None:
            self._launch.notifier.tell(event)

    def __exit__(self, *_: object) -> None:
        with after_training(self._launch.say):
            self._following.stop()
        with after_training(self._launch.say):
            self._traces.stop()
        with after_training(self._launch.say):
            if self._monitor is not None:
                self._monitor.stop(ended_well=self.ended_well)

    @property
    def ended_hang(self) -> Hang | None:
        """The hang that this watch ended."""
        hang = self._monitor.hang if self._monitor is not None else None
        return hang if hang is not None and hang.ended_by_diag else None

    def last_look(self) -> AbstractContextManager[list[int] | None]:
        """As ``before_others_end``: gathers evidence from the live ranks when one has failed."""
        return before_others_end(self._monitor.others_die) if self._monitor is not None else nullcontext()

    def failure(self, error: ChildFailedError, failed_first: Collection[int]) -> Outcome:
        """The outcome for failed workers of torchrun. Writes exits.json."""
        hang = None
        with after_training(self._launch.say):
            if self._monitor is not None and self._launch.ends_hung:
                hang = self._monitor.failed()
        with after_training(self._launch.say):
            by_diag = hang is not None and hang.ended_by_diag
            exits = [
                RankExit(rank, worker_failure.exitcode, first=rank in failed_first and not by_diag, by_launcher=by_diag)
                for rank, worker_failure in sorted(error.failures.items())
            ]
            write_exits(self._layout, exits)
        return hung(hang) if hang is not None else self._failed_rank(error)

    def _failed_rank(self, error: ChildFailedError) -> Outcome:
        """The failure to report. The first one in torchrun's report is often a victim. The order: a process that was
        killed, one that raised, one that aborted or left no reason, one that lost its connection to a peer, and last
        one ended by SIGTERM, which torchrun sends."""
        from diag.ended.ends import RAISED_ITSELF
        from diag.ended.rundir import culprit_order

        order: dict[int, int] = {}
        with after_training(self._launch.say):
            order = culprit_order(
                self._layout, {rank: worker_failure.exitcode for rank, worker_failure in error.failures.items()}
            )
        rank, failure = min(error.failures.items(), key=lambda item: (order.get(item[0], 0), item[1].timestamp))
        code = failure.exitcode
        if code == -signal.SIGTERM and order.get(rank) == RAISED_ITSELF:
            return Outcome(1, failed_rank=rank, reason="an exception")  # its victims had exited before it
        return Outcome(*_ended(code), failed_rank=rank)


def hung(hang: Hang) -> Outcome:
    """The outcome of a hang, which has no failed rank: the processes were ended."""
    return Outcome(ExitCode.HANG, reason=f"hung: no progress for {hang.still_s:.0f} s", hang=hang)


def _with_its_end(rank_exit: RankExit, hang: Hang) -> RankExit:
    """The exit of a process, which the end of a hang is the reason for if it was there until then."""
    by_diag = rank_exit.rank in hang.ended
    return replace(rank_exit, first=rank_exit.first and not by_diag, by_launcher=by_diag)


def _stopped(by: signal.Signals, unix_ns: int) -> Outcome:
    """The outcome of a run that a signal to its launcher ended."""
    return Outcome(128 + by, reason=f"ended by {by.name}", ended_by=(by.name, unix_ns))


def _ended(code: int) -> tuple[int, str]:
    """A shell's exit code for that of a process (-N if ended by signal N), and the reason in words."""
    if code < 0:
        return 128 - code, f"killed by {signal.Signals(-code).name}"
    return code, f"exit code {code}" if code else ""


@contextmanager
def before_others_end(hook: Callable[[], None]) -> Iterator[list[int]]:
    """Calls ``hook`` when some workers have failed and others live, before torchrun ends those. Yields a list that then
    holds the failed ranks: any of them may be the cause, and no rank that exits later is.

    torchrun has no interface for this. It ends workers through ``PContext.close``, which is wrapped; with a torch that
    ends them in another way, the hook is not called and the list stays empty.
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
    """Exit codes by rank, None for live processes; empty if this torch keeps them elsewhere."""
    try:
        return {
            int(context.envs[local_rank]["RANK"]): handler.proc.poll()
            for local_rank, handler in context.subprocess_handlers.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def write_exits(layout: RunLayout, exits: Sequence[RankExit]) -> None:
    """Writes exits.json, which the triage needs as no log has it. On shared storage it may have another node's ranks
    already. On a full disk nothing is written: the logs remain."""
    from diag.rundir.lines import read_exits

    by_rank = read_exits(layout)[0] | {rank_exit.rank: rank_exit for rank_exit in exits}
    with suppress(OSError):
        replace_file(layout.exits, encode([asdict(rank_exit) for rank_exit in by_rank.values()]))


def bundled(layout: RunLayout, launch: Launch, settings: CollectorSettings, options: TrainerOptions) -> Outcome:
    """Trains with the bundled trainer; returns when all ranks have ended."""
    environment = {
        **processes.environment(),
        RUN_DIR_VARIABLE: str(layout.root.resolve()),
        SETTINGS_VARIABLE: settings.to_json(),
        OPTIONS_ENV: options.to_json(),
        **launch.environment,
    }
    command = processes.python("-u", "-m", TRAINER_MODULE)
    return torchrun(layout, replace(launch, environment=environment), settings, command, options.timeout_s)


def environment_of(
    layout: RunLayout, settings: CollectorSettings, collect: bool = True, packing: Packing | None = None
) -> dict[str, str]:
    """The environment variables with which a training's processes record it; without ``collect``, those that switch
    recording off. ``packing``: of nodes on which no launcher of ours starts a packer."""
    if not collect:
        return {COLLECT_VARIABLE: "off"}
    packed = {PACK_VARIABLE: packing.to_json()} if packing is not None else {}
    return {**attached(layout.root, settings), **packed, "PYTHONPATH": python_path()}


def run_script(
    layout: RunLayout, launch: Launch, settings: CollectorSettings, script: Sequence[str], module: bool
) -> Outcome:
    """Runs the script (or module) with its arguments under torchrun, once for every rank."""
    command = processes.users_python("-u", *(["-m"] if module else []), *script)
    return torchrun(layout, launch, settings, command, show_all=True)


def torchrun(
    layout: RunLayout,
    launch: Launch,
    settings: CollectorSettings,
    command: list[str],
    collective_timeout_s: float = math.inf,
    show_all: bool = False,
) -> Outcome:
    """Runs the command once for every rank; returns when all have ended. ``show_all``: show the output of every
    rank."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from .logs import RunLogs
    from .workers import workers_of

    os.environ.update(launch.environment)  # torchrun passes its own environment to the workers
    if launch.nproc > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun's command line does
    logs = RunLogs(layout, launch.say, everything=show_all)
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
    outcome = Outcome(ExitCode.OK)
    with Watch(layout, launch, settings, partial(workers_of, layout), collective_timeout_s) as watch:
        try:
            with logs, watch.last_look() as failed_first:
                elastic_launch(config, command[0])(*command[1:])
            watch.ended_well = True
        except ChildFailedError as error:
            outcome = watch.failure(error, failed_first or ())
        except SignalException as error:
            outcome = _stopped(signal.Signals(error.sigval), time.time_ns())
        except KeyboardInterrupt:
            outcome = _stopped(signal.SIGINT, time.time_ns())
    return close(layout, launch, outcome)


def run_command(layout: RunLayout, launch: Launch, settings: CollectorSettings, command: Sequence[str]) -> Outcome:
    """Runs the command, which starts the training's processes itself. Passes this process's signals on; its output is
    not redirected."""
    from .workers import ExitWatch, recorded_workers_of

    signals = _Signals()
    try:
        process = processes.start_training(command, launch.environment)
    except OSError as error:
        signals.restore()
        raise DiagError(
            f"cannot start {command[0]}: {error.strerror}",
            hint="name a script (*.py), or a command as you would type it without `diag run --`",
            exit_code=ExitCode.USAGE,
        ) from error
    signals.to(process)
    code = 1
    exits = ExitWatch(layout)
    exits.start()
    failed: list[tuple[RunLayout, list[RankExit]]] = []
    with Watch(layout, launch, settings, partial(recorded_workers_of, layout)) as watch:
        try:
            code = process.wait()
            watch.ended_well = code == 0
        finally:
            signals.restore()
            with after_training(launch.say):
                failed = exits.stop()
    hang = watch.ended_hang
    if hang is not None:
        with after_training(launch.say):
            for attempt, ends in failed:
                write_exits(attempt, [_with_its_end(rank_exit, hang) for rank_exit in ends])
        return close(layout, launch, hung(hang))
    with after_training(launch.say):
        for attempt, ends in failed if not signals.ending else ():
            write_exits(attempt, ends)
    return close(layout, launch, Outcome(*_ended(code), ended_by=signals.ended_by(code)))


# Signals for the training's launcher: to end it, and for other uses, such as Slurm's request to save a checkpoint. From
# a terminal SIGINT reaches it by itself.
_ENDING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
_PASSED_ON = (*_ENDING, "SIGUSR1", "SIGUSR2")


class _Signals:
    """Passes signals on to the launcher instead of being ended by them, also those that come while it starts.
    ``ending``: those received that end a training, with the Unix time in ns."""

    def __init__(self) -> None:
        self.ending: list[tuple[int, int]] = []
        self._early: list[int] = []
        self._launcher: subprocess.Popen[bytes] | None = None
        numbers = [getattr(signal, name) for name in _PASSED_ON if hasattr(signal, name)]
        self._before = {number: signal.signal(number, self._pass_on) for number in numbers}

    def ended_by(self, code: int) -> tuple[str, int] | None:
        """The signal that ended the run: the first of these, else the one that ended its launcher with this code."""
        if self.ending:
            number, unix_ns = self.ending[0]
            return signal.Signals(number).name, unix_ns
        by_signal = -code in set(signal.Signals) and signal.Signals(-code).name in _ENDING
        return (signal.Signals(-code).name, time.time_ns()) if by_signal else None

    def to(self, launcher: subprocess.Popen[bytes]) -> None:
        self._launcher = launcher
        for number in self._early:
            launcher.send_signal(number)

    def restore(self) -> None:
        """From here on signals act on this process again."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if signal.Signals(number).name in _ENDING:
            self.ending.append((number, time.time_ns()))
        # A terminal sends SIGINT and SIGQUIT to all processes in its foreground, so the command has it already.
        if number in (signal.SIGINT, signal.SIGQUIT) and sys.stdin.isatty():
            return
        if self._launcher is None:
            self._early.append(number)
        else:
            self._launcher.send_signal(number)
