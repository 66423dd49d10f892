"""What one rank's steps and collectives add up to, as samples."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping

from diag.collectors.records import P2P_PREFIX, Heartbeat, MemoryRecord, RankRecord
from diag.export import definitions as of
from diag.export.definitions import Sample
from diag.export.finished_steps import Call, FinishedStep
from diag.model.steps import Kind

PARTS = {
    Kind.COMPUTE: "compute",
    Kind.COMM: "exposed_comm",
    Kind.COPY: "exposed_copy",
    Kind.DATA: "data_wait",
    Kind.CHECKPOINT: "checkpoint",
    Kind.IDLE: "idle",
}
HIDDEN_COMM = "compute_or_comm"  # on a device without its own records of communication
MESSAGES = "p2p"  # one group for all pairs of ranks

_S = 1e9  # nanoseconds


def part_name(kind: Kind, comm_known: bool) -> str:
    return HIDDEN_COMM if kind == Kind.COMPUTE and not comm_known else PARTS[kind]


def parts_of(step: FinishedStep) -> dict[str, int]:
    """Nanoseconds by the name of the part; without communication where it is not known."""
    known = step.comm_known
    return {part_name(kind, known): ns for kind, ns in step.parts if known or kind != Kind.COMM}


class RankTotals:
    """Grows with what is added; the samples are of now."""

    def __init__(self) -> None:
        self._steps = self._step_ns = self._tokens = 0
        self._part_ns: Counter[str] = Counter()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._call_ns: Counter[tuple[str, str]] = Counter()
        self._call_bytes: Counter[tuple[str, str]] = Counter()
        self._recent: deque[tuple[int, int, int, dict[str, int]]] = deque(maxlen=of.RECENT)  # begin, end, tokens, parts
        self._last_step: int | None = None
        self._memory: MemoryRecord | None = None

    def add(self, steps: Iterable[FinishedStep], calls: Iterable[Call]) -> None:
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
        """Of this rank; what is not known has no sample."""
        yield Sample(of.STEPS, labels, self._steps)
        yield Sample(of.UNREADABLE, labels, unreadable)
        if self._last_step is not None:
            yield from self._of_steps(labels, self._last_step, identity)
        if self._memory is not None:
            yield from _of_memory(labels, self._memory)
        for (op, group), count in sorted(self._calls.items()):
            own = {**labels, of.OP: op, of.GROUP: group}
            yield Sample(of.COLLECTIVES, own, count)
            yield Sample(of.COLLECTIVE_BYTES, own, self._call_bytes[op, group])
            if (op, group) in self._call_ns:
                yield Sample(of.COLLECTIVE_SECONDS, own, self._call_ns[op, group] / _S)
        if heartbeat is not None:
            yield Sample(of.HEARTBEAT_TIME, labels, heartbeat.unix_ns / _S)
            yield Sample(of.HEARTBEAT_AGE, labels, max(0, now_ns - heartbeat.unix_ns) / _S)

    def _of_steps(self, labels: Mapping[str, str], last: int, identity: RankRecord | None) -> Iterator[Sample]:
        recent = len(self._recent)
        begin_ns, end_ns = self._recent[0][0], self._recent[-1][1]
        yield Sample(of.LAST_STEP, labels, last)
        if identity is not None:
            yield Sample(of.LAST_STEP_TIME, labels, (identity.unix_ns + end_ns - identity.monotonic_ns) / _S)
        yield Sample(of.STEP_SECONDS, labels, self._step_ns / _S)
        yield Sample(of.STEP_DURATION, labels, sum(end - begin for begin, end, _, _ in self._recent) / _S / recent)
        lately: Counter[str] = Counter()
        for _, _, _, parts in self._recent:
            lately.update(parts)
        for part, ns in self._part_ns.items():
            own = {**labels, of.PART: part}
            yield Sample(of.PART_SECONDS, own, ns / _S)
            yield Sample(of.PART_DURATION, own, lately[part] / _S / recent)
        if self._tokens:
            yield Sample(of.TOKENS, labels, self._tokens)
            tokens = sum(tokens for _, _, tokens, _ in self._recent)
            yield Sample(of.TOKEN_RATE, labels, tokens * _S / (end_ns - begin_ns))


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
