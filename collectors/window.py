"""torch.profiler windows on a schedule: a few steps recorded, exported as gzip, named after their first step.

Starting, stopping and exporting happen between steps, so that no step contains them; the step after a window is marked,
because ranks leave the export at different times.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .files import Budget, Complaints
from .layout import RankLayout
from .records import WINDOW_ACTIVE, WINDOW_AFTER, WINDOW_NONE, WINDOW_WARMUP
from .settings import CollectorSettings


class TraceWindows:
    """Drives one ``torch.profiler.profile`` per window. Any error of the profiler ends tracing, never the training."""

    def __init__(
        self,
        settings: CollectorSettings,
        layout: RankLayout,
        budget: Budget,
        complaints: Complaints,
        metadata: Callable[[], dict[str, str]],
    ) -> None:
        self._settings = settings
        self._layout = layout
        self._budget = budget
        self._complaints = complaints
        self._metadata = metadata
        self._on = settings.trace and settings.trace_active > 0
        self._profiler: Any = None
        self._first_active = -1

    def state_of(self, step: int) -> str:
        """What the schedule says of a step, counted from the first step of this process."""
        settings = self._settings
        since = step - settings.trace_skip
        if not self._on or since < 0:
            return WINDOW_NONE
        length = settings.trace_warmup + settings.trace_active
        if settings.trace_every:
            since %= max(settings.trace_every, length + 1)
        if since < settings.trace_warmup:
            return WINDOW_WARMUP
        if since < length:
            return WINDOW_ACTIVE
        return WINDOW_AFTER if since == length else WINDOW_NONE

    def before_step(self, index: int, step: int) -> str:
        """Starts a window where the schedule wants one. ``index`` counts this process's steps, ``step`` the run's."""
        state = self.state_of(index)
        if state in (WINDOW_WARMUP, WINDOW_ACTIVE) and self._profiler is None:
            self._first_active = step + (self._settings.trace_warmup if state == WINDOW_WARMUP else 0)
            self._guard(self._start)
        return state if self._profiler is not None or state == WINDOW_AFTER else WINDOW_NONE

    def after_step(self) -> None:
        """Moves the schedule on; the last active step of a window exports it."""
        if self._profiler is not None:
            self._guard(self._profiler.step)

    def close(self) -> None:
        """Exports a window that the end of the training cut short."""
        if self._profiler is not None:
            self._guard(self._profiler.stop)
            self._profiler = None

    def stand_back(self, why: str) -> None:
        """Leaves the profiler to the training, of which only one can run: an open window is thrown away."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.on_trace_ready = None
            self._guard(profiler.stop)
        if self._on:
            self._off(why)

    def uses(self, profiler: Any) -> bool:
        """Whether it is the one of our open window."""
        return self._profiler is not None and getattr(self._profiler, "profiler", None) in (None, profiler)

    def _start(self) -> None:
        settings = self._settings
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(
            activities=activities,
            schedule=torch.profiler.schedule(
                wait=0, warmup=settings.trace_warmup, active=settings.trace_active, repeat=1
            ),
            on_trace_ready=self._export,
            record_shapes=True,
            with_stack=settings.trace_stacks,
            profile_memory=settings.trace_memory,
            experimental_config=_experimental_config(settings),
        )
        with _quiet():
            self._profiler.start()

    def _export(self, profiler: Any) -> None:
        for key, value in self._metadata().items():
            profiler.add_metadata_json(key, value)
        target = self._layout.trace(self._first_active)
        plain = target.with_name(f".{target.name}.json.tmp")
        packed = target.with_name(f".{target.name}.tmp")
        try:
            # Exporting plain and packing afterwards is ten times faster than letting the profiler write .json.gz.
            profiler.export_chrome_trace(str(plain))
            _pack(plain, packed)
            if self._budget.take(packed.stat().st_size):
                packed.replace(target)
            else:
                self._off("byte budget used up")
        finally:
            for leftover in (plain, packed):
                with contextlib.suppress(OSError):
                    leftover.unlink()
            self._profiler = None

    def _guard(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # the profiler's errors have no common type, and none may end the training
            self._off(error)

    def _off(self, why: object) -> None:
        self._on = False
        self._profiler = None
        self._complaints.add("profiler windows are no longer recorded", why)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the profiler's own messages out of the training's output. It asks for the level when it is first used."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = "99"
    try:
        yield
    finally:
        del os.environ["KINETO_LOG_LEVEL"]


def _pack(plain: Path, packed: Path) -> None:
    with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as sink:
        shutil.copyfileobj(source, sink, 1 << 20)


def _experimental_config(settings: CollectorSettings) -> Any:
    """Private options of the profiler that help, where this torch has them."""
    make: Any = torch._C._profiler._ExperimentalConfig
    wanted = {"trace_only": True, "record_python_gc_info": settings.trace_stacks}
    known = make.__init__.__doc__ or ""
    return make(**{key: value for key, value in wanted.items() if value and key in known})
