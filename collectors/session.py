"""``Collector``: records one rank, behind one context manager.

    dist.init_process_group(...)
    with Collector.from_env() as collector:
        for number in range(steps):
            with collector.step(number) as step:
                with collector.phase("data"):
                    batch = next(batches)
                with collector.phase("forward"):
                    ...
                step.tokens = batch.numel()

Never waits for the device, never raises into the training, and writes only under the rank's own folder.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import math
import os
import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from . import flight_recorder
from .accelerator import Accelerator, DeviceClock, Mark, accelerator_of, current_device, runtime_versions
from .attempts import attempt_of
from .background import Background, TraceRequests
from .block_sums import SumsOfBlocks
from .budget import Complaints
from .collectives import CollectiveTimer
from .device_sampler import sampler_of
from .dumps import Stacks, main_thread_compiles, write_flight_recorders
from .durations import DurationPoll, poll_of
from .fence import Fence
from .files import encode, replace_file
from .identity import identify, rank_and_world
from .inspector_tail import InspectorTail, tail_of
from .kept import KeptSteps
from .launchers import joins
from .layout import RunLayout
from .machine import MachineSampler
from .manifest import update_manifest
from .memory_snapshots import MemorySnapshots
from .node_lock import NodeLock
from .numbers import Numbers, number_of
from .policy import RECORDING
from .records import (
    BACKWARD,
    FAILED,
    PHASE_RANGE,
    STEP_RANGE,
    WINDOW_ACTIVE,
    CheckpointRecord,
    Heartbeat,
    MemoryRecord,
    NumberRecord,
    PhaseRow,
    StepRecord,
)
from .scheduling import CpuTime, HostSampler, ProcFile, Stamp, ThreadTime
from .settings import CollectorSettings, run_dir_from, settings_from
from .standing import Standing
from .step_lines import StepLines, StepSummary, StepSums, TimerRecords
from .streams import Streams
from .watching import keeper_of, watching_from
from .window import TraceWindows

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

# -- memory ------------------------------------------------------------------------------------------------------------
#
# Memory of one rank, once a step: the allocator's peaks where there is an accelerator, the resident size always.

_RESIDENT = 1  # field of statm, in pages
_PAGE = os.sysconf("SC_PAGE_SIZE")


class MemoryReader:
    """Reads peaks of one step: reading resets them. No call here waits for the device."""

    def __init__(self, accelerator: Accelerator | None) -> None:
        self._accelerator = accelerator
        self._capacity: int | None = None
        self._statm = ProcFile(lambda: "/proc/self/statm")
        if accelerator is not None:
            self._capacity = accelerator.capacity
            accelerator.reset_peaks()

    def read(self) -> MemoryRecord:
        rss = (self._statm.number(_RESIDENT) or 0) * _PAGE  # 0 where the system has no /proc
        if self._accelerator is None:
            return MemoryRecord(rss=rss)
        peaks = self._accelerator.peaks()
        self._accelerator.reset_peaks()
        return MemoryRecord(
            rss=rss,
            allocated=peaks.allocated,
            reserved=peaks.reserved,
            alloc_retries=peaks.retries,
            ooms=peaks.ooms,
            capacity=self._capacity,
        )

    def close(self) -> None:
        self._statm.close()


BETWEEN_STEPS = "between steps"  # in place of a phase


class Moment(NamedTuple):
    """A point in time on the host's clock and, where the rank computes on a device, in its stream; with the CPU times
    of the training's thread by then."""

    ns: int
    mark: Mark | None = None
    cpu: CpuTime = CpuTime(None, None)


class Follower(Protocol):
    """Reports boundaries of steps and phases to a collector, some time after they were passed."""

    def catch_up(self, if_still: bool) -> None:
        """Reports them. ``if_still``: called by another thread, and only if the training seems to make no progress."""

    def doing(self) -> tuple[str, int]:
        """The phase under way, and since when."""

    def backwards(self) -> int:
        """The number of backwards so far."""


