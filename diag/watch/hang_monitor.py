"""The launcher's thread that reads the heartbeats once a second, gathers evidence in time, and ends a hung training,
or only reports that it hangs."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from diag import processes
from diag.collectors.files import encode, open_private, replace_file
from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.masking import masked
from diag.collectors.records import CRASH, HANG, Asked
from diag.errors import DiagError
from diag.hang.policy import NCCL_RAS
from diag.hang.ras import client as ras
from diag.rundir.beats import Beat, beat_of
from diag.rundir.lines import read_heartbeat, read_identity
from diag.rundir.states import BUSY_PHASES
from diag.watch.policy import WATCHING
from diag.words.formatting import counted, listing, spaced

from .workers import Worker, end, workers_of

# -- hang gather -------------------------------------------------------------------------------------------------------
#
# Evidence of a training that hangs or dies, collected while its processes live: stacks, dumps, the driver's view.

_PID = re.compile(rb'"pid": (\d{1,10})')


def gather(
    layout: RunLayout, workers: Iterable[Worker], why: str, number: int = 1, answer_s: float = WATCHING.answer_s
) -> None:
    """Requests from every rank its stacks, its Flight Recorder dump and a heartbeat. Meanwhile py-spy and nvidia-smi
    run, if installed, and NCCL RAS is queried, if it listens. Waits until the live ranks have answered, at most
    ``answer_s`` seconds, and for a second report of NCCL RAS if there was a first. Never raises. ``number``: different
    from all earlier requests of this run."""
    workers = tuple(workers)
    with contextlib.suppress(OSError):  # no request on a full disk: the signal below needs no space
        replace_file(layout.asked, encode(Asked(number, why, time.time_ns())))
    with ExitStack() as tools:
        for worker in workers:
            look = ["py-spy", "dump", *(["--nonblocking"] if worker.stopped else []), "--pid", str(worker.pid)]
            tools.enter_context(_tool(look, layout.rank(worker.rank).pyspy))
        tools.enter_context(_tool(["nvidia-smi", "-q"], layout.nvidia_smi(_host())))
        tools.enter_context(_reports_of_ras(layout, workers, twice=why == HANG, number=number))
        for worker in workers:
            _ask_for_stacks(layout, worker)
        _wait(lambda: all(not w.alive or _answered(layout, w, number) for w in workers), answer_s)


def _ask_for_stacks(layout: RunLayout, worker: Worker) -> None:
    """Sends the signal only to a process that has recorded that it handles it: any other would be ended by it."""
    try:
        identity, _ = read_identity(layout.rank(worker.rank))
    except DiagError:  # recorded by a newer version, in the training's own environment
        return
    if identity is not None and identity.pid == worker.pid and identity.stack_signal is not None:
        worker.send(identity.stack_signal)


def _answered(layout: RunLayout, worker: Worker, number: int) -> bool:
    """Whether a rank has answered. A rank without a heartbeat has no collectors and will not answer."""
    heartbeat, _ = read_heartbeat(layout.rank(worker.rank))
    return heartbeat is None or heartbeat.answered == number


def take_back(layout: RunLayout) -> None:
    """Called when the training goes on: removes the request, and the evidence that a later triage would take for a
    hang. Without a request the ranks' heartbeats are short again. stacks.txt is emptied, not removed: the processes
    have it open."""
    paths = [layout.asked, layout.nvidia_smi(_host()), *layout.all_nccl_ras(_host())]
    for files in layout.ranks().values():
        files.remove_flight_recorders_asked()
        paths.append(files.pyspy)
        with contextlib.suppress(OSError):
            os.truncate(files.stacks, 0)
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _host() -> str:
    return socket.gethostname().partition(".")[0]


@contextmanager
def _tool(command: list[str], output: Path) -> Iterator[None]:
    """Runs a program during the block, and at most ``tool_s`` seconds longer, with its output into a file. A program
    that is not installed, not permitted or too slow leaves no file."""
    program = processes.find_program(command[0])
    if program is None:
        yield
        return
    partial = output.with_name(f".{output.name}.part")
    try:
        with open_private(partial) as file:
            running = processes.start(
                [program, *command[1:]], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL
            )
    except OSError:
        yield
        return
    try:
        yield
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            if running.wait(WATCHING.tool_s) == 0:
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
    """Queries the job's NCCL RAS during the block. ``twice``: two reports distinguish a hang from a moment without
    progress; in a crash there is no time for a second one."""

    def keep() -> None:
        pids = {worker.pid for worker in workers}
        for turn in range(2 if twice else 1):
            if turn:
                time.sleep(NCCL_RAS.reports_apart_s)
            try:
                report = ras.ask(answer_s=WATCHING.ras_s).data
            except DiagError:  # no NCCL, an older one, or RAS is switched off
                return
            # Several jobs of a host may listen on one port; another job may have answered.
            report_pids = {int(pid) for pid in _PID.findall(report)}
            if not report_pids or not pids or report_pids & pids:
                with contextlib.suppress(OSError):
                    replace_file(layout.nccl_ras(_host(), 2 * number - 1 + turn), report, private=True)

    asking = threading.Thread(target=keep, name="diag-ras", daemon=True)
    asking.start()
    try:
        yield
    finally:
        asking.join(2 * WATCHING.ras_s + NCCL_RAS.reports_apart_s)


def _wait(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(WATCHING.poll_hang_s)


# -- hang rules --------------------------------------------------------------------------------------------------------
#
# Rules for when a training counts as hung, from each rank's successive heartbeats. Pure; the caller passes the time.
#
# A rank that waits in a collective for as long as the limit hangs, whatever the others do: the collective's own timeout
# would end it, too. Three cases get more time. Before any rank has finished a step, models are built and compiled. A
# rank that announced a checkpoint or an evaluation is busy, and the others wait for it. And if no rank waits in a
# collective, all ranks may be in a long phase that they did not announce.
#
# Only heartbeats that keep coming show that a rank makes no progress. If they stop, the disk may be full while the
# training runs normally.

NO_HEARTBEAT = "no heartbeat yet"


class HangState(StrEnum):
    MOVING = "moving"
    DOUBTFUL = "doubtful"  # most of the limit is over: time to gather evidence
    BUSY = "busy"  # some ranks wait for one that is in a checkpoint or an evaluation
    HUNG = "hung"


@dataclass(frozen=True)
class Limits:
    """Limits of the time without progress, in seconds."""

    hang_s: float
    setup_s: float
    busy_s: float

    @classmethod
    def of(cls, hang_s: float, collective_timeout_s: float) -> Limits:
        """``hang_s``: the requested limit; lowered to a little before the collectives' own timeout if this is less."""
        ahead = collective_timeout_s - min(
            WATCHING.ahead_of_timeout_s, WATCHING.ahead_of_timeout_share * collective_timeout_s
        )
        hang_s = min(hang_s, ahead)
        return cls(hang_s, max(hang_s, WATCHING.least_setup_s), WATCHING.busy_limit * hang_s)


