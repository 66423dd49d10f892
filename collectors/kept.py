"""The full detail of the steps around an incident, kept when the streams that hold it lose it.

A rank sees some incidents by itself: a step that takes far longer than usual, and that it was started again. What only
the job's watcher knows, that the verdict changed or the training is stuck, it asks of every rank in a file, as a
profiler window is asked for. The lines are copied when all of them are written, by the thread of the heartbeats, so
the training neither waits for it nor for the file system.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from .budget import LineFile
from .layout import RankLayout, parts_of
from .policy import RECORDED_FILES, RECORDING
from .reading import open_regular, read_object, whole
from .records import CHECKPOINT, EVALUATION, RESTART, STALLED, WINDOW_NONE, StepRecord
from .step_places import UnorderedError, complete_from, lines_of, step_of

_NUMBERS = ("number", "first", "last", "unix_ns")  # of ``records.KeepAsked``


class Span(NamedTuple):
    """Steps to keep, both included."""

    first: int
    last: int
    why: str


class KeptSteps:
    """Of one rank. ``asked``: the file of requests; ``most_bytes``: for the steps of one incident; ``restarted``: the
    training goes on after a restart. ``passed`` and ``poll`` may be called by different threads."""

    def __init__(
        self, files: RankLayout, kept: LineFile, most_bytes: int, asked: Path, on_device: bool, restarted: bool
    ) -> None:
        self._files = files
        self._streams = {"steps": files.steps, "collectives": files.collectives, "device_steps": files.device_steps}
        self._file, self._most_bytes, self._asked = kept, most_bytes, asked
        # After so many later steps all lines of a step are written.
        self._later = RECORDING.latest_calls + (RECORDING.device_steps_behind if on_device else 0)
        self._restarted = restarted
        self._marks: deque[Span] = deque()  # that are new
        self._spans: list[Span] = []  # that are not written yet
        self._done: deque[Span] = deque(maxlen=RECORDING.usual_steps)
        self._seen: dict[str, int] = {}  # by the kind of incident, in which thousand of steps the last one was
        self._reached = self._ended_ns = 0
        self._took_ns: deque[int] = deque(maxlen=RECORDING.usual_steps)
        self._usual_ns = 0.0
        self._next_s = 0.0  # when the next look is due, on the monotonic clock
        self._began_unix_ns = time.time_ns()
        self._request = (0, 0)  # modification time, and number of the last one that was taken

    def passed(self, record: StepRecord) -> None:
        """A step of which the lines are written, or all that will be for now."""
        around = RECORDING.kept_around
        if self._restarted:
            self._restarted = False
            self._marks.append(Span(record.step, record.step + 2 * around, RESTART))
        took_ns = record.end_ns - (self._ended_ns or record.begin_ns) - _saved_ns(record)
        self._reached, self._ended_ns = record.step, record.end_ns
        if record.window != WINDOW_NONE:
            return
        if self._usual_ns and took_ns > max(RECORDING.slow_s * 1e9, RECORDING.slow_steps * self._usual_ns):
            self._marks.append(Span(max(0, record.step - around), record.step + around, STALLED))
            return
        self._took_ns.append(took_ns)
        if len(self._took_ns) >= RECORDING.least_usual_steps and not record.step % RECORDING.least_usual_steps:
            self._usual_ns = median(self._took_ns)

    def poll(self) -> None:
        """Looks if a look is due."""
        if (now_s := time.monotonic()) >= self._next_s:
            self._next_s = now_s + RECORDING.kept_looks_s
            self.look()

    def look(self) -> None:
        """Keeps what is complete."""
        self._marks.extend(self.requested())
        while self._marks:
            self._take(self._marks.popleft())
        for span in [span for span in self._spans if self._reached >= span.last + self._later]:
            self._spans.remove(span)
            self._done.append(span)
            if line := self._line(span):
                self._file.write(line)

    def requested(self) -> list[Span]:
        """What is asked for and was not before. One system call where there is nothing new."""
        written_ns, last_number = self._request
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            now_ns = self._asked.stat().st_mtime_ns
            if now_ns == written_ns:
                return []
            self._request = now_ns, last_number
            spans = []
            for entry in list(read_object(self._asked, None)["spans"]):
                number, first, last, asked_ns = (whole(entry[name]) for name in _NUMBERS)
                if number <= last_number or not 0 <= first <= last:
                    continue
                self._request = now_ns, number
                if asked_ns >= self._began_unix_ns:
                    spans.append(Span(first, last, str(entry["why"])))
            return spans
        return []

    def _take(self, span: Span) -> None:
        """Adds a span, without what others have; of one kind of incident, one in so many steps."""
        of_thousand = span.last // RECORDING.kept_apart
        if self._seen.get(span.why) == of_thousand:
            return
        self._seen[span.why] = of_thousand
        first, last = span.first, span.last
        for other in (*self._done, *self._spans):
            first = other.last + 1 if other.first <= first <= other.last else first
            last = other.first - 1 if other.first <= last <= other.last else last
        if first <= last:
            self._spans.append(span._replace(first=first, last=last))

    def _line(self, span: Span) -> bytes:
        """A line of kept.jsonl; empty where nothing is there any more. If all steps take too much, the steps nearest
        to the middle."""
        lines = {name: list(_lines(stream, span)) for name, stream in self._streams.items()}
        whole_from = complete_from(self._files) or 0  # after reading: the oldest lines are removed meanwhile
        sizes = dict.fromkeys((step for step, _ in lines["steps"] if step >= whole_from), 0)
        for of_stream in lines.values():
            for step, line in of_stream:
                if step in sizes:
                    sizes[step] += len(line)
        steps = sorted(sizes)
        total = sum(sizes.values())
        middle = (span.first + span.last) / 2
        while total > self._most_bytes and steps:
            total -= sizes[steps.pop(0 if middle - steps[0] > steps[-1] - middle else -1)]
        if not steps:
            return b""
        chosen = range(steps[0], steps[-1] + 1)
        parts = [b'{"first":%d,"last":%d,"why":"%s"' % (steps[0], steps[-1], _plain(span.why))]
        for name, of_stream in lines.items():
            parts.append(b',"%s":[%s]' % (name.encode(), b",".join(line for step, line in of_stream if step in chosen)))
        return b"".join(parts) + b"}\n"


def _saved_ns(record: StepRecord) -> int:
    """What a step takes longer because of evaluations and checkpoints."""
    return sum(row.end_ns - row.start_ns for row in record.phases if row.phase in (EVALUATION, CHECKPOINT))


def _plain(why: str) -> bytes:
    return "".join(char for char in why if char.isalpha())[: RECORDED_FILES.head_bytes].encode("ascii", "ignore")


def _lines(stream: Path, span: Span) -> Iterator[tuple[int, bytes]]:
    """The step and the line, of the lines of a stream that belong to these steps and are there."""
    late = RECORDING.latest_calls
    for part in parts_of(stream):
        with contextlib.suppress(OSError, UnorderedError), open_regular(part) as file:
            begin, end = lines_of(file, span.first - late, span.last + late + 1)  # the calls of a step may come later
            if end - begin > RECORDED_FILES.line_bytes:
                continue
            file.seek(begin)
            for line in file.read(end - begin).split(b"\n"):
                step = step_of(line)
                if step is not None and span.first <= step <= span.last:
                    yield step, line
