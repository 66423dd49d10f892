"""Lines and summary of the steps that are over, written several steps at a time.

In a training the code that writes has its instructions and data out of the caches, so that writing ten steps costs
hardly twice as much as one. The steps of two seconds are written together, or with a heartbeat where no step ends. The
first steps are written at once, as many trainings die early.

All ranks write after the same steps, those whose number is a multiple of a power of two: a rank that writes is late by
a millisecond or two, and the others wait for it. If each rank wrote at its own steps, every step of a large job would
be late.
"""

from __future__ import annotations

import math
import sys
import threading
from array import array
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from .budget import LineFile
from .calls import RecordedCall
from .device_times import DeviceBegins, WaitsSeen, blocked_by, edges, in_order, not_launched, unlaunched_ns
from .kept import KeptSteps
from .policy import RECORDING
from .records import (
    BEGIN,
    CHECKPOINT,
    DEVICE,
    EVALUATION,
    LAG,
    P2P_PREFIX,
    PHASES,
    REST,
    STEP,
    STILL,
    TOKENS,
    UNLAUNCHED,
    BlockSums,
    CollectiveLine,
    CollectiveRow,
    DeviceStepRecord,
    MemoryRecord,
    PhaseRow,
    RankRecord,
    StepRecord,
    SumLine,
    SummaryLine,
)

# -- summary -----------------------------------------------------------------------------------------------------------
#
# A rank's steps in a few kilobytes a line: only what the verdict over all ranks needs. A job of ten thousand ranks
# writes gigabytes of step records, too much to read while it trains. Each rank therefore sums up its own: per step and
# phase, how long it worked and how long it waited for others; see ``records.SummaryLine``. ``diag analyze --summary``
# reads only these lines.

WORD = "I" if array("I").itemsize == 4 else "L"
_START = itemgetter(PhaseRow._fields.index("start_ns"))
_CALLED = itemgetter(CollectiveRow._fields.index("start_ns"))
_MOST = (1 << 32) - 1  # microseconds: 71 minutes


