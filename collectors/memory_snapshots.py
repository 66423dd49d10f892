"""Snapshots of the accelerator's caching allocator: on request, near out-of-memory, and when an allocation fails.

Each is PyTorch's own (``torch.cuda.memory._snapshot``), with a key "diag" for rank, step and reason;
pytorch.org/memory_viz shows it like any other. With ``CollectorSettings.memory_snapshots`` PyTorch records the
allocator's last events with Python stacks: about 2 us an allocation and some kilobytes of host memory an event, by
PyTorch's documentation. Without it a snapshot has only the state. Nothing here raises into the training.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .accelerator import Accelerator
from .budget import Budget, Complaints, too_large_for
from .fence import Fence
from .layout import ASKED, NEAR_OOM, OOM, RankLayout
from .policy import RECORDING
from .records import TRACE_PENDING, TRACE_RECORDED, MemoryRecord, TraceAsked
from .settings import CollectorSettings

_NO_ALLOCATOR = "this rank computes on the CPU, whose allocator has no snapshots"
_BUSY = "another snapshot was being written"
_PROTOCOL = 4  # the pickle protocol that torch writes, and its viewer reads


class MemorySnapshots:
    """Writes the snapshots of one rank: one for the first failed allocation, one for the first step near the device's
    capacity, and one for each request. ``step``: returns the step under way."""

    def __init__(
        self,
        settings: CollectorSettings,
        layout: RankLayout,
        rank: int,
        accelerator: Accelerator | None,
        budget: Budget,
        complaints: Complaints,
        step: Callable[[], int],
        fence: Fence | None = None,
    ) -> None:
        self._history = settings.memory_history if settings.memory_snapshots else 0
        self._layout, self._rank, self._step = layout, rank, step
        self._accelerator = accelerator
        self._budget, self._complaints = budget, complaints
        self._observer = (fence or Fence()).hook(self._allocation_failed)
        self._writing = threading.Lock()
        self._recording = False
        self._reasons: set[str] = set()  # reasons for which a snapshot was written or tried
        self._near_oom_step: int | None = None  # a snapshot of this step is to be written
        self.answer = (0, "")  # to the last request: its number, and Heartbeat.trace_answer

    def start(self) -> None:
        """Begins to record the allocator's history, if the settings ask for it; called by the training's thread."""
        if not self._history:
            return
        if self._accelerator is None:
            self._complaints.add("no memory snapshots are written", _NO_ALLOCATOR)
            return
        try:
            self._accelerator.record_memory_history(self._history)
            self._recording = True
            self._accelerator.observe_out_of_memory(self._observer)
        except Exception as error:  # private functions of torch
            self._complaints.add("the allocator's history is not recorded", repr(error))

    def stop(self, error: type[BaseException] | None) -> None:
        """Ends the recording; ``error``: the type of the exception that ended the training."""
        self.serve()
        if self._recording and error is not None and issubclass(error, torch.OutOfMemoryError):
            self._once(OOM)  # where no observer was called
        if self._recording and self._accelerator is not None:
            with contextlib.suppress(Exception):
                self._accelerator.record_memory_history(None)
        self._recording = False

    def look(self, memory: MemoryRecord, step: int) -> None:
        """Checks whether a step came near the device's capacity; the background thread then writes the snapshot."""
        if not self._recording or not memory.capacity or NEAR_OOM in self._reasons:
            return
        if (memory.allocated or 0) >= RECORDING.near_full_share * memory.capacity:
            self._near_oom_step = step

    def serve(self) -> None:
        """Writes the snapshot that ``look`` asked for; called by the background thread."""
        if self._near_oom_step is not None and self._recording:
            step, self._near_oom_step = self._near_oom_step, None
            self._once(NEAR_OOM, step)

    def ask(self, trace_request: TraceAsked) -> None:
        """Writes the requested snapshot at once; called by the background thread."""
        self.answer = (trace_request.number, TRACE_PENDING)
        try:
            why_not = self.write(ASKED, self._step())
        except Exception as error:
            why_not = f"the snapshot could not be written: {error!r}"
        self.answer = (trace_request.number, why_not or TRACE_RECORDED)

    def _allocation_failed(self, _device: int, _requested: int, _allocated: int, _free: int) -> None:
        """PyTorch's observer, on the thread whose allocation failed, before the exception is raised."""
        if self._recording:
            self._once(OOM)

    def _once(self, reason: str, step: int | None = None) -> None:
        if reason in self._reasons:
            return
        self._reasons.add(reason)
        try:
            # The last one before the training ends is worth waiting for; the others can be asked for again.
            patience_s = RECORDING.longest_snapshot_wait_s if reason == OOM else 0.0
            why_not = self.write(reason, self._step() if step is None else step, patience_s)
        except Exception as error:
            why_not = repr(error)
        if why_not:
            self._complaints.add(f"the memory snapshot ({reason}) could not be written", why_not)

    def write(self, reason: str, step: int, patience_s: float = 0.0) -> str:
        """Writes a snapshot. ``patience_s``: seconds to wait where another one is being written. Returns "" or why
        there is none. Passes torch's exceptions on."""
        if self._accelerator is None:
            return _NO_ALLOCATOR
        if not self._writing.acquire(timeout=patience_s):
            return _BUSY
        try:
            snapshot = self._accelerator.memory_snapshot()
            snapshot["diag"] = {"rank": self._rank, "step": max(step, 0), "reason": reason}
            return self._save(snapshot, self._layout.memory_snapshot(reason, max(step, 0)))
        finally:
            self._writing.release()

    def _save(self, snapshot: dict[str, Any], path: Path) -> str:
        part = path.with_name(f".{path.name}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                pickle.dump(snapshot, file, protocol=_PROTOCOL)
            size = part.stat().st_size
            if not self._budget.make_room(size, self._layout.windows()):
                return too_large_for(self._budget, size)
            part.replace(path)
        except OSError as error:
            return str(error)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
        return ""
