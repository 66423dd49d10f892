"""A run's finished steps, each split into its parts: totals by rank, and curves by step."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct, field

from diag.account.off_core import by_cpu_time
from diag.account.records import Recorded, partition
from diag.account.scheduling import blocked_in_phases
from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.records import (
    P2P_PREFIX,
    CollectiveLine,
    CollectiveRow,
    DeviceStepRecord,
    Heartbeat,
    MemoryRecord,
    RankRecord,
    StepRecord,
)
from diag.errors import DiagError, readable, require_listable
from diag.export import definitions as of
from diag.export.definitions import Metric, Sample
from diag.export.policy import EXPORT_LIMITS
from diag.model.steps import Kind, by_kinds
from diag.rundir.columns import Rows, Steps
from diag.rundir.job_ranks import job_ranks
from diag.rundir.lines import read_manifest
from diag.rundir.run import must_exist
from diag.rundir.tail import Tail
from diag.tables.tokens import token_rate


def must_be_run(layout: RunLayout) -> None:
    """DiagError if the folder is not a run directory, or may not be read."""
    must_exist([str(layout.root)])
    require_listable(layout.root)
    if not layout.is_run():
        raise DiagError(
            "is not a run directory",
            path=layout.root,
            hint="metrics are read from what the collectors record: give a folder that `diag run` wrote",
        )
    with readable(layout.ranks_folder):
        layout.ranks()


class FinishedStep(Struct, frozen=True):
    """A finished step. ``parts``: nanoseconds by kind of time, which add up to the step. ``comm_known`` False:
    communication ran on a device and was not recorded, so it is included in computation."""

    record: StepRecord
    parts: tuple[tuple[Kind, int], ...]
    comm_known: bool

    @property
    def dur_ns(self) -> int:
        return self.record.end_ns - self.record.begin_ns

    @property
    def memory(self) -> MemoryRecord | None:
        return self.record.memory


class FinishedCall(Struct, frozen=True):
    """A finished collective. ``ns`` None: its end is not known, or not yet; it may follow as another FinishedCall with
    ``count`` 0."""

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
        self._rows: dict[int, list[CollectiveRow]] = {}  # by step: rows of waiting steps and of the step before them
        self._before = -1  # the step before the waiting ones
        self._last_line_step = -1  # step of the last line of collectives
        self._open: dict[tuple[str, int], str] = {}  # operations whose end on the device is to come

    @property
    def unreadable(self) -> int:
        return self._records.unreadable + self._lines.unreadable + self._device.unreadable

    @property
    def refusals(self) -> dict[Path, str]:
        """The files that could not be read in the last reading, and why."""
        return {tail.path: tail.refusal for tail in (self._records, self._lines, self._device) if tail.refusal}

    def read(self, ended: bool) -> tuple[list[FinishedStep], list[FinishedCall]]:
        """Reads new steps and collectives. A step after the last line of collectives waits for its own, which a network
        file system may show later, until there are newer steps: it may have none. If the run has ``ended``, no step
        waits. RestartedError if the files have been replaced."""
        new = self._records.read()
        lines = self._lines.read()
        for line in lines:
            self._last_line_step = max(self._last_line_step, line.step)
            self._rows.setdefault(line.step, []).extend(line.rows)
        calls = [self._call(row) for line in lines for row in line.rows]
        calls += (call for record in self._device.read() for call in self._ended(record))
        may_wait = self._lines.exists and not ended
        candidates, finished = (new, self._waiting) if new else (self._waiting, [])
        self._waiting = [record for record in candidates if may_wait and record.step > self._last_line_step]
        finished = finished + [record for record in candidates if not may_wait or record.step <= self._last_line_step]
        return list(self._split([record for record in finished if record.end_ns > record.begin_ns])), calls

    def _split(self, finished: Sequence[StepRecord]) -> Iterator[FinishedStep]:
        cuts = [*range(0, len(finished), EXPORT_LIMITS.steps_at_once), len(finished)]
        for first, end in pairwise(cuts):
            batch = finished[first:end]
            # A collective of one step can be waited for in the next.
            numbers = dict.fromkeys((self._before, *(record.step for record in batch)))
            rows = [row for step in numbers for row in self._rows.get(step, ())]
            recorded = Recorded(self._rank, Steps.of(batch), Rows.of(rows), {}, self._on_device)
            (accounts,) = partition([recorded])
            if not self._on_device:
                accounts = by_cpu_time(accounts, blocked_in_phases(batch, rows))
            for record, spent, known in zip(
                batch, by_kinds(accounts.segments).tolist(), accounts.comm_known.tolist(), strict=True
            ):
                yield FinishedStep(record, tuple(zip(Kind, spent, strict=True)), known)
            self._before = batch[-1].step
            for step in numbers:
                if step != self._before:
                    self._rows.pop(step, None)

    def _call(self, row: CollectiveRow) -> FinishedCall:
        if row.end_ns is None and len(self._open) < EXPORT_LIMITS.most_open_collectives:
            self._open[row.group, row.seq] = row.op
        return FinishedCall(row.group, row.op, row.bytes, None if row.end_ns is None else row.end_ns - row.start_ns)

    def _ended(self, record: DeviceStepRecord) -> Iterator[FinishedCall]:
        for call in record.collectives:
            op = self._open.pop((call.group, call.seq), None)
            if op is not None:
                yield FinishedCall(call.group, op, 0, call.end_ns - call.start_ns, count=0)


# -- rank totals -------------------------------------------------------------------------------------------------------
#
# Totals of one rank's steps and collectives, as samples.

PARTS = {
    Kind.COMPUTE: "compute",
    Kind.COMM: "exposed_comm",
    Kind.COPY: "exposed_copy",
    Kind.DATA: "data_wait",
    Kind.CHECKPOINT: "checkpoint",
    Kind.IDLE: "idle",
}
HIDDEN_COMM = "compute_or_comm"  # on a device without records of communication
MESSAGES = "p2p"  # one group for all pairs of ranks

_S = 1e9  # nanoseconds


def part_name(kind: Kind, comm_known: bool) -> str:
    return HIDDEN_COMM if kind == Kind.COMPUTE and not comm_known else PARTS[kind]


def parts_of(step: FinishedStep) -> dict[str, int]:
    """Nanoseconds by name of the part; without communication if it is not known."""
    comm_known = step.comm_known
    return {part_name(kind, comm_known): ns for kind, ns in step.parts if comm_known or kind != Kind.COMM}


class RankTotals:
    """Accumulates steps and calls of a rank; ``samples`` returns the current values."""

    def __init__(self) -> None:
        self._steps = self._step_ns = self._tokens = 0
        self._part_ns: Counter[str] = Counter()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._call_ns: Counter[tuple[str, str]] = Counter()
        self._call_bytes: Counter[tuple[str, str]] = Counter()
        self._recent: deque[tuple[int, int, int, dict[str, int]]] = deque(maxlen=of.RECENT)  # begin, end, tokens, parts
        self._last_step: int | None = None
        self._memory: MemoryRecord | None = None

    def add(self, steps: Iterable[FinishedStep], calls: Iterable[FinishedCall]) -> None:
        for step in steps:
            parts = parts_of(step)
            self._steps += 1
            self._step_ns += step.dur_ns
            self._tokens += step.record.tokens
            self._part_ns.update(parts)
            self._recent.append((step.record.begin_ns, step.record.end_ns, step.record.tokens, parts))
            self._last_step = step.record.step
            self._memory = step.memory or self._memory
        for call in calls:
            key = call.op, MESSAGES if call.group.startswith(P2P_PREFIX) else call.group
            self._calls[key] += call.count
            self._call_bytes[key] += call.bytes
            if call.ns is not None:
                self._call_ns[key] += call.ns

    def samples(
        self,
        labels: Mapping[str, str],
        identity: RankRecord | None,
        heartbeat: Heartbeat | None,
        unreadable: int,
        now_ns: int,
    ) -> Iterator[Sample]:
        """The samples of this rank; unknown values have no sample."""
        yield Sample(of.STEPS, labels, self._steps)
        yield Sample(of.UNREADABLE, labels, unreadable)
        # Records end at their budget, and are written seconds later: the heartbeat knows the step that is under way.
        by_heartbeat = heartbeat.step - (0 if heartbeat.done else 1) if heartbeat is not None else -1
        last = max((step for step in (self._last_step, by_heartbeat) if step is not None and step >= 0), default=None)
        if last is not None:
            yield Sample(of.LAST_STEP, labels, last)
        if self._last_step is not None:
            yield from self._of_steps(labels, identity)
        if self._memory is not None:
            yield from _of_memory(labels, self._memory)
        for (op, group), count in sorted(self._calls.items()):
            call_labels = {**labels, of.OP: op, of.GROUP: group}
            yield Sample(of.COLLECTIVES, call_labels, count)
            yield Sample(of.COLLECTIVE_BYTES, call_labels, self._call_bytes[op, group])
            if (op, group) in self._call_ns:
                yield Sample(of.COLLECTIVE_SECONDS, call_labels, self._call_ns[op, group] / _S)
        if heartbeat is not None:
            yield Sample(of.HEARTBEAT_TIME, labels, heartbeat.unix_ns / _S)
            yield Sample(of.HEARTBEAT_AGE, labels, max(0, now_ns - heartbeat.unix_ns) / _S)

    def _of_steps(self, labels: Mapping[str, str], identity: RankRecord | None) -> Iterator[Sample]:
        recent = len(self._recent)
        begin_ns, end_ns = self._recent[0][0], self._recent[-1][1]
        if identity is not None:
            yield Sample(of.LAST_STEP_TIME, labels, (identity.unix_ns + end_ns - identity.monotonic_ns) / _S)
        yield Sample(of.STEP_SECONDS, labels, self._step_ns / _S)
        yield Sample(of.STEP_DURATION, labels, sum(end - begin for begin, end, _, _ in self._recent) / _S / recent)
        lately: Counter[str] = Counter()
        for _, _, _, parts in self._recent:
            lately.update(parts)
        for part, ns in self._part_ns.items():
            part_labels = {**labels, of.PART: part}
            yield Sample(of.PART_SECONDS, part_labels, ns / _S)
            yield Sample(of.PART_DURATION, part_labels, lately[part] / _S / recent)
        if self._tokens:
            yield Sample(of.TOKENS, labels, self._tokens)
            tokens = sum(tokens for _, _, tokens, _ in self._recent)
            yield Sample(of.TOKEN_RATE, labels, token_rate(tokens, end_ns - begin_ns))


def _of_memory(labels: Mapping[str, str], memory: MemoryRecord) -> Iterator[Sample]:
    yield Sample(of.RESIDENT, labels, memory.rss)
    for metric, value in (
        (of.ALLOCATED, memory.allocated),
        (of.RESERVED, memory.reserved),
        (of.CAPACITY, memory.capacity),
        (of.RETRIES, memory.alloc_retries),
    ):
        if value is not None:
            yield Sample(metric, labels, value)


class StepCurves(Struct, frozen=True):
    """One step. ``values`` by name of the curve, such as `diag_step_duration_seconds/max`."""

    step: int
    end_unix_s: float
    values: dict[str, float]


def history(run: Path, say: Callable[[str, str], object] | None = None) -> Iterator[StepCurves]:
    """Every recorded step, in order: its time and parts as mean and max over the ranks, the largest memory, and tokens
    per second of all ranks. ``say`` is called with each file that cannot be read, and why. DiagError if ``run`` is not
    a run directory."""
    layout = RunLayout(run)
    must_be_run(layout)
    read_manifest(layout)  # refuses a newer schema
    return _curves(layout, say)


def _curves(layout: RunLayout, say: Callable[[str, str], object] | None) -> Iterator[StepCurves]:
    steps: dict[int, _Step] = {}
    job = job_ranks(layout, whole=True)
    for gap in job.gaps:
        if say is not None:
            say(gap.path, gap.reason)
    for rank, files in job.files.items():
        identity = job.identities[rank]
        recorded = FinishedSteps(rank, files, identity is not None and identity.device != "cpu")
        finished, _ = recorded.read(ended=True)
        for path, reason in recorded.refusals.items():
            if say is not None:
                say(str(path), f"cannot be read: {reason}")
        for finished_step in finished:
            steps.setdefault(finished_step.record.step, _Step()).add(finished_step, identity)
    for number, step in sorted(steps.items()):
        yield StepCurves(number, step.end_unix_s, step.values())


class _Step(Struct):
    """One step, accumulated over the ranks read so far."""

    end_unix_s: float = 0.0
    dur_ns: list[int] = field(default_factory=list)
    part_ns: dict[str, list[int]] = field(default_factory=dict)
    tokens: int = 0
    memory: dict[Metric, int] = field(default_factory=dict)

    def add(self, finished_step: FinishedStep, identity: RankRecord | None) -> None:
        if identity is not None:
            end_ns = identity.unix_ns + finished_step.record.end_ns - identity.monotonic_ns
            self.end_unix_s = max(self.end_unix_s, end_ns / 1e9)
        self.dur_ns.append(finished_step.dur_ns)
        for part, ns in parts_of(finished_step).items():
            self.part_ns.setdefault(part, []).append(ns)
        self.tokens += finished_step.record.tokens
        if finished_step.memory is not None:
            held = (
                (of.ALLOCATED, finished_step.memory.allocated),
                (of.RESERVED, finished_step.memory.reserved),
                (of.RESIDENT, finished_step.memory.rss),
            )
            for metric, size in held:
                if size is not None:
                    self.memory[metric] = max(size, self.memory.get(metric, 0))

    def values(self) -> dict[str, float]:
        curves = _mean_and_max(of.STEP_DURATION.name, self.dur_ns)
        for part, ns_of_ranks in self.part_ns.items():
            curves |= _mean_and_max(f"{of.PART_DURATION.name}/{part}", ns_of_ranks)
        if self.tokens:
            curves[of.TOKEN_RATE.name] = token_rate(self.tokens, max(self.dur_ns))
        return curves | {f"{metric.name}/max": float(size) for metric, size in self.memory.items()}


def _mean_and_max(name: str, ns: list[int]) -> dict[str, float]:
    return {f"{name}/mean": sum(ns) / len(ns) / 1e9, f"{name}/max": max(ns) / 1e9}