@dataclass
class _Line:
    """A line that is being collected."""

    first: int = 0
    begin_ns: int = 0
    count: int = 0
    waits: int = 0
    columns: dict[str, array[int]] = field(default_factory=dict)
    marked: dict[str, list[int]] = field(default_factory=dict)
    memory: MemoryRecord | None = None
    end_ns: int = 0  # of the last step
    longest_ns: int = 0  # step
    longest: list[int] = field(default_factory=list)  # as of SumLine
    loss: float = 0.0  # the sum of those that are known
    losses: int = 0
    seen: WaitsSeen | None = None  # of the steps with a record of the device

    def put(self, values: Mapping[str, int], unit: int, most_steps: int) -> None:
        """Stores the values of the next step, in whole ``unit``s."""
        columns, count = self.columns, self.count
        for name, value in values.items():
            rounded = (value + unit // 2) // unit
            if rounded <= 0:
                continue
            column = columns.get(name)
            if column is None:
                column = columns[name] = array(WORD, bytes(4 * most_steps))
            column[count] = rounded if rounded < _MOST else _MOST


class StepSummary:
    """Collects the steps and waits of one rank, and writes a line for every ``steps`` of them. 0 writes none, but sums
    are written in any case. Since they were called before: ``utilization``, samples of the device, per cent;
    ``durations``, sums of durations of collectives."""

    def __init__(
        self,
        file: LineFile,
        identity: RankRecord,
        steps: int,
        sums: StepSums | None = None,
        utilization: Callable[[], list[int]] = list,
        durations: Callable[[], list[BlockSums]] = list,
    ) -> None:
        self._file = file
        self._identity = identity
        self._sums = sums or StepSums({})
        self._written = steps > 0
        self._length = steps or self._sums.least or RECORDING.steps_of_sums
        self._line = _Line()
        self._begun_ns = 0  # when the step before began,
        self._ended_ns = 0  # and ended
        self._condensed = 0  # number of steps so far
        self._records: list[StepRecord] = []  # steps whose waits may not be known yet
        self._waits: list[tuple[int, int, bool]] = []  # start, end, whether for a collective
        self._rows: list[CollectiveRow] = []  # calls on the device of these steps
        self._utilization, self._durations = utilization, durations
        self._on_device = identity.device != "cpu"
        self._passed: deque[DeviceStepRecord] = deque()  # that the device has finished, in order
        self._begins = DeviceBegins()

    def passed(self, record: DeviceStepRecord) -> None:
        """Adds a step that the device has finished, while another thread may write."""
        self._passed.append(record)

    def add(self, record: StepRecord, rows: Iterable[CollectiveRow]) -> None:
        """Adds a step that has ended, and the calls that became known with it."""
        self._wait(rows)
        self._records.append(record)
        while len(self._records) > RECORDING.latest_calls and self._may_condense(self._records[0].step):
            self._condense(self._records.pop(0))

    def close(self, rows: Iterable[CollectiveRow] = ()) -> None:
        """Writes the last steps of a training that ends or fails."""
        self._wait(rows)
        for record in self._records:
            self._condense(record)
        self._records = []
        self._write()
        self._sums.close()

    def _may_condense(self, step: int) -> bool:
        """Whether the record of this step's device is here, or will not come any more."""
        behind = len(self._records) > RECORDING.latest_calls + RECORDING.device_steps_behind
        return not self._on_device or behind or any(record.step >= step for record in self._passed)

    def _wait(self, rows: Iterable[CollectiveRow]) -> None:
        for row in rows:
            if self._on_device:
                self._rows.append(row)
            if row.wait_start_ns is not None and row.wait_end_ns is not None and row.wait_end_ns > row.wait_start_ns:
                self._waits.append((row.wait_start_ns, row.wait_end_ns, not row.group.startswith(P2P_PREFIX)))

    def _condense(self, record: StepRecord) -> None:
        if self._line.count and record.step != self._line.first + self._line.count:  # numbers in a line have no gaps
            self._write()
        line = self._line
        if not line.count:
            line.first, line.begin_ns, self._begun_ns = record.step, record.begin_ns, record.begin_ns
        begin, end = record.begin_ns, record.end_ns
        waits = sorted([wait for wait in self._waits if wait[0] < end and wait[1] > begin])
        self._waits = [wait for wait in self._waits if wait[1] > end]
        line.waits += len(waits)
        values = {BEGIN: record.begin_ns - self._begun_ns, STEP: record.end_ns - record.begin_ns}
        times = phase_times(record, waits)
        line.put(values | times | self._of_device(record, line), 1000, self._length)
        if type(record.tokens) is int:  # a training may set any type: reading a tensor would wait for its device
            line.put({TOKENS: record.tokens}, 1, self._length)
        if record.window:
            line.marked.setdefault(record.window, []).append(record.step)
        evaluated_ns = sum(row.end_ns - row.start_ns for row in record.phases if row.phase == EVALUATION)
        evaluates = evaluated_ns > 0
        if evaluates:
            line.marked.setdefault(EVALUATION, []).append(record.step)
            line.put({EVALUATION: evaluated_ns}, 1000, self._length)
        ended, self._ended_ns = self._ended_ns or begin, end
        self._condensed += 1
        usual = not evaluates and not record.window and self._condensed > RECORDING.starting_steps
        if usual and end - ended > own_time(line.longest):
            saved = times.get(CHECKPOINT, 0) + times.get(CHECKPOINT + STILL, 0)
            waited = sum(ns for name, ns in times.items() if name.endswith(STILL)) - times.get(CHECKPOINT + STILL, 0)
            longest = [record.step, min(ended, begin), begin, end, saved, waited]
            if own_time(longest) > own_time(line.longest):
                line.longest = longest
        if record.memory is not None:
            line.memory = highest(line.memory, record.memory)
        if isinstance(record.loss, float) and math.isfinite(record.loss):
            line.loss, line.losses = line.loss + record.loss, line.losses + 1
        line.end_ns, line.longest_ns = end, max(line.longest_ns, end - begin)
        line.count += 1
        self._begun_ns = record.begin_ns
        if line.count == self._length:
            self._write()

    def _of_device(self, host: StepRecord, line: _Line) -> dict[str, int]:
        """The columns of the step on its device's clock; empty without a plausible record."""
        rows = sorted((row for row in self._rows if row.start_ns < host.end_ns), key=_CALLED)
        self._rows = [row for row in self._rows if row.start_ns >= host.end_ns]
        while self._passed and self._passed[0].step < host.step:
            self._passed.popleft()
        if not self._passed or self._passed[0].step != host.step:
            return {}
        record = self._passed.popleft()
        if not in_order(record):
            return {}
        at, since = edges(host, record)
        begin = self._begins.of(at, since, record.dur_ns)
        line.seen = line.seen or WaitsSeen()
        line.seen.add(host, record, [row for row in rows if row.start_ns >= host.begin_ns])
        waits = sorted(
            (*span, not call.group.startswith(P2P_PREFIX))
            for call in record.collectives
            if (span := blocked_by(call)) is not None
        )
        late = unlaunched_ns(record, not_launched(at, since, begin), [wait[:2] for wait in waits])
        times = phase_times(StepRecord(host.step, 0, record.dur_ns, record.phases), waits)
        told = {DEVICE + name: ns for name, ns in times.items()}
        return told | {DEVICE + STEP: record.dur_ns, LAG: begin - host.begin_ns, UNLAUNCHED: late}

    def _write(self) -> None:
        line, self._line = self._line, _Line()
        if line.count:
            self._sums.add(_sum_of(line))
        if line.count and self._written:
            self._file.write(
                SummaryLine(
                    identity=self._identity,
                    first=line.first,
                    count=line.count,
                    begin_ns=line.begin_ns,
                    columns=list(line.columns),
                    values=packed(column[: line.count] for column in line.columns.values()),
                    waits=line.waits,
                    marked=line.marked,
                    memory=line.memory,
                    waits_seen=round(line.seen.part, 3) if line.seen is not None else None,
                    utilization=self._utilization() if self._on_device else [],
                    durations=self._durations() if self._on_device else [],
                )
            )


def _sum_of(line: _Line) -> SumLine:
    return SumLine(
        first=line.first,
        last=line.first + line.count - 1,
        count=line.count,
        begin_ns=line.begin_ns,
        end_ns=line.end_ns,
        columns={name: sum(column) for name, column in line.columns.items() if name != BEGIN},
        longest_us=line.longest_ns // 1000,
        longest=line.longest,
        loss=line.loss,
        losses=line.losses,
        memory=most_used(line.memory),
    )


class StepSums:
    """The sums of one rank's steps: a line for each 50 of them in one stream, for each 1,000 in the next, and so on."""

    def __init__(self, streams: Mapping[int, LineFile]) -> None:
        """``streams``: by the least number of steps in a line of it."""
        self._streams = streams
        self._sums: dict[int, SumLine] = {}  # those that are being collected
        self.least = min(streams, default=0)

    def add(self, line: SumLine) -> None:
        for steps, file in self._streams.items():
            before = self._sums.pop(steps, None)
            together = line if before is None else added(before, line)
            if together.count < steps:
                self._sums[steps] = together
            else:
                file.write(together)

    def close(self) -> None:
        """Writes what has been collected."""
        for steps, line in self._sums.items():
            self._streams[steps].write(line)
        self._sums = {}


def added(left: SumLine, right: SumLine) -> SumLine:
    """The sum of both; ``right`` has the later steps."""
    names = left.columns | right.columns
    return SumLine(
        first=left.first,
        last=right.last,
        count=left.count + right.count,
        begin_ns=left.begin_ns,
        end_ns=right.end_ns,
        columns={name: left.columns.get(name, 0) + right.columns.get(name, 0) for name in names},
        longest_us=max(left.longest_us, right.longest_us),
        longest=max(left.longest, right.longest, key=own_time),
        loss=left.loss + right.loss,
        losses=left.losses + right.losses,
        memory=max(left.memory, right.memory),
    )


def own_time(longest: Sequence[int]) -> int:
    """Of ``SumLine.longest``: the nanoseconds from the end of the step before to its end, without its checkpoint."""
    return longest[3] - longest[1] - longest[4] if longest else 0


def most_used(memory: MemoryRecord | None) -> int:
    """The peak in bytes: of the device's memory that is reserved, else of the process; 0 if it is not known."""
    return (memory.reserved or memory.allocated or memory.rss) if memory is not None else 0


def phase_times(record: StepRecord, waits: Sequence[tuple[int, int, bool]]) -> dict[str, int]:
    """Nanoseconds that the rank worked in each phase of a step, and, under the phase's name with STILL, that it waited
    for collectives. ``waits``: (start, end, whether for a collective), by start. Waiting for a peer's message is
    neither. Time outside of phases is REST."""
    times: dict[str, int] = {}
    position, last = record.begin_ns, record.end_ns
    for phase, start, end in sorted(record.phases, key=_START):
        start, end = max(position, start), min(end, last)
        if end <= start:  # inside another phase
            continue
        if start > position:
            _add(times, REST, position, start, waits)
        _add(times, phase if phase in PHASES else REST, start, end, waits)
        position = end
    if last > position:
        _add(times, REST, position, last, waits)
    return times


def _add(times: dict[str, int], phase: str, start: int, end: int, waits: Sequence[tuple[int, int, bool]]) -> None:
    """Adds the time from ``start`` to ``end``. Where waits overlap, no nanosecond is counted twice."""
    waited = still = 0
    position = start
    for begin, until, collective in waits:
        if until <= position:
            continue
        if begin >= end:
            break
        if begin < position:
            begin = position
        if until > end:
            until = end
        waited += until - begin
        if collective:
            still += until - begin
        position = until
    times[phase] = times.get(phase, 0) + end - start - waited
    if still:
        times[phase + STILL] = times.get(phase + STILL, 0) + still


def highest(before: MemoryRecord | None, record: MemoryRecord) -> MemoryRecord:
    """The higher peaks of both records; counters only grow, so their highest value is the last."""
    if before is None:
        return record
    return MemoryRecord(
        rss=max(before.rss, record.rss),
        allocated=_most(before.allocated, record.allocated),
        reserved=_most(before.reserved, record.reserved),
        alloc_retries=_most(before.alloc_retries, record.alloc_retries),
        ooms=_most(before.ooms, record.ooms),
        capacity=_most(before.capacity, record.capacity),
    )


def _most(before: int | None, value: int | None) -> int | None:
    return max(before or 0, value or 0) if before is not None or value is not None else None


def packed(columns: Iterable[array[int]]) -> str:
    """Little-endian unsigned 32-bit integers, column by column, in base64."""
    values = array(WORD)
    for column in columns:
        values.extend(column)
    if sys.byteorder == "big":
        values.byteswap()
    return b64encode(values.tobytes()).decode("ascii")


class TimerRecords(NamedTuple):
    """The timer's records when a step is over; see ``CollectiveTimer``."""

    calls: list[tuple[int, list[RecordedCall]]]
    groups: dict[str, list[int]]
    dropped: int


class StepLines:
    """The lines of one rank's steps and collectives, and their summary. The training's thread adds; it and the
    heartbeat's write."""

    def __init__(
        self, steps: LineFile, collectives: LineFile, summary: StepSummary, kept: KeptSteps | None = None
    ) -> None:
        self._steps, self._collectives, self._summary, self._kept = steps, collectives, summary, kept
        self._waiting: deque[tuple[StepRecord, TimerRecords]] = deque()
        self._due = 0  # write once this many steps have ended,
        self._due_ns = 0  # or a step ends at this time or later
        self._count = 0  # number of steps so far
        self._groups: dict[str, list[int]] = {}  # for the next line of collectives
        self._named: dict[str, list[int]] = {}  # all groups so far
        collectives.at_begin = self._name_groups
        self._dropped = 0  # for the next line of collectives
        self._writing = threading.Lock()

    def add(self, record: StepRecord, records: TimerRecords) -> None:
        """Adds a step that has ended, and the calls that became known with it."""
        self._waiting.append((record, records))
        self._count += 1
        if self.due(self._count, record.end_ns):
            self.write()

    def due(self, steps: int, end_ns: int) -> bool:
        """Whether this many steps, the last of which ends at ``end_ns``, are to be written now."""
        return steps >= self._due or end_ns >= self._due_ns

    def passed(self, record: DeviceStepRecord) -> None:
        """Adds a step that the device has finished, for the summary."""
        self._summary.passed(record)

    def write(self) -> None:
        """Writes all waiting steps, unless another thread is writing."""
        if self._writing.acquire(blocking=False):
            try:
                self._write()
            finally:
                self._writing.release()

    def close(self, records: TimerRecords) -> None:
        """Writes the rest when the training has ended or fails. ``records``: the calls since its last step."""
        if self._writing.acquire(timeout=RECORDING.patience_s):  # in a forked child the lock may be held by no thread
            try:
                self._write()
                lines: list[CollectiveLine] = []
                rows = self._rows(records, lines)
                self._collectives.write(*lines)
                self._summary.close(rows)
            finally:
                self._writing.release()

    def _write(self) -> None:
        waiting = []
        while self._waiting:  # while the training adds
            waiting.append(self._waiting.popleft())
        lines: list[CollectiveLine] = []
        rows, ends = [], []
        for _, calls in waiting:
            rows.append(self._rows(calls, lines))
            ends.append(len(lines))
        if waiting and self._count >= RECORDING.steps_written_at_once:
            begin_ns, end_ns = waiting[0][0].begin_ns, waiting[-1][0].end_ns
            together = _power_of_two(RECORDING.between_writes_ns * len(waiting) // max(1, end_ns - begin_ns))
            self._due = (self._count // together + 1) * together
            self._due_ns = (
                end_ns + 3 * RECORDING.between_writes_ns // 2
            )  # ranks agree on the number, and not on the time
        # Collectives first: a reader takes a step without them for a step without communication.
        written = self._collectives.write(*lines)
        for line in lines[written:]:  # later calls only name their groups
            self._groups = line.groups | self._groups
            self._dropped += line.dropped
        all_written = [end <= written or begin == end for begin, end in pairwise([0, *ends])]
        self._steps.write(*(record for (record, _), complete in zip(waiting, all_written, strict=True) if complete))
        for (record, _), step_rows in zip(waiting, rows, strict=True):
            self._summary.add(record, step_rows)
            if self._kept is not None:
                self._kept.passed(record)

    def _name_groups(self, line: CollectiveLine) -> None:
        """Names all groups in the first line of a piece, as those before it may be removed."""
        line.groups = self._named | line.groups

    def _rows(self, records: TimerRecords, lines: list[CollectiveLine]) -> list[CollectiveRow]:
        """The rows of these calls, which are added to the lines. A group may be known before its first call is."""
        self._groups |= records.groups
        self._named |= records.groups
        self._dropped += records.dropped
        rows: list[CollectiveRow] = []
        for step, calls in records.calls:
            lines.append(CollectiveLine(step, [call.row() for call in calls], self._groups, self._dropped))
            self._groups, self._dropped = {}, 0
            rows += lines[-1].rows
        return rows


def _power_of_two(most: int) -> int:
    """The largest power of two up to ``most``, at least 1."""
    return 1 << max(0, most.bit_length() - 1)