@dataclass(frozen=True)
class Seen:
    """A rank's last heartbeat, with times on the watcher's clock. ``since_s``: the first heartbeat with this progress;
    ``heard_s``: the last one. ``beat`` None: no heartbeat has come."""

    beat: Beat | None
    since_s: float
    heard_s: float

    def says_so(self, now_s: float) -> bool:
        """Whether the rank makes no progress, as opposed to its heartbeats having stopped."""
        return self.beat is not None and self.heard_s - self.since_s >= WATCHING.heard_share * (now_s - self.since_s)


Ranks = Mapping[int, Seen]  # all ranks


@dataclass(frozen=True)
class Judgement:
    """The state of the training. ``still_s``: time without progress that counts; ``limit_s``: its limit."""

    state: HangState
    still_s: float = 0.0
    limit_s: float = 0.0
    waiting: tuple[int, ...] = ()  # ranks in a collective
    away: tuple[tuple[int, str], ...] = ()  # the other ranks and their phases

    @property
    def busy(self) -> tuple[tuple[int, str], ...]:
        return tuple((rank, phase) for rank, phase in self.away if phase in BUSY_PHASES)


def observed(known: Ranks, beats: Mapping[int, Beat | None], now_s: float) -> Ranks:
    """All ranks after a look at the heartbeats. A rank whose heartbeat cannot be read stays as it was."""
    ranks = dict(known)
    for rank, beat in beats.items():
        before = ranks.get(rank)
        if before is None:
            ranks[rank] = Seen(beat, now_s, now_s)
        elif beat is not None and (before.beat is None or beat.sent_ns != before.beat.sent_ns):
            stands = before.beat is not None and not beat.moved_since(before.beat)
            ranks[rank] = Seen(beat, before.since_s if stands else now_s, now_s)
    return ranks