class Collector(AbstractContextManager["Collector"]):
    """Records one rank of one run. Create it after the process group, before the model is wrapped."""

    def __init__(
        self,
        run_dir: Path,
        settings: CollectorSettings,
        device: torch.device | None = None,
        timer: CollectiveTimer | None = None,
        fence: Fence | None = None,
        steps: int = 0,
    ) -> None:
        """``timer``: a timer whose timed functions are installed already. ``fence``: that of the recording which this
        is a part of. ``steps``: number of steps that were recorded before."""
        device = device or current_device()
        accelerator = accelerator_of(device)
        rank, _, _ = rank_and_world()
        self._run = RunLayout(run_dir)
        self._layout = self._run.rank(rank)
        self._settings = settings
        self._rank = rank
        self._complaints = Complaints(rank)
        if fence is None:
            fence = timer.fence if timer is not None else Fence()
            fence.say = lambda why: Complaints(rank).add("nothing more is recorded", why)
            fence.undo += [lambda _why: self._timer.uninstall(), self.give_up]
        self._fence = fence
        self._streams = streams = Streams(self._layout, settings.byte_budget, accelerator is not None, self._complaints)
        self._identity = identify(device)
        sampler = sampler_of(accelerator) if settings.nvml else None
        utilization = sampler.utilization if sampler is not None else list
        sums = SumsOfBlocks()
        summary = StepSummary(
            streams.summary, self._identity, settings.summary_steps, StepSums(streams.sums), utilization, sums.take
        )
        self._kept = KeptSteps(
            self._layout, streams.kept, streams.most_kept_bytes, self._run.keep_asked, accelerator is not None,
            restarted=self._run.is_restart,
        )  # fmt: skip
        self._lines = StepLines(streams.steps, streams.collectives, summary, self._kept)
        self._clock = _clock_of(accelerator)
        self._event_type = accelerator.event_type if accelerator is not None else None
        self._timer = timer or CollectiveTimer(settings.max_collectives_per_step, fence=fence)
        self._timer.device_clock = self._clock
        self._memory = MemoryReader(accelerator)
        self._thread, self._sampler = ThreadTime(), HostSampler()
        self._cpu: dict[str, tuple[int, int]] = {}  # of the step under way, by phase
        self._begun = Moment(0)  # the step under way
        self._windows = TraceWindows(
            settings, self._layout, streams.windows, self._complaints, self._trace_metadata, fence, self._timer.works
        )
        self._snapshots = MemorySnapshots(
            settings, self._layout, rank, accelerator, streams.windows, self._complaints, lambda: self._step, fence
        )
        self._nvml_missing = sampler.unavailable if sampler is not None else "switched off"
        timing = settings.collective_timing
        self._durations: DurationPoll | InspectorTail | None
        self._durations, self._no_durations = tail_of(accelerator, timing, self._complaints, sums) or poll_of(
            accelerator, timing == "recorder", streams.durations, self._complaints, sums
        )
        self._background = Background(
            self._layout,
            settings.interval_s,
            self._heartbeat,
            sampler,
            streams.device,
            self._complaints,
            self._run.asked,
            self._answer,
            TraceRequests(self._run.trace_asked, rank, self._windows.ask, self._snapshots.ask),
            lambda: self._guarded(self._write_waiting),
            lambda pauses: self._sampler.sample(self._thread.native_id, pauses),
            streams.host,
            lambda: self._thread.native_id,
            self._poll_durations,
            fence,
            self._look_after,
        )
        self._machine = MachineSampler(
            streams.machine,
            lambda: NodeLock.of_run(run_dir, f"{self._identity.host} {self._identity.boot_id}"),
            settings.machine_interval_s,
            settings.nvml,
            fence,
        )
        self._stacks = Stacks()
        self._standing = Standing()
        self.numbers = Numbers()
        watching = watching_from() if rank == 0 else None
        self._watcher = keeper_of(watching, self._not_watched) if watching is not None else None
        self._last_progress: tuple[object, ...] = ()  # the progress in the last heartbeat
        self._moved_ns = 0  # when a heartbeat last showed progress
        self._no_progress = False  # it was the same as in the one before
        self._counts = flight_recorder.Counts()
        self._failed_in = ""
        self._index = steps  # number of steps of this process so far
        self._step = steps - 1
        # The phase under way, for heartbeats, and since when; a follower may know a later one.
        self.doing = "setup", time.monotonic_ns()
        self._phases: list[PhaseRow] = []
        self._gc_start_ns = time.monotonic_ns()
        self._gc_hook = fence.hook(self._on_gc)
        self._gc_pauses: list[tuple[int, int]] = []
        self._ranges = False  # whether a profiler window wants our ranges
        self._follower: Follower | None = None
        self._backwards = 0  # as last reported by the follower
        self._done = False
        self._broken = False
        self._named = False  # rank.json was written
        self._removals = 0  # how often the run directory was removed since

    @classmethod
    def from_env(cls, device: torch.device | None = None) -> Collector:
        """The collector of the run that ``diag run`` started this process for. ``device``: the device of this rank."""
        run_dir = run_dir_from()
        if run_dir is None:
            raise RuntimeError(
                "DIAG_RUN_DIR is not set: start the training with `diag run`, or give Collector a folder"
            )
        if joins():
            rank, _, world_size = rank_and_world()
            run_dir = attempt_of(RunLayout(run_dir), rank, world_size).root
        return cls(run_dir, settings_from(), device)

    @property
    def error_file(self) -> Path:
        """Of the exception that ends the process."""
        return self._layout.error

    def __enter__(self) -> Self:
        self._fence.call(self._open)
        return self

    def _open(self) -> None:
        # It masks the exception of a process that dies, which may not be able to open another file.
        importlib.import_module(".masking", __package__)
        self._identity.stack_signal = self._stacks.install(self._layout.stacks, self._complaints)
        try:
            self._write_identity()
        except OSError as error:
            self._complaints.add("rank.json could not be written", error)
        if self._settings.collectives and dist.is_available() and dist.is_initialized():
            self._timer.install()
            if self._event_type is not None:
                self._timer.install_streams(self._event_type)
        gc.callbacks.append(self._gc_hook)
        self._snapshots.start()
        self._background.start()
        self._machine.start()
        if self._watcher is not None:
            self._watcher.start()

    def _write_identity(self) -> None:
        replace_file(self._layout.identity, encode(self._identity))
        self._named = True

    def _look_after(self) -> None:
        """What is looked at about once a second. A run directory that was removed is made again: whoever removed it may
        have meant another one, and a training of weeks is not to go unrecorded."""
        try:
            os.stat(self._layout.identity)  # noqa: PTH116  (Path.exists takes some errors for an absence)
        except FileNotFoundError:
            if self._named:
                self._streams.begin_again()
                if not self._removals:
                    why = "what was recorded until now is lost, and what follows is recorded in a new one"
                    self._complaints.add("the run directory was removed", why)
                self._removals += 1
                with contextlib.suppress(OSError):
                    self._write_identity()
        except OSError:  # a storage that does not answer
            pass
        self._kept.poll()

    def _not_watched(self, error: Exception) -> None:
        self._complaints.add("nothing watches this training for hangs", error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._identity.pid:  # a fork: the files and the threads are its parent's
            return
        self._fence.call(self._close, kind, always=True)
        self._fence.call(self._windows.wait_until_packed, always=True)
        self._fence.call(self._timer.let_go, always=True)

    def _close(self, kind: type[BaseException] | None) -> None:
        self._timer.uninstall()
        self._leave_gc()
        if self._watcher is not None:
            self._watcher.stop()
        self._guarded(lambda: self._catch_up(if_still=False))
        self.doing, self._backwards, self._follower = self._doing(), self._without_step(), None
        self._snapshots.stop(kind)
        if self._broken or kind is not None:
            self._windows.discard(failing=kind is not None)
        if kind is None:
            self._windows.close()
            self.doing, self._done = ("done", self.doing[1]), True
        else:
            self._failed_in, self.doing = self.doing[0], (f"{FAILED}{kind.__name__}", time.monotonic_ns())
            self._dump()
        self._guarded(self._write_device_steps)
        self._guarded(lambda: self._lines.close(self._timer_records(self._step, everything=True)))
        self._machine.stop()
        self._background.stop()
        # Dumps that were requested because of a suspected hang that has passed are no evidence.
        self._stacks.uninstall(self._layout.stacks, keep=kind is not None)
        if kind is None:
            self._layout.remove_flight_recorders_asked()
        self._streams.close()
        self._memory.close()
        self._thread.close()
        self._sampler.close()

    def _leave_gc(self) -> None:
        if self._gc_hook in gc.callbacks:
            gc.callbacks.remove(self._gc_hook)

    def describe(self, **fields: Any) -> None:
        """Writes fields of ``Manifest`` into manifest.json; only rank 0 writes."""
        self._guarded(lambda: self._describe(fields))

    def _describe(self, fields: dict[str, Any]) -> None:
        if self._rank != 0:
            return
        collector = {"settings": asdict(self._settings), "without_nvml_because": self._nvml_missing}
        collector["without_durations_because"] = self._no_durations
        collector |= fields.pop("collector", {})
        versions = {"torch": torch.__version__, "python": platform.python_version(), **runtime_versions()}
        try:
            update_manifest(
                self._run, **fields, device=self._identity.device, job=self._identity.job, versions=versions,
                collector=collector,
            )  # fmt: skip
        except OSError as error:
            self._complaints.add("manifest.json could not be written", error)

    def watch_ddp(self, module: Any, hook: tuple[Any, Any] | None = None) -> None:
        """Times the gradient buckets of a DistributedDataParallel module; see ``CollectiveTimer.watch_ddp``.

        ``hook``: the training's own communication hook, with its state, which is registered in any case.
        """
        if not self._settings.collectives or not dist.is_initialized():
            if hook is not None:
                module.register_comm_hook(*hook)
            return
        try:
            self._timer.watch_ddp(module, hook)
        except Exception as error:  # a module that has a hook already, or anything else that DDP refuses
            self._complaints.add("DDP's gradient buckets are not timed", error)

    def step(self, step: int, passed: Callable[[], Moment | None] = lambda: None) -> _StepContext:
        """One whole optimizer step. The caller fills in tokens, loss and micro_batches of its record. ``passed`` is
        called on entry and on exit, and returns a boundary that lies in the past; None for now."""
        return _StepContext(self, step, passed)

    @property
    def on_device(self) -> bool:
        """Whether moments have marks in a device's stream."""
        return self._clock is not None

    def pass_boundary(self) -> Stamp | None:
        """Ends the step under way and begins the next, if the record may be written later and nothing else is to be
        done between them. Returns the boundary; else None, and nothing has changed."""
        index = self._index + 1
        if self._clock is not None or self._broken or self._timer.crowded or not self._windows.quiet(index):
            return None
        now = self._thread.stamp()
        if self._lines.due(index, now[0]):
            return None
        self._index = index
        self._step = self._timer.step = self._step + 1
        return now

    def followed_by(self, follower: Follower) -> None:
        """Sets the follower. It is asked to catch up before the last steps are written, and now and then by another
        thread."""
        self._follower = follower

    def phase(self, name: str) -> _PhaseContext:
        """A part of the step; see ``records.PHASES``."""
        return _PhaseContext(self, name)

    def moment(self, ahead: str = "") -> Moment:
        """The current moment. ``ahead``: the phase that heartbeats report from here on."""
        mark = self._clock.mark() if self._clock is not None and not self._clock.capturing() else None
        now = Moment(time.monotonic_ns(), mark, self._thread.read())
        if ahead:
            self.doing = ahead, now.ns
        return now

    @property
    def stamp(self) -> Callable[[], Stamp]:
        """A cheaper ``moment`` for a rank that computes on the CPU; ``moment_of`` converts its result."""
        return self._thread.stamp

    @staticmethod
    def moment_of(stamp: Stamp) -> Moment:
        return Moment(stamp[0], None, ThreadTime.read_at(stamp))

    def passed(self, name: str, start: Moment, end: Moment) -> None:
        """Records a phase of the step under way, after its end."""
        if self._broken:
            return
        self._phases.append(PhaseRow(name, start.ns, end.ns))
        on_cpu_ns, queued_ns = _between(start, end)
        if on_cpu_ns is not None and queued_ns is not None:
            before = self._cpu.get(name, (0, 0))
            self._cpu[name] = before[0] + on_cpu_ns, before[1] + queued_ns
        clock, first, last = self._clock, start.mark, end.mark
        if clock is not None and first is not None and last is not None:
            clock.phase(name, first, last)

    def no_windows(self, why: str) -> None:
        """Ends an open profiler window, and records no more."""
        self._windows.stand_back(why)

    def profiles(self, profiler: Any) -> bool:
        """Whether this is the profiler of one of our windows."""
        return self._windows.uses(profiler)

    def give_up(self, why: str) -> None:
        """Stops recording; heartbeats go on and contain the reason."""
        with contextlib.suppress(Exception):
            self._catch_up(if_still=False)
        self._broken = True
        self._windows.discard()
        self._leave_gc()
        self._complaints.messages.append(f"nothing more is recorded: {why}")
        self._write_the_rest()

    def checkpoint(self, record: CheckpointRecord) -> None:
        """Writes the cost of a checkpoint that has ended; called by the training's thread."""
        self._streams.checkpoints.write(record)

    def number(self, what: str, value: Any, step_under_way: Callable[[], int] | None = None) -> None:
        """Looks at a loss or a gradient's norm (``numbers``) of the step under way, if it is on the host already; one
        that is not finite or jumps is recorded. Never raises."""
        with contextlib.suppress(Exception):  # whatever a tensor of the training does when it is read
            number = number_of(value)
            if number is None or self._broken or (usual := self.numbers.odd(what, number)) is None:
                return
            step = step_under_way() if step_under_way is not None else self._step
            known = usual if math.isfinite(usual) else None
            self._streams.numbers.write(NumberRecord(step, what, repr(number), known, time.monotonic_ns()))

    def _guarded(self, action: Callable[[], Any]) -> Any:
        """Runs a part of the recording, within the fence, unless the recording is switched off."""
        return None if self._broken else self._fence.call(action)

    def _begin_step(self, record: StepRecord, boundary: Moment | None) -> None:
        self._phases, self._cpu = [], {}
        if boundary is not None:
            record.begin_ns, self._begun = boundary.ns, boundary
            return
        step = record.step
        record.window = self._windows.before_step(self._index, step)
        self._ranges = record.window == WINDOW_ACTIVE
        self._step = self._timer.step = step
        self._gc_pauses = []
        if self._clock is not None:
            self._clock.begin_step(step)
        self._begun = Moment(time.monotonic_ns(), None, self._thread.read())
        record.begin_ns = self._begun.ns

    def _end_step(self, record: StepRecord, boundary: Moment | None) -> None:
        ended = boundary or Moment(time.monotonic_ns(), None, self._thread.read())
        record.end_ns = ended.ns
        record.on_cpu_ns, record.queued_ns = _between(self._begun, ended)
        record.phases, record.cpu = self._phases, self._cpu
        record.gc = [pause for pause in self._gc_pauses if pause[0] < record.end_ns]
        del self._gc_pauses[: len(record.gc)]
        if boundary is None:
            record.memory = self._memory.read()
            self._snapshots.look(record.memory, record.step)
            if self._clock is not None:
                self._clock.end_step(self._timer.take_marks(record.step))
                self._write_device_steps()
        self._lines.add(record, self._timer_records(record.step))
        if boundary is None:
            self._step_ended(record)

    def _step_ended(self, record: StepRecord) -> None:
        """Moves on after a step that ends now; ``pass_boundary`` does this for a boundary in the past."""
        self._index += 1
        self.doing = BETWEEN_STEPS, record.end_ns
        self._ranges = False
        self._windows.after_step()

    def _range(self, name: str) -> AbstractContextManager[Any] | None:
        if not self._ranges:
            return None
        opened: AbstractContextManager[Any] = torch.profiler.record_function(name)
        opened.__enter__()
        return opened

    def _write_the_rest(self) -> None:
        """Writes the steps before a failure of the recording."""
        with contextlib.suppress(Exception):
            self._lines.write()

    def _write_waiting(self) -> None:
        self._catch_up(if_still=True)
        self._lines.write()
        self._snapshots.serve()

    def _catch_up(self, if_still: bool) -> None:
        if self._follower is not None:
            self._follower.catch_up(if_still)

    def _doing(self) -> tuple[str, int]:
        return self._follower.doing() if self._follower is not None else self.doing

    def _without_step(self) -> int:
        """The number of backwards of a training of which no step has ended."""
        if self._index:
            return 0
        return self._follower.backwards() if self._follower is not None else self._backwards

    def _timer_records(self, step: int, everything: bool = False) -> TimerRecords:
        timer = self._timer
        return TimerRecords(timer.take(step, everything), timer.take_groups(), timer.take_dropped())

    def _write_device_steps(self) -> None:
        if self._clock is not None:
            for record in self._clock.passed():
                self._streams.device_steps.write(record)
                self._lines.passed(record)

    def _on_gc(self, event: str, _info: dict[str, int]) -> None:
        now = time.monotonic_ns()
        if event == "start":
            self._gc_start_ns = now
        elif now - self._gc_start_ns >= RECORDING.least_gc_pause_ns:
            self._gc_pauses.append((self._gc_start_ns, now))

    def _answer(self) -> None:
        self._stacks.write(self._layout.stacks)
        self._dump()

    def _dump(self) -> None:
        """Writes the Flight Recorders' dumps, which show the collectives that each rank called."""

        def path_of(recorder: str) -> Path:
            return self._layout.flight_recorder_asked(self._rank, recorder)

        if why := write_flight_recorders(path_of):
            self._complaints.messages.append(f"{path_of('').name} could not be written: {why}")

    def _poll_durations(self, last: bool) -> None:
        """Polls durations, but not while the training hangs or after it failed: querying events might hang, too."""
        if self._durations is None or self._broken or self._failed_in:
            return
        if last:
            self._durations.look()
        elif not self._no_progress:
            self._durations.poll()

    def _heartbeat(self) -> Heartbeat:
        beat = self._plain_heartbeat()
        reached = (beat.step, beat.phase_since_ns, beat.last_started, beat.last_finished)
        self._no_progress = reached == self._last_progress
        if not self._no_progress:
            self._moved_ns = beat.monotonic_ns
            self._standing.moves()
        beat.unmoved_since_ns = self._moved_ns
        if self._no_progress:
            beat.recorder = self._counts.status(beat.monotonic_ns, beat.monotonic_ns - self._moved_ns)
            if not beat.recorder and (reducing := self._timer.reducing()):  # torch before 2.8 records nothing of gloo
                beat.last_started, beat.last_op = beat.last_started | reducing, "all_reduce"
            beat.compiles = main_thread_compiles()
            beat.line, beat.call, beat.idle_since_ns, beat.missing = self._standing.look(*self._thread.ids)
        self._last_progress = reached
        if self._background.answering or self._failed_in:
            beat.answered = self._background.answered
            beat.groups = self._timer.groups()
            beat.calls = self._timer.under_way(self._step)
        return beat

    def _plain_heartbeat(self) -> Heartbeat:
        trace_number, trace_answer = max(self._windows.answer, self._snapshots.answer)
        phase, since_ns = self._doing()
        return Heartbeat(
            unix_ns=time.time_ns(),
            monotonic_ns=time.monotonic_ns(),
            step=self._step,
            phase=phase,
            last_started=dict(self._timer.last_started),
            last_finished=dict(self._timer.last_finished),
            last_op=self._timer.last_op,
            done=self._done,
            errors=list(self._complaints.messages),
            steps=self._index,
            phase_since_ns=since_ns,
            trace_number=trace_number,
            trace_answer=trace_answer,
            failed_in=self._failed_in,
            numbers=self.numbers.seen,
            backwards=self._without_step(),
        )

    def _trace_metadata(self) -> dict[str, str]:
        """Rank and world size as JSON, for readers of traces that do not use run directories."""
        rank, _, world_size = rank_and_world()
        return {"diag": f'{{"rank": {rank}, "world_size": {world_size}, "pid": {os.getpid()}}}'}


class _StepContext:
    __slots__ = ("_collector", "_passed", "_range", "_record", "_step")

    def __init__(self, collector: Collector, step: int, passed: Callable[[], Moment | None]) -> None:
        self._collector = collector
        self._step = step
        self._passed = passed

    def __enter__(self) -> StepRecord:
        collector, self._record = self._collector, StepRecord(self._step, 0, 0, [])
        collector._guarded(lambda: collector._begin_step(self._record, self._passed()))
        self._range = collector._guarded(lambda: collector._range(f"{STEP_RANGE}{self._step}"))
        return self._record

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        opened = self._range
        if opened is not None:
            self._collector._guarded(lambda: opened.__exit__(None, None, None))
        if kind is None:  # a step that raised does not count; its calls are written when the collector closes
            self._collector._guarded(lambda: self._collector._end_step(self._record, self._passed()))


class _PhaseContext:
    __slots__ = ("_collector", "_name", "_range", "_start")

    def __init__(self, collector: Collector, name: str) -> None:
        self._collector = collector
        self._name = name

    def __enter__(self) -> None:
        self._start: Moment | None = None
        self._range: AbstractContextManager[Any] | None = None
        self._collector._guarded(self._begin)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._collector._guarded(lambda: self._end(kind is None))

    def _begin(self) -> None:
        self._range = self._collector._range(f"{PHASE_RANGE}{self._name}")
        self._start = self._collector.moment(ahead=self._name)

    def _end(self, whole: bool) -> None:
        if whole and self._start is not None:
            end = self._collector.moment()
            self._collector.passed(self._name, self._start, end)
            if self._name == BACKWARD:
                self._collector._timer.end_backward(end.ns)
        if self._range is not None:
            self._range.__exit__(None, None, None)


def _clock_of(accelerator: Accelerator | None) -> DeviceClock | None:
    if accelerator is None:
        return None
    return DeviceClock(accelerator.event, accelerator.current_stream, accelerator.is_capturing)


def _between(start: Moment, end: Moment) -> tuple[int | None, int | None]:
    """Nanoseconds that the training's thread was on a core, and queued for one. None where the system does not report
    them, or where different threads read the two moments."""
    (ran, waited), (had_run, had_waited) = end.cpu, start.cpu
    on_cpu_ns = ran - had_run if ran is not None and had_run is not None else None
    queued_ns = waited - had_waited if waited is not None and had_waited is not None else None
    if (on_cpu_ns or 0) < 0 or (queued_ns or 0) < 0:
        return None, None
    return on_cpu_ns, queued_ns
