"""One rank's steps as they are finished, each split into its parts, and its collectives as they end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from diag.account.records import partition
from diag.collectors.layout import RankLayout
from diag.collectors.records import CollectiveLine, CollectiveRow, DeviceStepRecord, MemoryRecord, StepRecord
from diag.model.steps import Kind
from diag.rundir.tail import Tail

_AT_ONCE = 32  # steps: splitting looks at every collective of the batch for every step of it
_MOST_OPEN = 10_000  # collectives whose end the device has not told yet


class FinishedStep(Struct, frozen=True):
    """``parts``: nanoseconds by kind of time, which add up to the step. ``comm_known`` False: communication ran on a
    device, unseen by the host, and is a part of its computation."""

    record: StepRecord
    parts: tuple[tuple[Kind, int], ...]
    comm_known: bool

    @property
    def dur_ns(self) -> int:
        return self.record.end_ns - self.record.begin_ns

    @property
    def memory(self) -> MemoryRecord | None:
        return self.record.memory


class Call(Struct, frozen=True):
    """``ns`` None: its end is not known, yet or for good; it may come as a Call of its own with ``count`` 0."""

    group: str
    op: str
    bytes: int
    ns: int | None
    count: int = 1


class FinishedSteps:
    """Follows the files of one rank."""

    def __init__(self, rank: int, files: RankLayout, on_device: bool) -> None:
        self._rank, self._on_device = rank, on_device
        self._records = Tail(files.steps, StepRecord)
        self._lines = Tail(files.collectives, CollectiveLine)
        self._device = Tail(files.device_steps, DeviceStepRecord)
        self._waiting: list[StepRecord] = []
        self._rows: dict[int, list[CollectiveRow]] = {}  # by step: of those that wait, and of the one before
        self._before = -1  # that step
        self._seen = -1  # step of the last line of collectives
        self._open: dict[tuple[str, int], str] = {}  # operations whose end the device will tell

    @property
    def unreadable(self) -> int:
        return self._records.unreadable + self._lines.unreadable + self._device.unreadable

    @property
    def refusals(self) -> dict[Path, str]:
        """The files that could not be read the last time, and why."""
        return {tail.path: tail.refusal for tail in (self._records, self._lines, self._device) if tail.refusal}

    def read(self, ended: bool) -> tuple[list[FinishedStep], list[Call]]:
        """What is new. Steps beyond the last collectives wait for theirs, which a network file system may show later,
        until there are newer steps: these may have none. If the run has ``ended`` none waits. RestartedError where the
        files are others by now."""
        new = self._records.read()
        lines = self._lines.read()
        for line in lines:
            self._seen = max(self._seen, line.step)
            self._rows.setdefault(line.step, []).extend(line.rows)
        calls = [self._call(row) for line in lines for row in line.rows]
        calls += (call for record in self._device.read() for call in self._ended(record))
        waits = self._lines.exists and not ended
        patient, ready = (new, self._waiting) if new else (self._waiting, [])
        self._waiting = [record for record in patient if waits and record.step > self._seen]
        ready = ready + [record for record in patient if not waits or record.step <= self._seen]
        return list(self._split([record for record in ready if record.end_ns > record.begin_ns])), calls

    def _split(self, ready: Sequence[StepRecord]) -> Iterator[FinishedStep]:
        cuts = [*range(0, len(ready), _AT_ONCE), len(ready)]
        for first, end in pairwise(cuts):
            batch = ready[first:end]
            # A collective of one step can be waited for in the next.
            numbers = dict.fromkeys((self._before, *(record.step for record in batch)))
            rows = [row for step in numbers for row in self._rows.get(step, ())]
            for record, found in zip(batch, partition(self._rank, batch, rows, {}, self._on_device), strict=True):
                parts = tuple((kind, found.segments.total(kind)) for kind in Kind)
                yield FinishedStep(record, parts, found.comm_known)
            self._before = batch[-1].step
            for step in numbers:
                if step != self._before:
                    self._rows.pop(step, None)

    def _call(self, row: CollectiveRow) -> Call:
        if row.end_ns is None and len(self._open) < _MOST_OPEN:
            self._open[row.group, row.seq] = row.op
        return Call(row.group, row.op, row.bytes, None if row.end_ns is None else row.end_ns - row.start_ns)

    def _ended(self, record: DeviceStepRecord) -> Iterator[Call]:
        for group, seq, start_ns, end_ns in record.collectives:
            op = self._open.pop((group, seq), None)
            if op is not None:
                yield Call(group, op, 0, end_ns - start_ns, count=0)