def judged(ranks: Ranks, now_s: float, limits: Limits) -> Judgement:
    """The state of the training now."""
    if not any(status.beat for status in ranks.values()):
        return Judgement(
            HangState.MOVING
        )  # no collectors, or the ranks are still joining the process group, which has its own timeout
    alive = {rank: status for rank, status in ranks.items() if status.beat is None or not status.beat.done}
    standing = {rank: status for rank, status in sorted(alive.items()) if status.says_so(now_s)}
    if not standing:
        return Judgement(HangState.MOVING)
    waiting = tuple(rank for rank, status in standing.items() if status.beat is not None and status.beat.in_collective)
    away = tuple(
        (rank, status.beat.phase if status.beat else NO_HEARTBEAT)
        for rank, status in sorted(alive.items())
        if rank not in waiting
    )
    since = [alive[rank].since_s for rank in waiting]
    still_s = now_s - (min(since) if since else max(status.since_s for status in alive.values()))
    busy = any(phase in BUSY_PHASES for _, phase in away)
    trained = any(status.beat is not None and status.beat.steps > 0 for status in ranks.values())
    limit_s = limits.hang_s if trained else limits.setup_s
    if busy or not waiting:
        limit_s = max(limit_s, limits.busy_s)
    judgement = Judgement(HangState.MOVING, still_s, limit_s, waiting, away)
    if still_s >= limit_s:
        return _with_state(judgement, HangState.HUNG)
    if busy and waiting and still_s >= WATCHING.doubt_share * limits.hang_s:
        return _with_state(judgement, HangState.BUSY)
    return _with_state(judgement, HangState.DOUBTFUL) if still_s >= WATCHING.doubt_share * limit_s else judgement


def _with_state(judgement: Judgement, state: HangState) -> Judgement:
    return Judgement(state, judgement.still_s, judgement.limit_s, judgement.waiting, judgement.away)


Say = Callable[[str], None]


@dataclass(frozen=True)
class Hang:
    """A training that hung, or that failed shortly before it would have counted as hung."""

    still_s: float
    limit_s: float
    waiting: tuple[int, ...]
    away: tuple[tuple[int, str], ...]
    ended_by_diag: bool
    ended: tuple[int, ...] = ()  # ranks that were there until then
    unix_ns: int = 0  # then

    @classmethod
    def of(cls, judgement: Judgement, ended_by_diag: bool, ended: tuple[int, ...] = ()) -> Hang:
        now = time.time_ns()
        return cls(judgement.still_s, judgement.limit_s, judgement.waiting, judgement.away, ended_by_diag, ended, now)


