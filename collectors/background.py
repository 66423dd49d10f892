"""One daemon thread per rank. About once a second it writes the heartbeat file and a sample of the device. It answers
the launcher's requests, also while the training's own thread hangs, hands on requests for profiler windows, and writes
durations of collectives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from .budget import Complaints, LineFile
from .device_sampler import DeviceSampler
from .fence import Fence
from .files import encode, rewrite_file
from .layout import RankLayout
from .policy import RECORDING
from .reading import read_object, whole
from .records import Heartbeat, HostRecord, TraceAsked
from .scheduling import PauseWatch


class TraceRequests:
    """Hands each new request for a profiler window to ``take``, and each for a memory snapshot to ``snapshot``, if it
    is addressed to this rank."""

    def __init__(
        self,
        path: Path,
        rank: int,
        take: Callable[[TraceAsked], object],
        snapshot: Callable[[TraceAsked], object] = lambda _request: None,
    ) -> None:
        self._path = path
        self._rank = rank
        self._take = take
        self._snapshot = snapshot
        self._written_ns = 0

    def look(self) -> None:
        """Reads the request file if it has changed. One system call where there is nothing new."""
        try:
            written_ns = self._path.stat().st_mtime_ns
            if written_ns == self._written_ns:
                return
            request = read_object(self._path, None)
            number, first_step, count = (whole(request[name]) for name in ("number", "first_step", "count"))
            ranks = request.get("ranks")
            of_ranks = [whole(rank) for rank in ranks] if ranks is not None else None
            trace_request = TraceAsked(number, first_step, count, of_ranks, memory=request.get("memory") is True)
            for_this_rank = trace_request.ranks is None or self._rank in trace_request.ranks
        except (OSError, ValueError, KeyError, TypeError):
            return
        self._written_ns = written_ns
        if for_this_rank and trace_request.memory:
            self._snapshot(trace_request)
        elif for_this_rank and trace_request.count > 0:
            self._take(trace_request)


class Background:
    """Runs until ``stop``. Reads the training's state from plain attributes, without locks."""

    def __init__(
        self,
        layout: RankLayout,
        interval_s: float,
        heartbeat: Callable[[], Heartbeat],
        sampler: DeviceSampler | None,
        device_file: LineFile,
        complaints: Complaints,
        request_path: Path | None = None,
        answer: Callable[[], object] | None = None,
        traces: TraceRequests | None = None,
        write: Callable[[], object] = lambda: None,
        host: Callable[[list[tuple[int, int]]], HostRecord | None] = lambda _pauses: None,
        host_file: LineFile | None = None,
        trains: Callable[[], int] = threading.get_native_id,
        durations: Callable[[bool], object] = lambda _last: None,
        fence: Fence | None = None,
        keep: Callable[[], object] = lambda: None,
    ) -> None:
        """``write``: writes what the training's thread has not written, if it makes no progress. ``host``: returns the
        next sample for ``host_file``, given the pauses since the last one. ``trains``: returns the native id of the
        training's thread. ``durations``: writes durations of collectives; its argument is True in the last call.
        ``keep``: keeps the detail of steps around incidents."""
        self._durations, self._keep = durations, keep
        self._pauses, self._trains = PauseWatch(), trains
        self._host, self._host_file = host, host_file
        self._write = write
        self._traces = traces
        self._request_path = request_path
        self._request_ns = 0  # modification time of the last answered request
        self._answer = answer
        self.answering = False  # while there is a request, heartbeats hold groups and calls as well
        self.answered = 0
        self._layout = layout
        self._interval_s = interval_s
        self._heartbeat = heartbeat
        self._sampler = sampler
        self._device_file = device_file
        self._complaints = complaints
        self._late = False  # a heartbeat could not be written, and that was said
        self._stop = threading.Event()
        self._fence = fence or Fence()
        run = self._fence.hook(self._run, always=True)
        self._thread = threading.Thread(target=run, name="diag-background", daemon=True)

    def start(self) -> None:
        if self._sampler is not None and self._sampler.unavailable is not None:
            self._device_file.write(self._sampler.sample())  # one line with the reason
            self._sampler = None
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(RECORDING.patience_s)
        if not self._thread.is_alive():
            self._durations(True)
        self.beat()
        if self._sampler is not None:
            # Two readings: a value in only one of them proves nothing, and the last one before a failure matters most.
            # None where the thread hangs in the driver: this one would hang, too.
            for _ in range(0 if self._thread.is_alive() else 2):
                self._device_file.write(self._sampler.sample(everything=True))
            if not self._thread.is_alive():
                self._sampler.close()
        self._sample_host()
        self._pauses.close()

    def _sample_host(self) -> None:
        if self._host_file is not None and (sample := self._host(self._pauses.take())) is not None:
            self._host_file.write(sample)

    def beat(self) -> None:
        try:
            rewrite_file(self._layout.heartbeat, encode(self._heartbeat()))
        except OSError as error:
            if not self._late:
                self._complaints.add("the heartbeat could not be written", error)
            self._late = True

    def _run(self) -> None:
        while True:
            self._fence.call(self._work)
            self.beat()  # also where nothing more is recorded: it says so
            self._fence.call(self._sample)
            if self._waits():
                return

    def _work(self) -> None:
        self._look_for_requests()
        if self._traces is not None:
            self._traces.look()
        self._write()
        self._keep()

    def _sample(self) -> None:
        self._durations(False)
        if self._sampler is not None:
            self._device_file.write(self._sampler.sample())
        self._sample_host()

    def _waits(self) -> bool:
        """Sleeps for the interval, and looks for pauses of the process. Returns whether the thread is to stop."""
        until = time.monotonic() + self._interval_s
        self._pauses.begin(self._trains())
        while (remaining_s := until - time.monotonic()) > 0:
            if self._stop.wait(min(remaining_s, PauseWatch.TICK_S)):
                return True
            self._pauses.look()
        return self._stop.is_set()

    def _look_for_requests(self) -> None:
        """Answers a new request; the heartbeat after it has its number. One system call where there is none."""
        if self._request_path is None or self._answer is None:
            return
        try:
            written_ns = self._request_path.stat().st_mtime_ns
            if written_ns == self._request_ns:
                return
            number = whole(read_object(self._request_path, None)["number"])
        except FileNotFoundError:
            self.answering = False
            return
        except (OSError, ValueError, KeyError, TypeError):
            return
        self._request_ns = written_ns
        self.answering = True
        self.beat()  # at once: the answer takes seconds on a busy host
        self._answer()
        self.answered = number
