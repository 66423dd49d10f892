"""torch.profiler windows: a few recorded steps, exported as gzip, named after their first step. On a schedule and on
request.

Starting, stopping and exporting happen between steps, so that no step contains them. The step after a window is marked,
because ranks leave the export at different times. A thread compresses the trace while the training goes on.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .accelerator import profiler_activities
from .budget import Budget, Complaints, too_large_for
from .fence import Fence, ignore
from .files import disk_full
from .layout import RankLayout
from .policy import RECORDING
from .records import (
    TRACE_PENDING,
    TRACE_RECORDED,
    WINDOW_ACTIVE,
    WINDOW_AFTER,
    WINDOW_NONE,
    WINDOW_WARMUP,
    TraceAsked,
)
from .settings import CollectorSettings
from .works import Works

_RECORDING = (WINDOW_WARMUP, WINDOW_ACTIVE)


class TraceWindows:
    """Drives one ``torch.profiler.profile`` per window. Any error of the profiler ends tracing, never the training."""

    def __init__(
        self,
        settings: CollectorSettings,
        layout: RankLayout,
        budget: Budget,
        complaints: Complaints,
        metadata: Callable[[], dict[str, str]],
        fence: Fence | None = None,
        works: Works | None = None,
    ) -> None:
        self._fence = fence or Fence()
        self._works = works or Works()
        self._waits = False  # the window is over, but for its operations
        self._settings = settings
        self._layout = layout
        self._budget = budget
        self._complaints = complaints
        self._metadata = metadata
        self._length = settings.trace_warmup + settings.trace_active  # of a window, in steps
        self._period = max(settings.trace_every, self._length + 1)  # from begin to begin, with several windows
        self._on = settings.trace and settings.trace_active > 0
        self._failed = ""  # why no window is recorded any more
        self._profiler: Any = None
        self._started_by = 0, 0  # process and thread
        self._starting = False  # it cannot be stopped meanwhile
        self._packing: threading.Thread | None = None  # the last one
        self._packed_bytes = 0  # of the trace that it compresses
        self._first_active = -1
        self._pending: TraceAsked | None = None  # a request whose window has not begun
        self._active: TraceAsked | None = None  # a request whose window has begun, and its last step is not over
        self._next_scheduled = 0  # the schedule has no step between the last ``quiet`` index and this one
        self.answer = (0, "")  # to the last request: its number, and Heartbeat.trace_answer

    def state_of(self, step: int) -> str:
        """The schedule's state of a step, counted from the first step of this process."""
        settings = self._settings
        since = step - settings.trace_skip
        if not self._on or self._failed or since < 0:
            return WINDOW_NONE
        if settings.trace_every:
            since %= self._period
        if since < settings.trace_warmup:
            return WINDOW_WARMUP
        if since < self._length:
            return WINDOW_ACTIVE
        return WINDOW_AFTER if since == self._length else WINDOW_NONE

    def before_step(self, index: int, step: int) -> str:
        """Starts a window that was requested or is scheduled; returns the state of the step. ``index`` counts the steps
        of this process, ``step`` the run's."""
        if (self._active is not None or self._pending is not None) and (
            state := self._before_requested(step)
        ) != WINDOW_NONE:
            return state
        state = self.state_of(index)
        # A scheduled window is left out if a requested one overlapped its begin.
        begins = state in _RECORDING and self.state_of(index - 1) not in _RECORDING
        if begins and self._profiler is None:
            self._first_active = step + (self._settings.trace_warmup if state == WINDOW_WARMUP else 0)
            self._guard(lambda: self._start(self._settings.trace_active))
        return state if self._profiler is not None or state == WINDOW_AFTER else WINDOW_NONE

    def quiet(self, index: int) -> bool:
        """Whether there is nothing to do before a step: no window is open, requested or scheduled."""
        if self._profiler is not None or self._active is not None or self._pending is not None:
            return False
        if index >= self._next_scheduled:
            self._next_scheduled = self._scheduled_from(index)
        return index < self._next_scheduled

    def _scheduled_from(self, index: int) -> int:
        """The first step, from this one on, that is in the schedule."""
        settings = self._settings
        if not self._on or self._failed:
            return sys.maxsize
        if self.state_of(index) != WINDOW_NONE:
            return index
        if index < settings.trace_skip:
            return settings.trace_skip
        if not settings.trace_every:
            return sys.maxsize
        return index + self._period - (index - settings.trace_skip) % self._period

    def ask(self, trace_request: TraceAsked) -> None:
        """Accepts a request, which ``before_step`` carries out; called by another thread. The window covers the
        requested steps, the same on all ranks, or there is none, and the answer has the reason."""
        if self._failed:
            self.answer = (trace_request.number, self._failed)
        elif self._active is not None and self._profiler is not None:
            self.answer = (trace_request.number, "the window requested before was still being recorded")
        else:
            self.answer = (trace_request.number, TRACE_PENDING)
            self._pending = trace_request

    def _before_requested(self, step: int) -> str:
        """The state of a step in a requested window; WINDOW_NONE for other steps."""
        if self._active is None and self._pending is not None and step >= self._begin(self._pending):
            trace_request, self._pending = self._pending, None
            why_not = self._take_up(trace_request, step)
            if why_not:
                self.answer = (trace_request.number, why_not)
        current = self._active
        if current is None:
            return WINDOW_NONE
        if step < current.first_step:
            return WINDOW_WARMUP
        if step < current.first_step + current.count:
            return WINDOW_ACTIVE
        self._active = None
        return WINDOW_AFTER

    def _begin(self, trace_request: TraceAsked) -> int:
        """The step with which the profiler starts."""
        return trace_request.first_step - self._settings.trace_warmup

    def _take_up(self, trace_request: TraceAsked, step: int) -> str:
        """Starts the window; returns "" or why it cannot start."""
        if self._failed:
            return self._failed
        if step > self._begin(trace_request):
            return f"step {step} had begun when the request was read"
        if self._profiler is not None:
            return "the scheduled window was being recorded"
        self._first_active, self._active = trace_request.first_step, trace_request
        if not self._guard(lambda: self._start(trace_request.count)):
            self._active = None
        return self._failed

    def after_step(self) -> None:
        """Moves the schedule on; the last active step of a window exports it."""
        if self._profiler is None or self._waits_for_works():
            return
        self._guard(self._profiler.step)

    def _waits_for_works(self) -> bool:
        """Whether the last step is over and operations that began in the window are under way. Until these have ended
        the profiler sees no more; see ``works``."""
        last = getattr(self._profiler, "current_action", None) == torch.profiler.ProfilerAction.RECORD_AND_SAVE
        if last and self._works.under_way():
            if not self._waits:
                self._see(False)
            return True
        self._see(True)
        return False

    def _see(self, operations: bool) -> None:
        """Whether profilers of this thread see operations."""
        if self._waits == operations:
            self._waits, self._works.watching = not operations, False
            torch._C._autograd._enable_record_function(operations)

    def close(self) -> None:
        """Exports a window that the end of the training cut short, and waits until the last one is compressed."""
        if self._profiler is not None:
            self._works.wait()
            self._see(True)
            self._guard(self._profiler.stop)
            self._profiler = None
        self.wait_until_packed()
        if self._pending is not None:
            self.answer = (self._pending.number, "the training ended first")

    def discard(self, failing: bool = False) -> None:
        """Ends an open window without a trace: a process whose profiler still records at its end is killed by SIGSEGV.
        Only the thread that started the profiler can stop it. ``failing``: the training failed, so its device may never
        finish its work; nothing waits for it."""
        if self._profiler is None or self._starting or self._started_by != (os.getpid(), threading.get_ident()):
            return
        profiler, self._profiler = self._profiler, None
        profiler.on_trace_ready = None
        self._guard(self._works.wait)
        self._guard(lambda: self._see(True))
        if failing and hasattr(profiler.profiler, "use_device"):
            profiler.profiler.use_device = None  # which stopping synchronizes with
        self._guard(profiler.stop)

    def stand_back(self, why: str) -> None:
        """Leaves the profiler to the training, as only one can run: an open window is discarded."""
        self.discard()
        if self._on and not self._failed:
            self._off(why)
        self._failed = self._failed or f"no window is recorded: {why}"

    def uses(self, profiler: Any) -> bool:
        """Whether this is the profiler of our open window."""
        return self._profiler is not None and getattr(self._profiler, "profiler", None) in (None, profiler)

    def _start(self, active: int) -> None:
        settings = self._settings
        self._started_by = os.getpid(), threading.get_ident()
        self._profiler = torch.profiler.profile(
            activities=profiler_activities(),
            schedule=torch.profiler.schedule(wait=0, warmup=settings.trace_warmup, active=active, repeat=1),
            on_trace_ready=self._export,
            record_shapes=True,
            with_stack=settings.trace_stacks,
            profile_memory=settings.trace_memory,
            experimental_config=_experimental_config(settings),
        )
        self._starting = self._works.watching = True
        try:
            with _quiet(), _without_warning():
                self._profiler.start()
        finally:
            self._starting = False
        if self._fence.off:  # since a hook on the profiler's start failed
            self.discard()

    def _export(self, profiler: Any) -> None:
        for key, value in self._metadata().items():
            profiler.add_metadata_json(key, value)
        self.wait_until_packed()
        target = self._layout.trace(self._first_active)
        plain = target.with_name(f".{target.name}.json.tmp")
        try:
            # Exporting plain and compressing afterwards is ten times faster than letting the profiler write .json.gz.
            profiler.export_chrome_trace(str(plain))
        except BaseException:
            _remove(plain, _part(plain))
            raise
        finally:
            self._profiler = None
        pack = self._fence.hook(self._pack)
        # A daemon: the interpreter would wait for any other without a limit.
        self._packing = threading.Thread(target=pack, args=(plain, target, self._active), name="diag-pack", daemon=True)
        self._packing.start()

    def _pack(self, plain: Path, target: Path, trace_request: TraceAsked | None) -> None:
        """Compresses the trace, in a thread of its own that hardly needs the GIL."""
        packed = target.with_name(f".{target.name}.tmp")
        try:
            _pack(plain, packed, self._note_packed)
            size = packed.stat().st_size
            if self._budget.make_room(size, self._layout.windows()):
                packed.replace(target)
                self._answer(trace_request, TRACE_RECORDED)
            else:
                why = too_large_for(self._budget, size)
                self._answer(trace_request, f"the window is not kept: {why}")
                self._complaints.add(f"{target.name} is not kept", why)
        except Exception as error:
            self._end(trace_request, error)
        finally:
            _remove(plain, packed, _part(plain))

    def _note_packed(self, size: int) -> None:
        self._packed_bytes += size

    def wait_until_packed(self) -> None:
        """Waits for the last trace, as long as its compression gets on: the disk may be dead."""
        packing, self._packing = self._packing, None
        if packing is None:
            return
        limit_s, waits, before = RECORDING.dead_disk_s, 0, -1
        while packing.is_alive() and waits < 2:
            packing.join(limit_s)
            waits = waits + 1 if before == self._packed_bytes else 0
            before = self._packed_bytes
        if packing.is_alive():
            self._complaints.add("a trace is lost", f"its compression has been stuck for {2 * limit_s:g} s")

    def _answer(self, trace_request: TraceAsked | None, answer: str) -> None:
        """Sets the answer, unless another window has been requested since."""
        if trace_request is not None and self.answer[0] == trace_request.number:
            self.answer = (trace_request.number, answer)

    def _guard(self, action: Callable[[], object]) -> bool:
        """Runs the action; returns whether it succeeded."""
        try:
            action()
        except Exception as error:  # the profiler's errors have no common type, and none may end the training
            self._off(error)
            return False
        return True

    def _off(self, why: object) -> None:
        self._profiler = None
        self._end(self._active, why)

    def _end(self, trace_request: TraceAsked | None, why: object) -> None:
        """No more windows are recorded. ``trace_request``: the request that gets no window because of it."""
        self._failed = f"profiler windows are no longer recorded: {why}"
        self._answer(trace_request, self._failed)
        self._complaints.add("profiler windows are no longer recorded", why)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the profiler's own messages out of the training's output. It reads the level when it is first used."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = "99"
    try:
        yield
    finally:
        del os.environ["KINETO_LOG_LEVEL"]