class Monitor:
    """Watches one run from ``start`` to ``stop``. ``expected``: ranks that must send heartbeats, those of this node."""

    def __init__(
        self,
        layout: RunLayout,
        limits: Limits,
        say: Say,
        *,
        expected: Callable[[], tuple[Worker, ...]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = WATCHING.interval_s,
        grace_s: float = WATCHING.grace_s,
        ends: bool = True,
    ) -> None:
        self._layout = layout
        self._ends = ends
        self._limits = limits
        self._say = say
        self._workers = expected or (lambda: workers_of(layout))
        self._clock = clock
        self._interval_s = interval_s
        self._grace_s = grace_s
        self._near: frozenset[int] = frozenset()  # ranks of this node; empty until they have started
        self._near_status: Ranks = {}
        self._far_status: Ranks = {}
        self._before_failure = Judgement(HangState.MOVING)
        self._gathered: object = None  # the standstill for which evidence was gathered
        self._reported: object = None  # the standstill that was reported
        self._requests = 0
        self._gathering = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="diag-monitor", daemon=True)
        self.hang: Hang | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, ended_well: bool = False) -> None:
        """Waits until the thread has ended, and has finished ending a hang. ``ended_well``: evidence of a suspected
        hang that passed with the last steps is removed."""
        self._stopped.set()
        self._thread.join()
        if ended_well and self.hang is None and self._gathered is not None:
            self._gathered = None
            take_back(self._layout)

    def look(self) -> Judgement:
        """One round: reads heartbeats, judges, gathers evidence; for a hang, ends the training and sets ``hang``."""
        self._follow()
        now_s = self._clock()
        ranks = self._look_around(now_s)
        judgement = judged(ranks, now_s, self._limits)
        failing = any(status.beat is not None and status.beat.failed for status in ranks.values())
        if not failing:
            self._before_failure = judgement
        if judgement.state == HangState.MOVING:
            # Ranks whose collective has timed out move for the last time: the gathered evidence is kept.
            if self._gathered is not None and not failing:
                self._gathered = None
                take_back(self._layout)
            return judgement
        standstill = {rank: status.since_s for rank, status in self._near_status.items()}  # of this node
        if self._gathered != standstill:
            self._gathered = standstill
            self._gather(HANG)
        if judgement.state == HangState.BUSY and self._reported != standstill:
            self._reported = standstill
            self._say(busy_words(judgement))
        if judgement.state == HangState.HUNG and not self._ends and self._reported != standstill:
            self._reported = standstill
            self._say(hang_words(judgement))
        if judgement.state == HangState.HUNG and self._ends and not self._stopped.is_set():
            self._say(hang_words(judgement))
            workers = tuple(worker for worker in self._workers() if worker.alive)
            self.hang = Hang.of(judgement, ended_by_diag=True, ended=tuple(worker.rank for worker in workers))
            end(workers, self._grace_s)
        return judgement

    def others_die(self) -> None:
        """Called when a process has failed, before the launcher ends the others: gathers their evidence first. In a
        hang this is under way or done already, and the failed process has only timed out."""
        if self.failed() is None:
            self._gather(CRASH)
        else:
            with self._gathering:  # wait until they have answered
                pass

    def failed(self) -> Hang | None:
        """The hang of a training that has failed: the one that was ended, or one cut short by the collectives'
        timeout."""
        if self.hang is None and self._before_failure.state != HangState.MOVING:
            return Hang.of(self._before_failure, ended_by_diag=False)
        return self.hang

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            if self.look().state == HangState.HUNG and self._ends:
                return

    def _follow(self) -> None:
        """Moves on to the new run directory if the launcher has restarted the training."""
        newest = self._layout.newest()
        if newest != self._layout:
            self._layout, self._near, self._gathered, self._reported = newest, frozenset(), None, None
            self._near_status, self._far_status, self._before_failure = {}, {}, Judgement(HangState.MOVING)

    def _gather(self, why: str) -> None:
        with self._gathering:
            self._requests += 1
            gather(self._layout, self._workers(), why, self._requests)

    def _look_around(self, now_s: float) -> Ranks:
        """The status of this node's ranks; if these make no progress, also of other nodes' ranks."""
        ranks = set(self._layout.ranks())
        if not self._near:
            self._near = frozenset(worker.rank for worker in self._workers())
        near = ranks & self._near or ranks
        self._near_status = observed(self._near_status, self._beats(near), now_s)
        near_judgement = judged(self._near_status, now_s, self._limits)
        if near == ranks or near_judgement.still_s < WATCHING.other_nodes_share * self._limits.hang_s:
            self._far_status = {}
            return self._near_status
        self._far_status = observed(self._far_status, self._beats(ranks - near), now_s)
        return {**self._far_status, **self._near_status}

    def _beats(self, ranks: Iterable[int]) -> Mapping[int, Beat | None]:
        return {rank: _beat(self._layout.rank(rank)) for rank in ranks}


def _beat(files: RankLayout) -> Beat | None:
    heartbeat, _ = read_heartbeat(files)
    return beat_of(heartbeat) if heartbeat is not None else None


def busy_words(judgement: Judgement) -> str:
    """``rank 1 is busy with checkpoint, 3 ranks waiting for 24 s: no hang before 90 s``."""
    ranks = [rank for rank, _ in judgement.busy]
    phases = " and ".join(dict.fromkeys(phase for _, phase in judgement.busy))
    return (
        f"{spaced(listing(ranks))} {'is' if len(ranks) == 1 else 'are'} busy with {phases}, "
        f"{spaced(counted(len(judgement.waiting), 'rank'))} waiting for {judgement.still_s:.0f} s: "
        f"no hang before {judgement.limit_s:.0f} s"
    )


def hang_words(judgement: Judgement) -> str:
    """``hang: no progress for 31 s; ranks 0, 2, 3 wait in a collective, rank 1 is in data``."""
    parts = []
    if judgement.waiting:
        parts.append(
            f"{spaced(listing(judgement.waiting))} wait{'s' if len(judgement.waiting) == 1 else ''} in a collective"
        )
    parts += [f"rank {rank} is in {phase}" for rank, phase in judgement.away[:4]]
    if len(judgement.away) > 4:
        parts.append(f"{spaced(counted(len(judgement.away) - 4, 'more rank'))} elsewhere")
    return f"hang: no progress for {judgement.still_s:.0f} s; {', '.join(parts)}"