@contextlib.contextmanager
def _without_warning() -> Iterator[None]:
    """Keeps back torch 2.11's warning that a profiler clears its events, which comes with every first start. Not by a
    filter of ``warnings``: a change of those lets Python print the training's own warnings again."""
    module: Any = sys.modules[torch.profiler.profile.__module__]
    warn_once = getattr(module, "_warn_once", None)
    if warn_once is None:
        yield
        return
    module._warn_once = ignore
    try:
        yield
    finally:
        module._warn_once = warn_once


def _pack(plain: Path, packed: Path, written: Callable[[int], object]) -> None:
    """``written``: is told the size of each part."""
    if not _is_whole(plain):  # the profiler does not report that it could not write
        raise disk_full("the profiler could not write its trace")
    with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as sink:
        while part := source.read(1 << 20):
            sink.write(part)
            written(len(part))


def _part(plain: Path) -> Path:
    """The profiler's own file, which stays behind where the disk is full."""
    return plain.with_name(f"{plain.name}.tmp")


def _remove(*files: Path) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink()


def _is_whole(plain: Path) -> bool:
    """Whether the file exists and ends as a JSON object does."""
    if not plain.exists():
        return False
    with plain.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 16))
        return file.read().rstrip().endswith(b"}")


def _experimental_config(settings: CollectorSettings) -> Any:
    """Private options of the profiler that help, where this torch has them."""
    make: Any = torch._C._profiler._ExperimentalConfig
    options = {"trace_only": True, "record_python_gc_info": settings.trace_stacks}
    signature = make.__init__.__doc__ or ""
    return make(**{key: value for key, value in options.items() if value and key in signature})
